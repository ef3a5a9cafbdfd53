"""Many points on secp256k1 at once: arrays of [n, 64] bytes, as libsecp256k1 keeps a point in memory.

coincurve brings the library. Its Python objects cost more time than the arithmetic; here one call adds up all rows of a
column's bin. A point travels compressed, in 33 bytes; the form in memory is the library's own, and leaves the process
only for one beside it that runs this file (`core.workers`), which therefore imports nothing of Colonnade.

Multiples of a fixed point are sums over a table of its multiples by each byte of the scalar (`FixedBase`). This takes
half the time of the library's own multiplication, and is not constant in time: whoever can time these processes
closely, on the same machine, may learn something about scalars.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import cache, lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

ORDER = 0xFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFEBAAEDCE6AF48A03BBFD25E8CD0364141
MEMORY, WIRE, SCALAR = 64, 33, 32  # bytes
COMPRESSED = 258  # libsecp256k1's word for 33 bytes
SHIFT = sum(256**place for place in range(SCALAR)) % ORDER
PARSE, MULTIPLY, ADD, BLIND = b"p", b"m", b"a", b"b"

Points = NDArray[np.uint8]
"""[..., 64]"""
Places = NDArray[np.int64]
"""Numbers of points in a table of them."""


class NotAPoint(ValueError):  # noqa: N818 - whoever catches it says whose point it is
    """Bytes that are no point of the curve, or a sum that is none: the group's neutral element has no bytes."""

    def __init__(self, why: str, at: int = 0) -> None:
        super().__init__(why)
        self.at = at


@cache
def library() -> tuple[Any, Any, Any]:
    """libsecp256k1 as coincurve binds it: its functions, their types, and their context."""
    from coincurve._libsecp256k1 import ffi, lib
    from coincurve.context import GLOBAL_CONTEXT

    return lib, ffi, GLOBAL_CONTEXT.ctx


def empty(*shape: int) -> Points:
    return np.zeros((*shape, MEMORY), dtype=np.uint8)


def parsed(data: NDArray[np.uint8]) -> Points:
    """[n, 33] -> [n, 64]; NotAPoint where one is not on the curve."""
    lib, _, context = library()
    data, points = np.ascontiguousarray(data), empty(len(data))
    target, source, parse = _points_of(points), _bytes_of(data), lib.secp256k1_ec_pubkey_parse
    for at in range(len(data)):
        if not parse(context, target + at, source + WIRE * at, WIRE):
            raise NotAPoint(f"point {at} is not on the curve secp256k1", at)
    return points


def formatted(points: Points) -> NDArray[np.uint8]:
    """[n, 64] -> [n, 33]."""
    if _is_little_endian():
        flat = points.reshape(-1, MEMORY)
        return np.concatenate([2 + (flat[:, 32:33] & 1), flat[:, 31::-1]], axis=1)
    return _serialized(points)


@cache
def _is_little_endian() -> bool:
    """Whether the library keeps a point as its two coordinates, each with the lowest byte first: then all are
    serialized in one go. A few points of both signs show it, since the library does not say."""
    few = np.concatenate([base(scalar) for scalar in (1, -1, 2, -2, ORDER // 3, -(ORDER // 3))])
    return bool((np.concatenate([2 + (few[:, 32:33] & 1), few[:, 31::-1]], axis=1) == _serialized(few)).all())


def _serialized(points: Points) -> NDArray[np.uint8]:
    """Points that the library serializes, one by one."""
    lib, ffi, context = library()
    points, data = np.ascontiguousarray(points), np.zeros((len(points), WIRE), dtype=np.uint8)
    source, target = _points_of(points), _bytes_of(data)
    length, serialize = ffi.new("size_t *", WIRE), lib.secp256k1_ec_pubkey_serialize
    for at in range(len(points)):
        serialize(context, target + WIRE * at, length, source + at, COMPRESSED)
    return data


def multiplied(points: Points, scalar: int) -> Points:
    """Each point of [n, 64] times a scalar, which is not 0."""
    lib, _, context = library()
    products = np.array(points, order="C")
    target, factor, multiply = _points_of(products), scalar_bytes(scalar), lib.secp256k1_ec_pubkey_tweak_mul
    for at in range(len(products)):
        multiply(context, target + at, factor)
    return products


def scalar_bytes(scalar: int) -> bytes:
    return (scalar % ORDER).to_bytes(SCALAR, "big")


def sums(points: Points, places: Places, starts: Places) -> tuple[Points, NDArray[np.bool_]]:
    """For each i the sum of the points at places[starts[i] : starts[i + 1]], and whether that is no point: there were
    none to add, or they cancel."""
    points = np.ascontiguousarray(points)
    return _sums(_addresses(points, places), starts)


def _addresses(points: Points, places: Places) -> NDArray[np.uint64]:
    """Where these points lie in memory, which the caller keeps."""
    return np.uint64(points.ctypes.data) + places.astype(np.uint64) * np.uint64(MEMORY)


def _sums(addresses: NDArray[np.uint64], starts: Places) -> tuple[Points, NDArray[np.bool_]]:
    lib, ffi, context = library()
    addresses, into = np.ascontiguousarray(addresses), empty(len(starts) - 1)
    first, target = ffi.cast("const secp256k1_pubkey * const *", addresses.ctypes.data), _points_of(into)
    bounds, no_point, combine = starts.tolist(), np.zeros(len(into), dtype=np.bool_), lib.secp256k1_ec_pubkey_combine
    for at in range(len(into)):
        begin, count = bounds[at], bounds[at + 1] - bounds[at]
        if not count or not combine(context, target + at, first + begin, count):
            no_point[at] = True
    return into, no_point


def row_sums(points: Points, places: Places) -> tuple[Points, NDArray[np.bool_]]:
    """The sum of the points at each row of [n, k] places."""
    count, width = places.shape
    return sums(points, places.reshape(-1), np.arange(count + 1, dtype=np.int64) * width)


def base(scalar: int) -> Points:
    """scalar times the curve's base point, [1, 64]; `generator` is faster for many."""
    lib, _, context = library()
    multiple = empty(1)
    if not lib.secp256k1_ec_pubkey_create(context, _points_of(multiple), scalar_bytes(scalar)):
        raise NotAPoint("0 times a point is no point")
    return multiple


class FixedBase:
    """Multiples of one point. table[place, d] is (d + 1) 256^place times the point, so that no entry is 0; a scalar's
    digits are those of the scalar minus the sum of all 256^place."""

    def __init__(self, point: Points) -> None:
        table = empty(SCALAR, 256)
        table[0, 0] = point.reshape(MEMORY)
        for place in range(SCALAR):
            if place:
                table[place, 0] = table[place - 1, 255]
            for known in (1 << bit for bit in range(8)):  # d + 1 = known + (the rest)
                pairs = np.stack([np.full(known, known - 1), np.arange(known)], axis=1)
                table[place, known : 2 * known] = row_sums(table[place], pairs)[0]
        self.table = table.reshape(-1, MEMORY)

    @staticmethod
    def places(digits: NDArray[np.uint8]) -> Places:
        """[n, 32] digits -> the places in the table of the points to add up, [n, 32]."""
        return np.arange(SCALAR, dtype=np.int64)[None, :] * 256 + digits

    def times(self, digits: NDArray[np.uint8]) -> Points:
        multiples, no_point = row_sums(self.table, self.places(digits))
        if no_point.any():
            raise NotAPoint("a multiple of a point is no point")
        return multiples


@lru_cache(maxsize=256)
def multiples_of(point: bytes) -> FixedBase:
    """Of a point that is asked for again and again, half a megabyte."""
    return FixedBase(np.frombuffer(point, dtype=np.uint8))


def generator() -> FixedBase:
    """Multiples of the curve's base point."""
    return multiples_of(base(1).tobytes())


def digits_of(scalars: list[int]) -> NDArray[np.uint8]:
    """[n, 32] digits of scalars modulo the order, for `FixedBase`."""
    data = b"".join(((scalar - SHIFT) % ORDER).to_bytes(SCALAR, "little") for scalar in scalars)
    return np.frombuffer(data, dtype=np.uint8).reshape(-1, SCALAR)


def random_digits(count: int) -> NDArray[np.uint8]:
    """The digits of secret scalars whose distance from uniform ones is 2^-128."""
    return np.frombuffer(os.urandom(SCALAR * count), dtype=np.uint8).reshape(count, SCALAR)


def blinded(points: Points, places: Places, bases: Points) -> Points:
    """For each line and each of w bases the sum of some points and r times the base, [lines w, 64], under a fresh r for
    the line; `places` of the points are [lines, w, k], and -1 where there is nothing to add."""
    lines, _, most = places.shape
    points, tables = np.ascontiguousarray(points), [multiples_of(one.tobytes()).table for one in bases]
    digits = FixedBase.places(random_digits(lines))
    random = np.stack([_addresses(table, digits) for table in tables], axis=1)
    added = np.concatenate([_addresses(points, places), random], axis=2).reshape(-1, most + SCALAR)
    present = np.pad(places >= 0, ((0, 0), (0, 0), (0, SCALAR)), constant_values=True).reshape(added.shape)
    starts = np.concatenate([[0], np.cumsum(present.sum(1))]).astype(np.int64)
    total, no_point = _sums(added[present], starts)
    if no_point.any():
        raise NotAPoint("points cancel out", int(no_point.argmax()))
    return total


def work(kind: bytes, *buffers: Any) -> Sequence[Any] | int:
    """What a process beside this one is asked (`core.worker`), or the number of the first item that is no point."""
    try:
        if kind == PARSE:
            return [parsed(np.frombuffer(buffers[0], dtype=np.uint8).reshape(-1, WIRE))]
        points = np.frombuffer(buffers[0], dtype=np.uint8).reshape(-1, MEMORY)
        if kind == MULTIPLY:
            return [multiplied(points, int.from_bytes(buffers[1], "big"))]
        if kind == ADD:
            return list(sums(points, *(np.frombuffer(numbers, dtype=np.int64) for numbers in buffers[1:])))
        bases = np.frombuffer(buffers[2], dtype=np.uint8).reshape(-1, MEMORY)
        width, most = len(bases), int.from_bytes(buffers[3], "big")
        return [blinded(points, np.frombuffer(buffers[1], dtype=np.int64).reshape(-1, width, most), bases)]
    except NotAPoint as error:
        return error.at


def _bytes_of(array: NDArray[np.uint8]) -> Any:
    return library()[1].cast("unsigned char *", array.ctypes.data)


def _points_of(array: Points) -> Any:
    return library()[1].cast("secp256k1_pubkey *", array.ctypes.data)
