from __future__ import annotations

import numpy as np
import pytest

from colonnade.datasets.dataset import Dataset, Rows, content_checksum
from colonnade.errors import DataError

Y = np.array([0, 1])


def test_a_table_of_numbers_is_an_array_and_a_frame() -> None:
    rows = Rows({"a": np.array([1, 2]), "b": np.array([0.5, 1.5])}, Y)
    assert rows.array().tolist() == [[1, 0.5], [2, 1.5]]
    assert rows.frame()["b"].tolist() == [0.5, 1.5]
    assert list(rows.frame().columns) == ["a", "b"]
    assert Dataset("t", "tabular", rows, None, ("no", "yes")).columns == ("a", "b")


def test_a_table_with_words_is_no_array() -> None:
    with pytest.raises(
        DataError,
        match=r"columns that are not numbers, such as 'job', .* Take frame\(\)",
    ):
        Rows({"a": Y, "job": np.array(["x", "y"])}, Y).array()


def test_images_are_an_array_and_flatten_to_a_frame() -> None:
    rows = Rows(np.arange(8).reshape(2, 2, 2), Y)
    assert rows.array() is rows.x
    assert list(rows.frame().columns) == ["x0", "x1", "x2", "x3"]
    assert rows.frame().to_numpy()[1].tolist() == [4, 5, 6, 7]
    assert Dataset("t", "image", rows, None, ("no", "yes")).columns == ()


def test_printed_rows_show_sizes_only() -> None:
    assert repr(Rows({"a": Y}, Y)) == "Rows(2 rows, 1 columns)"
    assert repr(Rows(np.zeros((2, 3)), Y)) == "Rows(2 rows, shape (2, 3))"


def test_the_checksum_depends_on_values_and_not_on_how_they_are_stored() -> None:
    x = np.arange(6, dtype=np.int32).reshape(2, 3)
    plain = content_checksum((Rows(x, Y), None))
    stored_otherwise = Rows(np.asfortranarray(x.astype(np.int64)), Y)
    assert content_checksum((stored_otherwise, None)) == plain
    words = np.array(["ab", "c"])
    assert content_checksum((Rows({"w": words}, Y), None)) == content_checksum(
        (Rows({"w": words.astype("<U9")}, Y), None)
    )


@pytest.mark.parametrize(
    ("x", "y"),
    [
        ({"a": np.array([1, 3])}, Y),
        ({"b": np.array([1, 2])}, Y),
        ({"a": np.array(["1", "2"])}, Y),
        ({"a": np.array([1.0, 2.0])}, Y),
        ({"a": np.array([1, 2])}, Y[::-1]),
    ],
    ids=["value", "name", "text", "float", "label"],
)
def test_the_checksum_sees_every_change(
    x: dict[str, np.ndarray], y: np.ndarray
) -> None:
    base = Rows({"a": np.array([1, 2])}, Y)
    assert content_checksum((Rows(x, y), None)) != content_checksum((base, None))
    assert content_checksum((base, base)) != content_checksum((base, None))
