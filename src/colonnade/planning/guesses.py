"""What tables suggest: the id column, the label, the task, whether rows must be
aligned, and what to leave out."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from colonnade.alignment.settings import normalised
from colonnade.datasets.readings import odd_words
from colonnade.datasets.table import WRITINGS, how_written
from colonnade.errors import DataError
from colonnade.planning.tables import FEW, ID_NAME, Column, SeenTable
from colonnade.rows.sides import SIDES, named_sides

LABEL_NAME = re.compile(
    r"(^|_)(y|label|target|class|outcome|diagnosis|default|defaulted|churn|churned|fraud|response|result|survived|price"
    r"|quality|medv|g3)($|_)",
    re.I,
)
ABOUT_NAME = re.compile(
    r"(^|_|\b)(sex|gender|age|city|town|country|region|state|zip|postcode|street|name|date|year|month|marital|education)($|_|\b)",
    re.I,
)
"""Names of columns that describe a person, and are seldom the label."""

MOST_WHOLE_CLASSES = 12
"""A label with more different whole numbers is a number, unless somebody says that they
are classes."""
MOST_CLASSES = 100
"""Beyond so many different values nobody would take a number for classes."""

MANY = 50
"""A column of text becomes at most so many numbers a row; its rarer values share one.
"""


@dataclass(frozen=True)
class Overlap:
    """How the ids of several tables fit."""

    rows: tuple[int, ...]
    common: int
    # common rows, if ids that differ in capitals or spaces alone were written alike
    alike: int
    distinct: bool = True  # written alike, no table has an id twice

    @property
    def is_same(self) -> bool:
        return all(count == self.common for count in self.rows)

    @property
    def gains(self) -> bool:
        """Whether comparing normalised ids finds more rows."""
        return self.distinct and self.alike > self.common


def guess_ids(tables: Sequence[SeenTable]) -> list[str]:
    """The id column of each table: one that all have; else those whose values fit best."""
    try:
        return [guess_id(tables)] * len(tables)
    except DataError:
        if (fitting := _fitting(tables, normalised)) is not None:
            return fitting
        for difference, bare, cure in WRITINGS:
            if (fitting := _fitting(tables, bare)) is not None:
                pairs = zip(tables, fitting, strict=True)
                named = ", ".join(
                    f"{column!r} of {table.path.name}" for table, column in pairs
                )
                raise DataError(
                    f"No ids fit as they are. These would, but for {difference}:"
                    f" {named}. To use them, {cure}."
                ) from None
        raise


def _fitting(
    tables: Sequence[SeenTable], write: Callable[[str], str]
) -> list[str] | None:
    """The columns that could be ids and share most values with one of the first
    table's; None where none does."""
    able = [
        {
            name: table.ids(name, write)
            for name, column in table.columns.items()
            if column.could_be_id
        }
        for table in tables
    ]
    best: tuple[tuple[int, int], list[str]] | None = None
    for name, ids in able[0].items():
        names = [name]
        for others in able[1:]:
            fits = {other: len(ids & values) for other, values in others.items()}
            names += (
                [
                    max(
                        fits,
                        key=lambda other: (fits[other], bool(ID_NAME.search(other))),
                    )
                ]
                if fits
                else []
            )
        shared = [len(ids & able[at + 1][other]) for at, other in enumerate(names[1:])]
        worth = (
            min(shared, default=0),
            sum(bool(ID_NAME.search(column)) for column in names),
        )
        if len(names) == len(tables) and worth[0] and (best is None or worth > best[0]):
            best = worth, names
    return None if best is None else best[1]


def guess_id(tables: Sequence[SeenTable]) -> str:
    """A column that all tables have, with a different value in every row: with an id's
    name, or the first."""
    shared = [
        name
        for name in tables[0].columns
        if all(name in table.columns for table in tables)
    ]
    able = [
        name
        for name in shared
        if all(table.columns[name].could_be_id for table in tables)
    ]
    if able:
        return next((name for name in able if ID_NAME.search(name)), able[0])
    if not shared:
        raise DataError(
            "No column of all tables, under one name or several, has values that fit"
            " together, as an id column has: "
            + "; ".join(
                f"{table.path.name} has {', '.join(list(table.columns)[:6])}"
                for table in tables
            )
            + ". Write the ids of the same people alike in all files, or leave out the"
            " file that lacks them."
        )
    reasons = [
        (table.path.name, _why_no_id(table.columns[shared[0]])) for table in tables
    ]
    faults = [f"{file}: {why}" for file, why in reasons if why]
    raise DataError(
        "No column that all tables have can be the id, which must be different in"
        f" every row; {shared[0]!r} is not: {'; '.join(faults)}. Remove the rows that"
        " occur twice, or add an id column."
    )


def _why_no_id(column: Column) -> str:
    if column.gaps:
        return f"{column.gaps} rows have none"
    if not column.is_unique:
        return f"{column.distinct} different values in {column.rows} rows"
    return "" if column.could_be_id else "its values are numbers with a fraction"


def guess_label(tables: Sequence[SeenTable], id_column: str) -> tuple[SeenTable, str]:
    """Prefer a column with a label's name, then one that does not merely describe a
    person, then by its looks."""
    columns = _columns_but(tables, id_column)
    candidates = [
        (table, column)
        for table, column in columns
        if column.could_be_label and not column.identifies
    ]
    if not candidates:
        raise DataError(
            "No column can be the label: it needs two values at least, and few gaps."
        )

    def worth(candidate: tuple[SeenTable, Column]) -> tuple[bool, ...]:
        table, column = candidate
        last = column.name == list(table.columns)[-1]
        few = column.distinct <= FEW
        named = LABEL_NAME.search(column.name)
        personal = ABOUT_NAME.search(column.name)
        return (
            named is not None,
            personal is None and side_words(table, column.name) is None,
            last and few,
            few,
            last,
        )

    table, column = max(candidates, key=worth)
    return table, column.name


def side_words(table: SeenTable, column: str) -> list[str] | None:
    """The words by which a column says of each row whether it trains, validates or
    tests; None where it does not."""
    words = (
        sorted(set(table.frame[column].astype(str)))
        if table.columns[column].distinct in (2, 3)
        else []
    )
    sides = named_sides(words) if words else None
    return None if sides is None or SIDES.index("train") not in sides else words


def passed_over(
    tables: Sequence[SeenTable], id_column: str
) -> list[tuple[SeenTable, Column]]:
    """Columns with a label's name that are not guessed, since half of their cells or
    more are empty."""
    likely = [
        (table, column)
        for table, column in _columns_but(tables, id_column)
        if LABEL_NAME.search(column.name)
    ]
    return [
        (table, column) for table, column in likely if column.gaps >= 0.5 * column.rows
    ]


def _columns_but(
    tables: Sequence[SeenTable], id_column: str
) -> list[tuple[SeenTable, Column]]:
    return [
        (table, column)
        for table in tables
        for column in table.columns.values()
        if column.name != id_column
    ]


def why_label(table: SeenTable, column: str) -> str:
    """Why this column was guessed to be the label, and how sure that is."""
    if LABEL_NAME.search(column):
        return "by its name"
    last = column == list(table.columns)[-1]
    few = table.columns[column].distinct <= FEW
    looks = [
        *(["is the last of its table"] if last else []),
        *(["has few different values"] if few else []),
    ]
    why = f", and this one {' and '.join(looks)}" if looks else ""
    return (
        f"no column has a label's name{why}. That is hardly more than chance: name it"
        " with --label"
    )


def guess_task(label: Column) -> str:
    """Regression for many different numbers, more than a dozen whole ones, or such as
    seldom recur; else classes."""
    many = label.distinct > min(
        MOST_WHOLE_CLASSES if label.whole else FEW, label.rows // 3
    )
    return "regression" if label.numeric and many else "classification"


def why_task(label: Column, task: str) -> str:
    """What else the label could be, where its values do not decide it; "" where they
    do."""
    if (
        not label.numeric
        or label.distinct <= 2
        or (label.distinct > MOST_CLASSES and task == "regression")
    ):
        return ""
    values = (
        f"{label.name!r} has {label.distinct} different"
        f" {'whole ' if label.whole else ''}numbers"
    )
    if task == "regression":
        return (
            f"{values}, and is taken for a number to predict. If they are classes:"
            " --task classification."
        )
    return (
        f"{values}, and they are taken for classes. If it is a number to predict:"
        " --task regression."
    )


def overlap(tables: Sequence[SeenTable], id_column: str) -> Overlap:
    ids = [table.ids(id_column) for table in tables]
    normalised_ids = [table.ids(id_column, normalised) for table in tables]
    rows, different = (tuple(map(len, values)) for values in (ids, normalised_ids))
    common, alike = (
        len(frozenset.intersection(*values)) for values in (ids, normalised_ids)
    )
    fit = Overlap(rows, common, alike, distinct=all(different) and different == rows)
    if not fit.common and not fit.gains:
        cure = (
            f"{fit.alike:,} would be, if all wrote capitals and spaces alike; but then"
            " a table would have ids twice. Change the files."
            if fit.alike
            else how_written(
                {
                    table.path.name: values
                    for table, values in zip(tables, ids, strict=True)
                }
            )
        )
        raise DataError(
            f"No value of {id_column!r} is in all tables, so there is no row to train"
            f" on. {cure}"
        )
    return fit


def left_out(table: SeenTable, id_column: str, label: str) -> dict[str, str]:
    """Columns that are no use as features, and why."""
    reasons = {}
    for name, column in table.columns.items():
        if name == id_column:
            continue
        if name == label:
            reasons[name] = "is the label's name, and would tell it"
        elif column.distinct == 0:
            reasons[name] = "is empty"
        elif column.is_constant:
            reasons[name] = "has one value only"
        elif column.identifies:
            reasons[name] = (
                f"has {column.distinct:,} different values in {column.rows:,} rows, as"
                " an identifier does"
            )
    return reasons


def readings(table: SeenTable, id_column: str, label: str) -> dict[str, str]:
    """Notes on columns whose text is read as numbers or times, or taken for categories
    and perhaps meant otherwise."""
    notes = {}
    for name, column in table.columns.items():
        if name in (id_column, label):
            continue
        if column.way:
            as_days = (
                ", each as days since 1970" if column.way.startswith("times") else ""
            )
            notes[name] = f"is read as {column.way}{as_days}."
            if odd := odd_words(table.frame[name], column.way):
                notes[name] += f" These words are read as gaps: {odd}."
        elif column.nearly_numeric and column.distinct > 2:
            notes[name] = (
                f"has {column.odd:,} cells that are no numbers, so that all its numbers"
                " are taken for categories. Leave these cells empty to make it a"
                " number."
            )
        elif not column.numeric and column.distinct > MANY and not column.identifies:
            notes[name] = (
                f"has {column.distinct:,} different texts, and all but the {MANY - 1}"
                " most frequent will be one category. If it is free text, leave it"
                " out."
            )
    return notes
