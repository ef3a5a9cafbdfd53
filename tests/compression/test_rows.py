"""Rows of tensors, tensors that cannot be encoded, and a `Packed` from a stranger."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from colonnade.compression import rows
from colonnade.core import Packed
from colonnade.errors import ConfigError, WireError


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ((), (1, 1)),
        ((5,), (1, 5)),
        ((0,), (1, 0)),
        ((3, 4), (3, 4)),
        ((3, 4, 5), (3, 20)),
        ((0, 4), (0, 4)),
    ],
)
def test_a_row_is_an_entry_of_the_first_axis(
    shape: tuple[int, ...], expected: tuple[int, int]
) -> None:
    assert rows.rows_and_values(shape) == expected
    assert tuple(rows.as_rows(torch.zeros(shape), "x").shape) == expected


@pytest.mark.parametrize(
    ("count", "values"), [(0, 3), (1, 10**9), (10, 0), (7, 5000), (100_000, 1)]
)
def test_pieces_are_all_rows_once_and_in_order(count: int, values: int) -> None:
    pieces = list(rows.pieces(count, values))
    found = [row for piece in pieces for row in range(count)[piece]]
    assert found == list(range(count))
    assert all((len(range(count)[piece]) - 1) * values < rows.PIECE for piece in pieces)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_is_refused_with_the_codecs_name(bad: float) -> None:
    tensor = torch.ones(3, 4)
    tensor[1, 2] = bad
    with pytest.raises(
        ConfigError,
        match=(
            "The codec 'zip' encodes finite numbers; 1 of 12 values are NaN or infinite"
        ),
    ):
        rows.as_rows(tensor, "zip")
    with pytest.raises(
        ConfigError,
        match=r"The codec 'zip' encodes floating-point tensors; found torch\.int64",
    ):
        rows.as_rows(torch.ones(2, dtype=torch.int64), "zip")


def packed(
    data: bytes = b"",
    shape: tuple[int, ...] = (),
    dtype: str = "float32",
    settings: Any = None,
) -> Packed:
    return Packed("zip", data, shape, dtype, {} if settings is None else settings)


def test_length_and_shape_must_agree() -> None:
    assert rows.data_rows(packed(b"abcdef", (3, 9)), 2).tolist() == [
        [97, 98],
        [99, 100],
        [101, 102],
    ]
    for data in (b"abcde", b""):
        with pytest.raises(
            WireError, match=rf"6 bytes as it is packed, and {len(data)}"
        ):
            rows.data_rows(packed(data, (3, 9)), 2)
    with pytest.raises(WireError, match="more values than can be counted"):
        rows.data_rows(packed(b"", (0, 2**61, 2**61)), 2)
    assert rows.data_rows(packed(b"", (0, 2**40)), 2).shape == (0, 2)


def test_a_tensor_that_is_too_large_is_refused_with_its_size_and_a_cure() -> None:
    """The size in memory counts, however few bytes the tensor has as it is packed."""
    large = packed(bytes(14_000 * 10_702), (14_000, 85_613))
    with pytest.raises(WireError) as refused:
        rows.data_rows(large, 10_702)
    for word in ("[14000, 85613]", "4,794,328,000", "2,147,483,648", "fewer rows"):
        assert word in str(refused.value)


JUNK: list[Any] = [None, True, "3", [], {}, math.nan, math.inf, -math.inf, 10**400]


@pytest.mark.parametrize("junk", JUNK, ids=repr)
def test_settings_from_outside_are_numbers_or_refused(junk: Any) -> None:
    for settings in ({"k": junk}, {}, junk):
        with pytest.raises(WireError, match="A 'zip' tensor came without a proper k"):
            rows.number_setting(packed(settings=settings), "k")
        with pytest.raises(WireError, match="A 'zip' tensor came without a proper k"):
            rows.whole_setting(packed(settings=settings), "k", 0, 10)


def test_settings_must_be_within_their_bounds() -> None:
    assert rows.number_setting(packed(settings={"k": 3}), "k") == 3.0
    assert rows.whole_setting(packed(settings={"k": 10}), "k", 0, 10) == 10
    for value in (-1, 11, 2.0):
        with pytest.raises(WireError, match="without a proper k"):
            rows.whole_setting(packed(settings={"k": value}), "k", 0, 10)
    assert rows.range_setting(packed(settings={"low": -1, "high": 1})) == (-1.0, 1.0)
    for low, high in ((1, 0), (-1e308, 1e308)):
        with pytest.raises(WireError, match="without a proper range"):
            rows.range_setting(packed(settings={"low": low, "high": high}))


def test_only_floating_point_types_are_floating() -> None:
    assert rows.floating_dtype(packed(dtype="float64")) == torch.float64
    for dtype in ("int64", "bool", "complex64", ""):
        with pytest.raises(WireError, match=f"this one says '{dtype}'"):
            rows.floating_dtype(packed(dtype=dtype))


def test_a_number_beyond_the_levels_is_refused() -> None:
    def values(index: Any) -> torch.Tensor:
        return torch.from_numpy(index.astype("float32"))

    sent = packed(bytes([0b11_10_01_00]), (1, 4))
    assert rows.unpack_numbers(sent, 4, 2, 4, values).tolist() == [[0, 1, 2, 3]]
    with pytest.raises(WireError, match="has 3 levels; one of its numbers is 3"):
        rows.unpack_numbers(sent, 4, 2, 3, values)
