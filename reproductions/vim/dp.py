"""Accuracy against epsilon for VIM's five methods on MNIST (Figures 2 and 3, row 2; Table 3), each beside a control.

Every row of every upload is clipped to C and gets noise N(0, sigma^2 C^2). In the control C is next to nothing: uploads
are empty, and what is still learned comes from the labels in what the label owner sends down (lambda and z, or
gradients), which this noise does not protect. A method's privacy is worth what it scores above its control.

Scores are of test rows whose uploads are as they are: the noise protects training rows. "Test rows protected too" says
what is left when they go through the same noise. Epsilon is stated twice: for somebody who does not know the batches
(Theorem 1), and for the label owner, who does (exact, a release of every row per epoch).

`colonnade reproduce vim-dp` runs it; `python reproductions/vim/dp.py --out FOLDER` also draws.
"""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path
from typing import Any, NamedTuple

from colonnade import reproduction
from colonnade.algorithms import find
from colonnade.core.release import DpEvent
from colonnade.federation import Federation, Settings
from colonnade.federation.holdings import Holdings, from_dataset
from colonnade.federation.rules import from_columns
from colonnade.federation.run_directory import write_text
from colonnade.privacy.accounting import hidden_rdp, key_of, known_batch
from colonnade.reproduction import Study
from colonnade.reproduction.pictures import COLOURS

NAME, DELTA, EMPTY = "vim-dp", 1e-5, 1e-9
HIDDEN, KNOWN, REPLACED = "epsilon, batches secret", "epsilon, label owner", "epsilon, label owner, replace-one"
QUICK_ROWS = 8192


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
    "VIMADMM-J": Chosen(5.0, 0.05, {"name": "vimadmm_joint", "rho": 0.5, "local_steps": 20, "learning_rate": 0.05}),
}
SIGMAS = (2.0, 5.0, 10.0, 20.0)
SLOW = 0.05  # for the gradient methods also, after their rate in Table 3 was seen to be too high here


def settings(study: Study, holdings: Holdings, method: Chosen, clip: float | None, sigma: float) -> Settings:
    """The plan's federation with this noise on all uploads for training; None: no clipping and no noise."""
    changes: dict[str, Any] = {"algorithm": method.algorithm} if method.algorithm else {}
    upload = from_columns(find(method.algorithm.get("name", "vimadmm")).REVEALS)[0]
    if clip is not None:
        noise = {"mechanism": {"name": "gaussian", "clip": clip, "sigma": sigma}}
        owners = [name for name, held in holdings.parties.items() if held.features is not None]
        rules = {upload: noise, f"test.{upload}": {"mechanism": "plain"}}
        changes["parties"] = {name: {"outbox": rules} for name in owners}
    if study.plan.short:
        changes["train"] = {"batch_size": 512}
    return study.settings(changes)


def run(study: Study) -> None:
    plan = study.plan
    holdings = from_dataset(study.settings())
    if plan.short:
        holdings.splits["train"] = holdings.splits["train"][:QUICK_ROWS]
    for name, method in METHODS.items():
        for seed in plan.seeds:
            federation = _beside_control(study, name, "Table 3", method, holdings, seed)
            study.record(f"{name}, Table 3, test rows protected too", _protected(federation))
        _epsilons(study, federation, method.sigma)
        if method.algorithm.get("learning_rate", SLOW) > SLOW:
            slower = method._replace(algorithm={**method.algorithm, "learning_rate": SLOW})
            _beside_control(study, name, f"rate {SLOW}", slower, holdings, plan.seeds[0])
        if plan.short:
            continue
        study.train(f"{name}, no noise", settings(study, holdings, method, None, 0.0), plan.seeds[0], holdings)
        for sigma in SIGMAS:
            if sigma != method.sigma:
                other = settings(study, holdings, method, method.clip, sigma)
                _epsilons(study, study.train(f"{name}, sigma {sigma:g}", other, plan.seeds[0], holdings), sigma)
    study.curves.clear()  # `draw` shows them over epsilon


def _beside_control(study: Study, name: str, title: str, method: Chosen, holdings: Holdings, seed: int) -> Federation:
    """The method with its noise, and with empty uploads."""
    control = "empty uploads" if title == "Table 3" else f"{title}, empty uploads"
    study.train(f"{name}, {control}", settings(study, holdings, method, EMPTY, method.sigma), seed, holdings)
    chosen = settings(study, holdings, method, method.clip, method.sigma)
    return study.train(f"{name}, {title}", chosen, seed, holdings)


def _protected(federation: Federation) -> float:
    """The score when test rows go out with the rule for training rows."""
    for seat in federation.seats.values():
        for name in [name for name in seat.outbox.rules if name.startswith("test.")]:
            del seat.outbox.rules[name]
    return federation.evaluate("test")["accuracy"]


def _epsilons(study: Study, federation: Federation, sigma: float) -> None:
    """By epoch, once for each sigma; C does not matter."""
    rows, train = len(federation.batches.splits["train"]), federation.settings.train
    one = key_of(DpEvent("gaussian", {"noise_multiplier": sigma, "clip": 1.0}))
    for epoch in study.plan.epochs:
        what = f"sigma {sigma:g}, epoch {epoch}: "
        if what + HIDDEN not in study.measured:
            rounds = epoch * federation.batches.per_epoch
            study.record(what + HIDDEN, hidden_rdp(sigma, rows, train.batch_size, rounds, DELTA), "")
            study.record(what + KNOWN, known_batch({one: epoch}, "add-or-remove", DELTA), "")
            study.record(what + REPLACED, known_batch({one: epoch}, "replace-one", DELTA), "")


def draw(measured: list[dict[str, Any]], out: Path) -> list[Path]:
    """Accuracy over epsilon, a point per epoch and a line per sigma, and the control: one panel per method."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import LogLocator, NullLocator

    mean = {one["what"]: one["mean"] for one in measured}
    figure = Figure(figsize=(3.1 * len(METHODS), 3.4), layout="constrained")
    grid = figure.subplots(1, len(METHODS), sharey=True)
    epochs = sorted({int(at[1]) for what in mean if (at := re.search(r"epoch (\d+)$", what))})
    for axes, (name, method) in zip(grid, METHODS.items(), strict=True):
        for number, sigma in enumerate(SIGMAS):
            title = "Table 3" if sigma == method.sigma else f"sigma {sigma:g}"
            found = [mean.get(f"{name}, {title}, epoch {epoch}") for epoch in epochs]
            scores = [score for score in found if score is not None]
            if len(scores) < len(epochs):  # not in the quick version, or diverged
                continue
            epsilons = [mean[f"sigma {sigma:g}, epoch {epoch}: {KNOWN}"] for epoch in epochs]
            style = {"color": COLOURS[number], "marker": "o", "markersize": 4}
            axes.plot(epsilons, [100 * score for score in scores], label=f"sigma {sigma:g}", **style)
        for what, line in (("empty uploads", "--"), ("no noise", ":")):
            score = mean.get(f"{name}, {what}, epoch {epochs[-1]}")
            if score is not None:
                axes.axhline(100 * score, color="black", linestyle=line, linewidth=1, label=what)
        axes.set(title=f"{name}, C = {method.clip:g}", xlabel="epsilon against the label owner", xscale="log")
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.xaxis.set_major_formatter("{x:g}")
        axes.xaxis.set_minor_locator(NullLocator())
        axes.grid(alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(frameon=False, fontsize=7)
    grid[0].set_ylabel("test accuracy, %")
    out.mkdir(parents=True, exist_ok=True)
    paths = [out / f"{NAME}.{ending}" for ending in ("png", "svg")]
    for path in paths:
        fresh = path.with_name(f".{path.name}")
        figure.savefig(fresh, format=path.suffix[1:], dpi=130)
        fresh.replace(path)
    return paths


def main() -> None:
    words = argparse.ArgumentParser(description="Run vim-dp, or take a finished run's measured.json, and draw.")
    words.add_argument("--out", type=Path, required=True, help="a folder for measured.json and the picture")
    words.add_argument("--quick", action="store_true", help="a few minutes on two cores")
    words.add_argument("--measured", type=Path, help="measured.json of a finished run: only draw")
    given = words.parse_args()
    if given.measured is None:
        study = reproduction.reproduce(NAME, quick=given.quick)
        given.out.mkdir(parents=True, exist_ok=True)
        given.measured = given.out / "measured.json"
        told = json.dumps([one.to_json() for one in study.measured.values()], indent=2)
        write_text(given.measured, told + "\n")
    print(*draw(json.loads(given.measured.read_text(encoding="utf-8")), given.out), sep="\n")


if __name__ == "__main__":
    main()
