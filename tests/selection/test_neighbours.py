"""Both estimators, against definitions written out row by row, and against
scikit-learn. Candidates contain what must be in them; a scan stops where Fagin's
algorithm, written out, would stop. Rankings against a full stable sort, by whichever
way they were found; distances against their definition.
"""

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
from colonnade.selection.neighbours import (
    Columns,
    Fagin,
    first_page,
    kth,
    ordered,
    shuffled,
    squared_distances,
    standardised,
)


def some(
    rows: int, columns: int, seed: int = 0
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    random = np.random.default_rng(seed)
    labels = random.integers(0, 3, rows)
    return labels[:, None] * 0.7 + random.normal(size=(rows, columns)), labels


def ross_by_definition(
    x: NDArray[np.float64], y: NDArray[np.int64], k: int, queries: list[int]
) -> float:
    terms = []
    for q in queries:
        distance = np.sqrt(((x - x[q]) ** 2).sum(1))
        own = np.sort([distance[j] for j in range(len(x)) if j != q and y[j] == y[q]])
        near = min(k, len(own))
        m = sum(1 for j in range(len(x)) if j == q or distance[j] < own[near - 1])
        terms.append(
            digamma(len(x)) - digamma((y == y[q]).sum()) + digamma(near) - digamma(m)
        )
    return float(np.mean(terms))


@settings(max_examples=20)
@given(st.integers(12, 60), st.integers(1, 4), st.integers(1, 5), st.integers(0, 99))
def test_ross_is_its_definition(rows: int, columns: int, k: int, seed: int) -> None:
    x, y = some(rows, columns, seed)
    queries = [q for q in range(rows) if (y == y[q]).sum() > 1]
    assert ross(x, y, k=k) == pytest.approx(
        ross_by_definition(x, y, k, queries), abs=1e-12
    )
    few = queries[:5]
    assert ross(x, y, k=k, queries=np.array(few)) == pytest.approx(
        ross_by_definition(x, y, k, few), abs=1e-12
    )


def test_ross_is_scikit_learns_for_one_column() -> None:
    x, y = some(400, 1)
    assert ross(x, y) == pytest.approx(
        mutual_info_classif(x, y, n_neighbors=3, random_state=0)[0], abs=1e-9
    )


def test_ross_of_a_known_mutual_information() -> None:
    """A normal shifted by the label: the truth is a one-dimensional integral."""
    random = np.random.default_rng(0)
    y = random.integers(0, 2, 4000)
    x = 2.0 * y[:, None] + random.normal(size=(4000, 1))
    grid = np.linspace(-8, 10, 20001)
    density = np.stack(
        [np.exp(-((grid - mean) ** 2) / 2) / np.sqrt(2 * np.pi) for mean in (0.0, 2.0)]
    )
    mixed = density.mean(0)
    truth = float((0.5 * density * np.log(density / mixed)).sum() * (grid[1] - grid[0]))
    assert ross(x, y) == pytest.approx(truth, abs=0.04)


def test_it_does_not_hold_all_distances_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    x, y = some(50, 2)
    whole = ross(x, y), kraskov(x, x[:, 0])
    monkeypatch.setattr(joined, "AT_ONCE", 120)
    assert (ross(x, y), kraskov(x, x[:, 0])) == pytest.approx(whole, abs=1e-12)


def test_labels_that_all_differ_have_no_neighbours() -> None:
    with pytest.raises(DataError, match="all 5 labels differ"):
        ross(np.zeros((5, 1)), np.arange(5))


def test_ties_are_broken_by_order_not_by_label() -> None:
    """A column with one value tells nothing. Counted strictly, nothing would be nearer
    than the k-th, and it would seem to tell all."""
    random = np.random.default_rng(0)
    y = random.integers(0, 2, 2000)
    assert abs(ross(np.zeros((2000, 1)), y)) < 0.05


def kraskov_by_definition(
    x: NDArray[np.float64], y: NDArray[np.float64], k: int
) -> float:
    terms = []
    rows = len(x)
    for q in range(rows):
        dx = np.sqrt(((x - x[q]) ** 2).sum(1))
        dy = np.abs(y - y[q])
        radius = np.sort(np.delete(np.maximum(dx, dy), q))[k - 1]
        terms.append(sum(digamma(1 + np.delete(d < radius, q).sum()) for d in (dx, dy)))
    return float(digamma(rows) + digamma(k) - np.mean(terms))


@pytest.mark.parametrize(("columns", "k"), [(1, 3), (3, 1), (2, 5)])
def test_kraskov_is_its_definition(columns: int, k: int) -> None:
    x, _ = some(60, columns)
    y = x.sum(1) + np.random.default_rng(1).normal(size=60)
    assert kraskov(x, y, k=k) == pytest.approx(
        kraskov_by_definition(x, y, k), abs=1e-12
    )


def test_kraskov_is_scikit_learns_for_one_column() -> None:
    random = np.random.default_rng(0)
    x = random.normal(size=(300, 1))
    y = x[:, 0] + random.normal(size=300)
    found = kraskov(x / x.std(0), y / y.std())
    assert found == pytest.approx(
        mutual_info_regression(x, y, n_neighbors=3, random_state=0)[0], abs=1e-9
    )


def test_kraskov_of_some_queries() -> None:
    x, y = some(60, 2)
    target = y + x[:, 0]
    every = [kraskov(x, target, queries=np.array([q])) for q in range(60)]
    assert kraskov(x, target) == pytest.approx(np.mean(every), abs=1e-12)
    assert kraskov(x, target, queries=np.array([3, 8])) == pytest.approx(
        (every[3] + every[8]) / 2, abs=1e-12
    )


def test_levels_in_both_are_no_certainty() -> None:
    """Counted strictly, nothing would be nearer than an equal row, and any two would
    seem to tell all of each other."""
    random = np.random.default_rng(0)
    x, y = random.integers(0, 3, (2, 1500)).astype(np.float64)
    assert abs(kraskov(x[:, None], y)) < 0.02
    assert kraskov(x[:, None], x) == pytest.approx(np.log(3), abs=0.02), "the entropy"
    assert kraskov(x[:, None], np.zeros(1500)) == pytest.approx(0, abs=0.01)


def test_float_errors_make_no_order() -> None:
    random = np.random.default_rng(0)
    x, y = random.integers(0, 6, (2, 200)).astype(np.float64)
    assert kraskov(x[:, None] / 7 + 0.1, y / 7 - 0.3) == pytest.approx(
        kraskov(x[:, None], y), abs=1e-12
    )


@given(
    st.lists(
        st.lists(st.integers(0, 4), min_size=6, max_size=6), min_size=1, max_size=4
    )
)
def test_ordered_is_a_stable_sort(values: list[list[int]]) -> None:
    d = np.array(values, dtype=np.float64)
    d[0, 0] = np.inf
    expected = np.argsort(d, axis=1, kind="stable")
    assert (ordered(d) == expected).all()
    noise = np.random.default_rng(0).uniform(-1e-6, 1e-6, d.shape)
    assert (ordered(d + noise, 3e-6) == expected).all(), (
        "what differs by less than the tolerance is tied"
    )


def test_kth_counts_from_one_and_says_where_there_are_too_few() -> None:
    same = np.array(
        [
            [True, False, True, True],
            [False, True, False, False],
            [False, False, False, False],
        ]
    )
    assert kth(same, np.array([2, 1, 1])).tolist() == [3, 2, 0]
    assert kth(same, np.array([4, 2, 1])).tolist() == [0, 0, 0]


Distances = NDArray[np.float64]


def scanned(
    lists: NDArray[np.int64], same: NDArray[np.bool_], k: int, page: int
) -> list[set[int]]:
    """Candidates of each query, by a leader who knows which rows have its label.
    `lists`: [lists, queries, rows]."""
    _, queries, rows = lists.shape
    fagin = Fagin(queries, rows, len(lists))
    at = np.arange(queries)
    seen: list[list[int]] = [[] for _ in range(queries)]
    stops = np.full(queries, -1)
    while len(at):
        start = fagin.depth
        found = fagin.read(
            at, [one[at, start : start + page].astype(np.int32) for one in lists]
        )
        for query, ids in zip(
            at.tolist(), np.split(found.ids, np.cumsum(found.counts)[:-1]), strict=True
        ):
            seen[query] += ids.tolist()
            own = [place for place, row in enumerate(seen[query]) if same[query, row]]
            if len(own) >= k:
                stops[query] = own[k - 1]
        at = at[stops[at] < 0]
    runs = fagin.candidates(fagin.depths(stops), np.zeros(queries, dtype=np.int64))
    return [
        set(ids.tolist()) for ids in np.split(runs.ids, np.cumsum(runs.counts)[:-1])
    ]


def by_the_book(lists: NDArray[np.int64], same: NDArray[np.bool_], k: int) -> set[int]:
    """One query, row by row."""
    for depth in range(1, lists.shape[1] + 1):
        tops = [set(one[:depth].tolist()) for one in lists]
        if sum(same[row] for row in set.intersection(*tops)) >= k:
            return set.union(*tops)
    raise AssertionError("unreachable: at full depth all are seen")


def sorted_lists(partial: Distances) -> NDArray[np.int64]:
    return np.argsort(partial, axis=-1, kind="stable")


@st.composite
def cases(draw: st.DrawFn) -> tuple[Distances, NDArray[np.bool_], int, int]:
    rows = draw(st.integers(4, 25))
    parties = draw(st.integers(1, 4))
    queries = draw(st.integers(1, 3))
    k = draw(st.integers(1, 3))
    random = np.random.default_rng(draw(st.integers(0, 10**6)))
    partial = random.random((parties, queries, rows))
    if draw(st.booleans()):
        partial = np.floor(4 * partial)  # ties
    same = random.random((queries, rows)) < 0.5
    same[:, random.permutation(rows)[:k]] = True
    return partial, same, k, draw(st.integers(1, 7))


@settings(max_examples=80)
@given(cases())
def test_whatever_is_nearer_than_the_kth_of_the_label_is_a_candidate(
    case: tuple[Distances, NDArray[np.bool_], int, int],
) -> None:
    partial, same, k, page = case
    found = scanned(sorted_lists(partial), same, k, page)
    for query, candidates in enumerate(found):
        total = partial[:, query].sum(0)
        # ties in the order of pseudo ids, as everywhere
        order = np.lexsort((np.arange(len(total)), total))
        last = [place for place, row in enumerate(order) if same[query, row]][k - 1]
        assert set(order[: last + 1].tolist()) <= candidates


@settings(max_examples=60)
@given(cases())
def test_the_candidates_are_fagins_whatever_the_page(
    case: tuple[Distances, NDArray[np.bool_], int, int],
) -> None:
    partial, same, k, page = case
    lists = sorted_lists(partial)
    expected = [
        by_the_book(lists[:, query], same[query], k) for query in range(lists.shape[1])
    ]
    assert scanned(lists, same, k, page) == expected


@settings(max_examples=40)
@given(cases())
def test_inclusion(case: tuple[Distances, NDArray[np.bool_], int, int]) -> None:
    """Theorem 1: the candidates of a group are among those of every larger one."""
    partial, same, k, page = case
    lists = sorted_lists(partial)
    everybody = scanned(lists, same, k, page)
    for smaller in range(1, len(lists)):
        for mine, all_ in zip(
            scanned(lists[:smaller], same, k, page), everybody, strict=True
        ):
            assert mine <= all_


def test_candidates_come_in_the_order_in_which_they_follow_the_query() -> None:
    fagin = Fagin(1, 6, 2)
    found = fagin.read(
        np.arange(1), [np.array([[5, 2, 0]], np.int32), np.array([[2, 4, 5]], np.int32)]
    )
    assert found.ids.tolist() == [2, 5]
    assert fagin.depths(np.array([1])).tolist() == [3]
    assert fagin.candidates(np.array([2], np.int32), np.array([3])).ids.tolist() == [
        4,
        5,
        2,
    ]


def test_the_first_page_fits() -> None:
    assert first_page(5, 2, 3) == 4
    assert 16 <= first_page(100_000, 2, 3) < first_page(100_000, 4, 3) < 25_000


@settings(max_examples=60)
@given(
    st.integers(1, 3),
    st.integers(20, 120),
    st.sampled_from([0, 3, 20]),
    st.integers(0, 10**6),
    st.data(),
)
def test_a_ranking_is_a_stable_sort(
    columns: int, rows: int, levels: int, seed: int, data: st.DataObject
) -> None:
    random = np.random.default_rng(seed)
    values = random.normal(size=(rows, columns))
    # ties, within pages and at their ends
    values = np.round(values * levels) if levels else values
    queries = random.integers(0, rows, 5)
    start = data.draw(st.integers(0, rows - 2))
    stop = data.draw(st.integers(start + 1, rows - 1))
    found = Columns(values).ranking(queries, start, stop)
    for query, ranking in zip(queries.tolist(), found.tolist(), strict=True):
        # as they follow the query
        others = [(query + step) % rows for step in range(1, rows)]
        expected = sorted(
            others, key=lambda row: float(((values[row] - values[query]) ** 2).sum())
        )
        assert ranking == expected[start:stop]


def test_distances_of_candidates() -> None:
    values = np.random.default_rng(0).normal(size=(9, 3))
    held = Columns(values)
    found = held.distances(
        np.array([4, 0]), np.array([1, 2, 8], np.int32), np.array([1, 2], np.int32)
    )
    pairs = [(4, 1), (0, 2), (0, 8)]
    assert found == pytest.approx(
        [((values[a] - values[b]) ** 2).sum() for a, b in pairs]
    )
    everyone = held.distances(np.array([4]), None, np.array([8], np.int32))
    assert everyone == pytest.approx(
        [((values[4] - values[b]) ** 2).sum() for b in (5, 6, 7, 8, 0, 1, 2, 3)]
    )


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
