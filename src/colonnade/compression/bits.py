"""Whole numbers of 1 to 32 bits each, packed side by side.

    row:   v_0 | v_1 | v_2 | ... | zeros to the next byte

The least significant bit of a number comes first. Numbers [rows, P] take
rows * ceil(P * bits / 8) bytes.

Eight numbers of b bits take exactly b bytes. So numbers are packed in groups of eight,
and the j-th numbers of all groups are read or written at once: each lies in a window of
64 bits that starts at byte j * b // 8 of its group.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.uint32]
Bytes = NDArray[np.uint8]
Words = NDArray[np.uint64]

MOST_BITS = 32
GROUP = 8
"""Numbers that are packed together."""

WORD_BYTES = 8
WHOLE_BYTES = (8, 16, 32)
"""Bits of numbers that numpy has a type for."""


def bits_for(count: int) -> int:
    """The bits that tell `count` values apart: ceil(log2(count))."""
    return (count - 1).bit_length()


def row_bytes(values: int, bits: int) -> int:
    """The bytes of a row of so many values, rounded up.

    It is exact for any number: a shape from a stranger may be larger than floats are.
    """
    return (values * bits + 7) // 8


def pack(values: Numbers, bits: int) -> Bytes:
    """Pack numbers [rows, P] into bytes [rows, row_bytes(P, bits)].

    The numbers must be below 2**bits. A larger one would run into its neighbours.
    """
    rows, count = values.shape
    if not values.size:
        return np.zeros((rows, row_bytes(count, bits)), dtype=np.uint8)
    if bits in WHOLE_BYTES:
        return values.astype(f"<u{bits // 8}").view(np.uint8)
    if _is_byte_per_row(count, bits):
        return values.astype(np.uint8)
    # Each row is filled up with zeros to whole groups, of `bits` bytes each.
    groups_per_row = math.ceil(count / GROUP)
    groups = np.zeros((rows * groups_per_row, GROUP), dtype=np.uint32)
    groups.reshape(rows, -1)[:, :count] = values
    data = _pack_in_words(groups, bits) if bits < 8 else _pack_in_windows(groups, bits)
    return data.reshape(rows, -1)[:, : row_bytes(count, bits)]


def unpack(data: Bytes, count: int, bits: int) -> Numbers:
    """Unpack the numbers [rows, count] from bytes [rows, row_bytes(count, bits)]."""
    rows = len(data)
    if not data.size:
        return np.zeros((rows, count), dtype=np.uint32)
    if bits in WHOLE_BYTES:
        numbers = np.ascontiguousarray(data).view(f"<u{bits // 8}")
        return numbers.astype(np.uint32)
    if _is_byte_per_row(count, bits):
        return (data & np.uint8((1 << bits) - 1)).astype(np.uint32)
    groups_per_row = math.ceil(count / GROUP)
    group_count = rows * groups_per_row
    # Each row is filled up with zeros to whole groups, of `bits` bytes each. A word of
    # zeros follows, because the last windows reach beyond the last group.
    padded = np.zeros(group_count * bits + WORD_BYTES, dtype=np.uint8)
    packed = padded[:-WORD_BYTES].reshape(rows, -1)
    packed[:, : data.shape[1]] = data
    groups = np.empty((group_count, GROUP), dtype=np.uint32)
    mask = np.uint64((1 << bits) - 1)  # the other bits of a word are the neighbours'
    for place, (window, shift) in enumerate(_windows(padded, bits)):
        groups[:, place] = (window >> shift) & mask
    return groups.reshape(rows, -1)[:, :count]


def _is_byte_per_row(count: int, bits: int) -> bool:
    """Whether each row is one byte, which needs no packing: ten times faster."""
    return count == 1 and 0 < bits < 8


def _pack_in_words(groups: Numbers, bits: int) -> Bytes:
    """Pack groups of numbers of less than 8 bits: a whole group fits into one word."""
    words = np.zeros(len(groups), dtype="<u8")
    for place in range(GROUP):
        words |= groups[:, place].astype("<u8") << np.uint64(place * bits)
    return words.view(np.uint8).reshape(-1, WORD_BYTES)[:, :bits]


def _pack_in_windows(groups: Numbers, bits: int) -> Bytes:
    """Pack groups of numbers of 8 bits or more.

    A window is then no longer than a group, so that the windows of different groups do
    not overlap, and can be written at once.
    """
    padded = np.zeros(len(groups) * bits + WORD_BYTES, dtype=np.uint8)
    for place, (window, shift) in enumerate(_windows(padded, bits)):
        window |= groups[:, place].astype("<u8") << shift
    return padded[:-WORD_BYTES]


def _windows(padded: Bytes, bits: int) -> Iterator[tuple[Words, np.uint64]]:
    """For each place in a group, the words that its numbers lie in.

    Args:
        padded: Packed groups, and then a word of zeros.
        bits: The bits of a number.

    Yields:
        A view of one word for each group, and the bit at which the number starts.
    """
    group_count = (len(padded) - WORD_BYTES) // bits
    for place in range(GROUP):
        start, shift = divmod(place * bits, 8)
        words = np.ndarray((group_count,), "<u8", padded.data, start, strides=(bits,))
        yield words, np.uint64(shift)
