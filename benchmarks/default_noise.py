"""What the default, and what it was chosen from, keep where the partner's embeddings
have the noise of a budget.

Tables of `bench defaults` between two organisations; the second clips each embedding to
length 1 and adds Gaussian noise for `EPSILON` over the epochs that are then suggested.
Noise follows the seed, so that a run can be repeated. AUC on test rows.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from statistics import fmean, stdev
from typing import Any

from colonnade.benchmark import Cells, Result, _load
from colonnade.core.party import one_torch_thread
from colonnade.federation import Federation

TABLES = ("breast_cancer", "default_credit", "bank")
ALGORITHMS = ("splitnn", "splitnn of a linear head", "vimadmm")
SEEDS = (10, 11, 12)
EPSILON = 8.0
ROWS = 3000
RULE = {"mechanism": {"name": "gaussian", "clip": 1.0, "sigma": "auto"}}


def measure(cell: str) -> dict[str, Any]:
    """The AUC of one table, seed and algorithm."""
    defaults = _load("defaults")
    name, seed, algorithm = defaults.parts_of(cell)
    task = next(task for task in defaults.tables() if task.name == name)
    partner = list(task.frames)[1]
    own = {"outbox": {"embedding": RULE}, "budget": {"epsilon": EPSILON}}
    settings = {
        "algorithm": defaults.CANDIDATES[algorithm],
        "data": {"task": "classification"},
        "federation": {"seed": int(seed), "noise": "seeded"},
        "parties": {partner: own},
    }
    with one_torch_thread(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        federation = Federation.from_frames(
            defaults.drawn(task, int(seed), ROWS),
            id=task.id,
            label=task.label,
            settings=settings,
        )
        return {"auc": federation.fit().summary["metrics"]["test"]["auc"]}


def results(measured: Mapping[str, dict[str, Any]]) -> list[Result]:
    """A line for each table and algorithm."""
    found: dict[str, list[float]] = {}
    for cell, one in measured.items():
        table, _, algorithm = _load("defaults").parts_of(cell)
        found.setdefault(f"{table}: {algorithm}", []).append(one["auc"])
    return [
        Result(
            line,
            f"AUC {fmean(scores):.3f}"
            + (f" ± {stdev(scores):.3f}" if len(scores) > 1 else ""),
            f"epsilon {EPSILON:g} of the partner's rows",
        )
        for line, scores in found.items()
    ]


def run(quick: bool) -> Cells:
    there = {task.name for task in _load("defaults").tables()}
    tables = [name for name in TABLES if name in there]
    cells = [
        f"{table}, {seed}, {algorithm}"
        for table in (tables[:1] if quick else tables)
        for algorithm in ALGORITHMS
        for seed in (SEEDS[:1] if quick else SEEDS)
    ]
    return Cells(cells, measure, results)
