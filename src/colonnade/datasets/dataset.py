"""A named data set in memory, the same whichever files it came from.

Images, voxels, points, features (nameless numbers, used as published) and views
(pictures of one object from several sides) are one array with a row per person or
object. Tables are a dict of columns, since these have different types. Labels are class
numbers from 0; `Dataset.classes` gives their names.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from colonnade.errors import DataError
from colonnade.first_use import pandas as pd

Kind = Literal["image", "tabular", "voxels", "points", "features", "views"]


@dataclass(frozen=True, eq=False, repr=False)
class Rows:
    """Features and class numbers of the same rows. `x` is an array, or for tables a
    dict of columns."""

    x: NDArray[Any] | dict[str, NDArray[Any]]
    y: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.y)

    def __repr__(self) -> str:
        shape = (
            f"{len(self.x)} columns"
            if isinstance(self.x, dict)
            else f"shape {self.x.shape}"
        )
        return f"Rows({len(self)} rows, {shape})"

    def array(self) -> NDArray[Any]:
        """The features as one array; a table must hold numbers only."""
        if not isinstance(self.x, dict):
            return self.x
        words = [
            name for name, column in self.x.items() if column.dtype.kind not in "iuf"
        ]
        if words:
            raise DataError(
                f"This table has columns that are not numbers, such as {words[0]!r},"
                " and cannot be one array. Take frame(), and a Preprocessor."
            )
        return np.stack(list(self.x.values()), axis=1)

    def frame(self) -> pd.DataFrame:
        """The features as a data frame; images, voxels and points have one column per
        value, named x0, x1, ..."""
        if isinstance(self.x, dict):
            return pd.DataFrame(self.x)
        flat = self.x.reshape(len(self), -1)
        return pd.DataFrame(flat, columns=[f"x{at}" for at in range(flat.shape[1])])


Parts = tuple[Rows, Rows | None]


@dataclass(frozen=True, eq=False)
class Dataset:
    """A data set by name: its training rows, and its test rows where the public has
    agreed on some."""

    name: str
    kind: Kind
    train: Rows
    test: Rows | None
    classes: tuple[str, ...]

    @property
    def columns(self) -> tuple[str, ...]:
        """The column names of a table; none for images, voxels and points."""
        return tuple(self.train.x) if isinstance(self.train.x, dict) else ()


def content_checksum(parts: Parts) -> str:
    """SHA-256 over the values themselves, so that the same data in another file format
    has the same checksum."""
    digest = hashlib.sha256()
    for rows in parts:
        if rows is None:
            digest.update(b"no test rows")
            continue
        columns = rows.x if isinstance(rows.x, dict) else {"x": rows.x}
        for name, values in [*columns.items(), ("y", rows.y)]:
            digest.update(f"{name}|{values.dtype.kind}|{values.shape}|".encode())
            digest.update(_canonical(values))
    return digest.hexdigest()


def _canonical(values: NDArray[Any]) -> bytes | memoryview:
    if values.dtype.kind in "US":
        return "\x1f".join(values.tolist()).encode()
    if values.dtype == np.uint8:
        return np.ascontiguousarray(values).data
    return np.ascontiguousarray(
        values, dtype="<f8" if values.dtype.kind == "f" else "<i8"
    ).data
