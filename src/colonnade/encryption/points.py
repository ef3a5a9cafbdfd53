"""Arithmetic on many points of the curve secp256k1 at once.

Points are arrays of [n, 64] bytes, as libsecp256k1 keeps a point in memory. coincurve
brings the library. Its Python objects cost more time than the arithmetic; here one call
adds up all rows of a column's bin.

A point travels compressed, in 33 bytes. The form in memory is the library's own, and
leaves the process only for a process beside this one that runs this file
(`core.workers`). So this file imports nothing of Colonnade.

Multiples of a fixed point are sums over a table of its multiples by each byte of the
scalar (`digit_table`). This takes half the time of the library's own multiplication,
and is not constant in time: whoever can time these processes closely, on the same
machine, may learn something about scalars.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import cache, lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

ORDER = 0xFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFEBAAEDCE6AF48A03BBFD25E8CD0364141
"""The number of points: ORDER times a point is the neutral element."""

POINT_BYTES = 64
COMPRESSED_BYTES = 33
SCALAR_BYTES = 32
COMPRESSED_FLAG = 258
"""libsecp256k1's word for the compressed form."""

NOTHING = -1
"""The place of a term that is left out of a sum."""

DIGITS = 256
"""The values of a scalar's byte."""

TABLE_POINTS = DIGITS * SCALAR_BYTES
"""The points of a `digit_table`."""

DIGIT_SHIFT = sum(DIGITS**place for place in range(SCALAR_BYTES)) % ORDER
"""A scalar s has in `digit_table` the digits of s - DIGIT_SHIFT, each plus 1."""

DIGIT_PLACES = np.arange(SCALAR_BYTES, dtype=np.int64) * DIGITS
"""Where the multiples for each byte of a scalar begin in `digit_table`."""

Bytes = NDArray[np.uint8]
Points = NDArray[np.uint8]
"""Points in memory, [..., 64]."""
Places = NDArray[np.int64]
"""Places of points in an array of them."""


class NotAPoint(ValueError):  # noqa: N818 - whoever catches it says whose point it is
    """Bytes that are no point of the curve, or a sum that is the neutral element.

    The neutral element has no bytes.

    Args:
        reason: What is wrong, with the place.
        at: The place of the first wrong item.
    """

    def __init__(self, reason: str, at: int = 0) -> None:
        super().__init__(reason)
        self.at = at


class Sums(NamedTuple):
    """Sums of points. Those that are the neutral element have no point."""

    points: Points
    cancelled: NDArray[np.bool_]
    """Whether the terms of each sum cancel out."""

    def all_points(self) -> Points:
        """The points, or NotAPoint where the terms of a sum cancel out."""
        if self.cancelled.any():
            raise NotAPoint("points cancel out", int(self.cancelled.argmax()))
        return self.points


@cache
def library() -> tuple[Any, Any, Any]:
    """libsecp256k1 as coincurve binds it: its functions, their types, its context."""
    from coincurve._libsecp256k1 import ffi, lib
    from coincurve.context import GLOBAL_CONTEXT

    return lib, ffi, GLOBAL_CONTEXT.ctx


def zeros(count: int) -> Points:
    """Memory for points. Zeros are no point."""
    return np.zeros((count, POINT_BYTES), dtype=np.uint8)


def decompress(compressed: Bytes) -> Points:
    """Read points that were sent, [n, 33]. NotAPoint where one is not on the curve."""
    lib, _, context = library()
    compressed = np.ascontiguousarray(compressed)
    points = zeros(len(compressed))
    target = _point_pointer(points)
    source = _byte_pointer(compressed, COMPRESSED_BYTES)
    for at in range(len(compressed)):
        start = source + COMPRESSED_BYTES * at
        is_point = lib.secp256k1_ec_pubkey_parse(
            context, target + at, start, COMPRESSED_BYTES
        )
        if not is_point:
            raise NotAPoint(f"point {at} is not on the curve secp256k1", at)
    return points


def compress(points: Points) -> Bytes:
    """Write points as they are sent, [n, 33]."""
    lib, ffi, context = library()
    points = np.ascontiguousarray(points)
    compressed = np.zeros((len(points), COMPRESSED_BYTES), dtype=np.uint8)
    source = _point_pointer(points)
    target = _byte_pointer(compressed, COMPRESSED_BYTES)
    length = ffi.new("size_t *", COMPRESSED_BYTES)
    for at in range(len(points)):
        start = target + COMPRESSED_BYTES * at
        lib.secp256k1_ec_pubkey_serialize(
            context, start, length, source + at, COMPRESSED_FLAG
        )
    return compressed


def multiply(points: Points, scalars: Bytes) -> Points:
    """Multiply each point by its scalar, which is not 0.

    Args:
        points: [n, 64].
        scalars: [n, 32], as `scalar_bytes` writes them.
    """
    lib, _, context = library()
    products = np.array(points, order="C")  # a copy: the library multiplies in place
    scalars = np.ascontiguousarray(scalars)
    assert len(products) == len(scalars)
    target = _point_pointer(products)
    source = _byte_pointer(scalars, SCALAR_BYTES)
    for at in range(len(products)):
        start = source + SCALAR_BYTES * at
        lib.secp256k1_ec_pubkey_tweak_mul(context, target + at, start)
    return products


def scalar_bytes(scalar: int) -> bytes:
    """A whole number, modulo the order, as the library reads it."""
    return (scalar % ORDER).to_bytes(SCALAR_BYTES, "big")


def group_sums(points: Points, places: Places, starts: Places) -> Sums:
    """Add up groups of points. The sum of an empty group is zeros.

    Args:
        points: The points, [n, 64].
        places: The places of the points of all groups, one group after the other.
        starts: Where each group begins in `places`, and the end of the last one.
    """
    lib, ffi, context = library()
    points = np.ascontiguousarray(points)
    counts = np.diff(starts)
    _check_groups(len(points), places, starts)
    sums = zeros(len(counts))
    cancelled = np.zeros(len(counts), dtype=np.bool_)
    # The library takes the addresses of a sum's terms.
    start_address = np.uint64(points.ctypes.data)
    addresses = start_address + places.astype(np.uint64) * np.uint64(POINT_BYTES)
    terms = ffi.cast("const secp256k1_pubkey * const *", addresses.ctypes.data)
    target = _point_pointer(sums)
    combine = lib.secp256k1_ec_pubkey_combine
    groups = zip(starts.tolist(), counts.tolist(), strict=False)
    for at, (first, count) in enumerate(groups):
        if count and not combine(context, target + at, terms + first, count):
            cancelled[at] = True
    return Sums(sums, cancelled)


def _check_groups(point_count: int, places: Places, starts: Places) -> None:
    """Raise if a sum would read memory in which there are no points."""
    are_there = not len(places) or 0 <= places.min() <= places.max() < point_count
    are_ordered = np.diff(starts).min(initial=0) >= 0
    are_inside = 0 <= starts[0] <= starts[-1] <= len(places)
    if not (are_there and are_ordered and are_inside):
        raise IndexError("a sum of points that are not there")


def row_sums(points: Points, places: Places) -> Sums:
    """Add up the points at each row of places [n, k]."""
    count, width = places.shape
    starts = np.arange(count + 1, dtype=np.int64) * width
    return group_sums(points, places.reshape(-1), starts)


def pair_sums(points: Points, others: Points) -> Sums:
    """Add to each point the other at its place, or the only other."""
    first = np.arange(len(points))
    second = len(points) + first % len(others)
    return row_sums(np.concatenate([points, others]), np.stack([first, second], axis=1))


def base_multiple(scalar: int) -> Points:
    """A scalar times the curve's base point, [1, 64]."""
    lib, _, context = library()
    multiple = zeros(1)
    data = scalar_bytes(scalar)
    if not lib.secp256k1_ec_pubkey_create(context, _point_pointer(multiple), data):
        raise NotAPoint("0 times a point is no point")
    return multiple


def base_multiples(scalars: Sequence[int]) -> Points:
    """Many scalars times the curve's base point, [n, 64], faster than one by one."""
    shifted = []
    for scalar in scalars:
        number = (scalar - DIGIT_SHIFT) % ORDER
        shifted.append(number.to_bytes(SCALAR_BYTES, "little"))
    digits = np.frombuffer(b"".join(shifted), dtype=np.uint8).reshape(-1, SCALAR_BYTES)
    table = digit_table(base_multiple(1).tobytes())
    return row_sums(table, DIGIT_PLACES + digits).all_points()


def first_multiples(point: Points, count: int) -> Points:
    """1, 2, .. count times a point. The count is a power of 2."""
    multiples = zeros(count)
    multiples[0] = point
    known = 1
    while known < count:
        largest = multiples[known - 1 : known]
        multiples[known : 2 * known] = pair_sums(multiples[:known], largest).points
        known *= 2
    return multiples


@lru_cache(maxsize=256)
def digit_table(point: bytes) -> Points:
    """The multiples of a point from which all its multiples can be added up.

    (d + 1) 256^place times the point stands at DIGIT_PLACES[place] + d. It is d + 1 and
    not d so that no entry is 0 times the point, which has no bytes. A table has half a
    megabyte.
    """
    tables = [first_multiples(np.frombuffer(point, dtype=np.uint8), DIGITS)]
    while len(tables) < SCALAR_BYTES:
        times_256 = tables[-1][-1]
        tables.append(first_multiples(times_256, DIGITS))
    return np.concatenate(tables)


def blind(points: Points, places: Places, bases: Points) -> Points:
    """Add up points, and to each sum add a random multiple of a base.

    All sums of a line get the same random scalar, which is fresh for the line. Its
    distribution is within 2^-128 of the uniform one.

    Args:
        points: The points that are added up, [n, 64].
        places: The places of the terms of each sum, [lines, bases, terms], and NOTHING
            where there is no term.
        bases: The point that blinds each sum of a line, [bases, 64].

    Returns:
        [lines * bases, 64].
    """
    if not points.any(1).all():  # the library would end the process
        raise IndexError("a sum of what is no point")
    lines, width, term_count = places.shape
    # The multiples of the bases and the points stand in one array, so that the library
    # adds up both kinds of terms in one call.
    digit_tables = [digit_table(base.tobytes()) for base in bases]
    table = np.concatenate([*digit_tables, points])
    points_start = len(table) - len(points)
    random_places = _random_multiples(lines, width)
    term_places = np.where(places == NOTHING, NOTHING, places + points_start)

    # A sum is of all terms of its row that are not NOTHING.
    all_places = np.concatenate([random_places, term_places], axis=2)
    all_places = all_places.reshape(lines * width, SCALAR_BYTES + term_count)
    is_term = all_places != NOTHING
    ends = np.cumsum(is_term.sum(axis=1))
    starts = np.concatenate([[0], ends]).astype(np.int64)
    return group_sums(table, all_places[is_term], starts).all_points()


def _random_multiples(lines: int, bases: int) -> Places:
    """Draw a random scalar for each line, and find its multiple of each base.

    Returns the places of the terms in the digit tables of the bases, which stand one
    after the other: [lines, bases, SCALAR_BYTES].
    """
    random = np.frombuffer(os.urandom(SCALAR_BYTES * lines), dtype=np.uint8)
    digits = random.reshape(lines, 1, SCALAR_BYTES)
    table_starts = TABLE_POINTS * np.arange(bases)[:, None]
    return np.asarray(table_starts + DIGIT_PLACES + digits, dtype=np.int64)


# Questions to a process beside this one (`core.workers`)

DECOMPRESS = b"p"
OPEN = b"o"
ADD = b"a"
BLIND = b"b"


def work(kind: bytes, *buffers: Any) -> Sequence[Any] | int:
    """Answer a question, in whichever process.

    Args:
        kind: One of the constants above.
        buffers: The arguments, as the function for this kind takes them.

    Returns:
        The results, or the place of the first item that is no point.
    """
    try:
        return _ANSWERS[kind](*buffers)
    except NotAPoint as error:
        return error.at


def _decompress(compressed: Any) -> Sequence[Any]:
    return [decompress(_rows(compressed, COMPRESSED_BYTES))]


def _open(points: Any, scalars: Any, others: Any) -> Sequence[Any]:
    """Multiply points by scalars, and add other points."""
    products = multiply(_rows(points, POINT_BYTES), _rows(scalars, SCALAR_BYTES))
    return pair_sums(products, _rows(others, POINT_BYTES))


def _add(points: Any, shape: Any, places: Any, starts: Any) -> Sequence[Any]:
    """Add up the same groups of rows for each column, [groups, columns, 64]."""
    column_count = _whole_numbers(shape)[0]
    columns = _rows(points, POINT_BYTES).reshape(column_count, -1, POINT_BYTES)
    sums = []
    for column in columns:
        group = group_sums(column, _whole_numbers(places), _whole_numbers(starts))
        sums.append(group.all_points())
    return [np.stack(sums, axis=1)]


def _blind(points: Any, shape: Any, places: Any, bases: Any) -> Sequence[Any]:
    """Blind sums, and compress them."""
    width, term_count = _whole_numbers(shape)
    terms = _whole_numbers(places).reshape(-1, width, term_count)
    blinded = blind(_rows(points, POINT_BYTES), terms, _rows(bases, POINT_BYTES))
    return [compress(blinded)]


_ANSWERS: dict[bytes, Callable[..., Sequence[Any]]] = {
    DECOMPRESS: _decompress,
    OPEN: _open,
    ADD: _add,
    BLIND: _blind,
}


def _rows(buffer: Any, width: int) -> Bytes:
    return np.frombuffer(buffer, dtype=np.uint8).reshape(-1, width)


def _whole_numbers(buffer: Any) -> Places:
    return np.frombuffer(buffer, dtype=np.int64)


def _byte_pointer(array: Bytes, width: int) -> Any:
    """A pointer for the library to an array of rows of `width` bytes."""
    assert array.flags.c_contiguous
    assert array.shape[1:] == (width,)
    return library()[1].cast("unsigned char *", array.ctypes.data)


def _point_pointer(array: Points) -> Any:
    pointer = _byte_pointer(array, POINT_BYTES)
    return library()[1].cast("secp256k1_pubkey *", pointer)
