"""The scale on which labels that are numbers are trained, and the way back to the unit
that their owner knows."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

LARGEST_EXPONENT = 700.0
"""The exponential of more is no float64 any longer."""


@dataclass(frozen=True)
class Unit:
    """A label is trained as (value - mean) / scale. On a log scale, the value in this
    formula is the logarithm of the label."""

    mean: float = 0.0
    scale: float = 1.0
    is_log: bool = False

    def trained(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """The numbers that a model is trained on, of labels in their own unit."""
        values = np.log(values) if self.is_log else values
        return (values - self.mean) / self.scale

    def own(self, numbers: Tensor) -> Tensor:
        """Labels or predictions in their own unit: the inverse of `trained`."""
        values = numbers.double() * self.scale + self.mean
        if self.is_log:
            return values.clamp_max(LARGEST_EXPONENT).exp()
        return values


AS_IT_IS = Unit()


def learned_unit(values: NDArray[np.float64], *, is_log: bool) -> Unit:
    """The unit in which these training labels have mean 0 and variance 1."""
    values = np.log(values) if is_log else values
    return Unit(float(values.mean()), float(values.std()), is_log)
