"""Integers is exact on its grid, takes the bytes of the formula, and refuses everything
off the grid."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.compression.tensors import changed, generator, trip

from colonnade.compression import Integers
from colonnade.errors import ConfigError, WireError

GRIDS = st.tuples(
    st.floats(-1e3, 1e3),
    st.floats(1e-3, 1e3),
    st.sampled_from([2, 3, 7, 16, 255, 256, 257, 1000]),
)


@given(
    GRIDS,
    st.integers(0, 5),
    st.integers(0, 20),
    st.integers(0, 99),
    st.sampled_from(["float32", "float64"]),
)
@settings(max_examples=80)
def test_values_on_the_grid_come_back_in_so_many_bytes(
    grid: tuple[float, float, int], rows: int, values: int, seed: int, dtype: str
) -> None:
    low, step, count = grid
    index = torch.randint(0, count, (rows, values), generator=generator(seed))
    exact = low + index.double() * step
    tensor = exact.to(getattr(torch, dtype))
    if max(abs(low), abs(low + count * step)) * 1e-6 > step:
        return  # finer than float32 can tell
    packed, back = trip(Integers(low, step, count), tensor)
    assert len(packed.data) == rows * math.ceil(
        values * math.ceil(math.log2(count)) / 8
    )
    assert back.dtype == tensor.dtype
    assert torch.equal(back, tensor)


def test_a_mechanisms_own_rounding_is_forgiven_and_put_right() -> None:
    codec = Integers(-0.3, 0.1, 64)
    index = torch.arange(64, dtype=torch.float32)
    # in float32, each step rounded
    computed = torch.tensor(-0.3) + index * torch.tensor(0.1)
    exact = (-0.3 + index.double() * 0.1).float()
    assert not torch.equal(computed, exact)
    assert torch.equal(trip(codec, computed)[1], exact)


@pytest.mark.parametrize(
    "bad", [0.5, -1.0, 4.0, 1e30, math.nan, math.inf, -math.inf, 1 + 1e-4]
)
def test_a_value_off_the_grid_is_refused_and_shown(bad: float) -> None:
    tensor = torch.tensor([[0.0, 1.0], [bad, 3.0]])
    shown = str(tensor.double()[1, 0].item()).replace("+", r"\+")
    with pytest.raises(
        ConfigError,
        match=rf"values must be 0\.0 \+ i \* 1\.0, i = 0 \.\. 3; 1 of 4 .* as {shown}",
    ):
        Integers(0.0, 1.0, 4).encode(tensor)


def test_labels_are_integers_too() -> None:
    labels = torch.randint(0, 10, (1000,), generator=generator())
    packed, back = trip(Integers(0, 1, 10), labels)
    assert back.dtype == torch.int64
    assert torch.equal(back, labels)
    assert len(packed.data) == 500


def test_a_grid_that_the_type_cannot_tell_is_refused() -> None:
    Integers(1e6, 1e-3, 4).encode(torch.full((2,), 1e6, dtype=torch.float64))
    with pytest.raises(
        ConfigError, match=r"in steps of 0\.001 is finer than torch\.float32 can tell"
    ):
        Integers(1e6, 1e-3, 4).encode(torch.full((2,), 1e6))


@pytest.mark.parametrize(
    ("grid", "text"),
    [
        ((0.0, 0.0, 4), "step one above 0; found low = 0.0, step = 0.0"),
        ((0.0, -1.0, 4), "step one above 0"),
        ((math.nan, 1.0, 4), "low must be a number"),
        (("0", 1.0, 4), "low must be a number"),
        ((0.0, math.inf, 4), "step one above 0"),
        ((0.0, 1.0, 1), "count must be a whole number from 2 to .*; found 1"),
        ((0.0, 1.0, 2**32 + 1), "count must be"),
        ((0.0, 1.0, 4.0), r"found 4\.0"),
        ((0.0, 1.0, True), "found True"),
    ],
)
def test_a_grid_that_means_nothing_is_refused(grid: Any, text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        Integers(*grid)


@pytest.mark.parametrize(
    "settings",
    [
        {"count": 3},
        {"count": 1},
        {"step": 0.0},
        {"step": -1},
        {"low": math.nan},
        {"low": 1e308, "step": 1e308},
        {"count": 2**33},
        {"count": "4"},
    ],
)
def test_settings_from_outside_that_do_not_fit_are_refused(
    settings: dict[str, Any],
) -> None:
    packed, _ = trip(Integers(0.0, 1.0, 4), torch.tensor([[0.0, 1.0, 2.0, 3.0]]))
    with pytest.raises(WireError):
        Integers(0.0, 1.0, 2).decode(changed(packed, **settings))
