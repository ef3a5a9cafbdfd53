"""Many points on secp256k1 at once: arrays of [n, 64] bytes, as libsecp256k1 keeps a
point in memory.

coincurve brings the library. Its Python objects cost more time than the arithmetic;
here one call adds up all rows of a column's bin. A point travels compressed, in 33
bytes; the form in memory is the library's own, and leaves the process only for one
beside it that runs this file (`core.workers`), which therefore imports nothing of
Colonnade.

Multiples of a fixed point are sums over a table of its multiples by each byte of the
scalar (`multiples_of`). This takes half the time of the library's own multiplication,
and is not constant in time: whoever can time these processes closely, on the same
machine, may learn something about scalars.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import cache, lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

ORDER = 0xFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFEBAAEDCE6AF48A03BBFD25E8CD0364141
MEMORY = 64
WIRE = 33
SCALAR = 32  # bytes
COMPRESSED = 258  # libsecp256k1's word for 33 bytes
SHIFT = sum(256**place for place in range(SCALAR)) % ORDER
PLACES = np.arange(SCALAR, dtype=np.int64) * 256
PARSE = b"p"
OPEN = b"o"
ADD = b"a"
BLIND = b"b"

Points = NDArray[np.uint8]
"""[..., 64]"""
Places = NDArray[np.int64]
"""Numbers of points in a table of them."""


class NotAPoint(ValueError):  # noqa: N818 - whoever catches it says whose point it is
    """Bytes that are no point of the curve, or a sum that is none: the group's neutral
    element has no bytes."""

    def __init__(self, why: str, at: int = 0) -> None:
        super().__init__(why)
        self.at = at


@cache
def library() -> tuple[Any, Any, Any]:
    """libsecp256k1 as coincurve binds it: its functions, their types, and their
    context."""
    from coincurve._libsecp256k1 import ffi, lib
    from coincurve.context import GLOBAL_CONTEXT

    return lib, ffi, GLOBAL_CONTEXT.ctx


def empty(*shape: int) -> Points:
    return np.zeros((*shape, MEMORY), dtype=np.uint8)


def parsed(data: NDArray[np.uint8]) -> Points:
    """[n, 33] -> [n, 64]; NotAPoint where one is not on the curve."""
    lib, _, context = library()
    data, points = np.ascontiguousarray(data), empty(len(data))
    target = _points_of(points)
    source = _bytes_of(data, WIRE)
    parse = lib.secp256k1_ec_pubkey_parse
    for at in range(len(data)):
        if not parse(context, target + at, source + WIRE * at, WIRE):
            raise NotAPoint(f"point {at} is not on the curve secp256k1", at)
    return points


def formatted(points: Points) -> NDArray[np.uint8]:
    """[n, 64] -> [n, 33]."""
    lib, ffi, context = library()
    points, data = (
        np.ascontiguousarray(points),
        np.zeros((len(points), WIRE), dtype=np.uint8),
    )
    source = _points_of(points)
    target = _bytes_of(data, WIRE)
    length = ffi.new("size_t *", WIRE)
    serialize = lib.secp256k1_ec_pubkey_serialize
    for at in range(len(points)):
        serialize(context, target + WIRE * at, length, source + at, COMPRESSED)
    return data


def multiplied(points: Points, scalars: NDArray[np.uint8]) -> Points:
    """Each point of [n, 64] times its scalar of [n, 32], which is not 0."""
    lib, _, context = library()
    products = np.array(points, order="C")
    scalars = np.ascontiguousarray(scalars)
    assert len(products) == len(scalars)
    target = _points_of(products)
    source = _bytes_of(scalars, SCALAR)
    multiply = lib.secp256k1_ec_pubkey_tweak_mul
    for at in range(len(products)):
        multiply(context, target + at, source + SCALAR * at)
    return products


def scalar_bytes(scalar: int) -> bytes:
    return (scalar % ORDER).to_bytes(SCALAR, "big")


def sums(
    points: Points, places: Places, starts: Places
) -> tuple[Points, NDArray[np.bool_]]:
    """For each i the sum of the points at places[starts[i] : starts[i + 1]], zeros
    where there are none, and whether they cancel."""
    lib, ffi, context = library()
    points = np.ascontiguousarray(points)
    counts = np.diff(starts)
    into = empty(len(starts) - 1)
    inside = not len(places) or 0 <= places.min() <= places.max() < len(points)
    ordered = counts.min(initial=0) >= 0 and 0 <= starts[0] <= starts[-1] <= len(places)
    if not inside or not ordered:  # the library would read whatever lies there
        raise IndexError("a sum of points that are not there")
    addresses = np.uint64(points.ctypes.data) + places.astype(np.uint64) * np.uint64(
        MEMORY
    )
    first = ffi.cast("const secp256k1_pubkey * const *", addresses.ctypes.data)
    target = _points_of(into)
    cancel = np.zeros(len(into), dtype=np.bool_)
    combine = lib.secp256k1_ec_pubkey_combine
    for at, (begin, count) in enumerate(
        zip(starts.tolist(), counts.tolist(), strict=False)
    ):
        if count and not combine(context, target + at, first + begin, count):
            cancel[at] = True
    return into, cancel


def row_sums(points: Points, places: Places) -> tuple[Points, NDArray[np.bool_]]:
    """The sum of the points at each row of [n, k] places."""
    count, width = places.shape
    return sums(
        points, places.reshape(-1), np.arange(count + 1, dtype=np.int64) * width
    )


def pair_sums(points: Points, others: Points) -> tuple[Points, NDArray[np.bool_]]:
    """Each point plus the other at its place, or plus the only other; and whether these
    cancel."""
    places = np.arange(len(points))
    return row_sums(
        np.concatenate([points, others]),
        np.stack([places, len(places) + places % len(others)], axis=1),
    )


def base(scalar: int) -> Points:
    """scalar times the curve's base point, [1, 64]; `bases` is faster for many."""
    lib, _, context = library()
    multiple = empty(1)
    if not lib.secp256k1_ec_pubkey_create(
        context, _points_of(multiple), scalar_bytes(scalar)
    ):
        raise NotAPoint("0 times a point is no point")
    return multiple


def first_multiples(point: Points, count: int) -> Points:
    """1, 2, .. times a point; the count is a power of 2."""
    table = empty(count)
    table[0] = point
    for known in (1 << bit for bit in range(count.bit_length() - 1)):
        table[known : 2 * known] = pair_sums(table[:known], table[known - 1 : known])[0]
    return table


@lru_cache(maxsize=256)
def multiples_of(point: bytes) -> Points:
    """A table with (d + 1) 256^place times a point at PLACES[place] + d, so that no
    entry is 0; a scalar's digits d are those of the scalar minus the sum of all
    256^place. It has half a megabyte."""
    tables = [first_multiples(np.frombuffer(point, dtype=np.uint8), 256)]
    while len(tables) < SCALAR:
        tables.append(first_multiples(tables[-1][-1], 256))
    return np.concatenate(tables)


def bases(scalars: Sequence[int]) -> Points:
    """Many multiples of the curve's base point, [n, 64]."""
    data = b"".join(
        ((scalar - SHIFT) % ORDER).to_bytes(SCALAR, "little") for scalar in scalars
    )
    digits = np.frombuffer(data, dtype=np.uint8).reshape(-1, SCALAR)
    return _whole(*row_sums(multiples_of(base(1).tobytes()), PLACES + digits))


def blinded(points: Points, places: Places, bases: Points) -> Points:
    """For each line and each of w bases the sum of some points and r times the base,
    [lines w, 64], under a fresh r for the line, whose distance from a uniform one is
    2^-128; `places` of the points are [lines, w, k], and -1 where there is nothing to
    add."""
    if not points.any(1).all():  # at which the library would end the process
        raise IndexError("a sum of what is no point")
    lines, width, most = places.shape
    digits = np.frombuffer(os.urandom(SCALAR * lines), dtype=np.uint8).reshape(
        lines, 1, SCALAR
    )
    table = np.concatenate([*(multiples_of(one.tobytes()) for one in bases), points])
    known = len(table) - len(points)
    random = digits + PLACES + np.arange(0, known, known // width)[:, None]
    both = np.concatenate(
        [random, np.where(places < 0, -1, places + known)], axis=2
    ).reshape(-1, SCALAR + most)
    present = both >= 0
    starts = np.concatenate([[0], np.cumsum(present.sum(1))]).astype(np.int64)
    return _whole(*sums(table, both[present], starts))


def _whole(sums: Points, cancel: NDArray[np.bool_]) -> Points:
    """Sums, each of which must be a point."""
    if cancel.any():
        raise NotAPoint("points cancel out", int(cancel.argmax()))
    return sums


def work(kind: bytes, *buffers: Any) -> Sequence[Any] | int:
    """What a process beside this one is asked (`core.worker`), or the number of the
    first item that is no point."""

    def rows(at: int, width: int) -> NDArray[np.uint8]:
        return np.frombuffer(buffers[at], dtype=np.uint8).reshape(-1, width)

    def numbers(at: int) -> Places:
        return np.frombuffer(buffers[at], dtype=np.int64)

    try:
        if kind == PARSE:
            return [parsed(rows(0, WIRE))]
        if kind == OPEN:  # scalars times points, plus other points
            return pair_sums(
                multiplied(rows(0, MEMORY), rows(1, SCALAR)), rows(2, MEMORY)
            )
        points, (width, *shape) = rows(0, MEMORY), numbers(1)
        # the same groups of rows for each column, [groups, columns, 64]
        if kind == ADD:
            columns = points.reshape(width, -1, MEMORY)
            return [
                np.stack(
                    [
                        _whole(*sums(column, numbers(2), numbers(3)))
                        for column in columns
                    ],
                    axis=1,
                )
            ]
        # as they are sent
        return [
            formatted(
                blinded(points, numbers(2).reshape(-1, width, *shape), rows(3, MEMORY))
            )
        ]
    except NotAPoint as error:
        return error.at


def _bytes_of(array: NDArray[np.uint8], width: int) -> Any:
    """A pointer to rows of so many bytes."""
    assert array.flags.c_contiguous
    assert array.shape[1:] == (width,)
    return library()[1].cast("unsigned char *", array.ctypes.data)


def _points_of(array: Points) -> Any:
    return library()[1].cast("secp256k1_pubkey *", _bytes_of(array, MEMORY))
