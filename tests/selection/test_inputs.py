"""What is given is checked and turned into float64 columns, and classes or numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from colonnade.errors import ConfigError, DataError
from colonnade.selection import SelectionSettings
from colonnade.selection.choosing import as_columns, as_groups, as_labels, check_hidden


def test_columns() -> None:
    assert (
        as_columns("ada", torch.ones(4, 2, dtype=torch.float32), None).dtype
        == np.float64
    )
    assert as_columns("ada", np.array([True, False]), None).tolist() == [[1.0], [0.0]]
    assert as_columns("ada", np.arange(6), np.array([4, 1])).tolist() == [[4.0], [1.0]]
    for bad in (
        np.ones((2, 2, 2)),
        np.ones((0, 2)),
        np.array([["a"]]),
        np.array([[1 + 2j]]),
    ):
        with pytest.raises(
            DataError, match=r"'ada' must give numbers as \[rows, columns\]"
        ):
            as_columns("ada", bad, None)
    # whose square is infinite, and every distance with it
    for value in (np.nan, -np.inf, 1e200):
        with pytest.raises(
            DataError,
            match="'ada' has cells that are no finite numbers, or beyond 1e\\+150",
        ):
            as_columns("ada", np.array([1.0, value]), None)


def read(labels: Any, **settings: Any) -> Any:
    return as_labels("bob", labels, None, SelectionSettings(**settings))


def test_labels() -> None:
    assert read(np.array(["x", "z", "x"])).tolist() == [0, 1, 0]
    assert read(torch.tensor([3.0, 5.0, 3.0])).tolist() == [0, 1, 0]
    assert read(np.arange(8.0), bins=4).tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
    assert read(np.array([True, False])).dtype == np.int64
    numbers = read(torch.tensor([3.0, 5.5, 3.0]))
    assert (numbers.dtype, numbers.tolist()) == (np.float64, [3.0, 5.5, 3.0])
    assert read(np.array([3, 5, 3]), estimator="kraskov").tolist() == [3.0, 5.0, 3.0]
    assert read(np.array([0.5, 7.0, 0.5]), estimator="ross").tolist() == [0, 1, 0]


@pytest.mark.parametrize(
    ("labels", "settings", "error", "says"),
    [
        (np.ones((3, 2)), {}, DataError, "one label for each row"),
        (
            np.array([1.0, np.nan]),
            {},
            DataError,
            "'bob' has labels that are no finite numbers",
        ),
        (np.array([1.0, np.inf]), {"bins": 2}, DataError, "no finite numbers"),
        (np.array([0.5, 1e200]), {}, DataError, "beyond 1e\\+150"),
        (
            np.array(["x", None], dtype=object),
            {},
            DataError,
            "'bob' has labels of several types, or none",
        ),
        (np.arange(3.0), {"bins": 1}, ConfigError, "2 or more; found 1"),
        (
            np.array(["x", "y"]),
            {"bins": 2},
            ConfigError,
            "take labels that are numbers, and those of 'bob' are",
        ),
        (
            np.array(["x", "y"]),
            {"estimator": "kraskov"},
            ConfigError,
            "take labels that are numbers",
        ),
        (
            np.array([0.5, 1.0]),
            {"decryptor": "key_server"},
            ConfigError,
            'found decryptor = "key_server".* bins = 4',
        ),
    ],
    ids=str,
)
def test_bad_labels(
    labels: Any, settings: dict[str, Any], error: type[Exception], says: str
) -> None:
    with pytest.raises(error, match=says):
        read(labels, **settings)


def test_a_leader_who_decrypts_reads_no_ones_own_distances() -> None:
    check_hidden([("a", "b"), ("a", "b", "lead"), ("lead",)], "lead")
    for group in (("a",), ("a", "lead")):
        with pytest.raises(
            ConfigError, match=r"it would read those of one participant"
        ):
            check_hidden([("a", "b"), group], "lead")


def test_groups_are_written_in_one_way() -> None:
    assert as_groups(["a", "b", "c"], [["c", "a"], ["b"]]) == [("a", "c"), ("b",)]
    bads: tuple[list[Any], ...] = ([["a", "a"]], [[]], ["ab"], [["d"]], [])
    for bad in bads:
        with pytest.raises(ConfigError):
            as_groups(["a", "b", "c"], bad)
