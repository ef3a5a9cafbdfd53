"""Guesses from tables: the id, the label, what to leave out, how rows fit."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from colonnade.datasets.preprocess import Preprocessor
from colonnade.errors import DataError
from colonnade.planning import guesses
from colonnade.planning.tables import Column, SeenTable

ROWS = 40


def table(name: str, rows: int = ROWS, first: int = 0, **columns: Any) -> SeenTable:
    ids = [f"P{n:03d}" for n in range(first, first + rows)]
    return SeenTable(Path(f"{name}.csv"), pd.DataFrame({"person": ids, **columns}))


def numbers(step: float = 0.5) -> list[float]:
    return [step * n + 0.25 for n in range(ROWS)]


CLINIC = table(
    "clinic",
    index=range(ROWS),
    age=numbers(),
    sex=["m", "f"] * 20,
    outcome=["ill", "well"] * 20,
    site=["A"] * ROWS,
)
LAB = table("lab", index=range(ROWS), iron=numbers(), kind=["a", "b"] * 20)


def test_the_id_is_unique_and_in_all_tables_and_has_an_ids_name() -> None:
    assert guesses.guess_id([CLINIC, LAB]) == "person"
    plain = [
        SeenTable(t.path, t.frame.rename(columns={"person": "row"}))
        for t in (CLINIC, LAB)
    ]
    assert guesses.guess_id(plain) == "row"  # the first that could be


def test_no_id() -> None:
    other = SeenTable(
        Path("lab.csv"), LAB.frame.rename(columns={"person": "who", "index": "number"})
    )
    with pytest.raises(
        DataError,
        match=r"several, .*: clinic.csv has person.*\. Write the ids .* alike",
    ):
        guesses.guess_id([CLINIC, other])
    apart = SeenTable(
        Path("lab.csv"),
        LAB.frame.drop(columns="index").assign(person=[f"Q{n}" for n in range(ROWS)]),
    )
    with pytest.raises(DataError, match="under one name or several"):
        guesses.guess_ids([CLINIC, apart.renamed("person", "who")])
    twice = SeenTable(Path("lab.csv"), pd.concat([LAB.frame, LAB.frame]))
    with pytest.raises(DataError, match=r"lab.csv: 40 different values in 80 rows"):
        guesses.guess_ids([CLINIC, twice])


def test_ids_of_different_names_are_found_by_their_values() -> None:
    other = LAB.renamed("person", "who").renamed("index", "number")
    assert guesses.guess_ids([CLINIC, other]) == ["person", "who"]
    assert guesses.guess_ids([other, CLINIC, LAB]) == ["who", "person", "person"]
    assert guesses.guess_ids([CLINIC, LAB]) == ["person", "person"]
    zeros = SeenTable(
        Path("a.csv"),
        pd.DataFrame({"Nr": [f"{n:05d}" for n in range(1, 41)], "age": numbers()}),
    )
    bare = SeenTable(
        Path("b.csv"), pd.DataFrame({"customer": range(1, 41), "iron": numbers()})
    )
    with pytest.raises(
        DataError,
        match=(
            r"but for leading zeros: 'Nr' of a.csv, 'customer' of b.csv\. To use them,"
            r" write"
        ),
    ):
        guesses.guess_ids([zeros, bare])


def test_the_label_has_a_labels_name_or_few_values_at_the_end() -> None:
    assert guesses.guess_label([LAB, CLINIC], "person") == (CLINIC, "outcome")
    plain = table("bank", income=numbers(), age=numbers(), paid=[0, 1] * 20)
    assert guesses.guess_label([table("shop", spent=numbers()), plain], "person") == (
        plain,
        "paid",
    )
    with pytest.raises(DataError, match="No column can be the label"):
        guesses.guess_label([table("a", x=["one"] * ROWS)], "person")


@pytest.mark.parametrize(
    ("column", "task"),
    [
        (Column("y", 100, 2, 0, numeric=True, whole=True), "classification"),
        (Column("y", 100, 10, 0, numeric=False, whole=False), "classification"),
        (Column("y", 100, 90, 0, numeric=True, whole=False), "regression"),
        (Column("y", 100, 50, 0, numeric=True, whole=True), "regression"),
        (Column("y", 400, 18, 0, numeric=True, whole=True), "regression"),
        (Column("y", 400, 10, 0, numeric=True, whole=True), "classification"),
        (Column("y", 12, 10, 0, numeric=True, whole=True), "regression"),
        (Column("y", 6, 2, 0, numeric=True, whole=True), "classification"),
    ],
)
def test_the_task(column: Column, task: str) -> None:
    assert guesses.guess_task(column) == task
    told = guesses.why_task(column, task)
    other = "classification" if task == "regression" else "regression"
    assert bool(told) == (column.numeric and column.distinct > 2), (
        "where the values do not decide"
    )
    assert not told or f"--task {other}" in told


def test_how_sure_a_guess_of_the_label_is() -> None:
    assert guesses.why_label(CLINIC, "outcome") == "by its name"
    assert "hardly more than chance" in guesses.why_label(
        table("bank", age=numbers(), sex=["m", "f"] * 20), "sex"
    )


def test_how_rows_fit() -> None:
    later = table("late", first=10, x=numbers())
    assert guesses.overlap([CLINIC, LAB], "person") == guesses.Overlap((40, 40), 40, 40)
    assert guesses.overlap([CLINIC, LAB], "person").is_same
    found = guesses.overlap([CLINIC, later], "person")
    assert (found.common, found.is_same) == (30, False)
    with pytest.raises(DataError, match="No value of 'person' is in all tables"):
        guesses.overlap([CLINIC, table("other", first=100, x=numbers())], "person")


def test_ids_that_differ_in_capitals_and_spaces_alone_are_counted() -> None:
    shouted = SeenTable(
        Path("lab.csv"),
        LAB.frame.assign(
            person=[f" p{n:03d}" for n in range(30)] + [f"P{n}" for n in "abcdefghij"]
        ),
    )
    found = guesses.overlap([CLINIC, shouted], "person")
    assert (found.common, found.alike, found.gains) == (0, 30, True)
    twice = SeenTable(
        Path("lab.csv"),
        shouted.frame.assign(
            person=[f"{' ' * (n % 2)}p{n // 2:03d}" for n in range(ROWS)]
        ),
    )
    with pytest.raises(
        DataError, match="20 would be, if all wrote capitals and spaces alike; but then"
    ):
        guesses.overlap([CLINIC, twice], "person")
    half = SeenTable(
        Path("lab.csv"),
        LAB.frame.assign(
            person=[f"{'p' if n < 10 else 'P'}{n:03d}" for n in range(ROWS)]
        ),
    )
    found = guesses.overlap([CLINIC, half], "person")
    assert (found.common, found.alike) == (30, 40)


def test_a_label_with_gaps_is_passed_over_and_named() -> None:
    gaps = table("bank", churned=["yes", ""] * 20, paid=[0, 1] * 20)
    assert guesses.guess_label([gaps], "person") == (gaps, "paid")
    assert [
        (seen, column.name, column.gaps)
        for seen, column in guesses.passed_over([gaps, LAB], "person")
    ] == [(gaps, "churned", 20)]


def test_a_few_words_among_numbers_are_told() -> None:
    calls = [str(n) for n in range(ROWS)]
    mixed = table(
        "telco",
        calls=["?", *calls[1:]],
        plan=["a", "1"] * 20,
        age=["", *calls[1:]],
        paid=["?", *calls[1:]],
    )
    (note,) = guesses.readings(mixed, "person", "paid").values()
    assert note == """is read as numbers. These words are read as gaps: "?" 1."""
    mixed = table("telco", calls=["many", *calls[1:]])
    assert '"many" 1' in guesses.readings(mixed, "person", "paid")["calls"]


def test_text_with_more_values_than_become_columns_is_told() -> None:
    # each of 56 days twice
    days = [f"{1 + n % 28:02d}/0{1 + n // 28 % 2}/2025" for n in range(112)]
    many = table(
        "telco",
        rows=112,
        joined=days,
        town=[f"town {n % 56}" for n in range(112)],
        plan=["S", "M"] * 56,
    )
    found = guesses.readings(many, "person", "paid")
    assert list(found) == ["joined", "town"]
    assert (
        found["joined"] == "is read as times (day/month/year), each as days since 1970."
    )
    assert (
        "56 different texts, and all but the 49 most frequent will be one category"
        in found["town"]
    )
    assert (
        inspect.signature(Preprocessor.fit).parameters["max_categories"].default
        == guesses.MANY
    )


def test_what_is_no_use_is_left_out() -> None:
    odd = table(
        "odd",
        x=numbers(),
        empty=[None] * ROWS,
        note=[f"n{n}" for n in range(ROWS)],
        outcome=[0, 1] * 20,
    )
    assert set(guesses.left_out(odd, "person", "outcome")) == {
        "empty",
        "note",
        "outcome",
    }
    assert guesses.left_out(CLINIC, "person", "outcome")["site"] == "has one value only"
    assert set(guesses.left_out(LAB, "person", "outcome")) == set()
