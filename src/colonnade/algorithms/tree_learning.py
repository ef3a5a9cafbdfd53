"""What the label owner keeps while a round of trees grows: exact and rounded gradients, sums by party, and the trees.

Nodes are numbered as `tree_growing` says. The sums of the child with more rows are its parent's minus its sibling's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Generator, Tensor

from colonnade.algorithms.tree_growing import LEFT, RIGHT
from colonnade.algorithms.tree_histograms import Best, Flags, Floats, Whole, best_splits, leaf_values, reached
from colonnade.algorithms.tree_objectives import weighted_median

Table = dict[str, Tensor]
"""A round's nodes: `party` whose split it is (-1: a leaf) and that party's how-many-th of the round, the children
`left` and `right`, what a leaf adds to its tree's score (`value`), and what a split gained (`gain`)."""


@dataclass(frozen=True, eq=False)
class Rounded:
    """Gradients and Hessians of the sampled rows as whole numbers, [rows, trees], and what one of them is worth."""

    g: Floats
    h: Floats
    unit_g: Floats
    unit_h: Floats

    @classmethod
    def of(cls, g: Floats, h: Floats, bits: int, generator: Generator) -> Rounded:
        """At random to one of the two nearest, so that sums are right on average; 0 bits leave them as they are."""
        if not bits:
            return cls(g, h, np.ones(g.shape[1]), np.ones(g.shape[1]))
        units = [
            np.maximum(np.abs(values).max(0, initial=0.0), 1e-300) / levels
            for values, levels in ((g, max(1, 2 ** (bits - 1) - 1)), (h, 2**bits - 1))
        ]
        drawn = torch.rand((2, *g.shape), generator=generator, dtype=torch.float64).numpy()
        whole = [np.floor(values / unit + u) for values, unit, u in zip((g, h), units, drawn, strict=True)]
        return cls(*whole, *units)


def joined(g: Floats, h: Floats) -> Tensor:
    """g and h of each tree in turn, [rows, 2 trees]."""
    return torch.from_numpy(np.stack([g, h], axis=2).reshape(len(g), -1))


@dataclass(eq=False)
class Round:
    """A round under way."""

    rounded: Rounded
    sampled: Whole  # places in the batch of the rows that are learned from
    node: Whole  # [rows of the batch, trees]
    parties: Sequence[str]
    sums: dict[int, list[Floats]] = field(default_factory=dict)  # of nodes that may be split, by party [candidates, 2]
    tree: list[int] = field(default_factory=list)  # of every node
    party: list[int] = field(default_factory=list)
    split: list[int] = field(default_factory=list)
    left: list[int] = field(default_factory=list)
    right: list[int] = field(default_factory=list)
    gain: list[float] = field(default_factory=list)

    @classmethod
    def begin(cls, rounded: Rounded, sampled: Whole, rows: int, parties: Sequence[str]) -> Round:
        trees = rounded.g.shape[1]
        made = cls(rounded, sampled, np.tile(np.arange(trees), (rows, 1)), parties)
        for tree in range(trees):
            made._add(tree)
        return made

    @property
    def trees(self) -> int:
        return int(self.rounded.g.shape[1])

    def only_in(self, nodes: Sequence[int]) -> tuple[Floats, Floats]:
        """The rounded gradients and Hessians of the rows in each of these nodes, [rows of the batch, nodes]; 0 for all
        others, and for rows that are not learned from."""
        made = np.zeros((2, len(self.node), len(nodes)))
        for at, node in enumerate(nodes):
            inside = np.flatnonzero(self.node[self.sampled, self.tree[node]] == node)
            for part, values in zip(made, (self.rounded.g, self.rounded.h), strict=True):
                part[self.sampled[inside], at] = values[inside, self.tree[node]]
        return made[0], made[1]

    def totals(self, nodes: Sequence[int]) -> Floats:
        """G and H of the sampled rows in each node, [nodes, 2]."""
        at = {node: place for place, node in enumerate(nodes)}
        found = np.zeros((len(nodes), 2))
        for tree in {self.tree[node] for node in nodes}:
            where = self.node[self.sampled, tree]
            by_node = [
                np.bincount(where, v[:, tree], minlength=len(self.tree)) for v in (self.rounded.g, self.rounded.h)
            ]
            for node in nodes:
                if self.tree[node] == tree:
                    found[at[node]] = by_node[0][node], by_node[1][node]
        return found

    def rows_in(self, nodes: Sequence[int]) -> Whole:
        """How many sampled rows each node has."""
        return np.array([int((self.node[self.sampled, self.tree[node]] == node).sum()) for node in nodes])

    def best(self, *, leaves: int, l2: float, min_gain: float, min_child_weight: float) -> dict[int, Best]:
        """The splits of this level: of every node the best, and where there would be too many leaves, those that gain
        most."""
        nodes = sorted(self.sums)
        if not nodes:
            return {}
        units = np.array([[self.rounded.unit_g[self.tree[n]], self.rounded.unit_h[self.tree[n]]] for n in nodes])
        sums = [np.stack([self.sums[node][k] for node in nodes]) * units[:, None, :] for k in range(len(self.parties))]
        totals = self.totals(nodes) * units
        found = best_splits(sums, totals, l2=l2, min_gain=min_gain, min_child_weight=min_child_weight)
        chosen = {node: one for node, one in zip(nodes, found, strict=True) if one.party >= 0}
        for tree in range(self.trees):
            now = sum(1 for node, party in enumerate(self.party) if self.tree[node] == tree and party < 0)
            mine = sorted((n for n in chosen if self.tree[n] == tree), key=lambda n: -chosen[n].gain)
            for node in mine[max(leaves - now, 0) :]:
                del chosen[node]
        return dict(sorted(chosen.items()))

    def apply(self, chosen: Mapping[int, Best], goes_left: Mapping[int, Flags]) -> NDArray[np.uint8]:
        """Make children of the chosen nodes by which rows their splits send left, [rows of the batch]; everybody's
        directions in one."""
        directions = np.zeros(self.node.shape, dtype=np.uint8)
        before = self.node.copy()
        said = [sum(1 for party in self.party if party == k) for k in range(len(self.parties))]
        for node, best in chosen.items():
            tree = self.tree[node]
            rows = np.flatnonzero(before[:, tree] == node)
            goes = goes_left[node][rows]
            directions[rows, tree] = np.where(goes, LEFT, RIGHT)
            children = self._add(tree), self._add(tree)
            self.party[node], self.split[node], self.gain[node] = best.party, said[best.party], best.gain
            self.left[node], self.right[node] = children
            said[best.party] += 1
            self.node[rows, tree] = np.where(goes, *children)
        return directions

    def smaller(self, chosen: Mapping[int, Best]) -> list[int]:
        """Of each pair of children the one with fewer sampled rows, the left one where they are as many."""
        found = []
        for node in chosen:
            pair = self.left[node], self.right[node]
            rows = self.rows_in(pair)
            found.append(pair[0] if rows[0] <= rows[1] else pair[1])
        return found

    def take_children(self, chosen: Mapping[int, Best], smaller: Sequence[int], told: Sequence[Floats]) -> None:
        """What each party told of the smaller children, [children, candidates, 2]; of the others it follows."""
        sums: dict[int, list[Floats]] = {}
        for at, (node, small) in enumerate(zip(chosen, smaller, strict=True)):
            large = self.left[node] + self.right[node] - small
            mine, others = [], []
            for party, parent in zip(told, self.sums[node], strict=True):
                is_told = party[at, :, 1] >= 0
                mine.append(party[at])
                others.append(np.where(is_told[:, None], parent - party[at], (0.0, -1.0)))
            sums[small], sums[large] = mine, others
        self.sums = sums

    def table(self, g: Floats, h: Floats, *, l2: float, learning_rate: float, left: Tensor | None) -> Table:
        """The finished trees: leaves from the exact gradients of all rows, or the median of what is `left`."""
        value = np.zeros(len(self.tree))
        for tree in range(self.trees):
            where = self.node[:, tree]
            if left is None:
                mine = leaf_values(where, g[:, tree], h[:, tree], len(self.tree), l2)
            else:
                mine = np.zeros(len(self.tree))
                for node in np.unique(where).tolist():
                    rows = torch.from_numpy(np.flatnonzero(where == node))
                    mine[node] = float(weighted_median(left[rows, tree], torch.from_numpy(h[:, tree])[rows]))
            own = np.array(self.tree) == tree
            value[own] = learning_rate * mine[own]
        whole = {"party": self.party, "split": self.split, "left": self.left, "right": self.right}
        table = {name: torch.tensor(numbers, dtype=torch.int64) for name, numbers in whole.items()}
        return table | {"value": torch.from_numpy(value), "gain": torch.tensor(self.gain, dtype=torch.float64)}

    def _add(self, tree: int) -> int:
        for numbers, first in (
            (self.tree, tree),
            (self.party, -1),
            (self.split, -1),
            (self.left, -1),
            (self.right, -1),
        ):
            numbers.append(first)
        self.gain.append(0.0)
        return len(self.tree) - 1


def scores_of(table: Table, trees: int, directions: Sequence[Flags]) -> Tensor:
    """What one round adds to the scores, [rows, trees]: directions are those of its own splits, by party."""
    party, split, left, right = (table[name].numpy() for name in ("party", "split", "left", "right"))
    return table["value"][torch.from_numpy(reached(party, split, left, right, trees, directions))]


def splits_of(table: Table, party: int) -> int:
    """How many splits of a round are one party's."""
    return int((table["party"] == party).sum())


def sampled(g: Floats, share: float, top: float, rest: float, generator: Generator) -> tuple[Whole, Floats]:
    """The rows to learn from, and what each counts: a random share, or (GOSS) those with the largest gradients and some
    of the others, which then count for all others."""
    rows = len(g)
    every = np.arange(rows)
    if top:
        size = np.abs(g).sum(1)
        kept, more = max(1, round(top * rows)), max(1, round(rest * rows))
        order = np.argsort(-size, kind="stable")
        drawn = torch.randperm(rows - kept, generator=generator)[:more].numpy()
        chosen = np.sort(np.concatenate([order[:kept], order[kept:][drawn]]))
        large = np.zeros(rows, dtype=np.bool_)
        large[order[:kept]] = True
        return chosen, np.where(large, 1.0, (rows - kept) / max(len(drawn), 1))[chosen]
    if share < 1:
        drawn = torch.randperm(rows, generator=generator)[: max(1, round(share * rows))].numpy()
        return np.sort(drawn), np.ones(len(drawn))
    return every, np.ones(rows)
