"""What a party with columns keeps while a round of trees grows: bins, gradients it may not be able to read, and nodes.

Trees of one round (one for each output) grow level by level, all at once. Their roots are nodes 0, 1, ..; the children
of the nodes that are split get the next numbers, in the order of their parents, left before right. Sums are told of the
child with fewer rows; whoever knows the parent's subtracts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from colonnade.algorithms.tree_histograms import (
    NOT_OFFERED,
    Binning,
    Candidates,
    Flags,
    Floats,
    Whole,
    counted,
    of_candidates,
    offered,
    summed,
)
from colonnade.core.cipher import Encrypted
from colonnade.encryption import points as curve
from colonnade.encryption.elgamal import ElGamalPublicKey
from colonnade.encryption.points import Points

STAYS, LEFT, RIGHT = 0, 1, 2
"""What a row does below its node: nothing where that is a leaf."""
LINES = 1 << 13  # sums that are blinded at a time


class Node(NamedTuple):
    """One that may still be split: which tree's, how many rows it has, its sampled rows by bin, and what may be told
    about it."""

    tree: int
    size: int  # rows of the batch
    counts: Whole  # [columns, width]
    offered: Flags  # [candidates]


class TreePart(NamedTuple):
    """Nodes of one tree whose sums are told, and where each of their rows is counted."""

    tree: int
    nodes: list[int]
    rows: Whole  # among the sampled ones
    cells: NDArray[np.unsignedinteger]  # [columns, rows]: a row's place in `nodes`, times the width, and its bin


class Slopes(Protocol):
    """Gradients and Hessians of the sampled rows: plain or encrypted."""

    @property
    def rows(self) -> int: ...

    @property
    def trees(self) -> int: ...

    def sums(self, growing: Growing) -> Tensor | Encrypted:
        """Of every node that is told of and every candidate the sums of what goes left, [nodes, candidates, 2]."""
        ...


@dataclass(frozen=True, eq=False)
class PlainSlopes:
    """Gradients and Hessians that are not encrypted, [rows, trees] each."""

    g: Floats
    h: Floats

    @property
    def rows(self) -> int:
        return len(self.g)

    @property
    def trees(self) -> int:
        return int(self.g.shape[1])

    @cached_property
    def both(self) -> tuple[Floats, float] | None:
        """g room + h, [trees, rows], where they are whole numbers whose sums fit beside each other into a float64."""
        room = float(2 ** int(max(self.h.sum(), 1)).bit_length())
        fits = np.abs(self.g).sum() * room < 2**51
        whole = fits and (self.g == np.rint(self.g)).all() and (self.h == np.rint(self.h)).all()
        return (np.ascontiguousarray((self.g * room + self.h).T), room) if whole else None

    def sums(self, growing: Growing) -> Tensor:
        made = np.empty((len(growing.told_nodes), len(growing.candidates), 2))
        start = 0
        for told in growing.told:
            nodes = slice(start, start + len(told.nodes))
            for place, part in enumerate(self._by_bin(told, growing.width)):
                made[nodes, :, place] = of_candidates(part, growing.candidates)
            start = nodes.stop
        made[~growing.offered] = 0.0, NOT_OFFERED
        return torch.from_numpy(made)

    def _by_bin(self, told: TreePart, width: int) -> tuple[Floats, Floats]:
        """Sums of both, [nodes, columns, width] each."""
        nodes = len(told.nodes)
        if self.both is not None:
            weights, room = self.both
            both = summed(told.cells, weights[told.tree].take(told.rows), nodes, width)
            first = np.floor(both / room)
            return first, both - first * room
        g, h = (summed(told.cells, part[told.rows, told.tree], nodes, width) for part in (self.g, self.h))
        return g, h


@dataclass(frozen=True, eq=False)
class SealedSlopes:
    """Under the label owner's key: points, [rows, 1 + 2 trees, 64]. Where nodes are hidden, each is a tree here."""

    points: Points
    key: ElGamalPublicKey
    owner: str

    @property
    def rows(self) -> int:
        return len(self.points)

    @property
    def trees(self) -> int:
        return (int(self.points.shape[1]) - 1) // 2

    def sums(self, growing: Growing) -> Encrypted:
        made, candidates = [], growing.candidates
        before: tuple[TreePart, Whole, Whole] | None = None
        for told in growing.told:
            if before is None or before[0].cells is not told.cells:  # trees begin with the same rows
                before = told, *_sorted(told, growing)
            made += self._of_tree(growing, *before[1:], told)
        return self.key.written(np.concatenate(made), (len(growing.told_nodes) * len(candidates), 2))

    def _of_tree(self, growing: Growing, order: Whole, starts: Whole, told: TreePart) -> list[Points]:
        """All nodes of a tree in one go, and their sums blinded in pieces that memory can hold."""
        values = 2 * told.tree, 2 * told.tree + 1
        kept, lie = self.key.sums_of(self.points, order, starts, values, owner=self.owner)
        candidates, minus = growing.candidates, curve.base(-1)
        goes_left = candidates.left_bins(growing.width)
        by_bin = lie.reshape(3, -1, len(told.nodes), growing.width)
        offers = np.stack([growing.open[node].offered for node in told.nodes])
        some, made = max(1, LINES // max(len(candidates), 1)), []
        for first in range(0, len(told.nodes), some):
            offered = offers[first : first + some]
            parts = by_bin[:, candidates.column, first : first + some].transpose(2, 1, 0, 3)
            parts = np.where((goes_left[None] & offered[..., None])[:, :, None], parts, 0)
            parts[:, :, 2, 0][~offered] = curve.address(minus)[0]  # a sum of Hessians of -1
            made.append(self.key.blinded(parts.reshape(-1, 3, growing.width), values, owner=self.owner))
        del kept  # its memory was added up until here
        return made


def _sorted(told: TreePart, growing: Growing) -> tuple[Whole, Whole]:
    """The rows of each column's cells one after the other, and where each cell begins."""
    counts = np.stack([growing.open[node].counts for node in told.nodes], axis=1)  # [columns, nodes, width]
    order = told.rows[np.argsort(told.cells, axis=1, kind="stable")].reshape(-1)
    return order, np.concatenate([[0], np.cumsum(counts.reshape(-1))]).astype(np.int64)


@dataclass(frozen=True, eq=False)
class Growing:
    """A round under way. Nothing here changes: each step makes a new one."""

    batch: str
    number: int
    slopes: Slopes
    sampled: Whole  # places in the batch of the rows that are learned from
    all_bins: NDArray[np.uint8]  # [columns, rows of the batch]
    bins: NDArray[np.uint8]  # [columns, sampled rows]
    gap: int
    candidates: Candidates
    least: int
    node: NDArray[np.int64]  # [trees, rows of the batch]
    open: dict[int, Node]
    told: list[TreePart]
    count: int  # nodes so far
    parted: frozenset[int] = frozenset()  # those that this party has split

    @classmethod
    def begin(
        cls,
        batch: str,
        number: int,
        slopes: Slopes,
        sampled: Whole,
        bins: NDArray[np.uint8],
        binning: Binning,
        candidates: Candidates,
        least: int,
        counts: Whole | None = None,
    ) -> Growing:
        """With the roots; `bins` are [columns, rows of the batch], and `counts` of all these where they are known."""
        whole = len(sampled) == bins.shape[1]
        trees, mine = slopes.trees, bins if whole else bins.take(sampled, axis=1)
        counts = counts if whole and counts is not None else counted(mine, 1, binning.gap + 1)[0]
        offer = offered(counts[None, None], candidates, None, least)[0]
        every = np.arange(len(sampled))
        roots = {tree: Node(tree, bins.shape[1], counts, offer) for tree in range(trees)}
        told = [TreePart(tree, [tree], every, mine) for tree in range(trees)]
        node = np.repeat(np.arange(trees)[:, None], bins.shape[1], axis=1)
        return cls(batch, number, slopes, sampled, bins, mine, binning.gap, candidates, least, node, roots, told, trees)

    @property
    def width(self) -> int:
        """Bins of a column, the one for gaps among them."""
        return self.gap + 1

    @property
    def told_nodes(self) -> list[int]:
        return [node for told in self.told for node in told.nodes]

    @property
    def offered(self) -> Flags:
        """What may be told about each of these nodes, [nodes, candidates]."""
        nodes = self.told_nodes
        return np.array([self.open[node].offered for node in nodes]).reshape(len(nodes), len(self.candidates))

    def sums(self) -> Tensor | Encrypted:
        return self.slopes.sums(self)

    def goes_left(self, chosen: Mapping[int, int]) -> NDArray[np.float32]:
        """Which rows go left by the candidates that are chosen for nodes, [rows of the batch, trees]."""
        numbers, nodes = np.array(list(chosen.values())), list(chosen)
        column, answers = np.zeros(self.count, dtype=np.int64), np.zeros(self.count, dtype=np.int64)
        column[nodes] = self.candidates.column[numbers] * self.all_bins.shape[1]
        answers[nodes] = (1 + np.arange(len(nodes))) * self.width
        going = np.concatenate([np.zeros((1, self.width), dtype=np.float32), self._left_bins(numbers)]).reshape(-1)
        made, rows = np.zeros(self.node.shape, dtype=np.float32), np.arange(self.node.shape[1])
        for tree in {self.open[node].tree for node in nodes}:
            bins = self.all_bins.reshape(-1).take(column.take(self.node[tree]) + rows)
            made[tree] = going.take(answers.take(self.node[tree]) + bins)
        return made.T

    def all_going_left(self, candidates: Sequence[int]) -> NDArray[np.float32]:
        """Which of all rows each of these candidates sends left, [rows of the batch, candidates]."""
        numbers = np.array(candidates)
        going, bins = self._left_bins(numbers), self.all_bins[self.candidates.column[numbers]]
        return np.stack([by_bin.take(mine) for by_bin, mine in zip(going, bins, strict=True)], axis=1)

    def _left_bins(self, numbers: Whole) -> NDArray[np.float32]:
        """Which bins of its column each candidate sends left, [candidates, width]: 1 or 0."""
        return self.candidates[numbers].left_bins(self.width).astype(np.float32)

    def divided(self, directions: NDArray[np.uint8]) -> Growing:
        """Everybody's splits of one level, as [rows, trees] directions: the children, and sums of the smaller ones.
        ValueError where directions are not of whole nodes that may be split."""
        if directions.max(initial=0) > RIGHT:
            raise ValueError("a row stays, goes left or goes right")
        way = 3 * self.node + directions.T
        ways = np.bincount(way.reshape(-1), minlength=3 * self.count).reshape(-1, 3)
        goes = ways[:, LEFT] + ways[:, RIGHT] > 0
        if (goes & (ways[:, STAYS] > 0)).any():
            raise ValueError("some rows of a node stay where others go on")
        parents = np.flatnonzero(goes)
        if not self.open.keys() >= set(parents.tolist()):
            raise ValueError("rows go on below a leaf")
        after = np.repeat(np.arange(self.count)[:, None], 3, axis=1)
        after[parents, LEFT] = self.count + 2 * np.arange(len(parents))
        after[parents, RIGHT] = after[parents, LEFT] + 1
        node, sizes = after.reshape(-1).take(way), ways[parents, LEFT:]
        return self._with_children(node, [self.open[parent] for parent in parents.tolist()], sizes)

    def _with_children(self, node: NDArray[np.int64], parents: list[Node], sizes: Whole) -> Growing:
        """Children have numbers in the order of their parents, so those of one tree are side by side; they have
        [parents, 2] rows."""
        if not parents:
            return replace(self, node=node, open={}, told=[])
        count = self.count + 2 * len(parents)
        mine, rows = node, sizes
        if len(self.sampled) < node.shape[1]:
            mine = node.take(self.sampled, axis=1)
            rows = np.bincount(mine.reshape(-1), minlength=count)[self.count :].reshape(-1, 2)
        place = np.where(rows[:, 0] <= rows[:, 1], 0, 1)
        smaller = self.count + 2 * np.arange(len(parents)) + place
        trees = np.array([parent.tree for parent in parents])
        told = [self._told(tree, smaller[trees == tree], mine[tree], count) for tree in np.unique(trees).tolist()]
        few = np.concatenate([counted(one.cells, len(one.nodes), self.width) for one in told])
        many = np.stack([parent.counts for parent in parents]) - few
        before = np.stack([parent.offered for parent in parents])
        offer = offered(np.stack([few, many]), self.candidates, before, self.least)
        made: dict[int, Node] = {}
        for at, (parent, small) in enumerate(zip(parents, place.tolist(), strict=True)):
            for side, size in enumerate(sizes[at].tolist()):
                counts = few[at] if side == small else many[at]
                made[self.count + 2 * at + side] = Node(parent.tree, size, counts, offer[at])
        return replace(self, node=node, open=made, told=told, count=count)

    def _told(self, tree: int, nodes: Whole, node: Whole, count: int) -> TreePart:
        place = np.full(count, -1)
        place[nodes] = np.arange(len(nodes))
        of = place.take(node)
        rows = np.flatnonzero(of >= 0)
        wide = np.uint16 if len(nodes) * self.width < 2**16 else np.uint32
        cells = self.bins.take(rows, axis=1) + (of[rows] * self.width).astype(wide)
        return TreePart(tree, nodes.tolist(), rows, cells)
