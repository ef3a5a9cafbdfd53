"""What the label owner reports about predictions; torch only, so that it runs where the
training ran.

`measure` gives the usual scores. `quality` shows how well a model ranks and decides, by
curves, counts and costs. It is added up over rows, so that no row's score or label
follows from it, unless a class has very few rows. It tells more about labels than a
score does, so it is kept in the label owner's own folder of a run.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from colonnade.optim.losses import Logistic, Loss, Squared

HEADLINE = {"classification": "accuracy", "regression": "r2"}
# what training minimised, where classes or rows have weights
WEIGHTED = "weighted_loss"
SECOND = 1
"""The place of the second of two classes, which is the positive one where nobody says
otherwise, as in scikit-learn."""
SCORES = frozenset(
    {
        "loss",
        WEIGHTED,
        "accuracy",
        "auc",
        "precision",
        "recall",
        "f1",
        "rmse",
        "mae",
        "r2",
    }
)


def measure(
    loss: Loss, outputs: Tensor, labels: Tensor, positive: int = SECOND
) -> dict[str, float]:
    """Measure the loss and the usual scores of outputs.

    Classes have accuracy, and two classes also AUC, precision, recall and F1. Numbers
    have RMSE, MAE and R squared in the label's own unit, whatever the scale of
    training.

    Args:
        loss: The loss that the model was trained with.
        outputs: The joint model's outputs, a line for each row.
        labels: The true labels of the same rows, as the loss takes them.
        positive: Of two classes, the number of the one that precision, recall and F1
            are about. AUC is the same for both.
    """
    scores = {"loss": float(loss(outputs, labels))}
    decided = loss.decide(outputs)
    if isinstance(loss, Squared):
        decided = loss.unit.own(decided)
        labels = loss.unit.own(labels)
        error = decided - labels
        scores["rmse"] = float(error.square().mean().sqrt())
        scores["mae"] = float(error.abs().mean())
        scores["r2"] = r2(decided, labels)
        return scores
    scores["accuracy"] = float((decided == labels).double().mean())
    if has_two_classes(loss):
        ranked = outputs.double()  # probabilities near 1 are all the same float
        scores["auc"] = auc(
            ranked[:, -1] - ranked[:, 0] if loss.outputs == 2 else ranked[:, 0], labels
        )
        scores |= hits(decided, labels, positive)
    return scores


def has_two_classes(loss: Loss) -> bool:
    return loss.outputs == 2 or isinstance(loss, Logistic)


def telling(loss: Loss, labels: Tensor) -> str:
    """The score that shows what a model learned: AUC for two classes, since a model
    that always says the larger one has a high accuracy; otherwise the headline. Where
    the rows have one class alone there is no AUC."""
    if isinstance(loss, Squared):
        return HEADLINE["regression"]
    both = has_two_classes(loss) and 0 < int((labels == 1).sum()) < len(labels)
    return "auc" if both else HEADLINE["classification"]


def majority(
    labels: Tensor, scores: Mapping[str, float], positive: int = SECOND
) -> tuple[float, bool]:
    """The largest class's share of the rows, which is the accuracy of always saying it;
    and whether the scores show that the same one of two classes was always said."""
    counts = torch.bincount(labels.long(), minlength=2).tolist()
    share = max(counts) / len(labels)
    if "recall" not in scores:
        return share, False
    right = round(scores["accuracy"] * len(labels))
    always_positive = scores["recall"] == 1 and right == counts[positive]
    always_negative = scores["recall"] == 0 and right == counts[1 - positive]
    return share, always_positive or always_negative


UNEVEN = {True: 0.6, False: 0.5}
"""The share of the largest class from which on accuracy shows little: with two classes
(True), with several."""


def lead(summary: Mapping[str, Any]) -> str:
    """The score that is named first for a finished run: R squared for numbers; accuracy
    for classes, but where they are uneven AUC for two, and the log loss for several."""
    if summary.get("task") == "regression":
        return HEADLINE["regression"]
    metrics = summary.get("metrics", {})
    shares = summary.get("majority", {})
    split = next(
        (name for name in ("test", "validation", "train") if name in metrics), None
    )
    if split is None:
        return ""
    two = metrics[split].get("auc") is not None
    uneven = shares.get(split, {}).get("share", 0.0) > UNEVEN[two]
    return ("auc" if two else "loss") if uneven else HEADLINE["classification"]


def in_order(summary: Mapping[str, Any], names: Iterable[str]) -> list[str]:
    """Scores with the one that shows most first, and the largest class's share beside
    the accuracy."""
    led = lead(summary)
    first = (led, "majority") if led == "accuracy" else (led,)
    return sorted(names, key=lambda name: name not in first)


def beside_majority(summary: Mapping[str, Any]) -> dict[str, dict[str, float]]:
    """A summary's scores by split, with the largest class's share beside the accuracy
    where it is known."""
    by_split = {}
    for split, scores in summary.get("metrics", {}).items():
        share = summary.get("majority", {}).get(split, {}).get("share")
        pairs = list(scores.items())
        if share is not None:
            pairs.insert(list(scores).index("accuracy") + 1, ("majority", share))
        by_split[split] = dict(pairs)
    return by_split


def r2(decided: Tensor, labels: Tensor) -> float:
    """The share of the labels' variance that is explained; where all labels are the
    same, 1 for exact predictions and 0 for others, as in scikit-learn."""
    error = (decided - labels).double()
    spread = labels.double() - labels.double().mean()
    if bool((labels == labels[0]).all()):
        return float(not error.any())
    return float(1 - error.square().sum() / spread.square().sum())


def auc(scores: Tensor, labels: Tensor) -> float:
    """The chance that a row of the second class scores above one of the first.

    Ties count half. Without rows of both classes it is NaN. The AUC of the first class,
    by its own scores, is the same number.
    """
    positive = labels == SECOND
    pairs = int(positive.sum()) * int((~positive).sum())
    if not pairs:
        return float("nan")
    _, inverse, counts = torch.unique(scores, return_inverse=True, return_counts=True)
    ends = counts.cumsum(0).double()
    mean_rank = ends - (counts.double() - 1) / 2
    p = int(positive.sum())
    return float((mean_rank[inverse][positive].sum() - p * (p + 1) / 2) / pairs)


def hits(decided: Tensor, labels: Tensor, positive: int = SECOND) -> dict[str, float]:
    """Precision: the share of positives among rows called positive. Recall: the share
    of positives that were called so. F1: their harmonic mean. Where there is nothing to
    divide by they are 0, as in scikit-learn."""
    called = decided == positive
    actual = labels == positive
    return _hits(int((called & actual).sum()), int(called.sum()), int(actual.sum()))


def _hits(right: int, called: int, actual: int) -> dict[str, float]:
    both = 2 * right / max(called + actual, 1)
    return {
        "precision": right / max(called, 1),
        "recall": right / max(actual, 1),
        "f1": both,
    }


POINTS = 100
BINS = 10
BARS = 20
"""The most points of a curve, groups of rows for calibration, bars of a distribution.
"""
RATIOS = (1, 2, 5, 10, 20, 50)
"""What a miss costs, in false alarms."""
MOST_CLASSES = 30
"""The most classes that a table shows."""

Quality = dict[str, Any]


def quality(
    loss: Loss,
    outputs: Tensor,
    labels: Tensor,
    classes: Sequence[Any],
    positive: int = SECOND,
) -> Quality:
    """Describe how good outputs are for rows with these labels. Numbers are in their own unit.

    Args:
        loss: The loss that the model was trained with.
        outputs: The joint model's outputs, a line for each row.
        labels: The true labels of the same rows, as the loss takes them.
        classes: What the classes are called.
        positive: Of two classes, the number of the one that all curves, thresholds and
            costs are about.
    """
    outputs = outputs.detach().double().cpu()
    labels = labels.detach().cpu()
    if isinstance(loss, Squared):
        decided = loss.unit.own(loss.decide(outputs))
        return _numbers(decided.flatten(), loss.unit.own(labels).flatten())
    decided = loss.decide(outputs).cpu()
    names = [str(name) for name in classes]
    result: Quality = {"rows": len(labels), "classes": names}
    if len(names) <= MOST_CLASSES:
        places = labels.long() * len(names) + decided.long()
        confusion = torch.bincount(places, minlength=len(names) ** 2).reshape(
            len(names), -1
        )
        result["confusion"] = confusion.tolist()  # a row per true class
        per_class = torch.stack(
            [confusion.diag(), confusion.sum(0), confusion.sum(1)], 1
        ).tolist()
        result["each"] = [
            {"rows": actual, **_hits(right, called, actual)}
            for right, called, actual in per_class
        ]
    is_positive = labels == positive
    if len(names) == 2 and is_positive.any() and not is_positive.all():
        scores = loss.scores(outputs)[:, positive].double().contiguous()
        result["positive"] = positive
        result |= _two(scores, is_positive)
    return result


def _numbers(decided: Tensor, labels: Tensor) -> Quality:
    """The quality of predicted numbers: the mean label of rows that are predicted
    alike, and how far off rows are."""
    error = (decided - labels).abs().sort().values
    groups = [group for group in decided.argsort().tensor_split(BINS) if len(group)]
    means = [
        (float(decided[group].mean()), float(labels[group].mean())) for group in groups
    ]
    off = {
        f"{share:.0%}": float(error[round(share * (len(error) - 1))])
        for share in (0.5, 0.8, 0.9, 0.95)
    }
    return {"rows": len(labels), "calibration": means, "off": off}


def _two(scores: Tensor, positive: Tensor) -> Quality:
    """The quality of scores of the positive one of two classes. Rows with equal scores
    are one step of every curve."""
    order = scores.argsort(descending=True)
    ranked = scores[order]
    hit = positive[order].double()
    ends = torch.cat(
        [
            (ranked[1:] != ranked[:-1]).nonzero().flatten(),
            torch.tensor([len(ranked) - 1]),
        ]
    )
    caught = hit.cumsum(0)[ends]
    taken = (ends + 1).double()
    total = float(caught[-1])
    rows = len(ranked)
    recall = caught / total
    alarms = (taken - caught) / (rows - total)
    gap = int((recall - alarms).argmax())
    # each once: no more than ends
    few = torch.linspace(0, len(ends) - 1, min(POINTS, len(ends))).round().long()
    deciles = [round(rows * (at + 1) / BINS) for at in range(BINS)]
    share = total / rows
    groups = [
        group for group in torch.arange(rows).flip(0).tensor_split(BINS) if len(group)
    ]
    edges = torch.linspace(0, 1, BARS + 1, dtype=torch.double)
    bar = torch.bucketize(scores, edges[1:-1], right=True)
    counts = [
        torch.bincount(bar[in_class], minlength=BARS).tolist()
        for in_class in (~positive, positive)
    ]
    return {
        "share": share,
        "roc": [
            (0.0, 0.0),
            *zip(alarms[few].tolist(), recall[few].tolist(), strict=True),
        ],
        "precision_recall": list(
            zip(recall[few].tolist(), (caught / taken)[few].tolist(), strict=True)
        ),
        "ks": {
            "value": float(recall[gap] - alarms[gap]),
            "at": float(ranked[ends[gap]]),
        },
        "lift": [(at / rows, float(hit[:at].mean()) / share) for at in deciles if at],
        "calibration": [
            (float(ranked[group].mean()), float(hit[group].mean())) for group in groups
        ],
        "brier": float((scores - positive.double()).square().mean()),
        "mean_score": float(scores.mean()),
        "distribution": counts,
        "thresholds": [
            _cheapest(ratio, ranked[ends], caught, taken, rows, total)
            for ratio in RATIOS
        ],
    }


def _cheapest(
    ratio: int, at: Tensor, caught: Tensor, taken: Tensor, rows: int, total: float
) -> Quality:
    """The score from which on to act, where a miss costs so many false alarms; acting
    on no row may be the cheapest."""
    caught, taken = (
        torch.cat([counts.new_zeros(1), counts]) for counts in (caught, taken)
    )
    misses = total - caught
    alarms = taken - caught
    cost = ratio * misses + alarms
    best = int(cost.argmin())
    return {
        "miss_costs": ratio,
        "threshold": float(at[best - 1]) if best else None,
        "acted_on": int(taken[best]),
        "misses": int(misses[best]),
        "alarms": int(alarms[best]),
        "cost": float(cost[best]) / rows,
    }
