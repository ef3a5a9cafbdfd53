from __future__ import annotations

import numpy as np

from colonnade.datasets.entries import built_in_breast_cancer, built_in_digits


def test_digits_are_grey_images_without_test_rows() -> None:
    train, test = built_in_digits()
    assert test is None
    assert (train.array().shape, int(train.array().max())) == ((1797, 8, 8), 16)
    assert train.array().dtype == np.uint8
    assert np.unique(train.y).tolist() == list(range(10))


def test_breast_cancer_is_a_table_of_named_columns() -> None:
    train, test = built_in_breast_cancer()
    assert test is None
    assert train.frame().shape == (569, 30)
    assert "mean radius" in train.frame().columns
    assert np.unique(train.y).tolist() == [0, 1]
