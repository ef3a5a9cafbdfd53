"""What an attacker works with: the transcript of one party, and what that party holds
anyway. No truth is in here."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from colonnade.algorithms import Kind, Release
from colonnade.core import Batches, DpEvent, Transcript

Names = tuple[str, ...]
"""Under which something is released."""


@dataclass(frozen=True)
class Knowledge:
    """What a party knows without listening: the agreed rows and settings, what kind of
    label is learned, and its own part: its model when listening began, its columns, and
    the gradient it first stepped with."""

    party: str
    batches: Batches
    config: Any
    classes: int  # 0: the label is a number
    releases: Mapping[str, Release]  # what the algorithm sends, and of which kind
    model: nn.Module | None = None
    columns: Tensor | None = None
    stepped: Tensor | None = None
    # what reached it when the run began
    begun: Transcript = field(default_factory=lambda: Transcript(""))
    # what it sent to the label owner meanwhile
    shown: Transcript = field(default_factory=lambda: Transcript(""))

    def named(self, *kinds: Kind) -> Names:
        """The names under which something of these kinds is sent."""
        return tuple(
            name for name, release in self.releases.items() if release.kind in kinds
        )


@dataclass(frozen=True, eq=False)
class Guess:
    """A label for each row, which is a number in the agreed order. Where `named` is
    false these are groups of rows that should share a label, and the attacker would
    need one known row of each to name them."""

    rows: Tensor
    labels: Tensor
    named: bool


@dataclass(frozen=True, eq=False)
class Received:
    """One tensor with a row per row of its batch, and what its receipt says about it."""

    rows: Tensor
    values: Tensor
    batch: str
    event: DpEvent
    codec: str

    @property
    def real_matrix(self) -> bool:
        """Whether it is [rows, numbers], as embeddings are; masked shares are integers."""
        return self.values.is_floating_point() and self.values.dim() == 2


def received(
    transcript: Transcript, batches: Batches, names: Names, owner: str | None = None
) -> Iterator[Received]:
    """The tensors that others released under these names and that reached this party,
    in order, with the rows they are about. A tensor may come by way of a third party;
    its owner's receipt stays on it."""
    for seen in transcript:
        for released in seen.message.released():
            receipt = released.receipt
            if receipt.owner == transcript.party or owner not in (None, receipt.owner):
                continue
            batch = receipt.batch or seen.batch
            if receipt.name in names and batch is not None:
                yield Received(
                    batches.rows(batch),
                    released.tensor.cpu(),
                    batch,
                    receipt.event,
                    receipt.codec,
                )


def stacked(tensors: Iterator[Received]) -> tuple[Tensor, Tensor]:
    """Rows and values of all tensors that have a line per row, one after the other."""
    per_row = [
        tensor
        for tensor in tensors
        if tensor.values.dim() and len(tensor.values) == len(tensor.rows)
    ]
    if not per_row:
        return torch.empty(0, dtype=torch.int64), torch.empty(0, 0)
    return torch.cat([tensor.rows for tensor in per_row]), torch.cat(
        [tensor.values for tensor in per_row]
    )


def side_by_side(rounds: Iterator[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """Rows and values of all rounds over the same rows, in the order of the first."""
    rows = torch.empty(0, dtype=torch.int64)
    parts = []
    for rows_of_round, values in rounds:
        rows = rows_of_round if not len(rows) else rows
        if len(rows_of_round) == len(rows) and torch.equal(
            rows_of_round.sort().values, rows.sort().values
        ):
            parts.append(values[rows_of_round.argsort()[rows.argsort().argsort()]])
    return rows, torch.cat(parts, 1).float() if parts else torch.empty(len(rows), 0)
