"""The calls that every encryption scheme offers, and the checks that all schemes share.

Anybody can compute with encrypted values under a public key. Only the holder of its
secret key can read them. Keys are made for one use:

    sums           add ciphertexts and plain values: totals over parties
    products       also multiply by plain values, and a vector by a plain matrix
    combinations   weight encrypted rows by plain numbers, and add them
    columns        multiply encrypted values [rows, outputs] by plain columns (bfv)

A secret key stays in the process that made it. It has no form as bytes or as a file,
and cannot be copied or pickled.

A key notices damaged bytes, a ciphertext of another key, scheme or layout, a wrong
shape, and values that could overflow. It does not notice a peer who computes something
else than agreed and writes a fitting checksum, because these schemes are malleable by
design. So whoever relays ciphertexts must be trusted to add what it was asked to add.
"""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NoReturn, ParamSpec, Protocol, TypeVar

import torch
from torch import Tensor

from colonnade.core.cipher import Encrypted
from colonnade.errors import BoundaryError, DataError, WireError

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")

USES = ("sums", "products", "combinations")
"""The uses of keys that every scheme has."""

CHECKSUM_BYTES = 8
KEY_ID_BYTES = 8
LENGTH_BYTES = 8
"""Bytes that tell the length of a part, in `join_parts`."""


class Key(Protocol):
    """A key, as a ciphertext names it."""

    scheme: str
    id: str


class PublicKey(Protocol):
    """Encrypts values, and computes with encrypted ones without changing them."""

    scheme: str
    use: str
    limit: float
    """The largest size of a value that is encrypted."""
    capacity: float
    """The largest size of a value that is decrypted."""
    error: float
    """The largest absolute error of a value that was encrypted and decrypted."""
    id: str

    def to_bytes(self) -> bytes: ...

    def encrypt(self, values: Tensor, *, owner: str) -> Encrypted:
        """Encrypt values. An error about them names their owner."""
        ...

    def add(self, *parts: Encrypted) -> Encrypted:
        """Add ciphertexts of the same shape. Their errors add up."""
        ...

    def add_groups(
        self, parts: Sequence[Encrypted], groups: Sequence[Sequence[int]]
    ) -> Iterator[Encrypted]:
        """Add several groups of ciphertexts, which is faster than one by one.

        Args:
            parts: The ciphertexts.
            groups: For each sum, the places in `parts` of its terms.
        """
        ...

    def product(self, x: Encrypted, matrix: Tensor, *, owner: str) -> Encrypted:
        """Multiply encrypted values by a plain matrix.

        Args:
            x: n values in any shape. With keys for columns, [n, outputs].
            matrix: [n, k]. The product has shape [k], or [outputs, k] for columns.
            owner: Who holds the matrix, for errors.
        """
        ...

    def product_error(self, matrix: Tensor) -> float:
        """Bound the absolute error of `product` with this matrix."""
        ...

    def combine(self, weights: Tensor, rows: Encrypted, *, owner: str) -> Encrypted:
        """Add encrypted rows [n, k], each times its plain weight.

        Args:
            weights: [n].
            rows: Encrypted values [n, k], with keys for combinations.
            owner: Who holds the weights, for errors.
        """
        ...

    def blind(self, x: Encrypted) -> tuple[Encrypted, Any]:
        """Hide a product under a random mask, even from the secret key's holder.

        Returns the hidden product, and the mask, which stays with the caller.
        """
        ...

    def unblind(self, opened: Encrypted, mask: Any) -> Tensor:
        """Take the mask off the answer of `SecretKey.open_blinded`."""
        ...


class SecretKey(Protocol):
    """Decrypts. Only the process that made the key has it."""

    @property
    def public(self) -> PublicKey: ...

    def encrypt(self, values: Tensor, *, owner: str) -> Encrypted:
        """Encrypt as the public key does."""
        ...

    def decrypt(self, x: Encrypted) -> Tensor: ...

    def open_blinded(self, x: Encrypted) -> Encrypted:
        """Take the encryption off values under a mask.

        Only the mask's maker can read the result.
        """
        ...


class StaysInProcess:
    """Refuses every way to copy, pickle or save an object, such as a secret key."""

    __slots__ = ()

    def _refuse(self, *_: object) -> NoReturn:
        raise BoundaryError(
            f"A {type(self).__name__} does not leave the process that made it.\n"
            "    Send its public key, and let its holder decrypt."
        )

    __copy__ = __deepcopy__ = __getstate__ = __reduce__ = __reduce_ex__ = _refuse


def names_sender(
    method: Callable[Arguments, Result],
) -> Callable[Arguments, Result]:
    """Decorate a method that computes with other parties' ciphertexts.

    Whatever a hostile ciphertext causes, in native code too, becomes a WireError that
    names who sent it.
    """
    failures = (
        WireError,
        ArithmeticError,
        LookupError,
        RuntimeError,
        TypeError,
        ValueError,
    )

    @functools.wraps(method)
    def guarded(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        try:
            return method(*args, **kwargs)
        except failures as error:
            raise WireError(_with_senders(error, _senders(args))) from None

    return guarded


def _senders(arguments: Sequence[Any]) -> list[str]:
    """The senders of the ciphertexts among the arguments, also of those in a list."""
    senders: set[str] = set()
    for argument in arguments:
        values = argument if isinstance(argument, (list, tuple)) else [argument]
        for value in values:
            if isinstance(value, Encrypted) and value.sender:
                senders.add(repr(value.sender[:80]))
    return sorted(senders)


def _with_senders(error: Exception, senders: Sequence[str]) -> str:
    """The text of an error, with the senders, unless an inner method named them."""
    if isinstance(error, WireError):
        text = str(error)
    else:
        text = f"Ciphertexts do not fit ({type(error).__name__})."
    marker = "It was sent by"
    if not senders or marker in text:
        return text
    return f"{text} {marker} {', '.join(senders)}."


def checked_values(
    values: Tensor, limit: float, *, owner: str, scheme: str, action: str = "encrypt"
) -> Tensor:
    """Give values as float64 on the CPU, or raise where one is too large.

    The error may travel to other parties, so it does not tell the value.

    Args:
        values: The values.
        limit: The largest size of a value. NaN is larger than any limit.
        owner: Who holds the values, for the error.
        scheme: The scheme of the keys, for the error.
        action: What the owner cannot do with the value, for the error.
    """
    exact = values.detach().to(torch.float64).cpu()
    if not bool((exact.abs() <= limit).all()):
        raise DataError(
            f"'{owner}' has a value that it cannot {action}: with these {scheme} keys"
            f" it must be a number from {-limit:g} to {limit:g}, else it would come out"
            " as another one. Scale or clip it, or make keys for another limit."
        )
    return exact


def checked_matrix(
    matrix: Tensor,
    x: Encrypted,
    *,
    vector_size: int,
    largest_sum: float,
    owner: str,
    scheme: str,
) -> Tensor:
    """Give a matrix as float64, checked to fit the encrypted values that it multiplies.

    Args:
        matrix: The plain matrix.
        x: The encrypted values.
        vector_size: How many values are multiplied by a column of the matrix.
        largest_sum: The largest sum of a column's sizes with which nothing overflows.
        owner: Who holds the matrix, for errors.
        scheme: The scheme of the keys, for errors.
    """
    if vector_size != len(matrix):
        raise WireError(
            f"Encrypted values of shape {list(x.shape)} do not fit a matrix with"
            f" {len(matrix)} rows."
        )
    exact = matrix.detach().to("cpu", torch.float64)
    _check_factors(exact, largest_sum, owner, scheme, "a column of a matrix")
    return exact


def checked_weights(
    weights: Tensor,
    rows: Encrypted,
    *,
    largest: float,
    largest_sum: float,
    owner: str,
    scheme: str,
) -> Tensor:
    """Give weights as float64, checked to fit the encrypted rows that they multiply.

    Args:
        weights: The plain weights.
        rows: The encrypted rows.
        largest: The largest size of a weight.
        largest_sum: The largest sum of the weights' sizes with which nothing overflows.
        owner: Who holds the weights, for errors.
        scheme: The scheme of the keys, for errors.
    """
    exact = checked_values(
        weights, largest, owner=owner, scheme=scheme, action="weigh by"
    )
    if tuple(exact.shape) != rows.shape[:1]:
        raise WireError(
            f"{exact.numel()} weights do not fit {rows.shape[0]} encrypted rows."
        )
    _check_factors(exact, largest_sum, owner, scheme, "weights")
    return exact


def _check_factors(
    factors: Tensor, largest_sum: float, owner: str, scheme: str, what: str
) -> None:
    """Raise if a product could overflow, without telling the factors."""
    sums = factors.abs().sum(0)
    if not bool((sums <= largest_sum).all()):  # also for NaN
        raise DataError(
            f"'{owner}' cannot multiply by {what} whose absolute values add up to more"
            f" than {largest_sum:g}: with these {scheme} keys the product could come"
            " out as another one. Scale the factors, or make keys for a smaller limit."
        )


def check_capacity(bound: float, capacity: float, *, scheme: str, what: str) -> None:
    """Raise before something is computed that could overflow.

    Args:
        bound: The largest size that the result could have.
        capacity: The largest size that can be decrypted.
        scheme: The scheme of the keys, for the error.
        what: The name of the result, for the error: "The sum".
    """
    if not bound <= capacity:
        raise DataError(
            f"{what} could reach {bound:g}, and {scheme} with these keys holds values"
            f" up to {capacity:g}. Make keys with a smaller limit per value, or add"
            " fewer."
        )


def wrap(
    key: Key,
    shape: tuple[int, ...],
    layout: str,
    bound: float,
    body: bytes,
    hides: str = "encrypted",
) -> Encrypted:
    """Make an `Encrypted` of a scheme's own bytes.

    A checksum over the bytes and their description comes first in its data.
    """
    checksum = _checksum(key.id, shape, layout, bound, hides, body)
    return Encrypted(key.scheme, key.id, shape, layout, bound, checksum + body, hides)


def unwrap(key: Key, x: Encrypted, *layouts: str) -> bytes:
    """The scheme's own bytes inside an `Encrypted`, checked.

    Args:
        key: The key that must have made them.
        x: The ciphertext, perhaps from a stranger.
        layouts: The layouts that can be used here. By default any.
    """
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
    checksum = x.data[:CHECKSUM_BYTES]
    body = x.data[CHECKSUM_BYTES:]
    if checksum != _checksum(x.key, x.shape, x.layout, x.bound, x.hides, body):
        raise WireError(
            f"A ciphertext of {x.scheme} key {x.key} is damaged: its checksum does not"
            " fit."
        )
    return body


def _checksum(
    key: str, shape: tuple[int, ...], layout: str, bound: float, hides: str, body: bytes
) -> bytes:
    description = json.dumps([key, list(shape), layout, bound, hides]).encode()
    content = description + b"\0" + body
    return hashlib.blake2b(content, digest_size=CHECKSUM_BYTES).digest()


def key_id(data: bytes) -> str:
    """The id of a public key that has these bytes."""
    return hashlib.blake2b(data, digest_size=KEY_ID_BYTES).hexdigest()


def key_to_bytes(key: PublicKey, *parts: bytes) -> bytes:
    """A public key as bytes: its scheme, use and limit, and then the scheme's parts."""
    description = {"scheme": key.scheme, "use": key.use, "limit": key.limit}
    return join_parts([json.dumps(description).encode(), *parts])


def join_parts(parts: Sequence[bytes]) -> bytes:
    """Join byte strings into one, each after its length."""
    joined = []
    for part in parts:
        joined.append(len(part).to_bytes(LENGTH_BYTES, "little"))
        joined.append(part)
    return b"".join(joined)


def split_parts(data: bytes) -> list[bytes]:
    """Split the result of `join_parts`. The bytes may come from a stranger."""
    parts = []
    position = 0
    while position < len(data):
        start = position + LENGTH_BYTES
        end = start + int.from_bytes(data[position:start], "little")
        if end > len(data):
            raise WireError(
                f"A ciphertext of {len(data)} bytes says that a part ends at {end}."
            )
        parts.append(data[start:end])
        position = end
    return parts
