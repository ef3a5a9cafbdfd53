"""Candidates contain what must be in them; a scan stops where Fagin's algorithm, written out, would stop."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from colonnade.selection.neighbours import Fagin, first_page

Distances = NDArray[np.float64]


def scanned(lists: NDArray[np.int64], same: NDArray[np.bool_], k: int, page: int) -> list[set[int]]:
    """Candidates of each query, by a leader who knows which rows have its label. `lists`: [lists, queries, rows]."""
    _, queries, rows = lists.shape
    fagin, at = Fagin(queries, rows, len(lists)), np.arange(queries)
    seen: list[list[int]] = [[] for _ in range(queries)]
    stops = np.full(queries, -1)
    while len(at):
        start = fagin.depth
        found = fagin.read(at, [one[at, start : start + page].astype(np.int32) for one in lists])
        for query, ids in zip(at.tolist(), np.split(found.ids, np.cumsum(found.counts)[:-1]), strict=True):
            seen[query] += ids.tolist()
            own = [place for place, row in enumerate(seen[query]) if same[query, row]]
            if len(own) >= k:
                stops[query] = own[k - 1]
        at = at[stops[at] < 0]
    runs = fagin.candidates(fagin.depths(stops), np.zeros(queries, dtype=np.int64))
    return [set(ids.tolist()) for ids in np.split(runs.ids, np.cumsum(runs.counts)[:-1])]


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
    rows, parties, queries = draw(st.integers(4, 25)), draw(st.integers(1, 4)), draw(st.integers(1, 3))
    k, random = draw(st.integers(1, 3)), np.random.default_rng(draw(st.integers(0, 10**6)))
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
        order = np.lexsort((np.arange(len(total)), total))  # ties in the order of pseudo ids, as everywhere
        last = [place for place, row in enumerate(order) if same[query, row]][k - 1]
        assert set(order[: last + 1].tolist()) <= candidates


@settings(max_examples=60)
@given(cases())
def test_the_candidates_are_fagins_whatever_the_page(case: tuple[Distances, NDArray[np.bool_], int, int]) -> None:
    partial, same, k, page = case
    lists = sorted_lists(partial)
    expected = [by_the_book(lists[:, query], same[query], k) for query in range(lists.shape[1])]
    assert scanned(lists, same, k, page) == expected


@settings(max_examples=40)
@given(cases())
def test_inclusion(case: tuple[Distances, NDArray[np.bool_], int, int]) -> None:
    """Theorem 1: the candidates of a group are among those of every larger one."""
    partial, same, k, page = case
    lists = sorted_lists(partial)
    everybody = scanned(lists, same, k, page)
    for smaller in range(1, len(lists)):
        for mine, all_ in zip(scanned(lists[:smaller], same, k, page), everybody, strict=True):
            assert mine <= all_


def test_candidates_come_in_the_order_in_which_they_follow_the_query() -> None:
    fagin = Fagin(1, 6, 2)
    found = fagin.read(np.arange(1), [np.array([[5, 2, 0]], np.int32), np.array([[2, 4, 5]], np.int32)])
    assert found.ids.tolist() == [2, 5]
    assert fagin.depths(np.array([1])).tolist() == [3]
    assert fagin.candidates(np.array([2], np.int32), np.array([3])).ids.tolist() == [4, 5, 2]


def test_the_first_page_fits() -> None:
    assert first_page(5, 2, 3) == 4
    assert 16 <= first_page(100_000, 2, 3) < first_page(100_000, 4, 3) < 25_000
