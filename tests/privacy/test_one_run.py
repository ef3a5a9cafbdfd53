"""One-run bounds: below the truth, as tight as their papers say, and exact where the
mathematics is."""

from __future__ import annotations

import math

import pytest
from scipy.stats import binom, norm

from colonnade.privacy.accounting import dp_accounting, gaussian_epsilon
from colonnade.privacy.one_run import Guesses, f_dp, independent, mu_of, steinke

DELTA = 1e-5


@pytest.mark.parametrize("right", [600, 750, 999, 1000])
def test_without_delta_steinkes_bound_is_the_binomial_tail(right: int) -> None:
    """P[Bin(r, e^eps / (1 + e^eps)) >= v] is p at the bound."""
    bound = steinke(Guesses(1000, 1000, right), 0.0, 0.05)
    assert float(
        binom.sf(right - 1, 1000, 1 / (1 + math.exp(-bound)))
    ) == pytest.approx(0.05, rel=0.02)


def test_steinkes_bound_with_delta_is_that_of_the_papers_sum() -> None:
    """The same by the sum as it is printed, one term after the other."""
    m = 300
    r = 40
    v = 36
    epsilon = 1.2
    delta = 1e-3
    chance = 1 / (1 + math.exp(-epsilon))
    alpha = total = 0.0
    for i in range(1, v + 1):
        total += float(binom.pmf(v - i, r, chance))
        alpha = max(alpha, total / i)
    p = float(binom.sf(v - 1, r, chance)) + 2 * m * delta * alpha
    assert steinke(Guesses(m, r, v), delta, p) == pytest.approx(epsilon, abs=2e-3)


def test_chance_shows_nothing() -> None:
    half = Guesses(1000, 1000, 500)
    assert steinke(half, DELTA, 0.05) == f_dp(half, 0.05) == 0
    assert independent(half, 0.05) == 0
    assert (
        steinke(Guesses(10, 10, 0), DELTA, 0.05)
        == independent(Guesses(10, 10, 0), 0.05)
        == 0
    )


@pytest.mark.parametrize("epsilon", [1.0, 2.0, 4.0, 8.0])
def test_of_a_gaussian_the_bound_is_below_the_truth_and_above_half_of_it(
    epsilon: float,
) -> None:
    """10,000 canaries, guessed as often as the noise allows: the expected number,
    without any draw."""
    mu = 1 / float(dp_accounting().get_sigma_gaussian(epsilon, DELTA))
    guesses = Guesses(10_000, 10_000, round(10_000 * float(norm.cdf(mu / 2))))
    tight = gaussian_epsilon(mu_of(independent(guesses, 0.05 / 6)), DELTA)
    assert 0.5 * epsilon < tight < epsilon
    assert 0 < f_dp(guesses, 0.05) < mu


def test_total_variation_and_mu_are_one_anothers_inverse() -> None:
    for mu in (0.1, 1.0, 3.0):
        assert mu_of(2 * float(norm.cdf(mu / 2)) - 1) == pytest.approx(mu, abs=1e-6)
