"""Bins, histograms, splits and leaves of boosted trees: plain maths, in which no party and no message occurs.

A party's columns become bins once, by quantiles of the training rows; a gap (NaN) has a bin of its own, the last. A
candidate is a way to part rows by one column: bins up to `last` go left, and gaps with them or not. What is computed
for a node are the sums of gradients and Hessians of those of its rows that a candidate would send left.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Whole = NDArray[np.int64]
Flags = NDArray[np.bool_]
NOT_OFFERED = -1.0
"""In place of a sum of Hessians, which is never negative: this candidate is not offered in this node."""


@dataclass(frozen=True, eq=False)
class Candidates:
    """Ways to part rows, each with a column, the last bin that goes left, and whether gaps go left."""

    column: Whole
    last: Whole
    gaps_left: Flags

    def __len__(self) -> int:
        return len(self.column)

    def __getitem__(self, order: Whole | Flags) -> Candidates:
        return Candidates(self.column[order], self.last[order], self.gaps_left[order])

    def left_bins(self, width: int) -> Flags:
        """Which bins each candidate sends left, [candidates, width]; gaps are the last one."""
        found: Flags = np.arange(width)[None, :] <= self.last[:, None]
        found[:, -1] = self.gaps_left
        return found


@dataclass(frozen=True, eq=False)
class Binning:
    """Where the bins of each column end: a value up to edges[b] is in bin b, or before it."""

    edges: tuple[Floats, ...]
    has_gaps: Flags
    gap: int  # the number of the bin for gaps, in every column

    @classmethod
    def of(cls, values: NDArray[np.float32], bins: int) -> Binning:
        """From training rows, [rows, columns] with NaN for gaps: the middle between different values where these are
        few, else quantiles; as scikit-learn's histogram boosting has them."""
        edges = tuple(_edges(column[~np.isnan(column)], bins) for column in values.T)
        return cls(edges, np.asarray(np.isnan(values).any(0)), bins)

    def bins(self, values: NDArray[np.float32]) -> NDArray[np.uint8]:
        """[rows, columns] values -> [columns, rows] bins."""
        made = np.empty(values.shape[::-1], dtype=np.uint8)
        for at, edges in enumerate(self.edges):
            column = values[:, at].astype(np.float64)
            made[at] = np.where(np.isnan(column), self.gap, np.searchsorted(edges, column, side="left"))
        return made

    def candidates(self) -> Candidates:
        found: list[tuple[int, int, bool]] = []
        for column, edges in enumerate(self.edges):
            found += [(column, last, False) for last in range(len(edges))]
            if self.has_gaps[column]:
                found += [(column, last, True) for last in range(len(edges))]
                found.append((column, len(edges), False))  # whatever is known goes left
        made = np.array(found, dtype=np.int64).reshape(-1, 3)
        return Candidates(made[:, 0], made[:, 1], made[:, 2].astype(np.bool_))

    def threshold(self, column: int, last: int) -> float:
        """What goes left is not above it."""
        edges = self.edges[column]
        return float(edges[last]) if last < len(edges) else float("inf")


def _edges(column: NDArray[np.float32], bins: int) -> Floats:
    values = np.sort(column)
    different = values[np.flatnonzero(np.diff(values, prepend=np.nan) != 0)].astype(np.float64)
    if len(different) <= bins:
        return (different[:-1] + different[1:]) / 2
    at = np.linspace(0, 1, bins + 1)[1:-1] * (len(values) - 1)
    below, above = (values[whole(at).astype(np.int64)].astype(np.float64) for whole in (np.floor, np.ceil))
    return np.unique((below + above) / 2)


def counted(cells: NDArray[np.unsignedinteger], nodes: int, width: int) -> Whole:
    """Rows in each node and bin, [nodes, columns, width], of [columns, rows] cells: node times width, and bin."""
    made = np.empty((len(cells), nodes * width), dtype=np.int64)
    for at, column in enumerate(cells):
        made[at] = np.bincount(column, minlength=nodes * width)
    return made.reshape(len(cells), nodes, width).transpose(1, 0, 2)


def summed(cells: NDArray[np.unsignedinteger], weights: Floats, nodes: int, width: int) -> Floats:
    """Sums over the rows in each node and bin, [nodes, columns, width]."""
    made = np.empty((len(cells), nodes * width))
    for at, column in enumerate(cells):
        made[at] = np.bincount(column, weights, minlength=nodes * width)
    return made.reshape(len(cells), nodes, width).transpose(1, 0, 2)


def of_candidates(histogram: Floats, candidates: Candidates) -> Floats:
    """The sums of what goes left, [nodes, candidates], of [nodes, columns, width] sums by bin."""
    found: Floats = histogram.cumsum(axis=2)[:, candidates.column, candidates.last]
    if candidates.gaps_left.any():
        found += np.where(candidates.gaps_left, histogram[:, candidates.column, -1], 0.0)
    return found


def offered(counts: Whole, candidates: Candidates, before: Flags | None, least: int) -> Flags:
    """Which candidates may be told about, [pairs, candidates], so that no sum is of fewer than `least` rows.

    `counts` are rows in bins, [siblings, pairs, columns, width]. A receiver can subtract what it is told about one
    candidate from another's, and a child's sums from its parent's, so bins are put together until each group has
    enough rows, or none, in both siblings; and what was not told about the parent is not told about them (`before`).
    """

    bins, gaps = counts[..., :-1], counts[..., -1]
    allowed = np.ones(bins.shape[1:], dtype=np.bool_)
    if before is not None:
        allowed[:] = False
        plain = ~candidates.gaps_left
        allowed[:, candidates.column[plain], candidates.last[plain]] = before[:, plain]
    apart = _enough(gaps, least) & gaps.any(0)  # gaps are a group of their own
    up_to = bins.cumsum(-1)
    some = (up_to[..., -1:] > up_to).any(0) | apart[..., None]  # something is left for the other side
    new = np.where(allowed, up_to.sum(0), 0)
    new[..., 1:] = np.maximum.accumulate(new, axis=-1)[..., :-1]
    new[..., 0] = 0
    ends = allowed & some & (up_to.sum(0) > new)  # right where no bin has too few rows
    few = ~_enough(counts, least).all(-1)
    if few.any():
        ends[few] = _ends(bins[:, few], np.where(apart, 0, gaps)[:, few], apart[few], allowed[few], least)
    found: Flags = ends[:, candidates.column, candidates.last] & (~candidates.gaps_left | apart[:, candidates.column])
    return found if before is None else np.logical_and(found, before)


def _ends(bins: Whole, gaps: Whole, apart: Flags, allowed: Flags, least: int) -> Flags:
    """Where groups of bins end, [n, bins], of [siblings, n, bins] counts; gaps that are no group are the last one's."""
    right = (bins.sum(-1) + gaps)[..., None] - bins.cumsum(-1)
    may_end = allowed & _enough(right, least) & (right.any(0) | apart[:, None])
    group, ends = np.zeros_like(gaps), np.zeros_like(allowed)
    for last in range(bins.shape[-1]):
        group = group + bins[..., last]
        ends[:, last] = whole = may_end[:, last] & _enough(group, least) & group.any(0)
        group[:, whole] = 0
    return ends


def _enough(rows: Whole, least: int) -> Flags:
    """None or enough, of all siblings."""
    found: Flags = ((rows == 0) | (rows >= least)).all(0)
    return found


class Best(NamedTuple):
    """Of one node: whose candidate gains most, and how much; party -1 where none gains anything. Rows that the party
    lacks go left or right, all of them."""

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
    """Of each node the best split: sums [nodes, candidates, 2] of what goes left, by party, and totals [nodes, 2].
    Where a party lacks rows, `lacked` has what these sum up to, [nodes, 2], and they are tried on either side; that a
    row is held at all parts no rows.

    gain = 1/2 (GL^2/(HL + l2) + GR^2/(HR + l2) - G^2/(H + l2)) - min_gain
    """
    whole = _quality(totals[:, 0], totals[:, 1], l2)
    found = [Best(0.0, -1, -1)] * len(totals)
    for party, left in enumerate(sums):
        if not left.shape[1]:
            continue
        told, sides = left[..., 1] >= 0, {False: left}
        if lacked is not None and party in lacked:
            sides[True] = left + lacked[party][:, None, :]
            held = (totals - lacked[party])[:, 1:]
            told &= np.minimum(left[..., 1], held - left[..., 1]) > 1e-9 * (1 + held)  # both sides have rows it holds
        for absent_left, goes in sides.items():
            right = totals[:, None, :] - goes
            gain = _quality(goes[..., 0], goes[..., 1], l2) + _quality(right[..., 0], right[..., 1], l2)
            heavy = np.minimum(goes[..., 1], right[..., 1]) >= max(min_child_weight, 0.0)
            gain = np.where(heavy & told, (gain - whole[:, None]) / 2 - min_gain, -np.inf)
            best = gain.argmax(1)
            for node, at in enumerate(best.tolist()):
                little = 1e-10 * (1 + whole[node])  # what rounding alone may seem to gain
                if gain[node, at] > max(found[node].gain, little):
                    found[node] = Best(float(gain[node, at]), party, at, absent_left)
    return found


def _quality(g: Floats, h: Floats, l2: float) -> Floats:
    return np.square(g) / np.maximum(h + l2, 1e-12)


def leaf_values(node: Whole, g: Floats, h: Floats, nodes: int, l2: float) -> Floats:
    """-G/(H + l2) of the rows in each node, [nodes]; 0 where there are none."""
    total_g, total_h = (np.bincount(node, weights, minlength=nodes) for weights in (g, h))
    values: Floats = -total_g / np.maximum(total_h + l2, 1e-12)
    return values


def reached(
    party: Whole, split: Whole, left: Whole, right: Whole, roots: int, directions: Sequence[Flags]
) -> NDArray[np.int64]:
    """The leaf of each row in each tree, [rows, roots]: `party` is -1 at leaves, `split` a column of that party's
    directions, [rows, splits] with true for left."""
    rows = len(directions[0])
    start = np.concatenate([[0], np.cumsum([one.shape[1] for one in directions])])
    goes_left = np.concatenate([*directions, np.zeros((rows, 1), dtype=np.bool_)], axis=1)
    column = np.where(party >= 0, start[party] + split, goes_left.shape[1] - 1)
    node, every = np.tile(np.arange(roots), (rows, 1)), np.arange(rows)[:, None]
    while True:
        inner = party[node] >= 0
        if not inner.any():
            return node
        going = np.where(goes_left[every, column[node]], left[node], right[node])
        node = np.where(inner, going, node)
