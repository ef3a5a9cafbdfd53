"""The lattice covers its square, each pair goes to the nearest point, and bytes follow
the formula."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.compression.tensors import changed, generator, tensors, trip
from torch import Tensor

from colonnade.compression import Quantize, VectorQuantize
from colonnade.compression.vector_quantize import ROW_DISTANCE, lattice
from colonnade.errors import ConfigError, WireError

POINTS = st.sampled_from([4, 6, 16, 30, 64, 255, 256, 1024])


def all_points(points: int, low: float, high: float) -> Tensor:
    """The whole codebook, [points, 2]."""
    codebook = lattice(points)
    numbers = np.arange(codebook.size, dtype=np.uint32)
    return torch.from_numpy(codebook.point(numbers, low, high))


@given(tensors(), POINTS)
@settings(max_examples=80)
def test_no_pair_moves_further_than_the_lattice_allows(x: Tensor, points: int) -> None:
    rows, values = x.shape
    packed, back = trip(VectorQuantize(points), x)
    assert len(packed.data) == rows * math.ceil(
        math.ceil(values / 2) * math.ceil(math.log2(points)) / 8
    )
    assert back.dtype == x.dtype
    low = float(x.min())
    high = float(x.max())
    side = lattice(points).side * (high - low)
    error = (back - x).double()
    if values % 2:
        error = torch.cat([error, torch.zeros(rows, 1, dtype=torch.float64)], dim=1)
    longest = float(error.reshape(rows, -1, 2).norm(dim=-1).max())
    assert longest <= side / math.sqrt(3) + 4 * torch.finfo(x.dtype).eps * max(
        abs(low), abs(high)
    )


@pytest.mark.parametrize("points", [4, 16, 256])
def test_each_pair_goes_to_the_nearest_point(points: int) -> None:
    """All points are tried, for pairs outside the range, too."""
    x = torch.rand(2000, 2, generator=generator(), dtype=torch.float64) * 2 - 1
    codebook = all_points(points, -1.0, 1.0)
    nearest = torch.cdist(x, codebook).min(dim=1).values
    _, back = trip(VectorQuantize(points, -1.0, 1.0), x)
    assert torch.allclose((back - x).norm(dim=1), nearest, atol=1e-12)


@given(tensors(), POINTS)
@settings(max_examples=100)
def test_what_was_quantized_in_the_owners_range_stays_as_it_is(
    x: Tensor, points: int
) -> None:
    codec = VectorQuantize(points, -10.0, 20.0)
    _, once = trip(codec, x[:, : x.shape[1] // 2 * 2])
    assert torch.equal(trip(codec, once)[1], once)


@pytest.mark.parametrize("points", [*range(4, 200), 256, 1000, 4096])
def test_the_lattice_is_hexagonal_and_the_finest_of_so_many_points(points: int) -> None:
    across, down, side = lattice(points)
    assert across * down <= points
    finest = min(
        max(1 / (a - 1), 1 / (ROW_DISTANCE * (points // a - 1)))
        for a in range(2, points // 2 + 1)
    )
    assert side == finest
    assert side * (across - 1) >= 1 - 1e-12
    assert side * ROW_DISTANCE * (down - 1) >= 1 - 1e-12
    if points <= 64:
        codebook = all_points(points, 0.0, 1.0)
        apart = torch.cdist(codebook, codebook) + 10 * torch.eye(
            len(codebook), dtype=torch.float64
        )
        assert torch.allclose(
            apart.min(dim=1).values, torch.tensor(side, dtype=torch.float64)
        )


def test_with_many_points_it_beats_a_scalar_quantizer_of_equal_bytes() -> None:
    """In the limit it is better by 3.8 %: 5/(36 sqrt(3)) against 1/12 for a cell."""
    x = torch.rand(400, 100, generator=generator(), dtype=torch.float64)
    errors = {}
    for codec in (Quantize(256, 0.0, 1.0), VectorQuantize(2**16, 0.0, 1.0)):
        packed, back = trip(codec, x)
        errors[codec.name] = len(packed.data), float((back - x).square().mean())
    assert errors["quantize"][0] == errors["vector_quantize"][0]
    assert 0.95 < errors["vector_quantize"][1] / errors["quantize"][1] < 0.99


def test_an_odd_last_value_is_quantized_too() -> None:
    x = torch.tensor([[0.1, 0.9, 0.5], [0.2, 0.3, 1.0]])
    _, back = trip(VectorQuantize(1024, 0.0, 1.0), x)
    assert float((back - x).abs().max()) <= lattice(1024).side / math.sqrt(3)


def test_pairs_at_the_lower_end_stay_what_they_are() -> None:
    """After a ReLU, most pairs are zeros.

    A lattice that begins elsewhere would move them all in one direction.
    """
    x = torch.randn(50, 20, generator=generator()).relu()
    _, back = trip(VectorQuantize(16), x)
    zeros = (x.reshape(50, 10, 2) == 0).all(-1)
    assert int(zeros.sum()) > 50
    assert not back.reshape(50, 10, 2)[zeros].any()


def test_a_tensor_of_equal_values_is_exact() -> None:
    x = torch.full((3, 5), -2.5)
    assert torch.equal(trip(VectorQuantize(64), x)[1], x)


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"points": 3}, "points must be a whole number from 4 to 65536; found 3"),
        ({"points": 2**17}, "found 131072"),
        ({"points": 16.0}, r"found 16\.0"),
        ({"high": 1.0}, "low and high must be two numbers"),
        ({"low": 3.0, "high": 1.0}, "low below high"),
    ],
)
def test_a_setting_that_means_nothing_is_refused(
    settings: dict[str, Any], text: str
) -> None:
    with pytest.raises(ConfigError, match=f"vector_quantize: .*{text}"):
        VectorQuantize(**settings)


@pytest.mark.parametrize(
    "settings",
    [
        {"points": 3},
        {"points": 2**20},
        {"points": 8},
        {"points": None},
        {"low": 9.0},
        {"high": math.inf},
        {"low": -1e308, "high": 1e308},
    ],
)
def test_settings_from_outside_that_do_not_fit_are_refused(
    settings: dict[str, Any],
) -> None:
    packed, _ = trip(VectorQuantize(256), torch.randn(4, 6, generator=generator()))
    with pytest.raises(WireError):
        VectorQuantize().decode(changed(packed, **settings))
