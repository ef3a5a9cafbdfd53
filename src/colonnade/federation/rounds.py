"""How far a federation with several label owners has come: counted in rounds, as another's `Batches` count batches."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from colonnade.core import Agreed, Step


@dataclass(frozen=True, slots=True)
class RoundDone(Step):
    """One round: the loss of each label owner that took part, and why any other was left out."""

    losses: Mapping[str, float]
    left_out: Mapping[str, str]


class Rounds:
    """An epoch is one round, in which every label owner trains on all its rows."""

    per_epoch = 1

    def __init__(self, agreed: Agreed, epochs: int) -> None:
        self.agreed, self.epochs, self.done = agreed, epochs, 0

    def __len__(self) -> int:
        return self.epochs

    @property
    def batch_size(self) -> int:
        return self.agreed.batch_size

    @property
    def splits(self) -> dict[str, Tensor]:
        """By purpose the rows of all label owners; who is known to two is in it twice."""
        found: dict[str, list[Tensor]] = {}
        for owner, batches in self.agreed.items():
            for split, rows in batches.splits.items():
                found.setdefault(split, []).append(self.agreed.orders[owner][rows])
        return {split: torch.cat(rows) for split, rows in found.items()}

    def fingerprint(self) -> str:
        return self.agreed.fingerprint()
