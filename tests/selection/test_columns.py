"""Rankings against a full stable sort, by whichever way they were found; distances against their definition."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from colonnade.selection.neighbours import Columns, shuffled, squared_distances, standardised


@settings(max_examples=60)
@given(st.integers(1, 3), st.integers(20, 120), st.sampled_from([0, 3, 20]), st.integers(0, 10**6), st.data())
def test_a_ranking_is_a_stable_sort(columns: int, rows: int, levels: int, seed: int, data: st.DataObject) -> None:
    random = np.random.default_rng(seed)
    values = random.normal(size=(rows, columns))
    values = np.round(values * levels) if levels else values  # ties, within pages and at their ends
    queries = random.integers(0, rows, 5)
    start = data.draw(st.integers(0, rows - 2))
    stop = data.draw(st.integers(start + 1, rows - 1))
    found = Columns(values).ranking(queries, start, stop)
    for query, ranking in zip(queries.tolist(), found.tolist(), strict=True):
        others = [(query + step) % rows for step in range(1, rows)]  # as they follow the query
        expected = sorted(others, key=lambda row: float(((values[row] - values[query]) ** 2).sum()))
        assert ranking == expected[start:stop]


def test_distances_of_candidates() -> None:
    values = np.random.default_rng(0).normal(size=(9, 3))
    held = Columns(values)
    found = held.distances(np.array([4, 0]), np.array([1, 2, 8], np.int32), np.array([1, 2], np.int32))
    pairs = [(4, 1), (0, 2), (0, 8)]
    assert found == pytest.approx([((values[a] - values[b]) ** 2).sum() for a, b in pairs])
    everyone = held.distances(np.array([4]), None, np.array([8], np.int32))
    assert everyone == pytest.approx([((values[4] - values[b]) ** 2).sum() for b in (5, 6, 7, 8, 0, 1, 2, 3)])


def test_the_reach_is_above_every_distance_and_tells_a_power_of_two() -> None:
    values = np.random.default_rng(0).normal(size=(50, 3)) * 7
    reach = Columns(values).reach()
    assert squared_distances(values, np.arange(50)).max() <= reach
    assert np.log2(reach) % 1 == 0
    assert Columns(np.zeros((5, 1))).reach() > 0


def test_standardised() -> None:
    found = standardised(np.array([[1.0, 5.0, 1e9], [2.0, 5.0, 1e9], [6.0, 5.0, 1e9]]))
    assert found[:, 0].mean() == pytest.approx(0)
    assert found[:, 0].std() == pytest.approx(1)
    assert (found[:, 1:] == 0).all()


def test_the_shuffle_is_the_seeds() -> None:
    assert (shuffled(50, 3) == shuffled(50, 3)).all()
    assert sorted(shuffled(50, 3)) == list(range(50))
    assert (shuffled(50, 3) != shuffled(50, 4)).any()


def test_all_bits_of_a_seed_shuffle() -> None:
    """So that nobody can try all orders."""
    orders = [shuffled(500, 5 + (high << 32)) for high in range(3)]
    assert all(sorted(order.tolist()) == list(range(500)) for order in orders)
    assert len({tuple(order.tolist()) for order in orders}) == 3
    assert (shuffled(500, 5) == orders[0]).all()
