"""Bins, histograms, splits and leaves of boosted trees: plain maths, in which no party
and no message occurs.

A party's columns become bins once, by quantiles of the training rows; a gap (NaN) has a
bin of its own, the last. A candidate is a way to part rows by one column: bins up to
`last` go left, and gaps with them or not. For a node and a candidate, gradients and
Hessians are summed over the node's rows that the candidate would send left.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Whole = NDArray[np.int64]
Flags = NDArray[np.bool_]
NOT_OFFERED = -1.0
"""In place of a sum of Hessians, which is never negative: this candidate is not offered
in this node."""


@dataclass(frozen=True, eq=False)
class Candidates:
    """Ways to part rows, each with a column, the last bin that goes left, and whether
    gaps go left."""

    column: Whole
    last: Whole
    gaps_left: Flags

    def __len__(self) -> int:
        return len(self.column)

    def __getitem__(self, order: Whole | Flags) -> Candidates:
        return Candidates(self.column[order], self.last[order], self.gaps_left[order])

    def left_bins(self, width: int) -> Flags:
        """Which bins each candidate sends left, [candidates, width]; gaps are the last
        one."""
        left: Flags = np.arange(width)[None, :] <= self.last[:, None]
        left[:, -1] = self.gaps_left
        return left


@dataclass(frozen=True, eq=False)
class Binning:
    """Where the bins of each column end: a value up to edges[b] is in bin b, or before
    it."""

    edges: tuple[Floats, ...]
    has_gaps: Flags
    gap: int  # the number of the bin for gaps, in every column

    @classmethod
    def of(cls, values: NDArray[np.float32], bins: int) -> Binning:
        """Bins of training rows, [rows, columns] with NaN for gaps. They end in the
        middle between distinct values where these are few, else at quantiles; as in
        scikit-learn's histogram boosting."""
        edges = tuple(_edges(column[~np.isnan(column)], bins) for column in values.T)
        return cls(edges, np.asarray(np.isnan(values).any(0)), bins)

    def bins(self, values: NDArray[np.float32]) -> NDArray[np.uint8]:
        """[rows, columns] values -> [columns, rows] bins."""
        bins = np.empty(values.shape[::-1], dtype=np.uint8)
        for number, edges in enumerate(self.edges):
            column = values[:, number].astype(np.float64)
            bins[number] = np.where(
                np.isnan(column), self.gap, np.searchsorted(edges, column, side="left")
            )
        return bins

    def candidates(self) -> Candidates:
        ways: list[tuple[int, int, bool]] = []
        for column, edges in enumerate(self.edges):
            ways += [(column, last, False) for last in range(len(edges))]
            if self.has_gaps[column]:
                ways += [(column, last, True) for last in range(len(edges))]
                # all values go left, and gaps right
                ways.append((column, len(edges), False))
        table = np.array(ways, dtype=np.int64).reshape(-1, 3)
        return Candidates(table[:, 0], table[:, 1], table[:, 2].astype(np.bool_))

    def threshold(self, column: int, last: int) -> float:
        """The largest value that goes left."""
        edges = self.edges[column]
        return float(edges[last]) if last < len(edges) else float("inf")


def _edges(column: NDArray[np.float32], bins: int) -> Floats:
    values = np.sort(column)
    distinct = values[np.flatnonzero(np.diff(values, prepend=np.nan) != 0)].astype(
        np.float64
    )
    if len(distinct) <= bins:
        return (distinct[:-1] + distinct[1:]) / 2
    places = np.linspace(0, 1, bins + 1)[1:-1] * (len(values) - 1)
    below, above = (
        values[rounded(places).astype(np.int64)].astype(np.float64)
        for rounded in (np.floor, np.ceil)
    )
    return np.unique((below + above) / 2)


def counted(cells: NDArray[np.unsignedinteger], nodes: int, width: int) -> Whole:
    """Rows in each node and bin, [nodes, columns, width], of [columns, rows] cells:
    node times width, and bin."""
    return summed(cells, None, nodes, width)


def summed(
    cells: NDArray[np.unsignedinteger], weights: Floats | None, nodes: int, width: int
) -> NDArray[Any]:
    """Sums over the rows in each node and bin, [nodes, columns, width]; without
    weights, how many rows there are."""
    sums = np.empty(
        (len(cells), nodes * width), dtype=np.int64 if weights is None else np.float64
    )
    for number, column in enumerate(cells):
        sums[number] = np.bincount(column, weights, minlength=nodes * width)
    return sums.reshape(len(cells), nodes, width).transpose(1, 0, 2)


def of_candidates(histogram: Floats, candidates: Candidates) -> Floats:
    """The sums of what goes left, [nodes, candidates], from [nodes, columns, width]
    sums by bin."""
    left: Floats = histogram.cumsum(axis=2)[:, candidates.column, candidates.last]
    if candidates.gaps_left.any():
        left += np.where(candidates.gaps_left, histogram[:, candidates.column, -1], 0.0)
    return left


def offered(
    counts: Whole, candidates: Candidates, before: Flags | None, least: int
) -> Flags:
    """Which candidates may be reported, [pairs, candidates], so that no sum is of fewer
    than `least` rows.

    `counts` are rows in bins, [siblings, pairs, columns, width]. A receiver can
    subtract the sums of one candidate from another's, and a child's from its parent's.
    So bins are put together until each group has enough rows, or none, in both
    siblings; and candidates not reported for the parent (`before`) are not reported for
    its children.
    """
    bins = counts[..., :-1]
    gaps = counts[..., -1]
    allowed = np.ones(bins.shape[1:], dtype=np.bool_)
    if before is not None:
        allowed[:] = False
        plain = ~candidates.gaps_left
        allowed[:, candidates.column[plain], candidates.last[plain]] = before[:, plain]
    own_group = _enough(gaps, least) & gaps.any(0)  # gaps are a group of their own
    up_to = bins.cumsum(-1)
    # something is left for the other side
    leaves_rows = (up_to[..., -1:] > up_to).any(0) | own_group[..., None]
    new = np.where(allowed, up_to.sum(0), 0)
    new[..., 1:] = np.maximum.accumulate(new, axis=-1)[..., :-1]
    new[..., 0] = 0
    # right where no bin has too few rows
    ends = allowed & leaves_rows & (up_to.sum(0) > new)
    few = ~_enough(counts, least).all(-1)
    if few.any():
        ends[few] = _ends(
            bins[:, few],
            np.where(own_group, 0, gaps)[:, few],
            own_group[few],
            allowed[few],
            least,
        )
    may: Flags = ends[:, candidates.column, candidates.last] & (
        ~candidates.gaps_left | own_group[:, candidates.column]
    )
    return may if before is None else np.logical_and(may, before)


def _ends(
    bins: Whole, gaps: Whole, own_group: Flags, allowed: Flags, least: int
) -> Flags:
    """Where groups of bins end, [n, bins], for [siblings, n, bins] counts; gaps that
    are no group join the last one."""
    right = (bins.sum(-1) + gaps)[..., None] - bins.cumsum(-1)
    may_end = allowed & _enough(right, least) & (right.any(0) | own_group[:, None])
    group = np.zeros_like(gaps)
    ends = np.zeros_like(allowed)
    for last in range(bins.shape[-1]):
        group = group + bins[..., last]
        ends[:, last] = ended = may_end[:, last] & _enough(group, least) & group.any(0)
        group[:, ended] = 0
    return ends


def _enough(rows: Whole, least: int) -> Flags:
    """Whether all siblings have no rows or enough."""
    enough: Flags = ((rows == 0) | (rows >= least)).all(0)
    return enough


class Best(NamedTuple):
    """The best split of a node, party -1 where none gains anything; all rows that the
    party lacks go to one side."""

    gain: float
    party: int
    candidate: int
    absent_left: bool = False


def best_splits(
    sums: Sequence[Floats],
    totals: Floats,
    *,
    l2: float,
    min_gain: float,
    min_child_weight: float,
    lacked: Mapping[int, Floats] | None = None,
) -> list[Best]:
    """The best split of each node, from sums [nodes, candidates, 2] of what goes left,
    by party, and totals [nodes, 2]. Where a party lacks rows, `lacked` has their sums,
    [nodes, 2], and they are tried on either side; no split parts rows only by whether
    the party holds them.

    gain = 1/2 (GL^2/(HL + l2) + GR^2/(HR + l2) - G^2/(H + l2)) - min_gain
    """
    undivided = _quality(totals[:, 0], totals[:, 1], l2)
    best = [Best(0.0, -1, -1)] * len(totals)
    for party, left in enumerate(sums):
        if not left.shape[1]:
            continue
        usable = left[..., 1] >= 0
        sides = {False: left}
        if lacked is not None and party in lacked:
            sides[True] = left + lacked[party][:, None, :]
            held = (totals - lacked[party])[:, 1:]
            # both sides have rows it holds
            usable &= np.minimum(left[..., 1], held - left[..., 1]) > 1e-9 * (1 + held)
        for absent_left, left_sums in sides.items():
            right = totals[:, None, :] - left_sums
            gain = _quality(left_sums[..., 0], left_sums[..., 1], l2) + _quality(
                right[..., 0], right[..., 1], l2
            )
            heavy = np.minimum(left_sums[..., 1], right[..., 1]) >= max(
                min_child_weight, 0.0
            )
            gain = np.where(
                heavy & usable, (gain - undivided[:, None]) / 2 - min_gain, -np.inf
            )
            places = gain.argmax(1)
            for node, candidate in enumerate(places.tolist()):
                # what rounding alone may seem to gain
                rounding = 1e-10 * (1 + undivided[node])
                if gain[node, candidate] > max(best[node].gain, rounding):
                    best[node] = Best(
                        float(gain[node, candidate]), party, candidate, absent_left
                    )
    return best


def _quality(g: Floats, h: Floats, l2: float) -> Floats:
    return np.square(g) / np.maximum(h + l2, 1e-12)


def leaf_values(node: Whole, g: Floats, h: Floats, nodes: int, l2: float) -> Floats:
    """-G/(H + l2) of the rows in each node, [nodes]; 0 where there are none."""
    total_g, total_h = (
        np.bincount(node, weights, minlength=nodes) for weights in (g, h)
    )
    values: Floats = -total_g / np.maximum(total_h + l2, 1e-12)
    return values


def reached(
    party: Whole,
    split: Whole,
    left: Whole,
    right: Whole,
    roots: int,
    directions: Sequence[Flags],
) -> NDArray[np.int64]:
    """The leaf of each row in each tree, [rows, roots], from parties' directions,
    [rows, splits]: true is left."""
    rows = len(directions[0])
    start = np.concatenate([[0], np.cumsum([flags.shape[1] for flags in directions])])
    goes_left = np.concatenate(
        [*directions, np.zeros((rows, 1), dtype=np.bool_)], axis=1
    )
    column = np.where(party >= 0, start[party] + split, goes_left.shape[1] - 1)
    node = np.tile(np.arange(roots), (rows, 1))
    every = np.arange(rows)[:, None]
    while True:
        inner = party[node] >= 0
        if not inner.any():
            return node
        going = np.where(goes_left[every, column[node]], left[node], right[node])
        node = np.where(inner, going, node)
