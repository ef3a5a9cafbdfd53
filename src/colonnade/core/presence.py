"""Which party holds which of a label owner's rows, where not everybody holds all.

    to party k     A batch of which it holds no row is not asked of it. What has a line
                   per row is cut to its rows. Where that is the gradient of a mean over
                   the batch, it is made the gradient of the mean over its rows: a party
                   with few rows would else take tiny steps, and its weight decay would
                   leave nothing of its model.
    from party k   What has a line per row is put where its rows are in the batch, and is
                   zero in the others.

So an algorithm that adds parties up sums over those who hold a row, and knows nothing
of it. Which rows a party holds is the label owner's to know: a party is told its own
part of a batch and no more. A party may also be left out of a whole training batch at
random (`dropout`), so that the others learn to do without it.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from torch import Tensor

from colonnade.core.message import Message, Request, batch_of
from colonnade.core.release import Released
from colonnade.core.wire import Envelope

M = TypeVar("M", bound=Message)


class Presence:
    """Knows which party holds which rows, and adapts what is asked and answered.

    Args:
        own: The party of the label owner's own organisation. It is never left out at
            random.
        parties: All parties that are asked.
        lacks: For each party that lacks some rows, a mask over the label owner's rows.
        rows: Finds the rows of a batch by its name.
        per_row: The releases that have a line for each row.
        slopes: The releases that are gradients of a mean over the batch.
        dropout: The chance that a party is left out of a training batch.
        seed: The agreed seed, from which follows who is left out.
    """

    def __init__(
        self,
        own: str,
        parties: Collection[str],
        lacks: Mapping[str, Tensor],
        rows: Callable[[str], Tensor],
        *,
        per_row: Collection[str],
        slopes: Collection[str] = (),
        dropout: float = 0.0,
        seed: int = 0,
    ) -> None:
        self.own = own
        self.parties = tuple(parties)
        self.rows = rows
        self.per_row = per_row
        self.slopes = slopes
        self.holds = {party: ~mask for party, mask in lacks.items()}
        self.dropout = dropout
        self.seed = seed
        self.away: Collection[str] = ()
        """Parties that are not asked at all, as where somebody wants to know what one
        of them adds."""

    def of(self, party: str, batch: str) -> Tensor | None:
        """A mask over a batch's rows: those that a party is asked for. None for all."""
        rows = self.rows(batch)
        if party in self.away or party in self._left_out_at_random(batch):
            return torch.zeros(len(rows), dtype=torch.bool, device=rows.device)
        if party not in self.holds:
            return None
        if self.holds[party].device != rows.device:
            self.holds[party] = self.holds[party].to(rows.device)
        mask = self.holds[party][rows]
        return None if bool(mask.all()) else mask

    def count(self, batch: str) -> Tensor:
        """How many parties say something of each row of a batch, [rows, 1]; at least
        1."""
        rows = self.rows(batch)
        total = torch.zeros(len(rows), 1, device=rows.device)
        for party in self.parties:
            mask = self.of(party, batch)
            total += 1 if mask is None else mask[:, None]
        return total.clamp_min(1)

    def size(self, party: str, batch: str) -> int:
        """How many lines a party's answer for a batch has."""
        mask = self.of(party, batch)
        return len(self.rows(batch)) if mask is None else int(mask.sum())

    def to_ask(
        self, calls: Mapping[str, Envelope[Request[Any]]]
    ) -> dict[str, Envelope[Request[Any]]]:
        """The calls to make: each party is told what concerns its rows, and a party
        without any row of the batch is not asked."""
        to_make = {}
        for party, call in calls.items():
            batch = batch_of(call.message)
            mask = None if batch is None else self.of(party, batch)
            if mask is None:
                to_make[party] = call
            elif bool(mask.any()):
                cut = self._cut_to(mask, call.message)
                to_make[party] = dataclasses.replace(call, message=cut)
        return to_make

    def complete(self, party: str, request: Request[Any], reply: Message) -> Message:
        """A party's answer with a line for every row of the batch: zeros where it holds
        none."""
        batch = batch_of(request)
        mask = None if batch is None else self.of(party, batch)
        if mask is None:
            return reply
        rows = mask.nonzero().flatten()
        return self._with_changed_rows(
            reply, lambda released: released.among(rows, len(mask))
        )

    @contextmanager
    def without(self, parties: Collection[str]) -> Iterator[None]:
        """Ask these parties for nothing, as long as this lasts."""
        before = self.away
        self.away = frozenset(parties) | frozenset(before)
        try:
            yield
        finally:
            self.away = before

    def _cut_to(self, mask: Tensor, request: Request[Any]) -> Request[Any]:
        """A request with the lines of a party's rows alone."""
        rows = mask.nonzero().flatten()

        def cut(released: Released) -> Released:
            if len(released.tensor) < len(mask):  # it was made for this party
                return released
            is_slope = released.receipt.name in self.slopes
            scale = len(mask) / len(rows) if is_slope else 1.0
            return released.at_rows(rows, scale)

        return self._with_changed_rows(request, cut)

    def _left_out_at_random(self, batch: str) -> frozenset[str]:
        """The parties left out of a training batch: the same ones whenever the batch is
        named. One party always stays."""
        is_training = batch.rpartition(":")[2].startswith("train/")
        if not self.dropout or not is_training:
            return frozenset()
        draws = {
            party: self._draw(batch, party)
            for party in self.parties
            if party != self.own
        }
        left_out = {party for party, draw in draws.items() if draw < self.dropout}
        if len(left_out) == len(self.parties):
            luckiest = max(draws, key=lambda party: draws[party])
            left_out.remove(luckiest)
        return frozenset(left_out)

    def _draw(self, batch: str, party: str) -> float:
        """A number between 0 and 1 that follows from the seed, a batch and a party."""
        words = f"{self.seed}/dropout/{batch}/{party}"
        digest = hashlib.sha256(words.encode()).digest()
        return int.from_bytes(digest[:4]) / 2**32

    def _with_changed_rows(
        self, message: M, change: Callable[[Released], Released]
    ) -> M:
        """A message with each release changed that has a line per row."""

        def changed(value: Any) -> Any:
            if isinstance(value, Released):
                return change(value) if value.receipt.name in self.per_row else value
            if isinstance(value, dict):
                return {key: changed(inner) for key, inner in value.items()}
            if isinstance(value, tuple):
                return tuple(changed(inner) for inner in value)
            return value

        fields = {name: changed(getattr(message, name)) for name in message.hints()}
        return type(message)(**fields)
