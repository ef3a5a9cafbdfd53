"""What each party has of a round of trees, as the label owner keeps it where not
everybody holds all rows.

A party hears only about its own rows, so its sums are of these, and it numbers only
nodes that have one of them. So the label owner keeps for each party which rows it
holds, its numbers of nodes, and of which child it reports sums. All rows that a party
lacks go to one side of its split: the side on which they gain most, which the label
owner finds by itself, since it knows their gradients.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from colonnade.algorithms.tree_histograms import NOT_OFFERED, Flags, Floats, Whole
from colonnade.core import Ciphertext, Released
from colonnade.errors import WireError

NodeTable = dict[str, Tensor]
"""A round's nodes: the `party` whose split it is (-1: a leaf), the number of that
`split` among the party's own of the round, the children `left` and `right`, what a leaf
adds to its tree's score (`value`), what a split gained (`gain`), and whether rows that
its party lacks go left (`absent_left`); and for each party whether it took part
(`asked`)."""
T = TypeVar("T")
Lines = TypeVar("Lines", Tensor, Floats)


class Part:
    """One party's part. `held` says which rows of the batch it holds, None for all;
    `asked`, whether it takes part in the round: it must hold a row that is learned
    from."""

    def __init__(self, held: Flags | None, sampled: Whole, trees: int) -> None:
        self.held = held
        self.rows: Whole | None = None if held is None else np.flatnonzero(held)
        self.sampled = sampled if held is None else sampled[held[sampled]]
        self.asked = len(self.sampled) > 0
        self.count = trees
        self._numbers = {tree: tree for tree in range(trees)}
        # for each pair of the last level, the child it reports; -1: it knows neither
        self.small: list[int] = []

    def number(self, node: int) -> int:
        """A node's number at this party."""
        return node if self.held is None else self._numbers[node]

    def of_batch(self, lines: Lines) -> Lines:
        """The lines of its own rows, among those for the rows of a batch."""
        return lines if self.rows is None else lines[self.rows]

    def of_sampled(self, lines: Floats, sampled: Whole) -> Floats:
        """The lines of its own rows, among those for the rows that are learned from."""
        return lines if self.held is None else lines[self.held[sampled]]

    def divide(
        self,
        before: Whole,
        after: Whole,
        parents: Sequence[int],
        children: Sequence[tuple[int, int]],
    ) -> None:
        """Number the children of nodes that were split; `before` and `after` are
        [trees, rows of the batch]."""
        nodes = max((child for pair in children for child in pair), default=0) + 1
        assert self.rows is not None
        known = (
            np.bincount(before.take(self.rows, axis=1).reshape(-1), minlength=nodes) > 0
        )
        rows = np.bincount(
            after.take(self.sampled, axis=1).reshape(-1), minlength=nodes
        )
        self.small = []
        for parent, (left, right) in zip(parents, children, strict=True):
            if not known[parent]:
                self.small.append(-1)
                continue
            self._numbers |= {left: self.count, right: self.count + 1}
            self.count += 2
            self.small.append(left if rows[left] <= rows[right] else right)

    @property
    def reported(self) -> list[int]:
        """The nodes of this level whose sums it reports."""
        return [node for node in self.small if node >= 0]


def not_offered(nodes: int, candidates: int) -> Floats:
    """Sums that offer no candidate."""
    sums = np.zeros((nodes, candidates, 2))
    sums[..., 1] = NOT_OFFERED
    return sums


def shape_of(
    sums: Released | Ciphertext, nodes: int, before: int | None, most: int
) -> tuple[int, int, int]:
    """The numbers of nodes, of candidates (as many as `before` in this round, at most
    `most`), and of sums: 2."""
    if isinstance(sums, Ciphertext):
        candidates = sums.shape[0] // nodes if sums.shape else 0
    else:
        candidates = sums.shape[1] if len(sums.shape) == 3 else 0
    shape = nodes, candidates, 2
    sent = shape if isinstance(sums, Released) else (nodes * candidates, 2)
    if tuple(sums.shape) != sent or not (
        candidates <= most if before is None else candidates == before
    ):
        wanted = f"at most {most}" if before is None else str(before)
        raise WireError(
            f"it sent {list(sums.shape)} sums of {nodes} nodes with {wanted} candidates"
            " and 2 sums each"
        )
    return shape


def once_for_all(
    parts: Mapping[str, Part],
    make: Callable[[str, Part], T],
    kinds: Mapping[str, bool] | None = None,
) -> dict[str, T]:
    """What each party is sent: made once for all of a kind that hold all rows, and
    separately for the others."""
    shared: dict[bool, T] = {}
    sent: dict[str, T] = {}
    for party, part in parts.items():
        kind = (kinds or {}).get(party, False)
        if part.held is None and kind not in shared:
            shared[kind] = make(party, part)
        sent[party] = shared[kind] if part.held is None else make(party, part)
    return sent


def rounds_with(rounds: Sequence[NodeTable], party: int) -> int:
    """In how many rounds a party took part: it counts no others."""
    return sum(
        bool(table["asked"][party]) if "asked" in table else True for table in rounds
    )


def absent_left(table: NodeTable, party: int) -> Flags:
    """For each split of a party in a round, in its order, whether rows that the party
    lacks go left."""
    nodes = torch.nonzero(table["party"] == party).flatten()
    flags: Tensor = table.get(
        "absent_left", torch.zeros(len(table["party"]), dtype=torch.bool)
    )
    return flags[nodes[table["split"][nodes].argsort()]].numpy()


def completed(
    table: NodeTable,
    party: int,
    directions: Flags | None,
    lacks: Flags | None,
    rows: int,
) -> Flags:
    """A party's directions in a round, [rows, splits]; rows that it lacks go as the
    label owner learned."""
    learned = absent_left(table, party)
    if directions is None:
        return np.tile(learned, (rows, 1))
    return (
        directions
        if lacks is None
        else np.where(lacks[:, None], learned[None], directions)
    )
