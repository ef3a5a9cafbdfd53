"""What the label owner reports about predictions; torch only, so that it runs where the training ran."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

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
    if has_two_classes(loss):
        ranked = outputs.double()  # probabilities near 1 are all the same float
        found["auc"] = auc(ranked[:, -1] - ranked[:, 0] if loss.outputs == 2 else ranked[:, 0], labels)
        found |= hits(decided, labels)
    return found


def has_two_classes(loss: Loss) -> bool:
    return loss.outputs == 2 or isinstance(loss, Logistic)


def telling(loss: Loss, labels: Tensor) -> str:
    """The score that shows what a model learned: of two classes AUC, since a model that always says the larger one has
    a high accuracy; else the headline. Where the rows have one class alone there is no AUC."""
    if isinstance(loss, Squared):
        return HEADLINE["regression"]
    both = has_two_classes(loss) and 0 < int((labels == 1).sum()) < len(labels)
    return "auc" if both else HEADLINE["classification"]


def majority(labels: Tensor, scores: Mapping[str, float]) -> tuple[float, bool]:
    """The largest class's share of the rows, which always saying it would reach as accuracy; and whether of two classes
    one was always said, as the scores on these rows tell."""
    counts = torch.bincount(labels.long(), minlength=2).tolist()
    right = round(scores["accuracy"] * len(labels))
    always = any("recall" in scores and right == counts[one] and scores["recall"] == one for one in (0, 1))
    return max(counts) / len(labels), always


UNEVEN = {True: 0.6, False: 0.5}
"""Share of the largest class from which on accuracy shows little: of two classes, of several."""


def lead(summary: Mapping[str, Any]) -> str:
    """The score that a finished run is told by: R squared of numbers; accuracy of classes, and where they are uneven
    AUC of two, and the log loss of several."""
    if summary.get("task") == "regression":
        return HEADLINE["regression"]
    metrics, shares = summary.get("metrics", {}), summary.get("majority", {})
    split = next((one for one in ("test", "validation", "train") if one in metrics), None)
    if split is None:
        return ""
    two = metrics[split].get("auc") is not None
    uneven = shares.get(split, {}).get("share", 0.0) > UNEVEN[two]
    return ("auc" if two else "loss") if uneven else HEADLINE["classification"]


def in_order(summary: Mapping[str, Any], names: Iterable[str]) -> list[str]:
    """Scores with the one that shows most first, and the largest class's share beside the accuracy."""
    led = lead(summary)
    first = (led, "majority") if led == "accuracy" else (led,)
    return sorted(names, key=lambda name: name not in first)


def beside_majority(summary: Mapping[str, Any]) -> dict[str, dict[str, float]]:
    """A summary's scores by split, with the largest class's share beside the accuracy where it is known."""
    found = {}
    for split, scores in summary.get("metrics", {}).items():
        share = summary.get("majority", {}).get(split, {}).get("share")
        pairs = list(scores.items())
        if share is not None:
            pairs.insert(list(scores).index("accuracy") + 1, ("majority", share))
        found[split] = dict(pairs)
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
