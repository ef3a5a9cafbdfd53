"""What a participant computes from its own columns: sub-rankings, and partial distances of candidates."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from colonnade.selection.fagin import Ids
from colonnade.selection.knn_mi import Numbers, Whole, following, ordered, squared_distances


def shuffled(rows: int, seed: int) -> Whole:
    """The row behind each pseudo id, the same for all who know the seed. Torch's generator would use only 32 bits of
    the seed, which a server could try one by one."""
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
    """Columns [N, F] in the order of pseudo ids. Partial distances are rounded to multiples of reach / 2^36. So those
    that differ by float errors alone become equal and sums are exact: ties are ties for everybody."""

    def __init__(self, values: Numbers) -> None:
        self.values, self.rows = np.ascontiguousarray(values), len(values)
        self._steps = STEPS / self.reach()
        self._order = np.argsort(values[:, 0], kind="stable") if values.shape[1] == 1 else None

    def reach(self) -> float:
        """The power of two above every partial distance."""
        widest = float(((self.values.max(0) - self.values.min(0)) ** 2).sum())
        return 2.0 ** math.ceil(math.log2(max(widest, 1e-30)))

    def ranking(self, queries: Whole, start: int, stop: int) -> Ids:
        """The pseudo ids from the start-th nearest to the stop-th, [queries, stop - start], without the query's own."""
        on_a_line = self._order is not None and 4 * stop < self.rows
        nearest = self._nearest_on_a_line(queries, stop) if on_a_line else self._nearest(queries, stop)
        return nearest[:, start:stop].astype(np.int32)

    def distances(self, queries: Whole, ids: NDArray[np.int32] | None, sizes: Ids) -> Numbers:
        """Partial distances of each query's candidates, one query after the other; without ids, of all other rows."""
        if ids is None:
            return self._rounded(squared_distances(self.values, queries)).reshape(-1)
        asking, total = np.repeat(queries, sizes), np.zeros(len(ids))
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
        cut = (distances <= values.max(1, keepdims=True)).sum(1) > stop  # ties, some of which were left out
        if cut.any():
            nearest[cut] = np.argsort(distances[cut], axis=1, kind="stable")[:, :stop]
        return following(queries, nearest, self.rows)

    def _nearest_on_a_line(self, queries: Whole, stop: int) -> Whole:
        """As `_nearest`, for one column: near values lie side by side once they are sorted."""
        assert self._order is not None
        column = self.values[:, 0]
        place = np.searchsorted(column, column[queries], sorter=self._order)
        left = np.clip(place - stop, 0, self.rows - 2 * stop - 1)
        window = self._order[left[:, None] + np.arange(2 * stop + 1)]
        difference = column[queries, None] - column[window]
        distances = np.where(window == queries[:, None], np.inf, self._rounded(difference * difference))
        order = np.lexsort(((window - queries[:, None]) % self.rows, distances))[:, :stop]
        farthest = np.take_along_axis(distances, order[:, -1:], 1)[:, 0]
        nearest: Whole = np.take_along_axis(window, order, 1)
        edges = np.where(np.isfinite(distances[:, [0, -1]]), distances[:, [0, -1]], 0.0)
        inner = np.stack([left > 0, left + 2 * stop + 1 < self.rows], axis=1)
        unsure = (inner & (edges <= farthest[:, None])).any(1)  # rows outside the window may be as near
        if unsure.any():
            nearest[unsure] = self._nearest(queries[unsure], stop)
        return nearest
