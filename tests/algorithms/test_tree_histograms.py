"""Bins, groups of bins and splits, held to what they are by definition."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from colonnade.algorithms.tree_histograms import (
    Binning,
    Candidates,
    best_splits,
    counted,
    of_candidates,
    offered,
    summed,
)


def drawn(
    seed: int, rows: int = 60, columns: int = 3
) -> tuple[Binning, NDArray[np.uint8]]:
    generator = np.random.default_rng(seed)
    x = generator.normal(size=(rows, columns)).astype(np.float32)
    x[generator.random(x.shape) < 0.1] = np.nan
    x[:, 0] = np.round(x[:, 0])
    binning = Binning.of(x, 8)
    return binning, binning.bins(x)


def left_of(
    candidates: Candidates, at: int, bins: NDArray[np.uint8]
) -> NDArray[np.bool_]:
    """Row by row: those whose bin of the candidate's column is not after its last one;
    gaps as it says."""
    mine = bins[candidates.column[at]]
    gap = 8
    found: NDArray[np.bool_] = np.where(
        mine == gap, candidates.gaps_left[at], mine <= candidates.last[at]
    )
    return found


@pytest.mark.parametrize("seed", range(4))
def test_a_candidates_sum_is_that_of_the_rows_it_sends_left(seed: int) -> None:
    binning, bins = drawn(seed)
    weights = np.random.default_rng(seed).normal(size=(bins.shape[1],))
    candidates = binning.candidates()
    sums = of_candidates(summed(bins, weights, 1, binning.gap + 1), candidates)[0]
    for at in range(len(candidates)):
        left = left_of(candidates, at, bins)
        assert sums[at] == pytest.approx(weights[left].sum())


@pytest.mark.parametrize("seed", range(4))
def test_a_histograms_sum_is_the_nodes(seed: int) -> None:
    binning, bins = drawn(seed)
    weights = np.random.default_rng(seed).normal(size=(bins.shape[1],))
    assert np.allclose(summed(bins, weights, 1, binning.gap + 1).sum(2), weights.sum())
    assert (counted(bins, 1, binning.gap + 1).sum(2) == bins.shape[1]).all()


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 9), st.booleans())
def test_no_difference_of_two_sums_is_of_a_few_rows(
    seed: int, least: int, inner: bool
) -> None:
    """Whatever is offered, of either sibling: what goes left by one and not by another
    is nobody, or enough rows."""
    binning, bins = drawn(seed)
    candidates = binning.candidates()
    width = binning.gap + 1
    generator = np.random.default_rng(seed)
    side = generator.random(bins.shape[1]) < 0.4
    counts = np.stack([counted(bins[:, rows], 1, width) for rows in (side, ~side)])
    before = None
    if inner:
        before = offered(counts.sum(0)[None], candidates, None, least)
    told = offered(counts, candidates, before, least)[0]
    if before is not None:
        assert not (told & ~before[0]).any()
    for column in range(len(bins)):
        mine = [
            at
            for at in np.flatnonzero(told).tolist()
            if candidates.column[at] == column
        ]
        lefts = [left_of(candidates, at, bins) for at in mine]
        lefts += [
            np.zeros(bins.shape[1], dtype=bool),
            np.ones(bins.shape[1], dtype=bool),
        ]
        for rows in (side, ~side):
            for one in lefts:
                for other in lefts:
                    extra = int((one & ~other & rows).sum())
                    assert extra == 0 or extra >= least


def test_with_one_row_enough_every_way_to_part_rows_is_offered() -> None:
    binning, bins = drawn(0)
    candidates = binning.candidates()
    told = offered(counted(bins, 1, binning.gap + 1)[None], candidates, None, 1)[0]
    ways = set()
    for at in range(len(candidates)):
        left = left_of(candidates, at, bins)
        if 0 < left.sum() < len(left):
            ways.add((int(candidates.column[at]), left.tobytes()))
    offered_ways = {
        (int(candidates.column[at]), left_of(candidates, at, bins).tobytes())
        for at in np.flatnonzero(told).tolist()
    }
    assert offered_ways >= ways


def test_ties_go_to_the_first_and_nothing_is_split_for_nothing() -> None:
    sums = np.array([[[1.0, 2.0], [1.0, 2.0]]])
    best = best_splits(
        [sums, sums], np.array([[0.0, 4.0]]), l2=0.0, min_gain=0.0, min_child_weight=0.0
    )
    assert (best[0].party, best[0].candidate) == (0, 0)
    none = best_splits(
        [sums * 0], np.array([[0.0, 4.0]]), l2=0.0, min_gain=0.0, min_child_weight=0.0
    )
    assert none[0].party == -1
    heavy = best_splits(
        [sums], np.array([[0.0, 4.0]]), l2=0.0, min_gain=0.0, min_child_weight=2.5
    )
    assert heavy[0].party == -1


def test_few_values_have_borders_between_them_and_many_have_quantiles() -> None:
    few = Binning.of(np.array([[1.0], [2.0], [2.0], [4.0]], dtype=np.float32), 8)
    assert few.edges[0].tolist() == [1.5, 3.0]
    many = Binning.of(np.arange(101, dtype=np.float32)[:, None], 4)
    assert many.edges[0].tolist() == [25.0, 50.0, 75.0]
