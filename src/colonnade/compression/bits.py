"""Whole numbers of 1 to 32 bits each, side by side: rows * ceil(P * bits / 8) bytes for
[rows, P] numbers.

    row:   v_0 | v_1 | v_2 | ... | zeros to the next byte        least significant bit first

Eight numbers of b bits are b bytes. So the j-th numbers of all groups of eight are
read, or written, in one go: through windows of 64 bits that start at byte j*b // 8 of
each group and lie b bytes apart.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.uint32]
Bytes = NDArray[np.uint8]
WIDEST = 32
WINDOW = 8  # bytes


def width_of(count: int) -> int:
    """ceil(log2(count)): how many bits tell `count` values apart."""
    return (count - 1).bit_length()


def row_bytes(values: int, bits: int) -> int:
    """The bytes of one row of `values` values."""
    return -(-values * bits // 8)


def pack(values: Numbers, bits: int) -> Bytes:
    """[rows, P] numbers below 2**bits as [rows, row_bytes]; larger ones would run into
    their neighbours."""
    rows, count = values.shape
    if not values.size:
        return np.zeros((rows, row_bytes(count, bits)), dtype=np.uint8)
    if bits in (8, 16, 32):
        return values.astype(f"<u{bits // 8}").view(np.uint8)
    if count == 1 and 0 < bits < 8:  # a single number of a row is a byte
        return values.astype(np.uint8)
    groups = -(-count // 8)
    padded = np.zeros((rows * groups, 8), dtype=np.uint32)
    padded.reshape(rows, groups * 8)[:, :count] = values
    # windows would overlap their neighbours: a whole group is one word instead
    if bits < 8:
        word = padded[:, 0].astype("<u8")
        for place in range(1, 8):
            word |= padded[:, place].astype("<u8") << np.uint64(place * bits)
        data = word.view(np.uint8).reshape(-1, 8)[:, :bits]
    else:
        data = np.zeros(rows * groups * bits + WINDOW, dtype=np.uint8)
        for place, (window, shift) in enumerate(_windows(data, bits)):
            window |= padded[:, place].astype("<u8") << shift
        data = data[:-WINDOW]
    return data.reshape(rows, groups * bits)[:, : row_bytes(count, bits)]


def unpack(data: Bytes, count: int, bits: int) -> Numbers:
    """The [rows, count] numbers in [rows, row_bytes]."""
    rows = len(data)
    if not data.size:
        return np.zeros((rows, count), dtype=np.uint32)
    if bits in (8, 16, 32):
        return np.ascontiguousarray(data).view(f"<u{bits // 8}").astype(np.uint32)
    if count == 1 and 0 < bits < 8:
        return (data & np.uint8((1 << bits) - 1)).astype(np.uint32)
    groups = -(-count // 8)
    padded = np.zeros(rows * groups * bits + WINDOW, dtype=np.uint8)
    padded[:-WINDOW].reshape(rows, groups * bits)[:, : data.shape[1]] = data
    values = np.empty((rows * groups, 8), dtype=np.uint32)
    mask = np.uint64((1 << bits) - 1)
    for place, (window, shift) in enumerate(_windows(padded, bits)):
        values[:, place] = (window >> shift) & mask
    return values.reshape(rows, groups * 8)[:, :count]


def _windows(data: Bytes, bits: int) -> Iterator[tuple[NDArray[np.uint64], np.uint64]]:
    """For each of a group's eight numbers, the words that hold it, one per group, and
    the bit at which it starts."""
    groups = (len(data) - WINDOW) // bits
    for place in range(8):
        start, shift = divmod(place * bits, 8)
        yield np.ndarray((groups,), "<u8", data.data, start, (bits,)), np.uint64(shift)
