"""Text that means numbers or times: by all cells of a column together, or not at all."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from colonnade.datasets.fitted import without_gap_words
from colonnade.datasets.readings import cells_no_numbers, read, read_times, recognise

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
        (["€ 5", "$3.50", "-£4", "12 %"], "numbers", [5, 3.5, -4, 12]),
        (["1 234", "5"], "numbers with spaces at thousands", [1234, 5]),
        (["1970-01-02", "1970-01-03T12:00"], "times (year-month-day)", [1, 2.5]),
        (["02.01.1970", "03.01.1970 12:00"], "times (day.month.year)", [1, 2.5]),
        (["13/01/1970", "02/01/1970"], "times (day/month/year)", [12, 1]),
        (["01/13/1970", "01/02/1970"], "times (month/day/year)", [12, 1]),
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


@pytest.mark.parametrize(
    ("cells", "labels"),
    [
        (["yes", "no", "?", "NA", " "], ["yes", "no", None, None, None]),
        (["0", "1", "?"], [0, 1, None]),
        (["€ 5", "1,234", "-"], [5, 1234, None]),
        (["+", "-"], ["+", "-"]),
        (["none", "drug", "unknown"], ["none", "drug", None]),
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
    ],
)
def test_what_is_neither_stays_text(cells: list[str]) -> None:
    assert recognise(pd.Series(cells)) is None


def test_a_few_words_among_numbers_are_counted() -> None:
    assert cells_no_numbers(pd.Series(["1", "2", "3", "4", "?", "5", "x"])) == 1
    assert cells_no_numbers(pd.Series(["1", "x", "y"])) == 0, (
        "then it is no column of numbers"
    )
    words = pd.CategoricalDtype(["1", "2", "3", "4", "5", " x", "x ", "nowhere"])
    stored = pd.Series(
        ["1", "2", "3", "4", "5", "1", "2", "3", None, " x", "x "], dtype=words
    )
    assert cells_no_numbers(stored) == 2, "a category without cells is none of them"


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
