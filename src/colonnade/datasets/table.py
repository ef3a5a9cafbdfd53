"""A party's table: ids, feature columns, and at one party the label.

All rows have an id, no id occurs twice. Ids are text: whole numbers become their decimal digits, strings are
kept exactly. Whether a column is constant or empty is not judged here but in `Preprocessor.fit`, since what
matters is how it looks on the training rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from colonnade.core.checks import did_you_mean
from colonnade.datasets.cells import ids_as_text
from colonnade.datasets.columns import choose_columns
from colonnade.datasets.stored import Columns
from colonnade.datasets.streams import is_large, read_pieces
from colonnade.datasets.table_files import read_frame
from colonnade.errors import DataError

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Table", "align", "check_frames", "read_table", "table_from_frame"]


@dataclass(frozen=True, eq=False, repr=False)
class Table:
    """What one organisation knows about its people, row by row."""

    owner: str
    ids: NDArray[np.str_]
    features: pd.DataFrame | Columns  # of a large file outside memory
    label: pd.Series[Any] | None = None

    def __post_init__(self) -> None:
        lengths = {len(self.ids), len(self.features)} | ({len(self.label)} if self.label is not None else set())
        if len(lengths) != 1:
            raise DataError(
                f"'{self.owner}' has a table whose ids, features and label have different lengths: "
                f"{sorted(lengths)}. Build it with table_from_frame."
            )

    def __len__(self) -> int:
        return len(self.ids)

    def __repr__(self) -> str:
        """Sizes and names only: a printed table must not show cells."""
        label = "no label" if self.label is None else f"label {str(self.label.name)!r}"
        return f"Table({self.owner!r}, {len(self)} rows, {len(self.columns)} features, {label})"

    @property
    def columns(self) -> list[str]:
        """The names of the feature columns."""
        return [str(name) for name in self.features.columns]

    def in_order(self, ids: NDArray[np.str_]) -> Table:
        """The rows of these ids, in this order; ids not asked for are left out."""
        rows = self._order
        if not np.array_equal(self.ids[rows], ids):
            found = np.searchsorted(self.ids, ids, sorter=self._order)
            rows = self._order[np.minimum(found, len(self) - 1)]
            absent = ids[self.ids[rows] != ids]
            if len(absent):
                raise DataError(
                    f"{_absent(self.owner, absent)} Ask for rows that all parties hold. New rows are given with "
                    f'--table {self.owner}=FILE; to train on common rows alone, set align = "private" under [data].'
                )
        label = None if self.label is None else self.label.iloc[rows].reset_index(drop=True)
        if isinstance(self.features, Columns):
            return Table(self.owner, self.ids[rows], self.features.take(rows), label)
        return Table(self.owner, self.ids[rows], self.features.iloc[rows].reset_index(drop=True), label)

    @cached_property
    def _order(self) -> NDArray[np.int64]:
        """The rows in the order of their ids."""
        return np.argsort(self.ids, kind="stable")


def read_table(
    path: str | Path,
    *,
    owner: str,
    id: str,  # noqa: A002 - the word users know
    label: str | None = None,
    columns: Sequence[str] | None = None,
) -> Table:
    """A table from a .csv, .csv.gz or .parquet file; `columns=None` takes all but id and label as features."""
    if is_large(Path(path), columns):
        ids, stored, labels = read_pieces(Path(path), owner=owner, id_column=id, label=label, columns=columns)
        return _checked(Table(owner, ids, stored, labels))
    frame = read_frame(path, owner=owner, id_column=id, label=label, columns=columns)
    return table_from_frame(frame, owner=owner, id=id, label=label, columns=columns)


def table_from_frame(
    frame: pd.DataFrame,
    *,
    owner: str,
    id: str,  # noqa: A002 - the word users know
    label: str | None = None,
    columns: Sequence[str] | None = None,
) -> Table:
    """A table from a data frame; the frame is copied, so that later changes to it do not reach the party."""
    unnamed = [name for name in frame.columns if not isinstance(name, str)]
    if unnamed:
        raise DataError(
            f"'{owner}' has {len(unnamed)} columns whose names are not text, such as {unnamed[0]!r}. "
            f"Rename them: frame.columns = frame.columns.astype(str)."
        )
    features = choose_columns(list(frame.columns), owner=owner, id_column=id, label=label, columns=columns)
    values = frame[features].reset_index(drop=True).copy()
    labels = None if label is None else frame[label].reset_index(drop=True).copy()
    return _checked(Table(owner, ids_as_text(frame[id], owner), values, labels))


def check_frames(frames: Mapping[str, pd.DataFrame], label: str) -> None:
    """A mapping of frames, one of which has the label."""
    import pandas as pd

    if not isinstance(frames, Mapping):
        raise DataError(f'frames is a mapping, as {{"clinic": frame, "lab": frame}}; found {type(frames).__name__}.')
    for name, frame in frames.items():
        if not isinstance(frame, pd.DataFrame):
            raise DataError(f"{name!r} brings a {type(frame).__name__}, and it must be a pandas DataFrame.")
    holders = [name for name, frame in frames.items() if label in frame.columns]
    if len(holders) > 1:
        held = ", ".join(map(repr, holders))
        raise DataError(f"{held} have the label column {label!r}, and one must have it. Drop it from the others.")
    if not holders:
        near = did_you_mean(label, [str(column) for frame in frames.values() for column in frame.columns])
        raise DataError(f"No frame has the label column {label!r}{near}, and one must have it.")


def align(tables: Mapping[str, Table]) -> NDArray[np.str_]:
    """The one row order all parties agree on: their ids, sorted. All must hold the same set of ids.

    It sees all tables and so serves simulations, or ids that were aligned before. Organisations that may not
    show each other their ids use private set intersection instead, in `colonnade.alignment`.
    """
    if not tables:
        raise DataError("align was given no table, and it needs at least one. Pass every party's table.")
    first, *others = (table.ids[table._order] for table in tables.values())
    if all(np.array_equal(first, other) for other in others):
        return first
    union = np.unique(np.concatenate([table.ids for table in tables.values()]))
    absent = {name: np.setdiff1d(union, table.ids, assume_unique=True) for name, table in tables.items()}
    faults = [_absent(name, ids) for name, ids in absent.items() if len(ids)]
    if faults:
        raise DataError(
            f"All parties must hold the same ids. {' '.join(faults)} Remove them from the other parties, or set "
            'align = "private" under [data].'
        )
    return union


def _absent(party: str, ids: NDArray[np.str_]) -> str:
    """How many, not which: they are ids of somebody else, and the message may end up in this party's log."""
    return f"'{party}' lacks {len(ids)} of the ids asked for."


def _checked(table: Table) -> Table:
    """It has rows, and no id twice."""
    owner = table.owner
    if not len(table):
        raise DataError(f"'{owner}' has a table without rows. Check the query or file it was exported from.")
    ids = table.ids[table._order]
    same = np.flatnonzero(ids[1:] == ids[:-1])
    if len(same):  # told by places and not by the id, since the message may end up in a site's log
        first, second = table._order[same[0] : same[0] + 2].tolist()
        raise DataError(
            f"'{owner}' has {len(np.unique(ids[same]))} ids that occur more than once, such as in rows {first} and "
            f"{second}, counted from 0, and an id must name one row. Keep one row per id: merge or remove the others."
        )
    return table
