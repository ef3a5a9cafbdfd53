"""Packed numbers come back, and have the bytes that Python's own arithmetic gives."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from colonnade.compression.bits import MOST_BITS, bits_for, pack, row_bytes, unpack


def by_hand(row: list[int], bits: int) -> bytes:
    """Pack a row as one long number, least significant bit first."""
    whole = sum(value << (place * bits) for place, value in enumerate(row))
    return whole.to_bytes(-(-len(row) * bits // 8), "little")


@given(
    st.integers(1, MOST_BITS),
    st.integers(0, 5),
    st.integers(0, 40),
    st.integers(0, 10**6),
)
@settings(max_examples=100)
def test_rows_are_packed_side_by_side_and_come_back(
    bits: int, rows: int, count: int, seed: int
) -> None:
    random = np.random.default_rng(seed)
    array = random.integers(0, 2**bits, (rows, count), dtype=np.uint64).astype(
        np.uint32
    )
    packed = pack(array, bits)
    assert packed.dtype == np.uint8
    assert packed.shape == (rows, row_bytes(count, bits))
    assert packed.tobytes() == b"".join(by_hand(row, bits) for row in array.tolist())
    back = unpack(packed, count, bits)
    assert back.dtype == np.uint32
    assert np.array_equal(back, array)


@pytest.mark.parametrize("bits", range(1, MOST_BITS + 1))
def test_the_largest_number_does_not_run_into_its_neighbours(bits: int) -> None:
    values = np.zeros((3, 19), dtype=np.uint32)
    values[:, ::2] = 2**bits - 1
    assert np.array_equal(unpack(pack(values, bits), 19, bits), values)


@pytest.mark.parametrize("bits", [1, 3, 8, 13, 32])
def test_what_is_packed_need_not_lie_in_one_piece(bits: int) -> None:
    values = (np.arange(60).reshape(6, 10) % 2**bits).astype(np.uint32)
    packed = pack(values[::2, ::3], bits)
    assert packed.tobytes() == pack(values[::2, ::3].copy(), bits).tobytes()
    wide = np.zeros((3, packed.shape[1] + 4), dtype=np.uint8)
    wide[:, 4:] = packed
    assert np.array_equal(unpack(wide[:, 4:], 4, bits), values[::2, ::3])


@pytest.mark.parametrize(
    ("count", "bits"),
    [(1, 0), (2, 1), (3, 2), (4, 2), (5, 3), (256, 8), (257, 9), (2**32, 32)],
)
def test_so_many_bits_tell_so_many_values_apart(count: int, bits: int) -> None:
    assert bits_for(count) == bits
