"""A large table's columns outside memory: one mapped array with a row per column, so
that a column is in one piece.

Numbers are kept as float64, which they would become anyway; a category as its place in
the column's list of words. A column gives what a data frame's would: the same numbers,
or categories with the same text.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from colonnade.core.files import let_go, mapped_array
from colonnade.datasets.fitted import numbers, text
from colonnade.first_use import pandas as pd


class Columns:
    """Columns to be read like a data frame's: `columns`, `len`, and by name a Series
    that is a view of the file."""

    def __init__(
        self,
        names: Sequence[str],
        cells: NDArray[np.float64],
        words: Mapping[str, Sequence[str]],
    ) -> None:
        self.columns = list(names)
        self.cells = cells
        self.words = words
        self._place = {name: at for at, name in enumerate(self.columns)}

    def __len__(self) -> int:
        return int(self.cells.shape[1])

    def __getitem__(self, name: str) -> pd.Series[Any]:
        cells = self.cells[self._place[name]]
        if name not in self.words:
            return pd.Series(np.asarray(cells), name=name, copy=False)
        codes = np.where(np.isnan(cells), -1.0, cells).astype(np.int64)
        kind = pd.CategoricalDtype(pd.Index(self.words[name], dtype=object))
        return pd.Series(
            pd.Categorical.from_codes(codes, dtype=kind), name=name, copy=False
        )

    def take(self, rows: NDArray[np.int64]) -> Columns:
        """These rows in this order, one column after the other."""
        moved = mapped_array((len(self.columns), len(rows)))
        for place in range(len(self.columns)):
            np.take(self.cells[place], rows, out=moved[place])
        let_go(self.cells)
        let_go(moved)
        return Columns(self.columns, moved, self.words)


class Filling:
    """Columns while they are read, some rows at a time."""

    def __init__(self, names: Sequence[str], most: int) -> None:
        self.names = list(names)
        self.rows = 0
        self.cells = mapped_array((len(self.names), most))
        self.words: dict[str, dict[str, int]] = {}

    def add(self, frame: pd.DataFrame, at: int, as_numbers: Mapping[str, bool]) -> None:
        """Add rows from row `at` on. `as_numbers` has the columns to be filled, and
        whether each holds numbers."""
        for place, name in enumerate(self.names):
            if name in as_numbers:
                values = (
                    numbers(frame[name])
                    if as_numbers[name]
                    else self._codes(name, frame[name])
                )
                self.cells[place, at : at + len(frame)] = values
        self.rows = max(self.rows, at + len(frame))
        let_go(self.cells)

    def done(self) -> Columns:
        words = {name: list(places) for name, places in self.words.items()}
        return Columns(self.names, self.cells[:, : self.rows], words)

    def forget(self, names: Collection[str]) -> None:
        """Forget the words of these columns, which are read again."""
        self.words = {
            name: words for name, words in self.words.items() if name not in names
        }

    def _codes(self, name: str, cells: pd.Series[Any]) -> NDArray[np.float64]:
        """Each word's place in the list of this column's words; a gap has none."""
        places_of = self.words.setdefault(name, {})
        codes, words = pd.factorize(text(cells))
        places = np.array(
            [places_of.setdefault(str(word), len(places_of)) for word in words],
            dtype=np.float64,
        )
        return np.where(cells.isna().to_numpy(dtype=bool), np.nan, places[codes])
