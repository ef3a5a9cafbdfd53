"""What a party with columns keeps while a round of trees grows: bins, gradients it may not be able to read, and nodes.

Trees of one round (one for each output) grow level by level, all at once. Their roots are nodes 0, 1, ..; the children
of the nodes that are split get the next numbers, in the order of their parents, left before right. Sums are told of the
child with fewer rows; whoever knows the parent's subtracts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
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


class Node(NamedTuple):
    """One that may still be split: which tree's, its sampled rows, its rows by bin, and what may be told about it."""

    tree: int
    rows: Whole
    counts: Whole
    offered: Flags
    bins: NDArray[np.uint8] | None = None  # of its rows, [columns, rows], where sums of them are told


class Slopes(Protocol):
    """Gradients and Hessians of the sampled rows: plain or encrypted."""

    @property
    def rows(self) -> int: ...

    @property
    def trees(self) -> int: ...

    def sums(self, growing: Growing, nodes: Sequence[Node]) -> Tensor | Encrypted:
        """Of every node and candidate the sums of what goes left, [nodes, candidates, 2]."""
        ...


@dataclass(frozen=True, eq=False)
class PlainSlopes:
    """As they are, [rows, trees] each."""

    g: Floats
    h: Floats

    @property
    def rows(self) -> int:
        return len(self.g)

    @property
    def trees(self) -> int:
        return int(self.g.shape[1])

    def sums(self, growing: Growing, nodes: Sequence[Node]) -> Tensor:
        made = np.zeros((len(nodes), len(growing.candidates), 2))
        for at, node in enumerate(nodes):
            assert node.bins is not None
            bins = node.bins
            for place, part in enumerate(self._by_bin(bins, node, growing.width)):
                made[at, :, place] = of_candidates(part, growing.candidates)
            made[at, ~node.offered] = 0.0, NOT_OFFERED
        return torch.from_numpy(made)

    def _by_bin(self, bins: NDArray[np.uint8], node: Node, width: int) -> tuple[Floats, Floats]:
        """Both sums in one go where they are whole numbers that fit beside each other into a float64."""
        g, h = self.g[node.rows, node.tree], self.h[node.rows, node.tree]
        room = float(2 ** int(max(h.sum(), 1)).bit_length())
        if np.abs(g).sum() * room < 2**51 and (g == np.rint(g)).all() and (h == np.rint(h)).all():
            both = summed(bins, g * room + h, width)
            first = np.floor(both / room)
            return first, both - first * room
        return summed(bins, g, width), summed(bins, h, width)


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

    def sums(self, growing: Growing, nodes: Sequence[Node]) -> Encrypted:
        minus, made = curve.base(-1), []
        candidates, width = growing.candidates, growing.width
        goes_left = np.arange(width)[None, :] <= candidates.last[:, None]
        goes_left[:, growing.gap] = candidates.gaps_left
        for node in nodes:
            values = 2 * node.tree, 2 * node.tree + 1
            assert node.bins is not None
            bins = node.bins
            order, starts = _sorted(bins, node.rows, node.counts)
            kept, lie = self.key.sums_of(self.points, order, starts, values, owner=self.owner)
            by_bin = lie.reshape(3, len(bins), width)[:, candidates.column]  # [3, candidates, width]
            parts = np.where((goes_left & node.offered[:, None])[None], by_bin, 0)
            parts[2, ~node.offered, 0] = curve.address(minus)[0]  # a sum of Hessians of -1
            made.append(self.key.blinded(np.ascontiguousarray(parts.transpose(1, 0, 2)), values, owner=self.owner))
            del kept  # its memory was added up until here
        return self.key.written(np.concatenate(made), (len(nodes) * len(candidates), 2))


def _sorted(bins: NDArray[np.uint8], rows: Whole, counts: Whole) -> tuple[Whole, Whole]:
    """The rows of each column's bins one after the other, and where each bin begins."""
    order = rows[np.argsort(bins, axis=1, kind="stable")].reshape(-1)
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
    node: NDArray[np.int32]  # [rows of the batch, trees]
    open: dict[int, Node]
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
    ) -> Growing:
        """With the roots; `bins` are [columns, rows of the batch]."""
        trees, mine = slopes.trees, bins if len(sampled) == bins.shape[1] else bins[:, sampled]
        counts = counted(mine, binning.gap + 1)
        told = offered(counts[None, None], candidates, None, least)[0]
        every = np.arange(len(sampled))
        roots = {tree: Node(tree, every, counts, told, mine) for tree in range(trees)}
        node = np.tile(np.arange(trees, dtype=np.int32), (bins.shape[1], 1))
        return cls(batch, number, slopes, sampled, bins, mine, binning.gap, candidates, least, node, roots, trees)

    @property
    def width(self) -> int:
        """Bins of a column, the one for gaps among them."""
        return self.gap + 1

    def sums(self, nodes: Sequence[int]) -> Tensor | Encrypted:
        return self.slopes.sums(self, [self.open[node] for node in nodes])

    def goes_left(self, node: int, candidate: int) -> tuple[Whole, Flags]:
        """The rows of a node, by their places in the batch, and which of them a candidate sends left."""
        rows = np.flatnonzero(self.node[:, self.open[node].tree] == node)
        mine = self.all_bins[self.candidates.column[candidate], rows]
        return rows, self.candidates.left(candidate, mine, self.gap)

    def divided(self, directions: NDArray[np.uint8]) -> tuple[Growing, list[int]]:
        """Everybody's splits of one level, as [rows, trees] directions; the children, and those whose sums are told.
        ValueError where directions are not of whole nodes that may be split."""
        node, count = self.node.copy(), self.count
        parents: list[tuple[Node, int, int]] = []
        known = np.zeros(directions.shape, dtype=np.bool_)
        for number, parent in sorted(self.open.items()):
            rows = np.flatnonzero(self.node[:, parent.tree] == number)
            going = directions[rows, parent.tree]
            known[rows, parent.tree] = True
            if not going.any():
                continue
            if not (going != STAYS).all():
                raise ValueError("some rows of a node stay where others go on")
            node[rows, parent.tree] = np.where(going == LEFT, count, count + 1)
            parents.append((parent, count, count + 1))
            count += 2
        if directions[~known].any():
            raise ValueError("rows go on below a leaf")
        return self._with_children(node, parents, count)

    def _with_children(
        self, node: NDArray[np.int32], parents: list[tuple[Node, int, int]], count: int
    ) -> tuple[Growing, list[int]]:
        smaller: list[int] = []
        halves: list[tuple[int, Whole, Whole, NDArray[np.uint8], Whole]] = []
        for parent, left, right in parents:
            goes = node[self.sampled[parent.rows], parent.tree] == left
            small, large = (left, right) if 2 * int(goes.sum()) <= len(goes) else (right, left)
            mine, others = (parent.rows[goes == (one == left)] for one in (small, large))
            smaller.append(small)
            bins = self.bins.take(mine, axis=1)
            halves.append((large, mine, others, bins, counted(bins, self.width)))
        made: dict[int, Node] = {}
        if parents:
            few = np.stack([counts for *_, counts in halves])
            many = np.stack([parent.counts for parent, *_ in parents]) - few
            before = np.stack([parent.offered for parent, *_ in parents])
            told = offered(np.stack([few, many]), self.candidates, before, self.least)
            for at, ((parent, *_), small, (large, mine, others, bins, counts)) in enumerate(
                zip(parents, smaller, halves, strict=True)
            ):
                made[small] = Node(parent.tree, mine, counts, told[at], bins)
                made[large] = Node(parent.tree, others, many[at], told[at])
        return replace(self, node=node, open=made, count=count), smaller
