"""What an encryption scheme offers, and what all schemes share: ranges, checksums and
errors.

A public key computes with what it encrypted; only its secret key reads it. Keys are
made for one use:

    sums           add ciphertexts and plain values: totals over parties
    products       also: times plain values, and an encrypted vector times a plain matrix
    combinations   encrypted rows, weighted by plain numbers and added
    columns        encrypted values of many rows, [rows, outputs], times few plain columns; bfv has it alone

A secret key stays in the process that made it: it has no wire form, no file form, and
cannot be copied or pickled.

A key notices damaged bytes, a ciphertext under another key, scheme or layout, a wrong
shape, and values that could overflow. It does not notice a peer who computes something
else than agreed and writes a fitting checksum: these schemes are malleable by design,
so whoever relays ciphertexts must be trusted to add what it was asked to add.
"""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from types import ModuleType
from typing import Any, NoReturn, ParamSpec, Protocol, TypeVar

import torch
from torch import Tensor

from colonnade.core.cipher import Encrypted
from colonnade.errors import BoundaryError, DataError, WireError

P = ParamSpec("P")
T = TypeVar("T")
USES = ("sums", "products", "combinations")
DIGEST = 8
SENT = "It was sent by"


class Named(Protocol):
    """A key, as a ciphertext names it."""

    scheme: str
    id: str


class PublicKey(Protocol):
    """Encrypts, and computes with encrypted values, which are never changed in place."""

    scheme: str
    use: str
    limit: float  # of each value that is encrypted
    capacity: float  # of whatever is decrypted
    # the largest absolute error of a value that was encrypted and decrypted
    error: float
    id: str

    def to_bytes(self) -> bytes: ...

    def encrypt(self, values: Tensor, *, owner: str) -> Encrypted: ...

    def add(self, *parts: Encrypted) -> Encrypted:
        """Their sum; errors add up."""
        ...

    def add_groups(
        self, parts: Sequence[Encrypted], groups: Sequence[Sequence[int]]
    ) -> Iterator[Encrypted]:
        """The sum of each group of the parts, by their numbers; faster than adding each
        group by itself."""
        ...

    def product(self, x: Encrypted, matrix: Tensor, *, owner: str) -> Encrypted:
        """x, n values in any shape, times matrix [n, k]; for products. For columns x is
        [n, outputs], and the result [outputs, k]."""
        ...

    def product_error(self, matrix: Tensor) -> float:
        """The largest absolute error of `product`."""
        ...

    def combine(self, weights: Tensor, rows: Encrypted, *, owner: str) -> Encrypted:
        """weights [n] times rows [n, k]; for combinations."""
        ...

    def blind(self, x: Encrypted) -> tuple[Encrypted, Any]:
        """A product under a random mask, which hides it even from the secret key's
        holder; and the mask."""
        ...

    def unblind(self, opened: Encrypted, mask: Any) -> Tensor:
        """The values in what `SecretKey.open_blinded` gave."""
        ...


class SecretKey(Protocol):
    """Decrypts. Whoever holds it made it."""

    @property
    def public(self) -> PublicKey: ...

    def encrypt(self, values: Tensor, *, owner: str) -> Encrypted:
        """Encrypt as the public key does, but as somebody who can also read it."""
        ...

    def decrypt(self, x: Encrypted) -> Tensor: ...

    def open_blinded(self, x: Encrypted) -> Encrypted:
        """Take the encryption off what is under a mask; only the mask's maker can read
        the result."""
        ...


def refusing(method: Callable[P, T]) -> Callable[P, T]:
    """Decorate a method that computes with ciphertexts of others: whatever is wrong
    with one, also what native code makes of it, becomes an error of ours that names who
    sent it."""

    @functools.wraps(method)
    def computed(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return method(*args, **kwargs)
        except (
            WireError,
            ArithmeticError,
            LookupError,
            RuntimeError,
            TypeError,
            ValueError,
        ) as error:
            given = [
                value
                for arg in args
                for value in (arg if isinstance(arg, (list, tuple)) else [arg])
            ]
            senders = sorted(
                {
                    repr(x.sender[:80])
                    for x in given
                    if isinstance(x, Encrypted) and x.sender
                }
            )
            text = (
                str(error)
                if isinstance(error, WireError)
                else f"Ciphertexts do not fit ({type(error).__name__})."
            )
            if senders and SENT not in text:
                text += f" {SENT} {', '.join(senders)}."
            raise WireError(text) from None

    return computed


def stays(self: object, *_: object) -> NoReturn:
    """Refuse every way to copy, pickle or save a secret key."""
    raise BoundaryError(
        f"A {type(self).__name__} does not leave the process that made it.\n"
        "    Send its public key, and let its holder decrypt."
    )


def need_tenseal() -> ModuleType:
    """TenSEAL's binding of Microsoft SEAL."""
    import tenseal.sealapi as sealapi

    module: ModuleType = sealapi
    return module


def within(
    values: Tensor, limit: float, *, owner: str, scheme: str, what: str = "encrypt"
) -> Tensor:
    """The values as float64, or an error where one is too large. The error may travel,
    so it tells none of them."""
    flat = values.detach().to(torch.float64).cpu()
    if not bool((flat.abs() <= limit).all()):
        raise DataError(
            f"'{owner}' has a value that it cannot {what}: with these {scheme} keys it"
            f" must be a number from {-limit:g} to {limit:g}, else it would come out as"
            " another one. Scale or clip it, or make keys for another limit."
        )
    return flat


def fits(bound: float, capacity: float, *, scheme: str, what: str) -> float:
    """The bound of something about to be computed, or an error before it could
    overflow."""
    if not bound <= capacity:
        raise DataError(
            f"{what} could reach {bound:g}, and {scheme} with these keys holds values"
            f" up to {capacity:g}. Make keys with a smaller limit per value, or add"
            " fewer."
        )
    return bound


def wrap(
    key: Named,
    shape: tuple[int, ...],
    layout: str,
    bound: float,
    body: bytes,
    hides: str = "",
) -> Encrypted:
    """Bytes, and their description, with a checksum over both."""
    hides = hides or "encrypted"
    return Encrypted(
        key.scheme,
        key.id,
        shape,
        layout,
        bound,
        _digest(key.id, shape, layout, bound, hides, body) + body,
        hides,
    )


def unwrap(key: Named, x: Encrypted, *layouts: str) -> bytes:
    """The bytes inside, if they are undamaged, made with this key, and laid out in one
    of these ways."""
    if (x.scheme, x.key) != (key.scheme, key.id):
        raise WireError(
            f"A ciphertext of {x.scheme} key {x.key[:16]} cannot be used with"
            f" {key.scheme} key {key.id}. Whoever made it must encrypt with this public"
            " key."
        )
    if layouts and x.layout not in layouts:
        raise WireError(
            f"A ciphertext arranged as {x.layout[:32]!r} cannot be used here; it must"
            f" be {layouts[0]!r}."
        )
    body = x.data[DIGEST:]
    if x.data[:DIGEST] != _digest(x.key, x.shape, x.layout, x.bound, x.hides, body):
        raise WireError(
            f"A ciphertext of {x.scheme} key {x.key} is damaged: its checksum does not"
            " fit."
        )
    return body


def _digest(
    key: str, shape: tuple[int, ...], layout: str, bound: float, hides: str, body: bytes
) -> bytes:
    description = json.dumps([key, list(shape), layout, bound, hides]).encode()
    return hashlib.blake2b(description + b"\0" + body, digest_size=DIGEST).digest()


def fingerprint(data: bytes) -> str:
    """A key's id."""
    return hashlib.blake2b(data, digest_size=8).hexdigest()
