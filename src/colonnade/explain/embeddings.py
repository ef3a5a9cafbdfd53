"""What the parties released for the rows of a split, gathered once: every measure of importance is computed from it.

A party's embedding of a row depends on its own columns of that row alone. So to permute, replace or silence a party's
columns and ask again gives what permuting, replacing or silencing its gathered embeddings gives, and nobody is asked
twice.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Generator, Tensor

from colonnade.errors import ConfigError
from colonnade.evaluate.metrics import measure, telling

if TYPE_CHECKING:
    from colonnade.federation import Federation
    from colonnade.optim.losses import Loss

PIECE = 8192
"""Rows that are combined at once: bounds the memory of a concatenation."""


@dataclass(frozen=True, eq=False)
class Embeddings:
    """`parts` has a tensor [rows, width] per party, in party order; `rows` are their numbers in the agreed order."""

    split: str
    rows: Tensor
    parts: Mapping[str, Tensor]
    labels: Tensor
    combine: Callable[[Mapping[str, Tensor]], Tensor]  # as the label owner does
    loss: Loss
    metric: str  # auc of two classes, accuracy of more, r2 of numbers

    def outputs(self, changed: Mapping[str, Tensor] | None = None) -> Tensor:
        """The joint model's outputs when some parties had released `changed` instead."""
        parts = {**self.parts, **(changed or {})}
        if parts.keys() != self.parts.keys():
            raise ConfigError(f"There are embeddings of {', '.join(self.parts)}; found {', '.join(changed or {})}.")
        starts = range(0, len(self.labels), PIECE)
        with torch.no_grad():
            pieces = [self.combine({k: h[at : at + PIECE] for k, h in parts.items()}) for at in starts]
        return torch.cat(pieces)

    def score(self, changed: Mapping[str, Tensor] | None = None) -> float:
        """Its score then."""
        return measure(self.loss, self.outputs(changed), self.labels)[self.metric]


def separable(federation: Federation) -> bool:
    """Whether the label owner sees what each party releases; under secure aggregation it sees the sum alone."""
    return federation.algorithm.separable(federation.settings.config)


def gather(federation: Federation, split: str = "test", *, rows: int | None = None, seed: int = 0) -> Embeddings:
    """Ask every party once for a split's embeddings, or for a seeded sample of its rows.

    They are releases as any other: the owners' rules apply, and ledgers and budgets count them.
    """
    if not separable(federation):
        raise ConfigError(
            f"This run of {federation.settings.algorithm} adds the parties up under secure aggregation, so nobody sees "
            "what one party released, and no party's embeddings can be permuted, silenced or drawn.\n"
            "    Use noise_validation, or retrain without a party."
        )
    if federation.algorithm.combine is None:
        raise _not_combined(federation)
    combine = partial(federation.algorithm.combine, federation.driver)
    keeping = _Keeping(federation.driver)
    chosen = sampled(federation, split, rows, seed)
    with federation.agreed.one.asking(chosen, split) as pieces:
        for piece in pieces:
            federation.algorithm.predict(keeping, federation.peers, piece)
    if any(piece.keys() != federation.owners.keys() for piece in keeping.kept) or not keeping.kept:
        raise _not_combined(federation)
    return Embeddings(
        split,
        chosen,
        {party: torch.cat([piece[party] for piece in keeping.kept]) for party in federation.owners},
        federation.labels[chosen.to(federation.device)],
        combine,
        federation.holdings.loss,
        metric_of(federation, chosen),
    )


def _not_combined(federation: Federation) -> ConfigError:
    return ConfigError(
        f"{federation.settings.algorithm} does not combine one tensor per party into its outputs, so no party's part "
        "can be permuted, silenced or drawn."
    )


def metric_of(federation: Federation, rows: Tensor) -> str:
    """The score by which parties are measured on these rows."""
    return telling(federation.holdings.loss, federation.labels[rows.to(federation.device)])


def sampled(federation: Federation, split: str, rows: int | None, seed: int) -> Tensor:
    """A seeded sample of a split's rows, in their order; all rows when there are not more."""
    agreed = federation.batches.splits
    if split not in agreed:
        raise ConfigError(f"There are no rows called {split!r}; there are {', '.join(map(repr, agreed))}.")
    if rows is not None and rows < 1:
        raise ConfigError(f"A sample has at least one row; found {rows}.")
    whole = agreed[split]
    if rows is None or rows >= len(whole):
        return whole
    order = torch.randperm(len(whole), generator=Generator().manual_seed(seed))
    return whole[order[:rows].sort().values]


class _Keeping:
    """The label owner, keeping what it was given to combine."""

    def __init__(self, driver: Any) -> None:
        self._driver = driver
        self.kept: list[dict[str, Tensor]] = []

    def outputs(self, h: Mapping[str, Tensor]) -> Tensor:
        self.kept.append(dict(h))
        combined: Tensor = self._driver.outputs(h)
        return combined

    def of_batch(self, h: Mapping[str, Tensor], batch: str) -> Tensor:
        self.kept.append(dict(h))
        combined: Tensor = self._driver.of_batch(h, batch)
        return combined

    def __getattr__(self, name: str) -> Any:
        return getattr(self._driver, name)


@dataclass(frozen=True, eq=False)
class Plane:
    """Embeddings of some parties laid out in the plane by t-SNE: [rows, 2] per party, and the rows' labels."""

    points: Mapping[str, NDArray[np.float32]]
    labels: NDArray[Any]


def tsne(embeddings: Embeddings, parties: Sequence[str], *, rows: int = 1000, seed: int = 0) -> Plane:
    """Each party's embeddings by themselves, of the same sample of rows (Figures 4 and 6)."""
    from sklearn.manifold import TSNE

    for party in parties:
        if party not in embeddings.parts:
            raise ConfigError(f"There are no embeddings of {party!r}; there are {', '.join(embeddings.parts)}.")
    if len(embeddings.labels) < 3:
        raise ConfigError(f"t-SNE lays out three rows or more; found {len(embeddings.labels)}.")
    order = torch.randperm(len(embeddings.labels), generator=Generator().manual_seed(seed))
    sample = order[:rows].sort().values
    points = {}
    for party in parties:
        h = embeddings.parts[party][sample.to(embeddings.labels.device)].cpu().numpy()
        spread = h.shape[1] > 1 and bool(np.linalg.matrix_rank(h - h.mean(0)) > 1)  # else there are no two main axes
        layout = TSNE(perplexity=min(30, (len(h) - 1) / 3), init="pca" if spread else "random", random_state=seed)
        points[party] = layout.fit_transform(h).astype(np.float32)
    return Plane(points, embeddings.labels[sample.to(embeddings.labels.device)].cpu().numpy())
