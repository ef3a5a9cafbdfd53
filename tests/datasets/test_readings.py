"""Text that means numbers or times: what most cells of a column fit, or not at all."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from colonnade.datasets.fitted import without_gap_words
from colonnade.datasets.readings import (
    FORMATS,
    OddWords,
    is_gap,
    odd_words,
    read,
    read_times,
    recognise,
)

NAN = float("nan")


@pytest.mark.parametrize(
    ("cells", "way", "values"),
    [
        (["1,234", "5", "?"], "numbers with a comma at thousands", [1234, 5, NAN]),
        (["12,345.5", "1234"], "numbers with a comma at thousands", [12345.5, 1234]),
        (
            ["3,5", "1.234,25", "NA"],
            "numbers with a decimal comma",
            [3.5, 1234.25, NAN],
        ),
        (["1.234.567", "12.345"], "numbers with a decimal comma", [1234567, 12345]),
        (["1,5e3", "-,5"], "numbers with a decimal comma", [1500, -0.5]),
        (["€ 5", "$3.50", "-£4", "12 %"], "numbers", [5, 3.5, -4, 12]),
        (["1.5e3", "+.5", "5.", "-0"], "numbers", [1500, 0.5, 5, 0]),
        (["1 234", "5"], "numbers with spaces at thousands", [1234, 5]),
        (
            ["1 234,56", "1\u00a0234\u00a0567,5", "2\u202f000 €", "7"],
            "numbers with spaces at thousands and a decimal comma",
            [1234.56, 1234567.5, 2000, 7],
        ),
        (
            ["1'234.56", "1’234’567.5", "7"],
            "numbers with apostrophes at thousands",
            [1234.56, 1234567.5, 7],
        ),
        (["1970-01-02", "1970-01-03T12:00"], "times (year-month-day)", [1, 2.5]),
        (["02.01.1970", "03.01.1970 12:00"], "times (day.month.year)", [1, 2.5]),
        (["02.01.70", "03.01.70 12:00"], "times (day.month.year)", [1, 2.5]),
        (["13/01/1970", "02/01/1970"], "times (day/month/year)", [12, 1]),
        (["01/13/1970", "01/02/1970"], "times (month/day/year)", [12, 1]),
        (["01/13/70", "01/02/70"], "times (month/day/year)", [12, 1]),
        (["2-Jan-1970", "unknown"], "times (day month name year)", [1, NAN]),
        (["Jan 2, 1970"], "times (month name day, year)", [1]),
    ],
)
def test_what_all_cells_fit_is_recognised_and_read(
    cells: list[str], way: str, values: list[float]
) -> None:
    column = pd.Series([*cells, None])
    assert recognise(column) == way
    np.testing.assert_allclose(read(column, way), [*values, NAN])
    assert recognise(column.astype("category")) == way, (
        "a large file's text is kept as its different words"
    )
    np.testing.assert_allclose(read(column.astype("category"), way), [*values, NAN])


WRITTEN = {
    "numbers": "{:.2f}",
    "numbers with a comma at thousands": "{:,.2f}",
    "numbers with a decimal comma": "{:,.2f}",
    "numbers with spaces at thousands": "{:,.2f}",
    "numbers with spaces at thousands and a decimal comma": "{:,.2f}",
    "numbers with apostrophes at thousands": "{:,.2f}",
    "numbers with apostrophes at thousands and a decimal comma": "{:,.2f}",
}
"""How Python writes numbers that become those of each format by changing two signs."""
SIGNS = {
    "numbers with a decimal comma": (".", ","),
    "numbers with spaces at thousands": ("\u202f", "."),
    "numbers with spaces at thousands and a decimal comma": ("\u00a0", ","),
    "numbers with apostrophes at thousands": ("'", "."),
    "numbers with apostrophes at thousands and a decimal comma": ("’", ","),
}


@pytest.mark.parametrize("way", WRITTEN)
def test_one_odd_word_in_ten_leaves_a_column_of_numbers(way: str) -> None:
    numbers = np.round(np.random.default_rng(0).lognormal(8, 2, size=900), 2)
    thousands, decimal = SIGNS.get(way, (",", "."))
    signs = str.maketrans({",": thousands, ".": decimal})
    cells = [WRITTEN[way].format(number).translate(signs) for number in numbers]
    column = pd.Series([*cells, *["k.A."] * 92, *[">20"] * 8])
    assert recognise(column) == way
    np.testing.assert_array_equal(read(column, way), [*numbers, *[NAN] * 100])
    assert str(odd_words(column)) == '"k.A." 92, ">20" 8'


def test_the_format_that_most_cells_fit_is_taken() -> None:
    """All but one cell could have a comma at thousands; all have a decimal comma."""
    column = pd.Series(["1,234"] * 9 + ["2,5"])
    assert recognise(column) == "numbers with a decimal comma"


def test_fewer_than_four_in_five_stay_categories() -> None:
    cells = ["1"] * 8 + [">20"] * 2
    assert recognise(pd.Series(cells)) == "numbers"
    assert recognise(pd.Series([*cells, ">20"])) is None
    assert not odd_words(pd.Series([*cells, ">20"]))
    known_gaps = ["k. A.", "S/D", "n.d.", "s.o.", "NC", "n. c.", "keine  Angabe"]
    assert recognise(pd.Series(cells + known_gaps * 5)) == "numbers", (
        "words for gaps are not counted, as empty cells are not"
    )


@pytest.mark.parametrize(
    "word", ["k.A.", "k. A.", "kA", "s.o.", "n.d.", "N. D.", "s/d", "S/D", "nc", "N.C."]
)
def test_abbreviations_for_a_gap_are_known_in_any_case_and_spacing(word: str) -> None:
    assert is_gap(word)
    assert odd_words(pd.Series(["1", "2", word])).counts == {word: 1}


def test_odd_words_are_told_by_their_number_and_cannot_break_a_line() -> None:
    words = [f"w{number}" for number in range(12) for _ in range(number + 1)]
    odd = odd_words(pd.Series(["7"] * 900 + words + ["a\nb\x1b[31m"] * 20 + ["", "NA"]))
    assert odd.cells == len(words) + 20
    assert str(odd).startswith(r'"a\nb\u001b[31m" 20, "w11" 12, "w10" 11')
    assert str(odd).endswith(f", {1 + 2 + 3} other cells")
    assert OddWords.from_state(odd.state()) == odd
    assert not odd_words(pd.Series([1.5, None]))
    assert not odd_words(pd.to_datetime(pd.Series(["2024-01-01", None])))


def test_a_year_of_two_digits_is_one_from_1930_to_2029() -> None:
    years = pd.to_datetime(
        read(pd.Series(["31.12.29", "01.01.30", "12.05.45"]), "times (day.month.year)"),
        unit="D",
    ).year
    assert years.tolist() == [2029, 1930, 1945]


@pytest.mark.parametrize(
    ("cells", "labels"),
    [
        (["yes", "no", "?", "NA", " "], ["yes", "no", None, None, None]),
        (["0", "1", "?"], [0, 1, None]),
        (["€ 5", "1,234", "-"], [5, 1234, None]),
        (["+", "-"], ["+", "-"]),
        (["none", "drug", "unknown"], ["none", "drug", None]),
        (["NC", "ND", "k.A."], ["NC", "ND", None]),
        (["1", "2", "3", "4", "5", "6", "10+"], ["1", "2", "3", "4", "5", "6", "10+"]),
        ([True, False, None], [True, False, None]),
        ([0, 1, 1], [0, 1, 1]),
    ],
)
def test_a_word_for_a_gap_is_no_label_unless_it_may_name_a_class(
    cells: list[object], labels: list[object]
) -> None:
    found = without_gap_words(pd.Series(cells))
    assert found.astype(object).where(found.notna(), None).tolist() == labels


@pytest.mark.parametrize(
    "cells",
    [
        ["a", "b"],
        ["1", "high"],
        ["007", "012"],
        ["?", "NA"],
        ["12-34", "13-25"],
        ["2020-13-01"],
        ["1,23,4"],
        ["0.5.1"],
        ["1234.567.890"],
        ["1.2345.678"],
    ],
)
def test_what_is_neither_stays_text(cells: list[str]) -> None:
    assert recognise(pd.Series(cells)) is None


@pytest.mark.parametrize(
    "cells",
    [
        ["192.168.100.200", "192.168.101.201", "172.100.200.100"],
        ["192.168.100.200"] * 9 + ["10.0.0.1"],
        ["80331", "10115", "50667", "01067"],
        [str(code) for code in range(10_000, 10_098)] + ["01067", "04109"],
        ["+49 170 123 456", "+49 151 987 654"],
        ["+41791234567", "+41781234567"],
        ["079 123 456", "078 987 654"],
        ["1.2.3", "1.10.12", "2.0.0"],
        ["100.200.300", "1.2.3", "1.2.4"],
    ],
)
def test_addresses_postcodes_telephones_and_versions_are_text(cells: list[str]) -> None:
    assert recognise(pd.Series(cells)) is None
    assert not odd_words(pd.Series(cells))


def test_a_slip_of_the_pen_makes_no_code_of_a_number() -> None:
    ages = [str(20 + number % 60) for number in range(299)]
    assert recognise(pd.Series([*ages, "034"])) == "numbers"
    assert recognise(pd.Series(["012.50", "1.25", "2.50", "3.75", "9.9"])) == "numbers"


def test_changes_with_a_sign_are_numbers_and_no_telephone() -> None:
    way = "numbers with spaces at thousands"
    assert recognise(pd.Series(["+1 234 567", "-2 000 000", "-34 000"])) == way


def test_new_rows_are_read_in_the_format_of_training() -> None:
    new = pd.Series(["1.234", "2.500", ">20"])
    assert read(new, "numbers with a decimal comma")[:2].tolist() == [1234, 2500]
    assert recognise(new[:2]) == "numbers", "which is why the format is kept"
    assert odd_words(new, "numbers with a decimal comma").counts == {">20": 1}


def test_times_and_numbers_say_when() -> None:
    for cells in (
        ["2024-01-01", "2023-01-01"],
        [2024, 2023],
        pd.to_datetime(["2024-01-01", "2023-01-01"]),
    ):
        found = read_times(cells)
        assert found is not None
        assert found[0] > found[1]
    assert read_times(["train", "test"]) is None
    assert read_times([True, False]) is None


def test_every_format_is_known_by_its_name() -> None:
    assert all(name == known.name for name, known in FORMATS.items())
