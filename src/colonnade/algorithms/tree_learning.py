"""What the label owner keeps while a round of trees grows: exact and rounded gradients,
sums by party, and the trees.

Nodes are numbered as `tree_growing` says. The sums of the child with more rows are its
parent's minus its sibling's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Generator, Tensor

from colonnade.algorithms.tree_growing import LEFT, RIGHT, STAYS
from colonnade.algorithms.tree_histograms import (
    Best,
    Flags,
    Floats,
    Whole,
    best_splits,
    leaf_values,
    reached,
)
from colonnade.algorithms.tree_objectives import weighted_median
from colonnade.algorithms.tree_owner import HALF, Directions, Split
from colonnade.algorithms.tree_parts import NodeTable, Part
from colonnade.errors import PartyError

DRAWN = 3
"""How many of the first trees are shown."""


@dataclass(frozen=True, eq=False)
class Rounded:
    """Gradients and Hessians of the sampled rows as whole numbers, [rows, trees], and
    the units of these numbers."""

    g: Floats
    h: Floats
    unit_g: Floats
    unit_h: Floats

    @classmethod
    def of(cls, g: Floats, h: Floats, bits: int, generator: Generator) -> Rounded:
        """Round at random to one of the two nearest, so that sums are right on average;
        0 bits: not at all."""
        if not bits:
            return cls(g, h, np.ones(g.shape[1]), np.ones(g.shape[1]))
        units = [
            np.maximum(np.abs(values).max(0, initial=0.0), 1e-300) / levels
            for values, levels in ((g, max(1, 2 ** (bits - 1) - 1)), (h, 2**bits - 1))
        ]
        drawn = torch.rand(
            (2, *g.shape), generator=generator, dtype=torch.float64
        ).numpy()
        whole = [
            np.floor(values / unit + u)
            for values, unit, u in zip((g, h), units, drawn, strict=True)
        ]
        return cls(*whole, *units)


def joined(g: Floats, h: Floats) -> Tensor:
    """g and h of each tree in turn, [rows, 2 trees]."""
    return torch.from_numpy(np.stack([g, h], axis=2).reshape(len(g), -1))


@dataclass(eq=False)
class Round:
    """A round under way."""

    rounded: Rounded
    sampled: Whole  # places in the batch of the rows that are learned from
    node: Whole  # [trees, rows of the batch]
    parties: Sequence[str]
    parts: Sequence[Part]  # of each party
    open: list[int] = field(default_factory=list)  # nodes that may be split
    # sums of open nodes by party, [nodes, candidates, 2]
    sums: list[Floats] = field(default_factory=list)
    tree: list[int] = field(default_factory=list)  # of every node
    party: list[int] = field(default_factory=list)
    split: list[int] = field(default_factory=list)
    left: list[int] = field(default_factory=list)
    right: list[int] = field(default_factory=list)
    gain: list[float] = field(default_factory=list)
    absent_left: list[bool] = field(default_factory=list)
    # sampled rows of each node, since the last level was divided
    _rows: list[int] = field(default_factory=list)

    @classmethod
    def begin(
        cls,
        rounded: Rounded,
        sampled: Whole,
        rows: int,
        held: Mapping[str, Tensor | None],
    ) -> Round:
        """Begin with the roots; `held` has by party which rows of the batch it holds,
        None for all."""
        trees = rounded.g.shape[1]
        parts = [
            Part(None if mask is None else mask.cpu().numpy(), sampled, trees)
            for mask in held.values()
        ]
        grown = cls(
            rounded,
            sampled,
            np.repeat(np.arange(trees)[:, None], rows, axis=1),
            list(held),
            parts,
        )
        for tree in range(trees):
            grown._add(tree)
        return grown

    @property
    def trees(self) -> int:
        return int(self.rounded.g.shape[1])

    def only_in(self, nodes: Sequence[int]) -> tuple[Floats, Floats]:
        """The rounded gradients and Hessians of the sampled rows in each node, [rows of
        the batch, nodes]; else 0."""
        g, h = np.zeros((2, self.node.shape[1], len(nodes)))
        for column, node in enumerate(nodes):
            tree = self.tree[node]
            inside = np.flatnonzero(self._sampled_node[tree] == node)
            g[self.sampled[inside], column] = self.rounded.g[inside, tree]
            h[self.sampled[inside], column] = self.rounded.h[inside, tree]
        return g, h

    def totals(self, nodes: Sequence[int], among: Flags | None = None) -> Floats:
        """G and H of the sampled rows in each node, [nodes, 2]; only of those `among`
        them, where it is given."""
        totals = np.zeros((len(nodes), 2))
        node_of_row = self._sampled_node
        trees = np.array([self.tree[node] for node in nodes], dtype=np.int64)
        for tree in np.unique(trees).tolist():
            of_tree = trees == tree
            for place, values in enumerate((self.rounded.g, self.rounded.h)):
                weights = values[:, tree] if among is None else values[:, tree] * among
                by_node = np.bincount(
                    node_of_row[tree], weights, minlength=len(self.tree)
                )
                totals[of_tree, place] = by_node[np.array(nodes)[of_tree]]
        return totals

    def held_totals(self, party: int, nodes: Sequence[int]) -> Floats:
        """The totals of the rows that a party holds."""
        held = self.parts[party].held
        return self.totals(nodes, None if held is None else held[self.sampled])

    @property
    def _sampled_node(self) -> Whole:
        """[trees, sampled rows]"""
        return (
            self.node
            if len(self.sampled) == self.node.shape[1]
            else self.node.take(self.sampled, axis=1)
        )

    def best(
        self, *, leaves: int, l2: float, min_gain: float, min_child_weight: float
    ) -> dict[int, Best]:
        """The best split of every node or, where there would be too many leaves, those
        that gain most."""
        nodes = self.open
        if not nodes:
            return {}
        units = np.array(
            [
                [self.rounded.unit_g[self.tree[n]], self.rounded.unit_h[self.tree[n]]]
                for n in nodes
            ]
        )
        sums = [party_sums * units[:, None, :] for party_sums in self.sums]
        totals = self.totals(nodes) * units
        lacked = {
            k: self.totals(nodes, ~part.held[self.sampled]) * units
            for k, part in enumerate(self.parts)
            if part.held is not None and part.asked
        }
        splits = best_splits(
            sums,
            totals,
            l2=l2,
            min_gain=min_gain,
            min_child_weight=min_child_weight,
            lacked=lacked,
        )
        chosen = {
            node: split
            for node, split in zip(nodes, splits, strict=True)
            if split.party >= 0
        }
        for tree in range(self.trees):
            leaves_now = sum(
                1
                for node, party in enumerate(self.party)
                if self.tree[node] == tree and party < 0
            )
            by_gain = sorted(
                (n for n in chosen if self.tree[n] == tree),
                key=lambda n: -chosen[n].gain,
            )
            for node in by_gain[max(leaves - leaves_now, 0) :]:
                del chosen[node]
        return dict(sorted(chosen.items()))

    def left_of(
        self,
        replies: Mapping[str, Directions],
        chosen: Mapping[int, Best],
        batch: str,
        *,
        hidden: bool,
    ) -> Flags:
        """Which rows go left in each tree, [trees, rows of the batch], from parties'
        replies about their splits: where nodes are hidden, a party has a column for
        each split, else one for each tree."""
        goes_left = np.zeros(self.node.shape, dtype=np.bool_)
        for k, party in enumerate(self.parties):
            own = [node for node, best in chosen.items() if best.party == k]
            if not own:
                continue
            values = replies[party].values.tensor.cpu()
            wanted = self.node.shape[1], len(own) if hidden else self.trees
            if tuple(values.shape) != wanted:
                cause = (
                    f"it sent {list(values.shape)} directions, and {list(wanted)} were"
                    " asked for"
                )
                raise PartyError(party, Split.kind, batch, cause)
            left = values.numpy().T > HALF
            held = self.parts[k].held
            if not hidden:
                is_own, absent_left = np.zeros((2, len(self.tree)), dtype=np.bool_)
                is_own[own], absent_left[own] = (
                    True,
                    [chosen[node].absent_left for node in own],
                )
                left = (
                    left
                    if held is None
                    else np.where(held, left, absent_left.take(self.node))
                )
                goes_left |= is_own.take(self.node) & left
                continue
            for node, all_rows in zip(own, left, strict=True):
                by_split = (
                    all_rows
                    if held is None
                    else np.where(held, all_rows, chosen[node].absent_left)
                )
                goes_left[self.tree[node]] |= (
                    self.node[self.tree[node]] == node
                ) & by_split
        return goes_left

    def apply(self, chosen: Mapping[int, Best], goes_left: Flags) -> NDArray[np.uint8]:
        """Make children of the chosen nodes by which rows their splits send left,
        [trees, rows of the batch]. Returns everybody's directions in one, [rows of the
        batch, trees]."""
        splits = [
            sum(1 for party in self.party if party == k)
            for k in range(len(self.parties))
        ]
        # a node that stays comes after itself
        after = np.repeat(np.arange(len(self.tree))[:, None], 2, axis=1)
        directions = np.full(after.shape, STAYS, dtype=np.uint8)
        for node, best in chosen.items():
            tree = self.tree[node]
            self.party[node], self.split[node], self.gain[node] = (
                best.party,
                splits[best.party],
                best.gain,
            )
            self.left[node], self.right[node] = self._add(tree), self._add(tree)
            after[node], directions[node] = (
                (self.right[node], self.left[node]),
                (
                    RIGHT,
                    LEFT,
                ),
            )
            splits[best.party] += 1
        way = 2 * self.node + goes_left
        before = self.node
        self.node = after.reshape(-1).take(way)
        self._divide(chosen, before)
        return directions.reshape(-1).take(way).T

    def _divide(self, chosen: Mapping[int, Best], before: Whole) -> None:
        """Send rows that the party of a split lacks where they gain most, or to the
        larger side if none is sampled."""
        children = [(self.left[node], self.right[node]) for node in chosen]
        for part in self.parts:
            if part.held is not None and part.asked:
                part.divide(before, self.node, list(chosen), children)
        self._rows = rows = np.bincount(
            self._sampled_node.reshape(-1), minlength=len(self.tree)
        ).tolist()
        for (node, best), (left, right) in zip(chosen.items(), children, strict=True):
            held = self.parts[best.party].held
            learned = held is not None and bool(
                ((before[self.tree[node]] == node) & ~held)[self.sampled].any()
            )
            self.absent_left[node] = (
                best.absent_left if learned else bool(rows[left] >= rows[right])
            )

    def smaller(self, chosen: Mapping[int, Best], *, hidden: bool) -> list[list[int]]:
        """By party, the child of each pair with fewer sampled rows, the left one where
        both have as many; -1 where a party has none of the rows. Where nodes are
        hidden, all are asked for the same."""
        rows = self._rows
        pairs = [(self.left[node], self.right[node]) for node in chosen]
        small = [left if rows[left] <= rows[right] else right for left, right in pairs]
        return [
            small if hidden or part.held is None or not part.asked else part.small
            for part in self.parts
        ]

    @property
    def asked(self) -> dict[str, Part]:
        """The parties that take part."""
        return {
            party: part
            for party, part in zip(self.parties, self.parts, strict=True)
            if part.asked
        }

    def take_children(
        self,
        chosen: Mapping[int, Best],
        smaller: Sequence[Sequence[int]],
        reported: Sequence[Floats],
    ) -> None:
        """Open the children of the chosen nodes. `reported` has each party's sums of
        the children that are `smaller` at it, [children, candidates, 2]; those of their
        siblings follow."""
        place = {node: number for number, node in enumerate(self.open)}
        parents = [place[node] for node in chosen]
        children = [
            child for node in chosen for child in (self.left[node], self.right[node])
        ]
        sums = []
        for small, of_small, before in zip(smaller, reported, self.sums, strict=True):
            left_is_small = np.isin(children[::2], small)[:, None, None]
            of_sibling = np.where(
                of_small[..., 1:] >= 0, before[parents] - of_small, (0.0, -1.0)
            )
            both = np.empty((2 * len(parents), *of_small.shape[1:]))
            both[::2] = np.where(left_is_small, of_small, of_sibling)
            both[1::2] = np.where(left_is_small, of_sibling, of_small)
            sums.append(both)
        self.open = children
        self.sums = sums

    def table(
        self,
        g: Floats,
        h: Floats,
        *,
        l2: float,
        learning_rate: float,
        left: Tensor | None,
    ) -> NodeTable:
        """The finished trees: leaves are from the exact gradients of all rows, or the
        medians of what is `left`."""
        value = np.zeros(len(self.tree))
        for tree in range(self.trees):
            node_of_row = self.node[tree]
            if left is None:
                leaves = leaf_values(
                    node_of_row, g[:, tree], h[:, tree], len(self.tree), l2
                )
            else:
                leaves = np.zeros(len(self.tree))
                for node in np.unique(node_of_row).tolist():
                    rows = torch.from_numpy(np.flatnonzero(node_of_row == node))
                    leaves[node] = float(
                        weighted_median(
                            left[rows, tree], torch.from_numpy(h[:, tree])[rows]
                        )
                    )
            of_tree = np.array(self.tree) == tree
            value[of_tree] = learning_rate * leaves[of_tree]
        whole_numbers = {
            "party": self.party,
            "split": self.split,
            "left": self.left,
            "right": self.right,
        }
        table = {
            name: torch.tensor(numbers, dtype=torch.int64)
            for name, numbers in whole_numbers.items()
        }
        table |= {
            "value": torch.from_numpy(value),
            "gain": torch.tensor(self.gain, dtype=torch.float64),
        }
        table["absent_left"] = torch.tensor(self.absent_left, dtype=torch.bool)
        return table | {
            "asked": torch.tensor([part.asked for part in self.parts], dtype=torch.bool)
        }

    def _add(self, tree: int) -> int:
        self.tree.append(tree)
        for numbers in (self.party, self.split, self.left, self.right):
            numbers.append(-1)
        self.gain.append(0.0)
        self.absent_left.append(False)
        return len(self.tree) - 1


def scores_of(table: NodeTable, trees: int, directions: Sequence[Flags]) -> Tensor:
    """What one round adds to the scores, [rows, trees]; `directions` are those of its
    own splits, by party."""
    party, split, left, right = (
        table[name].numpy() for name in ("party", "split", "left", "right")
    )
    return table["value"][
        torch.from_numpy(reached(party, split, left, right, trees, directions))
    ]


def gains_of(rounds: Sequence[NodeTable], parties: Sequence[str]) -> dict[str, float]:
    """Each party's share of the gains of all splits."""
    gains = [
        sum(float(table["gain"][table["party"] == k].sum()) for table in rounds)
        for k in range(len(parties))
    ]
    return {
        name: gain / sum(gains) if sum(gains) else 0.0
        for name, gain in zip(parties, gains, strict=True)
    }


def first_trees(
    rounds: Sequence[NodeTable], outputs: int, parties: Sequence[str]
) -> list[dict[str, Any]]:
    """The first few trees, to be shown."""
    shown = [
        (number, output) for number in range(len(rounds)) for output in range(outputs)
    ][:DRAWN]
    return [
        {"round": n, "output": output, "nodes": nodes_of(rounds[n], output, parties)}
        for n, output in shown
    ]


def nodes_of(
    table: NodeTable, root: int, parties: Sequence[str]
) -> list[dict[str, Any]]:
    """One tree of a round as a list of nodes, the root first. A split has its party,
    its number among that party's splits of the round, what it gained, and the places of
    its children in the list; a leaf has what it adds."""
    nodes: list[dict[str, Any]] = []
    waiting = [root]
    for node in waiting:
        party, left, right, split = (
            int(table[name][node]) for name in ("party", "left", "right", "split")
        )
        if party < 0:
            nodes.append({"party": None, "value": float(table["value"][node])})
            continue
        place = len(waiting)
        waiting += [left, right]
        gain = float(table["gain"][node])
        nodes.append(
            {
                "party": parties[party],
                "split": split,
                "gain": gain,
                "left": place,
                "right": place + 1,
            }
        )
    return nodes


def splits_of(table: NodeTable, party: int) -> int:
    """How many splits of a round are one party's."""
    return int((table["party"] == party).sum())


def sampled(
    g: Floats, share: float, top: float, rest: float, generator: Generator
) -> tuple[Whole, Floats]:
    """The rows to learn from, and the weight of each: a random share, or (GOSS) those
    with the largest gradients and some of the others, which then count for all others.
    """
    rows = len(g)
    if top:
        size = np.abs(g).sum(1)
        kept = max(1, round(top * rows))
        more = max(1, round(rest * rows))
        order = np.argsort(-size, kind="stable")
        drawn = torch.randperm(rows - kept, generator=generator)[:more].numpy()
        chosen = np.sort(np.concatenate([order[:kept], order[kept:][drawn]]))
        large = np.zeros(rows, dtype=np.bool_)
        large[order[:kept]] = True
        return chosen, np.where(large, 1.0, (rows - kept) / max(len(drawn), 1))[chosen]
    if share < 1:
        drawn = torch.randperm(rows, generator=generator)[
            : max(1, round(share * rows))
        ].numpy()
        return np.sort(drawn), np.ones(len(drawn))
    return np.arange(rows), np.ones(rows)
