"""Reading a party's file: CSV, gzipped CSV, or Parquet, by its extension; and what
cells of a CSV may hold.

A CSV file may be separated by commas, semicolons, tabs or bars, and be written in UTF-8
(with or without a mark at its beginning), in UTF-16 with its mark, or in the Western
European alphabet of Windows: its bytes tell (`dialect_of`).

Ids are read as text, exactly as written: "007" stays "007", "NA" is an id like any
other, and a long whole number never passes through a float. Only the columns asked for
are kept. A column is the id, the label, a feature, or unused, and never two of these,
which is checked before any cell is read (`choose_columns`). Messages show names of
columns only, never a cell.
"""

from __future__ import annotations

import codecs
import csv
import gzip
import io
import os
import re
import zlib
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from colonnade.datasets.readings import are_codes, is_text
from colonnade.errors import ConfigError, DataError, did_you_mean
from colonnade.first_use import pandas as pd
from colonnade.first_use import parquet, pyarrow

EXTENSIONS = (".csv", ".csv.gz", ".tsv", ".tsv.gz", ".parquet")

FORMULA = re.compile(r"'*[=+\-@\t\r\n]")
NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")

# What counts as a gap in a CSV cell: pandas' own list, written out because it must not
# apply to ids. fmt: off
GAPS = [
    "",
    "#N/A",
    "#N/A N/A",
    "#NA",
    "-1.#IND",
    "-1.#QNAN",
    "-NaN",
    "-nan",
    "1.#IND",
    "1.#QNAN",
    "<NA>",
    "N/A",
    "NA",
    "NULL",
    "NaN",
    "None",
    "n/a",
    "nan",
    "null",
]
# fmt: on


SEPARATORS = (",", ";", "\t", "|")
MARKS = {b"\xff\xfe": "utf-16", b"\xfe\xff": "utf-16"}


@dataclass(frozen=True)
class ColumnRoles:
    """What the columns of an owner's table are.

    Attributes:
        owner: Whose table it is.
        id: The column that names a row.
        label: The column to be predicted, if the owner has it.
        columns: The features; None: all columns but the id, the label and those aside.
        aside: Columns that say something else of a row, by the setting that names them.
        gaps: The owner's own words for a gap, in all columns but the id.
        as_text: Columns of a CSV file whose cells stay text, also where all are digits.
    """

    owner: str
    id: str
    label: str | None = None
    columns: Sequence[str] | None = None
    aside: Mapping[str, str] = field(default_factory=dict)
    gaps: Sequence[str] = ()
    as_text: Collection[str] = ()

    @property
    def beside(self) -> list[str]:
        """The label, and the columns aside."""
        return [*([] if self.label is None else [self.label]), *self.aside.values()]


def dialect_of(path: Path) -> dict[str, Any]:
    """How this CSV file is written, as pandas takes it: by its bytes, which are read
    once while it does not change."""
    stat = path.stat()
    separator, encoding = _dialect(path, stat.st_mtime_ns, stat.st_size)
    return {"sep": separator, "encoding": encoding}


@lru_cache(maxsize=256)
def _dialect(path: Path, written: int, size: int) -> tuple[str, str]:  # noqa: ARG001
    """Take the separator that gives the header most cells, and the next row as many."""
    encoding = _encoding(path)
    with (
        _opened(path) as stream,
        io.TextIOWrapper(stream, encoding=encoding, newline="") as text,
    ):
        lines = [line for line in text.readlines(1 << 16) if line]
    best = ","
    most = 1
    for separator in SEPARATORS:
        rows = filter(None, csv.reader(lines, delimiter=separator))
        header = len(next(rows, []))
        first = len(next(rows, []))
        if header > most and (
            best == "," == separator or first in (0, header) or most == 1
        ):
            best = separator
            most = header
    return best, encoding


def _encoding(path: Path) -> str:
    """The encoding: UTF-16 by its mark, UTF-8 if all bytes fit, else Windows'. A file
    with zero bytes is no text."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    utf8 = True
    with _opened(path) as stream:
        start = stream.read(2)
        if start in MARKS:
            return MARKS[start]
        part = start + stream.read(1 << 22)
        while part:
            if b"\x00" in part:
                raise csv.Error("zero bytes")
            if utf8:
                try:
                    decoder.decode(part)
                except UnicodeDecodeError:
                    utf8 = False
            part = stream.read(1 << 22)
    return "utf-8-sig" if utf8 else "cp1252"


def read_frame(path: str | Path, roles: ColumnRoles) -> pd.DataFrame:
    """The id, label and feature columns of the file and those `aside`, with the id
    column as text."""
    path = _table_at(path, roles.owner)
    with readable(path, f"'{roles.owner}'"):
        wanted = _columns_to_read(path, roles)
        if is_parquet(path):
            frame: pd.DataFrame = _parquet(path, wanted)
        else:
            frame = _csv(path, roles.id, kinds=kept_as_text(path, roles, wanted))
    return frame[wanted]


def without_gaps(frame: pd.DataFrame, roles: ColumnRoles) -> pd.DataFrame:
    """The table with gaps in the place of its owner's own words for a gap."""
    if not roles.gaps:
        return frame
    gaps = {_plain(word) for word in roles.gaps}
    columns = {
        name: cells if name == roles.id else cells.mask(_are_among(cells, gaps))
        for name, cells in frame.items()
    }
    return pd.DataFrame(columns, index=frame.index)


def _are_among(cells: pd.Series[Any], gaps: Collection[str]) -> pd.Series[bool]:
    """Which cells are one of these words; of numbers, which are one of these numbers."""
    if is_text(cells):
        plain = cells.astype(object).map(_plain, na_action="ignore")
        return plain.isin(gaps)
    return cells.isin([float(word) for word in gaps if NUMBER.fullmatch(word)])


def _plain(word: Any) -> str:
    """A word without differences in capitals and spaces."""
    return " ".join(str(word).casefold().split())


ROWS_SEEN = 65_536
BYTES_SEEN = 1 << 24
CODE_CELL = re.compile(
    rb"""(?:^|[,;\t|"\r\n])[ ]*(?:0[0-9]+|\+[0-9]{7,})[ ]*(?=[,;\t|"\r\n]|$)"""
)


def kept_as_text(
    path: Path, roles: ColumnRoles, wanted: Sequence[str]
) -> dict[str, str]:
    """The types of the feature columns of a CSV file that pandas must not make numbers:
    those that the roles name, and those of codes such as "01067"."""
    features = [name for name in wanted if name not in (roles.id, *roles.beside)]
    named = [name for name in features if name in roles.as_text]
    return dict.fromkeys([*named, *_code_columns(path, features)], "str")


def _code_columns(path: Path, features: list[str]) -> list[str]:
    """The columns of digits that are codes, by the first rows of the file."""
    with _opened(path) as stream:
        start = stream.read(BYTES_SEEN)
    may_have_codes = CODE_CELL.search(start) or start[:2] in MARKS
    if not features or not may_have_codes:
        return []
    head = _read_csv(path, usecols=features, dtype=str, nrows=ROWS_SEEN)
    return [name for name in features if are_codes(head[name])]


def read_columns(
    path: str | Path, *, owner: str, columns: Sequence[str]
) -> pd.DataFrame:
    """These columns of a file and no others; those of a CSV file as text."""
    path = _table_at(path, owner)
    with readable(path, f"'{owner}'"):
        check_present(columns, names_in(path), owner=owner, part="id")
        wanted = list(columns)
        return (
            _parquet(path, wanted)
            if is_parquet(path)
            else _read_csv(path, usecols=wanted, dtype=str)
        )


def _table_at(path: str | Path, owner: str) -> Path:
    """A table's path; raise unless there is a file that can be one."""
    path = Path(path)
    if not path.name.lower().endswith(EXTENSIONS):
        raise DataError(
            f"'{owner}' names the table {path}, and a table's name must end in one of"
            f" {', '.join(EXTENSIONS)}. Save it as one of these."
        )
    if not path.is_file():
        raise DataError(
            f"'{owner}' names the table {path}, and there is no such file. Correct its"
            " path."
        )
    return path


def is_parquet(path: Path) -> bool:
    return path.name.lower().endswith(".parquet")


def names_in(path: Path) -> list[str]:
    """The names of a file's columns."""
    return (
        [str(name) for name in parquet.read_schema(path).names]
        if is_parquet(path)
        else csv_header(path)
    )


def names_and_rows(path: Path, roles: ColumnRoles) -> tuple[list[str], int]:
    """The columns to read of a file, and how many rows it has at most."""
    with readable(path, f"'{roles.owner}'"):
        wanted = _columns_to_read(path, roles)
        if is_parquet(path):
            return wanted, parquet_shape(path)[0]
        with _opened(path) as stream:
            ends = [
                (part.count(b"\n"), part.count(b"\r"))
                for part in iter(lambda: stream.read(1 << 22), b"")
            ]
        # a quoted cell may hold more line ends
        return wanted, 1 + max(map(sum, zip(*ends, strict=True)))


def parquet_shape(path: Path) -> tuple[int, int]:
    """The numbers of rows and columns; 0 if it is no Parquet file."""
    try:
        metadata = parquet.read_metadata(path)
    except (OSError, pyarrow.ArrowException):
        return 0, 0
    return metadata.num_rows, metadata.num_columns


def pieces(
    path: Path,
    owner: str,
    wanted: list[str],
    rows: int,
    kinds: Mapping[str, str] | None = None,
) -> Iterator[pd.DataFrame]:
    """These columns, of which the first is the id, so many rows at a time; `kinds`
    gives types for columns of a CSV."""
    with readable(path, f"'{owner}'"):
        batches = (
            _batches(path, wanted, rows)
            if is_parquet(path)
            else _csv(path, wanted[0], rows=rows, kinds=kinds)
        )
        for frame in batches:
            yield frame[wanted]


def as_written(path: Path, columns: list[str], rows: int) -> Iterator[pd.DataFrame]:
    """These columns, so many rows at a time; those of a CSV file as text."""
    how = {"usecols": columns, "dtype": str, "chunksize": rows}
    yield from (
        _batches(path, columns, rows) if is_parquet(path) else _read_csv(path, **how)
    )


def _batches(path: Path, wanted: list[str], rows: int) -> Iterator[pd.DataFrame]:
    with parquet.ParquetFile(path) as file:
        for batch in file.iter_batches(batch_size=rows, columns=wanted):
            yield batch.to_pandas(ignore_metadata=True)


def _parquet(path: Path, wanted: list[str]) -> pd.DataFrame:
    frame: pd.DataFrame = parquet.read_table(path, columns=wanted).to_pandas(
        ignore_metadata=True
    )
    return frame


def _csv(
    path: Path,
    id_column: str,
    *,
    rows: int | None = None,
    kinds: Mapping[str, str] | None = None,
) -> Any:
    """What pandas reads, with the id as text, and gaps recognised in all other columns."""
    types: Any = {id_column: str, **(kinds or {})}
    gaps = {name: GAPS for name in csv_header(path) if name != id_column}
    return _read_csv(
        path, dtype=types, na_values=gaps, chunksize=rows, low_memory=False
    )


def _read_csv(path: Path, **how: Any) -> Any:
    """What pandas reads of a file, by how the file is written."""
    from pandas import read_csv

    read: Any = read_csv
    return read(path, keep_default_na=False, **dialect_of(path), **how)


@contextmanager
def readable(path: Path, whose: str = "") -> Iterator[None]:
    """Turn a reader's error into one that says what was expected; the reader's own text
    may quote cells."""
    file = f"{path} of {whose}" if whose else path
    expected = (
        "a Parquet file"
        if is_parquet(path)
        else "a CSV file whose rows all fit its header"
    )
    try:
        yield
    except pd.errors.EmptyDataError:
        raise DataError(
            f"{file} holds nothing, not even a header. Export it again."
        ) from None
    except (
        OSError,
        EOFError,
        ValueError,
        csv.Error,
        zlib.error,
        pyarrow.ArrowException,
    ) as error:
        # the system's word, not a reader's
        if isinstance(error, OSError) and error.errno:
            raise DataError(
                f"{file} cannot be read: {os.strerror(error.errno)}. Put that right."
            ) from None
        raise DataError(
            f"{file} is not {expected} ({type(error).__name__}). Export it again."
        ) from None


def _opened(path: Path) -> Any:
    return gzip.open(path) if path.name.lower().endswith(".gz") else path.open("rb")


def csv_header(path: Path) -> list[str]:
    """The names in the first line that is not empty. Pandas is not asked, since it
    would silently rename duplicates. Raise where the first row is wider: pandas would
    take its first cells as an index and shift the rest."""
    how = dialect_of(path)
    with (
        _opened(path) as stream,
        io.TextIOWrapper(stream, encoding=how["encoding"], newline="") as text,
    ):
        rows = filter(None, csv.reader(text, delimiter=how["sep"]))
        header = next(rows, None)
        if header is None:
            raise pd.errors.EmptyDataError
        if len(next(rows, [])) > len(header):
            raise csv.Error("rows wider than the header")
        return header


def _columns_to_read(path: Path, roles: ColumnRoles) -> list[str]:
    return list(
        dict.fromkeys(
            [roles.id, *roles.beside, *choose_columns(names_in(path), roles, str(path))]
        )
    )


def safe(value: Any) -> Any:
    """A cell for a CSV file. Text that a spreadsheet would run as a formula gets an
    apostrophe in front, by which spreadsheets know text. So does text that begins with
    apostrophes before such a sign: taking one away then always gives the original.
    Numbers stay as they are."""
    runs = (
        isinstance(value, str) and FORMULA.match(value) and not NUMBER.fullmatch(value)
    )
    return f"'{value}" if runs else value


def for_spreadsheets(frame: pd.DataFrame) -> pd.DataFrame:
    """The table with cells and headings that are safe in a CSV file."""
    columns = [
        column if column.dtype.kind in "biufc" else column.map(safe)
        for _, column in frame.items()
    ]
    written = dict(enumerate(columns))  # two headings may become one
    return type(frame)(written, index=frame.index).set_axis(
        [safe(name) for name in frame.columns], axis="columns"
    )


def listing(names: Sequence[str], limit: int = 30) -> str:
    """The names, quoted and separated by commas; a long list is cut and says by how
    much."""
    shown = ", ".join(repr(name) for name in names[:limit])
    return f"{shown} and {len(names) - limit} more" if len(names) > limit else shown


def check_present(
    names: Iterable[str], present: Sequence[str], *, owner: str, part: str
) -> None:
    """Refuse a column that the owner's table does not have; `part` says what it was
    named as."""
    held = set(present)
    for name in names:
        if name not in held:
            raise DataError(
                f"'{owner}' has no column {name!r}{did_you_mean(name, list(present))},"
                f" named as its {part}. Its columns are {listing(present)}."
            )


def choose_columns(
    present: Sequence[str], roles: ColumnRoles, table: str = "its table"
) -> list[str]:
    """The feature columns, in the order asked for. A party with neither label nor
    features is refused."""
    owner = roles.owner
    id_column = roles.id
    label = roles.label
    check_names(
        present if roles.columns is None else [*filter(None, present)],
        f"'{owner}'",
        table,
    )
    check_present([id_column], present, owner=owner, part="id")
    if label is not None:
        if label == id_column:
            raise ConfigError(
                f"'{owner}' names {id_column!r} as both id and label. Name a label"
                " column of its own."
            )
        check_present([label], present, owner=owner, part="label")
    for part, column in roles.aside.items():
        check_present([column], present, owner=owner, part=f"{part} column")
    if roles.columns is None:
        chosen = [name for name in present if name not in (id_column, *roles.beside)]
    else:
        chosen = list(roles.columns)
        check_names(chosen, f"'{owner}'", "columns", "List each feature once.")
        for name, part in ((id_column, "id"), (label, "label")):
            if name in chosen:
                raise ConfigError(
                    f"'{owner}' lists its {part} column {name!r} as a feature. Take it"
                    f" out of columns, for a model must not be fed the {part}."
                )
        check_present(chosen, present, owner=owner, part="feature")
    if not chosen and label is None:
        only = (
            f"table has only the id column {id_column!r}"
            if roles.columns is None
            else "columns are []"
        )
        raise DataError(
            f"'{owner}' holds no feature and no label: its {only}. Add a feature, or"
            " name the label."
        )
    return chosen


def check_names(
    names: Sequence[str],
    whose: str,
    where: str,
    cure: str = "Rename one of them in the table.",
) -> None:
    """Refuse a column without a name, which pandas would make up, and two of one name."""
    if "" in names:
        raise DataError(
            f"{whose} has a column without a name, number {names.index('') + 1} of the"
            f" {len(names)} in {where}. Where pandas wrote its row numbers, write the"
            " file with index=False; where all lines end with a separator, take these"
            " away; else name the column in the first line."
        )
    if twice := [name for name, count in Counter(names).items() if count > 1]:
        raise DataError(
            f"{whose} has {listing(twice)} more than once in {where}. {cure}"
        )
