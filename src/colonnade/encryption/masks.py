"""Pairwise masks: parties add up numbers, and whoever collects their shares sees the
sum and nothing else.

Bonawitz et al., Practical Secure Aggregation for Privacy-Preserving Machine Learning,
CCS 2017 (ePrint 2017/281), Section 4, without its recovery from drop-outs: a vertical
federation cannot go on without a party's columns anyway.

    party k:    s_k = round(2^32 o_k) + sum_{j > k} m_kj - sum_{j < k} m_kj      modulo 2^64, per value
    collector:  sum_k s_k = sum_k round(2^32 o_k)                                the masks cancel

m_kj is AES-256's keystream in counter mode. Its key is HMAC-SHA256 of the round, the
batch and all that the party's model was told to follow (`Outbox.follow`), under a
secret that only k and j can derive (X25519, then HKDF-SHA256 bound to everybody's
public keys). A party counts its rounds itself, one per share, so nobody can make it use
a mask twice. If a collector asks two parties for different rows in one round, or told
them different things before, the masks do not cancel.

A value may be up to 2^20 in size and there may be 2047 parties, so that no sum wraps
around: the sum of M parties is exact to M 2^-33. A sum of shares that do not belong
together is uniform over the ring. Almost none of the ring is within M 2^20, so such a
sum is recognised and refused.

To whoever lacks the keys a share is uniform, whatever its value. A collector that
colludes with all but two of the parties learns the sum of those two. Public keys travel
through the collector, which is taken to be honest but curious: an active one could hand
out keys of its own and unmask a party. Only keys that arrive over connections
authenticated between the parties would prevent that.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Generator, Tensor

from colonnade.core.party import Refused
from colonnade.core.release import CODECS, Packed, Released, Scalar
from colonnade.errors import BoundaryError

SCALE = 2.0**32
LIMIT = 2.0**20
MOST_PARTIES = 2047
"""MOST_PARTIES values of at most LIMIT, times SCALE, stay below 2^63."""


@dataclass(frozen=True, slots=True)
class Shares:
    """How a collector reads shares: as elements of the ring of integers modulo 2^64. A
    party that has `masks` packs its own with it, for one batch."""

    name: str = "masked"
    masks: Masks | None = None
    batch: str | None = None

    def encode(self, tensor: Tensor, generator: Generator) -> Packed:  # noqa: ARG002 - masks come from keys
        if self.masks is None:
            raise BoundaryError(
                "Only a party that agreed on keys can mask; release through its own"
                " Masks."
            )
        return self.masks.share(tensor, self.batch)

    def decode(self, packed: Packed) -> Tensor:
        count = math.prod(packed.shape)
        if packed.dtype != "int64" or len(packed.data) != 8 * count:
            raise BoundaryError(
                f"A share of shape {list(packed.shape)} does not have"
                f" {len(packed.data)} bytes."
            )
        if not count:
            return torch.empty(packed.shape, dtype=torch.int64)
        return torch.frombuffer(bytearray(packed.data), dtype=torch.int64).reshape(
            packed.shape
        )


SHARES = Shares()
CODECS[SHARES.name] = SHARES


class Masks:
    """One party's side: its keys, which live in memory only, and the seal on what it
    releases."""

    def __init__(self, owner: str) -> None:
        self.owner = owner
        self._private: Any = _new_key()
        # +1 or -1, and the secret with one other party
        self._keys: list[tuple[int, bytes]] = []
        self._agreement = ""
        self._round = 0

    def public_key(self) -> str:
        """Make a fresh public key, as hex, and forget what was agreed before."""
        self._private = _new_key()
        self._keys = []
        return str(self._private.public_key().public_bytes_raw().hex())

    def agree(self, keys: Mapping[str, str]) -> None:
        """Derive a key with every other party from everybody's public keys; each
        private key serves once."""
        from cryptography.hazmat.primitives import hashes
        from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PublicKey
        from cryptography.hazmat.primitives.kdf.hkdf import HKDF

        private = self._private
        self._private = None
        self._keys = []
        if (
            private is None
            or keys.get(self.owner) != private.public_key().public_bytes_raw().hex()
        ):
            raise Refused(
                "the agreed keys do not hold the last key it made; ask it for a public"
                " key first"
            )
        if not 2 <= len(keys) <= MOST_PARTIES or len(set(keys.values())) != len(keys):
            raise Refused(
                f"masks need 2 to {MOST_PARTIES} parties with keys of their own; found"
                f" {len(keys)} parties"
            )
        agreement = json.dumps(dict(keys), sort_keys=True)
        derived = []
        for other in sorted(keys.keys() - {self.owner}):
            try:
                secret = private.exchange(
                    X25519PublicKey.from_public_bytes(bytes.fromhex(keys[other]))
                )
            except ValueError:
                raise Refused(
                    f"the public key of '{other}' is not an X25519 key:"
                    f" {keys[other][:80]!r}"
                ) from None
            between = json.dumps([agreement, *sorted((self.owner, other))]).encode()
            key = HKDF(
                hashes.SHA256(), 32, salt=None, info=b"colonnade masks" + between
            ).derive(secret)
            derived.append((1 if self.owner < other else -1, key))
        self._keys = derived
        self._round = 0
        self._agreement = hashlib.sha256(agreement.encode()).hexdigest()[:16]

    def on(self, batch: str | None) -> Shares:
        """The codec for a batch; refused without keys, before the owner's mechanism
        spends anything."""
        self._expect_keys()
        return Shares(masks=self, batch=batch)

    def share(self, tensor: Tensor, batch: str | None) -> Packed:
        """This party's share of a sum. It uses up the next masks, whether or not it
        ever arrives."""
        self._expect_keys()
        values = tensor.detach().cpu().double()
        if not bool((values.abs() <= LIMIT).all()):  # not for NaN
            raise Refused(
                f"'{self.owner}' has a value that does not fit: a secure sum takes"
                f" finite values from {-LIMIT:.0f} to {LIMIT:.0f}. If training"
                " diverges, lower learning_rate"
            )
        ring = (values * SCALE).round().to(torch.int64).contiguous()
        self._round += 1
        share = ring.numpy().reshape(-1) + self._mask(ring.numel(), batch)
        about: dict[str, Scalar] = {"round": self._round, "keys": self._agreement}
        return Packed(SHARES.name, share.tobytes(), tuple(tensor.shape), "int64", about)

    def _expect_keys(self) -> None:
        if not self._keys:
            raise Refused(
                f"'{self.owner}' has not agreed on keys with the others, and releases"
                " nothing unmasked"
            )

    def _mask(self, count: int, batch: str | None) -> NDArray[np.int64]:
        """The sum of this round's masks with everybody; it wraps around."""
        from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

        total = np.zeros(count, dtype="<i8")
        zeros = bytes(8 * count)
        message = f"{self._round}/{batch or ''}".encode()
        for sign, secret in self._keys:
            key = algorithms.AES(hmac.digest(secret, message, "sha256"))
            keystream = Cipher(key, modes.CTR(bytes(16))).encryptor().update(zeros)
            add = np.add if sign > 0 else np.subtract
            add(total, np.frombuffer(keystream, dtype="<i8"), out=total)
        return total


def one_round(
    shares: Mapping[str, Released], agreed: Collection[str]
) -> dict[str, Tensor]:
    """The shares of one sum, checked to come from all parties, under the same keys and
    in the same round."""
    _check_complete(shares, agreed)
    settings = {
        party: dict(share.packed.settings) if share.packed else {}
        for party, share in shares.items()
    }
    if any(other != settings[next(iter(shares))] for other in settings.values()):
        rounds = ", ".join(
            f"'{party}' {about.get('round', 'unmasked')}"
            for party, about in settings.items()
        )
        raise BoundaryError(
            f"A secure sum takes shares of one round; found {rounds}. Agree on keys"
            " again."
        )
    return {party: share.tensor for party, share in shares.items()}


def open_sum(shares: Mapping[str, Tensor], agreed: Collection[str]) -> Tensor:
    """The sum of the values that the parties masked, in float64."""
    _check_complete(shares, agreed)
    for party, share in shares.items():
        if share.dtype != torch.int64:
            raise BoundaryError(
                f"A secure sum takes masked shares; '{party}' sent {share.dtype}."
            )
    total = torch.stack(list(shares.values())).sum(0).double() / SCALE
    if not bool((total.abs() <= len(agreed) * LIMIT).all()):
        raise BoundaryError(
            f"The shares of {_named(shares)} do not add up: masks are left over. They"
            " must be all shares of one round, unchanged, of the same rows, and of"
            " models told the same. Resume from the last checkpoint."
        )
    return total


def _check_complete(shares: Mapping[str, Any], agreed: Collection[str]) -> None:
    """Raise where a party's share is missing: without it a sum is noise."""
    if shares.keys() != set(agreed) or not shares:
        absent = set(agreed) - shares.keys()
        strange = shares.keys() - set(agreed)
        reason = (
            f"the share of {_named(absent)} is missing"
            if absent
            else f"{_named(strange)} did not agree on keys"
        )
        raise BoundaryError(
            "A secure sum needs a share of exactly"
            f" {_named(agreed) or 'those who agreed'}: {reason}."
        )


def _named(parties: Collection[str]) -> str:
    return ", ".join(f"'{party}'" for party in sorted(parties))


def _new_key() -> Any:
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

    return X25519PrivateKey.generate()
