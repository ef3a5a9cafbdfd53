"""Quantization with binomial noise: Noisy C-VFL's error law, its bytes, and its grid."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Generator

from colonnade.compression.integers import Integers
from colonnade.core import Outbox, Rule
from colonnade.errors import ConfigError
from colonnade.privacy import Binomial

SETTINGS = [Binomial(2, 1), Binomial(16, 100), Binomial(8, 1000, 0.3, -3.0, 5.0), Binomial(5, 0)]


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
    levels = torch.linspace(mechanism.low, mechanism.high, mechanism.levels, dtype=torch.float64)
    nearest = levels[(x[..., None] - levels).abs().argmin(-1)]
    torch.testing.assert_close(quiet.apply(x, generator())[0], nearest)


@pytest.mark.parametrize(("trials", "p"), [(40, 0.5), (500, 0.2)])
def test_noise_adds_p_times_b_times_variance_to_the_squared_error(trials: int, p: float) -> None:
    """Section 4.1: E||error||^2 with noise minus without = P B N p (1-p), in level units."""
    noisy, quiet = Binomial(16, trials, p, -2.0, 2.0), Binomial(16, 0, p, -2.0, 2.0)
    x = values(rows=2000)
    errors = [((m.apply(x, generator(3))[0] - x) / m.step).square() for m in (noisy, quiet)]
    expected = x.numel() * trials * p * (1 - p)
    more = float((errors[0] - errors[1]).sum())
    spread = float((errors[0] - errors[1]).std()) * math.sqrt(x.numel())
    assert abs(more - expected) < 4 * spread
    assert spread < 0.05 * expected  # so that the test can fail


def test_the_noise_is_binomial_and_its_mean_is_subtracted() -> None:
    from scipy.stats import binom, chisquare

    mechanism = Binomial(2, 10, 0.3, 0.0, 1.0)
    released, _ = mechanism.apply(torch.zeros(5000, 8, dtype=torch.float64), generator(1))
    flips = (released + 10 * 0.3).round().long().flatten().numpy()
    counts = np.bincount(flips, minlength=11)
    expected = binom.pmf(np.arange(11), 10, 0.3) * len(flips)
    often = expected > 5
    seen = np.append(counts[often], counts[~often].sum())
    assert chisquare(seen, np.append(expected[often], expected[~often].sum())).pvalue > 1e-4
    assert abs(float(released.mean())) < 4 * math.sqrt(10 * 0.3 * 0.7 / released.numel())


@pytest.mark.parametrize("mechanism", SETTINGS, ids=repr)
@pytest.mark.parametrize("width", [1, 7, 12])
def test_a_row_takes_the_bytes_of_theorem_4_2(mechanism: Binomial, width: int) -> None:
    outbox = Outbox("ada", generator(), {"x": Rule(mechanism, Integers(*mechanism.grid))})
    x = values(width=width).float()
    released = outbox.release(x, "x")
    bits = math.ceil(math.log2(mechanism.levels + mechanism.trials))
    assert released.receipt.bytes == len(x) * math.ceil(width * bits / 8)
    sent, _ = mechanism.apply(x, generator())
    torch.testing.assert_close(released.tensor, sent, atol=1e-4 * mechanism.step, rtol=1e-5)


def test_it_says_how_many_values_a_row_has() -> None:
    _, event = Binomial(4, 9, 0.25).apply(torch.zeros(3, 2, 5), generator())
    assert event.kind == "binomial"
    assert dict(event.parameters) == {"levels": 4.0, "trials": 9.0, "p": 0.25, "coordinates": 10.0}


def test_what_is_no_number_becomes_a_level() -> None:
    released, _ = Binomial(3, 0).apply(torch.tensor([[math.nan, math.inf, -math.inf]]), generator())
    assert released.tolist() == [[-1.0, 1.0, -1.0]]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"levels": 1, "trials": 5}, "levels must be a whole number, 2 or more; found 1"),
        ({"levels": 2.0, "trials": 5}, "levels must be"), ({"levels": 4, "trials": -1}, "trials must be"),
        ({"levels": 4, "trials": True}, "trials must be"), ({"levels": 4, "trials": 5, "p": 1.0}, "p must be"),
        ({"levels": 4, "trials": 5, "low": 1.0, "high": 1.0}, "low must be below"),
        ({"levels": 4, "trials": 5, "high": math.inf}, "low must be below"),
    ],
)  # fmt: skip
def test_bad_settings_are_refused(settings: dict[str, float], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Binomial(**settings)  # type: ignore[arg-type]
