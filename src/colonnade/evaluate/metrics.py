"""What the label owner reports about predictions; torch only, so that it runs where the training ran.

How well a model ranks and decides, in more than one number: curves, counts and costs, for the label owner.

Everything is added up over rows: no row's score or label can be told from it, unless a class has very few. It tells
more about labels than a score does, so it is kept in the label owner's own folder of a run.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from colonnade.optim.losses import Logistic, Loss, Squared

HEADLINE = {"classification": "accuracy", "regression": "r2"}
WEIGHTED = "weighted_loss"  # what training made small, where classes or rows have weights
POSITIVE = 1
"""Of two classes in order, by number or alphabet, the second is the positive one in every score and curve, as in
scikit-learn: the rarer one may be another on other rows."""
SCORES = frozenset({"loss", WEIGHTED, "accuracy", "auc", "precision", "recall", "f1", "rmse", "mae", "r2"})


def measure(loss: Loss, outputs: Tensor, labels: Tensor) -> dict[str, float]:
    """The loss and the usual scores: accuracy; for two classes also AUC, precision, recall and F1 of the positive one;
    or RMSE, MAE and R squared."""
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
    positive = labels == POSITIVE
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
    their harmonic mean. Where there is nothing to divide by, 0, as in scikit-learn."""
    called, positive = decided == POSITIVE, labels == POSITIVE
    return _hits(int((called & positive).sum()), int(called.sum()), int(positive.sum()))


def _hits(right: int, called: int, there: int) -> dict[str, float]:
    both = 2 * right / max(called + there, 1)
    return {"precision": right / max(called, 1), "recall": right / max(there, 1), "f1": both}


POINTS, BINS, BARS = 100, 10, 20
"""Points of a curve at most, groups of rows for calibration, bars of a distribution."""
RATIOS = (1, 2, 5, 10, 20, 50)
"""What a miss costs, in false alarms."""
MOST_CLASSES = 30
"""Beyond so many classes a table of all of them is no help."""

Quality = dict[str, Any]


def quality(loss: Loss, outputs: Tensor, labels: Tensor, classes: Sequence[Any], scale: float = 1.0) -> Quality:
    """How good outputs are for rows with these labels; `scale` gives numbers their own unit."""
    outputs, labels = outputs.detach().double().cpu(), labels.detach().cpu()
    if isinstance(loss, Squared):
        return _numbers(loss.decide(outputs).flatten() * scale, labels.double().flatten() * scale)
    decided = loss.decide(outputs).cpu()
    names = [str(one) for one in classes]
    found: Quality = {"rows": len(labels), "classes": names}
    if len(names) <= MOST_CLASSES:
        places = labels.long() * len(names) + decided.long()
        confusion = torch.bincount(places, minlength=len(names) ** 2).reshape(len(names), -1)
        found["confusion"] = confusion.tolist()  # a row per true class
        counts = zip(*(some.tolist() for some in (confusion.diag(), confusion.sum(0), confusion.sum(1))), strict=True)
        found["each"] = [{"rows": there, **_hits(right, called, there)} for right, called, there in counts]
    positive = labels == POSITIVE
    if len(names) == 2 and positive.any() and not positive.all():
        found |= {"positive": POSITIVE} | _two(loss.scores(outputs)[:, POSITIVE].double().contiguous(), positive)
    return found


def _numbers(decided: Tensor, labels: Tensor) -> Quality:
    """Of predicted numbers: what was true of those predicted alike, and how far off rows are."""
    error = (decided - labels).abs().sort().values
    order = decided.argsort()
    groups = [(float(decided[one].mean()), float(labels[one].mean())) for one in order.tensor_split(BINS) if len(one)]
    off = {f"{share:.0%}": float(error[round(share * (len(error) - 1))]) for share in (0.5, 0.8, 0.9, 0.95)}
    return {"rows": len(labels), "calibration": groups, "off": off}


def _two(scores: Tensor, positive: Tensor) -> Quality:
    """Of two classes: scores of the positive one. Rows with equal scores are one step of every curve."""
    order = scores.argsort(descending=True)
    ranked, hit = scores[order], positive[order].double()
    ends = torch.cat([(ranked[1:] != ranked[:-1]).nonzero().flatten(), torch.tensor([len(ranked) - 1])])
    caught = hit.cumsum(0)[ends]
    taken = (ends + 1).double()
    total, rows = float(caught[-1]), len(ranked)
    recall, alarms = caught / total, (taken - caught) / (rows - total)
    gap = int((recall - alarms).argmax())
    few = torch.linspace(0, len(ends) - 1, min(POINTS, len(ends))).round().long()  # each once: no more than ends
    deciles = [round(rows * (at + 1) / BINS) for at in range(BINS)]
    share = total / rows
    groups = [one for one in torch.arange(rows).flip(0).tensor_split(BINS) if len(one)]
    edges = torch.linspace(0, 1, BARS + 1, dtype=torch.double)
    bar = torch.bucketize(scores, edges[1:-1], right=True)
    counts = [torch.bincount(bar[which], minlength=BARS).tolist() for which in (~positive, positive)]
    return {
        "share": share,
        "roc": [(0.0, 0.0), *zip(alarms[few].tolist(), recall[few].tolist(), strict=True)],
        "precision_recall": list(zip(recall[few].tolist(), (caught / taken)[few].tolist(), strict=True)),
        "ks": {"value": float(recall[gap] - alarms[gap]), "at": float(ranked[ends[gap]])},
        "lift": [(at / rows, float(hit[:at].mean()) / share) for at in deciles if at],
        "calibration": [(float(ranked[one].mean()), float(hit[one].mean())) for one in groups],
        "brier": float((scores - positive.double()).square().mean()),
        "mean_score": float(scores.mean()),
        "distribution": counts,
        "thresholds": [_cheapest(ratio, ranked[ends], caught, taken, rows, total) for ratio in RATIOS],
    }


def _cheapest(ratio: int, at: Tensor, caught: Tensor, taken: Tensor, rows: int, total: float) -> Quality:
    """From which score on to act, where a miss costs so many false alarms; to act on no row may be the cheapest."""
    caught, taken = (torch.cat([counts.new_zeros(1), counts]) for counts in (caught, taken))
    misses, alarms = total - caught, taken - caught
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
