"""No encryption at all, behind the same calls: for tests, for debugging, and to measure
what encryption costs.

Making a key warns. Ciphertexts say "plain", and ledgers report them as non-private.
"""

from __future__ import annotations

import math
import secrets
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from colonnade.core.cipher import NOT_ENCRYPTED, Encrypted
from colonnade.encryption.scheme import (
    StaysInProcess,
    check_capacity,
    checked_matrix,
    checked_values,
    checked_weights,
    key_id,
    key_to_bytes,
    names_sender,
    unwrap,
    wrap,
)
from colonnade.errors import WireError

CAPACITY = 2.0**52
"""Sums of products up to this size keep their last digits in float64."""

PRODUCT_ERROR = 2.0**-44
"""The error of a product in float64, relative to the sizes of its factors."""

TAG_BYTES = 8
"""Random bytes by which two keys differ."""


class PlainPublicKey:
    """A public key that encrypts nothing. A key for any use can do everything.

    See `scheme.PublicKey` for what the methods do.
    """

    scheme = NOT_ENCRYPTED
    capacity = CAPACITY
    error = 0.0

    def __init__(self, use: str, limit: float, tag: bytes) -> None:
        check_capacity(limit, CAPACITY, scheme=self.scheme, what="A value")
        self.use = use
        self.limit = limit
        self._tag = tag
        self.id = key_id(self.to_bytes())

    def to_bytes(self) -> bytes:
        return key_to_bytes(self, self._tag)

    def encrypt(self, values: Tensor, *, owner: str) -> Encrypted:
        exact = checked_values(values, self.limit, owner=owner, scheme=self.scheme)
        return self._wrap(exact, self.limit)

    @names_sender
    def add(self, *parts: Encrypted) -> Encrypted:
        """Add values of the same shape."""
        bound = sum(part.bound for part in parts)
        check_capacity(bound, CAPACITY, scheme=self.scheme, what="The sum")
        first, *others = parts
        total = self.read(first)
        for part in others:
            if part.shape != first.shape:
                raise WireError(
                    f"Ciphertexts of shapes {list(first.shape)} and"
                    f" {list(part.shape)} cannot be added."
                )
            total += self.read(part)
        return self._wrap(total, bound)

    def add_groups(
        self, parts: Sequence[Encrypted], groups: Sequence[Sequence[int]]
    ) -> Iterator[Encrypted]:
        for group in groups:
            yield self.add(*(parts[place] for place in group))

    @names_sender
    def product(self, x: Encrypted, matrix: Tensor, *, owner: str) -> Encrypted:
        """Multiply a vector by a matrix, with the checks that encryption would need."""
        exact = checked_matrix(
            matrix,
            x,
            vector_size=math.prod(x.shape),
            largest_sum=CAPACITY / x.bound,
            owner=owner,
            scheme=self.scheme,
        )
        return self._wrap(self.read(x).flatten() @ exact, CAPACITY)

    def product_error(self, matrix: Tensor) -> float:
        """Bound the rounding error of `product`."""
        if not matrix.numel():
            return 0.0
        largest_column = float(matrix.abs().sum(0).max())
        return PRODUCT_ERROR * (largest_column + 1) * self.limit

    @names_sender
    def combine(self, weights: Tensor, rows: Encrypted, *, owner: str) -> Encrypted:
        """Add weighted rows, with the checks that encryption would need."""
        exact = checked_weights(
            weights,
            rows,
            largest=CAPACITY,
            largest_sum=CAPACITY / rows.bound,
            owner=owner,
            scheme=self.scheme,
        )
        return self._wrap(exact @ self.read(rows), CAPACITY)

    @names_sender
    def blind(self, x: Encrypted) -> tuple[Encrypted, None]:
        """Mark values as blinded. Values that are not encrypted need no mask."""
        body = unwrap(self, x)
        return wrap(self, x.shape, "values", x.bound, body, "blinded"), None

    @names_sender
    def unblind(self, opened: Encrypted, mask: Any) -> Tensor:  # noqa: ARG002
        return self.read(opened)

    def read(self, x: Encrypted) -> Tensor:
        """The values, which are not encrypted."""
        values = np.frombuffer(unwrap(self, x, "values"), dtype=np.float64)
        return torch.from_numpy(values.copy()).reshape(x.shape)

    def _wrap(self, values: Tensor, bound: float) -> Encrypted:
        body = values.numpy().tobytes()
        return wrap(self, tuple(values.shape), "values", bound, body)


class PlainSecretKey(StaysInProcess):
    """A secret key that hides nothing: everybody can read what it reads.

    See `scheme.SecretKey` for what the methods do.
    """

    __slots__ = ("public",)

    def __init__(self, use: str, limit: float) -> None:
        warnings.warn(
            'The encryption scheme "plain" encrypts nothing: whoever sees the bytes'
            ' reads the values. It is for tests and debugging; use "ckks" or "bfv".',
            stacklevel=3,
        )
        self.public = PlainPublicKey(use, limit, secrets.token_bytes(TAG_BYTES))

    def encrypt(self, values: Tensor, *, owner: str) -> Encrypted:
        return self.public.encrypt(values, owner=owner)

    @names_sender
    def decrypt(self, x: Encrypted) -> Tensor:
        return self.public.read(x)

    @names_sender
    def open_blinded(self, x: Encrypted) -> Encrypted:
        unwrap(self.public, x)  # checks the key and the checksum
        if x.hides != "blinded":
            raise WireError("This ciphertext is under no mask; decrypt it.")
        return x
