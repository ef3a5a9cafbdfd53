"""Accuracy against epsilon for Multi-VFL, scenario 1niid on MNIST: Gaussian noise on
what data owners send.

The paper leaves differential privacy to later work. Here every row of every data
owner's embedding is clipped to C and gets noise N(0, sigma^2 C^2) in training. Test
rows are clipped and get none, since the noise protects training rows. Two controls: "no
noise" is clipped only; "noise alone" has the noise without the row, so that nothing can
be learned from columns. Its sigma is 1. What another sigma scores above it is what came
through.

Twice: with the paper's models, where a row is 6,272 numbers per data owner and each
gets its noise, and with data owners that send 16 numbers (one hidden layer at both
sides). Local steps are Adam's: the paper's SGD at 0.001 has learned little when so few
rounds are over.

Epsilon is for one training row of one data owner against the label owner that asks for
it, who knows the batches: a release per round, composed exactly. Labels and weights
that cross are not covered by it.

`colonnade reproduce multi-vfl-dp --out FOLDER` also draws, and `python
reproductions/multi_vfl/dp.py FOLDER` prints the README's table. Epsilons need
dp-accounting; where it is missing they are left out, and added when what FOLDER holds
is put together (`--jobs 0`) where it is not.
"""

from __future__ import annotations

import argparse
import itertools
import json
import re
from pathlib import Path
from typing import Any, NamedTuple

import torch

from colonnade import reproduction
from colonnade.core.receipt import DpEvent
from colonnade.core.release import Mechanism, Rule
from colonnade.errors import ConfigError
from colonnade.privacy import Gaussian, NoiseOnly
from colonnade.privacy.accounting import key_of, known_batch
from colonnade.reproduction import Plan, Study
from colonnade.reproduction.cells import script_of
from colonnade.reproduction.pictures import COLOURS

SCENARIO = "1niid"
DELTA = 1e-5
CONTROL = 1.0
ADAM: dict[str, Any] = {"optimizer": "adam", "momentum": 0.9, "learning_rate": 0.001}
SHORT: dict[str, dict[str, Any]] = {
    "algorithm": {**ADAM, "concatenate": "features"},
    "model": {"name": "mlp", "hidden": [64], "width": 16},
    "label_model": {"name": "mlp", "hidden": [64]},
}
QUICK_SIGMAS = (0.3, 3.0)
QUICK_ROWS = 1000
QUICK_BATCH = 50


class Sent(NamedTuple):
    """What data owners send: their models, C, and the noise."""

    changes: dict[str, dict[str, Any]]
    clip: float
    sigmas: tuple[float, ...]


SENT = {
    "feature maps": Sent({"algorithm": ADAM}, 8.0, (0.03, 0.1, 0.3, 1.0)),
    "16 numbers": Sent(SHORT, 1.0, (0.3, 1.0, 3.0, 10.0)),
}


def cells(plan: Plan) -> list[str]:
    found = []
    for name in ["16 numbers"] if plan.short else SENT:
        found += [f"{name}, sigma {sigma:g}" for sigma in sigmas(plan, name)]
        found += [f"{name}, no noise", f"{name}, noise alone"]
    return found


def sigmas(plan: Plan, name: str) -> tuple[float, ...]:
    return QUICK_SIGMAS if plan.short else SENT[name].sigmas


def mechanism(cell: str) -> Mechanism:
    """What a data owner does to embeddings of training rows."""
    name, noise = cell.split(", ")
    clip = SENT[name].clip
    if noise == "noise alone":
        return NoiseOnly(clip, CONTROL)
    return Gaussian(clip, 0.0 if noise == "no noise" else float(noise.split()[1]))


def federation(plan: Plan, cell: str, seed: int) -> Any:
    """The rules are set where the parties are made already, so that no account, and no
    library for one, is needed."""
    figures = script_of(reproduction.plan("multi-vfl"))
    sent = SENT[cell.split(", ")[0]]
    changes = sent.changes | (
        {"train": {"batch_size": QUICK_BATCH}} if plan.short else {}
    )
    made = figures.federation(
        plan,
        figures.Cell("mnist", SCENARIO, "FedAvg"),
        seed,
        changes,
        QUICK_ROWS if plan.short else None,
    )
    for owner in made.owners:
        outbox = made.organisations[owner].outbox
        outbox.rules |= {
            "embedding": Rule(mechanism(cell)),
            "test.embedding": Rule(Gaussian(sent.clip, 0.0)),
        }
        outbox.noise = torch.Generator(made.device).manual_seed(
            outbox.generator.initial_seed() >> 1
        )
    return made


def run(study: Study, cell: str) -> None:
    for seed in study.plan.seeds:
        script_of(reproduction.plan("multi-vfl")).follow(
            study, cell, federation(study.plan, cell, seed)
        )


def finish(study: Study) -> None:
    for name, rounds in itertools.product(SENT, study.plan.epochs):
        for sigma in sigmas(study.plan, name):
            title = f"{name}, sigma {sigma:g}, round {rounds}"
            spent = key_of(
                DpEvent(
                    "gaussian", {"noise_multiplier": sigma, "clip": SENT[name].clip}
                )
            )
            try:
                epsilon = known_batch({spent: rounds}, "add-or-remove", DELTA)
            except ConfigError:  # dp-accounting is not installed here
                return
            if title in study.measured:
                study.record(f"{title}: epsilon", epsilon, "")


def draw(study: Study, out: Path) -> list[Path]:
    """Accuracy over epsilon: a line per sigma with a point per round, and the controls
    at the last round."""
    from matplotlib.figure import Figure

    mean = {what: one.mean for what, one in study.measured.items()}
    rounds = study.plan.epochs
    # they come where dp-accounting is
    if not any(what.endswith(": epsilon") for what in mean):
        return []
    shown = [name for name in SENT if any(what.startswith(name) for what in mean)]
    figure = Figure(figsize=(1 + 4.4 * len(shown), 4.2), layout="constrained")
    for axes, name in zip(
        figure.subplots(1, len(shown), squeeze=False)[0], shown, strict=True
    ):
        for number, sigma in enumerate(sigmas(study.plan, name)):
            title = f"{name}, sigma {sigma:g}"
            at = [
                number
                for number in rounds
                if f"{title}, round {number}: epsilon" in mean
            ]
            points = [
                (
                    mean[f"{title}, round {r}: epsilon"],
                    100 * mean[f"{title}, round {r}"],
                )
                for r in at
            ]
            style = {"color": COLOURS[number], "marker": "o", "markersize": 4}
            axes.plot(
                [e for e, _ in points],
                [score for _, score in points],
                label=f"sigma {sigma:g}",
                **style,
            )
        for control, line in (("no noise", ":"), ("noise alone", "--")):
            score = mean.get(f"{name}, {control}, round {rounds[-1]}")
            if score is not None:
                axes.axhline(
                    100 * score,
                    color="black",
                    linestyle=line,
                    linewidth=1,
                    label=control,
                )
        axes.set(
            xscale="log",
            xlabel=f"epsilon after {', '.join(map(str, rounds))} rounds",
            ylim=(0, 100),
        )
        axes.set(
            title=f"MNIST, {SCENARIO}: {name}, C = {SENT[name].clip:g}",
            ylabel="test accuracy, %",
        )
        axes.grid(alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(frameon=False, fontsize=8)
    paths: list[Path] = script_of(reproduction.plan("multi-vfl")).saved(
        figure, study.plan.name, out
    )
    return paths


def tables(measured: list[dict[str, Any]]) -> str:
    """The README's table: a line per run; epsilon in brackets."""
    found = {one["what"]: one for one in measured}
    epochs = sorted(
        {int(at[1]) for what in found if (at := re.search(r"round (\d+)$", what))}
    )
    lines = [
        "| sent | " + " | ".join(f"round {at} (ε)" for at in epochs) + " |",
        "|---" * (len(epochs) + 1) + "|",
    ]
    for title in dict.fromkeys(
        what.split(", round")[0] for what in found if ", round" in what
    ):
        told = [
            _told(
                found.get(f"{title}, round {at}"),
                found.get(f"{title}, round {at}: epsilon"),
            )
            for at in epochs
        ]
        lines.append(f"| {title} | {' | '.join(told)} |")
    return "\n".join(lines)


def _told(score: dict[str, Any] | None, epsilon: dict[str, Any] | None) -> str:
    if score is None:
        return "–"
    spread = "" if score["deviation"] is None else f" ± {100 * score['deviation']:.1f}"
    return f"{100 * score['mean']:.1f}{spread}" + (
        "" if epsilon is None else f" ({epsilon['mean']:.3g})"
    )


def main() -> None:
    words = argparse.ArgumentParser(
        description=(
            "Print the README's table from a folder that `reproduce --out` made."
        )
    )
    words.add_argument("folder", type=Path, help="with measured.json")
    given = words.parse_args()
    print(
        tables(json.loads((given.folder / "measured.json").read_text(encoding="utf-8")))
    )


if __name__ == "__main__":
    main()
