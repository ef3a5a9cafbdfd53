"""Rounds are counted as batches are."""

from __future__ import annotations

import torch

from colonnade.core import Agreed, Batches
from colonnade.core.batches import Rounds


def agreed(seed: int = 0) -> Agreed:
    def one(owner: str, rows: int) -> Batches:
        splits = {"train": torch.arange(1, rows), "test": torch.tensor([0])}
        return Batches(splits, batch_size=2, epochs=6, seed=seed, owner=owner)

    return Agreed(
        {
            "a": (one("a", 3), torch.tensor([4, 1, 2])),
            "b": (one("b", 2), torch.tensor([0, 1])),
        }
    )


def test_an_epoch_is_one_round_of_all_rows() -> None:
    rounds = Rounds(agreed(), 3)
    assert (len(rounds), rounds.per_epoch, rounds.done) == (3, 1, 0)
    assert {split: rows.tolist() for split, rows in rounds.splits.items()} == {
        "train": [1, 2, 1],
        "test": [4, 0],
    }


def test_the_fingerprint_is_of_what_was_agreed() -> None:
    assert (
        Rounds(agreed(), 3).fingerprint()
        == Rounds(agreed(), 5).fingerprint()
        != Rounds(agreed(1), 3).fingerprint()
    )
