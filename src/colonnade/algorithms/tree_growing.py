"""What a party with columns keeps while a round of trees grows: bins, gradients it may
not be able to read, and nodes.

Trees of one round (one for each output) grow level by level, all at once. Their roots
are nodes 0, 1, ..; the children of the nodes that are split get the next numbers, in
the order of their parents, left before right. A party reports sums of the child with
fewer rows; the other child's are the parent's minus these.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

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

STAYS = 0
LEFT = 1
RIGHT = 2
"""Where a row of a node goes; in a leaf it stays."""
LINES = 1 << 13  # sums that are blinded at a time


class Node(NamedTuple):
    """A node that may still be split, with its sampled rows by bin and the candidates
    that may be reported."""

    tree: int
    size: int  # rows of the batch
    counts: Whole  # [columns, width]
    offered: Flags  # [candidates]


class TreePart(NamedTuple):
    """Nodes of one tree whose sums are reported, and where each of their rows is
    counted."""

    tree: int
    nodes: list[int]
    rows: Whole  # among the sampled ones
    # [columns, rows]: a row's place in `nodes`, times the width, and its bin
    cells: NDArray[np.unsignedinteger]


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
    def packed(self) -> tuple[Floats, float] | None:
        """g room + h, [trees, rows], and room, where whole numbers whose sums fit side
        by side into a float64."""
        room = float(2 ** int(max(self.h.sum(), 1)).bit_length())
        fits = np.abs(self.g).sum() * room < 2**51
        whole = (
            fits
            and (self.g == np.rint(self.g)).all()
            and (self.h == np.rint(self.h)).all()
        )
        return (
            (np.ascontiguousarray((self.g * room + self.h).T), room) if whole else None
        )

    def sums(self, growing: Growing) -> Tensor:
        """For every reported node and every candidate the sums of what goes left,
        [nodes, candidates, 2]."""
        sums = np.empty((len(growing.reported_nodes), len(growing.candidates), 2))
        start = 0
        for part in growing.reported:
            nodes = slice(start, start + len(part.nodes))
            for place, by_bin in enumerate(self._by_bin(part, growing.width)):
                sums[nodes, :, place] = of_candidates(by_bin, growing.candidates)
            start = nodes.stop
        sums[~growing.offered] = 0.0, NOT_OFFERED
        return torch.from_numpy(sums)

    def _by_bin(self, part: TreePart, width: int) -> tuple[Floats, Floats]:
        """Sums of g and of h, [nodes, columns, width] each."""
        nodes = len(part.nodes)
        if self.packed is not None:
            weights, room = self.packed
            both = summed(part.cells, weights[part.tree].take(part.rows), nodes, width)
            g = np.floor(both / room)
            return g, both - g * room
        g, h = (
            summed(part.cells, values[part.rows, part.tree], nodes, width)
            for values in (self.g, self.h)
        )
        return g, h


@dataclass(frozen=True, eq=False)
class SealedSlopes:
    """Gradients and Hessians under a key, [rows, 1 + 2 trees, 64]; where nodes are
    hidden, each is a tree here."""

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
        """The same sums, encrypted, [nodes candidates, 2]."""
        blinded = []
        lines = len(growing.reported_nodes) * len(growing.candidates)
        before: tuple[TreePart, Whole, Whole] | None = None
        for part in growing.reported:
            # trees begin with the same rows
            if before is None or before[0].cells is not part.cells:
                before = part, *_sorted(part, growing)
            blinded += self._of_tree(growing, *before[1:], part)
        return self.key.wrap_lines(b"".join(blinded), (lines, 2))

    def _of_tree(
        self, growing: Growing, order: Whole, starts: Whole, part: TreePart
    ) -> list[bytes]:
        """Sums for all nodes of a tree, blinded in pieces that memory can hold."""
        values = 2 * part.tree, 2 * part.tree + 1
        sums = self.key.group_sums(self.points, order, starts, values, owner=self.owner)
        candidates = growing.candidates
        goes_left = candidates.left_bins(growing.width)
        places = np.where(
            np.diff(starts) > 0, np.arange(sums[..., 0].size).reshape(-1, 3).T, -1
        )
        by_bin = places.reshape(3, -1, len(part.nodes), growing.width)
        points = np.concatenate(
            [sums.reshape(-1, curve.POINT_BYTES), curve.base_multiple(-1)]
        )
        offers = np.stack([growing.open[node].offered for node in part.nodes])
        size = max(1, LINES // max(len(candidates), 1))
        blinded = []
        for first in range(0, len(part.nodes), size):
            offered = offers[first : first + size]
            terms = by_bin[:, candidates.column, first : first + size].transpose(
                2, 1, 0, 3
            )
            terms = np.where(
                (goes_left[None] & offered[..., None])[:, :, None], terms, -1
            )
            terms[:, :, 2, 0][~offered] = len(points) - 1  # a sum of Hessians of -1
            blinded.append(
                self.key.blind(
                    points,
                    terms.reshape(-1, 3, growing.width),
                    values,
                    owner=self.owner,
                )
            )
        return blinded


Slopes = PlainSlopes | SealedSlopes
"""Gradients and Hessians of the sampled rows."""


def _sorted(part: TreePart, growing: Growing) -> tuple[Whole, Whole]:
    """The rows of each column's cells one after the other, and where each cell begins."""
    # [columns, nodes, width]
    counts = np.stack([growing.open[node].counts for node in part.nodes], axis=1)
    order = part.rows[np.argsort(part.cells, axis=1, kind="stable")].reshape(-1)
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
    width: int  # the number of bins of a column, with the one for gaps
    candidates: Candidates
    least: int
    node: NDArray[np.int64]  # [trees, rows of the batch]
    open: dict[int, Node]
    reported: list[TreePart]
    count: int  # nodes so far
    parted: frozenset[int] = frozenset()  # nodes that this party has split

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
        """Begin with the roots; `bins` are [columns, rows of the batch], and `counts`
        their rows, if known."""
        whole = len(sampled) == bins.shape[1]
        trees = slopes.trees
        used = bins if whole else bins.take(sampled, axis=1)
        width = binning.gap + 1
        counts = counts if whole and counts is not None else counted(used, 1, width)[0]
        offer = offered(counts[None, None], candidates, None, least)[0]
        every = np.arange(len(sampled))
        roots = {
            tree: Node(tree, bins.shape[1], counts, offer) for tree in range(trees)
        }
        parts = [TreePart(tree, [tree], every, used) for tree in range(trees)]
        node = np.repeat(np.arange(trees)[:, None], bins.shape[1], axis=1)
        return cls(
            batch,
            number,
            slopes,
            sampled,
            bins,
            used,
            width,
            candidates,
            least,
            node,
            roots,
            parts,
            trees,
        )

    @property
    def reported_nodes(self) -> list[int]:
        return [node for part in self.reported for node in part.nodes]

    @property
    def offered(self) -> Flags:
        """Which candidates may be reported for each of these nodes, [nodes,
        candidates]."""
        nodes = self.reported_nodes
        return np.array([self.open[node].offered for node in nodes]).reshape(
            len(nodes), len(self.candidates)
        )

    def goes_left(self, chosen: Mapping[int, int]) -> NDArray[np.float32]:
        """Which rows go left by the candidates that are chosen for nodes, [rows of the
        batch, trees]."""
        numbers = np.array(list(chosen.values()))
        nodes = list(chosen)
        column = np.zeros(self.count, dtype=np.int64)
        answers = np.zeros(self.count, dtype=np.int64)
        column[nodes] = self.candidates.column[numbers] * self.all_bins.shape[1]
        answers[nodes] = (1 + np.arange(len(nodes))) * self.width
        left_by_answer = np.concatenate(
            [np.zeros((1, self.width), dtype=np.float32), self._left_bins(numbers)]
        ).reshape(-1)
        left = np.zeros(self.node.shape, dtype=np.float32)
        rows = np.arange(self.node.shape[1])
        for tree in {self.open[node].tree for node in nodes}:
            bins = self.all_bins.reshape(-1).take(column.take(self.node[tree]) + rows)
            left[tree] = left_by_answer.take(answers.take(self.node[tree]) + bins)
        return left.T

    def all_going_left(self, candidates: Sequence[int]) -> NDArray[np.float32]:
        """Which of all rows each of these candidates sends left, [rows of the batch,
        candidates]."""
        numbers = np.array(candidates)
        left_by_bin = self._left_bins(numbers)
        bins = self.all_bins[self.candidates.column[numbers]]
        return np.stack(
            [
                by_bin.take(column_bins)
                for by_bin, column_bins in zip(left_by_bin, bins, strict=True)
            ],
            axis=1,
        )

    def _left_bins(self, numbers: Whole) -> NDArray[np.float32]:
        """Which bins of its column each candidate sends left, [candidates, width]: 1 or
        0."""
        return self.candidates[numbers].left_bins(self.width).astype(np.float32)

    def divided(self, directions: NDArray[np.uint8]) -> Growing:
        """Apply everybody's splits of one level, given as [rows, trees] directions:
        nodes become their children. ValueError where directions are not of whole nodes
        that may be split."""
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
        node = after.reshape(-1).take(way)
        sizes = ways[parents, LEFT:]
        return self._with_children(
            node, [self.open[parent] for parent in parents.tolist()], sizes
        )

    def _with_children(
        self, node: NDArray[np.int64], parents: list[Node], sizes: Whole
    ) -> Growing:
        """Give the parents children, numbered in the order of their parents; `sizes`
        are their rows, [parents, 2]."""
        if not parents:
            return replace(self, node=node, open={}, reported=[])
        count = self.count + 2 * len(parents)
        sampled_node = node
        rows = sizes
        if len(self.sampled) < node.shape[1]:
            sampled_node = node.take(self.sampled, axis=1)
            rows = np.bincount(sampled_node.reshape(-1), minlength=count)[
                self.count :
            ].reshape(-1, 2)
        smaller_side = np.where(rows[:, 0] <= rows[:, 1], 0, 1)
        smaller = self.count + 2 * np.arange(len(parents)) + smaller_side
        trees = np.array([parent.tree for parent in parents])
        reported = [
            self._tree_part(tree, smaller[trees == tree], sampled_node[tree], count)
            for tree in np.unique(trees).tolist()
        ]
        few = np.concatenate(
            [counted(part.cells, len(part.nodes), self.width) for part in reported]
        )
        many = np.stack([parent.counts for parent in parents]) - few
        before = np.stack([parent.offered for parent in parents])
        offer = offered(np.stack([few, many]), self.candidates, before, self.least)
        children: dict[int, Node] = {}
        for pair, (parent, small) in enumerate(
            zip(parents, smaller_side.tolist(), strict=True)
        ):
            for side, size in enumerate(sizes[pair].tolist()):
                counts = few[pair] if side == small else many[pair]
                children[self.count + 2 * pair + side] = Node(
                    parent.tree, size, counts, offer[pair]
                )
        return replace(self, node=node, open=children, reported=reported, count=count)

    def _tree_part(self, tree: int, nodes: Whole, node: Whole, count: int) -> TreePart:
        """The part of one tree with these nodes; `node` is that of each sampled row."""
        place_of_node = np.full(count, -1)
        place_of_node[nodes] = np.arange(len(nodes))
        places = place_of_node.take(node)
        rows = np.flatnonzero(places >= 0)
        dtype = np.uint16 if len(nodes) * self.width < 2**16 else np.uint32
        cells = self.bins.take(rows, axis=1) + (places[rows] * self.width).astype(dtype)
        return TreePart(tree, nodes.tolist(), rows, cells)
