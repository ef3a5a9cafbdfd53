"""Pairwise masks: parties add up numbers, and whoever collects their shares sees the
sum and nothing else.

Bonawitz et al., Practical Secure Aggregation for Privacy-Preserving Machine Learning,
CCS 2017 (ePrint 2017/281), Section 4, without its recovery from drop-outs: a vertical
federation cannot go on without a party's columns anyway.

    party k:    s_k = round(2^32 o_k) + sum_{j > k} m_kj - sum_{j < k} m_kj     mod 2^64
    collector:  sum_k s_k = sum_k round(2^32 o_k)           because the masks cancel

The mask m_kj is AES-256's keystream in counter mode. Its key is HMAC-SHA256 of the
round, the batch and all that the party's model was told to follow (`Outbox.follow`),
under a secret that only k and j can derive (X25519, then HKDF-SHA256 bound to
everybody's public keys). A party counts its rounds itself, one for each share, so
nobody can make it use a mask twice. The masks do not cancel if a collector asks two
parties for different rows in one round, or told them different things before.

A value may be up to 2^20 in size, and there may be 2047 parties, so that no sum wraps
around: the sum of M parties is exact to M 2^-33. A sum of shares that do not belong
together is uniform over the ring. Almost none of the ring is within M 2^20, so such a
sum is recognised and refused.

To whoever lacks the keys, a share is uniform, whatever its value. A collector that
colludes with all parties but two learns the sum of those two. Public keys travel
through the collector, which is taken to be honest but curious: an active collector
could hand out keys of its own and unmask a party. Only keys that arrive over
connections authenticated between the parties would prevent that.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Generator, Tensor

from colonnade.core.party import Refused
from colonnade.core.release import CODECS, Packed, Released, Scalar
from colonnade.errors import BoundaryError

SCALE = 2.0**32
"""The fixed-point number of a value is the value times this."""

LIMIT = 2.0**20
"""The largest size of a value that can be masked."""

MOST_PARTIES = 2047
"""With values up to LIMIT, times SCALE, the sum of so many stays below 2^63."""

ELEMENT_BYTES = 8
KEY_BYTES = 32
AGREEMENT_DIGITS = 16
"""Hexadecimal digits by which shares tell the agreement that their masks come from."""

Ring = NDArray[np.int64]
"""Integers modulo 2^64: sums of int64 wrap around as they must."""


@dataclass(frozen=True, slots=True)
class Shares:
    """The codec of masked shares: integers modulo 2^64.

    Args:
        name: The codec's name on the wire.
        masks: The party's own masks. A collector has none, and can only decode.
        batch: The batch that the masks are for.
    """

    name: str = "masked"
    masks: Masks | None = None
    batch: str | None = None

    def encode(
        self,
        tensor: Tensor,
        generator: Generator,  # noqa: ARG002 - masks come from keys
    ) -> Packed:
        """Mask values, if this is the codec of a party that has masks."""
        if self.masks is None:
            raise BoundaryError(
                "Only a party that agreed on keys can mask; release through its own"
                " Masks."
            )
        return self.masks.share(tensor, self.batch)

    def decode(self, packed: Packed) -> Tensor:
        """Read a share, which a stranger may have sent, as int64. It stays masked."""
        count = math.prod(packed.shape)
        has_size = len(packed.data) == ELEMENT_BYTES * count
        if packed.dtype != "int64" or not has_size:
            raise BoundaryError(
                f"A share of shape {list(packed.shape)} does not have"
                f" {len(packed.data)} bytes."
            )
        if not count:
            return torch.empty(packed.shape, dtype=torch.int64)
        elements = torch.frombuffer(bytearray(packed.data), dtype=torch.int64)
        return elements.reshape(packed.shape)


SHARES = Shares()
CODECS[SHARES.name] = SHARES


class PairKey(NamedTuple):
    """The secret that a party shares with one other party.

    One of the two adds the masks made from it, and the other subtracts them.
    """

    secret: bytes
    adds: bool


class Masks:
    """One party's keys, which stay in memory, and the seal on its releases.

    Args:
        owner: The party's name.
    """

    def __init__(self, owner: str) -> None:
        self.owner = owner
        self._private_key: Any = fresh_private_key()
        self._pair_keys: list[PairKey] = []
        self._agreement = ""
        self._round = 0

    def public_key(self) -> str:
        """Make a fresh public key, as hex, and forget all that was agreed before."""
        self._private_key = fresh_private_key()
        self._pair_keys = []
        return _hex(self._private_key)

    def agree(self, keys: Mapping[str, str]) -> None:
        """Derive a secret with every other party. A private key serves for this once.

        Args:
            keys: The public keys of all parties, by party, with this party's own.
        """
        # Forgotten first: if anything below is refused, nothing can leave.
        private_key = self._private_key
        self._private_key = None
        self._pair_keys = []
        if private_key is None or keys.get(self.owner) != _hex(private_key):
            raise Refused(
                "the agreed keys do not hold the last key it made; ask it for a public"
                " key first"
            )
        are_distinct = len(set(keys.values())) == len(keys)
        if not 2 <= len(keys) <= MOST_PARTIES or not are_distinct:
            raise Refused(
                f"masks need 2 to {MOST_PARTIES} parties with keys of their own; found"
                f" {len(keys)} parties"
            )
        agreement = json.dumps(dict(keys), sort_keys=True)
        pair_keys = []
        for other in sorted(keys.keys() - {self.owner}):
            shared = _exchanged(private_key, other, keys[other])
            pair = json.dumps([agreement, *sorted((self.owner, other))])
            secret = _derived(shared, pair.encode())
            pair_keys.append(PairKey(secret, adds=self.owner < other))
        self._pair_keys = pair_keys
        self._round = 0
        digest = hashlib.sha256(agreement.encode()).hexdigest()
        self._agreement = digest[:AGREEMENT_DIGITS]

    def on(self, batch: str | None) -> Shares:
        """The codec that masks a release for this batch.

        Without keys it is refused here, before the owner's mechanism spends anything.
        """
        self._expect_keys()
        return Shares(masks=self, batch=batch)

    def share(self, tensor: Tensor, batch: str | None) -> Packed:
        """Mask values, as this party's share of a sum.

        The masks of a round are used up, whether or not the share ever arrives.
        """
        self._expect_keys()
        values = tensor.detach().cpu().double()
        fits = bool((values.abs() <= LIMIT).all())  # false for NaN, too
        if not fits:
            raise Refused(
                f"'{self.owner}' has a value that does not fit: a secure sum takes"
                f" finite values from {-LIMIT:.0f} to {LIMIT:.0f}. If training"
                " diverges, lower learning_rate"
            )
        fixed_point = (values * SCALE).round().to(torch.int64).contiguous()
        self._round += 1
        share = fixed_point.numpy().reshape(-1) + self._mask(values.numel(), batch)
        settings: dict[str, Scalar] = {"round": self._round, "keys": self._agreement}
        shape = tuple(tensor.shape)
        return Packed(SHARES.name, share.tobytes(), shape, "int64", settings)

    def _expect_keys(self) -> None:
        if not self._pair_keys:
            raise Refused(
                f"'{self.owner}' has not agreed on keys with the others, and releases"
                " nothing unmasked"
            )

    def _mask(self, count: int, batch: str | None) -> Ring:
        """The sum of this round's masks with all other parties."""
        message = f"{self._round}/{batch or ''}".encode()
        total = np.zeros(count, dtype="<i8")
        for pair_key in self._pair_keys:
            key = hmac.digest(pair_key.secret, message, "sha256")
            combine = np.add if pair_key.adds else np.subtract
            combine(total, _keystream(key, count), out=total)
        return total


def one_round(
    shares: Mapping[str, Released], agreed: Collection[str]
) -> dict[str, Tensor]:
    """Check that all shares of a sum are from one round, and give their tensors.

    Args:
        shares: The shares, by party.
        agreed: The parties that agreed on keys.
    """
    _check_complete(shares, agreed)
    settings = {}
    for party, share in shares.items():
        settings[party] = dict(share.packed.settings) if share.packed else {}
    expected = next(iter(settings.values()))
    if any(other != expected for other in settings.values()):
        rounds = [
            f"'{party}' {about.get('round', 'unmasked')}"
            for party, about in settings.items()
        ]
        raise BoundaryError(
            f"A secure sum takes shares of one round; found {', '.join(rounds)}. Agree"
            " on keys again."
        )
    return {party: share.tensor for party, share in shares.items()}


def open_sum(shares: Mapping[str, Tensor], agreed: Collection[str]) -> Tensor:
    """Add up the shares. The masks cancel, which leaves the sum of the values.

    Args:
        shares: The shares of one round, by party.
        agreed: The parties that agreed on keys.

    Returns:
        The sum, in float64.
    """
    _check_complete(shares, agreed)
    for party, share in shares.items():
        if share.dtype != torch.int64:
            raise BoundaryError(
                f"A secure sum takes masked shares; '{party}' sent {share.dtype}."
            )
    total = torch.stack(list(shares.values())).sum(0).double() / SCALE
    # If masks are left over the total is uniform, and most certainly far too large.
    if not bool((total.abs() <= len(agreed) * LIMIT).all()):
        raise BoundaryError(
            f"The shares of {_quoted(shares)} do not add up: masks are left over. They"
            " must be all shares of one round, unchanged, of the same rows, and of"
            " models told the same. Resume from the last checkpoint."
        )
    return total


def _check_complete(shares: Mapping[str, Any], agreed: Collection[str]) -> None:
    """Raise unless exactly the parties that agreed have sent a share.

    Without one of their shares, a sum is noise.
    """
    missing = set(agreed) - shares.keys()
    unexpected = shares.keys() - set(agreed)
    if shares and not missing and not unexpected:
        return
    if missing:
        reason = f"the share of {_quoted(missing)} is missing"
    elif unexpected:
        reason = f"{_quoted(unexpected)} did not agree on keys"
    else:
        reason = "nobody has agreed on keys"
    raise BoundaryError(
        "A secure sum needs a share of exactly"
        f" {_quoted(agreed) or 'those who agreed'}: {reason}."
    )


def _quoted(parties: Collection[str]) -> str:
    return ", ".join(f"'{party}'" for party in sorted(parties))


def fresh_private_key() -> Any:
    """Draw a private key for X25519."""
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

    return X25519PrivateKey.generate()


def _hex(private_key: Any) -> str:
    """The public key of a private key, as hex."""
    return str(private_key.public_key().public_bytes_raw().hex())


def _exchanged(private_key: Any, other: str, other_key: str) -> bytes:
    """The secret that a private key has in common with another party's public key."""
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PublicKey

    try:
        public_key = X25519PublicKey.from_public_bytes(bytes.fromhex(other_key))
        return bytes(private_key.exchange(public_key))
    except ValueError:
        raise Refused(
            f"the public key of '{other}' is not an X25519 key: {other_key[:80]!r}"
        ) from None


def _derived(shared: bytes, purpose: bytes) -> bytes:
    """A key for one purpose, derived from a shared secret (HKDF-SHA256)."""
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

    info = b"colonnade masks" + purpose
    hkdf = HKDF(hashes.SHA256(), KEY_BYTES, salt=None, info=info)
    return bytes(hkdf.derive(shared))


def _keystream(key: bytes, count: int) -> Ring:
    """Pseudo-random elements of the ring (AES-256 in counter mode)."""
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

    # A key serves for one mask only, so the counter may start at 0.
    cipher = Cipher(algorithms.AES(key), modes.CTR(bytes(16)))
    stream = cipher.encryptor().update(bytes(ELEMENT_BYTES * count))
    return np.frombuffer(stream, dtype="<i8")
