"""What all codecs share: tensors as rows, what they refuse to encode, and how they
check a Packed from outside.

A row is an entry of the first axis, with all its values; a tensor of one axis or none
is one row. Bytes from outside are only data: each number a Packed carries is checked,
and nothing is allocated before length and shape agree.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeGuard

import numpy as np
import torch
from torch import Tensor

from colonnade.compression.bits import Bytes, Numbers, pack, row_bytes, unpack
from colonnade.core.release import DTYPES, Packed
from colonnade.core.wire import MAX_FRAME
from colonnade.errors import ConfigError, WireError

PIECE = 1 << 15
"""Values that are worked on at a time, so that they stay in the processor's cache: two
to four times faster."""


def rows_of(shape: tuple[int, ...]) -> tuple[int, int]:
    """Rows, and values per row."""
    return (1, math.prod(shape)) if len(shape) < 2 else (shape[0], math.prod(shape[1:]))


def pieces(rows: int, values: int) -> Iterator[slice]:
    """Slices over all rows, some rows at a time."""
    step = max(PIECE // max(values, 1), 1)
    return (slice(start, start + step) for start in range(0, rows, step))


# Encoding


def in_rows(tensor: Tensor, codec: str) -> Tensor:
    """[rows, P] on the CPU; NaN, infinity and what is no floating-point number cannot
    be encoded."""
    if not tensor.is_floating_point():
        raise ConfigError(
            f"The codec {codec!r} encodes floating-point tensors; found {tensor.dtype}."
        )
    values = tensor.detach().cpu().reshape(rows_of(tuple(tensor.shape)))
    # one pass: max keeps NaN
    if values.numel() and not math.isfinite(float(values.abs().max())):
        bad = int((~torch.isfinite(values)).sum())
        raise ConfigError(
            f"The codec {codec!r} encodes finite numbers; {bad} of {values.numel()}"
            " values are NaN or infinite.\n    Most likely training has diverged:"
            " lower the learning rate."
        )
    return values


def write_numbers(
    values: Tensor, bits: int, numbers: Callable[[Tensor], Numbers]
) -> bytes:
    """Rows as bit-packed numbers; `numbers` gives those of some rows."""
    return b"".join(
        pack(numbers(values[piece]), bits).tobytes() for piece in pieces(*values.shape)
    )


# Decoding


def rows_in(packed: Packed, bytes_per_row: int) -> Bytes:
    """The data as [rows, bytes_per_row], or WireError where length and shape do not
    agree."""
    rows, values = rows_of(packed.shape)
    what = f"A {packed.codec!r} tensor of shape {list(packed.shape)}"
    if math.prod(max(n, 1) for n in packed.shape) >> 62:
        raise WireError(f"{what} has more values than can be counted.")
    unpacked = rows * values * DTYPES[packed.dtype].itemsize
    if unpacked > MAX_FRAME:
        raise WireError(
            f"{what} would take {unpacked:,} bytes of memory, and one tensor may take"
            f" {MAX_FRAME:,}. Ask for fewer rows at once, or let a row have fewer"
            " numbers."
        )
    if len(packed.data) != rows * bytes_per_row:
        raise WireError(
            f"{what} has {rows * bytes_per_row:,} bytes as it is packed, and"
            f" {len(packed.data):,} came. The sender's codec does not fit the receiver's:"
            " let both run the same version of Colonnade."
        )
    return np.frombuffer(packed.data, dtype=np.uint8).reshape(rows, bytes_per_row)


def read_numbers(
    packed: Packed,
    per_row: int,
    bits: int,
    count: int,
    values: Callable[[Numbers], Tensor],
) -> Tensor:
    """The tensor behind bit-packed numbers below `count`, `per_row` in each row;
    `values` turns those of some rows into [rows, P]. A larger number, which the bits
    have room for, is a WireError."""
    data = rows_in(packed, row_bytes(per_row, bits))
    tensor = torch.zeros(packed.shape, dtype=DTYPES[packed.dtype])
    if not data.size:
        return tensor
    table = tensor.view(len(data), -1)
    per_number = -(-table.shape[1] // per_row)  # values of a number
    for rows in pieces(len(data), per_row):
        # eight numbers end with a byte, and so does a piece
        for first in range(0, per_row, PIECE):
            size = min(PIECE, per_row - first)
            start = first * bits // 8
            numbers = unpack(
                data[rows, start : start + row_bytes(size, bits)], size, bits
            )
            if int(numbers.max()) >= count:
                raise WireError(
                    f"A {packed.codec!r} tensor has {count} levels; one of its numbers"
                    f" is {numbers.max()}."
                )
            target = table[rows, per_number * first : per_number * (first + size)]
            target.copy_(values(numbers)[:, : target.shape[1]])
    return tensor


def tabulated(
    values: Callable[[Numbers], Tensor], count: int, packed: Packed
) -> Callable[[Numbers], Tensor]:
    """The same function by a table of all `count` values, but only where the tensor may
    have more numbers than that: whoever sends a handful cannot make a receiver compute
    thousands."""
    if len(packed.data) < count:
        return values
    table = values(np.arange(count, dtype=np.uint32))
    return lambda index: table[torch.from_numpy(index.view(np.int32))]


def floating(packed: Packed) -> torch.dtype:
    """The tensor's type, which must be a floating-point one."""
    dtype = DTYPES.get(packed.dtype)
    if dtype is None or not dtype.is_floating_point:
        raise WireError(
            f"A {packed.codec!r} tensor has a floating-point type; this one says"
            f" {packed.dtype!r}."
        )
    return dtype


def is_number(value: Any) -> TypeGuard[float]:
    """Whether it is a finite number that fits into 64 bits; True and False are not
    numbers."""
    return (
        isinstance(value, (int, float))
        and not isinstance(value, bool)
        and abs(value) <= sys.float_info.max
    )


def is_whole(value: Any, least: int, most: int) -> TypeGuard[int]:
    return (
        isinstance(value, int)
        and not isinstance(value, bool)
        and least <= value <= most
    )


def number(packed: Packed, key: str) -> float:
    """A finite number among the settings, or WireError."""
    return float(setting(packed, key, is_number))


def whole(packed: Packed, key: str, least: int, most: int) -> int:
    """A whole number among the settings, from `least` to `most`, or WireError."""
    return int(setting(packed, key, lambda value: is_whole(value, least, most)))


def range_in(packed: Packed) -> tuple[float, float]:
    """`low` and `high` among the settings, or WireError."""
    low = number(packed, "low")
    high = number(packed, "high")
    if not 0 <= high - low <= sys.float_info.max:
        raise WireError(
            f"A {packed.codec!r} tensor came without a proper range: {low} to {high}."
        )
    return low, high


def setting(packed: Packed, key: str, fits: Callable[[Any], bool]) -> Any:
    """A setting from outside, or WireError where it is missing or does not fit; it may
    have any type that JSON has."""
    settings: Any = packed.settings
    value = settings.get(key) if isinstance(settings, Mapping) else None
    if not fits(value):
        raise WireError(
            f"A {packed.codec!r} tensor came without a proper {key}: {str(value)[:80]}."
        )
    return value
