"""Figures 2 and 3 of Multi-VFL: test accuracy by round, over the scenarios of Table 3
and over server optimizers.

4 data owners hold strips of 7 x 28 pixels, 5 label owners 5,000 rows each. In scenario
n-niid the last n label owners hold two classes each, 0 and 1, 2 and 3, ..., and the
others all ten. Scores are those of the aggregated model on the 10,000 test rows: each
label owner asks for 2,000 of them, as it would to predict.

A cell is one run with one seed. The quick version is another, smaller experiment: 100
rows per label owner in batches of 20, a quarter of the channels, higher rates, a tenth
of the test rows. It shows in 20 rounds on a CPU that all of it works.

`colonnade reproduce multi-vfl --out FOLDER` also draws; `python
reproductions/multi_vfl/study.py FOLDER` prints the README's tables from what is there,
and with `--known` puts the runs that the README has there, to go on from.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import re
import time
from pathlib import Path
from typing import Any, NamedTuple

from colonnade import reproduction
from colonnade.datasets.catalogue import CATALOGUE
from colonnade.errors import Diverged
from colonnade.federation import Federation, Settings
from colonnade.reproduction import Plan, Study
from colonnade.reproduction.cells import KeptCells
from colonnade.reproduction.pictures import COLOURS, MARKS
from colonnade.rows.public import from_dataset

DATA = {"mnist": "MNIST", "fashion_mnist": "Fashion-MNIST"}
SCENARIOS = {"1niid": 1, "2niid": 2, "3niid": 3, "4niid": 4}
OPTIMIZERS = {
    "FedAvg": "fedavg",
    "FedAdam": "fedadam",
    "FedYogi": "fedyogi",
    "FedDemonAdam": "feddemonadam",
}
ADAPTIVE = [
    *(name for name in OPTIMIZERS if name != "FedAvg"),
    "FedAdam-delta",
    "FedYogi-delta",
    "FedDemonAdam-delta",
]
"""With "-delta", the second moment is of the change, as Reddi et al. have it; the
listing's is of the momentum."""
RATES = ["FedAdam@0.003", "FedAdam@0.01", "FedAdam@0.03"]
"""With another rate of the server than the paper's 0.001."""
LOCAL = ["FedAvg/0.003", "FedAvg/0.01", "FedAvg/0.03", "FedAvg/adam"]
"""FedAvg, whose server has no rate to choose, at other rates of the local steps than
the paper's 0.001, as many as FedAdam is given; and with local steps of Adam at 0.001.
"""
TUNED = ("FedAdam", "FedYogi", "FedDemonAdam")
LARGER = [
    f"{name}@{rate}/0.03"
    for name in TUNED
    for rate in ("0.001", "0.003", "0.01", "0.03")
]
"""Adaptive optimizers at four rates of the server and larger local steps, those of the
best of FedAvg's four."""
BEYOND = ["FedAvg/0.1"]
"""Beyond the largest of FedAvg's four, which was the best of them."""
LITERAL = ["FedDemonAdam-literal"]
"""DEMON's line 2 read literally, so that the decay of its momentum compounds."""
OTHERS = [*ADAPTIVE, *RATES, *LOCAL, *LARGER, *BEYOND, *LITERAL]
READINGS: dict[str, dict[str, str]] = {
    "": {},
    "delta": {"second_moment": "delta"},
    "literal": {"demon": "literal"},
}
DRAWN = ["FedAdam@0.03", "FedAvg/0.03", "FedAvg/adam"]
LABEL_OWNERS = 5
KEPT = 5  # rounds after which what was found so far is written down
WARM = 2  # rounds that are not timed: kernels are chosen and graphs captured in them
QUICK_ROWS = 100
QUICK_TEST = 200  # of a label owner
Changes = dict[str, dict[str, Any]]
QUICK: Changes = {
    "algorithm": {"learning_rate": 0.1},
    "model": {"channels": 8},
    "label_model": {"channels": 8, "hidden": 32},
    "train": {"batch_size": 20},
}
QUICK_RATE = 0.02  # of adaptive server optimizers
QUICK_CELLS = ("mnist, 1niid, FedAvg", "mnist, 4niid, FedAvg", "mnist, 4niid, FedAdam")


class Cell(NamedTuple):
    """One run, by the words in its name."""

    data: str
    scenario: str
    optimizer: str


def cells(plan: Plan) -> list[str]:
    if plan.short:
        return [f"{title}, seed {seed}" for seed in plan.seeds for title in QUICK_CELLS]
    runs = [(scenario, "FedAvg") for scenario in reversed(SCENARIOS)]
    runs += [("4niid", optimizer) for optimizer in OTHERS]
    titles = [
        f"{data}, {scenario}, {optimizer}"
        for data in DATA
        for scenario, optimizer in runs
    ]
    return [f"{title}, seed {seed}" for seed in plan.seeds for title in titles]


def classes(data: str, niid: int) -> list[tuple[str, ...] | None]:
    """Table 3: which classes each label owner holds; None: all."""
    names = [str(name) for name in CATALOGUE[data].classes]
    return [None] * (LABEL_OWNERS - niid) + [
        (names[2 * at], names[2 * at + 1]) for at in range(niid)
    ]


def parts(optimizer: str) -> tuple[str, str, str]:
    """Of a name such as FedAdam@0.003/0.01: the server optimizer, its rate, and that of
    the local steps, if named."""
    server, _, local = optimizer.partition("/")
    server, _, rate = server.partition("@")
    return server, rate, local


def settings(
    plan: Plan, cell: Cell, changes: Changes | None = None, rows: int | None = None
) -> Settings:
    """The plan's federation file for a cell; `changes` by section come last, and
    another model has other settings."""
    tables = Settings.from_toml(plan.config).to_mapping()
    server, rate, local = parts(cell.optimizer)
    server, _, reading = server.partition("-")
    if local:
        tables["algorithm"] |= (
            {"optimizer": "adam", "momentum": 0.9}
            if local == "adam"
            else {"learning_rate": float(local)}
        )
    tables["algorithm"]["server"] = OPTIMIZERS[server]
    tables["algorithm"] |= READINGS[reading] | (
        {"server_rate": float(rate)} if rate else {}
    )
    tables["data"]["dataset"] = cell.data
    tables["train"]["epochs"] = max(plan.epochs)
    for owner, wanted in zip(
        tables["label_owners"],
        classes(cell.data, SCENARIOS[cell.scenario]),
        strict=True,
    ):
        owner.pop("classes", None)
        owner |= {} if wanted is None else {"classes": list(wanted)}
        owner["rows"] = rows or (QUICK_ROWS if plan.short else owner["rows"])
    if plan.short and cell.optimizer != "FedAvg":
        tables["algorithm"]["server_rate"] = QUICK_RATE
    for given in ([QUICK] if plan.short else []) + ([changes] if changes else []):
        for section, values in given.items():
            tables[section] = values if "name" in values else tables[section] | values
    return Settings.from_mapping(tables, where=str(plan.config))


def federation(
    plan: Plan,
    cell: Cell,
    seed: int,
    changes: Changes | None = None,
    rows: int | None = None,
) -> Federation:
    """All parties of a cell. The seed decides which rows label owners are dealt, so
    optimizers meet the same rows."""
    chosen = settings(plan, cell, changes, rows)
    chosen = chosen.with_seed(seed)
    held = from_dataset(chosen)
    for share in held.label_owners.values() if plan.short else ():
        share.splits["test"] = share.splits["test"][:QUICK_TEST]
    return Federation(chosen, held)


def run(study: Study, cell: str) -> None:
    title, _, seed = cell.rpartition(", seed ")
    follow(study, title, federation(study.plan, Cell(*title.split(", ")), int(seed)))


def follow(study: Study, title: str, trained: Federation) -> None:
    """Train to the end; the test rows are scored after every fifth round."""
    rounds = study.plan.epochs
    seconds = 0.0
    curve: list[tuple[int, float]] = []
    losses: list[tuple[int, float]] = []
    study.curves.setdefault(title, []).append(curve)
    study.losses.setdefault(title, []).append(losses)
    number = 0
    start = time.perf_counter()
    try:
        for step in trained.train():
            number = step.batch.epoch + 1
            seconds += time.perf_counter() - start if number > WARM else 0.0
            losses.append((number, step.loss))
            if study.watch is not None:
                study.watch(title, step)
            if number <= 2 or number % 5 == 0 or number in rounds:
                curve.append((number, trained.evaluate("test")["accuracy"]))
            if number == max(WARM + 1, min(KEPT, max(rounds))):
                study.record(
                    f"{title}: seconds per round", seconds / (number - WARM), "s"
                )
            if number in rounds:
                study.record(f"{title}, round {number}", curve[-1][1])
            if number % KEPT == 0:
                forget(trained)
                if study.keep is not None:
                    study.keep(study)
            start = time.perf_counter()
    except Diverged:
        for later in (one for one in rounds if one > number):
            study.record(f"{title}, round {later}", math.nan)


def forget(trained: Federation) -> None:
    """Entries of ledgers, 6,320 a round at each data owner, which nobody reads here;
    their totals stay."""
    for ledger in trained.ledgers.values():
        ledger.entries.clear()


def finish(study: Study) -> None:
    """What the paper says in words, as differences seed by seed; of those runs that are
    there."""
    found = {what: one.by_seed for what, one in study.measured.items()}
    for data, number in itertools.product(DATA, study.plan.epochs):
        average = found.get(f"{data}, 4niid, FedAvg, round {number}")
        even = found.get(f"{data}, 1niid, FedAvg, round {number}")
        others = {
            name: found.get(f"{data}, 4niid, {name}, round {number}") for name in OTHERS
        }
        if average is None:
            continue
        for score, other in zip(even or [], average, strict=False):
            study.record(
                f"{data}: 1niid above 4niid, FedAvg, round {number}", score - other
            )
        for name, scores in others.items():
            for score, other in zip(scores or [], average, strict=False):
                study.record(
                    f"{data}: {name} above FedAvg, 4niid, round {number}", score - other
                )
        _tuned(study, data, number)


def _tuned(study: Study, data: str, number: int) -> None:
    """FedAvg at the local rate, and FedAdam at the server's rate, that do best on
    validation rows, both of four rates; then adaptive optimizers with both rates chosen
    so, beside FedAvg with a fifth rate to choose from. Where a line is missing there is
    no choice."""
    average, adaptive, plain, wider = (
        _best(study, data, number, names)
        for names in (
            ["FedAvg", *LOCAL[:-1]],
            ["FedAdam", *RATES],
            ["FedAvg"],
            ["FedAvg", *LOCAL[:-1], *BEYOND],
        )
    )
    at = f"4niid, round {number}"
    if average and adaptive and plain:
        for tuned, other, printed in zip(
            average.scores, adaptive.scores, plain.scores, strict=False
        ):
            study.record(
                f"{data}: FedAvg, local rate by validation rows, above FedAvg, {at}",
                tuned - printed,
            )
            study.record(
                f"{data}: FedAdam above FedAvg, both rates by validation rows, {at}",
                other - tuned,
            )
        study.record(
            f"{data}: FedAvg's rate by validation rows, {at}", average.local, ""
        )
        study.record(
            f"{data}: FedAdam's rate by validation rows, {at}", adaptive.server, ""
        )
    for name in TUNED:
        best = _best(
            study,
            data,
            number,
            [one for one in (*TUNED, *RATES, *LARGER) if parts(one)[0] == name],
        )
        if best and wider:
            what = (
                f"{data}: {name} above FedAvg, local and server rates by validation"
                f" rows, {at}"
            )
            for score, other in zip(best.scores, wider.scores, strict=False):
                study.record(what, score - other)
            study.record(
                f"{data}: {name}'s server rate, both by validation rows, {at}",
                best.server,
                "",
            )
            study.record(
                f"{data}: {name}'s local rate, both by validation rows, {at}",
                best.local,
                "",
            )
    if wider:
        study.record(
            f"{data}: FedAvg's rate of five by validation rows, {at}", wider.local, ""
        )


class Best(NamedTuple):
    scores: list[float]  # on test rows, by seed
    server: float
    local: float


def _best(study: Study, data: str, number: int, names: list[str]) -> Best | None:
    """Of these lines what does best on rows which nobody trains or tests on; None where
    one is not there."""
    titles = {name: f"{data}, 4niid, {name}, round {number}" for name in names}
    if any(
        f"{title}, validation rows" not in study.measured for title in titles.values()
    ):
        return None
    checked = {
        name: study.measured[f"{title}, validation rows"].mean
        for name, title in titles.items()
    }
    name = max(
        checked, key=lambda name: checked[name] if math.isfinite(checked[name]) else 0.0
    )
    _, server, local = parts(name)
    return Best(
        study.measured[titles[name]].by_seed,
        float(server or 0.001),
        float(local or 0.001),
    )


def draw(study: Study, out: Path) -> list[Path]:
    """Figure 2 above, Figure 3 below; a column per data set."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    rows = [
        [(one, "FedAvg") for one in SCENARIOS],
        [("4niid", one) for one in (*OPTIMIZERS, *DRAWN)],
    ]
    titles = [
        f"{scenario}, {optimizer}" for runs in rows for scenario, optimizer in runs
    ]
    shown = [
        data
        for data in DATA
        if any(f"{data}, {title}" in study.curves for title in titles)
    ]
    if not shown:  # runs that were kept without their curves
        return []
    figure = Figure(figsize=(1 + 4.4 * len(shown), 7), layout="constrained")
    grid = figure.subplots(2, len(shown), squeeze=False, sharex=True)
    for down, runs in enumerate(rows):
        for across, data in enumerate(shown):
            axes = grid[down][across]
            for number, (scenario, optimizer) in enumerate(runs):
                seeds = study.curves.get(f"{data}, {scenario}, {optimizer}", [])
                if seeds:
                    curve = over_seeds(seeds)
                    low, high = (
                        [100 * at(scores) for _, scores in curve] for at in (min, max)
                    )
                    axes.fill_between(
                        [at for at, _ in curve],
                        low,
                        high,
                        color=COLOURS[number],
                        alpha=0.15,
                        linewidth=0,
                    )
                    axes.plot(
                        [at for at, _ in curve],
                        [100 * sum(scores) / len(scores) for _, scores in curve],
                        color=COLOURS[number],
                        marker=MARKS[number],
                        markevery=max(1, len(curve) // 8),
                        markersize=4,
                        linewidth=1.2,
                        label=(scenario, optimizer)[down],
                    )
            axes.set(
                title=f"{DATA[data]}, {('FedAvg', '4niid')[down]}",
                ylabel="test accuracy, %",
            )
            axes.set_visible(axes.has_data())
            axes.xaxis.set_major_locator(MaxNLocator(integer=True))
            axes.grid(alpha=0.3)
            axes.spines[["top", "right"]].set_visible(False)
            if axes.has_data():
                axes.legend(frameon=False, loc="lower right")
            if down:
                axes.set_xlabel("round")
    return saved(figure, study.plan.name, out)


def over_seeds(curves: list[list[tuple[int, float]]]) -> list[tuple[int, list[float]]]:
    """The scores of all seeds by round, as far as all have come."""
    by_round = [dict(curve) for curve in curves]
    return [
        (at, [one[at] for one in by_round])
        for at in by_round[0]
        if all(at in one for one in by_round)
    ]


def saved(figure: Any, name: str, out: Path) -> list[Path]:
    out.mkdir(parents=True, exist_ok=True)
    paths = [out / f"{name}.{ending}" for ending in ("png", "svg")]
    for path in paths:
        fresh = path.with_name(f".{path.name}")
        figure.savefig(fresh, format=path.suffix[1:], dpi=130)
        fresh.replace(path)
    return paths


def tables(measured: list[dict[str, Any]]) -> str:
    """The README's tables: a line per run, a column per round."""
    mean = {one["what"]: one["mean"] for one in measured}
    seeds = {one["what"]: len(one["by_seed"]) for one in measured}
    spread = {
        one["what"]: one["deviation"]
        for one in measured
        if one["deviation"] is not None
    }
    rounds = sorted(
        {int(at[1]) for what in mean if (at := re.search(r"round (\d+)$", what))}
    )
    lines = [
        "| data, scenario, optimizer | "
        + " | ".join(f"round {at}" for at in rounds)
        + " |"
    ]
    lines += ["|---" * (len(rounds) + 1) + "|"]
    titles = dict.fromkeys(
        what.rpartition(", round ")[0]
        for what in mean
        if re.match(r"\w+, \dniid, [^,]+, round \d+$", what)
    )
    for title in titles:
        whats = [f"{title}, round {at}" for at in rounds]
        scores = [
            _percent(mean.get(what), spread.get(what), seeds.get(what, 0))
            for what in whats
        ]
        lines.append(f"| {title} | {' | '.join(scores)} |")
    derived = [what for what in mean if " above " in what]
    lines += ["", "| difference, in points | |", "|---|---|"] if derived else []
    told = {
        what: "diverged" if mean[what] is None else f"{100 * mean[what]:+.1f}"
        for what in derived
    }
    lines += [
        f"| {what} | {told[what]}{_spread(spread.get(what))} |" for what in derived
    ]
    return "\n".join(lines)


def _percent(value: float | None, deviation: float | None, seeds: int) -> str:
    """With the deviation between seeds; a small ¹ where there is one seed alone, and no
    mean where one diverged."""
    if value is None:
        return "diverged" if seeds else "–"
    told = f"{100 * value:.1f}{_spread(deviation)}"
    return f"{told}¹" if seeds == 1 else told


def _spread(deviation: float | None) -> str:
    return "" if deviation is None else f" ± {100 * deviation:.1f}"


def known(plan: Plan, out: Path) -> None:
    """What `expected.json` has of the runs, as finished cells of a folder, so that
    others can be set beside them. Their curves are not there."""
    told = json.loads((plan.folder / "expected.json").read_text(encoding="utf-8"))[
        plan.name
    ]["measured"]
    values = {what: seeds for one in told for what, seeds in one["values"].items()}
    for cell in cells(plan):
        title, _, seed = cell.rpartition(", seed ")
        study = Study(plan)
        for what, seeds in values.items():
            if what.startswith(f"{title}, round "):
                score = seeds[plan.seeds.index(int(seed))]
                study.record(what, math.nan if score is None else score)
        if study.measured:
            KeptCells(plan, out / "cells").write(cell, study, True)


def main() -> None:
    words = argparse.ArgumentParser(
        description=(
            "Print the README's tables from a folder that `reproduce --out` made."
        )
    )
    words.add_argument("folder", type=Path, help="with measured.json")
    words.add_argument(
        "--known",
        action="store_true",
        help="instead: put the runs that the README has into the folder",
    )
    given = words.parse_args()
    if given.known:
        known(reproduction.plan("multi-vfl"), given.folder)
        return
    print(
        tables(json.loads((given.folder / "measured.json").read_text(encoding="utf-8")))
    )


if __name__ == "__main__":
    main()
