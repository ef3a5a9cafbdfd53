"""VIM's search for sigma, C and rate at each epsilon (Appendix B.3), on MNIST, by validation rows.

The paper searches sigma in {2, 3, 5, 8, 10, 20}, C in {0.01, 0.05, 0.1, 0.3} and the rate in {0.05, 0.3, 0.5, 1} for
each method and epsilon. So does this, with four of its six sigmas. A run spends as it goes, so it stands for every
epsilon: at each the last epoch counts that the paper's accountant (Opacus: Poisson batches, RDP) still allows. What
validation rows choose is in `dp_chosen.py`, which runs it with three seeds, each beside its control.

Every run is a cell; what is chosen is worked out when all are put together, which needs dp-accounting. `dp_grid.json`
has what every point scored on an H200, so that the choice can be seen without a run:

    python reproductions/vim/dp_grid.py FOLDER
    colonnade reproduce vim-dp-grid --out FOLDER --jobs 0
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
from pathlib import Path
from typing import Any, NamedTuple

import torch

from colonnade import reproduction
from colonnade.errors import ConfigError, Diverged
from colonnade.privacy.accounting import hidden_poisson_rdp
from colonnade.reproduction import Plan, Study
from colonnade.reproduction.cells import Kept, script_of

SIGMAS, CLIPS, RATES = (2.0, 5.0, 10.0, 20.0), (0.01, 0.05, 0.1, 0.3), (0.05, 0.3, 0.5, 1.0)
EPSILONS = (0.1, 0.3, 1.0)
ROWS, BATCH, DELTA = 54_000, 1024, 1e-5
QUICK = {"sigma": (2.0,), "clip": (0.1, 0.3), "rate": (0.5,), "method": ("FDML", "VIMADMM")}


class Point(NamedTuple):
    method: str
    sigma: float
    clip: float
    rate: float

    @property
    def title(self) -> str:
        return f"{self.method}, sigma {self.sigma:g}, C {self.clip:g}, rate {self.rate:g}"


def table(plan: Plan) -> dict[str, Point]:
    methods = script_of(reproduction.plan("vim-dp")).METHODS
    axes: tuple[Any, ...] = (methods, SIGMAS, CLIPS, RATES)
    if plan.short:
        axes = (QUICK["method"], QUICK["sigma"], QUICK["clip"], QUICK["rate"])
    return {point.title: point for point in itertools.starmap(Point, itertools.product(*axes))}


def cells(plan: Plan) -> list[str]:
    return list(table(plan))


def run(study: Study, cell: str) -> None:
    point, dp = table(study.plan)[cell], script_of(reproduction.plan("vim-dp"))
    follow(study, cell, dp.noisy(study, point.method, "gaussian", point.sigma, point.clip, point.rate, seed=0))


def follow(study: Study, title: str, federation: Any) -> None:
    """Train it, and score validation and test rows after the plan's epochs."""
    epochs, done = study.plan.epochs, 0
    try:
        for step in federation.train():
            if study.watch is not None:
                study.watch(title, step)
            if step.batch.number + 1 == federation.batches.per_epoch and step.batch.epoch + 1 in epochs:
                done = step.batch.epoch + 1
                for split in ("validation", "test"):
                    study.record(f"{title}, epoch {done}, {split}", federation.evaluate(split)["accuracy"])
    except Diverged:
        for epoch, split in itertools.product((one for one in epochs if one > done), ("validation", "test")):
            study.record(f"{title}, epoch {epoch}, {split}", math.nan)
    torch.cuda.empty_cache()


def spent(sigma: float, epoch: int) -> float:
    return hidden_poisson_rdp(sigma, ROWS, BATCH, epoch * math.ceil(ROWS / BATCH), DELTA)


def finish(study: Study) -> None:
    """Of each method and epsilon what validation rows choose, and how well it does."""
    try:
        allowed = {
            (sigma, epsilon): max((one for one in study.plan.epochs if spent(sigma, one) <= epsilon), default=0)
            for sigma, epsilon in itertools.product(SIGMAS, EPSILONS)
        }
    except ConfigError:  # dp-accounting is not installed here
        return
    methods = dict.fromkeys(point.method for point in table(study.plan).values())
    for method, epsilon in itertools.product(methods, EPSILONS):
        scored = {}
        for title, point in table(study.plan).items():
            if point.method != method:
                continue
            epoch = allowed[point.sigma, epsilon]
            found = study.measured.get(f"{title}, epoch {epoch}, validation")
            if found is not None and math.isfinite(found.mean):
                scored[title, epoch] = found.mean
        if not scored:
            continue
        title, epoch = max(scored, key=lambda key: scored[key])
        point, what = table(study.plan)[title], f"{method}, epsilon {epsilon:g}: "
        for name, value in (("sigma", point.sigma), ("C", point.clip), ("rate", point.rate), ("epoch", epoch)):
            study.record(what + name, float(value), "")
        for split in ("validation", "test"):
            study.record(what + split, study.measured[f"{title}, epoch {epoch}, {split}"].mean)


def known(plan: Plan) -> dict[str, Study]:
    """The points as they were run."""
    found: dict[str, Study] = {}
    points = json.loads((plan.folder / "dp_grid.json").read_text(encoding="utf-8"))["points"]
    for title, scores in points.items():
        found[title] = Study(plan)
        for at, epoch in enumerate(plan.epochs):
            for split in ("validation", "test"):
                score = scores[split][at]
                found[title].record(f"{title}, epoch {epoch}, {split}", math.nan if score is None else score)
    return found


def main() -> None:
    words = argparse.ArgumentParser(description="Put the points as they were run into a folder, as finished cells.")
    words.add_argument("folder", type=Path)
    plan = reproduction.plan("vim-dp-grid")
    kept = Kept(plan, words.parse_args().folder / "cells")
    for title, study in known(plan).items():
        kept.write(title, study, True)


if __name__ == "__main__":
    main()
