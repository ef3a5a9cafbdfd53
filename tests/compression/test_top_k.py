"""TopK keeps the k largest of each row exactly, and takes the bytes of the formula."""

from __future__ import annotations

import dataclasses
import math
import tracemalloc
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.compression.tensors import changed, generator, tensors, trip
from torch import Tensor

from colonnade.compression import TopK
from colonnade.core import Packed
from colonnade.errors import ConfigError, WireError


@given(tensors(), st.floats(0.01, 1.0) | st.integers(1, 15))
@settings(max_examples=100)
def test_the_k_largest_stay_and_the_error_is_the_rest(x: Tensor, keep: float) -> None:
    codec = TopK(keep)
    rows, values = x.shape
    k = codec.kept_of(values)
    packed, back = trip(codec, x)
    places = math.ceil(math.log2(values))
    assert len(packed.data) == rows * (k * x.element_size() + math.ceil(k * places / 8))
    assert back.dtype == x.dtype
    assert torch.equal(back[back != 0], x[back != 0])
    sizes = x.double().abs().sort(dim=1, descending=True).values
    assert torch.equal(
        back.double().abs().sort(dim=1, descending=True).values[:, :k], sizes[:, :k]
    )
    assert int((back != 0).sum(1).max()) <= k
    assert torch.allclose((x - back).double().norm(dim=1), sizes[:, k:].norm(dim=1))
    assert torch.equal(trip(codec, back)[1], back)


@pytest.mark.parametrize(
    ("keep", "values", "k"),
    [
        (0.1, 30, 3),
        (0.1, 60, 6),
        (0.12, 60, 7),
        (0.01, 60, 1),
        (1.0, 7, 7),
        (1, 7, 1),
        (9, 7, 7),
        (0.5, 0, 0),
    ],
)
def test_a_share_is_rounded_and_a_number_is_taken_as_it_is(
    keep: float, values: int, k: int
) -> None:
    assert TopK(keep).kept_of(values) == k


@pytest.mark.parametrize(
    "dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64]
)
def test_values_keep_their_own_type(dtype: torch.dtype) -> None:
    x = torch.randn(9, 40, generator=generator()).to(dtype)
    packed, back = trip(TopK(4), x)
    assert back.dtype == dtype
    assert torch.equal(back[back != 0], x[back != 0])
    assert int((back != 0).sum()) == 36
    assert len(packed.data) == 9 * (4 * dtype.itemsize + 3)


def test_rows_of_more_axes_are_taken_whole() -> None:
    x = torch.zeros(2, 3, 4)
    x[0, 2, 3], x[1, 0, 0] = -5.0, 2.0
    assert torch.equal(trip(TopK(1), x)[1], x)


def test_too_few_entries_are_refused_on_both_sides() -> None:
    with pytest.raises(
        ConfigError,
        match=(
            "top_k: at least one entry in 1024 is kept; found keep = 1 for rows of 1025"
        ),
    ):
        TopK(1).encode(torch.ones(1, 1025))
    TopK(1).encode(torch.ones(1, 1024))
    tiny = Packed("top_k", bytes(4 + 5), (1, 2**36), "float32", {"keep": 1})
    tracemalloc.start()
    with pytest.raises(
        WireError, match=r"keeps 1 of \d+ values, fewer than one in 1024"
    ):
        TopK().decode(tiny)
    assert tracemalloc.get_traced_memory()[1] < 100_000
    tracemalloc.stop()


@pytest.mark.parametrize(
    "keep", [0, 0.0, -1, 1.5, math.nan, math.inf, True, "0.1", None, 2**40]
)
def test_a_setting_that_means_nothing_is_refused(keep: Any) -> None:
    with pytest.raises(
        ConfigError,
        match=r"top_k: keep must be a share above 0, at most 1\.0, or a whole number",
    ):
        TopK(keep)


@pytest.mark.parametrize("keep", [0, 1, 3, 5, -2, "2", None, 2.0])
def test_another_number_of_entries_from_outside_is_refused(keep: Any) -> None:
    packed, _ = trip(TopK(2), torch.tensor([[1.0, 2.0, 3.0, 4.0]]))
    with pytest.raises(WireError):
        TopK().decode(changed(packed, keep=keep))


@pytest.mark.parametrize("places", [0b01_10, 0b10_10, 0b11_00, 0b00_11])
def test_places_must_be_in_order_and_within_the_row(places: int) -> None:
    packed, _ = trip(TopK(2), torch.tensor([[1.0, 2.0, 3.0]]))
    assert packed.data[-1] == 0b10_01
    broken = dataclasses.replace(packed, data=packed.data[:-1] + bytes([places]))
    with pytest.raises(
        WireError, match="places are not in order, or not within its rows"
    ):
        TopK().decode(broken)
