"""Rows that not everybody holds: a label owner asks each party for the rows it holds,
and goes on with the rest.

    to party k     a batch of which it holds no row is not asked of it; what has a line per row is cut to its rows, and
                   where it is the slope of a mean over the batch, made that of the mean over its rows: who holds few
                   would else step little, and its weight decay, if it has one, would leave nothing of its model
    from party k   what has a line per row is put where its rows are in the batch, and adds nothing in the others

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
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor

from colonnade.core.message import Message, Request, batch_of
from colonnade.core.release import Released
from colonnade.core.wire import Envelope

M = TypeVar("M", bound=Message)


class Presence:
    """Which party holds which rows. `lacks` has a mask over the label owner's rows for
    each party that lacks some; `parties` are all it asks, and `own` is the one of its
    own organisation, which is never left out."""

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
        # names of releases that are slopes of a mean over the batch
        self.slopes = slopes
        self.holds = {party: ~mask for party, mask in lacks.items()}
        self.dropout = dropout
        self.seed = seed
        # not to be asked at all, as where somebody wants to know what it adds
        self.away: Collection[str] = ()

    def of(self, party: str, batch: str) -> Tensor | None:
        """Which rows of a batch a party is asked for; None: all of them."""
        rows = self.rows(batch)
        if party in self.away or party in self._left_out(batch):
            return torch.zeros(len(rows), dtype=torch.bool, device=rows.device)
        held = self.holds.get(party)
        if held is None:
            return None
        if held.device != rows.device:
            held = self.holds[party] = held.to(rows.device)
        mine = held[rows]
        return None if bool(mine.all()) else mine

    def count(self, batch: str) -> Tensor:
        """Of how many parties each row of a batch has something, [rows, 1]; at least 1."""
        total = torch.zeros(len(self.rows(batch)), 1, device=self.rows(batch).device)
        for party in self.parties:
            mine = self.of(party, batch)
            total += 1 if mine is None else mine[:, None]
        return total.clamp_min(1)

    def size(self, party: str, batch: str) -> int:
        """How many lines a party's answer for a batch has."""
        mine = self.of(party, batch)
        return len(self.rows(batch)) if mine is None else int(mine.sum())

    def to_ask(
        self, envelopes: Mapping[str, Envelope[Request[Any]]]
    ) -> dict[str, Envelope[Request[Any]]]:
        """Without who holds nothing of the batch; to the others what concerns their
        rows."""
        to_send = {}
        for to, envelope in envelopes.items():
            batch = batch_of(envelope.message)
            mine = None if batch is None else self.of(to, batch)
            if mine is None:
                to_send[to] = envelope
            elif bool(mine.any()):
                cut = self._each(envelope.message, partial(self._cut, mine))
                to_send[to] = dataclasses.replace(envelope, message=cut)
        return to_send

    def _cut(self, mine: Tensor, one: Released) -> Released:
        rows = mine.nonzero().flatten()
        if len(one.tensor) < len(mine):  # it was made for this party
            return one
        return one.at_rows(
            rows, len(mine) / len(rows) if one.receipt.name in self.slopes else 1.0
        )

    def complete(self, party: str, request: Request[Any], reply: Message) -> Message:
        """A party's answer with a line for every row of the batch: zeros where it holds
        none."""
        batch = batch_of(request)
        mine = None if batch is None else self.of(party, batch)
        if mine is None:
            return reply
        rows = mine.nonzero().flatten()
        return self._each(reply, lambda one: one.among(rows, len(mine)))

    @contextmanager
    def without(self, parties: Collection[str]) -> Iterator[None]:
        """As long as this lasts, these parties are asked for nothing."""
        before = self.away
        self.away = frozenset(parties) | frozenset(self.away)
        try:
            yield
        finally:
            self.away = before

    def _left_out(self, batch: str) -> frozenset[str]:
        """The parties left out of a training batch: the same whenever the batch is
        named. One always stays."""
        if not self.dropout or not batch.rpartition(":")[2].startswith("train/"):
            return frozenset()
        others = [party for party in self.parties if party != self.own]
        words = {
            party: f"{self.seed}/dropout/{batch}/{party}".encode() for party in others
        }
        chance = {
            party: int.from_bytes(hashlib.sha256(word).digest()[:4]) / 2**32
            for party, word in words.items()
        }
        out = {party for party, drawn in chance.items() if drawn < self.dropout}
        if len(out) == len(self.parties):
            out.remove(max(chance, key=lambda party: chance[party]))
        return frozenset(out)

    def _each(self, message: M, change: Callable[[Released], Released]) -> M:
        """A message with each release that has a line per row changed."""

        def changed(value: Any) -> Any:
            if isinstance(value, Released):
                return change(value) if value.receipt.name in self.per_row else value
            if isinstance(value, dict):
                return {key: changed(inner) for key, inner in value.items()}
            return (
                tuple(changed(inner) for inner in value)
                if isinstance(value, tuple)
                else value
            )

        return type(message)(
            **{name: changed(getattr(message, name)) for name in message.hints()}
        )
