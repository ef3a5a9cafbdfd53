"""Mutual information between columns and labels, from nearest neighbours, in nats.

Ross (PLoS ONE 2014) for classes, over queries q among the N rows:

    I = psi(N) - <psi(N_q)> + psi(k) - <psi(m_q)>

N_q rows have q's label; m_q rows, q among them, are nearer to q than its k-th nearest
neighbour with that label. It depends on the distances only through their order: the
k-th row of q's own label, in the order of distance, is the m_q-th of all. So parties
need to tell only ranks. A class with fewer than k other rows has all of them as
neighbours, and a row that is alone in its class is no query. Rows at the same distance
are taken in the order in which they follow the query, the first row after the last;
parties shuffle rows before. scikit-learn breaks ties by a little noise.

Kraskov, Stögbauer and Grassberger (Physical Review E 2004), the first estimator, for
numbers:

    I = psi(N) + psi(k) - <psi(n_x + 1) + psi(n_y + 1)>

n_x other rows are nearer in the columns, n_y in the target, than the k-th neighbour in
the larger of the two. This one compares distances, so ranks do not suffice for it.
Where more than k rows equal a query in both, all of them are its neighbours, and n_x
and n_y count the equal rows (Gao, Kannan, Oh and Viswanath, NeurIPS 2017).

Fagin's algorithm over many queries at once: which rows can be among the nearest, from
sorted lists alone.

Fagin, Lotem and Naor (2003): read all lists in step, row by row, until k instances were
seen in every list; whatever is nearer than the k-th of these was seen somewhere.
VF-MINE reads one list per participant, of pseudo ids in the order of its partial
distances, and stops when k instances with the query's own label were seen in every
list. The reader does not know labels: it says which instances it saw in every list, and
the leader, who does, says at which of them to stop.

Lists come in pages. That costs a few ranks too many, but no candidate: those are cut at
the exact depth.

What a participant computes from its own columns: sub-rankings, and partial distances of
candidates.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from colonnade.errors import DataError
from colonnade.first_use import special

Numbers = NDArray[np.float64]
Whole = NDArray[np.int64]


def ross_terms(rows: int, same: Whole, neighbours: Whole, ranks: Whole) -> Numbers:
    """Terms whose mean over the queries is the estimate, from N, and from N_q, k and
    m_q of each query."""
    psi = special.digamma
    terms: Numbers = psi(rows) - psi(same) + psi(neighbours) - psi(ranks)
    return terms


def kraskov_terms(x: Numbers, y: Numbers, k: int, tolerance: float = 0.0) -> Numbers:
    """Terms whose mean over the queries is the estimate, from squared distances to all
    other rows, [queries, N - 1], in the columns and in the target. Distances are equal
    that differ by no more than the tolerance, or by float errors."""
    rows = x.shape[1] + 1
    joint = np.maximum(x, y)
    k = min(k, rows - 1)
    radius = np.partition(joint, k - 1, axis=1)[:, k - 1, None]
    equal = radius <= tolerance
    nearer = (1 - 1e-9) * radius - tolerance
    near = np.where(equal[:, 0], (joint <= tolerance).sum(1), k)
    inside = (np.where(equal, d <= tolerance, d < nearer).sum(1) for d in (x, y))
    terms: Numbers = (
        special.digamma(rows)
        + special.digamma(near)
        - sum(special.digamma(1 + count) for count in inside)
    )
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
            f"Neighbours of a label need two rows that have it, and all {len(labels)}"
            " labels differ. Give classes, or cut numbers into bins."
        )
    return queries


def kth(same: NDArray[np.bool_], k: Whole) -> Whole:
    """Along the last axis, the position (from 1) of the k-th True; 0 where there are
    fewer."""
    reached = np.cumsum(same, axis=-1, dtype=np.int32) >= k[..., None]
    return np.where(reached[..., -1], reached.argmax(-1) + 1, 0).astype(np.int64)


def squared_distances(columns: Numbers, queries: Whole) -> Numbers:
    """[queries, rows - 1], to the other rows, in the order in which they follow the
    query. Column by column, so that equal rows are equally far to the last bit."""
    rows = len(columns)
    total = np.zeros((len(queries), rows - 1))
    for column in columns.T:
        twice = np.concatenate([column, column])
        difference = (
            np.lib.stride_tricks.sliding_window_view(twice, rows - 1)[queries + 1]
            - column[queries, None]
        )
        total += difference * difference
    return total


def following(queries: Whole, places: NDArray[np.integer[Any]], rows: int) -> Whole:
    """The row at a place (from 0) after each query."""
    return (queries[:, None] + 1 + places) % rows


def ranks_by(
    distances: Numbers,
    labels: Whole,
    queries: Whole,
    neighbours: Whole,
    tolerance: float,
) -> Whole:
    """m_q of each query, from its distances to all other rows, [queries, N - 1]."""
    order = following(queries, ordered(distances, tolerance), len(labels))
    return kth(labels[order] == labels[queries, None], neighbours)


def ordered(distances: Numbers, tolerance: float = 0.0) -> Whole:
    """Each query's positions, nearest first, [queries, rows]; distances that differ by
    no more than the tolerance count as equal, and are taken in the order given."""
    # twice as fast as a stable sort, which only rows with ties need
    order = np.argsort(distances, axis=1)
    ascending = np.take_along_axis(distances, order, 1)
    apart = (ascending[:, 1:] > ascending[:, :-1] + tolerance) | np.isinf(
        ascending[:, 1:]
    )
    tied = np.flatnonzero(~apart.all(1))
    if len(tied):
        ranks = np.zeros((len(tied), order.shape[1]), dtype=np.int32)
        places = order[tied]
        np.put_along_axis(
            ranks, places[:, 1:], np.cumsum(apart[tied], axis=1, dtype=np.int32), 1
        )
        order[tied] = np.argsort(ranks, axis=1, kind="stable")
    return order


Ids = NDArray[np.int32]


class Runs(NamedTuple):
    """Lists of different lengths, one after the other."""

    ids: Ids
    counts: Ids


class Fagin:
    """The tables of one scan: how often, how early and how late each instance was seen,
    per query."""

    def __init__(self, queries: int, rows: int, lists: int) -> None:
        self.lists = lists
        self.depth = 0
        self._seen = np.zeros((queries, rows), dtype=np.int16)
        self._first = np.full((queries, rows), np.iinfo(np.int32).max, dtype=np.int32)
        self._last = np.zeros((queries, rows), dtype=np.int32)
        # depths, in order
        self._complete: list[Ids] = [np.empty(0, dtype=np.int32)] * queries

    def read(self, queries: NDArray[np.int64], pages: Sequence[Ids]) -> Runs:
        """Read the next page of every list, [queries, page] each, for these queries.
        Returns the instances that are now seen in all lists, in the order in which they
        became so."""
        start = self.depth
        at = queries[:, None]
        position = np.arange(start + 1, start + pages[0].shape[1] + 1, dtype=np.int32)
        for ids in pages:
            self._seen[at, ids] += 1
            self._first[at, ids] = np.minimum(self._first[at, ids], position)
            self._last[at, ids] = np.maximum(self._last[at, ids], position)
        self.depth += len(position)
        new = [self._completed(at, ids, position) for ids in pages]
        which, ids, depths = (np.concatenate(part) for part in zip(*new, strict=True))
        order = np.lexsort((ids, depths, which))
        counts = np.bincount(which, minlength=len(queries))
        for query, new_depths in zip(
            queries.tolist(),
            np.split(depths[order], np.cumsum(counts)[:-1]),
            strict=True,
        ):
            self._complete[query] = np.concatenate([self._complete[query], new_depths])
        return Runs(ids[order].astype(np.int32), counts.astype(np.int32))

    def _completed(
        self, at: NDArray[np.int64], ids: Ids, position: Ids
    ) -> tuple[NDArray[np.int64], Ids, Ids]:
        """The instances that a page completes, each once: the position of the query,
        the pseudo id, and the depth."""
        row, column = np.nonzero(
            (self._seen[at, ids] == self.lists) & (self._last[at, ids] == position)
        )
        completed = ids[row, column]
        self._seen[at[row, 0], completed] += 1
        return row, completed, position[column]

    def depths(self, stops: NDArray[np.int64]) -> Ids:
        """How deep each query was read when its `stop`-th instance (from 0) was seen in
        all lists."""
        return np.array(
            [c[stop] for c, stop in zip(self._complete, stops.tolist(), strict=True)],
            dtype=np.int32,
        )

    def candidates(self, depths: Ids, queries: NDArray[np.integer[Any]]) -> Runs:
        """All instances that any list has up to each query's depth, in the order in
        which pseudo ids follow the query's own. That order tells nothing, and ties are
        broken by it everywhere."""
        rows = self._first.shape[1]
        query, ids = np.divmod(np.flatnonzero(self._first <= depths[:, None]), rows)
        ids = ids[np.lexsort(((ids - queries[query]) % rows, query))]
        return Runs(
            ids.astype(np.int32),
            np.bincount(query, minlength=len(depths)).astype(np.int32),
        )


def first_page(rows: int, lists: int, k: int) -> int:
    """A guess, low on purpose: a quarter of the depth at which unrelated lists have k
    instances in common."""
    return int(min(max(16.0, rows * (k / rows) ** (1 / lists) / 4), rows - 1))


def shuffled(rows: int, seed: int) -> Whole:
    """The row behind each pseudo id, the same for all who know the seed. Torch's
    generator would use only 32 bits of the seed, which a server could try one by one.
    """
    order: Whole = np.random.Generator(np.random.Philox(key=seed)).permutation(rows)
    return order


def standardised(columns: Numbers) -> Numbers:
    """Every column with mean 0 and standard deviation 1; a constant one becomes 0."""
    centred = columns - columns.mean(0)
    spread = centred.std(0)
    varies = spread > 1e-12 * np.abs(columns).max(0)
    scaled: Numbers = np.where(varies, centred / np.where(varies, spread, 1.0), 0.0)
    return scaled


STEPS = 2.0**36


class Columns:
    """Columns [N, F] in the order of pseudo ids. Partial distances are rounded to
    multiples of reach / 2^36. So those that differ by float errors alone become equal
    and sums are exact: ties are ties for everybody."""

    def __init__(self, values: Numbers) -> None:
        self.values = np.ascontiguousarray(values)
        self.rows = len(values)
        self._steps = STEPS / self.reach()
        self._order = (
            np.argsort(values[:, 0], kind="stable") if values.shape[1] == 1 else None
        )

    def reach(self) -> float:
        """The power of two above every partial distance."""
        widest = float(((self.values.max(0) - self.values.min(0)) ** 2).sum())
        return 2.0 ** math.ceil(math.log2(max(widest, 1e-30)))

    def ranking(self, queries: Whole, start: int, stop: int) -> Ids:
        """The pseudo ids from the start-th nearest to the stop-th, [queries, stop -
        start], without the query's own."""
        on_a_line = self._order is not None and 4 * stop < self.rows
        nearest = (
            self._nearest_on_a_line(queries, stop)
            if on_a_line
            else self._nearest(queries, stop)
        )
        return nearest[:, start:stop].astype(np.int32)

    def distances(
        self, queries: Whole, ids: NDArray[np.int32] | None, sizes: Ids
    ) -> Numbers:
        """Partial distances of each query's candidates, one query after the other;
        without ids, of all other rows."""
        if ids is None:
            return self._rounded(squared_distances(self.values, queries)).reshape(-1)
        asking = np.repeat(queries, sizes)
        total = np.zeros(len(ids))
        for column in self.values.T:
            difference = column[asking] - column[ids]
            total += difference * difference
        return self._rounded(total)

    def _rounded(self, distances: Numbers) -> Numbers:
        """Round values in place."""
        distances *= self._steps
        np.rint(distances, out=distances)
        distances /= self._steps
        return distances

    def _nearest(self, queries: Whole, stop: int) -> Whole:
        distances = self._rounded(squared_distances(self.values, queries))
        if 4 * stop >= self.rows:
            return following(queries, ordered(distances)[:, :stop], self.rows)
        near = np.sort(np.argpartition(distances, stop - 1, axis=1)[:, :stop], axis=1)
        values = np.take_along_axis(distances, near, 1)
        nearest = np.take_along_axis(near, ordered(values), 1)
        # ties, some of which were left out
        cut = (distances <= values.max(1, keepdims=True)).sum(1) > stop
        if cut.any():
            nearest[cut] = np.argsort(distances[cut], axis=1, kind="stable")[:, :stop]
        return following(queries, nearest, self.rows)

    def _nearest_on_a_line(self, queries: Whole, stop: int) -> Whole:
        """As `_nearest`, for one column: near values lie side by side once they are
        sorted."""
        assert self._order is not None
        column = self.values[:, 0]
        place = np.searchsorted(column, column[queries], sorter=self._order)
        left = np.clip(place - stop, 0, self.rows - 2 * stop - 1)
        window = self._order[left[:, None] + np.arange(2 * stop + 1)]
        difference = column[queries, None] - column[window]
        distances = np.where(
            window == queries[:, None], np.inf, self._rounded(difference * difference)
        )
        order = np.lexsort(((window - queries[:, None]) % self.rows, distances))[
            :, :stop
        ]
        farthest = np.take_along_axis(distances, order[:, -1:], 1)[:, 0]
        nearest: Whole = np.take_along_axis(window, order, 1)
        edges = np.where(np.isfinite(distances[:, [0, -1]]), distances[:, [0, -1]], 0.0)
        inner = np.stack([left > 0, left + 2 * stop + 1 < self.rows], axis=1)
        # rows outside the window may be as near
        unsure = (inner & (edges <= farthest[:, None])).any(1)
        if unsure.any():
            nearest[unsure] = self._nearest(queries[unsure], stop)
        return nearest
