"""What the label owner reports about predictions; torch only, so that it runs where the training ran."""

from __future__ import annotations

import torch
from torch import Tensor

from colonnade.optim.losses import Logistic, Loss, Squared

HEADLINE = {"classification": "accuracy", "regression": "r2"}


def measure(loss: Loss, outputs: Tensor, labels: Tensor) -> dict[str, float]:
    """The loss and the usual scores: accuracy; for two classes also AUC, precision, recall and F1, of which the second
    class is the positive one; or RMSE, MAE and R squared."""
    found = {"loss": float(loss(outputs, labels))}
    decided = loss.decide(outputs)
    if isinstance(loss, Squared):
        error = decided - labels
        found["rmse"] = float(error.square().mean().sqrt())
        found["mae"] = float(error.abs().mean())
        found["r2"] = r2(decided, labels)
        return found
    found["accuracy"] = float((decided == labels).double().mean())
    if loss.outputs == 2 or isinstance(loss, Logistic):
        ranked = outputs.double()  # probabilities near 1 are all the same float
        found["auc"] = auc(ranked[:, -1] - ranked[:, 0] if loss.outputs == 2 else ranked[:, 0], labels)
        found |= hits(decided, labels)
    return found


def r2(decided: Tensor, labels: Tensor) -> float:
    """The share of the labels' variance that is explained; where they are all the same, 1 for exact predictions and
    else 0, as in scikit-learn."""
    error, spread = (decided - labels).double(), labels.double() - labels.double().mean()
    if bool((labels == labels[0]).all()):
        return float(not error.any())
    return float(1 - error.square().sum() / spread.square().sum())


def auc(scores: Tensor, labels: Tensor) -> float:
    """The chance that a positive row scores above a negative one, ties counting half; NaN without both."""
    positive = labels == 1
    pairs = int(positive.sum()) * int((~positive).sum())
    if not pairs:
        return float("nan")
    _, inverse, counts = torch.unique(scores, return_inverse=True, return_counts=True)
    ends = counts.cumsum(0).double()
    mean_rank = ends - (counts.double() - 1) / 2
    p = int(positive.sum())
    return float((mean_rank[inverse][positive].sum() - p * (p + 1) / 2) / pairs)


def hits(decided: Tensor, labels: Tensor) -> dict[str, float]:
    """Precision: the share of positives among rows called positive; recall: of positives that were called so; and
    their harmonic mean. Class 1 is the positive one; where there is nothing to divide by, 0, as in scikit-learn."""
    called, positive = int((decided == 1).sum()), int((labels == 1).sum())
    both = int(((decided == 1) & (labels == 1)).sum())
    return {
        "precision": both / max(called, 1),
        "recall": both / max(positive, 1),
        "f1": 2 * both / max(called + positive, 1),
    }
