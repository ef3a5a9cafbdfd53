from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest

from colonnade.datasets.fitted import kind_of, numbers, text
from colonnade.datasets.table import ids_as_text
from colonnade.errors import DataError


@pytest.mark.parametrize(
    ("values", "dtype", "kind"),
    [
        ([1, 2], "int64", "number"),
        ([1, None], "Int64", "number"),
        ([1.5, None], "float32", "number"),
        ([True, False], "bool", "category"),
        ([True, None], "boolean", "category"),
        (["a", None], "str", "category"),
        (["a", 1], "object", "category"),
        ([1, 2], "category", "category"),
    ],
)
def test_the_kind_follows_from_the_type(values: list[Any], dtype: Any, kind: str) -> None:
    assert kind_of(pd.Series(values, dtype=dtype), owner="bank") == kind


def test_complex_numbers_are_refused_with_a_cure() -> None:
    with pytest.raises(DataError, match=r"'bank' has column 'when' of type .* Turn it into numbers"):
        kind_of(pd.Series(np.array([1j]), name="when"), owner="bank")


def test_times_are_days_since_1970_wherever_they_were_taken() -> None:
    times = pd.Series(
        pd.to_datetime(["1970-01-02", "", "1971-01-01 12:00"], format="ISO8601", errors="coerce"), name="when"
    )
    assert kind_of(times, owner="bank") == "number"
    np.testing.assert_array_equal(numbers(times), [1.0, np.nan, 365.5])
    there = pd.Series(pd.to_datetime(["1970-01-02 01:00"])).dt.tz_localize("Etc/GMT-1")
    assert numbers(there).tolist() == [1.0]


@pytest.mark.parametrize(
    ("values", "cure"),
    [
        ([7.0, 8.0], r'Make them whole numbers: frame\[\'id\'\] = frame\[\'id\'\]\.astype\("int64"\)'),
        ([7.5, 8.0], "These numbers have a fraction, so they are no ids"),
        (pd.to_datetime(["2020-01-01", "2020-01-02"]), "Write them as text, all parties in one form"),
    ],
)
def test_ids_of_another_type_are_refused_with_a_cure_that_is_right(values: Any, cure: str) -> None:
    with pytest.raises(DataError, match=cure):
        ids_as_text(pd.Series(values, name="id"), "bank")


def test_gaps_become_nan_in_numbers() -> None:
    read = numbers(pd.Series([1, None, 3], dtype="Int64"))
    np.testing.assert_array_equal(read, [1.0, np.nan, 3.0])
    assert read.dtype == np.float64


def test_a_column_of_gaps_reads_as_numbers_whatever_its_type() -> None:
    assert np.isnan(numbers(pd.Series([None, None], dtype="object"))).all()


def test_gaps_become_the_word_missing_and_mixed_types_their_text() -> None:
    read = text(pd.Series(["a", 1, None, 2.5, True, (1, 2)], dtype="object"))
    assert read.tolist() == ["a", "1", "missing", "2.5", "True", "(1, 2)"]
