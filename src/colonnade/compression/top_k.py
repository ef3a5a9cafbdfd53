"""Top-k sparsification: the k entries of largest size in each row are kept exactly, and
the others become 0.

A tensor [rows, P] takes rows * (k * w + ceil(k * ceil(log2(P)) / 8)) bytes: the kept
values in their own type (w = 4 bytes for float32), then their places, in order,
bit-packed. The error is the norm of the entries that were left out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Generator, Tensor

from colonnade.compression.bits import Bytes, bits_for, pack, row_bytes, unpack
from colonnade.compression.rows import (
    as_rows,
    data_rows,
    floating_dtype,
    is_number,
    is_whole,
    make_packed,
    pieces,
    rows_and_values,
    whole_setting,
)
from colonnade.core.release import Packed
from colonnade.errors import ConfigError, WireError

SPARSEST = 1024
"""A row keeps at least one entry in so many.

Otherwise a few bytes from a stranger could make a receiver allocate gigabytes.
"""

MOST_ENTRIES = 1 << 31


@dataclass(frozen=True, slots=True)
class TopK:
    """Keeps the largest entries of each row.

    Args:
        keep: A share of a row's entries (0.1), or a number of them (6).
    """

    name: ClassVar[str] = "top_k"
    keep: float = 0.1

    def __post_init__(self) -> None:
        is_float = isinstance(self.keep, float) and is_number(self.keep)
        is_share = is_float and 0 < self.keep <= 1
        if not is_share and not is_whole(self.keep, 1, MOST_ENTRIES):
            raise ConfigError(
                "top_k: keep must be a share above 0, at most 1.0, or a whole number"
                f" of entries; found {self.keep!r}."
            )

    def kept_of(self, values: int) -> int:
        """The number of entries, k, that a row of so many values keeps."""
        if isinstance(self.keep, int):
            return min(self.keep, values)
        return min(max(round(self.keep * values), 1), values)

    def encode(
        self,
        tensor: Tensor,
        generator: Generator | None = None,  # noqa: ARG002
    ) -> Packed:
        """Pack the largest entries of each row, and their places."""
        rows = as_rows(tensor, self.name)
        row_count, count = rows.shape
        k = self.kept_of(count)
        if count > SPARSEST * k:
            raise ConfigError(
                f"top_k: at least one entry in {SPARSEST} is kept; found keep ="
                f" {self.keep!r} for rows of {count}."
            )
        data = b""
        if k:
            parts = [_largest(rows[piece], k) for piece in pieces(row_count, count)]
            data = b"".join(parts)
        return make_packed(self.name, data, tensor, {"keep": k})

    def decode(self, packed: Packed) -> Tensor:
        """Put the kept values in their places, among zeros."""
        dtype = floating_dtype(packed)
        row_count, count = rows_and_values(packed.shape)
        k = whole_setting(packed, "keep", 0, count)
        if count > SPARSEST * k:
            raise WireError(
                f"A {packed.codec!r} tensor keeps {k} of {count} values, fewer than one"
                f" in {SPARSEST}."
            )
        # A row of the data is k values, and then their k places.
        value_bytes = k * dtype.itemsize
        bits = bits_for(max(count, 1))
        data = data_rows(packed, value_bytes + row_bytes(k, bits))
        tensor = torch.zeros(packed.shape, dtype=dtype)
        if not data.size:
            return tensor
        values = torch.from_numpy(data[:, :value_bytes].copy()).view(dtype)
        places = _checked_places(packed, data[:, value_bytes:], k, count)
        tensor.view(row_count, count).scatter_(1, places, values)
        return tensor


def _largest(rows: Tensor, k: int) -> bytes:
    """Encode some rows: the kept values of each row, and then their places."""
    count = rows.shape[1]
    # numpy has no bfloat16. float32 holds all half types exactly.
    comparable = rows.dtype if rows.dtype == torch.float64 else torch.float32
    size = rows.abs().to(comparable).numpy()
    largest = np.argpartition(size, count - k, axis=1)[:, count - k :]
    places = np.sort(largest, axis=1)
    values = rows.gather(1, torch.from_numpy(places)).contiguous()
    packed_places = pack(places.astype(np.uint32), bits_for(count))
    value_data = values.view(torch.uint8).numpy()
    return np.concatenate([value_data, packed_places], axis=1).tobytes()


def _checked_places(packed: Packed, data: Bytes, k: int, count: int) -> Tensor:
    """The places of the kept values in each row, which a stranger may have sent."""
    places = unpack(data, k, bits_for(count)).astype(np.int64)
    is_within = int(places.max()) < count
    is_ordered = bool((places[:, 1:] > places[:, :-1]).all())
    if not (is_within and is_ordered):
        raise WireError(
            f"A {packed.codec!r} tensor's places are not in order, or not within its"
            " rows."
        )
    return torch.from_numpy(places)
