"""A federation file with a word on every setting."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from colonnade.algorithms import find
from colonnade.settings.suggested import EPOCHS_WITH_NOISE, MODEL, by_rows
from colonnade.settings.toml_text import to_toml, toml_key, toml_value

PLACE = 34
"""The column in which comments begin."""
VALIDATION = 0.1
"""The share of the rows that validates."""
PATIENCE = 10
"""Epochs without a better validation after which training stops."""
ABOUT_MODELS = {
    "name": (
        '"linear", "cnn", or a torch module, as "my_package.nets:Tower" (--allow-model)'
    ),
    "hidden": (
        "widths of the hidden layers, as [64]; auto: by training rows and classes"
    ),
    "width": (
        "numbers a row that a party sends, auto too: fewer send less and show less"
    ),
    "activation": "relu may leave a party with nothing to say",
}


@dataclass(frozen=True)
class PartyAnswer:
    """One organisation's part of the file."""

    table: Path
    label: str | None = None
    columns: tuple[str, ...] | None = None  # None: all but id and label
    id: str | None = None  # its own name for the id column


@dataclass(frozen=True)
class Answers:
    """The answers to all questions."""

    parties: Mapping[str, PartyAnswer]
    id: str
    task: str
    algorithm: str
    epochs: int | str  # or "auto"
    training_rows: int
    is_private: bool  # rows are found by private set intersection
    epsilon: float | None = None  # a budget for every party without labels
    left_out: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    is_normalised: bool = False  # ids are compared without capitals and spaces
    split_by: str | None = None  # the label owner's column that divides the rows
    # of two classes, the one that is looked for
    positive: str | int | float | bool | None = None


def write(answers: Answers, folder: Path, name: str) -> str:
    """The file's text; paths are relative to the folder it will be in."""
    return "\n".join(_lines(answers, folder, name)) + "\n"


def _lines(answers: Answers, folder: Path, name: str) -> Iterator[str]:
    algorithm = find(answers.algorithm)
    yield f"# Written by colonnade init. What will it take?  colonnade plan {name}"
    yield f"# Train:                                         colonnade run {name}"
    yield ""
    yield "[algorithm]"
    yield _line(
        "name", answers.algorithm, "colonnade algorithms lists all, with their settings"
    )
    yield f"# {algorithm.config.about()}"
    yield "# What crosses, and what it tells:"
    yield from (
        f"#   {release}: {tells}" for release, tells in algorithm.reveals.items()
    )
    yield from ("", "[data]")
    yield _line("id", answers.id, "the column by which the tables fit together")
    if answers.is_private:
        yield _line(
            "align",
            "private",
            "the tables hold different rows: those that all share are found in private",
        )
    else:
        yield _line("align", "exact", "all tables hold the same rows, in any order")
    if answers.split_by is not None:
        yield _line(
            "split_by",
            answers.split_by,
            "the column that says which rows train, validate and test",
        )
    yield _line("validation", VALIDATION, "share of the rows that decides when to stop")
    yield _line(
        "test",
        0.2,
        "share of the rows that tells how good the model is; never trained on",
    )
    yield _line(
        "task", answers.task, "what the label is: classes, or a number (regression)"
    )
    if answers.positive is not None:
        yield _line(
            "positive",
            answers.positive,
            "of the two classes the one that scores and curves are about",
        )
    if answers.is_normalised:
        yield from ("", "[alignment]")
        yield _line(
            "ids",
            "normalised",
            "those that differ in capitals, spaces or Unicode form alone are the same",
        )
    if algorithm.intercept is None:
        yield from (
            "",
            "[model]" + " " * (PLACE - 7) + "# of every party, unless it names its own",
        )
        yield from (_line(key, MODEL[key], why) for key, why in ABOUT_MODELS.items())
    yield from ("", "[preprocess]")
    yield _line(
        "numbers",
        "auto",
        '"standard" scales, "quantile" ranks, "piecewise" fills quantile bins',
    )
    size, epochs = by_rows(
        answers.training_rows,
        in_batches=algorithm.config.in_batches,
        converges=algorithm.config.converges,
    )
    epochs = epochs if answers.epsilon is None else EPOCHS_WITH_NOISE
    yield from ("", "[train]")
    yield _line(
        "epochs",
        answers.epochs,
        f"at most; auto is {epochs} here. early_stop = false trains them all",
    )
    yield _line(
        "patience",
        PATIENCE,
        "it stops after so many epochs that validated no better; the best one is kept",
    )
    yield _line(
        "batch_size",
        "auto",
        f"rows at a time, {size} here; an exchange between the parties each",
    )
    yield from ("", "[federation]")
    yield _line("seed", 0, "decides the split, the batches and the first weights")
    for party, answer in answers.parties.items():
        yield from _party(party, answer, answers, folder)


def _party(
    party: str, answer: PartyAnswer, answers: Answers, folder: Path
) -> Iterator[str]:
    role = (
        "holds the labels, and drives"
        if answer.label is not None
        else "holds columns about the same rows"
    )
    yield from ("", _heading(f"parties.{toml_key(party)}", role))
    yield _line(
        "table",
        Path(os.path.relpath(answer.table, folder)).as_posix(),
        "relative to this file",
    )
    if answer.id is not None:
        yield _line("id", answer.id, "its own name of the id column")
    if answer.label is not None:
        yield _line("label", answer.label, "to be predicted")
    for column, why in answers.left_out.get(party, {}).items():
        yield f"# left out: {toml_value(column)} {why}"
    if answer.columns is not None:
        yield _line("columns", list(answer.columns), "")
    release = next(iter(find(answers.algorithm).from_columns), None)
    if answer.label is not None or release is None:
        return
    if answers.epsilon is None:
        yield f"# outbox.{release} = {NOISE}   # with a budget: noise for every row"
        yield "# budget = { epsilon = 8.0 }"
        return
    yield _heading(
        f"parties.{toml_key(party)}.outbox", "this owner's rules for what leaves"
    )
    yield f"{release} = {NOISE}   # sigma: the least noise that lasts for all epochs"
    yield _heading(
        f"parties.{toml_key(party)}.budget",
        "what each of its rows may pay in all; then it is refused",
    )
    yield _line("epsilon", answers.epsilon, "smaller protects more")
    yield _line("delta", 1e-5, "the chance that epsilon does not hold")


NOISE = '{ mechanism = { name = "gaussian", clip = 1.0, sigma = "auto" } }'


def _line(key: str, value: Any, why: str) -> str:
    text = to_toml({key: value}).strip()
    return f"{text:<{PLACE}}# {why}" if why else text


def _heading(name: str, why: str) -> str:
    return f"{f'[{name}]':<{PLACE}}# {why}"
