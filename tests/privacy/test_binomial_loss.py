"""What binomial noise costs: against enumeration of all outcomes, and cpSGD's theorem beside it."""

from __future__ import annotations

import math
from itertools import product

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.stats import binom

from colonnade.privacy import binomial
from colonnade.privacy.accounting import Key, binomial_cpsgd, binomial_pld, gaussian_epsilon, known_batch


def key(levels: int, trials: int, p: float = 0.5, coordinates: int = 1) -> Key:
    about = {"coordinates": coordinates, "levels": levels, "p": p, "trials": trials}
    return "binomial", tuple((name, float(value)) for name, value in about.items())


def masses(trials: int, p: float, shifts: tuple[int, ...], size: int) -> NDArray[np.float64]:
    """The joint mass of coordinates that are each a binomial plus a level, by writing every outcome out."""
    x = np.arange(size)
    whole = np.ones(1)
    for shift in shifts:
        whole = np.outer(whole, binom.pmf(x - shift, trials, p)).ravel()
    return whole


def enumerated(levels: int, trials: int, p: float, coordinates: int, epsilon: float) -> float:
    """delta(epsilon): the largest over all pairs of rows, whichever levels they have."""
    size, worst = trials + levels, 0.0
    for moves in product(range(-(levels - 1), levels), repeat=coordinates):
        one = tuple(max(0, -move) for move in moves)
        other = tuple(level + move for level, move in zip(one, moves, strict=True))
        P, Q = masses(trials, p, one, size), masses(trials, p, other, size)
        worst = max(worst, float(np.maximum(P - math.exp(epsilon) * Q, 0).sum()))
    return worst


@pytest.mark.parametrize(
    ("levels", "trials", "p", "coordinates"),
    [(2, 40, 0.5, 1), (3, 40, 0.5, 2), (4, 60, 0.3, 1), (2, 30, 0.3, 2), (3, 24, 0.5, 2)],
)
def test_epsilon_is_that_of_all_outcomes_and_all_pairs_of_rows(
    levels: int, trials: int, p: float, coordinates: int
) -> None:
    delta = 1e-3
    claimed = binomial_pld([(key(levels, trials, p, coordinates), 1)], 0.0, delta)
    exact = brentq(lambda epsilon: enumerated(levels, trials, p, coordinates, epsilon) - delta, 0.0, 40.0)
    assert claimed >= exact - 1e-6
    one_way = p == 0.5 or coordinates == 1  # else the larger curve at every epsilon is a little above each pattern
    assert claimed <= exact * (1.005 if one_way else 1.15)


def test_releases_compose_like_coordinates() -> None:
    one = binomial_pld([(key(4, 4096, coordinates=12), 5)], 0.0, 1e-5)
    assert one == pytest.approx(binomial_pld([(key(4, 4096, coordinates=60), 1)], 0.0, 1e-5))


def test_much_noise_costs_what_gaussian_noise_of_the_same_spread_does() -> None:
    levels, trials, coordinates = 8, 65536, 160
    mu = (levels - 1) * math.sqrt(coordinates) / math.sqrt(trials / 4)
    found = binomial_pld([(key(levels, trials, coordinates=coordinates), 1)], 0.0, 1e-5)
    assert found == pytest.approx(gaussian_epsilon(mu, 1e-5), rel=1e-3)


def test_more_rounds_levels_or_coordinates_never_cost_less_and_more_noise_never_more() -> None:
    def epsilon(levels: int = 4, trials: int = 2048, coordinates: int = 8, times: int = 2) -> float:
        return known_batch({key(levels, trials, 0.5, coordinates): times}, "replace-one", 1e-5)

    assert epsilon() < epsilon(times=4) < epsilon(times=8)
    assert epsilon() < epsilon(levels=5)
    assert epsilon() < epsilon(coordinates=9)
    assert epsilon() > epsilon(trials=4096)


@pytest.mark.parametrize(("levels", "trials"), [(8, 8), (4, 0), (2, 3)])
def test_too_little_noise_is_no_guarantee(levels: int, trials: int) -> None:
    assert known_batch({key(levels, trials, 0.5, 16): 1}, "replace-one", 1e-5) == math.inf


def test_cpsgd_as_printed() -> None:
    """Theorem 1 of cpSGD worked out by hand for p = 1/2: b = 1/3, c = sqrt(2) 7/4, d = 2/3."""
    levels, trials, d, delta = 4, 65536, 16, 1e-5
    v, log = trials / 4, math.log
    first = 3 * 4 * math.sqrt(2 * log(1.25 / delta)) / math.sqrt(v)
    second = (12 * math.sqrt(2) * 1.75 * math.sqrt(log(10 / delta)) + 48 / 3) / (v * (1 - delta / 10))
    third = (2 * log(1.25 / delta) + 2 * log(20 * d / delta) * log(10 / delta)) / v
    assert binomial_cpsgd(key(levels, trials, 0.5, d), 1, delta) == pytest.approx(first + second + third)
    assert binomial.cpsgd(4, 65536, 0.3, 16, delta) == pytest.approx(binomial.cpsgd(4, 65536, 0.7, 16, delta))


def test_cpsgd_needs_enough_noise() -> None:
    assert binomial.cpsgd(16, 1024, 0.5, 60, 1e-5) == math.inf  # 256 < 23 log(10 d / delta)
    assert binomial.cpsgd(10_000, 4096, 0.5, 1, 1e-5) == math.inf  # 1024 < 2 Delta_inf


def test_the_tighter_of_the_two_is_the_exact_one_where_both_hold() -> None:
    item = key(4, 65536, 0.5, 16)
    exact, theorem = binomial_pld([(item, 1)], 0.0, 1e-5), binomial_cpsgd(item, 1, 1e-5)
    assert theorem < binomial.PROVEN
    assert exact < theorem
    assert known_batch({item: 1}, "replace-one", 1e-5) == exact


def test_cpsgd_as_printed_can_claim_too_little_and_is_then_not_believed() -> None:
    """One coordinate, ten standard deviations: at the theorem's epsilon an outcome has a chance far above delta."""
    levels, trials, delta = 5001, 10**6, 1e-5
    claimed = binomial.cpsgd(levels, trials, 0.5, 1, delta)
    true_delta = binomial.curve(levels - 1, trials, 0.5, np.array([claimed]))[0]
    assert claimed < 60
    assert true_delta > 1000 * delta
    assert known_batch({key(levels, trials): 1}, "replace-one", delta) > claimed
