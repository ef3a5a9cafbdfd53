"""Randomized response: the printed chances, and no more than the printed epsilon."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Generator

from colonnade.errors import ConfigError
from colonnade.privacy import RandomizedResponse


@pytest.mark.parametrize(("epsilon", "classes"), [(0.5, 2), (2.0, 3), (4.0, 10)])
def test_labels_stay_and_move_as_often_as_epsilon_says(epsilon: float, classes: int) -> None:
    from scipy.stats import chisquare

    labels = torch.full((40_000,), classes - 1)
    drawn, event = RandomizedResponse(epsilon, classes).apply(labels, Generator().manual_seed(0))
    counts = torch.bincount(drawn, minlength=classes).double().numpy()
    other = 1 / (math.exp(epsilon) + classes - 1)
    expected = [other] * (classes - 1) + [math.exp(epsilon) * other]
    assert chisquare(counts, [share * len(labels) for share in expected]).pvalue > 1e-4
    assert event.kind == "randomized-response"
    assert dict(event.parameters) == {"epsilon": epsilon, "classes": classes}


def test_types_and_shapes_stay() -> None:
    labels = torch.randint(0, 5, (30,), generator=Generator().manual_seed(1))
    drawn, _ = RandomizedResponse(1.0, 5).apply(labels, Generator().manual_seed(2))
    assert drawn.dtype == labels.dtype
    assert set(drawn.tolist()) <= set(range(5))
    assert not torch.equal(drawn, labels)


@pytest.mark.parametrize("epsilon", [0.0, -1.0, 101.0, math.nan, True, "2"])
def test_a_bad_epsilon_is_refused(epsilon: float) -> None:
    with pytest.raises(ConfigError, match=r"randomized_response\.epsilon must be above 0, at most 100"):
        RandomizedResponse(epsilon)


def test_one_class_is_refused() -> None:
    with pytest.raises(ConfigError, match="classes must be 2 or more"):
        RandomizedResponse(1.0, 1)
