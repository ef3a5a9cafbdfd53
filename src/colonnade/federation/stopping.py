"""When training ends before its last epoch, and of which epoch the models are kept."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Protocol

from colonnade.core.batches import Progress
from colonnade.evaluate.metrics import HEADLINE, WEIGHTED
from colonnade.rows.holdings import Holdings
from colonnade.settings.federation_file import Settings

CONVERGED = 1e-4
"""Relative change of the mean training loss, three epochs in a row, below which training has converged."""
OPTIMUM = 1e-9
"""The same, of an algorithm that trains to the one optimum."""
RANKED = 200
"""Validation rows from which on AUC decides: of 100, a tenth of them positive, it is off by 0.06 either way."""
Record = dict[str, Any]


class Watched(Protocol):
    """What of a federation says when to stop."""

    settings: Settings
    holdings: Holdings
    batches: Progress
    algorithm: Any


def _watched(trained: Watched, history: Sequence[Record]) -> tuple[str, list[tuple[float, float]]]:
    """The validation score that decides, and what it was after each epoch: larger is better, and of equal scores that
    with the lower loss. Of two classes it is AUC, which a few rows at the threshold do not move, where there are rows
    enough for it to be more than chance; else the loss, of which every row is a part."""
    records = [record["validation"] for record in history if "validation" in record]
    many = len(trained.batches.splits.get("validation", ())) >= RANKED
    scores = {
        "auto": [*(["auc"] if many else []), WEIGHTED, "loss"],
        "score": ["auc", HEADLINE[trained.holdings.encoder.task], "loss"],
        "loss": [WEIGHTED, "loss"],
    }[trained.settings.train.stop_on]
    for name in scores:
        known = [(record.get(name), record["loss"]) for record in records]
        if all(value is not None and math.isfinite(value) for pair in known for value in pair):
            falls = name in ("loss", WEIGHTED)
            return name, [(-float(score) if falls else float(score), -loss) for score, loss in known]
    return "loss", []


def best_of(trained: Watched, history: Sequence[Record]) -> Record | None:
    """The epoch whose models are kept: the first of those that validated best. None where the last ones are."""
    if not trained.settings.train.early_stop or trained.algorithm.converges:
        return None
    _, scores = _watched(trained, history)
    return history[scores.index(max(scores))] if scores else None


def is_best(trained: Watched, history: Sequence[Record]) -> bool:
    return bool(history) and best_of(trained, history) is history[-1]


def why_stop(trained: Watched, history: Sequence[Record]) -> tuple[str, str] | None:
    """Converged, or no better validation for as long as patience lasts: in full, and as all are told. VIM's criterion,
    a fall by two points, is patience_drop = 0.02."""
    train = trained.settings.train
    if not train.early_stop:
        return None
    losses = [record["loss"] for record in history[-4:]]
    changes = [abs(after - before) / max(abs(before), 1e-12) for before, after in pairwise(losses)]
    if len(changes) == 3 and max(changes) < (OPTIMUM if trained.algorithm.converges else CONVERGED):
        return ("converged: the training loss no longer changes",) * 2
    if trained.algorithm.converges:
        return None
    name, scores = _watched(trained, history)
    name = name.upper() if name == "auc" else name
    if scores and len(scores) - 1 - scores.index(max(scores)) >= train.patience:
        best = f"{abs(max(scores)[0]):.4f} in epoch {history[scores.index(max(scores))]['epoch']}"
        return f"validation {name} was best, {best}, and did not improve since", f"validation {name} did not improve"
    name = HEADLINE[trained.holdings.encoder.task]
    drops = [record["validation"][name] for record in history if train.patience_drop and "validation" in record]
    if drops and drops[-1] < max(drops) - train.patience_drop:
        return f"validation {name} fell from {max(drops):.4f} to {drops[-1]:.4f}", f"validation {name} fell"
    return None
