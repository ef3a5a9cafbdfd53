"""Vector quantization: two neighbouring values of a row become one point of a fixed
hexagonal lattice.

Compressed VFL (Castiglia et al., 2022, arXiv:2206.08330) names vector quantization
beside scalar quantization. Here blocks have two values, and the codebook is the finest
hexagonal lattice of at most `points` points on [low, high]^2.

    row 1:       .     .     .     .
    row 0:    .     .     .     .

    A points in a row, one side apart; the first point is (low, low)
    B rows, sqrt(3)/2 sides apart; odd rows begin half a side to the right
    A * B <= points

The codebook does not depend on data, so that parties only have to agree on these
numbers. A codebook trained on a batch would be a release of its own. At equal bytes the
lattice is no better than `quantize`, and on most values worse (mean squared error 0.021
against 0.013 at three bits a value, after a ReLU), because a square holds fewer lattice
points than its share. After a ReLU, pairs of zeros, the most frequent of all, stay
zeros.

A tensor [rows, P] takes rows * ceil(ceil(P/2) * ceil(log2(points)) / 8) bytes. A pair
in range moves by at most side / sqrt(3). If the owner sets no range, the range is from
the tensor's smallest to its largest value.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Generator, Tensor

from colonnade.compression.bits import Numbers, bits_for
from colonnade.compression.quantize import check_range, range_of
from colonnade.compression.rows import (
    as_rows,
    floating_dtype,
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

Floats = NDArray[np.float64]

FEWEST_POINTS = 4
MOST_POINTS = 1 << 16

ROW_DISTANCE = math.sqrt(3) / 2
"""The distance of two rows of the lattice, in sides."""


class Lattice(NamedTuple):
    """A hexagonal lattice over a square."""

    across: int
    """A, the points of a row."""
    down: int
    """B, the rows."""
    side: float
    """The distance of two points, where the square has side 1."""

    @property
    def size(self) -> int:
        return self.across * self.down

    def point(self, numbers: Numbers, low: float, high: float) -> Floats:
        """The points of these numbers, [..., 2], on the square [low, high]^2."""
        side = self.side * (high - low)
        row, place = np.divmod(numbers.astype(np.int64), self.across)
        x = (place + row % 2 / 2) * side
        y = row * side * ROW_DISTANCE
        return low + np.stack([x, y], axis=-1)

    def nearest(self, x: Floats, y: Floats, low: float, high: float) -> Numbers:
        """The number of the point nearest to each (x, y).

        The nearest point is in the row of points below (x, y), or in the row above. So
        the nearest point of each of the two rows is found, and the two are compared.
        """
        if not high > low:  # all values are equal, and so are all points
            return np.zeros(x.shape, dtype=np.uint32)
        side = self.side * (high - low)
        height = (y - low) / (side * ROW_DISTANCE)
        below = np.clip(np.floor(height), 0, self.down - 2)
        height -= below  # above the row below, in distances of rows

        # x from the first point of each of the two rows, in sides. Of two rows that
        # follow each other, one is odd and begins half a side to the right.
        odd_shift = below % 2 / 2
        x_below = (x - low) / side - odd_shift
        x_above = x_below + (2 * odd_shift - 0.5)
        place_below = np.clip(np.rint(x_below), 0, self.across - 1)
        place_above = np.clip(np.rint(x_above), 0, self.across - 1)

        # Squared distances in sides, both less ((1 - height) ROW_DISTANCE)^2. Of the
        # vertical part, height^2 - (1 - height)^2 = 2 height - 1 is left for the row
        # below, and nothing for the row above.
        to_above = (x_above - place_above) ** 2
        to_below = (x_below - place_below) ** 2 + (2 * height - 1) * ROW_DISTANCE**2
        is_above = to_below > to_above
        row = below + is_above
        place = np.where(is_above, place_above, place_below)
        return np.asarray(row * self.across + place, dtype=np.uint32)


@lru_cache(maxsize=64)
def lattice(points: int) -> Lattice:
    """The finest lattice of at most so many points."""

    def side(across: int) -> float:
        """The smallest side with which rows of so many points cover the square."""
        covers_width = 1 / (across - 1)
        covers_height = 1 / (ROW_DISTANCE * (points // across - 1))
        return max(covers_width, covers_height)

    # The best number is within 2 or so of that of a lattice without a border.
    estimate = math.isqrt(int(points * ROW_DISTANCE))
    candidates = range(max(estimate - 2, 2), min(estimate + 3, points // 2) + 1)
    across = min(candidates, key=side)
    return Lattice(across, points // across, side(across))


@dataclass(frozen=True, slots=True)
class VectorQuantize:
    """Rounds pairs of values to the points of a lattice.

    Args:
        points: The most points. 256 points cost as much as 16 levels of `quantize`.
        low: The lower end of both values. By default the tensor's smallest value.
        high: The upper end of both values. By default the tensor's largest value.
    """

    name: ClassVar[str] = "vector_quantize"
    points: int = 256
    low: float | None = None
    high: float | None = None

    def __post_init__(self) -> None:
        if not is_whole(self.points, FEWEST_POINTS, MOST_POINTS):
            raise ConfigError(
                f"vector_quantize: points must be a whole number from {FEWEST_POINTS}"
                f" to {MOST_POINTS}; found {self.points!r}."
            )
        check_range(self.name, self.low, self.high)

    def encode(
        self,
        tensor: Tensor,
        generator: Generator | None = None,  # noqa: ARG002
    ) -> Packed:
        """Round pairs of values to points, and pack the numbers of the points."""
        rows = as_rows(tensor, self.name)
        low, high = range_of(self.name, rows, self.low, self.high)
        codebook = lattice(self.points)

        def numbers_of(part: Tensor) -> Numbers:
            pairs = _with_even_width(part, low + (high - low) / 2).numpy()
            return codebook.nearest(pairs[:, 0::2], pairs[:, 1::2], low, high)

        data = pack_numbers(rows, bits_for(self.points), numbers_of)
        settings = {"points": self.points, "low": low, "high": high}
        return make_packed(self.name, data, tensor, settings)

    def decode(self, packed: Packed) -> Tensor:
        """Give each number the two values of its point."""
        dtype = floating_dtype(packed)
        points = whole_setting(packed, "points", FEWEST_POINTS, MOST_POINTS)
        low, high = range_setting(packed)
        codebook = lattice(points)

        def values_of(numbers: Numbers) -> Tensor:
            pairs = torch.from_numpy(codebook.point(numbers, low, high))
            return pairs.to(dtype).flatten(1)

        _, values = rows_and_values(packed.shape)
        return unpack_numbers(
            packed,
            per_row=(values + 1) // 2,
            bits=bits_for(points),
            levels=codebook.size,
            values_of=values_of,
        )


def _with_even_width(rows: Tensor, partner: float) -> Tensor:
    """The rows as float64. A last value without a partner gets this one."""
    row_count, count = rows.shape
    even = torch.full((row_count, count + count % 2), partner, dtype=torch.float64)
    even[:, :count] = rows
    return even
