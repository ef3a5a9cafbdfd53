"""Points on secp256k1, a group of prime order, by coincurve (libsecp256k1), which computes outside Python's lock.

A point travels compressed, in 33 bytes. An id becomes a point by trying and incrementing: the first of
SHA-256(DOMAIN, counter, digest of the id) that is an abscissa on the curve, with the even ordinate; two tries on
average. How long that takes depends on the id, so it is not constant in time: whoever can time a party's hashing
closely learns something about its ids. Nor is libsecp256k1's `tweak_mul`, by which points are multiplied.
"""

from __future__ import annotations

import hashlib
import os
import secrets
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from numpy.typing import NDArray

from colonnade.errors import ConfigError

DOMAIN = b"colonnade/alignment/1/secp256k1/sha-256"
ORDER = 0xFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFEBAAEDCE6AF48A03BBFD25E8CD0364141
POINT = 33
SLICE = 256
"""Points a thread takes at a time: some milliseconds of work."""


class NotAPoint(ValueError):  # noqa: N818 - whoever catches it says whose point it is
    """Bytes that are no point of the curve."""

    def __init__(self, at: int) -> None:
        self.at = at
        super().__init__(f"point {at} is not on the curve secp256k1")


def fresh_secret() -> bytes:
    """A secret multiplier, uniform from 1 to the group's order - 1."""
    return (secrets.randbelow(ORDER - 1) + 1).to_bytes(32, "big")


def blind(digests: NDArray[np.uint8], secret: bytes, threads: int | None = None) -> NDArray[np.uint8]:
    """secret * H(id) for each id's digest: [n, 32] -> [n, 33]."""
    key = public_key()

    def one(digest: bytes) -> bytes:
        return bytes(_hashed(key, digest).multiply(secret).format())

    return _each(one, digests, POINT, threads)


def multiply(points: NDArray[np.uint8], secret: bytes, threads: int | None = None) -> NDArray[np.uint8]:
    """secret * P for each point; NotAPoint names the first that is none."""
    key = public_key()

    def one(point: bytes) -> bytes:
        return bytes(key(point).multiply(secret).format())

    return _each(one, points, POINT, threads)


def check(points: NDArray[np.uint8], threads: int | None = None) -> None:
    """Raise NotAPoint unless all are on the curve."""
    key = public_key()

    def one(point: bytes) -> bytes:
        key(point)
        return b""

    _each(one, points, 0, threads)


def hash_to_curve(digest: bytes) -> bytes:
    """H(id), which nobody sends."""
    return bytes(_hashed(public_key(), digest).format())


def _hashed(key: Any, digest: bytes) -> Any:
    counter = 0
    while True:
        abscissa = hashlib.sha256(DOMAIN + counter.to_bytes(4, "big") + digest).digest()
        try:
            return key(b"\x02" + abscissa)
        except ValueError:
            counter += 1


def _each(
    one: Callable[[bytes], bytes], given: NDArray[np.uint8], width: int, threads: int | None
) -> NDArray[np.uint8]:
    """Apply to each row's bytes, in slices over threads; rows stay in their order."""
    wide, data = given.shape[1], np.ascontiguousarray(given).tobytes()

    def some(start: int) -> bytes:
        made = []
        for at in range(start, min(start + SLICE, len(given))):
            try:
                made.append(one(data[at * wide : (at + 1) * wide]))
            except ValueError:
                raise NotAPoint(at) from None
        return b"".join(made)

    starts = range(0, len(given), SLICE)
    count = min(threads or os.cpu_count() or 1, len(starts))
    if count < 2:
        parts = [some(start) for start in starts]
    else:
        with ThreadPoolExecutor(count, thread_name_prefix="curve") as pool:
            parts = list(pool.map(some, starts))
    return np.frombuffer(bytearray(b"".join(parts)), dtype=np.uint8).reshape(-1 if width else 0, width)


def public_key() -> Any:
    """coincurve's class of points."""
    try:
        from coincurve import PublicKey
    except ImportError:
        raise ConfigError('Private alignment needs the package coincurve: pip install "colonnade[crypto]".') from None
    return PublicKey
