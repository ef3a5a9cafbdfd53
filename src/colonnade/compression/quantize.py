"""Scalar quantization: each value becomes one of k evenly spaced levels, from `low` to
`high` inclusive.

A [rows, P] tensor takes rows * ceil(P * ceil(log2(k)) / 8) bytes. Values outside the
owner's range become its ends. Where the owner sets no range, it is from the tensor's
smallest to its largest value, and travels along. With step = (high - low) / (k - 1) a
value in range moves by at most step / 2 when rounded to the nearest level, and by less
than step when dithered: up or down at random so that it is right on average.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Generator, Tensor

from colonnade.compression.bits import Numbers, width_of
from colonnade.compression.rows import (
    floating,
    in_rows,
    is_number,
    is_whole,
    range_in,
    read_numbers,
    rows_of,
    tabulated,
    whole,
    write_numbers,
)
from colonnade.core.release import DTYPE_NAMES, Packed
from colonnade.errors import ConfigError

MOST = 1 << 16
"""The most levels; with more, floating-point numbers are better."""
SMALLEST = 1e-290
"""The smallest range; values in a smaller one are one number."""


@dataclass(frozen=True, slots=True)
class Quantize:
    """`levels` levels over [low, high]."""

    name: ClassVar[str] = "quantize"
    levels: int = 16
    low: float | None = None
    high: float | None = None
    rounding: str = "nearest"

    def __post_init__(self) -> None:
        if not is_whole(self.levels, 2, MOST):
            raise ConfigError(
                f"quantize: levels must be a whole number from 2 to {MOST}; found"
                f" {self.levels!r}."
            )
        if self.rounding not in ("nearest", "dithered"):
            raise ConfigError(
                'quantize: rounding must be one of "nearest", "dithered"; found'
                f" {self.rounding!r}."
            )
        check_range(self.name, self.low, self.high)

    def encode(self, tensor: Tensor, generator: Generator) -> Packed:
        values = in_rows(tensor, self.name)
        low, high = range_of(self.name, values, self.low, self.high)
        top = self.levels - 1
        per_unit = top / (high - low) if high - low > SMALLEST else 0.0
        on_level = min(
            torch.finfo(tensor.dtype).eps * max(abs(low), abs(high)) * per_unit, 0.5
        )

        def numbers(part: Tensor) -> Numbers:
            position = part.to(torch.float64, copy=True).sub_(low).mul_(per_unit)
            if self.rounding == "nearest":
                position.round_()
            else:  # a value on a level stays there, whatever its last bit is
                position.add_(
                    torch.rand(position.shape, generator=generator)
                    .mul_(1 - 2 * on_level)
                    .add_(on_level)
                ).floor_()
            return position.clamp_(0, top).to(torch.int32).numpy().view(np.uint32)

        data = write_numbers(values, width_of(self.levels), numbers)
        settings = {"levels": self.levels, "low": low, "high": high}
        return Packed(
            self.name, data, tuple(tensor.shape), DTYPE_NAMES[tensor.dtype], settings
        )

    def decode(self, packed: Packed) -> Tensor:
        dtype = floating(packed)
        levels = whole(packed, "levels", 2, MOST)
        low, high = range_in(packed)

        def level(index: Numbers) -> Tensor:
            share = index.astype(np.float64) / (levels - 1)
            return torch.from_numpy(low * (1 - share) + high * share).to(dtype)

        values = tabulated(level, levels, packed)
        return read_numbers(
            packed, rows_of(packed.shape)[1], width_of(levels), levels, values
        )


def check_range(codec: str, low: float | None, high: float | None) -> None:
    """Check that both are given or neither, and low is below high."""
    if low is None and high is None:
        return
    if not (is_number(low) and is_number(high) and low < high):
        raise ConfigError(
            f"{codec}: low and high must be two numbers, low below high, or both left"
            f" out; found low = {low!r}, high = {high!r}."
        )


def range_of(
    codec: str, values: Tensor, low: float | None, high: float | None
) -> tuple[float, float]:
    """The owner's range, or the tensor's own."""
    if low is None or high is None:
        ends = values.aminmax() if values.numel() else None
        low, high = (0.0, 0.0) if ends is None else (float(ends.min), float(ends.max))
    if not is_number(high - low):
        raise ConfigError(
            f"{codec}: the range from {low} to {high} is too wide to compute with."
        )
    return float(low), float(high)
