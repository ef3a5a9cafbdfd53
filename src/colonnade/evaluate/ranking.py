"""Judge scores by how well they rank the rows of one class before all other rows.

AUC is the chance that a row of the class scores above a row that is not of it, ties
counting half: 0.5 is guessing, 1 is a perfect ranking. It does not depend on how rare
the class is, as accuracy does.

The interval is the wider of two at either end, because each is too narrow where the
other is not (`tests/evaluate/test_ranking.py` simulates both):

- DeLong, DeLong and Clarke-Pearson (1988), on the logit scale, assumes nothing about
  how scores are distributed. Where few rows are ranked nearly perfectly it sees no
  spread, and is far too narrow.
- Hanley and McNeil's variance (1982), solved for the AUC that the data would just
  contradict (Newcombe 2006, method 5), is never empty, not even for a perfect ranking,
  as Wilson's interval for a share. It is too narrow where the scores of the rarer class
  are spread wider than those of the other.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist

import torch
from torch import Tensor

CONFIDENCE = 0.95
HALVINGS = 60
"""Steps of a bisection, after which a float64 between 0 and 1 no longer changes."""


@dataclass(frozen=True)
class Ranking:
    """AUC, and the interval that contains the true one with the confidence asked for."""

    auc: float
    low: float
    high: float

    def reversed(self) -> Ranking:
        """The ranking by the same scores with the opposite sign."""
        return Ranking(1 - self.auc, 1 - self.high, 1 - self.low)


def rank(scores: Tensor, positive: Tensor, *, comparisons: int = 1) -> Ranking:
    """Measure how well scores rank the positive rows before the others.

    Args:
        scores: A number for each row; higher is more suspected of being positive.
        positive: Whether each row is positive. Both kinds must occur.
        comparisons: How many rankings the worst is chosen from. The interval is made
            wider so that all of them hold together (Bonferroni).
    """
    z = normal_quantile(comparisons)
    of_positives, of_negatives = _shares_outranked(scores, positive)
    auc = float(of_positives.mean())
    low, high = newcombe_interval(auc, len(of_positives), len(of_negatives), z)
    error = _delong_error(of_positives, of_negatives)
    if 0 < auc < 1 and error is not None:
        logit = math.log(auc / (1 - auc))
        half = z * error / (auc * (1 - auc))
        low = min(low, _sigmoid(logit - half))
        high = max(high, _sigmoid(logit + half))
    return Ranking(auc, low, high)


def low_if_perfect(positives: int, negatives: int, *, comparisons: int = 1) -> float:
    """The lower end of the interval of a perfect ranking of this many rows.

    No ranking of these rows can be shown to be better than this.
    """
    if not positives or not negatives:
        return 0.0
    z = normal_quantile(comparisons)
    return newcombe_interval(1.0, positives, negatives, z)[0]


def recall_at(scores: Tensor, positive: Tensor, share: float) -> float:
    """The share of all positive rows that is among the rows with the highest scores.

    Rows that tie at the edge count as often as they would on average if ties were
    broken by chance.

    Args:
        scores: A number for each row; higher is more suspected of being positive.
        positive: Whether each row is positive. One must be.
        share: The share of rows to look at; at least one row is.
    """
    places = rows_within(len(scores), share)
    edge = scores.sort(descending=True).values[places - 1]
    above = scores > edge
    at_edge = scores == edge
    places_at_edge = places - int(above.sum())
    found = float((above & positive).sum())
    found += float((at_edge & positive).sum()) * places_at_edge / int(at_edge.sum())
    return found / int(positive.sum())


def rows_within(rows: int, share: float) -> int:
    """How many rows a share of them is: at least one."""
    return max(1, math.ceil(share * rows))


def normal_quantile(comparisons: int = 1) -> float:
    """The number of standard errors to either side that gives `CONFIDENCE`."""
    outside = (1 - CONFIDENCE) / comparisons
    return NormalDist().inv_cdf(1 - outside / 2)


def newcombe_interval(
    auc: float, positives: int, negatives: int, z: float
) -> tuple[float, float]:
    """The interval of an AUC by Hanley and McNeil's variance, as Newcombe solves it."""
    low = _lowest_compatible(auc, positives, negatives, z)
    high = 1 - _lowest_compatible(1 - auc, positives, negatives, z)
    return low, high


def _lowest_compatible(auc: float, positives: int, negatives: int, z: float) -> float:
    """The smallest true AUC from which the observed one is `z` standard errors away."""
    low = 0.0
    high = auc
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        error = _hanley_mcneil_error(middle, positives, negatives)
        if auc - middle > z * error:
            low = middle
        else:
            high = middle
    return low


def _hanley_mcneil_error(auc: float, positives: int, negatives: int) -> float:
    """The standard error of an AUC; the numbers of rows enter by their mean (Newcombe)."""
    others = (positives + negatives) / 2 - 1
    spread = 1 + others * (1 - auc) / (2 - auc) + others * auc / (1 + auc)
    return math.sqrt(auc * (1 - auc) * spread / (positives * negatives))


def _shares_outranked(scores: Tensor, positive: Tensor) -> tuple[Tensor, Tensor]:
    """For each positive row the share of negative rows that it outranks, and for each
    negative row the share of positive rows that outrank it. Ties count half."""
    among_all = _mean_ranks(scores)
    positives = scores[positive]
    negatives = scores[~positive]
    below_positives = among_all[positive] - _mean_ranks(positives)
    below_negatives = among_all[~positive] - _mean_ranks(negatives)
    return below_positives / len(negatives), 1 - below_negatives / len(positives)


def _mean_ranks(values: Tensor) -> Tensor:
    """The rank of each value from 1, equal values sharing the mean of their ranks."""
    _, group, sizes = torch.unique(values, return_inverse=True, return_counts=True)
    last_ranks = sizes.cumsum(0).double()
    mean_ranks: Tensor = (last_ranks - (sizes.double() - 1) / 2)[group]
    return mean_ranks


def _delong_error(of_positives: Tensor, of_negatives: Tensor) -> float | None:
    """DeLong's standard error; None where a class has one row, which has no spread."""
    if min(len(of_positives), len(of_negatives)) < 2:
        return None
    variance = of_positives.var() / len(of_positives)
    variance += of_negatives.var() / len(of_negatives)
    return math.sqrt(float(variance))


def _sigmoid(logit: float) -> float:
    return 0.5 * (1 + math.tanh(logit / 2))
