"""What the label owner keeps while a round of trees grows: exact and rounded gradients, sums by party, and the trees.

Nodes are numbered as `tree_growing` says. The sums of the child with more rows are its parent's minus its sibling's.
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
from colonnade.algorithms.tree_histograms import Best, Flags, Floats, Whole, best_splits, leaf_values, reached
from colonnade.algorithms.tree_objectives import weighted_median
from colonnade.algorithms.tree_owner import HALF, Directions, Split
from colonnade.algorithms.tree_parts import Part
from colonnade.errors import PartyError

Table = dict[str, Tensor]
"""A round's nodes: `party` whose split it is (-1: a leaf) and that party's how-many-th of the round, the children
`left` and `right`, what a leaf adds to its tree's score (`value`), what a split gained (`gain`), and whether rows that
its party lacks go left (`absent_left`); and of each party whether it took part (`asked`)."""


DRAWN = 3
"""Of the first trees, to be looked at."""


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
    node: Whole  # [trees, rows of the batch]
    parties: Sequence[str]
    parts: Sequence[Part]  # of each party
    open: list[int] = field(default_factory=list)  # nodes that may be split
    sums: list[Floats] = field(default_factory=list)  # of these by party, [nodes, candidates, 2]
    tree: list[int] = field(default_factory=list)  # of every node
    party: list[int] = field(default_factory=list)
    split: list[int] = field(default_factory=list)
    left: list[int] = field(default_factory=list)
    right: list[int] = field(default_factory=list)
    gain: list[float] = field(default_factory=list)
    absent_left: list[bool] = field(default_factory=list)
    _rows: list[int] = field(default_factory=list)  # sampled ones of each node, since the last level was divided

    @classmethod
    def begin(cls, rounded: Rounded, sampled: Whole, rows: int, held: Mapping[str, Tensor | None]) -> Round:
        """`held` has by party which rows of the batch it holds; None: all."""
        trees = rounded.g.shape[1]
        parts = [Part(None if mine is None else mine.cpu().numpy(), sampled, trees) for mine in held.values()]
        made = cls(rounded, sampled, np.repeat(np.arange(trees)[:, None], rows, axis=1), list(held), parts)
        for tree in range(trees):
            made._add(tree)
        return made

    @property
    def trees(self) -> int:
        return int(self.rounded.g.shape[1])

    def only_in(self, nodes: Sequence[int]) -> tuple[Floats, Floats]:
        """The rounded gradients and Hessians of the rows in each of these nodes, [rows of the batch, nodes]; 0 for all
        others, and for rows that are not learned from."""
        made = np.zeros((2, self.node.shape[1], len(nodes)))
        for at, node in enumerate(nodes):
            inside = np.flatnonzero(self._sampled_node[self.tree[node]] == node)
            for part, values in zip(made, (self.rounded.g, self.rounded.h), strict=True):
                part[self.sampled[inside], at] = values[inside, self.tree[node]]
        return made[0], made[1]

    def totals(self, nodes: Sequence[int], among: Flags | None = None) -> Floats:
        """G and H of the sampled rows in each node, [nodes, 2]; of those `among` them, where it is given."""
        found = np.zeros((len(nodes), 2))
        of, now = np.array([self.tree[node] for node in nodes], dtype=np.int64), self._sampled_node
        for tree in np.unique(of).tolist():
            mine = of == tree
            for place, values in enumerate((self.rounded.g, self.rounded.h)):
                weights = values[:, tree] if among is None else values[:, tree] * among
                by_node = np.bincount(now[tree], weights, minlength=len(self.tree))
                found[mine, place] = by_node[np.array(nodes)[mine]]
        return found

    def held_totals(self, party: int, nodes: Sequence[int]) -> Floats:
        """The same, of the rows that a party holds."""
        held = self.parts[party].held
        return self.totals(nodes, None if held is None else held[self.sampled])

    @property
    def _sampled_node(self) -> Whole:
        """[trees, sampled rows]"""
        return self.node if len(self.sampled) == self.node.shape[1] else self.node.take(self.sampled, axis=1)

    def best(self, *, leaves: int, l2: float, min_gain: float, min_child_weight: float) -> dict[int, Best]:
        """The splits of this level: of every node the best, and where there would be too many leaves, those that gain
        most."""
        nodes = self.open
        if not nodes:
            return {}
        units = np.array([[self.rounded.unit_g[self.tree[n]], self.rounded.unit_h[self.tree[n]]] for n in nodes])
        sums = [mine * units[:, None, :] for mine in self.sums]
        totals = self.totals(nodes) * units
        lacked = {
            k: self.totals(nodes, ~part.held[self.sampled]) * units
            for k, part in enumerate(self.parts)
            if part.held is not None and part.asked
        }
        found = best_splits(sums, totals, l2=l2, min_gain=min_gain, min_child_weight=min_child_weight, lacked=lacked)
        chosen = {node: one for node, one in zip(nodes, found, strict=True) if one.party >= 0}
        for tree in range(self.trees):
            now = sum(1 for node, party in enumerate(self.party) if self.tree[node] == tree and party < 0)
            mine = sorted((n for n in chosen if self.tree[n] == tree), key=lambda n: -chosen[n].gain)
            for node in mine[max(leaves - now, 0) :]:
                del chosen[node]
        return dict(sorted(chosen.items()))

    def left_of(self, said: Mapping[str, Directions], chosen: Mapping[int, Best], batch: str, *, hidden: bool) -> Flags:
        """Which rows go left in each tree, [trees, rows of the batch], from what parties said of their splits: where
        nodes are hidden, a party has a column for each split, else one for each tree."""
        found = np.zeros(self.node.shape, dtype=np.bool_)
        for k, party in enumerate(self.parties):
            mine = [node for node, best in chosen.items() if best.party == k]
            if not mine:
                continue
            values, wanted = said[party].values.tensor.cpu(), (self.node.shape[1], len(mine) if hidden else self.trees)
            if tuple(values.shape) != wanted:
                cause = f"it sent {list(values.shape)} directions, and {list(wanted)} were asked for"
                raise PartyError(party, Split.kind, batch, cause)
            left, held = values.numpy().T > HALF, self.parts[k].held
            if not hidden:
                is_mine, instead = np.zeros((2, len(self.tree)), dtype=np.bool_)
                is_mine[mine], instead[mine] = True, [chosen[node].absent_left for node in mine]
                left = left if held is None else np.where(held, left, instead.take(self.node))
                found |= is_mine.take(self.node) & left
                continue
            for node, all_rows in zip(mine, left, strict=True):
                goes = all_rows if held is None else np.where(held, all_rows, chosen[node].absent_left)
                found[self.tree[node]] |= (self.node[self.tree[node]] == node) & goes
        return found

    def apply(self, chosen: Mapping[int, Best], goes_left: Flags) -> NDArray[np.uint8]:
        """Make children of the chosen nodes by which rows their splits send left, [trees, rows of the batch];
        everybody's directions in one, [rows of the batch, trees]."""
        said = [sum(1 for party in self.party if party == k) for k in range(len(self.parties))]
        after = np.repeat(np.arange(len(self.tree))[:, None], 2, axis=1)  # of a node that stays, itself
        going = np.full(after.shape, STAYS, dtype=np.uint8)
        for node, best in chosen.items():
            tree = self.tree[node]
            self.party[node], self.split[node], self.gain[node] = best.party, said[best.party], best.gain
            self.left[node], self.right[node] = self._add(tree), self._add(tree)
            after[node], going[node] = (self.right[node], self.left[node]), (RIGHT, LEFT)
            said[best.party] += 1
        way, before = 2 * self.node + goes_left, self.node
        self.node = after.reshape(-1).take(way)
        self._divide(chosen, before)
        return going.reshape(-1).take(way).T

    def _divide(self, chosen: Mapping[int, Best], before: Whole) -> None:
        """Where rows go that the party of a split lacks: as it was found, and where none were learned from, to the
        larger side."""
        children = [(self.left[node], self.right[node]) for node in chosen]
        for part in self.parts:
            if part.held is not None and part.asked:
                part.divide(before, self.node, list(chosen), children)
        self._rows = rows = np.bincount(self._sampled_node.reshape(-1), minlength=len(self.tree)).tolist()
        for (node, best), (left, right) in zip(chosen.items(), children, strict=True):
            held = self.parts[best.party].held
            learned = held is not None and bool(((before[self.tree[node]] == node) & ~held)[self.sampled].any())
            self.absent_left[node] = best.absent_left if learned else bool(rows[left] >= rows[right])

    def smaller(self, chosen: Mapping[int, Best], *, hidden: bool) -> list[list[int]]:
        """By party, of each pair of children the one with fewer sampled rows, the left one where they are as many; -1
        where a party has none of the rows. Where nodes are hidden, all are asked for the same."""
        rows = self._rows
        pairs = [(self.left[node], self.right[node]) for node in chosen]
        small = [left if rows[left] <= rows[right] else right for left, right in pairs]
        return [small if hidden or part.held is None or not part.asked else part.small for part in self.parts]

    @property
    def asked(self) -> dict[str, Part]:
        """The parties that take part."""
        return {party: part for party, part in zip(self.parties, self.parts, strict=True) if part.asked}

    def take_children(
        self, chosen: Mapping[int, Best], smaller: Sequence[Sequence[int]], told: Sequence[Floats]
    ) -> None:
        """What each party told of the children that are `smaller` at it, [children, candidates, 2]; of the others it
        follows."""
        place = {node: at for at, node in enumerate(self.open)}
        parents = [place[node] for node in chosen]
        children = [child for node in chosen for child in (self.left[node], self.right[node])]
        sums = []
        for small, mine, before in zip(smaller, told, self.sums, strict=True):
            told_of = set(small)
            first = np.array([child in told_of for child in children[::2]])
            others = np.where(mine[..., 1:] >= 0, before[parents] - mine, (0.0, -1.0))
            both = np.empty((2 * len(parents), *mine.shape[1:]))
            both[::2], both[1::2] = (
                np.where(first[:, None, None], one, two) for one, two in ((mine, others), (others, mine))
            )
            sums.append(both)
        self.open, self.sums = children, sums

    def table(self, g: Floats, h: Floats, *, l2: float, learning_rate: float, left: Tensor | None) -> Table:
        """The finished trees: leaves from the exact gradients of all rows, or the median of what is `left`."""
        value = np.zeros(len(self.tree))
        for tree in range(self.trees):
            where = self.node[tree]
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
        table |= {"value": torch.from_numpy(value), "gain": torch.tensor(self.gain, dtype=torch.float64)}
        table["absent_left"] = torch.tensor(self.absent_left, dtype=torch.bool)
        return table | {"asked": torch.tensor([part.asked for part in self.parts], dtype=torch.bool)}

    def _add(self, tree: int) -> int:
        self.tree.append(tree)
        for numbers in (self.party, self.split, self.left, self.right):
            numbers.append(-1)
        self.gain.append(0.0)
        self.absent_left.append(False)
        return len(self.tree) - 1


def scores_of(table: Table, trees: int, directions: Sequence[Flags]) -> Tensor:
    """What one round adds to the scores, [rows, trees]: directions are those of its own splits, by party."""
    party, split, left, right = (table[name].numpy() for name in ("party", "split", "left", "right"))
    return table["value"][torch.from_numpy(reached(party, split, left, right, trees, directions))]


def gains_of(rounds: Sequence[Table], parties: Sequence[str]) -> dict[str, float]:
    """By party the share of all gains that its splits had."""
    gains = [sum(float(table["gain"][table["party"] == k].sum()) for table in rounds) for k in range(len(parties))]
    return {name: gain / sum(gains) if sum(gains) else 0.0 for name, gain in zip(parties, gains, strict=True)}


def first_trees(rounds: Sequence[Table], outputs: int, parties: Sequence[str]) -> list[dict[str, Any]]:
    """A few, to be looked at."""
    drawn = [(at, output) for at in range(len(rounds)) for output in range(outputs)][:DRAWN]
    return [{"round": at, "output": output, "nodes": nodes_of(rounds[at], output, parties)} for at, output in drawn]


def nodes_of(table: Table, root: int, parties: Sequence[str]) -> list[dict[str, Any]]:
    """One tree of a round, from its root on: of a split whose it is, its number among that party's splits of the round,
    what it gained, and where its children stand in this list; of a leaf what it adds."""
    made: list[dict[str, Any]] = []
    waiting = [root]
    for node in waiting:
        party, left, right, split = (int(table[name][node]) for name in ("party", "left", "right", "split"))
        if party < 0:
            made.append({"party": None, "value": float(table["value"][node])})
            continue
        place = len(waiting)
        waiting += [left, right]
        gain = float(table["gain"][node])
        made.append({"party": parties[party], "split": split, "gain": gain, "left": place, "right": place + 1})
    return made


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
