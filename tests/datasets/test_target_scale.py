"""Which labels are trained as logarithms."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from scipy.stats import skew

from colonnade.datasets import Labels
from colonnade.datasets.target_scale import is_skewed, skewness
from colonnade.errors import DataError

NORMAL = np.random.default_rng(0).normal(size=3000)


def fitted(values: np.ndarray, wanted: str, rows: range | None = None) -> Labels:
    return Labels.fit(
        pd.Series(values, name="cost"),
        rows,
        owner="clinic",
        task="regression",
        target_scale=wanted,  # type: ignore[arg-type]
    )


def test_skewness_is_that_of_statistics() -> None:
    for values in (NORMAL, np.exp(NORMAL), np.array([1.0, 1.0, 5.0])):
        assert skewness(values) == pytest.approx(skew(values))
    assert skewness(np.full(4, 2.0)) == 0


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (np.exp(1.2 * NORMAL), True),
        (1e6 * np.exp(1.2 * NORMAL), True),  # whatever the unit
        (np.exp(0.4 * NORMAL), False),  # hardly skewed
        (NORMAL + 50, False),
        (-np.exp(1.2 * NORMAL), False),  # negative
        (np.exp(1.2 * NORMAL) - 1, False),  # some are negative
        (np.append(np.exp(1.2 * NORMAL), 0.0), False),  # a zero has no logarithm
    ],
)
def test_positive_labels_with_a_long_tail_are_trained_as_logarithms(
    values: np.ndarray, expected: bool
) -> None:
    assert is_skewed(values) == expected
    assert fitted(values, "auto").unit.is_log == expected
    assert not fitted(values, "linear").unit.is_log


def test_logarithms_that_are_as_skewed_are_not_taken() -> None:
    """One label that is far away in logarithms, too, is no long tail."""
    assert not is_skewed(np.append(np.full(500, 1.0) + NORMAL[:500] * 1e-3, 1e9))


def test_a_log_scale_that_was_asked_for_needs_positive_labels() -> None:
    assert fitted(np.exp(0.1 * NORMAL), "log").unit.is_log
    with pytest.raises(DataError, match=r"'clinic' has 1 labels of 0 or below"):
        fitted(np.array([3.0, 1.0, 0.0]), "log")


def test_a_row_that_is_not_trained_on_may_rule_out_logarithms() -> None:
    values = np.append(np.exp(1.2 * NORMAL), 0.0)
    trained = range(len(NORMAL))
    assert not fitted(values, "auto", trained).unit.is_log
    known = fitted(values[:-1], "auto")
    with pytest.raises(DataError, match="a log scale needs numbers above 0"):
        known.encode(pd.Series(values))


def test_the_scale_is_saved_with_the_labels() -> None:
    known = fitted(np.exp(1.2 * NORMAL), "auto")
    again = Labels.from_state(known.state())
    assert again == known
    labels = pd.Series([0.5, 1.0, 700.0])
    np.testing.assert_allclose(again.decode(again.encode(labels)), labels, rtol=1e-6)
