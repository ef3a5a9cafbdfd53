"""Values that lie on a grid already, sent exactly: as the numbers of their grid points.

Such values come from a mechanism that quantizes as part of its guarantee, such as
binomial noise on integer levels. With `count` grid points a tensor [rows, P] takes
rows * ceil(P * ceil(log2(count)) / 8) bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Generator, Tensor

from colonnade.compression.bits import MOST_BITS, Numbers, bits_for
from colonnade.compression.rows import (
    is_number,
    is_whole,
    make_packed,
    number_setting,
    pack_numbers,
    rows_and_values,
    unpack_numbers,
    whole_setting,
)
from colonnade.core.release import DTYPES, Packed
from colonnade.errors import ConfigError, WireError

MOST_POINTS = 1 << MOST_BITS

ROUNDING_UNITS = 4
"""How far a value may lie off the grid because of rounding, in units in the last place
of the grid's largest value."""

BYTE_VALUES = 256

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Integers:
    """Sends values of the grid low + i * step, i = 0 .. count - 1.

    Args:
        low: The first point of the grid.
        step: The distance between two points.
        count: The number of points.
    """

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
        if not is_whole(self.count, 2, MOST_POINTS):
            raise ConfigError(
                f"integers: count must be a whole number from 2 to 2**{MOST_BITS};"
                f" found {self.count!r}."
            )

    def encode(
        self,
        tensor: Tensor,
        generator: Generator | None = None,  # noqa: ARG002
    ) -> Packed:
        """Pack the numbers of grid points. Values off the grid are refused."""
        rows = tensor.detach().cpu().reshape(rows_and_values(tuple(tensor.shape)))
        data = pack_numbers(rows, bits_for(self.count), self._grid_numbers)
        settings = {
            "low": float(self.low),
            "step": float(self.step),
            "count": self.count,
        }
        return make_packed(self.name, data, tensor, settings)

    def decode(self, packed: Packed) -> Tensor:
        """Give each number its grid point. The grid came with the tensor."""
        low = number_setting(packed, "low")
        step = number_setting(packed, "step")
        count = whole_setting(packed, "count", 2, MOST_POINTS)
        if not (step > 0 and is_number(low + (count - 1) * step)):
            raise WireError(
                f"A {packed.codec!r} tensor came without a proper grid: {count} times"
                f" {step} from {low}."
            )
        dtype = DTYPES[packed.dtype]

        def values_of(numbers: Numbers) -> Tensor:
            if _are_bytes(low, step, count):  # the numbers are the values themselves
                return torch.from_numpy(numbers.view(np.int32)).to(dtype)
            values = low + numbers.astype(np.float64) * step
            return torch.from_numpy(values).to(dtype)

        _, per_row = rows_and_values(packed.shape)
        return unpack_numbers(packed, per_row, bits_for(count), count, values_of)

    def _grid_numbers(self, rows: Tensor) -> Numbers:
        """The number of the grid point that each value lies on."""
        if _are_bytes(self.low, self.step, self.count):
            byte_numbers = _as_bytes(rows, self.count)
            if byte_numbers is not None:
                return byte_numbers
        values = rows.to(torch.float64).numpy()
        numbers = np.rint((values - self.low) / self.step)
        self._check_on_grid(values, numbers, rows.dtype)
        return numbers.astype(np.uint32)

    def _check_on_grid(
        self, values: Floats, numbers: Floats, dtype: torch.dtype
    ) -> None:
        """Refuse values that lie further off the grid than rounding explains."""
        float_type = dtype if dtype.is_floating_point else torch.float64
        last = self.low + (self.count - 1) * self.step
        # The tensor's type cannot hold each grid point exactly, least of all large
        # ones.
        largest = max(abs(self.low), abs(last))
        tolerance = ROUNDING_UNITS * torch.finfo(float_type).eps * largest
        if not tolerance < self.step / 2:
            raise ConfigError(
                f"integers: a grid from {self.low} to {last} in steps of {self.step} is"
                f" finer than {dtype} can tell."
            )
        with np.errstate(invalid="ignore"):  # NaN and infinity lie off the grid
            distance = np.abs(values - (self.low + numbers * self.step))
        is_inside = (numbers >= 0) & (numbers < self.count)
        is_off = ~((distance <= tolerance) & is_inside)
        if is_off.any():
            raise ConfigError(
                f"integers: values must be {self.low} + i * {self.step}, i = 0 .."
                f" {self.count - 1}; {int(is_off.sum())} of {is_off.size} are not, such"
                f" as {values[is_off][0]}.\n"
                "    Take the grid of the mechanism that made them, or 'quantize' for"
                " values that lie anywhere."
            )


def _are_bytes(low: float, step: float, count: int) -> bool:
    """Whether grid points are bytes themselves, which are coded 2 to 4 times faster."""
    return low == 0 and step == 1 and count <= BYTE_VALUES


def _as_bytes(rows: Tensor, count: int) -> Numbers | None:
    """The values as numbers, or None if some are no whole numbers below `count`."""
    values = rows.numpy()
    with np.errstate(invalid="ignore"):  # NaN becomes some number, and then differs
        numbers = values.astype(np.uint8)
    is_below = int(numbers.max(initial=0)) < count
    if is_below and bool((numbers == values).all()):
        return numbers.astype(np.uint32)
    return None
