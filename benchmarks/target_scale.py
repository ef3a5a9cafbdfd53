"""From which skewness on are labels better trained as logarithms?

`splitnn` as suggested trains positive labels as they are and as logarithms, on tables of
`bench defaults` and others that are made as these are. R squared and MAE are in the
label's own unit. By the validation rows `datasets.target_scale.SKEWED` was chosen; the
test rows stand beside them.

A cell is a table and a seed ("loans, 20").
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from functools import lru_cache
from statistics import fmean
from typing import Any

import numpy as np
from numpy.typing import NDArray

from colonnade.benchmark import Cells, Result, _load
from colonnade.core.party import one_torch_thread
from colonnade.datasets.target_scale import SKEWED, skewness
from colonnade.federation import Federation

Values = NDArray[np.float64]
ROWS = 2000
SEEDS = (20, 21, 22, 23)
SCALES = ("linear", "log")
SPREADS = (0.35, 0.5, 0.6, 0.75, 0.9, 1.05)
"""How far exponents are spread in tables that multiply."""
TAILS = (1.15, 1.3, 1.4, 1.5)
"""The same, where exponentials are added up."""


@lru_cache(maxsize=1)
def tasks() -> dict[str, Any]:
    """By name, the tables of `bench defaults` with positive labels, and others."""
    defaults = _load("defaults")
    made = [multiplied(defaults, spread) for spread in SPREADS]
    made += [added(defaults, tail) for tail in TAILS]
    made.append(squared(defaults))
    known = [
        task
        for task in defaults.tables()
        if task.is_number and (labels(task) > 0).all()
    ]
    return {task.name: task for task in [*known, *made]}


def labels(task: Any) -> Values:
    first = next(iter(task.frames.values()))
    values: Values = first[task.label].to_numpy(dtype=np.float64)
    return values


def multiplied(defaults: Any, spread: float) -> Any:
    def rule(a: Values, b: Values, e: Values) -> Values:
        of_first = 0.8 * a[:, 0] - 0.5 * a[:, 1]
        of_second = 0.6 * b[:, 0] + 0.4 * b[:, 1]
        return np.exp(spread * (of_first + of_second) + 0.3 * e)

    return defaults.made(f"multiplied by {spread}", 2, rule, is_number=True)


def added(defaults: Any, tail: float) -> Any:
    def rule(a: Values, b: Values, e: Values) -> Values:
        costs = np.exp(tail * np.stack([a[:, 0], b[:, 0], b[:, 1]]))
        return np.asarray(costs.sum(0) + 0.1 * np.abs(e))

    return defaults.made(f"added up by {tail}", 2, rule, is_number=True)


def squared(defaults: Any) -> Any:
    def rule(a: Values, b: Values, e: Values) -> Values:
        return (a[:, 0] + b[:, 0]) ** 2 + 0.1 * np.abs(e)

    return defaults.made("square of a sum", 2, rule, is_number=True)


def measure(cell: str, rows: int) -> dict[str, Any]:
    """The scores of one table and seed on both scales."""
    name, _, seed = cell.rpartition(", ")
    task = tasks()[name]
    defaults = _load("defaults")
    found = {}
    for scale in SCALES:
        settings = {
            "algorithm": {"name": "splitnn"},
            "data": {"task": "regression", "target_scale": scale},
            "federation": {"seed": int(seed)},
        }
        with one_torch_thread(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            federation = Federation.from_frames(
                defaults.drawn(task, int(seed), rows),
                id=task.id,
                label=task.label,
                settings=settings,
            )
            metrics = federation.fit().summary["metrics"]
        found[scale] = {
            "validation": metrics["validation"]["r2"],
            "test": metrics["test"]["r2"],
            "mae": metrics["test"]["mae"],
        }
    return found


def results(measured: Mapping[str, dict[str, Any]]) -> list[Result]:
    """A line for each table, the least skewed first."""
    by_table: dict[str, list[dict[str, Any]]] = {}
    for cell, found in measured.items():
        by_table.setdefault(cell.rpartition(", ")[0], []).append(found)
    skew = {name: skewness(labels(tasks()[name])) for name in by_table}
    return [
        line(name, skew[name], by_table[name])
        for name in sorted(skew, key=lambda name: skew[name])
    ]


def line(name: str, skew: float, found: list[dict[str, Any]]) -> Result:
    means = {
        f"{scale}, {key}": fmean(one[scale][key] for one in found)
        for scale in SCALES
        for key in ("validation", "test", "mae")
    }
    validation, test, mae = (
        f"{means[f'linear, {key}']:.{digits}f} and {means[f'log, {key}']:.{digits}f}"
        for key, digits in (("validation", 3), ("test", 3), ("mae", 2))
    )
    return Result(
        f"{name}, skewness {skew:.1f}",
        f"validation R² {validation}; test R² {test}; MAE {mae} (linear and log)",
        numbers={"skewness": skew, **means},
        target=f"log from {SKEWED:g} on",
    )


def run(quick: bool) -> Cells:
    names = ["diabetes", "multiplied"] if quick else list(tasks())
    seeds = SEEDS[:1] if quick else SEEDS
    cells = [f"{name}, {seed}" for name in names for seed in seeds]

    def measured(cell: str) -> dict[str, Any]:
        return measure(cell, 400 if quick else ROWS)

    return Cells(cells, measured, results)
