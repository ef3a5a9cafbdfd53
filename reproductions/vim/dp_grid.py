"""VIM's search for sigma, C and rate at each epsilon (Appendix B.3), by validation
rows: on MNIST, on CIFAR-10, on Letter in the place of NUS-WIDE, and on ModelNet10 in
the place of ModelNet40.

The paper searches sigma in {2, 3, 5, 8, 10, 20} for each method and epsilon, and on
MNIST C in {0.01, 0.05, 0.1, 0.3} and the rate in {0.05, 0.3, 0.5, 1}. So does this,
with four of its six sigmas. On the smaller sets a batch is a larger share of the rows
and an epsilon needs more noise: sigma there goes on until ten epochs are within 0.1,
and what no epsilon allows is left out. C and rate have there what the paper has for
MNIST, NUS-WIDE or ModelNet40, and 0.01.

On CIFAR-10 the paper's search is 600 runs, hours of a GPU, so this one is smaller and
finds no more than the best of few. Every method has Table 3's point. The gradient
methods have 12 more, with a sigma for each epsilon and the rates that noise-free runs
and the other sets chose (0.1 and 0.5; the paper ends at 0.1). ADMM's methods, ten times
as long, have five more: from Table 3's sigma and C other rates, and at one of them
sigma 2 with C from 0.01 to 0.5; they end after two epochs, which without noise is where
they have all but two points of what they come to.

A run spends as it goes, so it stands for every epsilon: at each the last epoch counts
that the paper's accountant (Opacus: Poisson batches, RDP) still allows. What validation
rows choose `dp_chosen.py` runs with three seeds, each beside its control.

Every run is a cell; what is chosen is worked out when all are put together, which needs
dp-accounting. `dp_grid*.json` have what every point scored and what was chosen, so that
the choice can be seen without a run:

    python reproductions/vim/dp_grid.py FOLDER --plan vim-dp-grid-letter
    colonnade reproduce vim-dp-grid-letter --out FOLDER --jobs 0

With `--keep HARDWARE` the first writes such a file from a folder that was put together.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from colonnade import reproduction
from colonnade.core.files import write_text
from colonnade.errors import ConfigError, Diverged
from colonnade.privacy.accounting import hidden_poisson_rdp
from colonnade.reproduction import Plan, Study
from colonnade.reproduction.cells import KeptCells, script_of


class Grid(NamedTuple):
    rows: int  # to train with
    sigmas: tuple[float, ...]
    clips: tuple[float, ...] = (0.01, 0.05, 0.1, 0.3, 0.5, 1.0)
    rates: tuple[float, ...] = (0.01, 0.05, 0.1, 0.3, 0.5, 1.0)
    # sigma, C and rate of ADMM's methods, where these are few
    instead: tuple[tuple[float, float, float], ...] = ()
    # what Table 3 has, where the axes do not meet it
    printed: Mapping[str, tuple[float, float, float]] = {}
    until: int = 10  # ADMM's last epoch
    # C and rate
    quick: tuple[tuple[float, ...], tuple[float, ...]] = (0.1, 0.3), (0.5,)


ADMM = ("VIMADMM", "VIMADMM-J")
CIFAR_TABLE_3 = {
    "VAFL": (2.0, 0.5, 0.05),
    "VIMSGD": (2.0, 0.5, 0.01),
    "VIMADMM": (20.0, 0.01, 0.005),
    "FDML": (20.0, 0.5, 0.005),
    "VIMADMM-J": (20.0, 0.01, 0.005),
}
GRIDS = {
    "vim-dp-grid": Grid(
        54_000, (2.0, 5.0, 10.0, 20.0), (0.01, 0.05, 0.1, 0.3), (0.05, 0.3, 0.5, 1.0)
    ),
    "vim-dp-grid-letter": Grid(14_000, (3.0, 5.0, 10.0, 20.0, 40.0)),
    "vim-dp-grid-modelnet10": Grid(3_592, (5.0, 8.0, 20.0, 40.0, 80.0)),
    "vim-dp-grid-cifar": Grid(
        45_000,
        (2.0, 5.0, 20.0),
        (0.05, 0.5),
        (0.1, 0.5),
        (
            (20.0, 0.01, 0.05),
            (20.0, 0.01, 0.1),
            (2.0, 0.01, 0.05),
            (2.0, 0.1, 0.05),
            (2.0, 0.5, 0.05),
        ),
        CIFAR_TABLE_3,
        until=2,
        quick=((0.1,), (0.05, 0.1)),
    ),
}
EPSILONS = (0.1, 0.3, 1.0)
BATCH = 1024
DELTA = 1e-5
QUICK = ("FDML", "VIMADMM")
SETTINGS = ("sigma", "C", "rate", "epoch")
SPLITS = ("validation", "test")


class Point(NamedTuple):
    method: str
    sigma: float
    clip: float
    rate: float

    @property
    def title(self) -> str:
        return (
            f"{self.method}, sigma {self.sigma:g}, C {self.clip:g}, rate {self.rate:g}"
        )


def table(plan: Plan) -> dict[str, Point]:
    methods = script_of(reproduction.plan("vim-dp")).METHODS
    grid = GRIDS[plan.name]
    points: list[Point] = []
    for method in QUICK if plan.short else methods:
        axes = (
            (grid.sigmas[:1], *grid.quick)
            if plan.short
            else (grid.sigmas, grid.clips, grid.rates)
        )
        few = grid.instead if method in ADMM and not plan.short else ()
        first = (
            [grid.printed[method]] if method in grid.printed and not plan.short else []
        )
        points += [
            Point(method, *one) for one in (*first, *(few or itertools.product(*axes)))
        ]
    return {point.title: point for point in points}


def cells(plan: Plan) -> list[str]:
    return list(table(plan))


def run(study: Study, cell: str) -> None:
    point = table(study.plan)[cell]
    dp = script_of(reproduction.plan("vim-dp"))
    made = dp.noisy(
        study, point.method, "gaussian", point.sigma, point.clip, point.rate, seed=0
    )
    follow(study, cell, made, epochs_of(study.plan, point.method))


def epochs_of(plan: Plan, method: str) -> tuple[int, ...]:
    """Those of the plan's that a method comes to."""
    last = GRIDS[plan.name].until if method in ADMM else math.inf
    return tuple(epoch for epoch in plan.epochs if epoch <= last)


def follow(
    study: Study, title: str, federation: Any, epochs: Sequence[int] = ()
) -> None:
    """Train it, and score validation and test rows after these epochs, or the plan's."""
    epochs = epochs or study.plan.epochs
    done = 0
    try:
        for step in federation.train():
            if study.watch is not None:
                study.watch(title, step)
            if (
                step.batch.number + 1 == federation.batches.per_epoch
                and step.batch.epoch + 1 in epochs
            ):
                done = step.batch.epoch + 1
                for split in SPLITS:
                    study.record(
                        f"{title}, epoch {done}, {split}",
                        federation.evaluate(split)["accuracy"],
                    )
                if done == max(epochs):
                    break
    except Diverged:
        for epoch, split in itertools.product(
            (one for one in epochs if one > done), SPLITS
        ):
            study.record(f"{title}, epoch {epoch}, {split}", math.nan)
    torch.cuda.empty_cache()


def spent(plan: Plan, sigma: float, epoch: int) -> float:
    rows = GRIDS[plan.name].rows
    return hidden_poisson_rdp(
        sigma, rows, BATCH, epoch * math.ceil(rows / BATCH), DELTA
    )


def finish(study: Study) -> None:
    """Of each method and epsilon what validation rows choose, and how well it does."""
    plan, sigmas = study.plan, GRIDS[study.plan.name].sigmas
    try:
        costs = {
            (sigma, epoch): spent(plan, sigma, epoch)
            for sigma in sigmas
            for epoch in plan.epochs
        }
    except ConfigError:  # dp-accounting is not installed here
        return
    methods = dict.fromkeys(point.method for point in table(study.plan).values())
    for method, epsilon in itertools.product(methods, EPSILONS):
        scored = {}
        for title, point in table(study.plan).items():
            if point.method != method:
                continue
            within = (
                one
                for one in epochs_of(plan, method)
                if costs[point.sigma, one] <= epsilon
            )
            epoch = max(within, default=0)
            found = study.measured.get(f"{title}, epoch {epoch}, validation")
            if found is not None and math.isfinite(found.mean):
                scored[title, epoch] = found.mean
        if not scored:
            continue
        title, epoch = max(scored, key=lambda key: scored[key])
        point = table(study.plan)[title]
        what = f"{method}, epsilon {epsilon:g}: "
        for name, value in zip(SETTINGS, (*point[1:], epoch), strict=True):
            study.record(what + name, float(value), "")
        for split in SPLITS:
            study.record(
                what + split, study.measured[f"{title}, epoch {epoch}, {split}"].mean
            )


def file(plan: Plan) -> Path:
    """What is kept of a grid: `dp_grid.json`, `dp_grid_letter.json`."""
    return plan.folder / f"{plan.name.removeprefix('vim-').replace('-', '_')}.json"


def known(plan: Plan) -> dict[str, Study]:
    """The points as they were run."""
    studies: dict[str, Study] = {}
    points = table(plan)
    scores_of = json.loads(file(plan).read_text(encoding="utf-8"))["points"]
    for title, scores in scores_of.items():
        studies[title] = Study(plan)
        for at, epoch in enumerate(epochs_of(plan, points[title].method)):
            for split in SPLITS:
                score = scores[split][at]
                studies[title].record(
                    f"{title}, epoch {epoch}, {split}",
                    math.nan if score is None else score,
                )
    return studies


def kept(plan: Plan, measured: list[dict[str, Any]], hardware: str) -> str:
    """The text of that file, a line for every point, from a study that was put
    together."""
    mean = {value["what"]: value["mean"] for value in measured}
    points = table(plan)

    def scores(title: str, split: str) -> list[float | None]:
        epochs = epochs_of(plan, points[title].method)
        every = [mean[f"{title}, epoch {epoch}, {split}"] for epoch in epochs]
        return [None if score is None else round(score, 4) for score in every]

    methods = dict.fromkeys(point.method for point in points.values())
    chosen = {
        f"{method}, epsilon {epsilon:g}": [
            mean[f"{method}, epsilon {epsilon:g}: {name}"] for name in SETTINGS
        ]
        for method, epsilon in itertools.product(methods, EPSILONS)
    }
    by_point = {
        title: {split: scores(title, split) for split in SPLITS} for title in points
    }

    def lines(entries: dict[str, Any]) -> str:
        return ",\n".join(
            f"    {json.dumps(name)}: {json.dumps(entry)}"
            for name, entry in entries.items()
        )

    return (
        f'{{\n  "hardware": {json.dumps(hardware)},\n  "chosen": {{\n{lines(chosen)}\n '
        f' }},\n  "points": {{\n{lines(by_point)}\n  }}\n}}\n'
    )


def main() -> None:
    words = argparse.ArgumentParser(
        description="Put the points as they were run into a folder, as finished cells."
    )
    words.add_argument("folder", type=Path)
    words.add_argument("--plan", choices=GRIDS, default="vim-dp-grid")
    words.add_argument(
        "--keep",
        metavar="HARDWARE",
        help="the other way: keep the points that the folder holds",
    )
    given = words.parse_args()
    plan = reproduction.plan(given.plan)
    if given.keep:
        measured = json.loads(
            (given.folder / "measured.json").read_text(encoding="utf-8")
        )
        write_text(file(plan), kept(plan, measured, given.keep))
        return
    for title, study in known(plan).items():
        KeptCells(plan, given.folder / "cells").write(title, study, True)


if __name__ == "__main__":
    main()
