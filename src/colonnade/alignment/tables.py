"""The id columns of a party's file, and no other: what an alignment reads before anybody trains."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from colonnade.alignment.ids import Ids
from colonnade.alignment.settings import AlignmentSettings
from colonnade.datasets.columns import check_present
from colonnade.datasets.table_files import EXTENSIONS
from colonnade.errors import DataError

if TYPE_CHECKING:
    import pandas as pd


def read_ids(path: str | Path, *, owner: str, columns: Sequence[str], settings: AlignmentSettings) -> Ids:
    """The ids in a .csv, .csv.gz or .parquet file, whose columns may have any names besides."""
    path = Path(path)
    if not path.name.lower().endswith(EXTENSIONS):
        raise DataError(f"'{owner}' names the table {path}, and a table's name must end in {', '.join(EXTENSIONS)}.")
    if not path.is_file():
        raise DataError(f"'{owner}' names the table {path}, and there is no such file. Correct its path.")
    read = _parquet if path.name.lower().endswith(".parquet") else _csv
    frame = read(path, owner, list(columns))
    return Ids.of(owner, [frame[name] for name in columns], settings)


def _csv(path: Path, owner: str, columns: list[str]) -> pd.DataFrame:
    import pandas as pd

    try:
        present = [str(name) for name in pd.read_csv(path, nrows=0, encoding="utf-8-sig").columns]
        check_present(columns, present, owner=owner, part="id")
        frame = pd.read_csv(path, usecols=columns, dtype=str, keep_default_na=False, encoding="utf-8-sig")
        if not isinstance(frame.index, pd.RangeIndex):  # rows wider than the header
            raise _unreadable(path, owner, "a UTF-8 CSV file whose rows all fit its header")
    except pd.errors.EmptyDataError:
        raise DataError(f"'{owner}' has an empty table: {path} holds nothing, not even a header.") from None
    except (OSError, EOFError, UnicodeDecodeError, pd.errors.ParserError):
        raise _unreadable(path, owner, "a UTF-8 CSV file whose rows all fit its header") from None
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
