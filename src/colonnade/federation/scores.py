"""How good a joint model is on a split: on all rows, at each label owner, and by who
holds a row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from colonnade.errors import ConfigError
from colonnade.evaluate.metrics import WEIGHTED, Quality, measure, quality
from colonnade.rows.holdings import Holdings

EVERYBODY = "everybody"
ALONE = "label owner alone"
REPORTED = ("test", "validation")
"""The rows that a report is about: the first of these that there are."""


@dataclass(frozen=True)
class Scores:
    """Scores of the joint model on a split: on all rows; where there are several label
    owners, on the rows of each; and where partners lack rows, on those that everybody
    holds, that one lacks, and that the label owner alone holds."""

    all: dict[str, float]
    each: dict[str, dict[str, float]] = field(default_factory=dict)
    # by label owner, for its own folder
    quality: dict[str, Quality] = field(default_factory=dict)
    subsets: dict[str, dict[str, float]] = field(default_factory=dict)


def scored(federation: Any, split: str, model: str | None) -> Scores:
    """Measure how good a federation's joint model is on a split, at the label owners
    that are here."""
    each = {}
    rows = {}
    qualities = {}
    holdings = federation.holdings
    subsets = dict[str, dict[str, float]]()
    for name, batches in federation.agreed.items():
        if name in federation.label_owners and split in batches.splits:
            owner = federation.label_owners[name]
            mine = batches.splits[split]
            at = mine.to(federation.device)
            labels = owner.labels[at]  # drawn ones where its rule draws
            outputs = federation.outputs(split, name, model)
            each[name], rows[name] = (
                measured(holdings, outputs, labels, owner.weighted_loss(outputs, at)),
                len(mine),
            )
            if split in REPORTED:
                qualities[name] = quality_of(holdings, outputs, labels)
            if federation.settings.rows_differ:
                partners = [party for party in owner.peers if party != name]
                subsets |= by_subset(holdings, partners, outputs, labels, mine)
    if not each:
        there = ", ".join(map(repr, federation.batches.splits))
        raise ConfigError(f"There are no rows called {split!r}; there are {there}.")
    return Scores(
        mean_scores(each, rows), each if holdings.server else {}, qualities, subsets
    )


def measured(
    holdings: Holdings, outputs: Tensor, labels: Tensor, weighted: float | None = None
) -> dict[str, float]:
    """Measure the loss and scores of outputs, numbers in their own unit. All
    rows count alike, so that runs can be compared; where training had weights of
    classes or rows, the loss that it made small stands beside it."""
    scores = measure(holdings.loss, outputs, labels, holdings.encoder.positive)
    if weighted is not None:
        scores[WEIGHTED] = weighted
    return scores


def quality_of(holdings: Holdings, outputs: Tensor, labels: Tensor) -> Quality:
    """Measure how well outputs rank and decide, with classes and errors as the label
    has them."""
    encoder = holdings.encoder
    return quality(
        holdings.loss,
        outputs,
        labels,
        encoder.classes,
        encoder.positive,
    )


def by_subset(
    holdings: Holdings,
    partners: Sequence[str],
    outputs: Tensor,
    labels: Tensor,
    rows: Tensor,
) -> dict[str, dict[str, float]]:
    """Count rows and measure scores on them: with everybody, without each partner, and
    of the label owner alone. `rows` are those of a split, in the order of `outputs`. A
    kind of row that there is none of is left out."""
    lacks = {party: mask[rows] for party, mask in holdings.away.items()}
    nobody = torch.zeros(len(rows), dtype=torch.bool)
    kinds = {EVERYBODY: ~torch.stack([nobody, *lacks.values()]).any(0)}
    kinds |= {f"without {party}": lacks[party] for party in partners if party in lacks}
    if len(partners) > 1 and len(lacks) == len(partners):
        kinds[ALONE] = torch.stack(list(lacks.values())).all(0)
    subsets = {}
    for kind, chosen in kinds.items():
        if bool(chosen.any()):
            at = chosen.to(outputs.device)
            subsets[kind] = {
                "rows": int(chosen.sum()),
                **measured(holdings, outputs[at], labels[at]),
            }
    return subsets


def mean_scores(
    each: Mapping[str, Mapping[str, float]], rows: Mapping[str, int]
) -> dict[str, float]:
    """Average scores, weighted by rows, over those who have the score: AUC needs rows
    of both classes. For the loss, accuracy and MAE this is the score on all rows
    together, and so it is for RMSE, whose squares are averaged. For R squared, AUC,
    precision, recall and F1 it is a mean of the owners' scores and no more."""
    if len(each) == 1:
        return dict(next(iter(each.values())))
    means = {}
    for name in next(iter(each.values())):
        power = 2 if name == "rmse" else 1
        known = {
            owner: scores.get(name, float("nan")) for owner, scores in each.items()
        }
        values = {
            owner: score**power for owner, score in known.items() if np.isfinite(score)
        }
        total = sum(rows[owner] for owner in values)
        mean = (
            sum(value * rows[owner] for owner, value in values.items()) / total
            if total
            else float("nan")
        )
        means[name] = mean ** (1 / power)
    return means
