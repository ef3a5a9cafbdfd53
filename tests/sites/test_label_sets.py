"""What label owners tell each other is what one of them would have learned from all
their training labels."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from tests.federation.small_sites import ask, sites
from tests.sites.kinds import made

from colonnade.datasets.preprocess import Labels
from colonnade.errors import BoundaryError, ConfigError, DataError
from colonnade.settings.sections import DataSettings
from colonnade.sites.label_sets import Describe, Described, agreed_labels, described


def both(*columns: Sequence[object], task: Any = "auto") -> tuple[Labels, Labels]:
    """As label owners agree on it, and as one that had all of their labels would learn
    it."""
    each = [pd.Series(column) for column in columns]
    told = {
        f"k{number}": described(one, f"k{number}", task)
        for number, one in enumerate(each)
    }
    whole = Labels.fit(
        pd.concat(each, ignore_index=True),
        owner=", ".join(told),
        task=task,
    )
    return agreed_labels(told, DataSettings(task=task)), whole


@pytest.mark.parametrize(
    "columns",
    [
        (["ill", "well"], ["well", "dead"]),
        ([3, 1, 2] * 5, [7, 1] * 5),
        ([1, 1, 1], [2, 2]),
        ([1.0, 2.0], [2, 1]),
        ([True, False], [True]),
        (["a", "b"], [1, 2]),
    ],
    ids=[
        "text",
        "numbers",
        "one class each",
        "floats and whole numbers",
        "yes or no",
        "text and numbers",
    ],
)
def test_classes_are_the_union(columns: tuple[list[object], ...]) -> None:
    agreed, whole = both(*columns)
    assert agreed == whole
    assert list(map(type, agreed.classes)) == list(map(type, whole.classes))


def test_the_rarer_class_is_positive_by_the_votes_of_all_rows() -> None:
    """Each tells no count but the class that most of its rows have."""
    columns = (["ja", "nein", "nein"], ["nein"] * 5, ["ja", "ja", "nein"])
    each = {
        name: described(pd.Series(column), name, "auto", tells_commonest=True)
        for name, column in zip(("a", "b", "c"), columns, strict=True)
    }
    assert [told.commonest for told in each.values()] == ['"nein"', '"nein"', '"ja"']
    agreed = agreed_labels(each, DataSettings())
    assert (agreed.positive_class, agreed.positive_by) == ("ja", "rarer")
    named = agreed_labels(each, DataSettings(positive="nein"))
    assert (named.positive_class, named.positive_by) == ("nein", "setting")
    silent = described(pd.Series(["ja", "nein"]), "a", "auto")
    assert silent.commonest == "null"


@pytest.mark.parametrize("commonest", ['"no class"', "[[]]", "{", "[" * 9999, "{}"])
def test_a_most_frequent_class_that_is_none_is_refused(commonest: str) -> None:
    told = Described(False, '["ja", "nein"]', commonest, 3, 0.0, 1.0)
    with pytest.raises(DataError, match="'south' told of a most frequent class"):
        agreed_labels({"south": told}, DataSettings())


@pytest.mark.parametrize("task", ["auto", "regression"])
def test_numbers_have_one_mean_and_scale(task: str) -> None:
    agreed, whole = both(
        [n * 0.37 for n in range(40)], [100 - n * 1.7 for n in range(25)], task=task
    )
    assert agreed.task == whole.task == "regression"
    assert (agreed.unit.mean, agreed.unit.scale) == pytest.approx(
        (whole.unit.mean, whole.unit.scale), rel=1e-12
    )


def test_where_they_cannot_tell_which_it_is_they_ask_for_a_word() -> None:
    many = [n * 0.5 for n in range(40)]
    few = [0.5, 1.5]
    for columns in (
        (many, few),
        ([0.5, 1.5], [1.0, 0.5]),
        ([1.0, 2.0], [2.0, 3.0]),
    ):
        with pytest.raises(
            ConfigError, match=r'set \[data\] task = "classification" or "regression"'
        ):
            both(*columns)


def test_one_class_together_is_nothing_to_learn() -> None:
    told = {
        name: described(pd.Series(["ill", "ill"]), name, "auto")
        for name in ("north", "south")
    }
    with pytest.raises(DataError, match="labels of one class together"):
        agreed_labels(told, DataSettings())


def test_only_label_owners_are_told_and_not_before_rows_are_agreed_on(
    tmp_path: Path,
) -> None:
    made(tmp_path, "several")
    every = sites(tmp_path)
    north = every["north"]
    north.read()
    with pytest.raises(DataError, match="they were not compared"):
        north.own_labels()
    with pytest.raises(BoundaryError, match="does not serve"):
        ask(north, "south", Describe())
    for name in ("lab", "scan"):
        every[name].read()
    north.align()
    assert ask(north, "south", Describe()).classes == '["ill", "well"]'
    with pytest.raises(BoundaryError, match="this is for south to ask"):
        ask(north, "lab", Describe())


@pytest.mark.parametrize(
    "told",
    [
        *(
            Described(False, classes, "null", 3, 0.0, 1.0)
            for classes in ('[["x"]]', "{}", "no", "[null]", "[NaN]", "[" * 9999)
        ),
        *(
            Described(False, json.dumps([one]), "null", 3, 0.0, 1.0)
            for one in (10**400, "\ud800", "a\x1b[2J")
        ),
        *(Described(True, "[]", "null", rows, 0.0, 1.0) for rows in (0, -2, 10**400)),
        *(Described(True, "[]", "null", 3, mean, 1.0) for mean in (math.nan, 1e200)),
        *(
            Described(True, "[]", "null", 3, 0.0, scale)
            for scale in (math.inf, 1e200, -1.0)
        ),
    ],
    ids=lambda told: (
        f"{told.classes[:8]} {str(told.rows)[:4]} {told.mean} {told.scale}"
    ),
)
def test_what_is_no_label_is_refused_with_its_owners_name_and_not_quoted(
    told: Described,
) -> None:
    mine = described(
        pd.Series([0.5, 1.25, 3.0]),
        "north",
        "regression" if told.measured else "classification",
    )
    with pytest.raises(
        DataError,
        match=(
            rf"^'south' told of labels that are none, for {told.rows} rows\. It must"
            r" look"
        ),
    ):
        agreed_labels({"north": mine, "south": told}, DataSettings())


@pytest.mark.parametrize(
    "labels", [["a", None, "a"], [None, "a", "a"], [1.0, math.nan]]
)
def test_a_row_without_a_label_is_no_class(labels: list[object]) -> None:
    with pytest.raises(DataError, match="'north' has 1 rows without a label"):
        described(pd.Series(labels), "north", "auto")
