"""An attack on released rows: the epsilon that it proves is never above the claimed
one, and far from zero."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy.stats import beta, binom
from torch import Generator, Tensor

from colonnade.core import Mechanism
from colonnade.privacy import Binomial, Gaussian, RandomizedResponse
from colonnade.privacy.accounting import key_of, known_batch

TRIALS = 60_000
TIMES = 2
DELTA = 1e-5
ERROR = 0.001  # of either rate's bound


def bound(told: NDArray[np.float64], other: NDArray[np.float64]) -> float:
    """The epsilon that holds with 99.8 % confidence at least: Clopper-Pearson on the
    best threshold, chosen on one half of the trials and judged on the other."""
    half = len(told) // 2
    most = 0.0
    best = max(
        np.quantile(other[:half], np.linspace(0.5, 0.9995, 60)),
        key=lambda t: np.log(
            max((told[:half] > t).mean(), 1e-9)
            / max((other[:half] > t).mean(), 20 / half)
        ),
    )
    hits = int((told[half:] > best).sum())
    false = int((other[half:] > best).sum())
    n = len(told) - half
    rate = beta.ppf(ERROR, hits, n - hits + 1) if hits else 0.0
    alarm = beta.ppf(1 - ERROR, false + 1, n - false)
    if rate > DELTA:
        most = max(most, math.log((rate - DELTA) / alarm))
    return most


def released(
    mechanism: Mechanism, row: Tensor, seed: int
) -> tuple[NDArray[np.float64], Any]:
    """What an attacker sees of the same row, in every trial TIMES times."""
    source = Generator().manual_seed(seed)
    seen = []
    for _ in range(TIMES):
        values, event = mechanism.apply(row.repeat(TRIALS, 1), source)
        seen.append(values.numpy())
    return np.stack(seen), event


def test_against_gaussian_noise() -> None:
    mechanism = Gaussian(clip=0.7, sigma=3.0)
    # clipping brings it down; the other is its mirror image
    row = torch.tensor([30.0, 40.0, 0.0], dtype=torch.float64)
    (mine, event), (other, _) = (
        released(mechanism, row, 1),
        released(mechanism, -row, 2),
    )
    scores = [(seen @ row.numpy()).sum(0) for seen in (mine, other)]
    claimed = known_batch({key_of(event): TIMES}, "replace-one", DELTA)
    assert 0.4 * claimed < bound(*scores) <= claimed


@pytest.mark.parametrize("p", [0.5, 0.3])
def test_against_binomial_noise(p: float) -> None:
    mechanism = Binomial(levels=4, trials=300, p=p)
    row = torch.tensor([9.0, 9.0], dtype=torch.float64)
    (mine, event), (other, _) = (
        released(mechanism, row, 1),
        released(mechanism, -row, 2),
    )

    def score(seen: NDArray[np.float64]) -> NDArray[np.float64]:
        """The likelihood ratio of both rows, as whoever knows the mechanism computes
        it."""
        low, step, _ = mechanism.grid
        sent = np.rint((seen - low) / step)
        ratio = binom.logpmf(sent - 3, 300, p) - binom.logpmf(sent, 300, p)
        return np.asarray(np.clip(ratio, -50, 50).sum((0, 2)))

    claimed = known_batch({key_of(event): TIMES}, "replace-one", DELTA)
    assert 0.35 * claimed < bound(score(mine), score(other)) <= claimed


def test_against_randomized_response() -> None:
    """One draw, however often it is looked at: the bound closes in on epsilon itself."""
    mechanism = RandomizedResponse(1.5, 4)
    source = Generator().manual_seed(3)
    drawn = [
        mechanism.apply(torch.full((TRIALS,), label), source)[0].numpy()
        for label in (0, 1)
    ]
    hits, false = (int((labels == 0).sum()) for labels in drawn)
    rate = beta.ppf(ERROR, hits, TRIALS - hits + 1)
    alarm = beta.ppf(1 - ERROR, false + 1, TRIALS - false)
    assert 0.9 * 1.5 < math.log(rate / alarm) <= 1.5


def test_the_attack_finds_a_claim_that_is_too_small() -> None:
    """Half the noise than what is claimed is caught: the test above can fail."""
    mechanism = Gaussian(clip=0.7, sigma=1.0)
    row = torch.tensor([30.0, 40.0, 0.0], dtype=torch.float64)
    (mine, _), (other, _) = released(mechanism, row, 1), released(mechanism, -row, 2)
    _, event = Gaussian(clip=0.7, sigma=3.0).apply(row[None], Generator())
    claimed = known_batch({key_of(event): TIMES}, "replace-one", DELTA)
    assert bound(*((seen @ row.numpy()).sum(0) for seen in (mine, other))) > claimed
