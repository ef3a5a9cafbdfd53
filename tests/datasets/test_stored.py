"""Stored columns give back what was put in, in any order of rows."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from colonnade.core.files import MAP_FROM
from colonnade.datasets.fitted import text
from colonnade.datasets.stored import Columns, Filling


@pytest.fixture(params=["0", "64"])
def stored(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Columns:
    monkeypatch.setenv(MAP_FROM, request.param)
    filling = Filling(["a", "b"], most=9)  # more than there will be
    filling.add(pd.DataFrame({"a": [1, 2], "b": ["x", None]}), 0, {"a": True, "b": False})
    filling.add(pd.DataFrame({"a": [None, 4.5], "b": ["y", "x"]}), 2, {"a": True, "b": False})
    return filling.done()


def test_columns_are_what_was_added(stored: Columns) -> None:
    assert stored.columns == ["a", "b"]
    assert len(stored) == 4
    np.testing.assert_array_equal(stored["a"], [1.0, 2.0, np.nan, 4.5])
    assert text(stored["b"]).tolist() == ["x", "missing", "y", "x"]
    assert stored["b"].isna().tolist() == [False, True, False, False]


def test_taking_rows_moves_every_column(stored: Columns) -> None:
    moved = stored.take(np.array([3, 0, 1]))
    assert moved["a"].tolist() == [4.5, 1.0, 2.0]
    assert text(moved["b"]).tolist() == ["x", "x", "missing"]
    assert stored["a"].tolist()[0] == 1.0


def test_a_column_that_is_read_again_takes_the_place_of_what_was_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(MAP_FROM, "0")
    filling = Filling(["a", "b"], most=2)
    filling.add(pd.DataFrame({"a": [1, 2], "b": ["x", "z"]}), 0, {"a": True, "b": False})
    filling.forget(["a"])
    filling.add(pd.DataFrame({"a": ["01", "2"]}), 0, {"a": False})
    assert text(filling.done()["a"]).tolist() == ["01", "2"]
    assert text(filling.done()["b"]).tolist() == ["x", "z"]
