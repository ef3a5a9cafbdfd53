"""A signed statement of how far a store has come, and the key that signs it.

A hash chain cannot show that a whole store is an older copy: the older copy's chain is
right, too. A witness can, if it lies where the copy does not: the owner says "my store
had come to serial 812, with this chain", and whoever keeps that can show it later.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import (
    Ed25519PrivateKey,
    Ed25519PublicKey,
)

from colonnade.errors import StoreError
from colonnade.store.chain import CHAIN_BYTES
from colonnade.store.packing import to_json

CONTEXT = b"colonnade/witness/1\0"
"""Begins all that the key signs, so that no signature can be used for anything else."""

STORE_ID_BYTES = 16
KEY_BYTES = 32
SIGNATURE_BYTES = 64
LONGEST_WITNESS = 512
"""Characters. A witness is a few numbers, and it comes from another organisation."""

LARGEST_NUMBER = 2**62


@dataclass(frozen=True)
class Witness:
    """How far a store had come, signed by its owner.

    Args:
        store: The store's id.
        serial: Of the newest entry.
        charges: How often the person who was released most often can have been
            released up to there. It says what a lost entry can have cost.
        chain: Of the newest entry, in hexadecimal digits.
        signature: By the owner's key, in hexadecimal digits.
    """

    store: str
    serial: int
    charges: int
    chain: str
    signature: str

    def to_text(self) -> str:
        """The witness as one line of JSON."""
        return to_json(asdict(self))

    @classmethod
    def from_text(cls, text: str) -> Witness:
        """Read a witness that another organisation sent; StoreError where it is none.

        The signature is not checked here: `is_signed_by` does that.
        """
        try:
            if len(text) > LONGEST_WITNESS:
                raise ValueError("it is too long")
            fields = json.loads(text)
            witness = cls(
                store=_hexadecimal(fields["store"], STORE_ID_BYTES),
                serial=_number(fields["serial"]),
                charges=_number(fields["charges"]),
                chain=_hexadecimal(fields["chain"], CHAIN_BYTES),
                signature=_hexadecimal(fields["signature"], SIGNATURE_BYTES),
            )
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise StoreError(
                "What came as the witness of a store is none"
                f" ({type(error).__name__}). Ask its owner for it again."
            ) from None
        return witness

    def is_signed_by(self, public_keys: Collection[str]) -> bool:
        """Whether the holder of one of these keys signed this witness."""
        return is_signed(self._statement(), self.signature, public_keys)

    def _statement(self) -> str:
        return to_json([self.store, self.serial, self.charges, self.chain])


class Signer:
    """The owner's key, which signs witnesses of its own store."""

    def __init__(self, key: Ed25519PrivateKey) -> None:
        self._key = key
        self.public_key: str = key.public_key().public_bytes_raw().hex()

    @classmethod
    def new(cls) -> Signer:
        """Make a key."""
        return cls(Ed25519PrivateKey.generate())

    @classmethod
    def read(cls, path: Path) -> Signer:
        """Read the key that `to_pem` wrote."""
        cure = (
            "Put the file back. Without it, `recover` with new_key=True makes another"
            " key and writes down that it did."
        )
        try:
            key = serialization.load_pem_private_key(path.read_bytes(), password=None)
        except FileNotFoundError:
            raise StoreError(
                f"{path}, the key that signs witnesses, is gone. {cure}"
            ) from None
        except (OSError, ValueError, TypeError, UnsupportedAlgorithm) as error:
            raise StoreError(
                f"{path}, the key that signs witnesses, cannot be read"
                f" ({type(error).__name__}). {cure}"
            ) from None
        if not isinstance(key, Ed25519PrivateKey):
            raise StoreError(
                f"{path} is not a key of the kind that signs witnesses. {cure}"
            )
        return cls(key)

    def to_pem(self) -> bytes:
        """The key as the text of a file."""
        return self._key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )

    def sign(self, statement: str) -> str:
        """A signature of a statement about the store, in hexadecimal digits."""
        return self._key.sign(CONTEXT + statement.encode()).hex()

    def witness(self, store: str, serial: int, charges: int, chain: bytes) -> Witness:
        """Sign how far a store has come."""
        unsigned = Witness(store, serial, charges, chain.hex(), "")
        return replace(unsigned, signature=self.sign(unsigned._statement()))


def is_signed(statement: str, signature: str, public_keys: Collection[str]) -> bool:
    """Whether the holder of one of these keys signed a statement."""
    return any(_verifies(key, signature, statement) for key in public_keys)


def _verifies(public_key: str, signature: str, statement: str) -> bool:
    try:
        key = Ed25519PublicKey.from_public_bytes(bytes.fromhex(public_key))
        key.verify(bytes.fromhex(signature), CONTEXT + statement.encode())
    except (InvalidSignature, ValueError):
        return False
    return True


def check_public_key(text: str) -> None:
    """Refuse a text that is not a public key of the kind that signs witnesses."""
    try:
        Ed25519PublicKey.from_public_bytes(bytes.fromhex(text))
    except (ValueError, TypeError):
        raise StoreError(
            f"{text[:80]!r} is not the public key of a store: it has {KEY_BYTES} bytes,"
            " in hexadecimal digits. Ask the store's owner for it again."
        ) from None


def _hexadecimal(value: Any, size: int) -> str:
    if not isinstance(value, str) or value != bytes.fromhex(value).hex():
        raise ValueError("not hexadecimal digits")
    if len(value) != 2 * size:
        raise ValueError("of another length")
    return value


def _number(value: Any) -> int:
    if type(value) is not int or not 0 <= value < LARGEST_NUMBER:
        raise ValueError("not a number")
    return value
