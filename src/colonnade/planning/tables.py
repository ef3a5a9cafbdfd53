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
from colonnade.datasets.preprocess import are_in_a_row
from colonnade.datasets.readings import NUMBERS, read, recognise
from colonnade.datasets.table_files import (
    EXTENSIONS,
    GAPS,
    check_names,
    csv_header,
    dialect_of,
    is_parquet,
    readable,
)
from colonnade.errors import DataError
from colonnade.first_use import parquet
from colonnade.planning.names import ROW_NUMBERS, id_strength

if TYPE_CHECKING:
    import pandas as pd

FEW = 20
"""A label with at most so many different values is taken for classes."""
MOST_NAMES_LENGTH = 64
"""A party's name has at most so many letters."""
UNNAMED = "Unnamed: {}"
"""What pandas calls a column without a name, by its place from 0."""
WHOLE_AS_FLOAT = re.compile(r"[+-]?[0-9]+(\.0+|(\.[0-9]+)?[eE][+-]?[0-9]+)")
"""A whole number that went through floating point: 1001.0, 1e+06 or 1.001E3."""


@dataclass(frozen=True)
class Column:
    """What the cells of a column look like.

    Attributes:
        name: The column's name.
        rows: The rows of its table.
        distinct: Its different values, gaps not counted.
        gaps: Its cells that are empty, or words for a gap.
        numeric: Whether its values are numbers, as they are or as text is read.
        whole: Whether these are numbers without a fraction.
        odd: The cells that keep a column of numbers from being one.
        way: How its text is read as numbers or times; "" where it is not.
        repeated: Its values that more than one row has.
        most_often: In how many rows its most frequent value is.
        is_fractional: Whether its numbers are written with a fraction, be it .0.
        is_as_float: Whether its whole numbers went through floating point, as 1001.0.
        is_in_a_row: Whether its values are 0, 1, 2 and so on, or 1, 2, 3 and so on.
    """

    name: str
    rows: int
    distinct: int
    gaps: int
    numeric: bool
    whole: bool
    odd: int = 0
    way: str = ""
    repeated: int = 0
    most_often: int = 1
    is_fractional: bool = False
    is_as_float: bool = False
    is_in_a_row: bool = False

    @property
    def is_unique(self) -> bool:
        return self.rows > 0 and self.distinct == self.rows

    @property
    def distinct_share(self) -> float:
        """The share of its values that are different: 1 for an id."""
        return self.distinct / max(self.rows - self.gaps, 1)

    @property
    def is_constant(self) -> bool:
        return self.distinct <= 1 and not (self.distinct == 1 and self.gaps)

    @property
    def is_row_numbers(self) -> bool:
        """Whether pandas wrote its row numbers here, which say nothing of a row.

        Some may be there twice: frames that are joined keep the numbers of each.
        """
        is_named_so = ROW_NUMBERS.fullmatch(self.name) is not None
        return (
            is_named_so and self.whole and not self.gaps and self.distinct_share > 0.5
        )

    @property
    def could_be_id(self) -> bool:
        is_id = self.is_unique and (self.whole or not self.numeric)
        return is_id and not self.is_row_numbers

    @property
    def identifies(self) -> bool:
        """Nearly every row has its own value: as a feature it would be learned by
        heart, and show whose row it is."""
        if self.distinct <= FEW or self.distinct_share <= 0.9:
            return False
        is_text = not self.numeric and not self.way
        return is_text or (self.whole and id_strength(self.name) > 0)

    @property
    def nearly_numeric(self) -> bool:
        """Whether a few odd cells make all its numbers categories."""
        return 0 < self.odd <= 0.2 * (self.rows - self.gaps)

    @property
    def could_be_label(self) -> bool:
        few = self.distinct <= max(FEW, self.rows // 20)
        is_filled = self.gaps < 0.5 * self.rows and self.distinct >= 2
        return is_filled and (self.numeric or few) and not self.is_row_numbers


@dataclass(frozen=True, eq=False)
class SeenTable:
    """A file that may become a party's table."""

    path: Path
    frame: pd.DataFrame

    @property
    def owner(self) -> str:
        """A party's name, from the file's."""
        stem = self.path.name[: -len(_extension(self.path))]
        letters = "".join(c if c.isalnum() or c in "_-" else "_" for c in stem)
        return letters[:MOST_NAMES_LENGTH].strip("_") or "party"

    @property
    def rows(self) -> int:
        return len(self.frame)

    @cached_property
    def columns(self) -> dict[str, Column]:
        return {name: _column(self.frame[name]) for name in self.frame.columns}

    def renamed(self, column: str, name: str) -> SeenTable:
        """The same table with another name for a column."""
        if column == name:
            return self
        return SeenTable(self.path, self.frame.rename(columns={column: name}))

    def ids(self, column: str, write: Callable[[str], str] = str) -> frozenset[str]:
        return frozenset(map(write, self.frame[column].astype(str)))

    def classes(self, column: str) -> dict[Any, int]:
        """The classes of a label and how many rows have each, the most frequent first.

        They are the values that training will know: text that is a number is one.
        """
        cells = self.frame[column]
        values = without_gap_words(_filled(cells)).dropna()
        seen = self.columns[column]
        if seen.numeric and not seen.way:
            values = values.astype(np.float64)
            values = values.astype(np.int64) if seen.whole else values
        return {
            _plain(value): int(count) for value, count in values.value_counts().items()
        }


def look(path: Path) -> SeenTable:
    """Read a file, or say why it cannot be a table."""
    _extension(path)  # refuses other files
    if not path.is_file():
        raise DataError(
            f"There is no file {path}. Give the tables as they are called, or leave"
            " them out to be asked."
        )
    with readable(path):
        frame = _read_parquet(path) if is_parquet(path) else _read_csv(path)
    if not len(frame) or len(frame.columns) < 2:
        raise DataError(
            f"{path} has {len(frame)} rows and {len(frame.columns)} columns, and a"
            " table needs rows, an id column and another column. Is it separated by"
            " commas, semicolons, tabs or bars?"
        )
    return SeenTable(path, frame)


def _read_parquet(path: Path) -> pd.DataFrame:
    """All columns of a Parquet file, also those that pandas would take for its index."""
    table: Any = parquet.read_table(path)
    frame: pd.DataFrame = table.to_pandas(ignore_metadata=True)
    frame.columns = frame.columns.astype(str)
    return frame


def _read_csv(path: Path) -> pd.DataFrame:
    """All cells of a CSV file as text. The row numbers that pandas wrote may be without
    a name, and no other column."""
    import pandas as pd

    names = csv_header(path)
    how: dict[str, Any] = {"dtype": str, "keep_default_na": False}
    frame: pd.DataFrame = pd.read_csv(path, **how, **dialect_of(path))
    unnamed = [at for at, name in enumerate(names) if not name]
    are_row_numbers = (
        len(unnamed) == 1 and _column(frame[UNNAMED.format(unnamed[0])]).is_row_numbers
    )
    named = [name for name in names if name] if are_row_numbers else names
    check_names(named, str(path), "its header")
    return frame


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


def whole_number(text: str) -> str:
    """The digits of a whole number that went through floating point; other text as it
    is."""
    bare = text.strip()
    if WHOLE_AS_FLOAT.fullmatch(bare) is None:
        return text
    value = float(bare)
    return str(int(value)) if value.is_integer() and abs(value) < 2**53 else text


def _extension(path: Path) -> str:
    for extension in sorted(EXTENSIONS, key=len, reverse=True):
        if path.name.lower().endswith(extension):
            return extension
    raise DataError(
        f"{path} cannot be a table: its name must end in one of"
        f" {', '.join(EXTENSIONS)}. Save it as one."
    )


def _filled(cells: pd.Series[Any]) -> pd.Series[Any]:
    """The cells that are no gap."""
    if _is_text(cells):
        return cells[~(cells.isna() | cells.isin(GAPS))]
    return cells.dropna()


def _is_text(cells: pd.Series[Any]) -> bool:
    import pandas as pd

    return pd.api.types.is_object_dtype(cells.dtype) or pd.api.types.is_string_dtype(
        cells.dtype
    )


def _column(cells: pd.Series[Any]) -> Column:
    """What the cells of a column look like."""
    import pandas as pd

    filled = _filled(cells)
    is_bool = pd.api.types.is_bool_dtype(cells.dtype)
    numbers = None if is_bool else pd.to_numeric(filled, errors="coerce")
    odd = 0 if numbers is None else int(numbers.isna().sum())
    is_numeric = numbers is not None and len(filled) > 0 and not odd
    way = ""
    if numbers is not None and not is_numeric:
        way = recognise(filled) or ""
    values = np.empty(0)
    if way:
        values = read(filled, way)
        filled = filled[~np.isnan(values)]  # words that stand for gaps are no values
        values = values[~np.isnan(values)]
        is_numeric = way in NUMBERS
        odd = 0
    elif is_numeric:
        assert numbers is not None
        values = numbers.to_numpy(dtype=np.float64)
    elif _is_text(cells):
        filled = without_gap_words(filled).dropna()
    is_whole = is_numeric and bool((values % 1 == 0).all())
    gaps = len(cells) - len(filled)
    is_as_float = is_whole and not way and _are_floats(filled)
    counts = filled.value_counts()
    counts = counts[counts > 0]  # a category may have no cells
    return Column(
        name=str(cells.name),
        rows=len(cells),
        distinct=len(counts),
        gaps=gaps,
        numeric=is_numeric,
        whole=is_whole,
        odd=odd,
        way=way,
        repeated=int((counts > 1).sum()),
        most_often=int(counts.max()) if len(counts) else 0,
        # a gap in a column makes floats of whole numbers
        is_fractional=is_numeric and (not is_whole or (is_as_float and not gaps)),
        is_as_float=is_as_float,
        is_in_a_row=is_whole and len(values) > 0 and are_in_a_row({*values.tolist()}),
    )


def _are_floats(cells: pd.Series[Any]) -> bool:
    """Whether whole numbers are of a float type, or written as 1001.0 or 1e+06."""
    if not _is_text(cells):
        return cells.dtype.kind == "f"
    texts = cells.astype(str).str.strip()
    return bool(texts.str.fullmatch(WHOLE_AS_FLOAT.pattern).all())


def _plain(value: Any) -> Any:
    """A value as Python has it, which can be written into a file."""
    return value.item() if isinstance(value, np.generic) else value
