"""Accuracy against bytes: top-k, scalar, vector and noisy (binomial) quantization at several rates, with Q = 1, 5, 10.

Embeddings go up, and the others' embeddings and the server model come down, all packed; the ledger of the label owner
counts both. The labels, which every party is told once at the start, and what is sent for testing are left out. What is
sent for testing is compressed (and made noisy) as in training.

`colonnade reproduce cvfl-accuracy` runs it; `python reproductions/noisy_cvfl/accuracy.py --out FOLDER` also draws.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from colonnade import reproduction
from colonnade.errors import Diverged
from colonnade.federation import Federation, Settings
from colonnade.federation.holdings import Holdings, from_dataset
from colonnade.federation.run_directory import write_text
from colonnade.reproduction import Plan, Study
from colonnade.reproduction.pictures import COLOURS, MARKS

NAME = "cvfl-accuracy"
LOCAL_STEPS = (1, 5, 10)
RANGE = {"mnist": (0.0, 4.0), "cifar10": (-4.0, 4.0), "modelnet10": (0.0, 8.0)}  # of embeddings
SERVER_MODEL = {"codec": {"name": "quantize", "levels": 256}}  # z = 256 levels, without noise, as Theorem 4.2 has it
QUICK_ROWS, QUICK_TEST, QUICK_BATCH = 4096, 2000, 128
QUICK = {"mnist": (1, 10), "modelnet10": (1, 10)}  # the values of Q
QUICK_CODECS = ("none", "top-k 0.12", "top-k 0.23", "scalar 2", "scalar 8", "vector 64", "noisy 8 + Bin(8, 0.5)")


def codecs(low: float, high: float) -> dict[str, dict[str, Any]]:
    """The rule for embeddings by name: a family, and how much it keeps."""
    span = {"low": low, "high": high}
    made: dict[str, dict[str, Any]] = {"none": {}}
    made |= {f"top-k {keep:g}": {"codec": {"name": "top_k", "keep": keep}} for keep in (0.05, 0.12, 0.23, 0.5)}
    made |= {f"scalar {k}": {"codec": {"name": "quantize", "levels": k, **span}} for k in (2, 8, 32)}
    made |= {f"vector {n}": {"codec": {"name": "vector_quantize", "points": n, **span}} for n in (4, 64, 1024)}
    for trials in (8, 32):  # variances of 2 and 8 squared levels; the latter is "of the order of k"
        noise = {"name": "binomial", "levels": 8, "trials": trials, "p": 0.5, **span}
        made[f"noisy 8 + Bin({trials}, 0.5)"] = {"mechanism": noise}
    return made


def settings(path: Path, plan: Plan, holdings: Holdings, rule: Mapping[str, Any], q: int) -> Settings:
    """The data set's federation file, with a rule for embeddings and Q local iterations."""
    tables = Settings.from_toml(path).to_mapping()
    tables["algorithm"]["local_steps"] = q
    tables["train"] |= {"epochs": max(plan.epochs)} | ({"batch_size": QUICK_BATCH} if plan.short else {})
    parties = [name for name, held in holdings.parties.items() if held.features is not None]
    if rule:
        tables["parties"] = {name: {"outbox": {"embedding": rule}} for name in parties}
        tables["parties"][holdings.label_owner] = {"outbox": {"model": SERVER_MODEL}}
    return Settings.from_mapping(tables, where=str(path))


def traffic(federation: Federation) -> tuple[float, float]:
    """Bytes up and down in all training rounds, over all parties."""
    ledger = federation.ledgers[federation.holdings.label_owner]
    rounds = [entry for entry in ledger.entries if (entry.batch or "").startswith("train/")]
    ways = {way: sum(entry.bytes for entry in rounds if entry.direction == way) for way in ("in", "out")}
    return float(ways["in"]), float(ways["out"])


def run(study: Study) -> None:
    plan = study.plan
    for data in QUICK if plan.short else RANGE:
        path = plan.folder / "configs" / f"{data}.toml"
        holdings = from_dataset(Settings.from_toml(path))
        if plan.short:
            holdings.splits["train"] = holdings.splits["train"][:QUICK_ROWS]
            holdings.splits["test"] = holdings.splits["test"][:QUICK_TEST]
        for q in QUICK[data] if plan.short else LOCAL_STEPS:
            for name, rule in codecs(*RANGE[data]).items():
                if plan.short and name not in QUICK_CODECS:
                    continue
                for seed in plan.seeds:
                    chosen = settings(path, plan, holdings, rule, q)
                    _one(study, data, q, name, study.federation(chosen, seed, holdings))


def _one(study: Study, data: str, q: int, name: str, federation: Federation) -> None:
    """Train, score the test rows at the end, and count."""
    title = f"{data}, Q {q}, {name}"
    rounds = 0
    try:
        for step in federation.train():
            rounds += 1
            if study.watch is not None:
                study.watch(f"{title}, seed {federation.settings.engine.seed}", step)
        score = federation.evaluate("test")["accuracy"]
    except Diverged:
        score = float("nan")
    up, down = traffic(federation)
    study.record(f"{title}: accuracy", score)
    study.record(f"{title}: sent", (up + down) / 1e6, "MB")
    if name != "none":  # which was trained first, with the same seeds
        scores = study.measured[f"{title}: accuracy"].by_seed
        plain = study.measured[f"{data}, Q {q}, none: accuracy"].by_seed[len(scores) - 1]
        study.record(f"{title}: accuracy lost", plain - score)
    if f"{data}, {name}: up per round" not in study.measured:  # the same for every Q and seed
        study.record(f"{data}, {name}: up per round", up / rounds / 1e3, "kB")
        study.record(f"{data}, {name}: down per round", down / rounds / 1e3, "kB")


def draw(measured: list[dict[str, Any]], out: Path) -> list[Path]:
    """Accuracy over MB sent, one line per family of codecs; one panel per data set and Q."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import LogLocator, NullLocator

    mean = {one["what"]: one["mean"] for one in measured}
    points: dict[tuple[str, int], dict[str, list[tuple[float, float]]]] = {}
    for what, accuracy in mean.items():
        found = re.fullmatch(r"(\w+), Q (\d+), (\S+)(.*): accuracy", what)
        if found and accuracy is not None:
            sent = mean[what.replace(": accuracy", ": sent")]
            points.setdefault((found[1], int(found[2])), {}).setdefault(found[3], []).append((sent, 100 * accuracy))
    rows, columns = sorted({data for data, _ in points}), sorted({q for _, q in points})
    figure = Figure(figsize=(1.5 + 3.4 * len(columns), 0.8 + 2.7 * len(rows)), layout="constrained")
    grid = figure.subplots(len(rows), len(columns), squeeze=False, sharey="row")
    families = list(dict.fromkeys(family for panel in points.values() for family in panel))
    for at, data in enumerate(rows):
        for across, q in enumerate(columns):
            axes = grid[at][across]
            axes.set_visible((data, q) in points)
            for family, found_at in points.get((data, q), {}).items():
                number = families.index(family)
                style = {"color": COLOURS[number % len(COLOURS)], "marker": MARKS[number % len(MARKS)]}
                axes.plot(*zip(*sorted(found_at), strict=True), label=family, markersize=5, **style)
            axes.set(xscale="log", title=f"{data}, Q = {q}", xlabel="MB sent in training, up and down")
            axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
            axes.xaxis.set_major_formatter("{x:g}")
            axes.xaxis.set_minor_locator(NullLocator())
            axes.grid(alpha=0.3)
            axes.spines[["top", "right"]].set_visible(False)
        grid[at][0].set_ylabel("test accuracy, %")
    handles, labels = max((axes.get_legend_handles_labels() for axes in grid.flat), key=lambda found: len(found[1]))
    figure.legend(handles, labels, frameon=False, ncols=len(families), loc="outside lower center")
    out.mkdir(parents=True, exist_ok=True)
    paths = [out / f"{NAME}.{ending}" for ending in ("png", "svg")]
    for path in paths:
        fresh = path.with_name(f".{path.name}")
        figure.savefig(fresh, format=path.suffix[1:], dpi=130)
        fresh.replace(path)
    return paths


def main() -> None:
    words = argparse.ArgumentParser(description="Run cvfl-accuracy, or take a finished run's measured.json, and draw.")
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
