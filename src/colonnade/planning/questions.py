"""The questions of `colonnade init`. Each has a guess from the tables as its default, so
that few must be answered: only a label that nothing but looks speaks for is asked for.
"""

from __future__ import annotations

import dataclasses
import tomllib
import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial, reduce
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from colonnade.algorithms import ALGORITHMS
from colonnade.errors import ConfigError, DataError, did_you_mean
from colonnade.federation import Federation, Settings
from colonnade.federation.soundness import rare_classes
from colonnade.planning import guesses
from colonnade.planning.cost import Costs, whole_run
from colonnade.planning.tables import Column, SeenTable, look
from colonnade.planning.template import VALIDATION, Answers, PartyAnswer, write
from colonnade.privacy.accounting import costs_nothing
from colonnade.rows.holdings import read_tables, with_tables
from colonnade.rows.making import from_tables
from colonnade.settings.algorithms import DEFAULT, with_several_label_owners

T = TypeVar("T")
TASKS = {"classification": "one of several classes", "regression": "a number"}
QUICK = next(name for name, algorithm in ALGORITHMS.items() if algorithm.once)
"""The algorithm that sends each row once: it tells in seconds what others' columns are
worth."""
FEWEST_ROWS = next(rows for rows in range(1, 100) if round(VALIDATION * rows) >= 1)
"""The fewest common rows of which one is left for validation."""
TRAINING_SHARE = 0.7
"""The share of the common rows that train."""
BATCHES_TIMED = 8
"""How many batches are tried at most to estimate what training takes."""
MOST_NAME_LENGTH = 64
MOST_LISTED = 20
"""An error lists at most so many columns."""
MOST_CANDIDATES = 5
"""An error names at most so many columns that could be the label."""


class Asker:
    """Takes every guess, and tells `say` what is worth knowing.

    A terminal's asker lets a person answer instead. `accept` gives what an answer means,
    or raises: then the question may be asked again.
    """

    is_alone = True
    """Whether nobody is there to correct a guess."""

    def __init__(self, say: Callable[[str], None] = lambda _: None) -> None:
        self.say = say

    def text(self, question: str, default: str, accept: Callable[[str], T]) -> T:  # noqa: ARG002
        return accept(default)

    def choose(self, question: str, options: Mapping[str, str], default: str) -> str:  # noqa: ARG002
        return default

    def yes(self, question: str, default: bool) -> bool:  # noqa: ARG002
        return default


Tables = Mapping[str, SeenTable]
"""Each party's table, by the party's name."""


def ask(
    paths: Sequence[Path | SeenTable],
    asker: Asker,
    *,
    label: str | None = None,
    task: str | None = None,
    ids: Sequence[str] = (),
    quick: bool = False,
) -> Answers:
    """Look at the tables and ask what they do not tell.

    Args:
        paths: The tables, one for each organisation.
        asker: Who answers.
        label: The column to predict, as COLUMN or PARTY.COLUMN; else it is asked for.
        task: Whether the label is a class or a number; else it is asked for.
        ids: The id columns, as COLUMN for all tables or PARTY.COLUMN for one; those of
            the other tables are guessed.
        quick: Whether to propose the algorithm that is done in seconds.
    """
    if task is not None and task not in TASKS:
        raise ConfigError(f"--task is one of {', '.join(TASKS)}; found {task!r}.")
    seen = [path if isinstance(path, SeenTable) else look(path) for path in paths]
    tables: Tables = _ask_owners(seen, asker)
    id_columns = _ask_ids(tables, asker, ids)
    id_column = next(iter(id_columns.values()))
    tables = {
        name: table.renamed(id_columns[name], id_column)
        for name, table in tables.items()
    }
    owner, label = _ask_label(tables, id_column, asker, label)
    overlap, is_normalised = _ask_rows(tables, id_column, asker)
    if round(VALIDATION * overlap.common) < 1:
        raise DataError(
            f"{overlap.common} rows are in all tables, too few to train on and to hold"
            f" some back: {FEWEST_ROWS} are the least."
        )
    task = _ask_task(tables[owner].columns[label], asker, task)
    positive = _ask_positive(tables[owner], label, task, asker)
    split_by = _ask_split(tables[owner], label, asker)
    left_out = {
        name: guesses.left_out(table, id_column, label)
        for name, table in tables.items()
    }
    left_out[owner].pop(label, None)
    if split_by is not None:
        left_out[owner][split_by] = "divides the rows"
    _tell_about_columns(tables, id_column, label, left_out, asker)
    parties = {}
    holders = 0
    for name, table in tables.items():
        own_label = label if name == owner else None
        own_id = id_columns[name] if id_columns[name] != id_column else None
        no_features = {id_column, own_label, *left_out[name]}
        features = tuple(c for c in table.columns if c not in no_features)
        if not features and own_label is None:
            raise DataError(
                f"'{name}' has no column to learn from besides the id. Leave"
                f" {table.path} out."
            )
        columns = features if left_out[name] else None
        parties[name] = PartyAnswer(table.path, own_label, columns, own_id)
        holders += bool(features)
    algorithm = _ask_algorithm(task, holders, overlap.common, asker, quick=quick)
    epochs = asker.text("For how many epochs at most?", "auto", _whole_or_auto)
    epsilon = _ask_epsilon(algorithm, asker, parties)
    return Answers(
        parties,
        id_column,
        task,
        algorithm,
        epochs,
        training_rows=round(TRAINING_SHARE * overlap.common),
        is_private=not overlap.is_same,
        epsilon=epsilon,
        left_out=left_out,
        is_normalised=is_normalised,
        split_by=split_by,
        positive=positive,
    )


def check(answers: Answers, folder: Path) -> Federation:
    """Build the federation from the file's text, in the open, to be sure that it runs;
    warn of classes of few rows."""
    text = write(answers, folder, "federation.toml")
    settings = Settings.from_mapping(tomllib.loads(text))
    in_the_open = settings.data.changed(align="exact")
    settings = dataclasses.replace(settings, data=in_the_open)
    files = {name: str(party.table) for name, party in answers.parties.items()}
    tables = read_tables(with_tables(settings, files))
    if answers.is_private:
        common = reduce(np.intersect1d, (table.ids for table in tables.values()))
        tables = {name: table.in_order(common) for name, table in tables.items()}
    federation = Federation(settings, from_tables(settings, tables))
    for finding in rare_classes(federation.holdings.encoder, federation.label_owners):
        warnings.warn(finding, stacklevel=2)
    return federation


def estimate(federation: Federation) -> Costs:
    """What the whole run of a federation that `check` built takes, by a few batches of
    it. No budget is counted, and the federation is used up."""
    for account in federation.accounts.values():
        account.budget = None
    with warnings.catch_warnings(action="ignore"):
        return whole_run(federation, BATCHES_TIMED)


def algorithms_for(task: str, holders: int) -> dict[str, str]:
    """Algorithms that suit the task, each with what it is and what crosses.

    Those that send each row once come first: they tell in seconds what the others'
    columns are worth.
    """
    lines = {}
    once_first = sorted(ALGORITHMS.items(), key=lambda item: not item[1].once)
    for name, algorithm in once_first:
        has_several_label_owners = algorithm.nested is not None
        suits = task in algorithm.tasks and algorithm.suits(holders)
        if has_several_label_owners or not suits:
            continue
        description = algorithm.config.about().rstrip(".")
        after_name = description.partition(": ")[2] or description
        lines[name] = f"{after_name} (sends {', '.join(algorithm.releases)})"
    return lines


def _ask_owners(tables: Sequence[SeenTable], asker: Asker) -> dict[str, SeenTable]:
    """Ask for the name of each table's owner; guess it from the file's name."""
    if len(tables) < 2:
        raise DataError(
            "A federation has two tables at least, one per organisation; found"
            f" {len(tables)}."
        )
    times_named = Counter(table.owner for table in tables)
    owners: dict[str, SeenTable] = {}
    for number, table in enumerate(tables, 1):
        is_unique = times_named[table.owner] == 1
        guess = table.owner if is_unique else f"{table.owner}_{number}"
        question = (
            f"{table.path.name}: {table.rows:,} rows, {len(table.columns)} columns."
            " Whose is it?"
        )
        owners[asker.text(question, guess, partial(_new_name, owners))] = table
    return owners


def _new_name(taken: Tables, name: str) -> str:
    is_word = bool(name) and all(c.isalnum() or c in "_-" for c in name)
    if name in taken or not is_word or len(name) > MOST_NAME_LENGTH:
        raise ConfigError(
            "Every party has a name of its own, of letters, digits, '-' and '_'; found"
            f" {name!r}."
        )
    return name


def _ask_ids(tables: Tables, asker: Asker, given: Sequence[str]) -> dict[str, str]:
    """Ask for the id column of each party's table.

    An answer names one column for all, or one for each table, separated by commas. What
    `--id` gives is no question; the columns that it leaves open are guessed.
    """
    seen = list(tables.values())
    if given:
        known = _ids_given(tables, given)
        chosen = guesses.guess_ids(seen, known)
        _check_ids(seen, chosen)
        if len(known) < len(seen):
            asker.say(f"The tables fit together by {', '.join(map(repr, chosen))}.")
        return dict(zip(tables, chosen, strict=True))

    def accept(answer: str) -> list[str]:
        is_column = any(answer in table.columns for table in seen)
        names = [answer] if is_column else [name.strip() for name in answer.split(",")]
        if len(names) == 1:
            names *= len(seen)
        if len(names) != len(seen):
            raise DataError(
                f"There are {len(seen)} tables: name one id column for all, or one for"
                f" each; found {answer!r}."
            )
        _check_ids(seen, names)
        return names

    guess = guesses.guess_ids(seen)
    default = guess[0]
    if len(set(guess)) > 1:
        default = ", ".join(guess)
        asker.say(
            "The tables call their ids differently; a guess by their values, table by"
            f" table: {default}."
        )
    chosen = asker.text("By which column do the tables fit together?", default, accept)
    return dict(zip(tables, chosen, strict=True))


def _ids_given(tables: Tables, given: Sequence[str]) -> dict[int, str]:
    """The id columns that `--id` names, by the place of their table.

    COLUMN is that of every table that has it, and PARTY.COLUMN that of one party.
    """
    known: dict[int, str] = {}
    for name in given:
        found = False
        for place, (party, table) in enumerate(tables.items()):
            prefix, _, rest = name.partition(".")
            is_of_party = prefix == party and rest in table.columns
            if name in table.columns or is_of_party:
                found = True
                known[place] = name if name in table.columns else rest
        if not found:
            parties = ", ".join(tables)
            near = did_you_mean(name, [c for t in tables.values() for c in t.columns])
            raise DataError(
                f"--id {name} is in no table{near}. Name a column of them, as --id"
                f" customer_id, or of one party, as --id PARTY.customer_id; the parties"
                f" are {parties}."
            )
    return known


def _check_ids(tables: Sequence[SeenTable], names: Sequence[str]) -> None:
    """Raise unless each of these columns can be the id of its table."""
    for table, name in zip(tables, names, strict=True):
        file = table.path.name
        if name not in table.columns:
            columns = ", ".join(map(repr, list(table.columns)[:MOST_LISTED]))
            raise DataError(
                f"{file} has no column {name!r}, the id; its columns are {columns}."
            )
        if name != names[0] and names[0] in table.columns:
            raise DataError(
                f"{file} has {name!r} for its id and another column {names[0]!r}, as"
                f" {tables[0].path.name} calls its id. Rename that one in the file."
            )
        why = guesses.why_no_id(table.columns[name])
        if why:
            raise DataError(
                f"{name!r} cannot be the id: in {file} {why}. Every row needs an id of"
                " its own, whole numbers or text."
            )


def _ask_label(
    tables: Tables, id_column: str, asker: Asker, given: str | None
) -> tuple[str, str]:
    """Ask for the column to predict; gives the party that has it, and its name."""
    accept = partial(_label_named, tables, id_column)
    if given is None:
        owner, column = _guessed_label(tables, id_column, asker, accept)
    else:
        owner, column = accept(given)
    gaps = tables[owner].columns[column].gaps
    if gaps:
        asker.say(
            f"'{owner}' has {gaps:,} rows without a label in {column!r}; they are left"
            " out."
        )
    others = [
        name
        for name, table in tables.items()
        if column in table.columns and name != owner
    ]
    if others:
        asker.say(
            f"{column!r} is also a column of {', '.join(map(repr, others))}. Where"
            " several organisations hold labels, the algorithm"
            f" {' or '.join(with_several_label_owners())} trains with all of them: see"
            " [[label_owners]] in the federation file's page."
        )
    return owner, column


def _guessed_label(
    tables: Tables,
    id_column: str,
    asker: Asker,
    accept: Callable[[str], tuple[str, str]],
) -> tuple[str, str]:
    """Ask for the label with a guess as the default. Where nobody can correct it, a
    guess that its name does not speak for is not taken."""
    seen = list(tables.values())
    guess = guesses.guess_label(seen, id_column)
    for table, column in guesses.passed_over(seen, id_column):
        asker.say(
            f"{table.path.name}: {column.name!r} sounds like a label, and"
            f" {column.gaps:,} of {column.rows:,} rows have none. To predict it all the"
            " same, name it: --label."
        )
    if asker.is_alone and not guess.is_sure:
        raise DataError(_which_label(tables, id_column, guess))
    owner = _owner_of(tables, guess.table)
    chosen = asker.text(
        "Which column is to be predicted (party.column)?",
        f"{owner}.{guess.column}",
        accept,
    )
    if chosen == (owner, guess.column):
        asker.say(
            f"The label is {guess.column!r} of '{owner}', as guessed: {guess.why}."
        )
    return chosen


def _which_label(tables: Tables, id_column: str, guess: guesses.LabelGuess) -> str:
    """Why no label is taken, and which columns it could be."""
    if guess.is_named:
        why = "Several columns have a label's name"
        could_be = [(guess.table, guess.column), *guess.others]
    else:
        why = "No column has a name by which it is the label, and none is taken by its"
        why += " looks alone"
        could_be = guesses.label_candidates(list(tables.values()), id_column)
    named = [f"{_owner_of(tables, table)}.{column}" for table, column in could_be]
    return (
        f"{why}. Say what to predict, as --label {named[0]}. It could be"
        f" {', '.join(named[:MOST_CANDIDATES])}, or another column."
    )


def _owner_of(tables: Tables, wanted: SeenTable) -> str:
    return next(name for name, table in tables.items() if table is wanted)


def _label_named(tables: Tables, id_column: str, name: str) -> tuple[str, str]:
    """The party and the column that are called so, as COLUMN or PARTY.COLUMN."""
    columns = [
        (party, column)
        for party, table in tables.items()
        for column in table.columns
        if column != id_column
    ]
    matches = [pair for pair in columns if name in (pair[1], ".".join(pair))]
    if len(matches) != 1:
        known = [*(column for _, column in columns), *map(".".join, columns)]
        where = f"it is in no table{did_you_mean(name, known)}"
        if matches:
            where = f"it is in {', '.join(party for party, _ in matches)}"
        raise DataError(
            "The label is one column of one party, as in"
            f" {'.'.join(columns[-1])}; found {name!r}, and {where}."
        )
    owner, column = matches[0]
    distinct = tables[owner].columns[column].distinct
    if distinct < 2:
        raise DataError(
            f"'{owner}' has {distinct} different values in {column!r}, and a label"
            " needs two at least. Choose another column."
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
    guess, _ = guesses.guess_task(label)
    task = asker.choose("What kind of label is it?", TASKS, guess)
    why = guesses.why_task(label, task)
    if why:
        asker.say(why)
    return task


def _ask_positive(table: SeenTable, label: str, task: str, asker: Asker) -> Any:
    """Ask which of two classes is looked for, with the rarer one as the default; None
    for several classes and for numbers."""
    if task != "classification" or table.columns[label].distinct != 2:
        return None
    counts = table.classes(label)
    by_name = {str(name): name for name in sorted(counts, key=str)}
    # of classes that are equally common the second, as where nothing is said
    rarer = min(reversed(by_name.values()), key=lambda name: counts[name])
    share = counts[rarer] / sum(counts.values())

    def accept(answer: str) -> Any:
        if answer not in by_name:
            raise DataError(
                f"The classes of {label!r} are {' and '.join(by_name)}; found"
                f" {answer!r}."
            )
        return by_name[answer]

    positive = asker.text(
        f"Which class of {label!r} are you looking for? {rarer} is the rarer one"
        f" ({share:.1%})",
        str(rarer),
        accept,
    )
    asker.say(
        f"Scores and curves are about the class {positive}, which"
        f" {counts[positive] / sum(counts.values()):.1%} of the rows have: positive"
        " under [data] says so."
    )
    return positive


def _ask_split(table: SeenTable, label: str, asker: Asker) -> str | None:
    """The column that says which rows train and which test, if the label owner has one
    and wants to use it."""
    for name in table.columns:
        words = guesses.side_words(table, name) if name != label else None
        if words is None:
            continue
        listed = ", ".join(words)
        if asker.yes(f"{name!r} says {listed}. Divide the rows by it?", True):
            asker.say(f"Rows train and test as {name!r} says ({listed}).")
            return name
    return None


def _ask_rows(
    tables: Tables, id_column: str, asker: Asker
) -> tuple[guesses.Overlap, bool]:
    """How the tables' rows overlap, and whether ids are normalised for it."""
    overlap = guesses.overlap(list(tables.values()), id_column)
    is_normalised = overlap.gains and _ask_normalised(overlap, asker)
    if is_normalised:
        overlap = dataclasses.replace(overlap, common=overlap.alike)
    if not overlap.common:
        raise DataError(
            "No id is in all tables then, so there is no row to train on. Change the"
            " files."
        )
    if overlap.is_same:
        asker.say(f"All tables hold the same {overlap.common:,} rows.")
        return overlap, is_normalised
    pairs = zip(tables, overlap.rows, strict=True)
    counts = ", ".join(f"'{name}' {count:,}" for name, count in pairs)
    asker.say(
        f"The tables hold different rows ({counts}); {overlap.common:,} are in all of"
        " them."
    )
    advice = guesses.rule_that_finds_more(list(tables.values()), id_column, overlap)
    if advice:
        asker.say(advice)
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
    return overlap, is_normalised


def _ask_normalised(overlap: guesses.Overlap, asker: Asker) -> bool:
    """Ask whether ids that differ in capitals or spaces alone are the same."""
    asker.say(
        f"{overlap.common:,} ids are in all tables, and {overlap.alike:,} would be if"
        " those that differ in capitals or spaces alone were the same."
    )
    return asker.yes("Compare normalised ids?", True)


def _tell_about_columns(
    tables: Tables,
    id_column: str,
    label: str,
    left_out: Mapping[str, Mapping[str, str]],
    asker: Asker,
) -> None:
    """Tell which columns are left out, and how text is read."""
    for name, table in tables.items():
        for column, why in left_out[name].items():
            asker.say(f"'{name}': the column {column!r} {why}; it is left out.")
        for column, why in guesses.readings(table, id_column, label).items():
            asker.say(f"'{name}': the column {column!r} {why}")


def _ask_algorithm(
    task: str, holders: int, rows: int, asker: Asker, *, quick: bool
) -> str:
    """Ask for the algorithm, and tell what of it crosses."""
    for name, candidate in ALGORITHMS.items():
        if candidate.for_rows is not None and rows >= candidate.for_rows:
            asker.say(
                f'Worth trying as well, [algorithm] name = "{name}":'
                f" {candidate.about_tables}."
            )
    algorithm = QUICK
    if not quick:
        options = algorithms_for(task, holders)
        algorithm = asker.choose("Which algorithm?", options, DEFAULT)
    for release, tells in ALGORITHMS[algorithm].reveals.items():
        asker.say(f"{algorithm} sends {release}: {tells}.")
    return algorithm


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
    """Ask for the epsilon of every party without labels; None for no budget."""
    chosen = ALGORITHMS[algorithm]
    crossing, _ = chosen.crosses(chosen.config())
    bare = [
        release
        for release, event in crossing.items()
        if release not in chosen.from_columns and not costs_nothing(event)
    ]
    if bare:
        asker.say(
            f"{algorithm} cannot keep a privacy budget: {', '.join(bare)} leave without"
            " noise."
        )
        return None
    others = [f"'{name}'" for name, party in parties.items() if party.label is None]
    wants_budget = asker.yes(
        f"Shall what leaves {', '.join(others)} carry noise, with a privacy budget?",
        False,
    )
    if not wants_budget:
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
