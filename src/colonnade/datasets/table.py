"""A party's table: ids, feature columns, and at one party the label.

All rows have an id, no id occurs twice. Ids are text: whole numbers become their
decimal digits, strings are kept exactly. Whether a column is constant or empty is not
judged here but in `Preprocessor.fit`, since what matters is how it looks on the
training rows.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from colonnade.core.files import mapped_from
from colonnade.datasets import table_files
from colonnade.datasets.fitted import kind_of, without_gap_words
from colonnade.datasets.stored import Columns, Filling
from colonnade.datasets.table_files import (
    ColumnRoles,
    choose_columns,
    kept_as_text,
    read_frame,
    without_gaps,
)
from colonnade.errors import DataError
from colonnade.first_use import pandas as pd


@dataclass(frozen=True, eq=False, repr=False)
class Table:
    """What one organisation knows about its people, row by row."""

    owner: str
    packed: NDArray[np.bytes_]  # the ids, as `packed` makes them
    features: pd.DataFrame | Columns  # Columns: those of a large file, outside memory
    label: pd.Series[Any] | None = None
    # no features: by the setting that names them
    aside: Mapping[str, pd.Series[Any]] = field(default_factory=dict)
    # rows are matched by each in turn, "" where a row has none; (): by ids
    keys: tuple[NDArray[np.str_], ...] = ()
    # what its owner calls each row, where `ids` are the names shared with others
    own: NDArray[np.str_] | None = None

    def __post_init__(self) -> None:
        others = [
            len(cells)
            for cells in (self.label, self.own, *self.aside.values(), *self.keys)
            if cells is not None
        ]
        lengths = {len(self.packed), len(self.features), *others}
        if len(lengths) != 1:
            raise DataError(
                f"'{self.owner}' has a table whose ids, features and label have"
                f" different lengths: {sorted(lengths)}. Build it with"
                " table_from_frame."
            )

    def __len__(self) -> int:
        return len(self.packed)

    def __repr__(self) -> str:
        """Sizes and names only: a printed table must not show cells."""
        label = "no label" if self.label is None else f"label {str(self.label.name)!r}"
        return (
            f"Table({self.owner!r}, {len(self)} rows, {len(self.columns)} features,"
            f" {label})"
        )

    @property
    def ids(self) -> NDArray[np.str_]:
        """The names of the rows, as text while they are used; packed, they take a
        quarter of the memory."""
        return unpacked(self.packed)

    @property
    def columns(self) -> list[str]:
        """The names of the feature columns."""
        return [str(name) for name in self.features.columns]

    def in_order(self, ids: NDArray[np.str_], cure: str = "") -> Table:
        """The rows of these ids, in this order; ids not asked for are left out."""
        return self.taking(self.rows_of(ids, cure))

    def rows_of(self, ids: NDArray[np.str_], cure: str = "") -> NDArray[np.int64]:
        """The row numbers of these ids; all must be here. The cure is for who predicts,
        unless one is given."""
        rows, is_held = self.find(ids)
        if not is_held.all():
            ask = "Ask for rows that all parties hold. New rows are given with"
            to_predict = f"{ask} --table {self.owner}=FILE, or in Python with frames=."
            raise DataError(
                f"'{self.owner}' lacks {(~is_held).sum():,} of the ids asked for."
                f" {cure or to_predict}"
            )
        return rows

    def find(
        self, ids: NDArray[np.str_]
    ) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """The row of each id, and whether there is one."""
        return self.index.find(ids)

    def labelled(self) -> Table:
        """The rows that have a label, which a label owner can train on or measure with.

        Whole numbers that a gap in their column made floats are whole again.
        """
        assert self.label is not None
        has_label = self.label.notna().to_numpy(dtype=bool)
        if has_label.all():
            return self
        labelled = self.taking(np.flatnonzero(has_label))
        label = labelled.label
        assert label is not None
        is_float = label.dtype.kind == "f"
        if is_float and bool((label % 1 == 0).all()) and label.abs().max() < 2**53:
            labelled = replace(labelled, label=label.astype(np.int64))
        return labelled

    def taking(self, rows: NDArray[np.int64]) -> Table:
        """These rows, in this order."""
        label = (
            None if self.label is None else self.label.iloc[rows].reset_index(drop=True)
        )
        aside = {
            setting: cells.iloc[rows].reset_index(drop=True)
            for setting, cells in self.aside.items()
        }
        features = self.features
        features = (
            features.take(rows)
            if isinstance(features, Columns)
            else features.iloc[rows].reset_index(drop=True)
        )
        keys = tuple(key[rows] for key in self.keys)
        own = None if self.own is None else self.own[rows]
        return Table(self.owner, self.packed[rows], features, label, aside, keys, own)

    @cached_property
    def index(self) -> Index:
        """Row numbers by id."""
        return Index(self.packed)


def read_table(
    path: str | Path,
    *,
    owner: str,
    id: str,  # noqa: A002 - the word users know
    label: str | None = None,
    columns: Sequence[str] | None = None,
    aside: Mapping[str, str] | None = None,
    gaps: Sequence[str] = (),
    as_text: Collection[str] = (),
) -> Table:
    """A table from a .csv, .csv.gz or .parquet file.

    Args:
        path: The file.
        owner: Whose table it is.
        id: The column that names a row.
        label: The column to be predicted, if the owner has it.
        columns: The features; by default all columns but the id, the label and those
            aside.
        aside: Columns that say something else of a row, by the setting that names them.
        gaps: The owner's own words for a gap, whatever their case and spaces.
        as_text: Columns of a CSV file whose cells stay text, as they were in training.
    """
    roles = ColumnRoles(owner, id, label, columns, aside or {}, gaps, as_text)
    if is_large(Path(path), columns):
        return _checked(roles, *read_pieces(Path(path), roles))
    return _from_frame(read_frame(path, roles), roles)


def table_from_frame(
    frame: pd.DataFrame,
    *,
    owner: str,
    id: str,  # noqa: A002 - the word users know
    label: str | None = None,
    columns: Sequence[str] | None = None,
    aside: Mapping[str, str] | None = None,
    gaps: Sequence[str] = (),
) -> Table:
    """A table from a data frame, as `read_table` makes one from a file.

    The frame is copied, so that later changes to it do not reach the party.
    """
    unnamed = [name for name in frame.columns if not isinstance(name, str)]
    if unnamed:
        raise DataError(
            f"'{owner}' has {len(unnamed)} columns whose names are not text, such as"
            f" {unnamed[0]!r}. Rename them: frame.columns = frame.columns.astype(str)."
        )
    roles = ColumnRoles(owner, id, label, columns, aside or {}, gaps)
    return _from_frame(frame.reset_index(drop=True).copy(), roles)


def _from_frame(frame: pd.DataFrame, roles: ColumnRoles) -> Table:
    """A table from a data frame that nobody else has."""
    features = choose_columns(list(frame.columns), roles)
    frame = without_gaps(frame, roles)
    ids = packed(ids_as_text(frame[roles.id], roles.owner))
    return _checked(
        roles, ids, frame[features], {name: frame[name] for name in roles.beside}
    )


def align(tables: Mapping[str, Table]) -> NDArray[np.str_]:
    """The one row order all parties agree on: their ids, sorted. All must hold the same
    set of ids.

    It sees all tables and so serves simulations, or ids that were aligned before.
    Organisations that may not show each other their ids use private set intersection
    instead, in `colonnade.alignment`.
    """
    if not tables:
        raise DataError(
            "align was given no table, and it needs at least one. Pass every party's"
            " table."
        )
    first, *others = (table.packed[table.index.order] for table in tables.values())
    if all(np.array_equal(first, other) for other in others):
        return unpacked(first)
    union = np.unique(np.concatenate([table.ids for table in tables.values()]))
    absent = {
        name: np.setdiff1d(union, table.ids, assume_unique=True)
        for name, table in tables.items()
    }
    # How many, not which: they are ids of somebody else, and the message may end up in
    # this party's log.
    faults = [
        f"'{name}' lacks {len(ids):,} that others hold."
        for name, ids in absent.items()
        if len(ids)
    ]
    if faults:
        cure = how_written(
            {name: frozenset(table.ids.tolist()) for name, table in tables.items()}
        ) or (
            'To train on the rows that all hold, set align = "private" under [data]; or'
            " remove the others."
        )
        raise DataError(
            f"All parties must hold the same ids. {' '.join(faults)} {cure}"
        )
    return union


def _by_rule(rule: str) -> str:
    return (
        'write them alike in the files, or have them compared by a rule: id = ["ID"]'
        f' and align = "private" under [data], and ID = "{rule}" under'
        " [alignment.rules], where ID is the column's name"
    )


WHOLE = 'write whole numbers, as in frame["id"].astype("Int64")'
WRITINGS: tuple[tuple[str, Callable[[str], str], str], ...] = (
    (
        "capitals or spaces",
        lambda text: " ".join(text.casefold().split()),
        'set ids = "normalised" under [alignment]',
    ),
    ("leading zeros", lambda text: text.lstrip("0") or "0", _by_rule("digits")),
    (
        'a ".0" at the end, which a column of numbers with a gap gets',
        lambda text: text.removesuffix(".0"),
        WHOLE,
    ),
    (
        'leading zeros and a ".0" at the end',
        lambda text: text.removesuffix(".0").lstrip("0") or "0",
        f"{WHOLE}, and then {_by_rule('digits')}",
    ),
    (
        "hyphens, dots, slashes or spaces",
        lambda text: "".join(c for c in text.casefold() if c.isalnum()),
        _by_rule("code"),
    ),
)
"""In what ids of one person may differ, how to take that away, and what to do about it.
"""
WORTH_TELLING = 0.01
"""The share of the smallest table's ids from which on more matches are told: fewer may
be chance."""


def how_written(ids: Mapping[str, frozenset[str]]) -> str:
    """What to do where ids of several tables fit badly only because they are written
    differently. Where none fits at all, how each table writes them, with other letters
    and digits; "" where some fit."""
    common = len(frozenset.intersection(*ids.values()))
    fewest = min(map(len, ids.values()))
    for difference, bare, cure in WRITINGS:
        alike = len(
            frozenset.intersection(
                *(frozenset(map(bare, texts)) for texts in ids.values())
            )
        )
        if alike - common >= max(WORTH_TELLING * fewest, 1):
            return (
                f"They differ in {difference}: {alike:,} rows fit without that, and"
                f" {common:,} as they are. Ids are compared exactly; {cure}."
            )
    if common:
        return ""
    begin = {name: _beginning(texts) for name, texts in ids.items()}
    if len(set(begin.values())) > 1:
        bare_ids = (
            frozenset(text.removeprefix(begin[name]) for text in texts)
            for name, texts in ids.items()
        )
        if alike := len(frozenset.intersection(*bare_ids)):
            words = ", ".join(
                f"with {start!r} in {name!r}" for name, start in begin.items()
            )
            return (
                f"No id is shared. They begin {words}, and {alike:,} would fit without"
                " that. If these are the same people, write the ids alike in the"
                " files."
            )
    firsts = {name: min(texts) for name, texts in ids.items()}
    forms = {
        name: re.sub(r"\d", "9", re.sub(r"[^\W\d_]", "a", first))[:40]
        for name, first in firsts.items()
    }
    letters = "(a is any letter, 9 any digit)"
    if len(set(forms.values())) == 1:
        form = next(iter(forms.values()))
        return (
            f"Ids look alike everywhere, as {form!r} {letters}, and none is shared. Is"
            " it the same id in all tables, of the same people?"
        )
    examples = ", ".join(f"{form!r} in {name!r}" for name, form in forms.items())
    return f"Ids look like {examples} {letters}. Is it the same id everywhere?"


def _beginning(texts: frozenset[str]) -> str:
    """The letters before the first digit, where all of several ids begin with the same
    ones: these tell no id."""
    starts = {
        begins[0] if (begins := re.match(r"[^\W\d_]{1,8}[-_. ]?(?=\d)", text)) else ""
        for text in texts
    }
    return starts.pop() if len(starts) == 1 and len(texts) > 1 else ""


def ids_as_text(column: pd.Series[Any], owner: str) -> NDArray[np.str_]:
    """Ids as they are compared: whole numbers by their digits, strings exactly."""
    values = column.astype(object).tolist()
    kinds = set(map(type, values))
    if kinds == {str}:  # as in every file: checked all at once
        texts = np.array(values, dtype=np.str_)
        unchanged = int(np.strings.str_len(texts).sum()) == sum(map(len, values))
        if unchanged and (np.strings.str_len(np.strings.strip(texts)) > 0).all():
            return texts
    # NumPy would cut it off
    if any(isinstance(value, str) and value.endswith("\0") for value in values):
        raise DataError(
            f"'{owner}' has ids that end in a zero character (\\0) in column"
            f" {str(column.name)!r}, which files and arrays lose, so that two ids"
            " become one. Remove it: column.str.rstrip('\\0')."
        )
    missing = sum(
        empty or (isinstance(value, str) and not value.strip())
        for value, empty in zip(values, column.isna().tolist(), strict=True)
    )
    if missing:
        raise DataError(
            f"'{owner}' has {missing} rows without an id in column"
            f" {str(column.name)!r}, and every row needs one. Remove these rows, or"
            " give them ids."
        )
    wrong = {
        kind.__name__
        for kind in kinds
        if kind is bool or not issubclass(kind, str | int)
    }
    if wrong:
        raise DataError(
            f"'{owner}' has ids of type {', '.join(sorted(wrong))} in column"
            f" {str(column.name)!r}, and ids must be text or whole numbers, to be"
            f" compared exactly. {_cure(wrong, column)}"
        )
    return np.array([str(value) for value in values], dtype=np.str_)


def _cure(wrong: set[str], column: pd.Series[Any]) -> str:
    """What to do about ids of these types. A float's text is "7.0", which is nobody's
    id."""
    name = repr(str(column.name))
    if wrong <= {"float", "float64", "float32"} and bool(
        (column.dropna().astype(float) % 1 == 0).all()
    ):
        return (
            f'Make them whole numbers: frame[{name}] = frame[{name}].astype("int64").'
        )
    if wrong <= {"float", "float64", "float32"}:
        return (
            "These numbers have a fraction, so they are no ids: name another column as"
            " the id."
        )
    return (
        f"Write them as text, all parties in one form: frame[{name}] ="
        f" frame[{name}].astype(str)."
    )


class Index:
    """Row numbers by id: two arrays, since a dict of a million ids takes ten times as
    much."""

    def __init__(self, packed: NDArray[np.bytes_]) -> None:
        self.packed = packed
        self.order = np.argsort(packed, kind="stable")

    def __len__(self) -> int:
        return len(self.packed)

    def find(
        self, ids: NDArray[np.str_]
    ) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """The row of each id, and whether there is one."""
        wanted = packed(ids)
        if not len(self):
            return np.zeros(len(wanted), dtype=np.int64), np.zeros(
                len(wanted), dtype=bool
            )
        if len(wanted) == len(self) and np.array_equal(self.packed[self.order], wanted):
            return self.order, np.ones(len(wanted), dtype=bool)
        positions = np.searchsorted(self.packed, wanted, sorter=self.order)
        rows: NDArray[np.int64] = self.order[np.minimum(positions, len(self) - 1)]
        return rows, self.packed[rows] == wanted


def packed(ids: NDArray[np.str_]) -> NDArray[np.bytes_]:
    """Ids as UTF-8, a byte for each letter where text takes four; in this form they
    have the same order."""
    try:
        return ids.astype(np.bytes_)  # fast, and enough for ASCII
    except UnicodeEncodeError:
        return np.char.encode(ids, "utf-8", "surrogatepass")


def unpacked(ids: NDArray[np.bytes_]) -> NDArray[np.str_]:
    """Packed ids as text again."""
    try:
        return ids.astype(np.str_)
    except UnicodeDecodeError:
        return np.char.decode(ids, "utf-8", "surrogatepass")


HALF = re.compile(rb"\xed[\xa0-\xbf]")
"""In UTF-8, half of a letter that text has in two: a lone surrogate."""


def _checked(
    roles: ColumnRoles,
    ids: NDArray[np.bytes_],
    features: pd.DataFrame | Columns,
    beside: Mapping[str, pd.Series[Any]],
) -> Table:
    """Make a table, and raise unless it has rows and no id twice. A word that stands
    for a gap is no label."""
    owner = roles.owner
    if not len(ids):
        raise DataError(
            f"'{owner}' has a table without rows. Check the query or file it was"
            " exported from."
        )
    label = None if roles.label is None else without_gap_words(beside[roles.label])
    table = Table(
        owner,
        ids,
        features,
        label,
        {part: beside[name] for part, name in roles.aside.items()},
    )
    if HALF.search(ids.tobytes()):
        raise DataError(
            f"'{owner}' has an id with a lone surrogate, half of a letter: it is no"
            " text. Export it as UTF-8."
        )
    ids = ids[table.index.order]
    same = np.flatnonzero(ids[1:] == ids[:-1])
    # named by row numbers, not by the id, since the message may end up in a site's log
    if len(same):
        first, second = table.index.order[same[0] : same[0] + 2].tolist()
        raise DataError(
            f"'{owner}' has {len(np.unique(ids[same]))} ids that occur more than once,"
            f" such as in rows {first} and {second}, counted from 0, and an id must"
            " name one row. Keep one row per id: merge or remove the others."
        )
    return table


PIECE = 65_536  # rows read at a time
# times the bytes of its cells: the memory that a table takes while it is read whole
BESIDE = 8
EXACT = 2.0**53  # whole numbers up to here are the same as floats


def is_large(path: Path, columns: Sequence[str] | None) -> bool:
    """Whether a table is to be read in pieces, since reading it whole would take too
    much memory."""
    name = path.name.lower()
    if not name.endswith(table_files.EXTENSIONS) or not path.is_file():
        return False
    if name.endswith(".parquet"):
        rows, present = table_files.parquet_shape(path)
        return (
            rows * (present if columns is None else len(columns) + 2) * 8
            > mapped_from() / BESIDE
        )
    return (
        path.stat().st_size * (4 if name.endswith(".gz") else 1)
        > mapped_from() / BESIDE
    )


def read_pieces(
    path: Path, roles: ColumnRoles
) -> tuple[NDArray[np.bytes_], Columns, dict[str, pd.Series[Any]]]:
    """Read a file that is too large to be read whole, some rows at a time, into columns
    that are mapped. Gives the ids, the columns, and by name the label and the columns
    `aside`.

    What a CSV column holds is known only at its end: a column of numbers may turn out
    to be text in its last row, and then it was text all along ("01" is a word). So the
    kinds in each piece are noted, and columns whose pieces disagree are read a second
    time, with their kind given. The columns are those that reading the whole file would
    give."""
    owner = roles.owner
    wanted, most = table_files.names_and_rows(path, roles)
    chosen = set(roles.columns or ())
    features = [
        name
        for name in wanted
        if name != roles.id and (name not in roles.beside or name in chosen)
    ]
    filling = Filling(features, most)
    at = 0
    ids: list[NDArray[np.bytes_]] = []
    beside: dict[str, list[pd.Series[Any]]] = {name: [] for name in roles.beside}
    kinds_of = {name: set[str]() for name in wanted if name != roles.id}
    is_parquet = table_files.is_parquet(path)
    as_text = {} if is_parquet else kept_as_text(path, roles, wanted)
    for whole_piece in table_files.pieces(path, owner, wanted, PIECE, as_text):
        piece = without_gaps(whole_piece, roles)
        for name, kinds in kinds_of.items():
            kinds |= _kinds_in(piece[name])
        # as numbers or as words, gaps are gaps
        unknown = {name for name in features if piece[name].isna().all()}
        numbers = {
            name: kind_of(piece[name], owner=owner) == "number" or name in unknown
            for name in features
        }
        filling.add(piece, at, numbers)
        ids.append(packed(ids_as_text(piece[roles.id], owner)))
        for name, read in beside.items():
            read.append(piece[name])
        at += len(piece)
    types = (
        {}
        if is_parquet
        else {name: _type_to_read_as(kinds) for name, kinds in kinds_of.items()}
    )
    if again := {name: type_ for name, type_ in types.items() if type_ is not None}:
        filling.forget(again)
        numbers = {
            name: type_ == "float64"
            for name, type_ in again.items()
            if name in filling.names
        }
        for number, whole_piece in enumerate(
            table_files.pieces(path, owner, wanted, PIECE, again)
        ):
            piece = without_gaps(whole_piece, roles)
            filling.add(piece, number * PIECE, numbers)
            for name in beside.keys() & again.keys():
                beside[name][number] = piece[name]
    all_ids = np.concatenate(ids) if ids else np.zeros(0, dtype=np.bytes_)
    joined = {
        name: pd.concat(read, ignore_index=True)
        for name, read in beside.items()
        if read
    }
    return all_ids, filling.done(), joined


def _kinds_in(cells: pd.Series[Any]) -> set[str]:
    """The kind of the cells in a piece of a column; none, if all are gaps."""
    kind = cells.dtype
    if cells.isna().all():
        return set()
    if (
        pd.api.types.is_bool_dtype(kind)
        or pd.api.types.infer_dtype(cells, skipna=True) == "boolean"
    ):
        return {"bool"}
    if pd.api.types.is_integer_dtype(kind):
        return {
            (
                "int"
                if max(abs(int(cells.min())), abs(int(cells.max()))) < EXACT
                else "long"
            )
        }
    return {"float" if pd.api.types.is_float_dtype(kind) else "text"}


def _type_to_read_as(kinds: set[str]) -> str | None:
    """The type as which a column with pieces of these kinds is to be read again; None:
    it need not be."""
    if len(kinds) > 1 and kinds & {"bool", "text"}:
        return "str"
    # as text, long numbers may be rounded otherwise
    return "float64" if {"long", "float"} <= kinds else None
