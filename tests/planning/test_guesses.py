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
    assert guesses.guess_ids([CLINIC, LAB]) == ["person"] * 2
    plain = [t.renamed("person", "row") for t in (CLINIC, LAB)]
    assert guesses.guess_ids(plain) == ["row"] * 2  # the first that could be


def test_no_id() -> None:
    other = LAB.renamed("person", "who").renamed("index", "number")
    other = SeenTable(other.path, other.frame.assign(who="a", number=0.5))
    with pytest.raises(
        DataError,
        match=r"several, .*: clinic.csv has person.*\. Write the ids .* alike",
    ):
        guesses.guess_ids([CLINIC, other])
    apart = SeenTable(
        Path("lab.csv"),
        LAB.frame.drop(columns="index").assign(person=[f"Q{n}" for n in range(ROWS)]),
    )
    with pytest.raises(DataError, match="under one name or several"):
        guesses.guess_ids([CLINIC, apart.renamed("person", "who")])
    twice = SeenTable(
        Path("lab.csv"), pd.concat([LAB.frame, LAB.frame]).drop(columns="index")
    )
    with pytest.raises(DataError, match=r"lab.csv: 40 of 80 ids appear twice"):
        guesses.guess_ids([CLINIC, twice])


def with_ids(name: str, ids: list[str], column: str = "customer_id") -> SeenTable:
    """A table with these ids and a column of whole numbers that are all different."""
    frame = {column: ids, "visits": range(len(ids)), "x": [0.5] * len(ids)}
    return SeenTable(Path(f"{name}.csv"), pd.DataFrame(frame).astype(str))


def test_ids_that_appear_twice_are_the_fault_and_no_other_column_is_taken() -> None:
    """The visits are different in every row of both tables, and are no id."""
    ids = [f"C{n:04d}" for n in range(6000)]
    whole = with_ids("bank", ids)
    with pytest.raises(
        DataError, match=r"'customer_id' .* shop\.csv: 3 of 6,003 ids appear twice"
    ):
        guesses.guess_ids([whole, with_ids("shop", [*ids, *ids[:3]])])
    with pytest.raises(DataError, match="1 of 6,003 ids appear more than once"):
        guesses.guess_ids([whole, with_ids("shop", [*ids, ids[0], ids[0], ids[0]])])
    shop = with_ids("shop", [*ids, *ids[:3]], "kunde")
    shop = SeenTable(shop.path, shop.frame.drop(columns="visits"))
    with pytest.raises(
        DataError, match=r"'kunde' of shop\.csv: 3 of 6,003 ids appear twice"
    ):
        guesses.guess_ids([whole, shop])


def test_the_id_is_ranked_by_its_name_and_its_different_values() -> None:
    ids = [f"C{n:04d}" for n in range(200)]
    households = [f"H{n // 2:04d}" for n in range(200)]
    tables = [
        SeenTable(
            Path(f"{name}.csv"),
            pd.DataFrame(
                {"serial": range(200), "household_id": households, "Kundennr": ids}
            ),
        )
        for name in ("bank", "shop")
    ]
    assert guesses.guess_ids(tables) == ["Kundennr"] * 2
    assert guesses.guess_ids(tables, {0: "serial"}) == ["serial"] * 2
    other = tables[1].renamed("Kundennr", "client")
    assert guesses.guess_ids([tables[0], other], {0: "Kundennr"}) == [
        "Kundennr",
        "client",
    ]


@pytest.mark.parametrize(
    "written", [lambda n: f"{n}.0", lambda n: f"{n:.6e}", lambda n: float(n)]
)
def test_ids_that_went_through_floating_point_are_recognised(written: Any) -> None:
    whole = with_ids("bank", [str(n) for n in range(1000, 1200)])
    floats = SeenTable(
        Path("shop.csv"),
        pd.DataFrame({"customer_id": [written(n) for n in range(1000, 1200)]}),
    )
    assert floats.columns["customer_id"].is_as_float
    with pytest.raises(
        DataError, match=r"200 are as whole numbers: in shop\.csv they went through"
    ):
        guesses.overlap([whole, floats], "customer_id")
    with pytest.raises(
        DataError, match=r"but for numbers that went .* 'customer' of shop\.csv"
    ):
        guesses.guess_ids([whole, floats.renamed("customer_id", "customer")])
    cut = with_ids("shop", ["1.001E+06", "1.001E+06", *map(str, range(98))])
    assert guesses.why_no_id(cut.columns["customer_id"]).startswith("1 of 100 ids")
    all_cut = with_ids("shop", [f"{n // 2:.0f}.0" for n in range(100)])
    assert "cuts digits off" in guesses.why_no_id(all_cut.columns["customer_id"])


def test_row_numbers_that_pandas_wrote_are_no_id_no_label_and_no_feature() -> None:
    def written(name: str, **columns: Any) -> SeenTable:
        frame = pd.DataFrame({"Unnamed: 0": range(ROWS), **columns})
        return SeenTable(Path(f"{name}.csv"), frame.astype(str))

    ids = [f"P{n}" for n in range(ROWS)]
    bank = written("bank", who=ids, x=numbers(), paid=[0, 1] * 20)
    shop = written("shop", kunde=ids, y2=numbers())
    assert guesses.guess_ids([bank, shop]) == ["who", "kunde"]
    assert (
        guesses.left_out(bank, "who", "paid")["Unnamed: 0"]
        == "is the row numbers that pandas wrote"
    )
    assert "Unnamed: 0" not in [
        name for _, name in guesses.label_candidates([bank, shop], "who")
    ]
    with pytest.raises(DataError, match=r"Row numbers that pandas wrote .* are no ids"):
        guesses.guess_ids([written("a", x=numbers()), written("b", y2=numbers())])


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


def guessed(tables: list[SeenTable]) -> tuple[SeenTable, str, bool]:
    guess = guesses.guess_label(tables, "person")
    return guess.table, guess.column, guess.is_sure


def test_the_label_has_a_labels_name_or_few_values_at_the_end() -> None:
    assert guessed([LAB, CLINIC]) == (CLINIC, "outcome", True)
    plain = table("bank", income=numbers(), age=numbers(), paid=[0, 1] * 20)
    assert guessed([table("shop", spent=numbers()), plain]) == (plain, "paid", False)
    with pytest.raises(DataError, match="No column can be the label"):
        guesses.guess_label([table("a", x=["one"] * ROWS)], "person")


@pytest.mark.parametrize(
    "name",
    [
        *("Ausfall", "KREDITAUSFALL", "impago", "défaut", "default", "bad", "flag"),
        *("churn", "isFraud", "kuendigung", "Kündigung", "target", "outcome", "y"),
        *("label", "class", "default_payment_next_month", "loan status", "Défaillance"),
        *("inadimplência", "Zielgröße", "G3"),
    ],
)
def test_labels_are_known_by_their_names_in_several_languages(name: str) -> None:
    """The partner's 0/1 column looks more like a label."""
    bank = table("bank", label=[0, 1, 2, 3] * 10, income=numbers())
    bank = bank.renamed("label", name)
    shop = table("shop", spent=numbers(), nb=[0, 1] * 20)
    assert guessed([bank, shop]) == (bank, name, True)


def test_a_clearer_name_wins_and_equally_clear_ones_are_in_doubt() -> None:
    """The class of a ticket is no label beside who survived."""
    ship = table("ship", survived=[0, 1] * 20, ticket_class=[1, 2] * 20)
    assert guessed([ship]) == (ship, "survived", True)
    both = table("bank", churn=[0, 1] * 20, fraud=[0, 1] * 20)
    guess = guesses.guess_label([both], "person")
    assert (guess.is_named, guess.is_sure) == (True, False)
    assert "which 'churn' could be as well" in guess.why


@pytest.mark.parametrize(
    ("column", "task", "is_certain"),
    [
        (Column("y", 100, 2, 0, True, True), "classification", True),
        (Column("y", 100, 10, 0, False, False), "classification", True),
        (Column("y", 100, 90, 0, True, False, is_fractional=True), "regression", True),
        (Column("y", 400, 7, 0, True, True, is_fractional=True), "regression", False),
        (Column("y", 100, 50, 0, True, True), "regression", False),
        (Column("y", 400, 18, 0, True, True), "regression", False),
        (Column("y", 400, 10, 0, True, True), "classification", False),
        (Column("y", 90, 9, 0, True, True, is_in_a_row=True), "classification", True),
        (Column("y", 90, 18, 0, True, True, is_in_a_row=True), "regression", False),
    ],
)
def test_the_task(column: Column, task: str, is_certain: bool) -> None:
    assert guesses.guess_task(column) == (task, is_certain)
    told = guesses.why_task(column, task)
    other = "classification" if task == "regression" else "regression"
    is_clear = column.distinct <= 2 or not column.numeric or column.distinct == 90
    assert bool(told) == (not is_clear), "where the values do not decide"
    assert not told or f"--task {other}" in told


def test_how_sure_a_guess_of_the_label_is() -> None:
    assert guesses.guess_label([CLINIC], "person").why == "by its name"
    plain = table("bank", age=numbers(), sex=["m", "f"] * 20)
    assert "hardly more than chance" in guesses.guess_label([plain], "person").why


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
    assert guessed([gaps]) == (gaps, "paid", False)
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
