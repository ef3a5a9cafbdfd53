"""What an attacker works with: the transcript of one party, and what that party holds
anyway. No truth is in here."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
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
    """How strongly an attacker suspects each label of each row.

    Args:
        rows: The numbers of the rows in the agreed order.
        scores: For classes `[rows, classes]`, where the highest score of a row is the
            label that the attacker says; of two classes each has the other's score with
            the opposite sign. For labels that are numbers `[rows, 1]`, the guess itself
            up to a scale.
        named: Whether the columns of `scores` are classes. If not, they are groups of
            rows that should share a label, and the attacker needs one known row of each
            group to name it.
    """

    rows: Tensor
    scores: Tensor
    named: bool

    @property
    def labels(self) -> Tensor:
        """The label or group that the attacker says of each row, or its number."""
        return labels_said(self.scores)

    def by_row(self) -> Guess:
        """The guess with each row once: the mean of what was suspected of it.

        A party may hear of a row in every round. Only different rows are independent
        evidence of how well an attack works.
        """
        rows, place = torch.unique(self.rows, return_inverse=True)
        if len(rows) == len(self.rows):
            return self
        sums = torch.zeros(len(rows), self.scores.shape[1], dtype=torch.float64)
        sums.index_add_(0, place, self.scores.double())
        times = torch.bincount(place, minlength=len(rows))
        return replace(self, rows=rows, scores=sums / times[:, None])

    def ranked(self) -> Guess:
        """The guess with each score replaced by its rank among all scores.

        Ranks say the same labels and order the rows in the same way, and tell nothing
        else of the model and the columns that the scores came from.
        """
        _, ranks = torch.unique(self.scores, return_inverse=True)
        return replace(self, scores=ranks.float())


def labels_said(scores: Tensor) -> Tensor:
    """The label with the highest score in each row; of numbers the score itself."""
    return scores.argmax(1) if scores.shape[1] > 1 else scores[:, 0]


def suspicion(outputs: Tensor, classes: int) -> Tensor:
    """The scores of a guess from outputs that grow with what they stand for.

    Args:
        outputs: `[rows, outputs]`; one output for two classes stands for the second.
        classes: How many classes there are; 0 where labels are numbers.
    """
    if classes == 2:
        second = (
            outputs[:, 0] if outputs.shape[1] == 1 else outputs[:, 1] - outputs[:, 0]
        )
        return torch.stack([-second, second], 1)
    return outputs


def no_guess(*, named: bool = True) -> Guess:
    """The guess of an attack that could not be made."""
    return Guess(torch.empty(0, dtype=torch.int64), torch.empty(0, 1), named)


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
