"""Each method at each epsilon with what validation rows chose in `dp_grid.py`: three
seeds, each beside its control.

In the control uploads are noise alone, of the same size: what it scores comes from the
labels in what the label owner sends down. A method's columns are worth what it scores
above it. Validation rows and test rows go out as they are.

Every run is a cell, and ends at the epoch that was chosen. Where epsilons have the same
choice, one run is for all.
"""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import NamedTuple

from colonnade import reproduction
from colonnade.core.receipt import DpEvent
from colonnade.errors import ConfigError
from colonnade.privacy.accounting import key_of, known_batch
from colonnade.reproduction import Plan, Study
from colonnade.reproduction.cells import script_of

QUICK = (("VIMADMM", 1.0), ("FDML", 1.0))
MECHANISMS = {"": "gaussian", ", noise alone": "noise_only"}
OURS = ("VIMSGD", "VIMADMM", "VIMADMM-J")
BASELINES = ("VAFL", "FDML")


class Chosen(NamedTuple):
    sigma: float
    clip: float
    rate: float
    epoch: int  # the last that epsilon allows


def grid_of(plan: Plan) -> Plan:
    return reproduction.plan(plan.name.replace("chosen", "grid"))


def choices(plan: Plan) -> Path:
    """Where they are kept."""
    path: Path = script_of(grid_of(plan)).file(grid_of(plan))
    return path


def chosen(plan: Plan) -> dict[tuple[str, float], Chosen]:
    """By method and epsilon, the best of the grid on validation rows."""
    path = choices(plan)
    if not path.exists():
        raise ConfigError(
            f"What {grid_of(plan).name} chose is not there: run it, and keep it in"
            f" {path.name}."
        )
    found = {}
    told = json.loads(path.read_text(encoding="utf-8"))["chosen"]
    for name, (sigma, clip, rate, epoch) in told.items():
        method, epsilon = name.split(", epsilon ")
        found[method, float(epsilon)] = Chosen(sigma, clip, rate, int(epoch))
    return found


def stands_in(plan: Plan, method: str, epsilon: float) -> float:
    """The first epsilon for which the method has the same choice, and whose runs are
    this one's, too."""
    known = {} if plan.short or not choices(plan).exists() else chosen(plan)
    wanted = known.get((method, epsilon))
    return next(
        (
            one
            for whose, one in known
            if whose == method and known[whose, one] == wanted
        ),
        epsilon,
    )


def table(plan: Plan) -> dict[str, tuple[str, float, str, int]]:
    """Method, epsilon, what is sent, and seed by the name of the cell."""
    grid = script_of(grid_of(plan))
    methods = script_of(reproduction.plan("vim-dp")).METHODS
    points = QUICK if plan.short else tuple(itertools.product(methods, grid.EPSILONS))
    points = tuple(
        (method, epsilon)
        for method, epsilon in points
        if stands_in(plan, method, epsilon) == epsilon
    )
    return {
        f"{method}, epsilon {epsilon:g}{sent}, seed {seed}": (
            method,
            epsilon,
            sent,
            seed,
        )
        for seed, (method, epsilon), sent in itertools.product(
            plan.seeds, points, MECHANISMS
        )
    }


def cells(plan: Plan) -> list[str]:
    return list(table(plan))


def run(study: Study, cell: str) -> None:
    method, epsilon, sent, seed = table(study.plan)[cell]
    dp = script_of(reproduction.plan("vim-dp"))
    grid = script_of(grid_of(study.plan))
    one = chosen(study.plan)[method, epsilon]
    made = dp.noisy(
        study, method, MECHANISMS[sent], one.sigma, one.clip, one.rate, seed
    )
    grid.follow(
        study,
        f"{method}, epsilon {epsilon:g}{sent}",
        made,
        () if study.plan.short else (one.epoch,),
    )


def by_seed(study: Study, title: str, epoch: int) -> dict[int, float]:
    """The test scores of those seeds that were run."""
    cells = {
        seed: study.cells.get(f"{title}, seed {seed}", {}) for seed in study.plan.seeds
    }
    what = f"{title}, epoch {epoch}, test"
    return {seed: found[what][0] for seed, found in cells.items() if what in found}


def finish(study: Study) -> None:
    """At the epoch that epsilon allows: the score, how far it is above its control and
    above the paper's baselines in the same seeds, and what epsilon is against a label
    owner, who knows the batches."""
    scored: dict[tuple[str, float], dict[int, float]] = {}
    for (method, epsilon), one in chosen(study.plan).items():
        epoch = max(study.plan.epochs) if study.plan.short else one.epoch
        title, ran = (
            f"{method}, epsilon {at:g}"
            for at in (epsilon, stands_in(study.plan, method, epsilon))
        )
        scores, controls = (
            by_seed(study, f"{ran}{sent}", epoch) for sent in MECHANISMS
        )
        if not scores.keys() & controls.keys():
            continue
        scored[method, epsilon] = {
            seed: score for seed, score in scores.items() if seed in controls
        }
        for seed, score in scored[method, epsilon].items():
            study.record(f"{title}: test", score)
            study.record(f"{title}: noise alone", controls[seed])
            study.record(f"{title}: above noise alone", score - controls[seed])
        try:
            event = key_of(
                DpEvent("gaussian", {"noise_multiplier": one.sigma, "clip": 1.0})
            )
            delta = script_of(grid_of(study.plan)).DELTA
            study.record(
                f"{title}: against the label owner",
                known_batch({event: epoch}, "add-or-remove", delta),
                "",
            )
        except ConfigError:  # dp-accounting is not installed here
            pass
    for (method, epsilon), other in itertools.product(scored, BASELINES):
        beside = scored.get((other, epsilon), {})
        for seed, score in scored[method, epsilon].items():
            if method in OURS and seed in beside:
                study.record(
                    f"{method}, epsilon {epsilon:g}: above {other}",
                    score - beside[seed],
                )
