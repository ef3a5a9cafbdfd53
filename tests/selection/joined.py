"""Both estimates for joined columns, which a selection computes without joining them."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from colonnade.selection.neighbours import (
    Numbers,
    Whole,
    counts,
    kraskov_terms,
    possible_queries,
    ranks_by,
    ross_terms,
    squared_distances,
)

AT_ONCE = 1 << 22
"""Distances in memory at a time."""


def ross(
    columns: Numbers, labels: Whole, *, k: int = 3, queries: Whole | None = None
) -> float:
    """Ross's estimate for columns [N, F]; `queries` are all rows, unless given."""
    same, neighbours = counts(labels, k)
    asked = possible_queries(labels) if queries is None else queries
    ranks = [
        ranks_by(
            squared_distances(columns, part),
            labels,
            part,
            neighbours[part],
            1e-12 * columns.shape[1],
        )
        for part in _parts(asked, len(columns))
    ]
    return float(
        np.mean(
            ross_terms(
                len(columns), same[asked], neighbours[asked], np.concatenate(ranks)
            )
        )
    )


def kraskov(
    columns: Numbers, target: Numbers, *, k: int = 3, queries: Whole | None = None
) -> float:
    """Kraskov's estimate for columns [N, F] and a number for each row. Distances are
    compared, so scale both alike: a selection gives columns and target the standard
    deviation 1, and divides the columns by the root of F."""
    rows = len(columns)
    terms = [
        kraskov_terms(
            squared_distances(columns, part),
            squared_distances(target[:, None], part),
            k,
        )
        for part in _parts(np.arange(rows) if queries is None else queries, rows)
    ]
    return float(np.mean(np.concatenate(terms)))


def _parts(queries: Whole, rows: int) -> Iterator[Whole]:
    size = max(1, AT_ONCE // rows)
    for start in range(0, len(queries), size):
        yield queries[start : start + size]
