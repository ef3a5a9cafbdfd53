"""Numbers that cross encrypted: opaque bytes here; `encryption` makes them, computes
with them and reads them.

    private tensor --mechanism--> what may be known --key.encrypt--> Encrypted      = Ciphertext, with its Receipt

`Encrypted` is to `Ciphertext` as a tensor is to `Released`: something a party computes
with, and the same thing after it went through an outbox. Only the latter fits into a
message. A secret key has no such form at all.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from torch import Tensor

from colonnade.errors import BoundaryError

if TYPE_CHECKING:
    from colonnade.core.receipt import Receipt

NOT_ENCRYPTED = "plain"
"""The scheme that encrypts nothing, for tests and debugging: what it makes is reported
as what it is, readable."""


@dataclass(frozen=True, slots=True)
class Encrypted:
    """Values that nobody can read without the secret key of `key`; `data` is the
    scheme's own business."""

    scheme: str
    key: str  # which public key it was made with, by its fingerprint
    shape: tuple[int, ...]
    layout: str  # how the scheme arranged the values
    # no value is larger, by the rules it was made under: data has no say in it
    bound: float
    data: bytes
    hides: str = "encrypted"  # or "blinded": not even the key's holder can read it
    # whose outbox it left, where it did: errors name it
    sender: str = field(default="", compare=False)

    @property
    def guarantee(self) -> str:
        return f"{self.hides} ({self.scheme})"


class Encrypting(Protocol):
    """What an outbox needs of a key."""

    def encrypt(self, values: Tensor, *, owner: str) -> Encrypted: ...


@runtime_checkable
class Reading(Encrypting, Protocol):
    """A secret key: who encrypts with it can read what comes of it, and nobody else."""

    def decrypt(self, x: Encrypted) -> Tensor: ...


class Ciphertext:
    """Encrypted values that went through an outbox. There is no public way to make one."""

    __slots__ = ("encrypted", "receipt")
    encrypted: Encrypted
    receipt: Receipt

    def __init__(self) -> None:
        raise BoundaryError(
            "A Ciphertext is made by an outbox, not by hand.\n    Encrypt through it:"
            ' self.outbox.encrypt(tensor, as_="distances", key=public_key).'
        )

    @classmethod
    def _seal(cls, encrypted: Encrypted, receipt: Receipt) -> Ciphertext:
        self = object.__new__(cls)
        object.__setattr__(self, "encrypted", encrypted)
        object.__setattr__(self, "receipt", receipt)
        return self

    @property
    def shape(self) -> tuple[int, ...]:
        return self.encrypted.shape

    def __setattr__(self, name: str, value: object) -> None:
        raise BoundaryError(f"A Ciphertext is final; its {name} cannot be replaced.")

    def __repr__(self) -> str:
        r = self.receipt
        return (
            f"Ciphertext({r.name!r} of {r.owner!r}, {list(self.shape)},"
            f" {self.encrypted.guarantee}, {r.bytes} bytes)"
        )
