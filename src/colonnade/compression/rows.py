"""The steps that all codecs share: tensors as rows, and the checks of a `Packed`.

A row is an entry of the first axis, with all its values. A tensor of one axis or none
is one row.

A `Packed` may come from a stranger. Each number that it carries is checked, and nothing
is allocated before its length fits its shape.
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
from colonnade.core.release import DTYPE_NAMES, DTYPES, Packed, Scalar
from colonnade.core.wire import MAX_FRAME
from colonnade.errors import ConfigError, WireError

PIECE = 1 << 15
"""Values that are worked on at a time.

They stay in the processor's cache, which makes coding two to four times faster. It is a
multiple of 8, so that the bits of a piece of numbers end with a byte.
"""

MOST_VALUES = 1 << 62
"""Values of a tensor that torch can count. Axes of length 0 count as 1."""


def rows_and_values(shape: tuple[int, ...]) -> tuple[int, int]:
    """The number of rows of a tensor, and of values in a row."""
    if len(shape) < 2:
        return 1, math.prod(shape)
    return shape[0], math.prod(shape[1:])


def pieces(rows: int, values: int) -> Iterator[slice]:
    """Slices of some rows each, which together are all rows of so many values."""
    step = max(PIECE // max(values, 1), 1)
    for start in range(0, rows, step):
        yield slice(start, start + step)


# Encoding


def as_rows(tensor: Tensor, codec: str) -> Tensor:
    """Give a tensor as rows [rows, P] on the CPU.

    NaN, infinity, and tensors of another type than floating-point are refused.

    Args:
        tensor: The tensor.
        codec: The name of the codec that encodes it, for errors.
    """
    if not tensor.is_floating_point():
        raise ConfigError(
            f"The codec {codec!r} encodes floating-point tensors; found {tensor.dtype}."
        )
    rows = tensor.detach().cpu().reshape(rows_and_values(tuple(tensor.shape)))
    # The largest value is NaN if any value is, so that one pass finds both.
    if rows.numel() and not math.isfinite(float(rows.abs().max())):
        bad = int((~torch.isfinite(rows)).sum())
        raise ConfigError(
            f"The codec {codec!r} encodes finite numbers; {bad} of {rows.numel()}"
            " values are NaN or infinite.\n    Most likely training has diverged:"
            " lower the learning rate."
        )
    return rows


def make_packed(
    codec: str, data: bytes, tensor: Tensor, settings: Mapping[str, Scalar]
) -> Packed:
    """Describe the bytes that a codec made of a tensor."""
    dtype = DTYPE_NAMES[tensor.dtype]
    return Packed(codec, data, tuple(tensor.shape), dtype, settings)


def pack_numbers(
    rows: Tensor, bits: int, numbers_of: Callable[[Tensor], Numbers]
) -> bytes:
    """Turn rows into numbers, and pack the numbers of each row.

    Args:
        rows: The values, [rows, P].
        bits: The bits of a number.
        numbers_of: Gives the numbers of some rows.
    """
    packed = []
    for piece in pieces(*rows.shape):
        packed.append(pack(numbers_of(rows[piece]), bits).tobytes())
    return b"".join(packed)


# Decoding


def data_rows(packed: Packed, bytes_per_row: int) -> Bytes:
    """The data as [rows, bytes_per_row].

    Raises WireError where the shape is too large to decode, and where the length is not
    that of the shape.
    """
    rows, values = rows_and_values(packed.shape)
    tensor = f"A {packed.codec!r} tensor of shape {list(packed.shape)}"
    if math.prod(max(length, 1) for length in packed.shape) >= MOST_VALUES:
        raise WireError(f"{tensor} has more values than can be counted.")
    decoded_bytes = rows * values * DTYPES[packed.dtype].itemsize
    if decoded_bytes > MAX_FRAME:
        raise WireError(
            f"{tensor} would take {decoded_bytes:,} bytes of memory, and one tensor may"
            f" take {MAX_FRAME:,}. Ask for fewer rows at once, or let a row have fewer"
            " numbers."
        )
    packed_bytes = rows * bytes_per_row
    if len(packed.data) != packed_bytes:
        raise WireError(
            f"{tensor} has {packed_bytes:,} bytes as it is packed, and"
            f" {len(packed.data):,} came. The sender's codec does not fit the"
            " receiver's: let both run the same version of Colonnade."
        )
    return np.frombuffer(packed.data, dtype=np.uint8).reshape(rows, bytes_per_row)


def unpack_numbers(
    packed: Packed,
    per_row: int,
    bits: int,
    levels: int,
    values_of: Callable[[Numbers], Tensor],
) -> Tensor:
    """Unpack the numbers of each row, and turn them into the tensor.

    Args:
        packed: The tensor as it was sent.
        per_row: The numbers of a row.
        bits: The bits of a number.
        levels: Numbers are below this. The bits may have room for larger ones, which
            are refused.
        values_of: Gives the values of numbers [rows, n]. A number may stand for several
            neighbouring values, of which the last ones are left out if the row is full.
    """
    data = data_rows(packed, row_bytes(per_row, bits))
    tensor = torch.zeros(packed.shape, dtype=DTYPES[packed.dtype])
    if not data.size:
        return tensor
    table = tensor.view(len(data), -1)
    values_per_number = math.ceil(table.shape[1] / per_row)
    for rows in pieces(len(data), per_row):
        for first in range(0, per_row, PIECE):  # more than once for a long row only
            count = min(PIECE, per_row - first)
            start_byte = first * bits // 8
            end_byte = start_byte + row_bytes(count, bits)
            numbers = unpack(data[rows, start_byte:end_byte], count, bits)
            _check_levels(packed, numbers, levels)
            start = values_per_number * first
            target = table[rows, start : start + values_per_number * count]
            target.copy_(values_of(numbers)[:, : target.shape[1]])
    return tensor


def _check_levels(packed: Packed, numbers: Numbers, levels: int) -> None:
    largest = int(numbers.max())
    if largest >= levels:
        raise WireError(
            f"A {packed.codec!r} tensor has {levels} levels; one of its numbers is"
            f" {largest}."
        )


def floating_dtype(packed: Packed) -> torch.dtype:
    """The type of the tensor, which must be a floating-point one."""
    dtype = DTYPES.get(packed.dtype)
    if dtype is None or not dtype.is_floating_point:
        raise WireError(
            f"A {packed.codec!r} tensor has a floating-point type; this one says"
            f" {packed.dtype!r}."
        )
    return dtype


# Settings


def is_number(value: Any) -> TypeGuard[float]:
    """Whether a value is a finite number that fits into 64 bits. True is no number."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    return abs(value) <= sys.float_info.max


def is_whole(value: Any, least: int, most: int) -> TypeGuard[int]:
    """Whether a value is a whole number in a range. True is no number."""
    if isinstance(value, bool) or not isinstance(value, int):
        return False
    return least <= value <= most


def setting_of(packed: Packed, key: str, is_proper: Callable[[Any], bool]) -> Any:
    """One of the settings that came with a tensor, or WireError.

    Args:
        packed: The tensor. Its settings may be anything that JSON can hold.
        key: The name of the setting.
        is_proper: Whether a value can be used.
    """
    settings: Any = packed.settings
    value = settings.get(key) if isinstance(settings, Mapping) else None
    if not is_proper(value):
        raise WireError(
            f"A {packed.codec!r} tensor came without a proper {key}: {str(value)[:80]}."
        )
    return value


def number_setting(packed: Packed, key: str) -> float:
    """A setting that must be a finite number."""
    return float(setting_of(packed, key, is_number))


def whole_setting(packed: Packed, key: str, least: int, most: int) -> int:
    """A setting that must be a whole number in a range."""
    return int(setting_of(packed, key, lambda value: is_whole(value, least, most)))


def range_setting(packed: Packed) -> tuple[float, float]:
    """The settings `low` and `high`, which must be in this order."""
    low = number_setting(packed, "low")
    high = number_setting(packed, "high")
    if not 0 <= high - low <= sys.float_info.max:
        raise WireError(
            f"A {packed.codec!r} tensor came without a proper range: {low} to {high}."
        )
    return low, high
