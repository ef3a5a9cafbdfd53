"""Values that lie on a grid already, sent exactly as the numbers of their grid points.

A mechanism that quantizes as part of its guarantee (binomial noise on integer levels)
makes such values. With `count` grid points a [rows, P] tensor takes rows * ceil(P *
ceil(log2(count)) / 8) bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Generator, Tensor

from colonnade.compression.bits import WIDEST, Numbers, width_of
from colonnade.compression.rows import (
    is_number,
    is_whole,
    number,
    read_numbers,
    rows_of,
    whole,
    write_numbers,
)
from colonnade.core.release import DTYPE_NAMES, DTYPES, Packed
from colonnade.errors import ConfigError, WireError

ROUNDING = 4
"""How far a value may lie off the grid, in units in the last place of the grid's
largest value."""


@dataclass(frozen=True, slots=True)
class Integers:
    """The grid low + i * step, i = 0 .. count - 1."""

    name: ClassVar[str] = "integers"
    low: float
    step: float
    count: int

    def __post_init__(self) -> None:
        if not (is_number(self.low) and is_number(self.step) and self.step > 0):
            raise ConfigError(
                "integers: low must be a number and step one above 0; found low ="
                f" {self.low!r}, step = {self.step!r}."
            )
        if not is_whole(self.count, 2, 1 << WIDEST):
            raise ConfigError(
                f"integers: count must be a whole number from 2 to 2**{WIDEST}; found"
                f" {self.count!r}."
            )

    def encode(self, tensor: Tensor, generator: Generator | None = None) -> Packed:  # noqa: ARG002
        values = tensor.detach().cpu().reshape(rows_of(tuple(tensor.shape)))
        data = write_numbers(values, width_of(self.count), self._numbers)
        settings = {
            "low": float(self.low),
            "step": float(self.step),
            "count": self.count,
        }
        return Packed(
            self.name, data, tuple(tensor.shape), DTYPE_NAMES[tensor.dtype], settings
        )

    def decode(self, packed: Packed) -> Tensor:
        low = number(packed, "low")
        step = number(packed, "step")
        count = whole(packed, "count", 2, 1 << WIDEST)
        if not (step > 0 and is_number(low + (count - 1) * step)):
            raise WireError(
                f"A {packed.codec!r} tensor came without a proper grid: {count} times"
                f" {step} from {low}."
            )

        def values(index: Numbers) -> Tensor:
            if low == 0 and step == 1 and count <= 256:
                return torch.from_numpy(index.view(np.int32)).to(DTYPES[packed.dtype])
            return torch.from_numpy(low + index.astype(np.float64) * step).to(
                DTYPES[packed.dtype]
            )

        return read_numbers(
            packed, rows_of(packed.shape)[1], width_of(count), count, values
        )

    def _numbers(self, values: Tensor) -> Numbers:
        # the usual case: small whole numbers, faster
        if self.low == 0 and self.step == 1 and self.count <= 256:
            with np.errstate(invalid="ignore"):
                small = values.numpy().astype(np.uint8)
            if int(small.max(initial=0)) < self.count and bool(
                (small == values.numpy()).all()
            ):
                return small.astype(np.uint32)
        x = values.to(torch.float64).numpy()
        index = np.rint((x - self.low) / self.step)
        self._check(x, index, values.dtype)
        return index.astype(np.uint32)

    def _check(
        self, x: NDArray[np.float64], index: NDArray[np.float64], dtype: torch.dtype
    ) -> None:
        """Refuse values that are off the grid by more than the rounding of the tensor's
        type."""
        ulp = torch.finfo(dtype if dtype.is_floating_point else torch.float64).eps
        last = self.low + (self.count - 1) * self.step
        slack = ROUNDING * ulp * max(abs(self.low), abs(last))
        if not slack < self.step / 2:
            raise ConfigError(
                f"integers: a grid from {self.low} to {last} in steps of {self.step} is"
                f" finer than {dtype} can tell."
            )
        with np.errstate(invalid="ignore"):
            near = np.abs(x - (self.low + index * self.step)) <= slack
        off = ~(near & (index >= 0) & (index < self.count))
        if off.any():
            raise ConfigError(
                f"integers: values must be {self.low} + i * {self.step}, i = 0 .."
                f" {self.count - 1}; {int(off.sum())} of {off.size} are not, such as"
                f" {x[off][0]}.\n    Take the grid of the mechanism that made them, or"
                " 'quantize' for values that lie anywhere."
            )
