"""What the parties released for the rows of a split, gathered once: every measure of
importance is computed from it.

A party's embedding of a row depends on its own columns of that row alone. So permuting,
replacing or silencing gathered embeddings gives the same as changing the party's
columns and asking again, and nobody is asked twice. Where parties lack rows, each is
measured on the rows that it holds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Generator, Tensor

from colonnade.errors import ConfigError
from colonnade.evaluate.metrics import measure, telling
from colonnade.federation import Federation
from colonnade.optim.losses import Loss

PIECE = 8192
"""The most rows that are combined at once: this bounds the memory of a concatenation.
"""


@dataclass(frozen=True, eq=False)
class Embeddings:
    """`parts` has a tensor [rows, width] per party, in party order; `rows` are their
    numbers in the agreed order. `lacks` has a mask of the rows that a party lacks; its
    part is zero there, and is not combined."""

    split: str
    rows: Tensor
    parts: Mapping[str, Tensor]
    labels: Tensor
    combine: Callable[[Mapping[str, Tensor]], Tensor]  # as the label owner does
    loss: Loss
    metric: str  # auc for two classes, accuracy for more, r2 for numbers
    lacks: Mapping[str, Tensor] = field(default_factory=dict)

    def held_by(self, *parties: str) -> Tensor:
        """The places of the rows that all of these parties hold."""
        nobody = torch.zeros(len(self.labels), dtype=torch.bool)
        lacking = [self.lacks[party] for party in parties if party in self.lacks]
        return (~torch.stack([nobody, *lacking]).any(0)).nonzero().flatten()

    def outputs(
        self,
        changed: Mapping[str, Tensor] | None = None,
        at: Tensor | None = None,
        *,
        without: Collection[str] = (),
    ) -> Tensor:
        """The joint outputs, of all rows or `at` some, had parties released `changed`,
        or nothing (`without`)."""
        parts = {**self.parts, **(changed or {})}
        if parts.keys() != self.parts.keys():
            raise ConfigError(
                f"There are embeddings of {', '.join(self.parts)}; found"
                f" {', '.join(changed or {})}."
            )
        wanted = torch.arange(len(self.labels)) if at is None else at
        outputs = []
        places = []
        for group, parties in self._by_who_holds(wanted, without):
            for piece in torch.split(group, PIECE):
                rows = wanted[piece].to(self.labels.device)
                with torch.no_grad():
                    outputs.append(
                        self.combine({party: parts[party][rows] for party in parties})
                    )
                places.append(piece)
        return torch.cat(outputs)[torch.cat(places).argsort().to(self.labels.device)]

    def score(
        self,
        changed: Mapping[str, Tensor] | None = None,
        at: Tensor | None = None,
        *,
        without: Collection[str] = (),
    ) -> float:
        """The joint model's score then; NaN where there are no rows."""
        if at is not None and not len(at):
            return math.nan
        labels = self.labels if at is None else self.labels[at.to(self.labels.device)]
        return measure(self.loss, self.outputs(changed, at, without=without), labels)[
            self.metric
        ]

    def _by_who_holds(
        self, wanted: Tensor, without: Collection[str]
    ) -> Iterator[tuple[Tensor, list[str]]]:
        """Groups of places in `wanted`, each with the parties that hold its rows."""
        names = [name for name in self.parts if name not in without]
        lacking = [name for name in names if name in self.lacks]
        nobody = torch.zeros(len(wanted), dtype=torch.bool)
        lacked = torch.stack([nobody, *(self.lacks[name][wanted] for name in lacking)])
        patterns, pattern_of_row = torch.unique(lacked, dim=1, return_inverse=True)
        for number, pattern in enumerate(patterns.T.tolist()):
            absent = [
                name
                for name, is_absent in zip(lacking, pattern[1:], strict=True)
                if is_absent
            ]
            yield (
                (pattern_of_row == number).nonzero().flatten(),
                [name for name in names if name not in absent],
            )


def separable(federation: Federation) -> bool:
    """Whether the label owner sees what each party releases; under secure aggregation
    it sees the sum alone."""
    return federation.algorithm.separable(federation.settings.config)


Before = Callable[[Tensor, Sequence[str]], None]
"""Called with the rows that are asked for next, and the parties that lack them."""


def gather(
    federation: Federation,
    split: str = "test",
    *,
    rows: int | None = None,
    seed: int = 0,
    owner: str | None = None,
    before: Before | None = None,
) -> Embeddings:
    """Ask every party once for a split's embeddings, or for those of a seeded sample of
    its rows: those of the first label owner, unless `owner` is named. Where parties are
    elsewhere, `before` prepares them. These are releases like any other: the owners'
    rules apply, and ledgers and budgets count them."""
    owner_name = federation.owner_named(owner)
    label_owner = federation.label_owners[owner_name]
    names = list(label_owner.peers)
    if not separable(federation):
        raise ConfigError(
            f"This run of {federation.settings.algorithm} adds the parties up under"
            " secure aggregation, so nobody sees what one party released, and no"
            " party's embeddings can be permuted, silenced or drawn.\n    Use"
            " noise_validation, or retrain without a party."
        )
    if federation.algorithm.combine is None:
        raise _not_combined(federation)
    combine = partial(federation.algorithm.combine, label_owner)
    recorder = _Recorder(label_owner)
    chosen = sampled(federation, split, rows, seed, owner)
    holdings = federation.holdings
    parts: dict[str, Tensor] = {}
    for places, away in holdings.by_absence(chosen):
        if before is not None:
            before(chosen[places], away)
        with federation.asking(owner_name, chosen[places], away, split) as pieces:
            for piece in pieces:
                federation.algorithm.predict(recorder, label_owner.peers, piece)
        present = [name for name in names if name not in away]
        recorded = recorder.recorded
        recorder.recorded = []
        if not recorded or any(list(piece) != present for piece in recorded):
            raise _not_combined(federation)
        for party in present:
            whole = torch.cat([piece[party] for piece in recorded])
            if party not in parts:
                parts[party] = whole.new_zeros(len(chosen), *whole.shape[1:])
            parts[party][places.to(whole.device)] = whole
    for party in {*names} - parts.keys():  # it holds none of the rows
        parts[party] = torch.zeros(
            len(chosen), *label_owner.shapes[party], device=federation.device
        )
    return Embeddings(
        split,
        chosen,
        {party: parts[party] for party in names},
        label_owner.labels[chosen.to(federation.device)],
        combine,
        holdings.loss,
        metric_of(federation, chosen, owner),
        {
            party: mask[chosen]
            for party, mask in holdings.away.items()
            if bool(mask[chosen].any())
        },
    )


def _not_combined(federation: Federation) -> ConfigError:
    return ConfigError(
        f"{federation.settings.algorithm} does not combine one tensor per party into"
        " its outputs, or its record does not say how (combine), so no party's part"
        " can be permuted, silenced or drawn."
    )


def metric_of(federation: Federation, rows: Tensor, owner: str | None = None) -> str:
    """The score by which parties are measured on these rows of the first label owner,
    unless `owner` is named."""
    labels = federation.label_owners[federation.owner_named(owner)].labels
    return telling(federation.holdings.loss, labels[rows.to(federation.device)])


def sampled(
    federation: Federation,
    split: str,
    rows: int | None,
    seed: int,
    owner: str | None = None,
) -> Tensor:
    """A seeded sample of a split's rows, in their order; all rows when there are not
    more."""
    agreed = federation.agreed[federation.owner_named(owner)].splits
    if split not in agreed:
        raise ConfigError(
            f"There are no rows called {split!r}; there are"
            f" {', '.join(map(repr, agreed))}."
        )
    if rows is not None and rows < 1:
        raise ConfigError(f"A sample has at least one row; found {rows}.")
    whole = agreed[split]
    if rows is None or rows >= len(whole):
        return whole
    order = torch.randperm(len(whole), generator=Generator().manual_seed(seed))
    return whole[order[:rows].sort().values]


class _Recorder:
    """A label owner that also keeps the embeddings which it combines."""

    def __init__(self, driver: Any) -> None:
        self._driver = driver
        self.recorded: list[dict[str, Tensor]] = []

    def outputs(self, h: Mapping[str, Tensor], *more: Any) -> Any:
        self.recorded.append(dict(h))
        return self._driver.outputs(h, *more)

    def of_batch(self, h: Mapping[str, Tensor], batch: str) -> Any:
        self.recorded.append(dict(h))
        return self._driver.of_batch(h, batch)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._driver, name)


@dataclass(frozen=True, eq=False)
class Plane:
    """Embeddings of some parties laid out in the plane by t-SNE: [rows, 2] per party,
    and the rows' labels."""

    points: Mapping[str, NDArray[np.float32]]
    labels: NDArray[Any]


def tsne(
    embeddings: Embeddings, parties: Sequence[str], *, rows: int = 1000, seed: int = 0
) -> Plane:
    """Lay out each party's embeddings of the same sample of rows, which all of these
    hold (Figures 4 and 6)."""
    from sklearn.manifold import TSNE

    for party in parties:
        if party not in embeddings.parts:
            raise ConfigError(
                f"There are no embeddings of {party!r}; there are"
                f" {', '.join(embeddings.parts)}."
            )
    held = embeddings.held_by(*parties)
    if len(held) < 3:
        raise ConfigError(f"t-SNE lays out three rows or more; found {len(held)}.")
    order = torch.randperm(len(held), generator=Generator().manual_seed(seed))
    sample = held[order[:rows].sort().values]
    points = {}
    for party in parties:
        h = embeddings.parts[party][sample.to(embeddings.labels.device)].cpu().numpy()
        # else there are no two main axes
        spread = h.shape[1] > 1 and bool(np.linalg.matrix_rank(h - h.mean(0)) > 1)
        layout = TSNE(
            perplexity=min(30, (len(h) - 1) / 3),
            init="pca" if spread else "random",
            random_state=seed,
        )
        points[party] = layout.fit_transform(h).astype(np.float32)
    return Plane(
        points, embeddings.labels[sample.to(embeddings.labels.device)].cpu().numpy()
    )
