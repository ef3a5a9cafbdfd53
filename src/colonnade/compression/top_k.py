"""Top-k sparsification keeps the k entries of largest magnitude in each row exactly;
the rest become 0.

A [rows, P] tensor takes rows * (k * w + ceil(k * ceil(log2(P)) / 8)) bytes: the kept
values in their own type (w = 4 bytes for float32), then their places, in order,
bit-packed. The error is the norm of what was left out.

A row keeps at least one entry in 1024, so that a few bytes from outside cannot make a
receiver allocate gigabytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Generator, Tensor

from colonnade.compression.bits import pack, row_bytes, unpack, width_of
from colonnade.compression.rows import (
    floating,
    in_rows,
    is_number,
    is_whole,
    pieces,
    rows_in,
    rows_of,
    whole,
)
from colonnade.core.release import DTYPE_NAMES, Packed
from colonnade.errors import ConfigError, WireError

SPARSEST = 1024


@dataclass(frozen=True, slots=True)
class TopK:
    """`keep` is a share of each row's entries (0.1), or a number of them (6)."""

    name: ClassVar[str] = "top_k"
    keep: float = 0.1

    def __post_init__(self) -> None:
        share = (
            is_number(self.keep) and isinstance(self.keep, float) and 0 < self.keep <= 1
        )
        if not share and not is_whole(self.keep, 1, 1 << 31):
            raise ConfigError(
                "top_k: keep must be a share above 0, at most 1.0, or a whole number"
                f" of entries; found {self.keep!r}."
            )

    def kept(self, values: int) -> int:
        """k for rows of `values` values: at least one; a share is rounded to the
        nearest."""
        return min(
            (
                self.keep
                if isinstance(self.keep, int)
                else max(round(self.keep * values), 1)
            ),
            values,
        )

    def encode(self, tensor: Tensor, generator: Generator | None = None) -> Packed:  # noqa: ARG002
        values = in_rows(tensor, self.name)
        rows, count = values.shape
        k = self.kept(count)
        if count > SPARSEST * k:
            raise ConfigError(
                f"top_k: at least one entry in {SPARSEST} is kept; found keep ="
                f" {self.keep!r} for rows of {count}."
            )
        data = (
            b"".join(_largest(values[piece], k) for piece in pieces(rows, count))
            if k
            else b""
        )
        return Packed(
            self.name, data, tuple(tensor.shape), DTYPE_NAMES[tensor.dtype], {"keep": k}
        )

    def decode(self, packed: Packed) -> Tensor:
        dtype = floating(packed)
        rows, count = rows_of(packed.shape)
        k = whole(packed, "keep", 0, count)
        if count > SPARSEST * k:
            raise WireError(
                f"A {packed.codec!r} tensor keeps {k} of {count} values, fewer than one"
                f" in {SPARSEST}."
            )
        size = k * dtype.itemsize
        bits = width_of(max(count, 1))
        data = rows_in(packed, size + row_bytes(k, bits))
        tensor = torch.zeros(packed.shape, dtype=dtype)
        if data.size:
            places = unpack(data[:, size:], k, bits).astype(np.int64)
            if int(places.max()) >= count or bool(
                (places[:, 1:] <= places[:, :-1]).any()
            ):
                raise WireError(
                    f"A {packed.codec!r} tensor's places are not in order, or not"
                    " within its rows."
                )
            kept = torch.from_numpy(data[:, :size].copy()).view(dtype)
            tensor.view(rows, count).scatter_(1, torch.from_numpy(places), kept)
        return tensor


def _largest(values: Tensor, k: int) -> bytes:
    """The bytes of some rows: the kept values of each, then their places."""
    count = values.shape[1]
    size = (
        values.abs()
        .to(torch.float64 if values.dtype == torch.float64 else torch.float32)
        .numpy()
    )
    places = np.sort(np.argpartition(size, count - k, axis=1)[:, count - k :], axis=1)
    kept = values.gather(1, torch.from_numpy(places)).contiguous()
    packed = pack(places.astype(np.uint32), width_of(count))
    return np.concatenate([kept.view(torch.uint8).numpy(), packed], axis=1).tobytes()
