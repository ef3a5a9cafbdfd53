"""On which scale labels that are numbers are trained: as they are, or as logarithms."""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import NDArray

from colonnade.errors import DataError

TargetScale = Literal["auto", "log", "linear"]
SKEWED = 4.0
"""The skewness of training labels from which on logarithms are trained. Below it they
cost validation R squared on some tables, and above it hardly on any
(docs/how-to-tune.md)."""


def scale_of(
    values: NDArray[np.float64], wanted: TargetScale, owner: str
) -> Literal["log", "linear"]:
    """The scale for these training labels; "auto" takes logarithms of labels that are
    positive and skewed, where that makes them less so."""
    if wanted == "auto":
        return "log" if is_skewed(values) else "linear"
    if wanted == "log":
        refuse_no_logarithm(values, owner)
    return wanted


def is_skewed(values: NDArray[np.float64]) -> bool:
    """Whether positive numbers have a long tail of large ones, which their logarithms
    have not: their skewness is at least `SKEWED`, and more than twice that of the
    logarithms."""
    if values.min() <= 0:
        return False
    skew = skewness(values)
    return skew >= SKEWED and skew > 2 * abs(skewness(np.log(values)))


def skewness(values: NDArray[np.float64]) -> float:
    """The third central moment over the cubed standard deviation; 0 where all values are
    the same."""
    centred = values - values.mean()
    deviation = centred.std()
    return float((centred**3).mean() / deviation**3) if deviation > 0 else 0.0


def refuse_no_logarithm(values: NDArray[np.float64], owner: str) -> None:
    """Raise where a label has no logarithm."""
    count = int((values <= 0).sum())
    if count:
        raise DataError(
            f"'{owner}' has {count} labels of 0 or below, and a log scale needs numbers"
            ' above 0. Set target_scale = "linear" under [data], or remove these rows.'
        )
