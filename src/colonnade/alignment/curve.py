"""Lists of points on secp256k1 as arrays, one point a row, computed by processes beside
this one (`core.workers`)."""

from __future__ import annotations

import secrets
from typing import Any

import numpy as np
from numpy.typing import NDArray

from colonnade.alignment import points as arithmetic
from colonnade.alignment.points import POINT
from colonnade.core import workers

__all__ = [
    "ORDER",
    "POINT",
    "NotAPoint",
    "blind",
    "check",
    "fresh_secret",
    "multiply",
    "public_key",
]

ORDER = 0xFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFEBAAEDCE6AF48A03BBFD25E8CD0364141
SECONDS = {
    arithmetic.BLIND: 28e-6,
    arithmetic.MULTIPLY: 23e-6,
    arithmetic.CHECK: 3.2e-6,
}
"""Of work on a point, about."""


class NotAPoint(ValueError):  # noqa: N818 - whoever catches it says whose point it is
    """Bytes that are no point of the curve."""

    def __init__(self, at: int) -> None:
        super().__init__(f"point {at} is not on the curve secp256k1")
        self.at = at


def fresh_secret() -> bytes:
    """A secret multiplier, uniform from 1 to the group's order - 1."""
    return (secrets.randbelow(ORDER - 1) + 1).to_bytes(32, "big")


def blind(digests: NDArray[np.uint8], secret: bytes) -> NDArray[np.uint8]:
    """secret * H(id) for each id's digest: [n, 32] -> [n, 33]."""
    return _spread(arithmetic.BLIND, digests, secret)


def multiply(points: NDArray[np.uint8], secret: bytes) -> NDArray[np.uint8]:
    """secret * P for each point, [n, 33]; NotAPoint names the first that is none."""
    return _spread(arithmetic.MULTIPLY, points, secret)


def check(points: NDArray[np.uint8]) -> None:
    """Raise NotAPoint unless all are on the curve."""
    _spread(arithmetic.CHECK, points, b"")


def public_key() -> Any:
    """coincurve's class of points."""
    from coincurve import PublicKey

    return PublicKey


def _spread(kind: bytes, items: NDArray[np.uint8], secret: bytes) -> NDArray[np.uint8]:
    """What `arithmetic.work` makes of digests or points, one a row, on all cores."""
    assert items.shape == (len(items), arithmetic.WIDTHS[kind])
    items = np.ascontiguousarray(items)
    try:
        answers = workers.spread(
            arithmetic.work,
            kind,
            len(items),
            SECONDS[kind],
            lambda part: (items[part], secret),
        )
    except workers.Wrong as wrong:
        raise NotAPoint(wrong.at) from None
    return np.frombuffer(
        bytearray().join(made for (made,) in answers), dtype=np.uint8
    ).reshape(-1, POINT)
