from __future__ import annotations

import numpy as np
import pytest

from colonnade.datasets.table import packed, unpacked
from colonnade.datasets.table_files import ColumnRoles, choose_columns, listing
from colonnade.errors import ConfigError, DataError

PRESENT = ["id", "age", "income", "y"]


def test_without_columns_all_but_id_and_label_are_features_in_table_order() -> None:
    assert choose_columns(PRESENT, ColumnRoles("bank", "id", label="y")) == ["age", "income"]


def test_named_columns_keep_the_order_asked_for() -> None:
    assert choose_columns(PRESENT, ColumnRoles("bank", "id", columns=["income", "age"])) == ["income", "age"]


def test_a_label_owner_may_hold_no_features() -> None:
    assert choose_columns(["id", "y"], ColumnRoles("bank", "id", label="y")) == []


@pytest.mark.parametrize(
    ("id_column", "label", "columns", "message"),
    [
        (
            "idd",
            None,
            None,
            "'bank' has no column 'idd' (did you mean 'id'?), named as its id. Its columns are 'id', 'age'",
        ),
        ("id", "why", None, "'bank' has no column 'why', named as its label. Its columns are"),
        ("id", None, ["incom"], "'bank' has no column 'incom' (did you mean 'income'?), named as its feature."),
        ("id", None, ["age", "age"], "'bank' has 'age' more than once in columns. List each feature once."),
    ],
)
def test_a_wrong_name_is_a_data_error(
    id_column: str, label: str | None, columns: list[str] | None, message: str
) -> None:
    with pytest.raises(DataError) as caught:
        choose_columns(PRESENT, ColumnRoles("bank", id_column, label=label, columns=columns))
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("label", "columns", "message"),
    [
        ("id", None, "'bank' names 'id' as both id and label. Name a label column of its own."),
        (None, ["id", "age"], "'bank' lists its id column 'id' as a feature. Take it out of columns"),
        ("y", ["y", "age"], "'bank' lists its label column 'y' as a feature. Take it out of columns"),
    ],
)
def test_a_column_with_two_parts_is_a_config_error(label: str | None, columns: list[str] | None, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        choose_columns(PRESENT, ColumnRoles("bank", "id", label=label, columns=columns))
    assert message in str(caught.value)


def test_a_table_with_two_columns_of_one_name_is_refused() -> None:
    with pytest.raises(DataError, match="'bank' has 'age' more than once in its table"):
        choose_columns(["id", "age", "age"], ColumnRoles("bank", "id"))


def test_only_an_id_is_nothing_to_bring() -> None:
    with pytest.raises(DataError, match="'bank' holds no feature and no label: its table has only the id column 'id'"):
        choose_columns(["id"], ColumnRoles("bank", "id"))


def test_a_long_list_is_cut_and_says_so() -> None:
    assert listing(["a", "b", "c"], limit=2) == "'a', 'b' and 1 more"


def test_packed_ids_are_the_same_text_in_the_same_order_and_of_ascii_a_quarter_of_the_bytes() -> None:
    plain = np.array([f"{number:08d}" for number in range(5)])
    assert (packed(plain).itemsize, unpacked(packed(plain)).tolist()) == (8, plain.tolist())
    words = np.array(["z", "é", "e", "日本", "\U0001f600", "\uffff", "\ud800", ""])
    assert unpacked(packed(words)).tolist() == words.tolist()
    assert packed(words).argsort(kind="stable").tolist() == words.argsort(kind="stable").tolist()
