"""How well a model ranks and decides, in more than one number: curves, counts and costs, for the label owner.

Everything is added up over rows: no row's score or label can be told from it, unless a class has very few. It tells
more about labels than a score does, so it is kept in the label owner's own folder of a run.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from colonnade.optim.losses import Loss, Squared

POINTS, BINS, BARS = 100, 10, 20
"""Points of a curve at most, groups of rows for calibration, bars of a distribution."""
RATIOS = (1, 2, 5, 10, 20, 50)
"""What a miss costs, in false alarms."""
MOST_CLASSES = 30
"""Beyond so many classes a table of all of them is no help."""

Quality = dict[str, Any]


def quality(loss: Loss, outputs: Tensor, labels: Tensor, classes: Sequence[Any], scale: float = 1.0) -> Quality:
    """Of outputs for rows with these labels; `scale` gives numbers their own unit."""
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
        found["each"] = [_one_class(confusion, at) for at in range(len(names))]
    if len(names) == 2 and 0 < int((labels == 1).sum()) < len(labels):
        rarer = int(2 * int((labels == 1).sum()) <= len(labels))  # what one looks for is seldom
        found |= {"positive": rarer} | _two(loss.scores(outputs)[:, rarer].double().contiguous(), labels == rarer)
    return found


def _one_class(confusion: Tensor, at: int) -> Quality:
    right, called, there = int(confusion[at, at]), int(confusion[:, at].sum()), int(confusion[at].sum())
    precision, recall = right / max(called, 1), right / max(there, 1)
    f1 = 2 * right / max(called + there, 1)
    return {"rows": there, "precision": precision, "recall": recall, "f1": f1}


def _numbers(decided: Tensor, labels: Tensor) -> Quality:
    """Of predicted numbers: what was true of those predicted alike, and how far off rows are."""
    error = (decided - labels).abs().sort().values
    order = decided.argsort()
    groups = [(float(decided[one].mean()), float(labels[one].mean())) for one in order.tensor_split(BINS) if len(one)]
    off = {f"{share:.0%}": float(error[round(share * (len(error) - 1))]) for share in (0.5, 0.8, 0.9, 0.95)}
    return {"rows": len(labels), "calibration": groups, "off": off}


def _two(scores: Tensor, positive: Tensor) -> Quality:
    """Of two classes: scores of the rarer one. Rows with equal scores are one step of every curve."""
    order = scores.argsort(descending=True)
    ranked, hit = scores[order], positive[order].double()
    ends = torch.cat([(ranked[1:] != ranked[:-1]).nonzero().flatten(), torch.tensor([len(ranked) - 1])])
    caught = hit.cumsum(0)[ends]
    taken = (ends + 1).double()
    total, rows = float(caught[-1]), len(ranked)
    recall, alarms = caught / total, (taken - caught) / (rows - total)
    gap = int((recall - alarms).argmax())
    few = (
        torch.linspace(0, len(ends) - 1, min(POINTS, len(ends))).round().long()
    )  # each once: there are no more than ends
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
    """From which score on to act, where a miss costs so many false alarms; no row may be the cheapest."""
    misses, alarms = total - caught, taken - caught
    cost = torch.cat([torch.tensor([ratio * total], dtype=torch.double), ratio * misses + alarms])
    best = int(cost.argmin())
    act: Quality = {"threshold": None, "acted_on": 0, "misses": int(total), "alarms": 0}
    if best:
        act = {
            "threshold": float(at[best - 1]),
            "acted_on": int(taken[best - 1]),
            "misses": int(misses[best - 1]),
            "alarms": int(alarms[best - 1]),
        }
    return {"miss_costs": ratio, **act, "cost": float(cost[best]) / rows}
