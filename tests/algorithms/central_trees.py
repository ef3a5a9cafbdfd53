"""Gradient boosting on joined columns, row by row and candidate by candidate: the law
for `boosted_trees`.

It shares no code with the package: thresholds are numbers, a node is a set of rows, and
every sum is formed anew.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


@dataclass
class Node:
    rows: NDArray[np.int64]
    depth: int
    column: int = -1
    threshold: float = 0.0
    gaps_left: bool = False
    children: list[Node] = field(default_factory=list)
    value: float = 0.0

    def of(self, row: Floats) -> Node:
        if not self.children:
            return self
        value = row[self.column]
        left = self.gaps_left if math.isnan(value) else value <= self.threshold
        return self.children[0 if left else 1].of(row)


def borders(column: Floats, bins: int) -> list[float]:
    known = sorted({value for value in column.tolist() if not math.isnan(value)})
    if len(known) <= bins:
        return [(a + b) / 2 for a, b in pairwise(known)]
    every = np.sort(column[~np.isnan(column)])
    found = []
    for number in range(1, bins):
        at = (len(every) - 1) * number / bins
        found.append((every[math.floor(at)] + every[math.ceil(at)]) / 2)
    return sorted(set(found))


def grown(
    x: Floats,
    g: Floats,
    h: Floats,
    edges: Sequence[Sequence[float]],
    *,
    depth: int,
    l2: float,
    rate: float,
    by_gaps: bool = True,
) -> Node:
    """`by_gaps`: rows may be parted by whether there is a value at all."""
    root = Node(np.arange(len(x)), 0)
    waiting = [root]
    while waiting:
        node = waiting.pop(0)
        total = g[node.rows].sum(), h[node.rows].sum()
        node.value = -rate * total[0] / (total[1] + l2)
        best = 1e-9
        if node.depth == depth:
            continue
        for column, ends in enumerate(edges):
            values = x[node.rows, column]
            ways = [
                (end, gaps)
                for end in [*ends, *([math.inf] if by_gaps else [])]
                for gaps in (False, True)
            ]
            for end, gaps in ways:
                left = np.where(np.isnan(values), gaps, values <= end).astype(bool)
                counted = left if by_gaps else left[~np.isnan(values)]
                if not 0 < counted.sum() < len(counted):
                    continue
                parts = [
                    (g[node.rows[side]].sum(), h[node.rows[side]].sum())
                    for side in (left, ~left)
                ]
                gain = sum(a * a / (b + l2) for a, b in parts) - total[0] ** 2 / (
                    total[1] + l2
                )
                if gain / 2 > best * (1 + 1e-9):
                    best = gain / 2
                    node.column = column
                    node.threshold = end
                    node.gaps_left = gaps
                    node.children = [
                        Node(node.rows[side], node.depth + 1) for side in (left, ~left)
                    ]
        waiting += node.children
    return root


def boosted(
    x: Floats,
    y: NDArray[np.int64],
    rounds: int,
    *,
    bins: int,
    depth: int,
    l2: float,
    rate: float,
    by_gaps: bool = True,
) -> tuple[list[Node], Floats]:
    """Trees for two classes, and the training rows' scores."""
    edges = [borders(column, bins) for column in x.T]
    scores = np.full(len(x), math.log(y.mean() / (1 - y.mean())))
    trees = []
    for _ in range(rounds):
        p = 1 / (1 + np.exp(-scores))
        tree = grown(
            x, p - y, p * (1 - p), edges, depth=depth, l2=l2, rate=rate, by_gaps=by_gaps
        )
        scores = scores + np.array([tree.of(row).value for row in x])
        trees.append(tree)
    return trees, scores
