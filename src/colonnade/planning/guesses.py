"""What tables suggest: the id column, the label, the task, whether rows must be aligned, and what to leave out."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from colonnade.alignment.ids import normalised
from colonnade.errors import DataError
from colonnade.planning.tables import FEW, ID_NAME, Column, Seen

LABEL_NAME = re.compile(
    r"(^|_)(y|label|target|class|outcome|diagnosis|default|defaulted|churn|churned|fraud|response|result|survived|price)($|_)",
    re.I,
)

MANY = 50
"""A column of text becomes at most so many numbers a row; beyond, its rare values share one."""


@dataclass(frozen=True)
class Overlap:
    """How the ids of several tables fit."""

    rows: tuple[int, ...]
    common: int
    alike: int  # common rows, if ids that differ in capitals or spaces alone were written alike
    distinct: bool = True  # then still no table has one twice

    @property
    def is_same(self) -> bool:
        return all(count == self.common for count in self.rows)

    @property
    def gains(self) -> bool:
        """Whether comparing normalised ids finds more rows."""
        return self.distinct and self.alike > self.common

    def normalised(self) -> Overlap:
        return replace(self, common=self.alike)


def guess_ids(tables: Sequence[Seen]) -> list[str]:
    """Of each table, in their order: one column that all have; else those whose values fit best."""
    try:
        return [guess_id(tables)] * len(tables)
    except DataError:
        fitting = _fitting(tables)
        if fitting is None:
            raise
        return fitting


def _fitting(tables: Sequence[Seen]) -> list[str] | None:
    """Columns that could be ids and share values with one of the first table's, under whatever names."""
    able = [
        {name: table.ids(name, normalised) for name, column in table.columns.items() if column.could_be_id}
        for table in tables
    ]
    best: tuple[tuple[int, int], list[str]] | None = None
    for name, ids in able[0].items():
        found = [name]
        for others in able[1:]:
            fits = {other: len(ids & theirs) for other, theirs in others.items()}
            found += [max(fits, key=lambda other: (fits[other], bool(ID_NAME.search(other))))] if fits else []
        shared = [len(ids & able[at + 1][other]) for at, other in enumerate(found[1:])]
        worth = min(shared, default=0), sum(bool(ID_NAME.search(one)) for one in found)
        if len(found) == len(tables) and worth[0] and (best is None or worth > best[0]):
            best = worth, found
    return None if best is None else best[1]


def guess_id(tables: Sequence[Seen]) -> str:
    """A column that all tables have, with a different value in every row: with an id's name, or the first."""
    shared = [name for name in tables[0].columns if all(name in table.columns for table in tables)]
    able = [name for name in shared if all(table.columns[name].could_be_id for table in tables)]
    if able:
        return next((name for name in able if ID_NAME.search(name)), able[0])
    if not shared:
        raise DataError(
            "No column of all tables, under one name or several, has values that fit together, as an id column has: "
            + "; ".join(f"{table.path.name} has {', '.join(list(table.columns)[:6])}" for table in tables)
        )
    faults = [
        f"{table.path.name}: {why}"
        for table in tables
        for name in shared[:1]
        if (why := _why_no_id(table.columns[name]))
    ]
    raise DataError(
        f"No column that all tables have can be the id, which must be different in every row; {shared[0]!r} is not: "
        f"{'; '.join(faults)}. Remove the rows that occur twice, or add an id column."
    )


def _why_no_id(column: Column) -> str:
    if column.gaps:
        return f"{column.gaps} rows have none"
    if not column.is_unique:
        return f"{column.distinct} different values in {column.rows} rows"
    return "" if column.could_be_id else "its values are numbers with a fraction"


def guess_label(tables: Sequence[Seen], id_column: str) -> tuple[Seen, str]:
    """A column with a label's name; else the last of a table, with few values; else the last of all."""
    candidates = [
        (table, column)
        for table in tables
        for column in table.columns.values()
        if column.name != id_column and column.could_be_label and not column.identifies
    ]
    if not candidates:
        raise DataError("No column can be the label: it needs two values at least, and no gaps.")

    def worth(found: tuple[Seen, Column]) -> tuple[bool, bool, bool, bool]:
        table, column = found
        last = column.name == list(table.columns)[-1]
        return bool(LABEL_NAME.search(column.name)), last and column.distinct <= FEW, column.distinct <= FEW, last

    table, column = max(candidates, key=worth)
    return table, column.name


def passed_over(tables: Sequence[Seen], id_column: str) -> list[tuple[Seen, Column]]:
    """Columns with a label's name that cannot be the label, since rows have none."""
    columns = [(table, column) for table in tables for column in table.columns.values() if column.name != id_column]
    return [(table, column) for table, column in columns if column.gaps and LABEL_NAME.search(column.name)]


def guess_task(label: Column) -> str:
    """Many different numbers are values, everything else classes."""
    return "regression" if label.numeric and label.distinct > FEW else "classification"


def overlap(tables: Sequence[Seen], id_column: str) -> Overlap:
    ids = [table.ids(id_column) for table in tables]
    alike = [table.ids(id_column, normalised) for table in tables]
    distinct = all(map(len, alike)) and [len(one) for one in alike] == [len(one) for one in ids]
    found = Overlap(
        tuple(map(len, ids)), len(frozenset.intersection(*ids)), len(frozenset.intersection(*alike)), distinct
    )
    if not found.common and not found.gains:
        cure = (
            f"{found.alike:,} would be, if all wrote capitals and spaces alike; but then a table would have ids twice. "
            "Change the files."
            if found.alike
            else "Compare how ids are written (leading zeros, spaces, capitals)."
        )
        raise DataError(f"No value of {id_column!r} is in all tables, so there is no row to train on. {cure}")
    return found


def left_out(table: Seen, id_column: str, label: str) -> dict[str, str]:
    """Columns that are no use as features, and why."""
    found = {}
    for name, column in table.columns.items():
        if name == id_column:
            continue
        if name == label:
            found[name] = "is the label's name, and would tell it"
        elif column.distinct == 0:
            found[name] = "is empty"
        elif column.is_constant:
            found[name] = "has one value only"
        elif column.identifies:
            found[name] = f"has {column.distinct:,} different values in {column.rows:,} rows, as an identifier does"
    return found


def categories(table: Seen, id_column: str, label: str) -> dict[str, str]:
    """Columns that are taken for categories where their owner may have meant something else, and what to do."""
    found = {}
    for name, column in table.columns.items():
        if name in (id_column, label):
            continue
        if column.nearly_numeric and column.distinct > 2:
            found[name] = (
                f"has {column.odd:,} cells that are no numbers, so that all its numbers are taken for categories. "
                "Leave these cells empty to make it a number."
            )
        elif not column.numeric and column.distinct > MANY and not column.identifies:
            found[name] = (
                f"has {column.distinct:,} different texts, and all but the {MANY - 1} most frequent will be one "
                "category. If it is a date, write it as a number, such as days since a fixed day; or leave it out."
            )
    return found


def batch_size(rows: int) -> int:
    """About eight batches an epoch of these training rows; at most 1024, at least 16."""
    size = 16
    while size < 1024 and size * 16 <= rows:
        size *= 2
    return size
