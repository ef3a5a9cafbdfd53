"""Objectives of boosted trees: where scores begin, gradients and Hessians of each row,
and how scores become outputs.

Scores are [rows, outputs] in float64. The outputs are those that the label owner's loss
reads: logits, log-shares, or values with the training rows' mean 0 and scale 1. A
Poisson model's scores are logarithms of the label's own units.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from colonnade.errors import ConfigError, DataError
from colonnade.optim.losses import Logistic, Loss, Squared, unweighted

LEAST = 1e-6


@dataclass(frozen=True)
class OfLoss:
    """Logistic, softmax and squared: the label owner's loss itself. Weights are one per
    row."""

    of: Loss
    # whether a leaf is the median of what is left, not a Newton step
    medians: ClassVar = False

    def start(self, labels: Tensor, weights: Tensor) -> Tensor:
        """The scores that fit best if all rows have the same."""
        shares = weights / weights.sum()
        if isinstance(self.of, Squared):
            return (labels.double() * shares).sum()[None]
        classes = max(2, self.of.outputs)
        share = (
            torch.zeros(classes, dtype=torch.float64)
            .index_add_(0, labels, shares)
            .clamp(LEAST, 1 - LEAST)
        )
        if isinstance(self.of, Logistic):
            return (share[1] / share[0]).log()[None]
        return share.log() - share.log().mean()

    def slopes(self, scores: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """dl/dscore and d2l/dscore2 of each row, [rows, outputs]."""
        if isinstance(self.of, Squared):
            return scores - labels.double()[:, None], torch.ones_like(scores)
        if isinstance(self.of, Logistic):
            p = scores.sigmoid()
            truth = labels.double()[:, None]
        else:
            p = scores.softmax(-1)
            truth = one_hot(labels, scores.shape[1]).double()
        return p - truth, (p * (1 - p)).clamp_min(1e-16)

    def loss(self, scores: Tensor, labels: Tensor, weights: Tensor) -> float:
        return float(self.of(scores, labels, weights / weights.mean()))

    def outputs(self, scores: Tensor) -> Tensor:
        return scores


@dataclass(frozen=True)
class Absolute:
    """|score - label|: trees follow the sign, and a leaf is the median of what is left."""

    medians: ClassVar = True

    def start(self, labels: Tensor, weights: Tensor) -> Tensor:
        return weighted_median(labels.double(), weights)[None]

    def slopes(self, scores: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        return (scores - labels.double()[:, None]).sign(), torch.ones_like(scores)

    def loss(self, scores: Tensor, labels: Tensor, weights: Tensor) -> float:
        return float(((scores[:, 0] - labels).abs() * weights).sum() / weights.sum())

    def outputs(self, scores: Tensor) -> Tensor:
        return scores


@dataclass(frozen=True)
class Poisson:
    """exp(score) - label * score, of labels in their own units: label * scale + mean."""

    mean: float
    scale: float
    medians: ClassVar = False

    def start(self, labels: Tensor, weights: Tensor) -> Tensor:
        counts = self._counts(labels)
        if float(counts.min()) < -1e-4:
            raise DataError(
                'boosted_trees.loss = "poisson" needs labels of 0 or more. Choose'
                ' "squared" or "absolute".'
            )
        return ((counts * weights).sum() / weights.sum()).clamp_min(LEAST).log()[None]

    def slopes(self, scores: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        rate = scores.exp()
        return rate - self._counts(labels)[:, None], rate.clamp_min(1e-16)

    def loss(self, scores: Tensor, labels: Tensor, weights: Tensor) -> float:
        losses = scores[:, 0].exp() - self._counts(labels) * scores[:, 0]
        return float((losses * weights).sum() / weights.sum())

    def outputs(self, scores: Tensor) -> Tensor:
        return (scores.exp() - self.mean) / self.scale

    def _counts(self, labels: Tensor) -> Tensor:
        return labels.double() * self.scale + self.mean


Objective = OfLoss | Absolute | Poisson


def objective_for(loss: Loss, wanted: str, mean: float, scale: float) -> Objective:
    """The objective by the settings and the kind of label; `mean` and `scale` give the
    label's own units back."""
    if wanted in ("absolute", "poisson", "squared") and not isinstance(loss, Squared):
        raise ConfigError(
            f'boosted_trees.loss = "{wanted}" is for labels that are numbers, and these'
            ' are classes. Set loss = "auto".'
        )
    if wanted == "absolute":
        return Absolute()
    return Poisson(mean, scale) if wanted == "poisson" else OfLoss(unweighted(loss))


def weighted_median(values: Tensor, weights: Tensor) -> Tensor:
    """The smallest value up to which at least half of the weight lies."""
    order = values.argsort()
    up_to = weights[order].cumsum(0)
    return values[
        order[int(torch.searchsorted(up_to, up_to[-1:] / 2).clamp(max=len(values) - 1))]
    ]
