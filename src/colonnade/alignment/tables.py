"""Ids of a party's file: its id columns and no other, which an alignment reads before anybody trains; and of a whole
table, as they are compared."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from colonnade.alignment.ids import Ids, comparable
from colonnade.alignment.keys import name_of
from colonnade.alignment.settings import AlignmentSettings
from colonnade.datasets.columns import check_present
from colonnade.datasets.table_files import EXTENSIONS, dialect_of
from colonnade.errors import DataError

if TYPE_CHECKING:
    import pandas as pd

    from colonnade.datasets.table import Table


def with_comparable_ids(table: Table, settings: AlignmentSettings) -> Table:
    """The table with its ids as they are compared, so that they join rows, divide them and name their accounts."""
    if settings.ids == "exact":
        return table
    ids = np.array(comparable(table.ids.tolist(), settings), dtype=np.str_)
    empty = int((ids == "").sum())
    if empty:
        raise DataError(
            f"'{table.owner}' has {empty} rows whose ids are empty once normalised. Remove such rows, or name them."
        )
    again = len(ids) - len(np.unique(ids))
    if again:
        raise DataError(
            f"'{table.owner}' has {again} rows whose id is an earlier row's once normalised: they differ in capitals, "
            'spaces or Unicode form alone, and an id must name one row. Keep one row per id, or set ids = "exact" '
            "under [alignment]."
        )
    return replace(table, ids=ids)


def ids_of(table: Table) -> tuple[Ids, ...]:
    """What is compared of a table, by each of its keys in turn; or by its ids."""
    if not table.keys:
        return (Ids.of(table.owner, [table.ids.tolist()]),)
    return tuple(Ids.of_texts(table.owner, texts) for texts in table.keys)


def shared(table: Table, found: Sequence[NDArray[np.int64]]) -> Table:
    """The rows that each key matched, called by it, in the order of these names."""
    some = matched_names(table, found).taking(np.concatenate(found))
    return some.in_order(np.sort(some.ids))


def matched_names(table: Table, found: Sequence[NDArray[np.int64]]) -> Table:
    """The whole table, the rows that a key matched being called by it."""
    if not table.keys:
        return table
    names = [name_of(at, text) for at, rows in enumerate(found) for text in table.keys[at][rows].tolist()]
    return renamed(table, np.concatenate(found), names)


def renamed(table: Table, rows: NDArray[np.int64], names: Sequence[str] | NDArray[np.str_]) -> Table:
    """The whole table, these rows being called so. No other row is: a row is called by a key that it alone has, and
    whoever had the same would have been matched with it."""
    ids = table.ids.astype(object)
    ids[rows] = list(names)
    return replace(table, ids=ids.astype(np.str_), own=table.ids, keys=())


def read_ids(path: str | Path, *, owner: str, columns: Sequence[str], settings: AlignmentSettings) -> Ids:
    """The ids in a .csv, .csv.gz or .parquet file, whose columns may have any names besides."""
    frame = read_columns(path, owner=owner, columns=columns)
    return Ids.of(owner, [frame[name] for name in columns], settings)


def read_columns(path: str | Path, *, owner: str, columns: Sequence[str]) -> pd.DataFrame:
    """These columns of a file and no others, of a CSV file as text."""
    path = Path(path)
    if not path.name.lower().endswith(EXTENSIONS):
        raise DataError(f"'{owner}' names the table {path}, and a table's name must end in {', '.join(EXTENSIONS)}.")
    if not path.is_file():
        raise DataError(f"'{owner}' names the table {path}, and there is no such file. Correct its path.")
    read = _parquet if path.name.lower().endswith(".parquet") else _csv
    return read(path, owner, list(columns))


def _csv(path: Path, owner: str, columns: list[str]) -> pd.DataFrame:
    import pandas as pd

    try:
        dialect = dialect_of(path)
        sep, encoding = dialect.separator, dialect.encoding
        present = [str(name) for name in pd.read_csv(path, nrows=0, sep=sep, encoding=encoding).columns]
        check_present(columns, present, owner=owner, part="id")
        frame = pd.read_csv(path, usecols=columns, dtype=str, keep_default_na=False, sep=sep, encoding=encoding)
        if not isinstance(frame.index, pd.RangeIndex):  # rows wider than the header
            raise _unreadable(path, owner, "a CSV file whose rows all fit its header")
    except pd.errors.EmptyDataError:
        raise DataError(f"'{owner}' has an empty table: {path} holds nothing, not even a header.") from None
    except (OSError, EOFError, UnicodeDecodeError, csv.Error, pd.errors.ParserError):
        raise _unreadable(path, owner, "a CSV file whose rows all fit its header") from None
    return frame


def _parquet(path: Path, owner: str, columns: list[str]) -> pd.DataFrame:
    import pyarrow
    import pyarrow.parquet

    try:
        check_present(columns, [str(name) for name in pyarrow.parquet.read_schema(path).names], owner=owner, part="id")
        frame: pd.DataFrame = pyarrow.parquet.read_table(path, columns=columns).to_pandas(ignore_metadata=True)
    except (OSError, pyarrow.ArrowException):
        raise _unreadable(path, owner, "a Parquet file") from None
    return frame


def _unreadable(path: Path, owner: str, expected: str) -> DataError:
    """The reader's own text is left out, because it may quote cells."""
    return DataError(f"'{owner}' has a table that cannot be read: {path} is not {expected}. Export it again.")
