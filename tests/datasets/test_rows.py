from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from colonnade.datasets.preprocess import row_numbers
from colonnade.errors import DataError


@pytest.mark.parametrize(
    "rows", [[2, 0], torch.tensor([2, 0]), np.array([2, 0], dtype=np.int32)]
)
def test_rows_may_come_as_list_tensor_or_array(rows: Any) -> None:
    found = row_numbers(rows, 3, owner="bank")
    assert found.tolist() == [2, 0]
    assert found.dtype == np.int64


def test_none_means_all_rows() -> None:
    assert row_numbers(None, 3, owner="bank").tolist() == [0, 1, 2]


@pytest.mark.parametrize("rows", [[], [0.5], [True, False, True], [[0, 1]]])
def test_what_is_no_list_of_row_numbers_is_refused(rows: Any) -> None:
    with pytest.raises(
        DataError, match=r"'bank' was given training rows of shape .* Pass Split\.train"
    ):
        row_numbers(rows, 3, owner="bank")


@pytest.mark.parametrize("rows", [[-1, 1], [1, 3]])
def test_rows_outside_the_table_are_refused(rows: list[int]) -> None:
    with pytest.raises(
        DataError,
        match=r"'bank' was given row numbers from .* and its table has rows 0 to 2",
    ):
        row_numbers(rows, 3, owner="bank")
