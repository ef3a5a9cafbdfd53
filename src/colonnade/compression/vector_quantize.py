"""Vector quantization: two neighbouring values of a row become one point of a fixed
hexagonal lattice.

Compressed VFL (Castiglia et al., 2022, arXiv:2206.08330) names vector quantization
beside scalar quantization. Here blocks have two values, and the codebook is the finest
hexagonal lattice of at most `points` points on [low, high]^2.

    row 1:       .     .     .     .       B rows, side * sqrt(3)/2 apart, odd ones half a side to the right
    row 0:    .     .     .     .          A points, `side` apart, the first at (low, low);   A * B <= points

The codebook does not depend on data, so parties only have to agree on these numbers; a
codebook trained on a batch would be a release of its own. At equal bytes it is no
better than `quantize`, and on most values worse (mean squared error 0.021 against 0.013
at three bits a value, after a ReLU): a square holds fewer lattice points than its
share. After a ReLU, pairs of zeros, the most frequent of all, stay zeros.

A [rows, P] tensor takes rows * ceil(ceil(P/2) * ceil(log2(points)) / 8) bytes. A pair
in range moves by at most side / sqrt(3). Where the owner sets no range, it is from the
tensor's smallest to its largest value.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Generator, Tensor

from colonnade.compression.bits import Numbers, width_of
from colonnade.compression.quantize import check_range, range_of
from colonnade.compression.rows import (
    floating,
    in_rows,
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

Floats = NDArray[np.float64]
FEWEST = 4
MOST = 1 << 16
ROW = math.sqrt(3) / 2
"""How far rows are apart, in sides."""


@lru_cache(maxsize=64)
def lattice(points: int) -> tuple[int, int, float]:
    """A, B and the side, for a square of side 1: the smallest side with A * B <=
    points."""

    def side(across: int) -> float:
        return max(1 / (across - 1), 1 / (ROW * (points // across - 1)))

    about = math.isqrt(int(points * ROW))
    across = min(range(max(about - 2, 2), min(about + 3, points // 2) + 1), key=side)
    return across, points // across, side(across)


@dataclass(frozen=True, slots=True)
class VectorQuantize:
    """`points` points over [low, high]^2; 256 points cost what 16 levels per value do."""

    name: ClassVar[str] = "vector_quantize"
    points: int = 256
    low: float | None = None
    high: float | None = None

    def __post_init__(self) -> None:
        if not is_whole(self.points, FEWEST, MOST):
            raise ConfigError(
                f"vector_quantize: points must be a whole number from {FEWEST} to"
                f" {MOST}; found {self.points!r}."
            )
        check_range(self.name, self.low, self.high)

    def encode(self, tensor: Tensor, generator: Generator | None = None) -> Packed:  # noqa: ARG002
        values = in_rows(tensor, self.name)
        low, high = range_of(self.name, values, self.low, self.high)

        def numbers(part: Tensor) -> Numbers:
            rows, count = part.shape
            pairs = torch.full(
                (rows, count + count % 2), low + (high - low) / 2, dtype=torch.float64
            )
            pairs[:, :count] = part  # an odd last value is paired with the middle
            xy = pairs.numpy()
            return _nearest(xy[:, 0::2], xy[:, 1::2], self.points, low, high)

        data = write_numbers(values, width_of(self.points), numbers)
        settings = {"points": self.points, "low": low, "high": high}
        return Packed(
            self.name, data, tuple(tensor.shape), DTYPE_NAMES[tensor.dtype], settings
        )

    def decode(self, packed: Packed) -> Tensor:
        dtype = floating(packed)
        points = whole(packed, "points", FEWEST, MOST)
        low, high = range_in(packed)
        count = rows_of(packed.shape)[1]
        across, down, _ = lattice(points)

        def point(index: Numbers) -> Tensor:
            return torch.from_numpy(_codebook(points, low, high, index)).to(dtype)

        pairs = tabulated(point, across * down, packed)
        numbers = -(-count // 2)
        return read_numbers(
            packed,
            numbers,
            width_of(points),
            across * down,
            lambda index: pairs(index).flatten(1),
        )


def _codebook(
    points: int, low: float, high: float, index: Numbers | None = None
) -> Floats:
    """The points of these numbers, or of all: [..., 2]."""
    across, down, side = lattice(points)
    index = np.arange(across * down, dtype=np.uint32) if index is None else index
    side *= high - low
    b, a = np.divmod(index.astype(np.int64), across)
    return low + np.stack([(a + b % 2 / 2) * side, b * side * ROW], axis=-1)


def _nearest(x: Floats, y: Floats, points: int, low: float, high: float) -> Numbers:
    """The number of the nearest point, which lies in the row below or in the row above."""
    if not high > low:
        return np.zeros(x.shape, dtype=np.uint32)
    across, down, side = lattice(points)
    side *= high - low
    u = (x - low) / side
    v = (y - low) / (side * ROW)
    below = np.clip(np.floor(v), 0, down - 2)
    v -= below
    shift = below % 2 / 2
    u -= shift
    in_below = np.clip(np.rint(u), 0, across - 1)
    shift *= 2
    shift -= 0.5
    u += shift  # the next row starts half a side to the right, or to the left again
    in_above = np.clip(np.rint(u), 0, across - 1)
    to_above = (u - in_above) ** 2
    u -= shift
    to_below = (u - in_below) ** 2
    to_below += (2 * v - 1) * ROW**2  # v^2 - (1 - v)^2 rows
    is_above = to_below > to_above
    below += is_above
    below *= across
    below += np.where(is_above, in_above, in_below)
    return below.astype(np.uint32)
