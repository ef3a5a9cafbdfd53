"""No encryption at all, behind the same calls: for tests, for debugging, and to measure
what encryption costs.

It warns once, ciphertexts say "plain", and ledgers report what crossed as non-private.
"""

from __future__ import annotations

import json
import math
import secrets
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from colonnade.core.cipher import NOT_ENCRYPTED, Encrypted
from colonnade.encryption import seal
from colonnade.encryption.scheme import (
    USES,
    fingerprint,
    fits,
    refusing,
    stays,
    unwrap,
    within,
    wrap,
)
from colonnade.errors import WireError

CAPACITY = 2.0**52  # sums of products up to here keep their last digits in float64


class PlainPublicKey:
    """See `scheme.PublicKey`. Everything works with keys for any use."""

    scheme = NOT_ENCRYPTED
    capacity = CAPACITY
    error = 0.0
    uses = USES

    def __init__(self, use: str, limit: float, key: bytes) -> None:
        self.use = use
        self.limit = fits(limit, CAPACITY, scheme="plain", what="A value")
        self._key = key
        self.id = fingerprint(self.to_bytes())

    def to_bytes(self) -> bytes:
        about = json.dumps(
            {"scheme": self.scheme, "use": self.use, "limit": self.limit}
        ).encode()
        return seal.joined([about, self._key])

    def encrypt(self, values: Tensor, *, owner: str) -> Encrypted:
        return self._wrapped(
            within(values, self.limit, owner=owner, scheme="plain"), self.limit
        )

    @refusing
    def add(self, *parts: Encrypted) -> Encrypted:
        bound = fits(
            sum(part.bound for part in parts), CAPACITY, scheme="plain", what="The sum"
        )
        total = self._values(parts[0])
        for part in parts[1:]:
            if part.shape != parts[0].shape:
                raise WireError(
                    f"Ciphertexts of shapes {list(parts[0].shape)} and"
                    f" {list(part.shape)} cannot be added."
                )
            total += self._values(part)
        return self._wrapped(total, bound)

    def add_groups(
        self, parts: Sequence[Encrypted], groups: Sequence[Sequence[int]]
    ) -> Iterator[Encrypted]:
        return (self.add(*(parts[number] for number in group)) for group in groups)

    @refusing
    def product(self, x: Encrypted, matrix: Tensor, *, owner: str) -> Encrypted:
        if math.prod(x.shape) != len(matrix):
            raise WireError(
                f"Encrypted values of shape {list(x.shape)} do not fit a matrix with"
                f" {len(matrix)} rows."
            )
        what = "multiply by in a column"
        within(
            matrix.abs().sum(0),
            CAPACITY / x.bound,
            owner=owner,
            scheme="plain",
            what=what,
        )
        return self._wrapped(
            self._values(x).flatten() @ matrix.detach().to("cpu", torch.float64),
            CAPACITY,
        )

    def product_error(self, matrix: Tensor) -> float:
        """The error of float64 itself."""
        return (
            2.0**-44 * (float(matrix.abs().sum(0).max()) + 1) * self.limit
            if matrix.numel()
            else 0.0
        )

    @refusing
    def combine(self, weights: Tensor, rows: Encrypted, *, owner: str) -> Encrypted:
        flat = within(weights, CAPACITY, owner=owner, scheme="plain", what="weigh by")
        if tuple(flat.shape) != rows.shape[:1]:
            raise WireError(
                f"{flat.numel()} weights do not fit {rows.shape[0]} encrypted rows."
            )
        within(
            flat.abs().sum(),
            CAPACITY / rows.bound,
            owner=owner,
            scheme="plain",
            what="weigh by in all",
        )
        return self._wrapped(flat @ self._values(rows), CAPACITY)

    @refusing
    def blind(self, x: Encrypted) -> tuple[Encrypted, Any]:
        """There is no mask either: what is not encrypted needs none."""
        return wrap(self, x.shape, "values", x.bound, unwrap(self, x), "blinded"), None

    @refusing
    def unblind(self, opened: Encrypted, mask: Any) -> Tensor:  # noqa: ARG002
        return self._values(opened)

    def _wrapped(self, values: Tensor, bound: float) -> Encrypted:
        return wrap(
            self, tuple(values.shape), "values", bound, values.numpy().tobytes()
        )

    def _values(self, x: Encrypted) -> Tensor:
        body = unwrap(self, x, "values")
        return torch.from_numpy(np.frombuffer(body, dtype=np.float64).copy()).reshape(
            x.shape
        )


class PlainSecretKey:
    """See `scheme.SecretKey`; everybody can do what it does."""

    __slots__ = ("public",)
    __reduce_ex__ = __reduce__ = __getstate__ = __copy__ = __deepcopy__ = stays

    def __init__(self, use: str, limit: float) -> None:
        warnings.warn(
            'The encryption scheme "plain" encrypts nothing: whoever sees the bytes'
            ' reads the values. It is for tests and debugging; use "ckks" or "bfv".',
            stacklevel=3,
        )
        self.public = PlainPublicKey(use, limit, secrets.token_bytes(8))

    def encrypt(self, values: Tensor, *, owner: str) -> Encrypted:
        return self.public.encrypt(values, owner=owner)

    @refusing
    def decrypt(self, x: Encrypted) -> Tensor:
        return self.public._values(x)

    @refusing
    def open_blinded(self, x: Encrypted) -> Encrypted:
        unwrap(self.public, x)
        if x.hides != "blinded":
            raise WireError("This ciphertext is under no mask; decrypt it.")
        return x
