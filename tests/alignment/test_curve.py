"""secp256k1, held to its equation in Python's own integers."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest

from colonnade.alignment import curve

P = 2**256 - 2**32 - 977
ONE = (1).to_bytes(32, "big")
DIGESTS = np.frombuffer(
    b"".join(hashlib.sha256(bytes([n])).digest() for n in range(40)), np.uint8
).reshape(-1, 32)


def expanded(point: bytes) -> tuple[int, int]:
    """x and y of a compressed point, or an error when x is not on y² = x³ + 7."""
    x = int.from_bytes(point[1:], "big")
    y = pow(x**3 + 7, (P + 1) // 4, P)
    assert (y * y - x**3 - 7) % P == 0
    return x, y if y % 2 == point[0] % 2 else P - y


def add(a: tuple[int, int] | None, b: tuple[int, int] | None) -> tuple[int, int] | None:
    if a is None or b is None:
        return a or b
    if a[0] == b[0] and (a[1] + b[1]) % P == 0:
        return None
    slope = (
        (3 * a[0] ** 2 * pow(2 * a[1], -1, P))
        if a == b
        else (b[1] - a[1]) * pow(b[0] - a[0], -1, P)
    )
    x = (slope**2 - a[0] - b[0]) % P
    return x, (slope * (a[0] - x) - a[1]) % P


def times(scalar: int, point: bytes) -> bytes:
    """By doubling and adding."""
    base: tuple[int, int] | None = expanded(point)
    total: tuple[int, int] | None = None
    while scalar:
        total = add(total, base) if scalar & 1 else total
        base = add(base, base)
        scalar = scalar >> 1
    assert total is not None
    return bytes([2 + total[1] % 2]) + total[0].to_bytes(32, "big")


def test_hashing_takes_the_first_try_on_the_curve() -> None:
    for digest in DIGESTS[:8]:
        tries = (
            hashlib.sha256(
                b"colonnade/alignment/1/secp256k1/sha-256"
                + c.to_bytes(4, "big")
                + digest.tobytes()
            ).digest()
            for c in range(64)
        )
        first = next(
            x
            for x in tries
            if pow(int.from_bytes(x, "big") ** 3 + 7, (P - 1) // 2, P) == 1
        )
        assert curve.blind(digest[None], ONE).tobytes() == b"\x02" + first


def test_blinding_and_multiplying_are_the_groups() -> None:
    secret = (3**150 % curve.ORDER).to_bytes(32, "big")
    other = (5**100 % curve.ORDER).to_bytes(32, "big")
    blinded = curve.blind(DIGESTS[:3], secret)
    raised = curve.multiply(blinded, other)
    for digest, point, again in zip(DIGESTS, blinded, raised, strict=False):
        base = curve.blind(digest[None], ONE).tobytes()
        assert point.tobytes() == times(int.from_bytes(secret, "big"), base)
        assert again.tobytes() == times(
            int.from_bytes(secret, "big") * int.from_bytes(other, "big") % curve.ORDER,
            base,
        )


def test_two_secrets_commute() -> None:
    a = curve.fresh_secret()
    b = curve.fresh_secret()
    assert (
        curve.multiply(curve.blind(DIGESTS, a), b)
        == curve.multiply(curve.blind(DIGESTS, b), a)
    ).all()


def test_secrets_are_fresh_and_in_the_group() -> None:
    made = {curve.fresh_secret() for _ in range(100)}
    assert len(made) == 100
    assert all(
        len(one) == 32 and 0 < int.from_bytes(one, "big") < curve.ORDER for one in made
    )


@pytest.mark.parametrize(
    "wrong",
    [b"\x02" + (5).to_bytes(32, "big"), b"\x04" + bytes(32), b"\x02" + b"\xff" * 32],
)
def test_what_is_no_point_is_named(wrong: bytes) -> None:
    """5³ + 7 is no square; a bad prefix; an abscissa above the field's prime."""
    points = curve.blind(DIGESTS, curve.fresh_secret())
    points[9] = np.frombuffer(wrong, np.uint8)
    for refuse in (
        lambda: curve.multiply(points, b"\x01" * 32),
        lambda: curve.check(points),
    ):
        with pytest.raises(
            curve.NotAPoint, match="point 9 is not on the curve secp256k1"
        ):
            refuse()


def test_points_pass_the_check() -> None:
    blinded = curve.blind(DIGESTS, curve.fresh_secret())
    assert blinded.shape == (len(DIGESTS), 33)
    curve.check(blinded)
    curve.check(np.empty((0, 33), np.uint8))
