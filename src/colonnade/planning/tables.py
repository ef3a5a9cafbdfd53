"""A first look at a file that may become a party's table: its columns, and which of
them could be ids or labels.

Cells of a CSV are read as text, so that an id such as 007 stays what it is.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from colonnade.datasets.fitted import without_gap_words
from colonnade.datasets.readings import NUMBERS, read, recognise
from colonnade.datasets.table_files import (
    EXTENSIONS,
    GAPS,
    check_names,
    csv_header,
    dialect_of,
    readable,
)
from colonnade.errors import DataError

if TYPE_CHECKING:
    import pandas as pd

FEW = 20
"""A label with at most so many different values is taken for classes."""
ID_NAME = re.compile(
    r"(^|_|\b)(id|ids|uuid|guid|key|ssn|patient|person|customer|client|member|user|account)($|_|\b)",
    re.I,
)


@dataclass(frozen=True)
class Column:
    """What the cells of a column look like."""

    name: str
    rows: int
    distinct: int  # different values, gaps not counted
    gaps: int
    numeric: bool  # as they are, or as their text is read
    whole: bool  # numbers without a fraction
    odd: int = 0  # cells that keep a column of numbers from being one
    way: str = ""  # how its text is read as numbers or times; "": it is not

    @property
    def is_unique(self) -> bool:
        return self.rows > 0 and self.distinct == self.rows

    @property
    def is_constant(self) -> bool:
        return self.distinct <= 1 and not (self.distinct == 1 and self.gaps)

    @property
    def could_be_id(self) -> bool:
        return self.is_unique and (self.whole or not self.numeric)

    @property
    def identifies(self) -> bool:
        """Nearly every row has its own value: as a feature it would be learned by
        heart, and show whose row it is."""
        many = (
            self.distinct > 0.9 * max(self.rows - self.gaps, 1) and self.distinct > FEW
        )
        return many and (
            (not self.numeric and not self.way)
            or (self.whole and bool(ID_NAME.search(self.name)))
        )

    @property
    def nearly_numeric(self) -> bool:
        """Whether a few odd cells make all its numbers categories."""
        return 0 < self.odd <= 0.2 * (self.rows - self.gaps)

    @property
    def could_be_label(self) -> bool:
        few = self.distinct <= max(FEW, self.rows // 20)
        return (
            self.gaps < 0.5 * self.rows and self.distinct >= 2 and (self.numeric or few)
        )


@dataclass(frozen=True, eq=False)
class SeenTable:
    """A file that may become a party's table."""

    path: Path
    frame: pd.DataFrame

    @property
    def owner(self) -> str:
        """A party's name, from the file's."""
        stem = self.path.name[: -len(_extension(self.path))]
        return (
            "".join(c if c.isalnum() or c in "_-" else "_" for c in stem)[:64].strip(
                "_"
            )
            or "party"
        )

    @property
    def rows(self) -> int:
        return len(self.frame)

    @cached_property
    def columns(self) -> dict[str, Column]:
        return {name: _column(self.frame[name]) for name in self.frame.columns}

    def renamed(self, column: str, name: str) -> SeenTable:
        """The same table with another name for a column."""
        return (
            self
            if column == name
            else SeenTable(self.path, self.frame.rename(columns={column: name}))
        )

    def ids(self, column: str, write: Callable[[str], str] = str) -> frozenset[str]:
        return frozenset(map(write, self.frame[column].astype(str)))


def look(path: Path) -> SeenTable:
    """Read a file, or say why it cannot be a table."""
    import pandas as pd

    extension = _extension(path)
    if not path.is_file():
        raise DataError(
            f"There is no file {path}. Give the tables as they are called, or leave"
            " them out to be asked."
        )
    with readable(path):
        if extension == ".parquet":
            frame = pd.read_parquet(path)
            frame.columns = frame.columns.astype(str)
        else:
            check_names(csv_header(path), str(path), "its header")
            frame = pd.read_csv(
                path, dtype=str, keep_default_na=False, **dialect_of(path)
            )
    if not len(frame) or len(frame.columns) < 2:
        raise DataError(
            f"{path} has {len(frame)} rows and {len(frame.columns)} columns, and a"
            " table needs rows, an id column and another column. Is it separated by"
            " commas, semicolons, tabs or bars?"
        )
    return SeenTable(path, frame)


def files_in(folder: Path) -> list[Path]:
    """All files that could be tables."""
    return sorted(
        path
        for path in folder.iterdir()
        if path.is_file() and path.name.lower().endswith(EXTENSIONS)
    )


def seen_in(folder: Path) -> tuple[list[SeenTable], list[str]]:
    """The tables in a folder, and of each other file that could be one by its name why
    it is none."""
    tables = []
    unfit = []
    for path in files_in(folder):
        try:
            tables.append(look(path))
        except DataError as error:
            unfit.append(f"{path.name} is left out: {error}")
    return tables, unfit


def _extension(path: Path) -> str:
    for extension in sorted(EXTENSIONS, key=len, reverse=True):
        if path.name.lower().endswith(extension):
            return extension
    raise DataError(
        f"{path} cannot be a table: its name must end in one of"
        f" {', '.join(EXTENSIONS)}. Save it as one."
    )


def _column(cells: pd.Series[Any]) -> Column:
    import pandas as pd

    name = str(cells.name)
    text = pd.api.types.is_object_dtype(cells.dtype) or pd.api.types.is_string_dtype(
        cells.dtype
    )
    filled = cells[~(cells.isna() | cells.isin(GAPS))] if text else cells.dropna()
    numbers = (
        pd.to_numeric(filled, errors="coerce")
        if not pd.api.types.is_bool_dtype(cells.dtype)
        else None
    )
    numeric = numbers is not None and len(filled) > 0 and not bool(numbers.isna().any())
    is_whole = (
        numeric and bool((numbers % 1 == 0).all()) if numbers is not None else False
    )
    odd_cells = int(numbers.isna().sum()) if numbers is not None else 0
    way = "" if numeric or numbers is None else recognise(cells[filled.index]) or ""
    if way:  # words that stand for gaps are no values
        values = read(filled, way)
        filled = filled[~np.isnan(values)]
        odd_cells = 0
        numeric = way in NUMBERS
        is_whole = numeric and bool((values[~np.isnan(values)] % 1 == 0).all())
    elif text:
        filled = without_gap_words(filled).dropna()
    return Column(
        name,
        len(cells),
        int(filled.nunique()),
        len(cells) - len(filled),
        numeric,
        is_whole,
        odd_cells,
        way,
    )
