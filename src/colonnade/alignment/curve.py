"""Lists of points on secp256k1 as arrays, one point a row; `alignment.points` has the arithmetic, and
`alignment.workers` spreads it over the cores."""

from __future__ import annotations

import secrets
from typing import Any

import numpy as np
from numpy.typing import NDArray

from colonnade.alignment import points as arithmetic
from colonnade.alignment.points import DIGEST, POINT, NotAPoint
from colonnade.alignment.workers import spread
from colonnade.errors import ConfigError

__all__ = ["ORDER", "POINT", "NotAPoint", "blind", "check", "fresh_secret", "multiply", "public_key"]

ORDER = 0xFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFEBAAEDCE6AF48A03BBFD25E8CD0364141


def fresh_secret() -> bytes:
    """A secret multiplier, uniform from 1 to the group's order - 1."""
    return (secrets.randbelow(ORDER - 1) + 1).to_bytes(32, "big")


def blind(digests: NDArray[np.uint8], secret: bytes, cores: int | None = None) -> NDArray[np.uint8]:
    """secret * H(id) for each id's digest: [n, 32] -> [n, 33]."""
    assert digests.shape[1] == DIGEST
    return _points(spread(arithmetic.BLIND, _bytes(digests), secret, cores))


def multiply(points: NDArray[np.uint8], secret: bytes, cores: int | None = None) -> NDArray[np.uint8]:
    """secret * P for each point; NotAPoint names the first that is none."""
    return _points(spread(arithmetic.MULTIPLY, _bytes(points), secret, cores))


def check(points: NDArray[np.uint8], cores: int | None = None) -> None:
    """Raise NotAPoint unless all are on the curve."""
    spread(arithmetic.CHECK, _bytes(points), b"", cores)


def hash_to_curve(digest: bytes) -> bytes:
    """H(id), which nobody sends."""
    return arithmetic.work(arithmetic.BLIND, digest, (1).to_bytes(32, "big"))


def public_key() -> Any:
    """coincurve's class of points."""
    try:
        from coincurve import PublicKey
    except ImportError:
        raise ConfigError('Private alignment needs the package coincurve: pip install "colonnade[crypto]".') from None
    return PublicKey


def _bytes(rows: NDArray[np.uint8]) -> bytes:
    return np.ascontiguousarray(rows).tobytes()


def _points(joined: bytes) -> NDArray[np.uint8]:
    return np.frombuffer(bytearray(joined), dtype=np.uint8).reshape(-1, POINT)
