"""Many points on secp256k1 at once: arrays of [n, 64] bytes, as libsecp256k1 keeps a point in memory.

coincurve brings the library. Its Python objects cost more time than the arithmetic. Here one call adds up all rows of a
column's bin, outside Python's lock, so that threads share the work. A point travels compressed, in 33 bytes; the form
in memory is the library's own and never leaves the process.

Multiples of a fixed point are sums over a table of its multiples by each byte of the scalar (`FixedBase`). This takes
half the time of the library's own multiplication, and is not constant in time: whoever can time these processes
closely, on the same machine, may learn something about scalars.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from colonnade.core.party import cores
from colonnade.errors import ConfigError

ORDER = 0xFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFEBAAEDCE6AF48A03BBFD25E8CD0364141
MEMORY, WIRE, SCALAR = 64, 33, 32  # bytes
SLICE, ADDED = 128, 1 << 12  # calls, or points to be added up, that a thread takes at a time: milliseconds
COMPRESSED = 258  # libsecp256k1's word for 33 bytes
WORKER = "points"
SHIFT = sum(256**place for place in range(SCALAR)) % ORDER

Points = NDArray[np.uint8]
"""[..., 64]"""


class NotAPoint(ValueError):  # noqa: N818 - whoever catches it says whose point it is
    """Bytes that are no point of the curve, or a sum that is none: the group's neutral element has no bytes."""


@cache
def library() -> tuple[Any, Any, Any]:
    """libsecp256k1 as coincurve binds it: its functions, their types, and their context."""
    try:
        from coincurve._libsecp256k1 import ffi, lib
        from coincurve.context import GLOBAL_CONTEXT
    except ImportError:
        raise ConfigError('ElGamal encryption needs the package coincurve: pip install "colonnade[crypto]".') from None
    return lib, ffi, GLOBAL_CONTEXT.ctx


def empty(*shape: int) -> Points:
    return np.zeros((*shape, MEMORY), dtype=np.uint8)


def parsed(data: NDArray[np.uint8]) -> Points:
    """[n, 33] -> [n, 64]; NotAPoint where one is not on the curve."""
    lib, _, context = library()
    data, points = np.ascontiguousarray(data), empty(len(data))
    target, source = _points_of(points), _bytes_of(data)

    def parse_slice(start: int, stop: int) -> None:
        parse = lib.secp256k1_ec_pubkey_parse
        for at in range(start, stop):
            if not parse(context, target + at, source + WIRE * at, WIRE):
                raise NotAPoint(f"point {at} is not on the curve secp256k1")

    in_threads(parse_slice, len(data))
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


def multiplied(points: Points, scalars: Sequence[int]) -> Points:
    """Each group of points of [groups, n, 64] times its scalar, which is not 0."""
    lib, _, context = library()
    (groups, count, _), products = points.shape, np.array(points, order="C")
    target, factors = _points_of(products), [(scalar % ORDER).to_bytes(SCALAR, "big") for scalar in scalars]

    def multiply_slice(start: int, stop: int) -> None:
        multiply = lib.secp256k1_ec_pubkey_tweak_mul
        for at in range(start, stop):
            multiply(context, target + at, factors[at // count])

    in_threads(multiply_slice, groups * count)
    return products


def sums(addresses: NDArray[np.uint64], starts: NDArray[np.int64], into: Points) -> NDArray[np.bool_]:
    """into[i] = the sum of the points at addresses[starts[i] : starts[i + 1]]. Returns where the sum is no point: there
    were none to add, or they cancel. The caller keeps the points alive."""
    lib, ffi, context = library()
    assert into.flags.c_contiguous
    addresses, target = np.ascontiguousarray(addresses), _points_of(into)
    first = ffi.cast("const secp256k1_pubkey * const *", addresses.ctypes.data)
    bounds, no_point = starts.tolist(), np.zeros(len(starts) - 1, dtype=np.bool_)

    def add_slice(start: int, stop: int) -> None:
        combine = lib.secp256k1_ec_pubkey_combine
        for at in range(start, stop):
            begin, count = bounds[at], bounds[at + 1] - bounds[at]
            if not count or not combine(context, target + at, first + begin, count):
                no_point[at] = True

    in_threads(add_slice, len(no_point), len(addresses))
    return no_point


def address(points: Points) -> NDArray[np.uint64]:
    """Where each point of [..., 64] lies in memory."""
    assert points.flags.c_contiguous
    flat = np.arange(points.size // MEMORY, dtype=np.uint64) * np.uint64(MEMORY) + np.uint64(points.ctypes.data)
    return flat.reshape(points.shape[:-1])


def rows_of(addresses: NDArray[np.uint64], into: Points) -> NDArray[np.bool_]:
    """The sum of the points at each row of [n, k] addresses."""
    count, width = addresses.shape
    return sums(addresses.reshape(-1), np.arange(count + 1, dtype=np.int64) * width, into)


def base(scalar: int) -> Points:
    """scalar times the curve's base point, [1, 64]; `generator` is faster for many."""
    lib, _, context = library()
    multiple = empty(1)
    if not lib.secp256k1_ec_pubkey_create(context, _points_of(multiple), (scalar % ORDER).to_bytes(SCALAR, "big")):
        raise NotAPoint("0 times a point is no point")
    return multiple


class FixedBase:
    """Multiples of one point. table[place, d] is (d + 1) 256^place times the point, so that no entry is 0; a scalar's
    digits are those of the scalar minus the sum of all 256^place."""

    def __init__(self, point: Points) -> None:
        self.table = empty(SCALAR, 256)
        addresses = address(self.table)
        self.table[0, 0] = point.reshape(MEMORY)
        for place in range(SCALAR):
            if place:
                self.table[place, 0] = self.table[place - 1, 255]
            for known in (1 << bit for bit in range(8)):  # d + 1 = known + (the rest)
                pairs = np.stack([np.repeat(addresses[place, known - 1], known), addresses[place, :known]], axis=1)
                rows_of(pairs, self.table[place, known : 2 * known])
        self._addresses = addresses

    def addresses(self, digits: NDArray[np.uint8]) -> NDArray[np.uint64]:
        """[n, 32] digits -> the addresses of the points to add up, [n, 32]."""
        return self._addresses[np.arange(SCALAR)[None, :], digits]

    def times(self, digits: NDArray[np.uint8]) -> Points:
        multiples = empty(len(digits))
        if rows_of(self.addresses(digits), multiples).any():
            raise NotAPoint("a multiple of a point is no point")
        return multiples


@cache
def generator() -> FixedBase:
    """Multiples of the curve's base point."""
    return FixedBase(base(1))


def digits_of(scalars: list[int]) -> NDArray[np.uint8]:
    """[n, 32] digits of scalars modulo the order, for `FixedBase`."""
    data = b"".join(((scalar - SHIFT) % ORDER).to_bytes(SCALAR, "little") for scalar in scalars)
    return np.frombuffer(data, dtype=np.uint8).reshape(-1, SCALAR)


def random_digits(count: int) -> NDArray[np.uint8]:
    """The digits of secret scalars whose distance from uniform ones is 2^-128."""
    return np.frombuffer(os.urandom(SCALAR * count), dtype=np.uint8).reshape(count, SCALAR)


def _bytes_of(array: NDArray[np.uint8]) -> Any:
    return library()[1].cast("unsigned char *", array.ctypes.data)


def _points_of(array: Points) -> Any:
    return library()[1].cast("secp256k1_pubkey *", array.ctypes.data)


_limits: list[int] = []


@contextmanager
def limited(threads: int) -> Iterator[None]:
    """Use at most `threads` threads inside, to measure."""
    _limits.append(threads)
    try:
        yield
    finally:
        _limits.pop()


def in_threads(do_slice: Callable[[int, int], None], count: int, work: int | None = None) -> None:
    """Do `count` calls in slices over the machine's cores; `work` is the number of points they touch, where a call
    takes many. A slice that asks for threads in turn has the one that it runs in."""
    size = SLICE if work is None else max(1, count * ADDED // max(work, 1))
    bounds = [(start, min(start + size, count)) for start in range(0, count, size)]
    threads = min(cores(), len(bounds), *_limits)
    if threads < 2 or threading.current_thread().name.startswith(WORKER):
        for start, stop in bounds:
            do_slice(start, stop)
        return
    with ThreadPoolExecutor(threads, thread_name_prefix=WORKER) as pool:
        for future in [pool.submit(do_slice, start, stop) for start, stop in bounds]:
            future.result()
