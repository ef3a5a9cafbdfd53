"""Encryption that can be computed with: sums over parties, and products with plain
matrices, under a key whose secret half never leaves its maker.

    secret = make_keys("ckks", use="sums", limit=100.0)
    public = read_public_key(data, scheme="ckks", use="sums")   # at the other parties

    a = public.encrypt(x, owner="ada")
    b = public.encrypt(y, owner="bob")
    secret.decrypt(public.add(a, b))         # x + y, to within 2 * public.error

Between parties, `outbox.encrypt(tensor, as_, batch, key=public)` makes a ciphertext
that fits into a message.

What always holds: a decrypted value is right to within the error that its key states,
or an error is raised, whatever bytes a stranger sent. A value out of range is refused
and never told. A reader of a public key chooses its scheme, use and limit by itself.

Two more kinds of encryption are used directly by the algorithms that need them:
`masks`, for sums that nobody can read in parts, and `elgamal`, for sums of many small
whole numbers.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, NamedTuple

from colonnade.core.cipher import Encrypted
from colonnade.core.release import Released
from colonnade.encryption import bfv
from colonnade.encryption.ckks import CkksPublicKey, CkksSecretKey
from colonnade.encryption.plain import PlainPublicKey, PlainSecretKey
from colonnade.encryption.scheme import USES, PublicKey, SecretKey, split_parts
from colonnade.errors import (
    BoundaryError,
    ColonnadeError,
    ConfigError,
    WireError,
    check_named,
)

__all__ = [
    "SCHEMES",
    "USES",
    "Encrypted",
    "PublicKey",
    "SecretKey",
    "make_keys",
    "read_public_key",
]


class Scheme(NamedTuple):
    """How keys of a scheme are made and read, and the uses that they can be for."""

    uses: tuple[str, ...]
    make_keys: Callable[[str, float], SecretKey]
    """From a use and a limit."""
    public_key: Callable[..., PublicKey]
    """From a use, a limit, and the parts that the scheme wrote into the key's bytes."""


SCHEMES = {
    "ckks": Scheme(USES, CkksSecretKey, CkksPublicKey),
    "bfv": Scheme(bfv.USES, bfv.BfvSecretKey, bfv.public_key),
    "plain": Scheme(USES, PlainSecretKey, PlainPublicKey),
}


def make_keys(scheme: str, *, use: str = "sums", limit: float = 1024.0) -> SecretKey:
    """Make a fresh secret key. Its public key is the attribute `public`.

    Args:
        scheme: "ckks", "bfv", or "plain", which encrypts nothing.
        use: What the keys are for: "sums", "products", "combinations", or "columns".
        limit: The largest size of a value that is encrypted.
    """
    check_named("encryption scheme", scheme, [*SCHEMES])
    check_named("use of keys", use, [*SCHEMES[scheme].uses])
    if not 0 < limit < float("inf"):
        raise ConfigError(
            f"Keys are made for values up to a limit above 0; found {limit!r}."
        )
    return SCHEMES[scheme].make_keys(use, float(limit))


def read_public_key(
    data: bytes | Released, *, scheme: str, use: str, limit: float | None = None
) -> PublicKey:
    """Read a public key that another party sent.

    The reader states what the key must be: whoever sends a key does not choose how its
    reader encrypts, or whether it does. A scheme's degree, moduli and scales are
    constants, and SEAL refuses a key that was made with others.

    Args:
        data: The bytes of `PublicKey.to_bytes`, or the same from `outbox.publish`.
        scheme: The scheme that was agreed on.
        use: The use that was agreed on.
        limit: The limit that was agreed on. By default any.
    """
    if isinstance(data, Released):
        data = data.tensor.cpu().numpy().tobytes()
    agreed: dict[str, Any] = {"scheme": scheme, "use": use}
    if limit is not None:
        agreed["limit"] = limit
    try:
        return _public_key(data, agreed)
    except ColonnadeError:
        raise
    except Exception as error:  # bytes from a stranger can make any step fail
        raise WireError(
            f"These bytes are no public key: {type(error).__name__}."
        ) from None


def _public_key(data: bytes, agreed: dict[str, Any]) -> PublicKey:
    """The public key in these bytes, if its description is as agreed."""
    description_bytes, *parts = split_parts(data)
    description = json.loads(description_bytes)
    for name, expected in agreed.items():
        if description[name] != expected:
            raise BoundaryError(
                f"A public key of the {name} {str(description[name])[:32]!r} came, and"
                f" by this party's own settings it is {str(expected)!r}. Nothing is"
                " encrypted with another key; make one as agreed."
            )
    limit = description["limit"]
    if not limit > 0:
        raise WireError(
            "A public key is for values up to a limit above 0; found"
            f" {str(limit)[:32]!r}."
        )
    return SCHEMES[agreed["scheme"]].public_key(agreed["use"], float(limit), *parts)
