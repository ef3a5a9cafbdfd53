"""Positions of rows, as the preprocessor and the labels take them: checked once, in one place."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from colonnade.errors import DataError

__all__ = ["RowNumbers", "row_numbers"]

RowNumbers = Tensor | NDArray[np.int64] | Sequence[int]


def row_numbers(rows: RowNumbers | None, total: int, *, owner: str) -> NDArray[np.int64]:
    """The positions as an int64 array; None means all rows. Refuses none, non-integers, and what lies outside."""
    if rows is None:
        return np.arange(total, dtype=np.int64)
    given: NDArray[Any] = rows.cpu().numpy() if isinstance(rows, Tensor) else np.asarray(rows)
    if given.ndim != 1 or len(given) == 0 or given.dtype.kind not in "iu":
        raise DataError(
            f"'{owner}' was given training rows of shape {given.shape} and type {given.dtype}, and they must be a "
            f"non-empty list of row numbers. Pass Split.train."
        )
    if given.min() < 0 or given.max() >= total:
        raise DataError(
            f"'{owner}' was given row numbers from {given.min()} to {given.max()}, and its table has rows 0 to "
            f"{total - 1}. Split the rows of this table, not of another."
        )
    return given.astype(np.int64)
