"""Encryption that can be computed with: sums over parties, products with plain
matrices, under a key of one's own.

secret = make_keys("ckks", use="sums", limit=100.0)              # stays here, with whoever may read the result
public = read_public_key(data, scheme="ckks", use="sums")         # at the others, as their own settings say

a, b = public.encrypt(x, owner="ada"), public.encrypt(y, owner="bob")
secret.decrypt(public.add(a, b))                                 # x + y, to within 2 * public.error

Between parties, `outbox.encrypt(tensor, as_, batch, key=public)` makes what fits into a
message.
"""

from __future__ import annotations

import json
from typing import Any

from colonnade.core.cipher import Encrypted
from colonnade.core.release import Released
from colonnade.encryption import seal
from colonnade.encryption.bfv import BfvPublicKey, BfvSecretKey
from colonnade.encryption.ckks import CkksPublicKey, CkksSecretKey
from colonnade.encryption.plain import PlainPublicKey, PlainSecretKey
from colonnade.encryption.scheme import USES, PublicKey, SecretKey
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

SCHEMES: dict[str, tuple[Any, Any]] = {
    "ckks": (CkksPublicKey, CkksSecretKey),
    "bfv": (BfvPublicKey, BfvSecretKey),
    "plain": (PlainPublicKey, PlainSecretKey),
}


def make_keys(scheme: str, *, use: str = "sums", limit: float = 1024.0) -> SecretKey:
    """A fresh secret key, and its public key as `.public`, for values from -limit to
    limit."""
    check_named("encryption scheme", scheme, [*SCHEMES])
    check_named("use of keys", use, [*SCHEMES[scheme][0].uses])
    if not 0 < limit < float("inf"):
        raise ConfigError(
            f"Keys are made for values up to a limit above 0; found {limit!r}."
        )
    secret: SecretKey = SCHEMES[scheme][1](use, float(limit))
    return secret


def read_public_key(
    data: bytes | Released, *, scheme: str, use: str, limit: float | None = None
) -> PublicKey:
    """Read the key that `PublicKey.to_bytes` wrote, or that `outbox.publish` sent.
    `scheme`, `use` and, where it is known, `limit` are the reader's own: whoever sends
    a key does not choose how its reader encrypts, or whether it does. A scheme's
    degree, moduli and scales are constants here, and SEAL refuses a key that was made
    with others."""
    if isinstance(data, Released):
        data = data.tensor.cpu().numpy().tobytes()
    try:
        about, *parts = seal.parted(data)
        said = json.loads(about)
        for key, own in (("scheme", scheme), ("use", use), ("limit", limit)):
            if own is not None and said[key] != own:
                raise BoundaryError(
                    f"A public key of the {key} {str(said[key])[:32]!r} came, and by"
                    f" this party's own settings it is {str(own)!r}. Nothing is"
                    " encrypted with another key; make one as agreed."
                )
        if not said["limit"] > 0:
            raise WireError(
                "A public key is for values up to a limit above 0; found"
                f" {str(said['limit'])[:32]!r}."
            )
        public: PublicKey = SCHEMES[scheme][0](use, float(said["limit"]), *parts)
    except ColonnadeError:
        raise
    except Exception as error:  # whatever hostile bytes make of it
        raise WireError(
            f"These bytes are no public key: {type(error).__name__}."
        ) from None
    return public
