"""Fagin's algorithm over many queries at once: which rows can be among the nearest, from sorted lists alone.

Fagin, Lotem and Naor (2003): read all lists in step, row by row, until k instances were seen in every list; whatever is
nearer than the k-th of these was seen somewhere. VF-MINE reads one list per participant, of pseudo ids in the order of
its partial distances, and stops when k instances with the query's own label were seen in every list. The reader does
not know labels: it says which instances it saw in every list, and the leader, who does, says at which of them to stop.

Lists come in pages. That costs a few ranks too many, but no candidate: those are cut at the exact depth.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Ids = NDArray[np.int32]


class Runs(NamedTuple):
    """Lists of different lengths, one after the other."""

    ids: Ids
    counts: Ids


class Fagin:
    """The tables of one scan: how often, how early and how late each instance was seen, per query."""

    def __init__(self, queries: int, rows: int, lists: int) -> None:
        self.lists, self.depth = lists, 0
        self._seen = np.zeros((queries, rows), dtype=np.int16)
        self._first = np.full((queries, rows), np.iinfo(np.int32).max, dtype=np.int32)
        self._last = np.zeros((queries, rows), dtype=np.int32)
        self._complete: list[Ids] = [np.empty(0, dtype=np.int32)] * queries  # depths, in order

    def read(self, queries: NDArray[np.int64], pages: Sequence[Ids]) -> Runs:
        """Read the next page of every list, [queries, page] each, for these queries. Returns the instances that are now
        seen in all lists, in the order in which they became so."""
        start, at = self.depth, queries[:, None]
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
        for query, new_depths in zip(queries.tolist(), np.split(depths[order], np.cumsum(counts)[:-1]), strict=True):
            self._complete[query] = np.concatenate([self._complete[query], new_depths])
        return Runs(ids[order].astype(np.int32), counts.astype(np.int32))

    def _completed(self, at: NDArray[np.int64], ids: Ids, position: Ids) -> tuple[NDArray[np.int64], Ids, Ids]:
        """The instances that a page completes, each once: the position of the query, the pseudo id, and the depth."""
        row, column = np.nonzero((self._seen[at, ids] == self.lists) & (self._last[at, ids] == position))
        completed = ids[row, column]
        self._seen[at[row, 0], completed] += 1
        return row, completed, position[column]

    def depths(self, stops: NDArray[np.int64]) -> Ids:
        """How deep each query was read when its `stop`-th instance (from 0) was seen in all lists."""
        return np.array([c[stop] for c, stop in zip(self._complete, stops.tolist(), strict=True)], dtype=np.int32)

    def candidates(self, depths: Ids, queries: NDArray[np.integer[Any]]) -> Runs:
        """All instances that any list has up to each query's depth, in the order in which pseudo ids follow the query's
        own. That order tells nothing, and ties are broken by it everywhere."""
        rows = self._first.shape[1]
        query, ids = np.divmod(np.flatnonzero(self._first <= depths[:, None]), rows)
        ids = ids[np.lexsort(((ids - queries[query]) % rows, query))]
        counts = np.bincount(query, minlength=len(depths))
        return Runs(ids.astype(np.int32), counts.astype(np.int32))


def first_page(rows: int, lists: int, k: int) -> int:
    """A guess, low on purpose: a quarter of the depth at which unrelated lists have k instances in common."""
    return int(min(max(16.0, rows * (k / rows) ** (1 / lists) / 4), rows - 1))
