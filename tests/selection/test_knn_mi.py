"""Both estimators, against definitions written out row by row, and against scikit-learn."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.special import digamma
from sklearn.feature_selection import mutual_info_classif, mutual_info_regression
from tests.selection import joined
from tests.selection.joined import kraskov, ross

from colonnade.errors import DataError
from colonnade.selection.neighbours import kth, ordered


def some(rows: int, columns: int, seed: int = 0) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    random = np.random.default_rng(seed)
    labels = random.integers(0, 3, rows)
    return labels[:, None] * 0.7 + random.normal(size=(rows, columns)), labels


def ross_by_definition(x: NDArray[np.float64], y: NDArray[np.int64], k: int, queries: list[int]) -> float:
    terms = []
    for q in queries:
        distance = np.sqrt(((x - x[q]) ** 2).sum(1))
        own = np.sort([distance[j] for j in range(len(x)) if j != q and y[j] == y[q]])
        near = min(k, len(own))
        m = sum(1 for j in range(len(x)) if j == q or distance[j] < own[near - 1])
        terms.append(digamma(len(x)) - digamma((y == y[q]).sum()) + digamma(near) - digamma(m))
    return float(np.mean(terms))


@settings(max_examples=20)
@given(st.integers(12, 60), st.integers(1, 4), st.integers(1, 5), st.integers(0, 99))
def test_ross_is_its_definition(rows: int, columns: int, k: int, seed: int) -> None:
    x, y = some(rows, columns, seed)
    queries = [q for q in range(rows) if (y == y[q]).sum() > 1]
    assert ross(x, y, k=k) == pytest.approx(ross_by_definition(x, y, k, queries), abs=1e-12)
    few = queries[:5]
    assert ross(x, y, k=k, queries=np.array(few)) == pytest.approx(ross_by_definition(x, y, k, few), abs=1e-12)


def test_ross_is_scikit_learns_for_one_column() -> None:
    x, y = some(400, 1)
    assert ross(x, y) == pytest.approx(mutual_info_classif(x, y, n_neighbors=3, random_state=0)[0], abs=1e-9)


def test_ross_of_a_known_mutual_information() -> None:
    """A normal shifted by the label: the truth is a one-dimensional integral."""
    random = np.random.default_rng(0)
    y = random.integers(0, 2, 4000)
    x = 2.0 * y[:, None] + random.normal(size=(4000, 1))
    grid = np.linspace(-8, 10, 20001)
    density = np.stack([np.exp(-((grid - mean) ** 2) / 2) / np.sqrt(2 * np.pi) for mean in (0.0, 2.0)])
    mixed = density.mean(0)
    truth = float((0.5 * density * np.log(density / mixed)).sum() * (grid[1] - grid[0]))
    assert ross(x, y) == pytest.approx(truth, abs=0.04)


def test_it_does_not_hold_all_distances_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = some(50, 2)
    whole = ross(x, y), kraskov(x, x[:, 0])
    monkeypatch.setattr(joined, "AT_ONCE", 120)
    assert (ross(x, y), kraskov(x, x[:, 0])) == pytest.approx(whole, abs=1e-12)


def test_labels_that_all_differ_have_no_neighbours() -> None:
    with pytest.raises(DataError, match="all 5 labels differ"):
        ross(np.zeros((5, 1)), np.arange(5))


def test_ties_are_broken_by_order_not_by_label() -> None:
    """A column with one value tells nothing. Counted strictly, nothing would be nearer than the k-th, and it would seem
    to tell all."""
    random = np.random.default_rng(0)
    y = random.integers(0, 2, 2000)
    assert abs(ross(np.zeros((2000, 1)), y)) < 0.05


def kraskov_by_definition(x: NDArray[np.float64], y: NDArray[np.float64], k: int) -> float:
    terms, rows = [], len(x)
    for q in range(rows):
        dx, dy = np.sqrt(((x - x[q]) ** 2).sum(1)), np.abs(y - y[q])
        radius = np.sort(np.delete(np.maximum(dx, dy), q))[k - 1]
        terms.append(sum(digamma(1 + np.delete(d < radius, q).sum()) for d in (dx, dy)))
    return float(digamma(rows) + digamma(k) - np.mean(terms))


@pytest.mark.parametrize(("columns", "k"), [(1, 3), (3, 1), (2, 5)])
def test_kraskov_is_its_definition(columns: int, k: int) -> None:
    x, _ = some(60, columns)
    y = x.sum(1) + np.random.default_rng(1).normal(size=60)
    assert kraskov(x, y, k=k) == pytest.approx(kraskov_by_definition(x, y, k), abs=1e-12)


def test_kraskov_is_scikit_learns_for_one_column() -> None:
    random = np.random.default_rng(0)
    x = random.normal(size=(300, 1))
    y = x[:, 0] + random.normal(size=300)
    found = kraskov(x / x.std(0), y / y.std())
    assert found == pytest.approx(mutual_info_regression(x, y, n_neighbors=3, random_state=0)[0], abs=1e-9)


def test_kraskov_of_some_queries() -> None:
    x, y = some(60, 2)
    target = y + x[:, 0]
    every = [kraskov(x, target, queries=np.array([q])) for q in range(60)]
    assert kraskov(x, target) == pytest.approx(np.mean(every), abs=1e-12)
    assert kraskov(x, target, queries=np.array([3, 8])) == pytest.approx((every[3] + every[8]) / 2, abs=1e-12)


def test_levels_in_both_are_no_certainty() -> None:
    """Counted strictly, nothing would be nearer than an equal row, and any two would seem to tell all of each other."""
    random = np.random.default_rng(0)
    x, y = random.integers(0, 3, (2, 1500)).astype(np.float64)
    assert abs(kraskov(x[:, None], y)) < 0.02
    assert kraskov(x[:, None], x) == pytest.approx(np.log(3), abs=0.02), "the entropy"
    assert kraskov(x[:, None], np.zeros(1500)) == pytest.approx(0, abs=0.01)


def test_float_errors_make_no_order() -> None:
    random = np.random.default_rng(0)
    x, y = random.integers(0, 6, (2, 200)).astype(np.float64)
    assert kraskov(x[:, None] / 7 + 0.1, y / 7 - 0.3) == pytest.approx(kraskov(x[:, None], y), abs=1e-12)


@given(st.lists(st.lists(st.integers(0, 4), min_size=6, max_size=6), min_size=1, max_size=4))
def test_ordered_is_a_stable_sort(values: list[list[int]]) -> None:
    d = np.array(values, dtype=np.float64)
    d[0, 0] = np.inf
    expected = np.argsort(d, axis=1, kind="stable")
    assert (ordered(d) == expected).all()
    noise = np.random.default_rng(0).uniform(-1e-6, 1e-6, d.shape)
    assert (ordered(d + noise, 3e-6) == expected).all(), "what differs by less than the tolerance is tied"


def test_kth_counts_from_one_and_says_where_there_are_too_few() -> None:
    same = np.array([[True, False, True, True], [False, True, False, False], [False, False, False, False]])
    assert kth(same, np.array([2, 1, 1])).tolist() == [3, 2, 0]
    assert kth(same, np.array([4, 2, 1])).tolist() == [0, 0, 0]
