"""What is given is checked and turned into float64 columns and whole classes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from colonnade.errors import ConfigError, DataError
from colonnade.selection.inputs import as_classes, as_columns, as_groups


def test_columns() -> None:
    assert as_columns("ada", torch.ones(4, 2, dtype=torch.float32), None).dtype == np.float64
    assert as_columns("ada", np.array([True, False]), None).tolist() == [[1.0], [0.0]]
    assert as_columns("ada", np.arange(6), np.array([4, 1])).tolist() == [[4.0], [1.0]]
    for bad in (np.ones((2, 2, 2)), np.ones((0, 2)), np.array([["a"]])):
        with pytest.raises(DataError, match=r"'ada' must give numbers as \[rows, columns\]"):
            as_columns("ada", bad, None)
    with pytest.raises(DataError, match="'ada' has cells that are no finite numbers"):
        as_columns("ada", np.array([1.0, np.nan]), None)


def test_labels() -> None:
    assert as_classes("bob", np.array(["x", "z", "x"]), None, 0).tolist() == [0, 1, 0]
    assert as_classes("bob", torch.tensor([3.0, 5.0, 3.0]), None, 0).tolist() == [0, 1, 0]
    assert as_classes("bob", np.arange(8.0), None, 4).tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
    with pytest.raises(ConfigError, match="'bob' has labels that are numbers"):
        as_classes("bob", np.array([0.5, 1.0]), None, 0)
    with pytest.raises(DataError, match="one label for each row"):
        as_classes("bob", np.ones((3, 2)), None, 0)
    with pytest.raises(ConfigError, match="2 or more; found 1"):
        as_classes("bob", np.arange(3.0), None, 1)


def test_groups_are_written_in_one_way() -> None:
    assert as_groups(["a", "b", "c"], [["c", "a"], ["b"]]) == [("a", "c"), ("b",)]
    bads: tuple[list[Any], ...] = ([["a", "a"]], [[]], ["ab"], [["d"]], [])
    for bad in bads:
        with pytest.raises(ConfigError):
            as_groups(["a", "b", "c"], bad)
