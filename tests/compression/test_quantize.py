"""Quantize keeps its error bounds, is right on average when dithered, and takes the
bytes of the formula."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.compression.tensors import changed, generator, tensors, trip
from torch import Tensor

from colonnade.compression import Quantize
from colonnade.errors import ConfigError, WireError

LEVELS = st.sampled_from([2, 3, 4, 5, 16, 17, 255, 256, 1000, 65536])


@given(tensors(), LEVELS, st.sampled_from(["nearest", "dithered"]))
@settings(max_examples=100)
def test_no_value_moves_further_than_it_may(
    x: Tensor, levels: int, rounding: str
) -> None:
    packed, back = trip(Quantize(levels, rounding=rounding), x)
    assert len(packed.data) == x.shape[0] * math.ceil(
        x.shape[1] * math.ceil(math.log2(levels)) / 8
    )
    low = float(x.min())
    high = float(x.max())
    assert (packed.settings["low"], packed.settings["high"]) == (low, high)
    step = (high - low) / (levels - 1)
    slack = torch.finfo(x.dtype).eps * max(abs(low), abs(high))
    error = float((back.double() - x.double()).abs().max())
    assert error <= (step / 2 if rounding == "nearest" else step) + slack
    assert back.dtype == x.dtype
    assert back.min() >= x.min()
    assert back.max() <= x.max()


@given(tensors(), LEVELS, st.sampled_from(["nearest", "dithered"]), st.booleans())
@settings(max_examples=100)
def test_what_was_quantized_stays_as_it_is(
    x: Tensor, levels: int, rounding: str, fixed: bool
) -> None:
    codec = Quantize(levels, rounding=rounding)
    if fixed:
        codec = Quantize(levels, -10.0, 20.0, rounding)
    _, once = trip(codec, x, seed=1)
    _, twice = trip(codec, once, seed=2)
    assert torch.equal(once, twice)


def test_every_level_is_where_it_should_be() -> None:
    x = torch.linspace(-1, 1, 2001, dtype=torch.float64)[None]
    _, back = trip(Quantize(5, -1.0, 1.0), x)
    assert sorted(set(back[0].tolist())) == [-1.0, -0.5, 0.0, 0.5, 1.0]
    brute = torch.tensor([-1.0, -0.5, 0.0, 0.5, 1.0], dtype=torch.float64)
    assert torch.equal((back - x).abs(), (x[..., None] - brute).abs().min(-1).values)


def test_values_outside_the_owners_range_become_its_ends() -> None:
    for rounding in ("nearest", "dithered"):
        packed, back = trip(
            Quantize(3, -1.0, 1.0, rounding),
            torch.tensor([[-7.0, 1e30, -1.0, 1.0, 0.0]]),
        )
        assert back.tolist() == [[-1.0, 1.0, -1.0, 1.0, 0.0]]
        assert (packed.settings["low"], packed.settings["high"]) == (-1.0, 1.0)


@pytest.mark.parametrize("levels", [2, 5])
def test_dithered_is_right_on_average_and_up_with_the_right_chance(levels: int) -> None:
    """The mean of 20,000 draws is within five of its standard deviations."""
    values = torch.tensor([0.0, 0.1, 0.25, 0.4999, 0.77, 1.0], dtype=torch.float64)
    draws = 20_000
    _, back = trip(Quantize(levels, 0.0, 1.0, "dithered"), values.expand(draws, -1))
    step = 1 / (levels - 1)
    share = (values / step) % 1
    deviation = step * (share * (1 - share) / draws).sqrt()
    assert ((back.mean(0) - values).abs() <= 5 * deviation + 1e-12).all()
    for column, value in zip(back.T, values, strict=True):
        below = math.floor(float(value) / step) * step
        assert set(column.tolist()) <= {below, min(below + step, 1.0)}


def test_nearest_uses_no_random_numbers_and_dithered_the_owners() -> None:
    x = torch.randn(5, 6, generator=generator(3))
    own = generator(7)
    state = generator(7).get_state()
    Quantize(8).encode(x, own)
    assert torch.equal(own.get_state(), state)
    one, same, other = (
        Quantize(8, rounding="dithered").encode(x, generator(seed)).data
        for seed in (1, 1, 2)
    )
    assert one == same != other


def test_a_tensor_of_equal_values_is_exact() -> None:
    for value in (0.0, -3.25, 1e-45, 3e38):
        x = torch.full((4, 3), value)
        for rounding in ("nearest", "dithered"):
            assert torch.equal(trip(Quantize(16, rounding=rounding), x)[1], x)


@pytest.mark.parametrize("values", [[-3e38, 3e38, 0.0], [0.0, 1e-45, 3e-45]])
def test_the_largest_and_smallest_ranges_of_float32_work(values: list[float]) -> None:
    x = torch.tensor([values])
    _, back = trip(Quantize(2**16), x)
    assert (
        float((back.double() - x.double()).abs().max())
        <= (max(values) - min(values)) / 2**16
    )


def test_a_range_that_cannot_be_computed_with_is_refused() -> None:
    with pytest.raises(
        ConfigError, match="quantize: the range from -1e\\+308 to 1e\\+308 is too wide"
    ):
        Quantize(4).encode(
            torch.tensor([-1e308, 1e308], dtype=torch.float64), generator()
        )


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"levels": 1}, "levels must be a whole number from 2 to 65536; found 1"),
        ({"levels": 65537}, "found 65537"),
        ({"levels": "16"}, "found '16'"),
        ({"levels": 16.0}, r"found 16\.0"),
        (
            {"low": 0.0},
            r"low and high must be two numbers, .* found low = 0\.0, high = None",
        ),
        ({"low": 1.0, "high": 1.0}, "low below high"),
        ({"low": 0, "high": math.nan}, "low below high"),
        (
            {"rounding": "up"},
            'rounding must be one of "nearest", "dithered"; found \'up\'',
        ),
    ],
)
def test_a_setting_that_means_nothing_is_refused(
    settings: dict[str, Any], text: str
) -> None:
    with pytest.raises(ConfigError, match=f"quantize: .*{text}"):
        Quantize(**settings)


@pytest.mark.parametrize(
    "settings",
    [
        {"levels": 3},
        {"levels": 2**17},
        {"levels": 1},
        {"levels": None},
        {"low": 2.0},
        {"high": "1"},
        {"low": -1e308, "high": 1e308},
        {"levels": 17},
    ],
)
def test_settings_from_outside_that_do_not_fit_are_refused(
    settings: dict[str, Any],
) -> None:
    packed, _ = trip(Quantize(4), torch.linspace(0, 1, 4)[None])
    with pytest.raises(WireError):
        Quantize().decode(changed(packed, **settings))
