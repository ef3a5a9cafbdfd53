"""What tables suggest: the id column, the label, the task, whether rows must be
aligned, and what to leave out.

A guess is made by names first, then by values. Where values alone speak, the guess says
so, and whoever asks nobody must not take it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from colonnade.alignment.ids import matches_by_rule, more_by_rule
from colonnade.alignment.rules import normalised
from colonnade.datasets.preprocess import MOST_WHOLE_CLASSES, Kind, likely_task
from colonnade.datasets.readings import odd_words
from colonnade.datasets.table import WHOLE, WRITINGS, how_written
from colonnade.errors import DataError
from colonnade.planning.names import describes_person, id_strength, label_strength
from colonnade.planning.tables import FEW, Column, SeenTable, whole_number
from colonnade.rows.sides import SIDES, named_sides

NEARLY_ALL = 0.9
"""A column with an id's name in which this share of the values is different is the id,
and what is not different is a fault."""
MANY = 50
"""A column of text becomes at most so many numbers a row; its rarer values share one.
"""

Write = Callable[[str], str]
"""How ids are written before they are compared."""


# --- the id


def guess_ids(
    tables: Sequence[SeenTable], known: Mapping[int, str] | None = None
) -> list[str]:
    """The id column of each table.

    It is a column that all tables have, or else in each table the one whose values fit
    best with the others'.

    Args:
        tables: The tables that are to fit together.
        known: The id columns that somebody named, by the place of their table.
    """
    known = known or {}
    shared_name = _shared_id(tables, known)
    if shared_name is not None:
        return [shared_name] * len(tables)
    fitting = _best_fitting(tables, known, normalised)
    if fitting is not None:
        return fitting
    for difference, write, cure in _differences():
        fitting = _best_fitting(tables, known, write)
        if fitting is not None:
            raise DataError(
                f"No ids fit as they are. These would, but for {difference}:"
                f" {_named(tables, fitting)}. To use them, {cure}."
            )
    faults = _faults_of_likely_ids(tables)
    if faults:
        raise DataError(
            f"No ids fit, and these columns are nearly ids: {'; '.join(faults)}. Keep"
            " one row for each id, or name another column: --id COLUMN."
        )
    shared = _shared_names(tables)
    raise DataError(
        _why_not_shared(tables, shared[0]) if shared else _why_nothing_fits(tables)
    )


def why_no_id(column: Column) -> str:
    """What keeps a column from being the id; "" where nothing does."""
    if column.gaps:
        return f"{column.gaps:,} of {column.rows:,} rows have none"
    if column.repeated:
        times = "twice" if column.most_often == 2 else "more than once"
        why = f"{column.repeated:,} of {column.rows:,} ids appear {times}"
        if column.is_as_float:
            why += (
                " (they went through floating point, as 1.001E+06, which cuts digits"
                " off: export them as text)"
            )
        return why
    if column.is_row_numbers:
        return (
            "it is the row numbers that pandas wrote, and the same number is another"
            " person in another file"
        )
    return "" if column.could_be_id else "its values are numbers with a fraction"


def _shared_id(tables: Sequence[SeenTable], known: Mapping[int, str]) -> str | None:
    """The id column that all tables have under one name; None where there is none.

    Raise where the column that is meant has a fault, rather than take another one.
    """
    ranked = _shared_names(tables)
    if known:
        ranked = [name for name in ranked if {name} == {*known.values()}]
    if not ranked:
        return None
    able = [name for name in ranked if all(t.columns[name].could_be_id for t in tables)]
    best = ranked[0]
    if best in able:
        return best
    strength, _ = _id_rank(tables, best)
    if known or strength > 0:
        raise DataError(_why_not_shared(tables, best))
    return able[0] if able else None


def _shared_names(tables: Sequence[SeenTable]) -> list[str]:
    """The columns that all tables have, the likeliest id first; row numbers that pandas
    wrote are none of them."""
    shared = [
        name
        for name in tables[0].columns
        if all(name in table.columns for table in tables)
        and not any(table.columns[name].is_row_numbers for table in tables)
    ]
    return sorted(shared, key=lambda name: _id_rank(tables, name), reverse=True)


def _id_rank(tables: Sequence[SeenTable], name: str) -> tuple[int, float]:
    """How much speaks for a column that all tables have: its name, if it is mostly
    different in each row, and then the share of different values."""
    share = min(table.columns[name].distinct_share for table in tables)
    strength = id_strength(name) if share >= NEARLY_ALL else 0
    return strength, share


def _why_not_shared(tables: Sequence[SeenTable], name: str) -> str:
    """The faults that keep a column of all tables from being the id."""
    faults = []
    for table in tables:
        why = why_no_id(table.columns[name])
        if why:
            faults.append(f"{table.path.name}: {why}")
    return (
        f"{name!r} is in all tables and cannot be the id, which must be different in"
        f" every row: {'; '.join(faults)}. Keep one row for each id, or name another"
        " column: --id COLUMN."
    )


def _best_fitting(
    tables: Sequence[SeenTable], known: Mapping[int, str], write: Write
) -> list[str] | None:
    """The columns, one in each table, that could be ids and share most values with one
    of the first table's; None where none does."""
    values = [
        {name: table.ids(name, write) for name in _able(table, known.get(place))}
        for place, table in enumerate(tables)
    ]
    if not all(values):
        return None
    best: list[str] | None = None
    best_rank = (0, 0)
    for first, ids in values[0].items():
        names = [first]
        fewest = len(ids)
        for others in values[1:]:
            name = max(
                others, key=lambda name: (len(ids & others[name]), id_strength(name))
            )
            names.append(name)
            fewest = min(fewest, len(ids & others[name]))
        rank = (fewest, sum(id_strength(name) for name in names))
        if fewest and rank > best_rank:
            best = names
            best_rank = rank
    return best


def _able(table: SeenTable, known: str | None) -> list[str]:
    """The columns of a table that could be its id; only one where it is known."""
    if known is not None:
        return [known]
    return [name for name, column in table.columns.items() if column.could_be_id]


def _differences() -> list[tuple[str, Write, str]]:
    """In what ids of one person may differ, how to take that away, and what to do."""
    floats = "numbers that went through floating point, as 1001.0 or 1e+06 for 1001"
    return [(floats, whole_number, WHOLE), *WRITINGS]


def _named(tables: Sequence[SeenTable], columns: Sequence[str]) -> str:
    pairs = zip(tables, columns, strict=True)
    return ", ".join(f"{column!r} of {table.path.name}" for table, column in pairs)


def _why_nothing_fits(tables: Sequence[SeenTable]) -> str:
    """Say why no column of the tables can be the id: columns with faults, or none."""
    row_numbers = [
        f"{name!r} of {table.path.name}"
        for table in tables
        for name, column in table.columns.items()
        if column.is_row_numbers
    ]
    listed = "; ".join(
        f"{table.path.name} has {', '.join(list(table.columns)[:6])}"
        for table in tables
    )
    about_row_numbers = (
        f" Row numbers that pandas wrote ({', '.join(row_numbers)}) are no ids. Where"
        " the files were cut from one table, row by row, write them with a name for the"
        ' index: to_csv(index_label="row").'
        if row_numbers
        else ""
    )
    return (
        "No column of all tables, under one name or several, has values that fit"
        f" together, as an id column has: {listed}. Write the ids of the same people"
        " alike in all files, or leave out the file that lacks"
        f" them.{about_row_numbers}"
    )


def _faults_of_likely_ids(tables: Sequence[SeenTable]) -> list[str]:
    """The columns that are nearly ids, and what keeps each from being one."""
    faults = []
    for table in tables:
        for name, column in table.columns.items():
            is_near = id_strength(name) > 0 and column.distinct_share >= NEARLY_ALL
            why = why_no_id(column) if is_near and not column.is_row_numbers else ""
            if why:
                faults.append(f"{name!r} of {table.path.name}: {why}")
    return faults


# --- the label


@dataclass(frozen=True)
class LabelGuess:
    """The column that is likely to be predicted.

    Attributes:
        table: The table that has it.
        column: Its name.
        is_named: Whether it has a label's name; else its looks alone speak for it.
        others: The columns for which as much speaks, by table and name.
    """

    table: SeenTable
    column: str
    is_named: bool
    others: tuple[tuple[SeenTable, str], ...] = ()

    @property
    def is_sure(self) -> bool:
        """Whether the name speaks for this column, and for no other one as clearly."""
        rivals = {name for _, name in self.others if name != self.column}
        return self.is_named and not rivals

    @property
    def why(self) -> str:
        """Why it is the guess, in words."""
        if self.is_sure:
            return "by its name"
        if self.is_named:
            rivals = ", ".join(repr(name) for _, name in self.others)
            return f"by its name, which {rivals} could be as well"
        looks = []
        if self.column == list(self.table.columns)[-1]:
            looks.append("is the last of its table")
        if self.table.columns[self.column].distinct <= FEW:
            looks.append("has few different values")
        why = f", and this one {' and '.join(looks)}" if looks else ""
        return (
            f"no column has a label's name{why}. That is hardly more than chance: name"
            " it with --label"
        )


def guess_label(tables: Sequence[SeenTable], id_column: str) -> LabelGuess:
    """Guess which column is to be predicted.

    A column with a label's name is preferred, then one that does not merely describe a
    person, then the last of its table, and one with few different values.
    """
    ranked = label_candidates(tables, id_column)
    if not ranked:
        raise DataError(
            "No column can be the label: it needs two values at least, and few gaps."
        )
    table, column = ranked[0]
    strength = label_strength(column)
    others = [
        (other, name)
        for other, name in ranked[1:]
        if strength > 0 and label_strength(name) == strength
    ]
    return LabelGuess(table, column, strength > 0, tuple(others))


def label_candidates(
    tables: Sequence[SeenTable], id_column: str
) -> list[tuple[SeenTable, str]]:
    """The columns that could be the label, the likeliest first."""
    candidates = [
        (table, column)
        for table, column in _columns_but(tables, id_column)
        if column.could_be_label and not column.identifies
    ]
    # sorting keeps the order of equals
    candidates.sort(key=lambda candidate: _label_rank(*candidate), reverse=True)
    return [(table, column.name) for table, column in candidates]


def _label_rank(table: SeenTable, column: Column) -> tuple[int, bool, bool, bool, bool]:
    """How much speaks for a column as the label, what weighs most first."""
    is_last = column.name == list(table.columns)[-1]
    has_few = column.distinct <= FEW
    divides_rows = side_words(table, column.name) is not None
    return (
        label_strength(column.name),
        not describes_person(column.name) and not divides_rows,
        is_last and has_few,
        has_few,
        is_last,
    )


def side_words(table: SeenTable, column: str) -> list[str] | None:
    """The words by which a column says of each row whether it trains, validates or
    tests; None where it does not."""
    if table.columns[column].distinct not in (2, 3):
        return None
    words = sorted(set(table.frame[column].astype(str)))
    sides = named_sides(words)
    is_division = sides is not None and SIDES.index("train") in sides
    return words if is_division else None


def passed_over(
    tables: Sequence[SeenTable], id_column: str
) -> list[tuple[SeenTable, Column]]:
    """Columns with a label's name that are not guessed, since half of their cells or
    more are empty."""
    return [
        (table, column)
        for table, column in _columns_but(tables, id_column)
        if label_strength(column.name) > 0 and column.gaps >= 0.5 * column.rows
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


def guess_task(label: Column) -> tuple[Kind, bool]:
    """Whether a label is a class or a number to predict, and whether that is certain.

    Tables of people have counts and grades rather than codes of many classes: 0 to 20
    is a number here, and in Python classes with a warning (`likely_task`).
    """
    if not label.numeric:
        return "classification", True
    has_few = label.distinct <= MOST_WHOLE_CLASSES
    return likely_task(
        label.distinct,
        are_codes=label.is_in_a_row and not label.is_fractional and has_few,
        are_fractional=label.is_fractional,
    )


def why_task(label: Column, task: str) -> str:
    """What else the label could be, where its values do not decide it; "" where they
    do."""
    if not label.numeric or label.distinct <= 2:
        return ""
    if task == "regression" and guess_task(label) == ("regression", True):
        return ""
    whole = "whole " if label.whole and not label.is_fractional else ""
    values = f"{label.name!r} has {label.distinct} different {whole}numbers"
    if task == "regression":
        return (
            f"{values}, and is taken for a number to predict. If they are classes:"
            " --task classification."
        )
    return (
        f"{values}, and they are taken for classes. If it is a number to predict:"
        " --task regression."
    )


# --- rows and columns


@dataclass(frozen=True)
class Overlap:
    """How the ids of several tables fit.

    Attributes:
        rows: How many ids each table has.
        common: How many are in all tables.
        alike: How many would be, if all wrote capitals and spaces alike.
        distinct: Whether no table has an id twice when they are written alike.
    """

    rows: tuple[int, ...]
    common: int
    alike: int
    distinct: bool = True

    @property
    def is_same(self) -> bool:
        return all(count == self.common for count in self.rows)

    @property
    def gains(self) -> bool:
        """Whether comparing normalised ids finds more rows."""
        return self.distinct and self.alike > self.common


def overlap(tables: Sequence[SeenTable], id_column: str) -> Overlap:
    """Count the ids that all tables have; raise where they have none in common."""
    ids = [table.ids(id_column) for table in tables]
    alike = [table.ids(id_column, normalised) for table in tables]
    rows = tuple(len(values) for values in ids)
    rows_alike = tuple(len(values) for values in alike)
    found = Overlap(
        rows,
        common=len(frozenset.intersection(*ids)),
        alike=len(frozenset.intersection(*alike)),
        distinct=all(rows_alike) and rows_alike == rows,
    )
    if not found.common and not found.gains:
        cure = _cure_of_no_overlap(tables, id_column, found)
        raise DataError(
            f"No value of {id_column!r} is in all tables, so there is no row to train"
            f" on. {cure}"
        )
    return found


def rule_that_finds_more(
    tables: Sequence[SeenTable], id_column: str, found: Overlap
) -> str:
    """Advice on the rule by which more ids match, as without leading zeros; "" where
    none finds more. Capitals and spaces are a question of their own."""
    matches = matches_by_rule(*(table.ids(id_column) for table in tables))
    matches.pop("text", None)
    matches["exact"] = found.common
    return more_by_rule(matches, min(found.rows), id_column)


def _cure_of_no_overlap(
    tables: Sequence[SeenTable], id_column: str, found: Overlap
) -> str:
    if found.alike:
        return (
            f"{found.alike:,} would be, if all wrote capitals and spaces alike; but"
            " then a table would have ids twice. Change the files."
        )
    as_floats = [t.path.name for t in tables if t.columns[id_column].is_as_float]
    as_whole = [table.ids(id_column, whole_number) for table in tables]
    count = len(frozenset.intersection(*as_whole))
    if as_floats and count:
        return (
            f"{count:,} are as whole numbers: in {', '.join(as_floats)} they went"
            f" through floating point, as 1001.0 or 1e+06. There, {WHOLE}."
        )
    return how_written({table.path.name: table.ids(id_column) for table in tables})


def left_out(table: SeenTable, id_column: str, label: str) -> dict[str, str]:
    """Columns that are no use as features, and why."""
    reasons = {}
    for name, column in table.columns.items():
        if name == id_column:
            continue
        if name == label:
            reasons[name] = "is the label's name, and would tell it"
        elif column.is_row_numbers:
            reasons[name] = "is the row numbers that pandas wrote"
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
        note = _reading(table, column)
        if note:
            notes[name] = note
    return notes


def _reading(table: SeenTable, column: Column) -> str:
    """A note on how one column is read; "" where there is nothing to say."""
    if column.way:
        is_time = column.way.startswith("times")
        as_days = ", each as days since 1970" if is_time else ""
        odd = odd_words(table.frame[column.name], column.way)
        gaps = f" These words are read as gaps: {odd}." if odd else ""
        return f"is read as {column.way}{as_days}.{gaps}"
    if column.nearly_numeric and column.distinct > 2:
        return (
            f"has {column.odd:,} cells that are no numbers, so that all its numbers are"
            " taken for categories. Leave these cells empty to make it a number."
        )
    if not column.numeric and column.distinct > MANY and not column.identifies:
        return (
            f"has {column.distinct:,} different texts, and all but the {MANY - 1} most"
            " frequent will be one category. If it is free text, leave it out."
        )
    return ""
