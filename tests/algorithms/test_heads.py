"""Heads are what the label owners compute."""

from __future__ import annotations

import pytest
import torch

from colonnade.algorithms import ALGORITHMS
from colonnade.algorithms.heads import MeanProbability, Summed


def test_every_algorithm_with_a_model_has_one() -> None:
    assert {
        name for name, algorithm in ALGORITHMS.items() if algorithm.head is None
    } == {"knn"}


@pytest.mark.parametrize("classes", [2, 4])
def test_probabilities_are_averaged(classes: int) -> None:
    sent = [torch.randn(5, classes - 1) for _ in range(3)]
    each = [torch.cat([torch.zeros(5, 1), one], dim=1).softmax(-1) for one in sent]
    mean = torch.stack(each).mean(0)
    out = MeanProbability(1 if classes == 2 else classes)(sent)
    found = out[:, 0].sigmoid() if classes == 2 else out.exp()
    torch.testing.assert_close(found, mean[:, 1] if classes == 2 else mean)


def test_logits_are_added() -> None:
    sent = [torch.randn(5, 3) for _ in range(4)]
    torch.testing.assert_close(Summed()(sent), sent[0] + sent[1] + sent[2] + sent[3])
