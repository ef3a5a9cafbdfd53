"""Reading a party's file: CSV, gzipped CSV, or Parquet, told apart by the extension.

Ids are read as text, exactly as written: "007" stays "007", "NA" is an id like any other, and a long whole
number never passes through a float. Only the columns asked for are kept.
"""

from __future__ import annotations

import csv
import gzip
import io
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from colonnade.datasets.columns import choose_columns
from colonnade.errors import DataError

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["EXTENSIONS", "read_frame"]

EXTENSIONS = (".csv", ".csv.gz", ".parquet")

# What counts as a gap in a CSV cell: pandas' own list, written out because it must not apply to ids.
# fmt: off
GAPS = [
    "", "#N/A", "#N/A N/A", "#NA", "-1.#IND", "-1.#QNAN", "-NaN", "-nan", "1.#IND", "1.#QNAN", "<NA>", "N/A", "NA",
    "NULL", "NaN", "None", "n/a", "nan", "null",
]
# fmt: on


def read_frame(
    path: str | Path, *, owner: str, id_column: str, label: str | None = None, columns: Sequence[str] | None = None
) -> pd.DataFrame:
    """The id, label and feature columns of the file, with the id column as text."""
    path = Path(path)
    if not path.name.lower().endswith(EXTENSIONS):
        raise DataError(
            f"'{owner}' names the table {path}, and a table's name must end in one of {', '.join(EXTENSIONS)}. "
            f"Save it as one of these."
        )
    if not path.is_file():
        raise DataError(f"'{owner}' names the table {path}, and there is no such file. Correct its path.")
    read = _read_parquet if path.name.lower().endswith(".parquet") else _read_csv
    return read(path, owner, id_column, label, columns)


def _read_csv(path: Path, owner: str, id_column: str, label: str | None, columns: Sequence[str] | None) -> pd.DataFrame:
    import pandas as pd

    try:
        present = _csv_header(path)
        if present:
            wanted = _wanted(present, owner, id_column, label, columns)
            frame = pd.read_csv(
                path,
                dtype={id_column: str},
                na_values={name: GAPS for name in present if name != id_column},
                keep_default_na=False,
                encoding="utf-8-sig",
                low_memory=False,
            )
            # Where all rows are wider than the header, pandas takes the first column as the index and shifts the rest.
            if not isinstance(frame.index, pd.RangeIndex):
                raise csv.Error("rows wider than the header")
            return frame[wanted]
    except (OSError, EOFError, UnicodeDecodeError, csv.Error, pd.errors.ParserError) as error:
        raise _unreadable(path, owner, "a UTF-8 CSV file whose rows all fit its header", error) from None
    raise DataError(f"'{owner}' has an empty table: {path} holds nothing, not even a header. Export it again.")


def _csv_header(path: Path) -> list[str]:
    """The names in the first line; pandas would rename duplicates silently, so it is not asked."""
    packed = path.name.lower().endswith(".gz")
    with gzip.open(path) if packed else path.open("rb") as stream:
        return next(csv.reader(io.TextIOWrapper(stream, encoding="utf-8-sig", newline="")), [])


def _read_parquet(
    path: Path, owner: str, id_column: str, label: str | None, columns: Sequence[str] | None
) -> pd.DataFrame:
    import pyarrow
    import pyarrow.parquet

    try:
        present = [str(name) for name in pyarrow.parquet.read_schema(path).names]
        wanted = _wanted(present, owner, id_column, label, columns)
        read = pyarrow.parquet.read_table(path, columns=wanted)
        frame: pd.DataFrame = read.to_pandas(ignore_metadata=True)
    except (OSError, pyarrow.ArrowException) as error:
        raise _unreadable(path, owner, "a Parquet file", error) from None
    return frame[wanted]


def _wanted(
    present: Sequence[str], owner: str, id_column: str, label: str | None, columns: Sequence[str] | None
) -> list[str]:
    features = choose_columns(present, owner=owner, id_column=id_column, label=label, columns=columns)
    return [id_column, *features] if label is None else [id_column, label, *features]


def _unreadable(path: Path, owner: str, expected: str, error: Exception) -> DataError:
    """Says what was expected; the reader's own text is left out, because it may quote cells."""
    return DataError(
        f"'{owner}' has a table that cannot be read: {path} is not {expected} ({type(error).__name__}). "
        f"Export it again."
    )
