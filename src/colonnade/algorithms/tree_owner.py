"""Boosted trees at a party with columns: its bins, the rounds it takes part in, and the
thresholds that were chosen.

It answers a label owner as its own settings say. It knows which rows are in which node,
and gradients only encrypted.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from colonnade.algorithms.algorithm import Kind
from colonnade.algorithms.tree_growing import Growing, PlainSlopes, SealedSlopes, Slopes
from colonnade.algorithms.tree_histograms import Binning, Candidates, Whole, counted
from colonnade.algorithms.under_key import Keyed
from colonnade.compression import Integers
from colonnade.core import (
    NON_PRIVATE,
    Ciphertext,
    Done,
    Message,
    Organisation,
    Plain,
    Released,
    Request,
    Rule,
    State,
    serves,
)
from colonnade.datasets.fitted import Number
from colonnade.datasets.preprocess import Preprocessor
from colonnade.encryption.elgamal import ElGamalPublicKey

ONE_BIT = Integers(0.0, 1.0, 2)
"""How directions are packed: left or not."""
HALF = 0.5
SplitTable = dict[str, Tensor]
"""A party's own splits of a round: column, threshold, gaps_left, rows."""


class Growth(Protocol):
    """The part of the algorithm's Config that a party with columns needs."""

    encryption: str
    nodes: str
    bins: int
    depth: int
    min_rows: int
    column_share: float


class UseKey(Request[Done]):
    public: Released  # the label owner's


class Sums(Message):
    # Of what goes left, [nodes, candidates, 2]; encrypted, [nodes candidates, 2].
    sums: Annotated[Released | Ciphertext, Kind.HISTOGRAMS]


class Start(Request[Sums]):
    """A round begins; the sums are those of its roots. Where nodes are hidden, every
    level begins so, with gradients that are 0 outside a node, in the place of trees."""

    batch: str
    number: int  # rounds before it
    level: int
    # of sampled rows, [rows, trees]; encrypted with the Hessians, [rows, 2 trees]
    gradients: Released | Ciphertext
    hessians: Released | None
    sample: Released | None  # which rows are learned from, [rows, 1]; None: all


class Directions(Message):
    # 1: left. [rows, trees] of this level's splits; hidden, and of whole rounds, [rows,
    # splits].
    values: Annotated[Released, Kind.DIRECTIONS]


class Split(Request[Directions]):
    batch: str
    splits: Released  # [splits, 2]: a node, and the candidate that is chosen for it


class Divide(Request[Sums]):
    """Everybody's splits of one level; the sums are those of the smaller children."""

    batch: str
    nodes: Released  # [rows, trees]: 0 it stays, 1 it goes left, 2 right


class Decide(Request[Directions]):
    batch: str
    first: int  # of all rounds from here
    last: int  # to before this one


class FeatureOwner(Keyed[ElGamalPublicKey]):
    """Holds columns, and the thresholds that were chosen."""

    config: Growth
    stackable = False

    def __init__(
        self,
        organisation: Organisation,
        features: Tensor,
        model: nn.Module,
        config: Any,
    ) -> None:
        super().__init__(organisation, features, model, config)
        self.outbox.rules.setdefault("directions", Rule(codec=ONE_BIT))
        self.rounds: list[SplitTable] = []
        # a key of its own
        self.order = torch.randint(
            256, (32,), generator=self.generator, dtype=torch.uint8
        )
        self._gaps = gaps_of(organisation.fitted)
        self._binned: tuple[Binning, NDArray[np.uint8], Whole, Candidates] | None = None
        self._growing: Growing | None = None

    @serves
    def use_key(self, request: UseKey) -> Done:
        self.expect(
            self.config.encryption == "elgamal",
            "by its own settings nothing is encrypted",
        )
        key = ElGamalPublicKey(request.public.tensor.cpu().numpy().tobytes())
        self.expect(
            key.values % 2 == 0,
            "a key has two values for each tree, and this one an odd number",
        )
        self._expect_trees(key.values // 2)
        return self.keep(key)

    @serves
    def start(self, request: Start, asker: str | None) -> Sums:
        number = request.number
        batch = request.batch
        self.expect(
            0 <= number <= len(self.rounds),
            f"round {number} came, and it has seen {len(self.rounds)}",
        )
        below = request.level > 0
        self.expect(
            not below or self.config.nodes == "hidden",
            "by its own settings it is told the nodes of each level",
        )
        self.expect(
            not below or number == len(self.rounds) - 1,
            f"round {number} goes on, which has not begun",
        )
        rows = self.rows(batch).cpu().numpy()
        chosen = np.arange(len(rows))
        if request.sample is not None:
            self.expect(
                request.sample.shape == (len(rows), 1),
                "the sample has not a line for each row",
            )
            chosen = np.flatnonzero(request.sample.tensor.cpu().numpy()[:, 0] > HALF)
        self.expect(len(chosen) > 0, "a round came that learns from no row")
        slopes = self._slopes(request, asker)
        self._expect_trees(slopes.trees)
        self.expect(
            slopes.rows == len(chosen),
            f"there are gradients of {slopes.rows} rows, not of {len(chosen)}",
        )
        binning, bins, counts, candidates = self._bins()
        columns = len(binning.edges)
        keep = max(1, round(self.config.column_share * len(binning.edges)))
        used = self._shuffled("columns", number, columns)[:keep]
        candidates = candidates[np.isin(candidates.column, used)]
        candidates = candidates[self._shuffled("candidates", number, len(candidates))]
        growing = Growing.begin(
            batch,
            number,
            slopes,
            chosen,
            bins.take(rows, axis=1),
            binning,
            candidates,
            self.config.min_rows,
            counts if len(rows) == len(self._train) else None,
        )
        self.rounds = self.rounds if below else [*self.rounds[:number], no_splits()]
        return self._go_on(growing, asker)

    @serves
    def split(self, request: Split, asker: str | None) -> Directions:
        growing = self._under_way(request.batch)
        splits = request.splits.tensor.cpu()
        self.expect(
            splits.dim() == 2 and splits.shape[1] == 2,
            "a split is a node and a candidate",
        )
        hidden = self.config.nodes == "hidden"
        named = [] if hidden else splits[:, 0].tolist()
        # hidden nodes have siblings unknown here
        most = 2 * growing.slopes.trees if hidden else len(growing.open)
        parted = frozenset(named or [0])
        once = hidden or len(parted) == len(splits)
        self.expect(
            0 < len(splits) <= most and once and not parted & growing.parted,
            "a node is split once",
        )
        # noise hides what is offered
        noisy = not isinstance(self.outbox.rule("sums", request.batch).mechanism, Plain)
        chosen = [
            (0 if hidden else node, candidate)
            for node, candidate in splits.to(torch.int64).tolist()
        ]
        for node, candidate in chosen:
            known = growing.open.get(node)
            exists = known is not None and 0 <= candidate < len(growing.candidates)
            self.expect(
                known is not None
                and exists
                and (noisy or bool(known.offered[candidate])),
                f"candidate {candidate} was not offered for node {node}",
            )
        numbers = [candidate for _, candidate in chosen]
        left = (
            growing.all_going_left(numbers)
            if hidden
            else growing.goes_left(dict(chosen))
        )
        self.rounds = [
            *self.rounds[: growing.number],
            self._with_splits(growing, chosen),
        ]
        self._growing = replace(growing, parted=growing.parted | parted)
        return Directions(
            self.outbox.release(
                torch.from_numpy(left), "directions", request.batch, to=asker
            )
        )

    def _with_splits(
        self, growing: Growing, chosen: Sequence[tuple[int, int]]
    ) -> SplitTable:
        """The round's table with these splits, each a node and a candidate."""
        candidates, (binning, *_) = (
            growing.candidates[np.array([number for _, number in chosen])],
            self._bins(),
        )
        ends = zip(candidates.column.tolist(), candidates.last.tolist(), strict=True)
        added = {
            "column": candidates.column.tolist(),
            "threshold": [binning.threshold(*end) for end in ends],
            "rows": [growing.open[node].size for node, _ in chosen],
            "gaps_left": candidates.gaps_left.tolist(),
        }
        table = self.rounds[growing.number]
        return {
            name: torch.cat([table[name], table[name].new_tensor(added[name])])
            for name in table
        }

    @serves
    def divide(self, request: Divide, asker: str | None) -> Sums:
        self.expect(
            self.config.nodes == "shown", "by its own settings nodes are hidden"
        )
        growing = self._under_way(request.batch)
        nodes = request.nodes.tensor.cpu()
        self.expect(
            tuple(nodes.shape) == growing.node.T.shape,
            "directions have not a line for each row",
        )
        try:
            growing = growing.divided(nodes.numpy().astype(np.uint8))
        except ValueError as error:
            self.expect(False, f"its nodes cannot be divided so: {error}")
        return self._go_on(growing, asker)

    @serves
    def decide(self, request: Decide, asker: str | None) -> Directions:
        self.expect(
            0 <= request.first <= request.last <= len(self.rounds),
            f"it knows {len(self.rounds)} rounds, and was asked for {request.first} to"
            f" {request.last}",
        )
        x = torch.from_numpy(with_gaps(self.x(request.batch), self._gaps))
        rounds = self.rounds[request.first : request.last]
        left = torch.zeros(len(x), sum(len(table["column"]) for table in rounds))
        start = 0
        for table in rounds:
            stop = start + len(table["column"])
            values = x[:, table["column"]].double()
            left[:, start:stop] = torch.where(
                values.isnan(), table["gaps_left"], values <= table["threshold"]
            )
            start = stop
        return Directions(
            self.outbox.release(left, "directions", request.batch, to=asker)
        )

    def importance(self) -> dict[int, float]:
        """Each column's share of the rows that this party's splits parted, for the
        owner alone."""
        rows_by_column: dict[int, float] = {}
        for table in self.rounds:
            for column, rows in zip(
                table["column"].tolist(), table["rows"].tolist(), strict=True
            ):
                rows_by_column[column] = rows_by_column.get(column, 0.0) + rows
        total = sum(rows_by_column.values())
        return {column: rows / total for column, rows in rows_by_column.items()}

    def state(self) -> State:
        return super().state() | {"rounds": self.rounds, "order": self.order}

    def load_state(self, state: State) -> None:
        super().load_state(state)
        self.rounds = [
            {name: values.cpu() for name, values in table.items()}
            for table in state["rounds"]
        ]
        self.order = state["order"].cpu()

    def _shuffled(self, what: str, number: int, count: int) -> NDArray[np.int64]:
        """An order that follows from the party's own key. Torch's generators take only
        32 bits of a seed, and a receiver of sums could try them all."""
        seed = self.order.numpy().tobytes() + f"{what}/{number}".encode()
        return np.argsort(
            np.frombuffer(hashlib.shake_256(seed).digest(8 * count), dtype=np.uint64),
            kind="stable",
        )

    def _slopes(self, request: Start, asker: str | None) -> Slopes:
        """Gradients as its own settings say: plain ones are refused, unless from its
        own organisation."""
        given = request.gradients
        if isinstance(given, Released):
            plain = self.config.encryption == "none" or asker == self.name
            self.expect(
                plain,
                "gradients came in the clear, and by its own settings they are"
                " encrypted",
            )
            hessians = self.needed(request.hessians, "gradients came without Hessians")
            g, h = (
                released.tensor.cpu().double().numpy() for released in (given, hessians)
            )
            self.expect(
                g.ndim == 2 and g.shape == h.shape,
                "gradients and Hessians do not fit each other",
            )
            return PlainSlopes(g, h)
        return SealedSlopes(self.key.read(given.encrypted), self.key, self.name)

    def _expect_trees(self, trees: int) -> None:
        """Refuse more than this run has outputs; where nodes are hidden, those of a
        level are in the place of trees."""
        bounds = self.organisation.bounds
        nodes_of_level = 2 ** max(self.config.depth - 2, 0)
        if bounds is not None:
            most = bounds.outputs * (
                nodes_of_level if self.config.nodes == "hidden" else 1
            )
            self.expect(
                0 < trees <= most, f"{trees} trees came for {bounds.outputs} outputs"
            )

    def _go_on(self, growing: Growing, asker: str | None) -> Sums:
        """Keep the round as it is now, and report its sums."""
        self._growing = growing
        batch = growing.batch
        sums = growing.slopes.sums(growing)
        if isinstance(sums, Tensor):
            return Sums(self.outbox.release(sums, "sums", batch, to=asker))
        return Sums(
            self.outbox.pass_on(sums, "sums", batch, event=NON_PRIVATE, to=asker)
        )

    def _under_way(self, batch: str) -> Growing:
        growing = (
            self._growing
            if self._growing is not None and self._growing.batch == batch
            else None
        )
        return self.needed(growing, f"no round of batch {batch} is under way")

    @property
    def _train(self) -> NDArray[np.int64]:
        return self.organisation.batches.splits["train"].numpy()

    def _bins(self) -> tuple[Binning, NDArray[np.uint8], Whole, Candidates]:
        """Bins of all rows by quantiles of the training rows, how many of these each
        has, and candidates."""
        if self._binned is None:
            values = with_gaps(self.features, self._gaps)
            binning = Binning.of(values[self._train], self.config.bins)
            bins = binning.bins(values)
            counts = counted(bins[:, self._train], 1, binning.gap + 1)[0]
            self._binned = binning, bins, counts, binning.candidates()
        return self._binned


def gaps_of(fitted: State) -> dict[int, int]:
    """For each prepared column with gaps, the column that says where they are."""
    if "columns" not in fitted:
        return {}
    prepared = Preprocessor.from_state(fitted["columns"])
    numbers = [
        column
        for column in prepared.columns
        if isinstance(column, Number) and column.had_gaps
    ]
    return {
        (start := prepared.spans[column.name].start): start + 1 for column in numbers
    }


def with_gaps(features: Tensor, gaps: Mapping[int, int]) -> NDArray[np.float32]:
    """Prepared columns, [rows, columns], with NaN where a value was filled in; columns
    that only say where are 0."""
    values = features.detach().cpu().flatten(1).float().numpy()
    if gaps:
        values = values.copy()
    for column, marks in gaps.items():
        values[values[:, marks] > HALF, column] = np.nan
        values[:, marks] = 0.0
    return values


def no_splits() -> SplitTable:
    """A party's part of a round that has not begun."""
    whole_numbers = {
        name: torch.zeros(0, dtype=torch.int64) for name in ("column", "rows")
    }
    return whole_numbers | {
        "threshold": torch.zeros(0, dtype=torch.float64),
        "gaps_left": torch.zeros(0, dtype=torch.bool),
    }
