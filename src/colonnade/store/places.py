"""Which people a release touched, and how often each, as few bytes.

People have numbers from 0 on. A list of numbers is kept as sorted gaps, one byte each
where people are dense and two where they are sparse, or as a bitmap. A batch of 8,192
out of a million people takes about 9 kB.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from colonnade.errors import StoreError

IntArray = NDArray[np.int64]

HEADER = struct.Struct("<BBI")
"""The form of the numbers, the bytes of each multiplicity (0: everybody is touched
once), and how many people there are."""

GAPS_OF_ONE_BYTE = 0
GAPS_OF_TWO_BYTES = 1
BITMAP = 2
ALL_BELOW = 3
GAP_TYPES = {GAPS_OF_ONE_BYTE: "<u1", GAPS_OF_TWO_BYTES: "<u2"}


class Places(NamedTuple):
    """People by number, each once and in ascending order, and how often each."""

    numbers: IntArray
    times: IntArray

    @classmethod
    def of(cls, numbers: IntArray) -> Places:
        """Count how often each number is in a list."""
        distinct, times = np.unique(numbers, return_counts=True)
        return cls(distinct.astype(np.int64), times.astype(np.int64))

    @classmethod
    def all_below(cls, count: int) -> Places:
        """Everybody whose number is below `count`, once."""
        return cls(np.arange(count, dtype=np.int64), np.ones(count, dtype=np.int64))


def pack_places(places: Places) -> bytes:
    """Write places in the shortest of the forms."""
    numbers, times = places
    form, packed = _pack_numbers(numbers)
    if (times == 1).all():
        return HEADER.pack(form, 0, len(numbers)) + packed
    width = np.min_scalar_type(int(times.max())).itemsize
    multiplicities = times.astype(f"<u{width}").tobytes()
    return HEADER.pack(form, width, len(numbers)) + multiplicities + packed


def unpack_places(data: bytes) -> Places:
    """Read what `pack_places` wrote."""
    try:
        form, width, count = HEADER.unpack_from(data)
        start = HEADER.size + width * count
        numbers = _unpack_numbers(form, data[start:], count)
        times = np.ones(count, dtype=np.int64)
        if width:
            multiplicities = data[HEADER.size : start]
            times = np.frombuffer(multiplicities, f"<u{width}").astype(np.int64)
    except (struct.error, TypeError, ValueError, KeyError) as error:
        raise StoreError(f"A list of people cannot be read: {error}.") from None
    if len(numbers) != count or len(times) != count:
        raise StoreError("A list of people is not as long as it says.")
    return Places(numbers, times)


def _pack_numbers(numbers: IntArray) -> tuple[int, bytes]:
    if not len(numbers) or int(numbers[-1]) == len(numbers) - 1:
        return ALL_BELOW, b""
    forms = {form: _pack_gaps(numbers, kind) for form, kind in GAP_TYPES.items()}
    shortest = min(forms, key=lambda form: len(forms[form]))
    if int(numbers[-1]) // 8 < len(forms[shortest]):
        bits = np.zeros(int(numbers[-1]) + 1, dtype=np.bool_)
        bits[numbers] = True
        return BITMAP, np.packbits(bits).tobytes()
    return shortest, forms[shortest]


def _pack_gaps(numbers: IntArray, kind: str) -> bytes:
    """The distances between neighbours. The largest value of the type says "so far, and
    the gap goes on", so that a gap of any size can be written."""
    largest = int(np.iinfo(kind).max)
    gaps = np.diff(numbers, prepend=-1)
    continuations = gaps // largest
    ends = np.cumsum(continuations + 1) - 1
    packed = np.full(int(ends[-1]) + 1, largest, dtype=kind)
    packed[ends] = gaps % largest
    return packed.tobytes()


def _unpack_numbers(form: int, data: bytes, count: int) -> IntArray:
    if form == ALL_BELOW:
        return np.arange(count, dtype=np.int64)
    if form == BITMAP:
        bits = np.unpackbits(np.frombuffer(data, dtype=np.uint8))
        return np.flatnonzero(bits).astype(np.int64)
    kind = GAP_TYPES[form]
    packed = np.frombuffer(data, dtype=kind)
    reached = np.cumsum(packed, dtype=np.int64) - 1
    numbers: IntArray = reached[packed != np.iinfo(kind).max]
    return numbers
