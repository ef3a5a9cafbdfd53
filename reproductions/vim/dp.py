"""Accuracy against epsilon for VIM's five methods on MNIST (Figures 2 and 3, row 2;
Table 3), each beside a control.

Every row of every upload is clipped to C and gets noise N(0, sigma^2 C^2). In the
control uploads are that noise alone, and what is still learned comes from the labels in
what the label owner sends down (lambda and z, or gradients), which this noise does not
protect. A method's privacy is worth what it scores above its control.

Scores are of test rows whose uploads are as they are: the noise protects training rows.
"Test rows protected too" says what is left when they go through the same noise. Epsilon
is stated for somebody who does not know the batches, by the paper's own accountant
(Opacus: Poisson batches), by its Theorem 1 as printed, and by a tighter bound for the
same, all of which need batches that are drawn anew each round; and for the label owner,
who knows them (exact, a release of every row per epoch), which is what these runs with
their fixed batches promise.

Every run is a cell of its own; so are the epsilons, which need dp-accounting and no
training.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import torch

from colonnade import reproduction
from colonnade.algorithms import find
from colonnade.core.receipt import DpEvent
from colonnade.federation import Federation, Settings
from colonnade.privacy.accounting import (
    hidden_poisson_rdp,
    hidden_rdp,
    key_of,
    known_batch,
    theorem_1,
)
from colonnade.reproduction import Plan, Study
from colonnade.reproduction.pictures import COLOURS, save
from colonnade.rows.holdings import Holdings
from colonnade.rows.public import from_dataset
from colonnade.settings.algorithms import DEFAULT

DELTA = 1e-5
HIDDEN = "epsilon, batches secret"
KNOWN = "epsilon, label owner"
REPLACED = "epsilon, label owner, replace-one"
POISSON = "epsilon, batches secret, Poisson"
PRINTED = "epsilon, batches secret, Eq. 11 as printed"
EPSILONS = "epsilons"  # the cell
QUICK_ROWS = 8192
QUICK_BATCH = 512


class Chosen(NamedTuple):
    """Table 3, MNIST, epsilon = 1: sigma, C and what the algorithm is told."""

    sigma: float
    clip: float
    algorithm: dict[str, Any]


METHODS = {
    "VAFL": Chosen(2.0, 0.3, {"name": "vafl", "learning_rate": 0.5}),
    "VIMSGD": Chosen(2.0, 0.3, {"name": "vimsgd", "learning_rate": 0.5}),
    "VIMADMM": Chosen(10.0, 0.01, {}),
    "FDML": Chosen(2.0, 0.1, {"name": "fdml", "learning_rate": 0.5}),
    "VIMADMM-J": Chosen(
        5.0,
        0.05,
        {"name": "vimadmm_joint", "rho": 0.5, "local_steps": 20, "learning_rate": 0.05},
    ),
}
SIGMAS = (2.0, 5.0, 10.0, 20.0)


def settings(study: Study, holdings: Holdings, method: Chosen, one: Run) -> Settings:
    """The plan's federation with a run's noise on all uploads for training."""
    changes: dict[str, Any] = (
        {"algorithm": method.algorithm} if method.algorithm else {}
    )
    upload = find(method.algorithm.get("name", DEFAULT)).from_columns[0]
    if one.mechanism is not None:
        noise = {
            "mechanism": {
                "name": one.mechanism,
                "clip": method.clip,
                "sigma": one.sigma,
            }
        }
        owners = [name for name, held in holdings.columns.items()]
        rules = {upload: noise} | {
            f"{split}.{upload}": {"mechanism": "plain"}
            for split in ("test", "validation")
        }
        changes["parties"] = {name: {"outbox": rules} for name in owners}
    if study.plan.short:
        changes["train"] = {"batch_size": QUICK_BATCH}
    return study.settings(changes)


class Run(NamedTuple):
    """One run of a method: what it is called, and what is done to uploads."""

    title: str
    mechanism: str | None
    sigma: float


def runs_of(method: Chosen, seed: int, plan: Plan) -> list[Run]:
    """With its noise beside its control for every seed; the rest for the first."""
    made = [
        Run("Table 3", "gaussian", method.sigma),
        Run("noise alone", "noise_only", method.sigma),
    ]
    if seed != plan.seeds[0]:
        return made
    if not plan.short:
        made.append(Run("no noise", None, 0.0))
        made += [
            Run(f"sigma {sigma:g}", "gaussian", sigma)
            for sigma in SIGMAS
            if sigma != method.sigma
        ]
    return made


def table(plan: Plan) -> dict[str, tuple[str, Run, int]]:
    """Every run by the name of its cell."""
    return {
        f"{name}, {one.title}, seed {seed}": (name, one, seed)
        for seed in plan.seeds
        for name, method in METHODS.items()
        for one in runs_of(method, seed, plan)
    }


def cells(plan: Plan) -> list[str]:
    return [*table(plan), EPSILONS]


def noisy(
    study: Study,
    method: str,
    mechanism: str,
    sigma: float,
    clip: float,
    rate: float,
    seed: int,
) -> Federation:
    """A method at a point of the grid. Noise is drawn where the numbers are: from a
    seed, which protects nobody."""
    holdings = holdings_of(
        study.plan.config, study.plan.short, tuple(study.plan.rows.items())
    )
    data = Settings.from_toml(study.plan.config).data.dataset
    plain = reproduction.plan(
        {"cifar10": "vim-cifar"}.get(str(data), f"vim-{data}")
    ).runs[method]
    told = at_rate(study, plain, rate)
    chosen = settings(
        study, holdings, Chosen(sigma, clip, told), Run("", mechanism, sigma)
    )
    federation = study.federation(chosen, seed, holdings)
    for name in federation.owners:
        outbox = federation.organisations[name].outbox
        outbox.noise = torch.Generator(federation.device).manual_seed(
            outbox.generator.initial_seed() >> 1
        )
    return federation


def at_rate(study: Study, changes: Mapping[str, Any], rate: float) -> dict[str, Any]:
    """What a run tells its algorithm, with that rate in the place of its own, for heads
    too."""
    told = {**study.settings(changes).to_mapping()["algorithm"], "learning_rate": rate}
    return told | ({"head_learning_rate": rate} if "head_learning_rate" in told else {})


@lru_cache(maxsize=1)
def holdings_of(
    path: Path, short: bool, rows: tuple[tuple[str, int], ...] = ()
) -> Holdings:
    holdings = from_dataset(Settings.from_toml(path))
    for split, most in (({"train": QUICK_ROWS} if short else {}) | dict(rows)).items():
        holdings.splits[split] = holdings.splits[split][:most]
    return holdings


def run(study: Study, cell: str) -> None:
    holdings = holdings_of(study.plan.config, study.plan.short)
    if cell == EPSILONS:
        return epsilons(study, len(holdings.splits["train"]))
    name, one, seed = table(study.plan)[cell]
    chosen = settings(study, holdings, METHODS[name], one)
    federation = study.train(f"{name}, {one.title}", chosen, seed, holdings)
    if one.title == "Table 3":
        study.record(f"{name}, Table 3, test rows protected too", protected(federation))
    return None


def protected(federation: Federation) -> float:
    """The score when test rows go out with the rule for training rows."""
    for organisation in federation.organisations.values():
        for name in [
            name for name in organisation.outbox.rules if name.startswith("test.")
        ]:
            del organisation.outbox.rules[name]
    return federation.evaluate("test")["accuracy"]


def epsilons(study: Study, rows: int) -> None:
    """By epoch and sigma; C does not matter."""
    batch = study.settings(
        {"train": {"batch_size": QUICK_BATCH}} if study.plan.short else {}
    ).train.batch_size
    sigmas = {method.sigma for method in METHODS.values()} | (
        set() if study.plan.short else set(SIGMAS)
    )
    for sigma in sorted(sigmas):
        one = key_of(DpEvent("gaussian", {"noise_multiplier": sigma, "clip": 1.0}))
        for epoch in study.plan.epochs:
            what = f"sigma {sigma:g}, epoch {epoch}: "
            rounds = epoch * math.ceil(rows / batch)
            for title, cost in (
                (POISSON, hidden_poisson_rdp),
                (PRINTED, theorem_1),
                (HIDDEN, hidden_rdp),
            ):
                study.record(what + title, cost(sigma, rows, batch, rounds, DELTA), "")
            study.record(
                what + KNOWN, known_batch({one: epoch}, "add-or-remove", DELTA), ""
            )
            study.record(
                what + REPLACED, known_batch({one: epoch}, "replace-one", DELTA), ""
            )


def draw(study: Study, out: Path) -> list[Path]:
    """Accuracy over epsilon, a point per epoch and a line per sigma, and the control:
    one panel per method."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import LogLocator, NullLocator

    mean = {
        what: one.mean
        for what, one in study.measured.items()
        if math.isfinite(one.mean)
    }
    figure = Figure(figsize=(3.1 * len(METHODS), 3.4), layout="constrained")
    grid = figure.subplots(1, len(METHODS), sharey=True)
    epochs = sorted(
        {int(at[1]) for what in mean if (at := re.search(r"epoch (\d+)$", what))}
    )
    for axes, (name, method) in zip(grid, METHODS.items(), strict=True):
        for number, sigma in enumerate(SIGMAS):
            title = "Table 3" if sigma == method.sigma else f"sigma {sigma:g}"
            found = [mean.get(f"{name}, {title}, epoch {epoch}") for epoch in epochs]
            scores = [score for score in found if score is not None]
            spent = [
                mean.get(f"sigma {sigma:g}, epoch {epoch}: {KNOWN}") for epoch in epochs
            ]
            # not in the quick version, or diverged, or not there yet
            if len(scores) < len(epochs) or None in spent:
                continue
            style = {"color": COLOURS[number], "marker": "o", "markersize": 4}
            axes.plot(
                spent,
                [100 * score for score in scores],
                label=f"sigma {sigma:g}",
                **style,
            )
        for what, line in (("noise alone", "--"), ("no noise", ":")):
            score = mean.get(f"{name}, {what}, epoch {epochs[-1]}")
            if score is not None:
                axes.axhline(
                    100 * score, color="black", linestyle=line, linewidth=1, label=what
                )
        axes.set(
            title=f"{name}, C = {method.clip:g}",
            xlabel="epsilon against the label owner",
            xscale="log",
        )
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.xaxis.set_major_formatter("{x:g}")
        axes.xaxis.set_minor_locator(NullLocator())
        axes.grid(alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
        if axes.get_legend_handles_labels()[1]:
            axes.legend(frameon=False, fontsize=7)
    grid[0].set_ylabel("test accuracy, %")
    return save(figure, out / study.plan.name)
