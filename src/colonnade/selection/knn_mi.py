"""Mutual information between columns and labels, from nearest neighbours, in nats.

Ross (PLoS ONE 2014) for classes, over queries q among the N rows:

    I = psi(N) - <psi(N_q)> + psi(k) - <psi(m_q)>

N_q rows have q's label; m_q rows, q among them, are nearer to q than its k-th nearest neighbour with that label. It
depends on the distances only through their order: the k-th row of q's own label, in the order of distance, is the
m_q-th of all. So parties need to tell only ranks. A class with fewer than k other rows has all of them as neighbours,
and a row that is alone in its class is no query. Rows at the same distance are taken in the order in which they follow
the query, the first row after the last; parties shuffle rows before. scikit-learn breaks ties by a little noise.

Kraskov, Stögbauer and Grassberger (Physical Review E 2004), the first estimator, for numbers:

    I = psi(N) + psi(k) - <psi(n_x + 1) + psi(n_y + 1)>

n_x other rows are nearer in the columns, n_y in the target, than the k-th neighbour in the larger of the two. This one
compares distances, so ranks do not suffice for it. Where more than k rows equal a query in both, all of them are its
neighbours, and n_x and n_y count the equal rows (Gao, Kannan, Oh and Viswanath, NeurIPS 2017).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from colonnade.errors import DataError

Numbers = NDArray[np.float64]
Whole = NDArray[np.int64]


def ross_terms(rows: int, same: Whole, neighbours: Whole, ranks: Whole) -> Numbers:
    """Terms whose mean over the queries is the estimate, from N, and from N_q, k and m_q of each query."""
    from scipy.special import digamma

    terms: Numbers = digamma(rows) - digamma(same) + digamma(neighbours) - digamma(ranks)
    return terms


def kraskov_terms(x: Numbers, y: Numbers, k: int, tolerance: float = 0.0) -> Numbers:
    """Terms whose mean over the queries is the estimate, from squared distances to all other rows, [queries, N - 1], in
    the columns and in the target. Distances are equal that differ by no more than the tolerance, or by float errors."""
    from scipy.special import digamma

    rows, joint = x.shape[1] + 1, np.maximum(x, y)
    k = min(k, rows - 1)
    radius = np.partition(joint, k - 1, axis=1)[:, k - 1, None]
    equal, nearer = radius <= tolerance, (1 - 1e-9) * radius - tolerance
    near = np.where(equal[:, 0], (joint <= tolerance).sum(1), k)
    inside = (np.where(equal, d <= tolerance, d < nearer).sum(1) for d in (x, y))
    terms: Numbers = digamma(rows) + digamma(near) - sum(digamma(1 + count) for count in inside)
    return terms


def counts(labels: Whole, k: int) -> tuple[Whole, Whole]:
    """N_q and k of each row, if it were a query."""
    _, class_of_row, sizes = np.unique(labels, return_inverse=True, return_counts=True)
    same = sizes[class_of_row].astype(np.int64)
    return same, np.minimum(k, same - 1)


def possible_queries(labels: Whole) -> Whole:
    """The rows that are not alone in their class."""
    queries: Whole = np.flatnonzero(counts(labels, 1)[1] > 0)
    if not len(queries):
        raise DataError(
            f"Neighbours of a label need two rows that have it, and all {len(labels)} labels differ. "
            "Give classes, or cut numbers into bins."
        )
    return queries


def kth(same: NDArray[np.bool_], k: Whole) -> Whole:
    """Along the last axis, the position (from 1) of the k-th True; 0 where there are fewer."""
    reached = np.cumsum(same, axis=-1, dtype=np.int32) >= k[..., None]
    return np.where(reached[..., -1], reached.argmax(-1) + 1, 0).astype(np.int64)


def squared_distances(columns: Numbers, queries: Whole) -> Numbers:
    """[queries, rows - 1], to the other rows, in the order in which they follow the query. Column by column, so that
    equal rows are equally far to the last bit."""
    rows = len(columns)
    total = np.zeros((len(queries), rows - 1))
    for column in columns.T:
        twice = np.concatenate([column, column])
        difference = np.lib.stride_tricks.sliding_window_view(twice, rows - 1)[queries + 1] - column[queries, None]
        total += difference * difference
    return total


def following(queries: Whole, places: NDArray[np.integer[Any]], rows: int) -> Whole:
    """The row at a place (from 0) after each query."""
    return (queries[:, None] + 1 + places) % rows


def ranks_by(distances: Numbers, labels: Whole, queries: Whole, neighbours: Whole, tolerance: float) -> Whole:
    """m_q of each query, from its distances to all other rows, [queries, N - 1]."""
    order = following(queries, ordered(distances, tolerance), len(labels))
    return kth(labels[order] == labels[queries, None], neighbours)


def ordered(distances: Numbers, tolerance: float = 0.0) -> Whole:
    """Each query's positions, nearest first, [queries, rows]; distances that differ by no more than the tolerance count
    as equal, and are taken in the order given."""
    order = np.argsort(distances, axis=1)  # twice as fast as a stable sort, which only rows with ties need
    ascending = np.take_along_axis(distances, order, 1)
    apart = (ascending[:, 1:] > ascending[:, :-1] + tolerance) | np.isinf(ascending[:, 1:])
    tied = np.flatnonzero(~apart.all(1))
    if len(tied):
        ranks, places = np.zeros((len(tied), order.shape[1]), dtype=np.int32), order[tied]
        np.put_along_axis(ranks, places[:, 1:], np.cumsum(apart[tied], axis=1, dtype=np.int32), 1)
        order[tied] = np.argsort(ranks, axis=1, kind="stable")
    return order
