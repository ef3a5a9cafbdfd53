"""Scalar quantization: each value becomes one of k evenly spaced levels, from `low` to
`high` inclusive.

A tensor [rows, P] takes rows * ceil(P * ceil(log2(k)) / 8) bytes. Values outside the
owner's range become its ends. If the owner sets no range, the range is from the
tensor's smallest to its largest value, and travels along.

With step = (high - low) / (k - 1), a value in range that is rounded to the nearest
level moves by at most step / 2. A value that is dithered moves up or down at random, by
less than step, so that it is right on average.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Generator, Tensor

from colonnade.compression.bits import Numbers, bits_for
from colonnade.compression.rows import (
    as_rows,
    floating_dtype,
    is_number,
    is_whole,
    make_packed,
    pack_numbers,
    range_setting,
    rows_and_values,
    unpack_numbers,
    whole_setting,
)
from colonnade.core.release import Packed
from colonnade.errors import ConfigError

MOST_LEVELS = 1 << 16
"""With more levels, floating-point numbers are better."""

SMALLEST_RANGE = 1e-290
"""Values in a smaller range are taken to be one number."""


@dataclass(frozen=True, slots=True)
class Quantize:
    """Rounds values to evenly spaced levels.

    Args:
        levels: The number of levels, at most 65536.
        low: The lowest level. By default the tensor's smallest value.
        high: The highest level. By default the tensor's largest value.
        rounding: "nearest", or "dithered" for values that are right on average.
    """

    name: ClassVar[str] = "quantize"
    levels: int = 16
    low: float | None = None
    high: float | None = None
    rounding: str = "nearest"

    def __post_init__(self) -> None:
        if not is_whole(self.levels, 2, MOST_LEVELS):
            raise ConfigError(
                f"quantize: levels must be a whole number from 2 to {MOST_LEVELS};"
                f" found {self.levels!r}."
            )
        if self.rounding not in ("nearest", "dithered"):
            raise ConfigError(
                'quantize: rounding must be one of "nearest", "dithered"; found'
                f" {self.rounding!r}."
            )
        check_range(self.name, self.low, self.high)

    def encode(self, tensor: Tensor, generator: Generator) -> Packed:
        """Round each value to a level, and pack the numbers of the levels.

        Args:
            tensor: The values.
            generator: Draws the dither.
        """
        rows = as_rows(tensor, self.name)
        low, high = range_of(self.name, rows, self.low, self.high)
        last = self.levels - 1
        levels_per_unit = last / (high - low) if high - low > SMALLEST_RANGE else 0.0
        # How far rounding of the tensor's type can move a value off its level.
        type_error = torch.finfo(tensor.dtype).eps * max(abs(low), abs(high))
        slack = min(type_error * levels_per_unit, 0.5)

        def numbers_of(part: Tensor) -> Numbers:
            position = (part.to(torch.float64) - low) * levels_per_unit
            if self.rounding == "dithered":
                level = _dithered(position, slack, generator)
            else:
                level = position.round()
            inside = level.clamp(0, last).to(torch.int32)
            return inside.numpy().view(np.uint32)

        data = pack_numbers(rows, bits_for(self.levels), numbers_of)
        settings = {"levels": self.levels, "low": low, "high": high}
        return make_packed(self.name, data, tensor, settings)

    def decode(self, packed: Packed) -> Tensor:
        """Give each number its level. The range came with the tensor."""
        dtype = floating_dtype(packed)
        levels = whole_setting(packed, "levels", 2, MOST_LEVELS)
        low, high = range_setting(packed)

        def values_of(numbers: Numbers) -> Tensor:
            # This way both ends come out exactly.
            share = numbers.astype(np.float64) / (levels - 1)
            return torch.from_numpy(low * (1 - share) + high * share).to(dtype)

        _, per_row = rows_and_values(packed.shape)
        return unpack_numbers(packed, per_row, bits_for(levels), levels, values_of)


def _dithered(position: Tensor, slack: float, generator: Generator) -> Tensor:
    """Round up with a probability that is the position's fraction, and down otherwise.

    A value within the slack of a level stays on this level, whatever its last bit is.
    """
    threshold = torch.rand(position.shape, generator=generator)
    return (position + (threshold * (1 - 2 * slack) + slack)).floor()


def check_range(codec: str, low: float | None, high: float | None) -> None:
    """Check that an owner's range has both ends, in order, or none."""
    if low is None and high is None:
        return
    if not (is_number(low) and is_number(high) and low < high):
        raise ConfigError(
            f"{codec}: low and high must be two numbers, low below high, or both left"
            f" out; found low = {low!r}, high = {high!r}."
        )


def range_of(
    codec: str, rows: Tensor, low: float | None, high: float | None
) -> tuple[float, float]:
    """The owner's range or, where the owner sets none, the range of the values.

    Args:
        codec: The name of the codec, for errors.
        rows: The values.
        low: The owner's lower end.
        high: The owner's upper end.
    """
    if low is None or high is None:
        low, high = _ends(rows)
    if not is_number(high - low):
        raise ConfigError(
            f"{codec}: the range from {low} to {high} is too wide to compute with."
        )
    return float(low), float(high)


def _ends(rows: Tensor) -> tuple[float, float]:
    """The smallest and the largest value."""
    if not rows.numel():
        return 0.0, 0.0
    ends = rows.aminmax()
    return float(ends.min), float(ends.max)
