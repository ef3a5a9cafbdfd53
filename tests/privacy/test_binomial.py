"""Quantization with binomial noise: Noisy C-VFL's error law, its bytes, and its grid.
What binomial noise costs: against enumeration of all outcomes, and cpSGD's theorem
beside it.
"""

from __future__ import annotations

import math
from itertools import product

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.stats import binom
from torch import Generator

from colonnade.compression.integers import Integers
from colonnade.core import Outbox, Rule
from colonnade.errors import ConfigError
from colonnade.privacy import Binomial, binomial
from colonnade.privacy.accounting import (
    Key,
    binomial_cpsgd,
    binomial_pld,
    gaussian_epsilon,
    known_batch,
)

SETTINGS = [
    Binomial(2, 1),
    Binomial(16, 100),
    Binomial(8, 1000, 0.3, -3.0, 5.0),
    Binomial(5, 0),
]


def generator(seed: int = 0) -> Generator:
    return Generator().manual_seed(seed)


def values(rows: int = 400, width: int = 12, scale: float = 2.0) -> torch.Tensor:
    return torch.randn(rows, width, generator=generator(7), dtype=torch.float64) * scale


@pytest.mark.parametrize("mechanism", SETTINGS, ids=repr)
def test_released_values_lie_on_the_grid(mechanism: Binomial) -> None:
    low, step, count = mechanism.grid
    released, _ = mechanism.apply(values(), generator())
    index = (released - low) / step
    assert torch.allclose(index, index.round(), atol=1e-6)
    assert index.round().min() >= 0
    assert index.round().max() <= count - 1 == mechanism.levels - 1 + mechanism.trials


@pytest.mark.parametrize("mechanism", SETTINGS, ids=repr)
def test_without_noise_a_value_goes_to_its_nearest_level(mechanism: Binomial) -> None:
    quiet = Binomial(mechanism.levels, 0, mechanism.p, mechanism.low, mechanism.high)
    x = values()
    levels = torch.linspace(
        mechanism.low, mechanism.high, mechanism.levels, dtype=torch.float64
    )
    nearest = levels[(x[..., None] - levels).abs().argmin(-1)]
    torch.testing.assert_close(quiet.apply(x, generator())[0], nearest)


@pytest.mark.parametrize(("trials", "p"), [(40, 0.5), (500, 0.2)])
def test_noise_adds_p_times_b_times_variance_to_the_squared_error(
    trials: int, p: float
) -> None:
    """Section 4.1: E||error||^2 with noise minus without = P B N p (1-p), in level
    units."""
    noisy = Binomial(16, trials, p, -2.0, 2.0)
    quiet = Binomial(16, 0, p, -2.0, 2.0)
    x = values(rows=2000)
    errors = [
        ((m.apply(x, generator(3))[0] - x) / m.step).square() for m in (noisy, quiet)
    ]
    expected = x.numel() * trials * p * (1 - p)
    more = float((errors[0] - errors[1]).sum())
    spread = float((errors[0] - errors[1]).std()) * math.sqrt(x.numel())
    assert abs(more - expected) < 4 * spread
    assert spread < 0.05 * expected  # so that the test can fail


def test_the_noise_is_binomial_and_its_mean_is_subtracted() -> None:
    from scipy.stats import binom, chisquare

    mechanism = Binomial(2, 10, 0.3, 0.0, 1.0)
    released, _ = mechanism.apply(
        torch.zeros(5000, 8, dtype=torch.float64), generator(1)
    )
    flips = (released + 10 * 0.3).round().long().flatten().numpy()
    counts = np.bincount(flips, minlength=11)
    expected = binom.pmf(np.arange(11), 10, 0.3) * len(flips)
    often = expected > 5
    seen = np.append(counts[often], counts[~often].sum())
    assert (
        chisquare(seen, np.append(expected[often], expected[~often].sum())).pvalue
        > 1e-4
    )
    assert abs(float(released.mean())) < 4 * math.sqrt(
        10 * 0.3 * 0.7 / released.numel()
    )


@pytest.mark.parametrize("mechanism", SETTINGS, ids=repr)
@pytest.mark.parametrize("width", [1, 7, 12])
def test_a_row_takes_the_bytes_of_theorem_4_2(mechanism: Binomial, width: int) -> None:
    outbox = Outbox(
        "ada", generator(), {"x": Rule(mechanism, Integers(*mechanism.grid))}
    )
    x = values(width=width).float()
    released = outbox.release(x, "x")
    bits = math.ceil(math.log2(mechanism.levels + mechanism.trials))
    assert released.receipt.bytes == len(x) * math.ceil(width * bits / 8)
    sent, _ = mechanism.apply(x, generator())
    torch.testing.assert_close(
        released.tensor, sent, atol=1e-4 * mechanism.step, rtol=1e-5
    )


def test_it_says_how_many_values_a_row_has() -> None:
    _, event = Binomial(4, 9, 0.25).apply(torch.zeros(3, 2, 5), generator())
    assert event.kind == "binomial"
    assert dict(event.parameters) == {
        "levels": 4.0,
        "trials": 9.0,
        "p": 0.25,
        "coordinates": 10.0,
    }


def test_what_is_no_number_becomes_a_level() -> None:
    released, _ = Binomial(3, 0).apply(
        torch.tensor([[math.nan, math.inf, -math.inf]]), generator()
    )
    assert released.tolist() == [[-1.0, 1.0, -1.0]]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"levels": 1, "trials": 5},
            "levels must be a whole number, 2 or more; found 1",
        ),
        ({"levels": 2.0, "trials": 5}, "levels must be"),
        ({"levels": 4, "trials": -1}, "trials must be"),
        ({"levels": 4, "trials": True}, "trials must be"),
        ({"levels": 4, "trials": 5, "p": 1.0}, "p must be"),
        ({"levels": 4, "trials": 5, "low": 1.0, "high": 1.0}, "low must be below"),
        ({"levels": 4, "trials": 5, "high": math.inf}, "low must be below"),
    ],
)
def test_bad_settings_are_refused(settings: dict[str, float], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Binomial(**settings)  # type: ignore[arg-type]


def key(levels: int, trials: int, p: float = 0.5, coordinates: int = 1) -> Key:
    about = {"coordinates": coordinates, "levels": levels, "p": p, "trials": trials}
    return "binomial", tuple((name, float(value)) for name, value in about.items())


def masses(
    trials: int, p: float, shifts: tuple[int, ...], size: int
) -> NDArray[np.float64]:
    """The joint mass of coordinates that are each a binomial plus a level, by writing
    every outcome out."""
    x = np.arange(size)
    whole = np.ones(1)
    for shift in shifts:
        whole = np.outer(whole, binom.pmf(x - shift, trials, p)).ravel()
    return whole


def enumerated(
    levels: int, trials: int, p: float, coordinates: int, epsilon: float
) -> float:
    """delta(epsilon): the largest over all pairs of rows, whichever levels they have."""
    size = trials + levels
    worst = 0.0
    for moves in product(range(-(levels - 1), levels), repeat=coordinates):
        one = tuple(max(0, -move) for move in moves)
        other = tuple(level + move for level, move in zip(one, moves, strict=True))
        P = masses(trials, p, one, size)
        Q = masses(trials, p, other, size)
        worst = max(worst, float(np.maximum(P - math.exp(epsilon) * Q, 0).sum()))
    return worst


@pytest.mark.parametrize(
    ("levels", "trials", "p", "coordinates"),
    [
        (2, 40, 0.5, 1),
        (3, 40, 0.5, 2),
        (4, 60, 0.3, 1),
        (2, 30, 0.3, 2),
        (3, 24, 0.5, 2),
    ],
)
def test_epsilon_is_that_of_all_outcomes_and_all_pairs_of_rows(
    levels: int, trials: int, p: float, coordinates: int
) -> None:
    delta = 1e-3
    claimed = binomial_pld([(key(levels, trials, p, coordinates), 1)], 0.0, delta)
    exact = brentq(
        lambda epsilon: enumerated(levels, trials, p, coordinates, epsilon) - delta,
        0.0,
        40.0,
    )
    assert claimed >= exact - 1e-6
    # else the larger curve at every epsilon is a little above each pattern
    one_way = p == 0.5 or coordinates == 1
    assert claimed <= exact * (1.005 if one_way else 1.15)


def test_releases_compose_like_coordinates() -> None:
    one = binomial_pld([(key(4, 4096, coordinates=12), 5)], 0.0, 1e-5)
    assert one == pytest.approx(
        binomial_pld([(key(4, 4096, coordinates=60), 1)], 0.0, 1e-5)
    )


def test_much_noise_costs_what_gaussian_noise_of_the_same_spread_does() -> None:
    levels = 8
    trials = 65536
    coordinates = 160
    mu = (levels - 1) * math.sqrt(coordinates) / math.sqrt(trials / 4)
    found = binomial_pld([(key(levels, trials, coordinates=coordinates), 1)], 0.0, 1e-5)
    assert found == pytest.approx(gaussian_epsilon(mu, 1e-5), rel=1e-3)


def test_more_rounds_levels_or_coordinates_never_cost_less_and_more_noise_never_more() -> (
    None
):
    def epsilon(
        levels: int = 4, trials: int = 2048, coordinates: int = 8, times: int = 2
    ) -> float:
        return known_batch(
            {key(levels, trials, 0.5, coordinates): times}, "replace-one", 1e-5
        )

    assert epsilon() < epsilon(times=4) < epsilon(times=8)
    assert epsilon() < epsilon(levels=5)
    assert epsilon() < epsilon(coordinates=9)
    assert epsilon() > epsilon(trials=4096)


@pytest.mark.parametrize(("levels", "trials"), [(8, 8), (4, 0), (2, 3)])
def test_too_little_noise_is_no_guarantee(levels: int, trials: int) -> None:
    assert (
        known_batch({key(levels, trials, 0.5, 16): 1}, "replace-one", 1e-5) == math.inf
    )


def test_cpsgd_as_printed() -> None:
    """Theorem 1 of cpSGD worked out by hand for p = 1/2: b = 1/3, c = sqrt(2) 7/4, d =
    2/3."""
    levels = 4
    trials = 65536
    d = 16
    delta = 1e-5
    v = trials / 4
    log = math.log
    first = 3 * 4 * math.sqrt(2 * log(1.25 / delta)) / math.sqrt(v)
    second = (12 * math.sqrt(2) * 1.75 * math.sqrt(log(10 / delta)) + 48 / 3) / (
        v * (1 - delta / 10)
    )
    third = (2 * log(1.25 / delta) + 2 * log(20 * d / delta) * log(10 / delta)) / v
    assert binomial_cpsgd(key(levels, trials, 0.5, d), 1, delta) == pytest.approx(
        first + second + third
    )
    assert binomial.cpsgd(4, 65536, 0.3, 16, delta) == pytest.approx(
        binomial.cpsgd(4, 65536, 0.7, 16, delta)
    )


def test_cpsgd_needs_enough_noise() -> None:
    # 256 < 23 log(10 d / delta)
    assert binomial.cpsgd(16, 1024, 0.5, 60, 1e-5) == math.inf
    assert binomial.cpsgd(10_000, 4096, 0.5, 1, 1e-5) == math.inf  # 1024 < 2 Delta_inf


def test_the_tighter_of_the_two_is_the_exact_one_where_both_hold() -> None:
    item = key(4, 65536, 0.5, 16)
    exact = binomial_pld([(item, 1)], 0.0, 1e-5)
    theorem = binomial_cpsgd(item, 1, 1e-5)
    assert theorem < binomial.PROVEN
    assert exact < theorem
    assert known_batch({item: 1}, "replace-one", 1e-5) == exact


def test_cpsgd_as_printed_can_claim_too_little_and_is_then_not_believed() -> None:
    """One coordinate, ten standard deviations: at the theorem's epsilon an outcome has
    a chance far above delta."""
    levels = 5001
    trials = 10**6
    delta = 1e-5
    claimed = binomial.cpsgd(levels, trials, 0.5, 1, delta)
    true_delta = binomial.curve(levels - 1, trials, 0.5, np.array([claimed]))[0]
    assert claimed < 60
    assert true_delta > 1000 * delta
    assert known_batch({key(levels, trials): 1}, "replace-one", delta) > claimed
