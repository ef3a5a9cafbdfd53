"""Trees as torch models, to be exported: a party's thresholds, and the label owner's
trees over all directions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor, nn

from colonnade.algorithms.algorithm import HeadInputs, TableInputs
from colonnade.algorithms.tree_owner import HALF, SplitTable, gaps_of, no_splits
from colonnade.algorithms.tree_parts import NodeTable

KINDS = {"value": torch.float64, "absent_left": torch.bool}


class Thresholds(nn.Module):
    """A party's piece: 1 or 0 for each of its splits and rows; a column with gaps has
    another that says where."""

    column: Tensor
    threshold: Tensor
    gaps_left: Tensor
    mark: Tensor
    is_mark: Tensor

    def __init__(self, rounds: Sequence[SplitTable], gaps: Mapping[int, int]) -> None:
        super().__init__()
        tables = [no_splits(), *rounds]
        for name in ("column", "threshold", "gaps_left"):
            self.register_buffer(
                name, torch.cat([table[name].cpu() for table in tables])
            )
        columns = self.column.tolist()
        marks = set(gaps.values())
        self.register_buffer(
            "mark",
            torch.tensor(
                [gaps.get(column, -1) for column in columns], dtype=torch.int64
            ),
        )
        self.register_buffer(
            "is_mark",
            torch.tensor([column in marks for column in columns], dtype=torch.bool),
        )

    def forward(self, rows: Tensor) -> Tensor:
        flat = rows.flatten(1)
        values = torch.where(self.is_mark, 0.0, flat[:, self.column]).double()
        missing = values.isnan() | (
            (self.mark >= 0) & (flat[:, self.mark.clamp_min(0)] > HALF)
        )
        return torch.where(missing, self.gaps_left, values <= self.threshold).float()


class Trees(nn.Module):
    """The label owner's piece: from directions, NaN for rows that a party lacks, to the
    joint model's outputs."""

    base: Tensor
    said: Tensor
    left: Tensor
    right: Tensor
    value: Tensor
    roots: Tensor
    absent_left: Tensor

    def __init__(self, given: HeadInputs[Any]) -> None:
        super().__init__()
        rounds: Sequence[NodeTable] = given.state["rounds"]
        self.outputs = given.outputs
        self.rounds = len(rounds)
        self.depth = 0
        self.is_forest = given.config.is_forest and len(rounds) > 0
        poisson = given.config.loss == "poisson"
        self.units = (given.mean, given.scale) if poisson else None
        first = list(accumulate(given.widths, initial=0))[:-1]
        nodes = 0
        parts: dict[str, list[Tensor]] = {
            name: [] for name in (*KINDS, "said", "left", "right", "roots")
        }
        for table in rounds:
            party = table["party"].cpu()
            inner = party >= 0
            parts["said"].append(
                torch.where(
                    inner,
                    torch.tensor(first)[party.clamp_min(0)] + table["split"].cpu(),
                    -1,
                )
            )
            for name in ("left", "right"):
                parts[name].append(torch.where(inner, table[name].cpu() + nodes, -1))
            for name, kind in KINDS.items():
                parts[name].append(
                    table.get(name, torch.zeros(len(party), dtype=kind)).cpu()
                )
            parts["roots"].append(nodes + torch.arange(given.outputs))
            self.depth = max(self.depth, _depth(table))
            nodes += len(party)
            first = [column + int((party == k).sum()) for k, column in enumerate(first)]
        for name, tensors in parts.items():
            none = torch.zeros(0, dtype=KINDS.get(name, torch.int64))
            self.register_buffer(name, torch.cat([none, *tensors]))
        base = given.state.get("base")
        self.register_buffer(
            "base",
            (
                torch.zeros(given.outputs, dtype=torch.float64)
                if base is None
                else base.cpu()
            ),
        )

    def forward(self, parts: list[Tensor]) -> Tensor:
        directions = torch.cat(parts, 1)
        node = self.roots.expand(directions.shape[0], -1)
        for _ in range(self.depth):
            column = self.said[node]  # of its split among the directions; -1 in a leaf
            bit = directions.gather(1, column.clamp_min(0))
            goes_left = torch.where(bit.isnan(), self.absent_left[node], bit > HALF)
            below = torch.where(goes_left, self.left[node], self.right[node])
            node = torch.where(column >= 0, below, node)
        added = self.value[node].reshape(directions.shape[0], self.rounds, self.outputs)
        scores = self.base + (added.mean(1) if self.is_forest else added.sum(1))
        if self.units is not None:
            scores = (scores.exp() - self.units[0]) / self.units[1]
        return scores.float()


def thresholds(given: TableInputs) -> Thresholds:
    return Thresholds(given.state["rounds"], gaps_of(dict(given.fitted)))


def splits_by_party(
    state: Mapping[str, Any], parties: Sequence[str]
) -> dict[str, tuple[int, ...]]:
    """How many bits each party sends for a row: one for each of its splits."""
    return {
        name: (sum(int((table["party"] == k).sum()) for table in state["rounds"]),)
        for k, name in enumerate(parties)
    }


def _depth(table: NodeTable) -> int:
    """How many splits the longest way to a leaf passes; children come after their
    parents."""
    depth = [0] * len(table["party"])
    for node, (left, right) in enumerate(
        zip(table["left"].tolist(), table["right"].tolist(), strict=True)
    ):
        if left >= 0:
            depth[left] = depth[right] = depth[node] + 1
    return max(depth, default=0)
