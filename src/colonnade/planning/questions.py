"""The questions of `colonnade init`. Each has a guess from the tables as its default,
so none must be answered."""

from __future__ import annotations

import dataclasses
import tomllib
import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial, reduce
from importlib.util import find_spec
from pathlib import Path
from typing import TypeVar

import numpy as np

from colonnade.algorithms import ALGORITHMS, DEFAULT
from colonnade.core.checks import did_you_mean
from colonnade.errors import ConfigError, DataError
from colonnade.federation import Federation, Settings
from colonnade.federation.soundness import rare_classes
from colonnade.planning import guesses
from colonnade.planning.tables import Column, SeenTable, look
from colonnade.planning.template import VALIDATION, Answers, PartyAnswer, write
from colonnade.privacy.accounting import costs_nothing
from colonnade.rows.holdings import read_tables, with_tables
from colonnade.rows.making import from_tables

T = TypeVar("T")
TASKS = {"classification": "one of several classes", "regression": "a number"}
FEWEST = next(rows for rows in range(1, 100) if round(VALIDATION * rows) >= 1)
"""The fewest common rows of which one is left for validation."""


class Asker:
    """Takes every guess, and tells `say` what is worth knowing; a terminal's asker lets
    a person answer instead. `accept` gives what an answer means, or raises: then the
    question may be asked again."""

    def __init__(self, say: Callable[[str], None] = lambda _: None) -> None:
        self.say = say

    def text(self, question: str, default: str, accept: Callable[[str], T]) -> T:  # noqa: ARG002
        return accept(default)

    def choose(self, question: str, options: Mapping[str, str], default: str) -> str:  # noqa: ARG002
        return default

    def yes(self, question: str, default: bool) -> bool:  # noqa: ARG002
        return default


def ask(
    paths: Sequence[Path | SeenTable],
    asker: Asker,
    label: str | None = None,
    task: str | None = None,
) -> Answers:
    """Look at the tables and ask what they do not tell; also for the label and its
    kind, unless they are given."""
    if task is not None and task not in TASKS:
        raise ConfigError(f"--task is one of {', '.join(TASKS)}; found {task!r}.")
    tables = _ask_owners(
        [path if isinstance(path, SeenTable) else look(path) for path in paths], asker
    )
    ids = dict(zip(tables, _ask_ids(list(tables.values()), asker), strict=True))
    id_column = next(iter(ids.values()))
    tables = {
        name: table.renamed(ids[name], id_column) for name, table in tables.items()
    }
    owner, label = _ask_label(tables, id_column, asker, label)
    label_column = tables[owner].columns[label]
    fit, is_normalised = _ask_rows(tables, id_column, asker)
    if round(VALIDATION * fit.common) < 1:
        raise DataError(
            f"{fit.common} rows are in all tables, too few to train on and to hold some"
            f" back: {FEWEST} are the least."
        )
    task = _ask_task(label_column, asker, task)
    left_out = {
        name: guesses.left_out(table, id_column, label)
        for name, table in tables.items()
    }
    left_out[owner].pop(label, None)
    split_by = _ask_split(tables[owner], label, asker)
    if split_by is not None:
        left_out[owner][split_by] = "divides the rows"
    parties = {}
    holders = 0
    for name, table in tables.items():
        for column, why in left_out[name].items():
            asker.say(f"'{name}': the column {column!r} {why}; it is left out.")
        for column, why in guesses.readings(table, id_column, label).items():
            asker.say(f"'{name}': the column {column!r} {why}")
        own_label = label if name == owner else None
        features = tuple(
            c for c in table.columns if c not in (id_column, own_label, *left_out[name])
        )
        if not features and own_label is None:
            raise DataError(
                f"'{name}' has no column to learn from besides the id. Leave"
                f" {table.path} out."
            )
        own_id = ids[name] if ids[name] != id_column else None
        parties[name] = PartyAnswer(
            table.path, own_label, features if left_out[name] else None, own_id
        )
        holders += bool(features)
    for name, candidate in ALGORITHMS.items():
        if candidate.for_rows is not None and fit.common >= candidate.for_rows:
            asker.say(
                f'Worth trying as well, [algorithm] name = "{name}":'
                f" {candidate.about_tables}."
            )
    algorithm = asker.choose("Which algorithm?", algorithms_for(task, holders), DEFAULT)
    for release, tells in ALGORITHMS[algorithm].reveals.items():
        asker.say(f"{algorithm} sends {release}: {tells}.")
    epochs = asker.text("For how many epochs at most?", "auto", _whole_or_auto)
    epsilon = _ask_epsilon(algorithm, asker, parties)
    return Answers(
        parties,
        id_column,
        task,
        algorithm,
        epochs,
        round(0.7 * fit.common),
        not fit.is_same,
        epsilon,
        left_out,
        is_normalised,
        split_by,
    )


def check(answers: Answers, folder: Path) -> None:
    """Build the federation from the file's text, in the open, to be sure that it runs;
    warn of classes of few rows."""
    settings = Settings.from_mapping(
        tomllib.loads(write(answers, folder, "federation.toml"))
    )
    settings = dataclasses.replace(
        settings, data=dataclasses.replace(settings.data, align="exact")
    )
    files = {name: str(party.table) for name, party in answers.parties.items()}
    tables = read_tables(with_tables(settings, files))
    if answers.is_private:
        common = reduce(np.intersect1d, (table.ids for table in tables.values()))
        tables = {name: table.in_order(common) for name, table in tables.items()}
    federation = Federation(settings, from_tables(settings, tables))
    for finding in rare_classes(federation.holdings.encoder, federation.label_owners):
        warnings.warn(finding, stacklevel=2)


def algorithms_for(task: str, holders: int) -> dict[str, str]:
    """Algorithms that suit the task, each with what it is and what crosses. Those that
    send each row once come first: they tell in seconds what the others' columns are
    worth."""
    lines = {}
    for name, algorithm in sorted(
        ALGORITHMS.items(), key=lambda item: not item[1].once
    ):
        if (
            algorithm.nested is not None
            or task not in algorithm.tasks
            or not algorithm.suits(holders)
        ):
            continue
        description = algorithm.about.rstrip(".")
        lines[name] = (
            f"{description.partition(': ')[2] or description} (sends"
            f" {', '.join(algorithm.releases)})"
        )
    return lines


def _ask_owners(tables: Sequence[SeenTable], asker: Asker) -> dict[str, SeenTable]:
    if len(tables) < 2:
        raise DataError(
            "A federation has two tables at least, one per organisation; found"
            f" {len(tables)}."
        )
    twice = Counter(table.owner for table in tables)
    owners: dict[str, SeenTable] = {}
    for number, table in enumerate(tables, 1):
        guess = table.owner if twice[table.owner] == 1 else f"{table.owner}_{number}"
        question = (
            f"{table.path.name}: {table.rows:,} rows, {len(table.columns)} columns."
            " Whose is it?"
        )
        owners[asker.text(question, guess, partial(_new_name, owners))] = table
    return owners


def _new_name(taken: Mapping[str, SeenTable], name: str) -> str:
    if (
        name in taken
        or not name
        or len(name) > 64
        or not all(c.isalnum() or c in "_-" for c in name)
    ):
        raise ConfigError(
            "Every party has a name of its own, of letters, digits, '-' and '_'; found"
            f" {name!r}."
        )
    return name


def _ask_ids(tables: Sequence[SeenTable], asker: Asker) -> list[str]:
    """The id column of each table. An answer names one for all, or one for each,
    separated by commas."""

    def accept(given: str) -> list[str]:
        is_column = given in {name for table in tables for name in table.columns}
        ids = [given] if is_column else [name.strip() for name in given.split(",")]
        ids = ids * len(tables) if len(ids) == 1 else ids
        if len(ids) != len(tables):
            raise DataError(
                f"There are {len(tables)} tables: name one id column for all, or one"
                f" for each; found {given!r}."
            )
        for table, chosen in zip(tables, ids, strict=True):
            if chosen not in table.columns:
                columns = ", ".join(map(repr, list(table.columns)[:20]))
                raise DataError(
                    f"{table.path.name} has no column {chosen!r}, the id; its columns"
                    f" are {columns}."
                )
            if chosen != ids[0] and ids[0] in table.columns:
                raise DataError(
                    f"{table.path.name} has {chosen!r} for its id and another column"
                    f" {ids[0]!r}, as {tables[0].path.name} calls its id. Rename that"
                    " one in the file."
                )
            if not table.columns[chosen].could_be_id:
                raise DataError(
                    f"{chosen!r} cannot be the id: in {table.path.name} it has"
                    f" {table.columns[chosen].distinct:,} different values in"
                    f" {table.rows:,} rows, and every row needs its own, whole numbers"
                    " or text."
                )
        return ids

    guess = guesses.guess_ids(tables)
    default = guess[0]
    if len(set(guess)) > 1:
        default = ", ".join(guess)
        asker.say(
            "The tables call their ids differently; a guess by their values, table by"
            " table: " + default + "."
        )
    return asker.text("By which column do the tables fit together?", default, accept)


def _ask_label(
    tables: Mapping[str, SeenTable], id_column: str, asker: Asker, given: str | None
) -> tuple[str, str]:
    guessed, guess = guesses.guess_label(list(tables.values()), id_column)
    for table, gappy in (
        guesses.passed_over(list(tables.values()), id_column) if given is None else []
    ):
        asker.say(
            f"{table.path.name}: {gappy.name!r} sounds like a label, and {gappy.gaps:,}"
            f" of {gappy.rows:,} rows have none. To predict it all the same, name it:"
            " --label."
        )
    likely = next(name for name, table in tables.items() if table is guessed)
    columns = [
        (name, c)
        for name, table in tables.items()
        for c in table.columns
        if c != id_column
    ]

    def accept(chosen: str) -> tuple[str, str]:
        matches = [(name, c) for name, c in columns if chosen in (c, f"{name}.{c}")]
        if len(matches) != 1:
            hint = did_you_mean(
                chosen,
                [*(c for _, c in columns), *(f"{name}.{c}" for name, c in columns)],
            )
            where = (
                f"it is in {', '.join(name for name, _ in matches)}"
                if matches
                else f"it is in no table{hint}"
            )
            raise DataError(
                f"The label is one column of one party, as {likely}.{guess}; found"
                f" {chosen!r}, and {where}."
            )
        owner, column = matches[0]
        label_column = tables[owner].columns[column]
        if label_column.distinct < 2:
            raise DataError(
                f"'{owner}' has {label_column.distinct} different values in {column!r},"
                " and a label needs two at least. Choose another column."
            )
        return owner, column

    question = "Which column is to be predicted (party.column)?"
    owner, column = (
        asker.text(question, f"{likely}.{guess}", accept)
        if given is None
        else accept(given)
    )
    if given is None and (owner, column) == (likely, guess):
        asker.say(
            f"The label is {guess!r} of '{likely}', as guessed:"
            f" {guesses.why_label(guessed, guess)}."
        )
    if gaps := tables[owner].columns[column].gaps:
        asker.say(
            f"'{owner}' has {gaps:,} rows without a label in {column!r}; they are left"
            " out."
        )
    others = [name for name, c in columns if c == column and name != owner]
    if others:
        asker.say(
            f"{column!r} is also a column of {', '.join(map(repr, others))}. Where"
            " several organisations hold labels, the algorithm"
            f" {' or '.join(ALGORITHMS.nested_names())} trains with all of them: see"
            " [[label_owners]] in the federation file's page."
        )
    return owner, column


def _ask_task(label: Column, asker: Asker, given: str | None) -> str:
    """Ask whether the label is a class or a number."""
    if given == "regression" and not label.numeric:
        raise DataError(
            f"{label.name!r} holds text, and a number to predict must be one. Leave"
            " --task out, or convert."
        )
    if given is not None:
        return given
    task = asker.choose("What kind of label is it?", TASKS, guesses.guess_task(label))
    if why := guesses.why_task(label, task):
        asker.say(why)
    return task


def _ask_split(table: SeenTable, label: str, asker: Asker) -> str | None:
    """The column that says which rows train and which test, if the label owner has one
    and wants to use it."""
    for name in table.columns:
        words = guesses.side_words(table, name) if name != label else None
        if words is not None and asker.yes(
            f"{name!r} says {', '.join(words)}. Divide the rows by it?", True
        ):
            asker.say(f"Rows train and test as {name!r} says ({', '.join(words)}).")
            return name
    return None


def _ask_rows(
    tables: Mapping[str, SeenTable], id_column: str, asker: Asker
) -> tuple[guesses.Overlap, bool]:
    """How the tables' rows overlap, and whether ids are normalised for it."""
    overlap = guesses.overlap(list(tables.values()), id_column)
    is_normalised = False
    if overlap.gains:
        asker.say(
            f"{overlap.common:,} ids are in all tables, and {overlap.alike:,} would be"
            " if those that differ in capitals or spaces alone were the same."
        )
        is_normalised = asker.yes("Compare normalised ids?", True)
        overlap = (
            dataclasses.replace(overlap, common=overlap.alike)
            if is_normalised
            else overlap
        )
        if not overlap.common:
            raise DataError(
                "No id is in all tables then, so there is no row to train on. Change"
                " the files."
            )
    if overlap.is_same:
        asker.say(f"All tables hold the same {overlap.common:,} rows.")
        return overlap, is_normalised
    counts = ", ".join(
        f"'{name}' {count:,}" for name, count in zip(tables, overlap.rows, strict=True)
    )
    asker.say(
        f"The tables hold different rows ({counts}); {overlap.common:,} are in all of"
        " them."
    )
    if overlap.alike > overlap.common and not overlap.distinct:
        asker.say(
            f"{overlap.alike:,} would be, if all wrote ids alike: some differ in"
            " capitals or spaces alone, and are taken for different rows. Change them"
            " in the files to train on more."
        )
    if not asker.yes("Train on these, found by private set intersection?", True):
        raise DataError(
            "All tables must hold the same rows then. Remove the others, and call"
            " colonnade init again."
        )
    if find_spec("coincurve") is None:
        asker.say(
            "That needs a package that is not installed: pip install"
            ' "colonnade[crypto]".'
        )
    return overlap, is_normalised


def _whole_or_auto(given: str) -> int | str:
    if given == "auto":
        return given
    if not given.isascii() or not given.isdigit() or int(given) < 1:
        raise ConfigError(
            f"Epochs are 'auto' or a whole number, at least 1; found {given!r}."
        )
    return int(given)


def _ask_epsilon(
    algorithm: str, asker: Asker, parties: Mapping[str, PartyAnswer]
) -> float | None:
    chosen = ALGORITHMS[algorithm]
    columns, _ = chosen.crosses(chosen.config())
    bare = [
        r
        for r, event in columns.items()
        if r not in chosen.from_columns and not costs_nothing(event)
    ]
    if bare:
        asker.say(
            f"{algorithm} cannot keep a privacy budget: {', '.join(bare)} leave without"
            " noise."
        )
        return None
    others = ", ".join(
        f"'{name}'" for name, party in parties.items() if party.label is None
    )
    if not asker.yes(
        f"Shall what leaves {others} carry noise, with a privacy budget?", False
    ):
        return None
    return asker.text("Which epsilon per row, for the whole run?", "8.0", _above_zero)


def _above_zero(given: str) -> float:
    try:
        value = float(given)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise ConfigError(f"epsilon is a number above 0; found {given!r}.")
    return value
