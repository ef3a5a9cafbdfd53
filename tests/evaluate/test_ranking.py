"""AUC and its interval, against brute force, other libraries and simulated truth."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import product
from statistics import NormalDist

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score
from torch import Generator, Tensor

from colonnade.evaluate.ranking import (
    low_if_perfect,
    newcombe_interval,
    normal_quantile,
    rank,
    recall_at,
)

Draw = Callable[[int, Generator], Tensor]


def drawn(seed: int, rows: int = 60) -> tuple[Tensor, Tensor]:
    """Scores with ties, and which rows are positive."""
    generator = Generator().manual_seed(seed)
    positive = torch.rand(rows, generator=generator) < 0.3
    scores = (3 * torch.randn(rows, generator=generator)).round() + 2 * positive
    return scores, positive


@pytest.mark.parametrize("seed", range(5))
def test_auc_is_the_share_of_pairs_in_order(seed: int) -> None:
    scores, positive = drawn(seed)
    pairs = product(scores[positive].tolist(), scores[~positive].tolist())
    shares = [1.0 if a > b else 0.5 if a == b else 0.0 for a, b in pairs]
    found = rank(scores, positive)
    assert found.auc == pytest.approx(sum(shares) / len(shares))
    assert found.auc == pytest.approx(roc_auc_score(positive.numpy(), scores.numpy()))
    assert found.low < found.auc < found.high


def test_scores_with_the_other_sign_are_the_mirror_image() -> None:
    scores, positive = drawn(0)
    found = rank(scores, positive)
    turned = rank(-scores, positive)
    assert turned.auc == pytest.approx(1 - found.auc)
    assert (turned.low, turned.high) == pytest.approx((1 - found.high, 1 - found.low))


@pytest.mark.parametrize(("auc", "counts"), [(0.7, (25, 487)), (1.0, (6, 58))])
def test_newcombes_ends_are_so_many_standard_errors_away(
    auc: float, counts: tuple[int, int]
) -> None:
    positives, negatives = counts
    z = normal_quantile()
    for end in newcombe_interval(auc, positives, negatives, z):
        others = (positives + negatives) / 2 - 1
        spread = 1 + others * (1 - end) / (2 - end) + others * end / (1 + end)
        error = math.sqrt(end * (1 - end) * spread / (positives * negatives))
        assert abs(auc - end) == pytest.approx(z * error, abs=1e-9)


def test_delongs_error_is_that_of_many_samples() -> None:
    """Where many rows are ranked in the middle, the interval is as wide as the spread
    of AUC from sample to sample says."""
    generator = Generator().manual_seed(0)
    positive = torch.arange(600) < 300
    widths = []
    aucs = []
    for _ in range(200):
        found = rank(torch.randn(600, generator=generator) + positive, positive)
        aucs.append(found.auc)
        widths.append(found.high - found.low)
    expected = 2 * normal_quantile() * float(np.std(aucs))
    assert float(np.mean(widths)) == pytest.approx(expected, rel=0.15)


def test_a_perfect_ranking_of_few_rows_proves_little() -> None:
    scores = torch.arange(64.0)
    for positives in (1, 2, 6, 32):
        found = rank(scores, scores >= 64 - positives)
        assert found.auc == found.high == 1.0
        assert found.low == low_if_perfect(positives, 64 - positives) < 0.99
    assert low_if_perfect(1, 63) < 0.5 < low_if_perfect(2, 62)
    assert low_if_perfect(0, 64) == low_if_perfect(64, 0) == 0.0
    assert low_if_perfect(6, 58, comparisons=10) < low_if_perfect(6, 58)


def test_more_comparisons_make_an_interval_wider() -> None:
    scores, positive = drawn(1)
    one = rank(scores, positive)
    ten = rank(scores, positive, comparisons=10)
    assert ten.low < one.low < one.high < ten.high
    assert normal_quantile(10) == pytest.approx(2.807, abs=1e-3)


def normal(mean: float, spread: float) -> Draw:
    return lambda rows, g: mean + spread * torch.randn(rows, generator=g)


def yes_or_no(share: float) -> Draw:
    return lambda rows, g: (torch.rand(rows, generator=g) < share).double()


def coverage(
    positives: Draw, negatives: Draw, counts: tuple[int, int], auc: float, times: int
) -> float:
    """How often the lower end of the interval is above the true AUC."""
    generator = Generator().manual_seed(0)
    positive = torch.arange(sum(counts)) < counts[0]
    above = 0
    for _ in range(times):
        parts = [
            draw(rows, generator)
            for draw, rows in zip((positives, negatives), counts, strict=True)
        ]
        above += rank(torch.cat(parts), positive).low > auc
    return above / times


def mean_for(auc: float, spread: float) -> float:
    """The mean of positives at which normal scores, negatives around 0, have this AUC."""
    return math.hypot(1.0, spread) * NormalDist().inv_cdf(auc)


@pytest.mark.parametrize("counts", [(25, 487), (487, 25), (60, 60)])
@pytest.mark.parametrize("auc", [0.5, 0.7, 0.9, 0.98])
@pytest.mark.parametrize("spread", [1 / 3, 1.0, 3.0])
def test_the_lower_end_is_above_the_truth_as_rarely_as_it_says(
    spread: float, auc: float, counts: tuple[int, int]
) -> None:
    """It should be above in 2.5 % of samples. It is in up to 6 % where the scores of a
    rare class are spread three times as wide as the others'. The rest is the luck of 300
    samples."""
    positives = normal(mean_for(auc, spread), spread)
    missed = coverage(positives, normal(0.0, 1.0), counts, auc, times=300)
    assert missed <= 0.1
    if spread == 1.0:
        assert missed <= 0.05


@pytest.mark.parametrize("auc", [0.5, 0.7, 0.9])
def test_so_it_is_where_the_attacker_only_says_yes_or_no(auc: float) -> None:
    false_positives = 0.05 * (2 - 2 * auc)
    positives = yes_or_no(2 * auc - 1 + false_positives)
    negatives = yes_or_no(false_positives)
    assert coverage(positives, negatives, (25, 487), auc, times=300) <= 0.05


def test_recall_among_the_most_suspected_breaks_ties_by_chance() -> None:
    positive = torch.arange(100) < 10
    assert recall_at(positive.double(), positive, 0.05) == 0.5
    assert recall_at(positive.double(), positive, 0.1) == 1.0
    assert recall_at(-positive.double(), positive, 0.05) == 0.0
    assert recall_at(torch.zeros(100), positive, 0.05) == pytest.approx(0.05)
    # of twenty rows that tie, five are looked at, and half are positive
    ties = (torch.arange(100) < 20).double()
    half = (torch.arange(100) < 20) & (torch.arange(100) % 2 == 0)
    assert recall_at(ties, half, 0.05) == pytest.approx(0.25)
    assert recall_at(torch.tensor([1.0, 0.0]), torch.tensor([True, False]), 0.05) == 1.0
