"""Accuracy against bytes: top-k, scalar, vector and noisy (binomial) quantization at
several rates, with Q = 1, 5, 10.

Embeddings go up, and the others' embeddings and the server model come down, all packed;
the ledger of the label owner counts both. The labels, which every party is told once at
the start, and what is sent for testing are left out. What is sent for testing is
compressed (and made noisy) as in training.

Every line with noise has its epsilon, for one row and one release and for all its
releases in training, against the label owner, who knows the batches. With few trials it
is infinite: an outcome at either end gives a row away. Epsilons need dp-accounting and
no training; where it is missing they are left out, and added when what a folder holds
is put together (`--jobs 0`) where it is not.

A data set with a codec, a Q and a seed is a cell.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from colonnade.core.receipt import DpEvent
from colonnade.errors import ConfigError, Diverged
from colonnade.federation import Federation, Settings
from colonnade.privacy.accounting import key_of, known_batch
from colonnade.reproduction import Plan, Study
from colonnade.reproduction.pictures import COLOURS, MARKS, save
from colonnade.rows.holdings import Holdings
from colonnade.rows.public import from_dataset

LOCAL_STEPS = (1, 5, 10)
# of embeddings
RANGE = {"cifar10": (-1.0, 1.0), "mnist": (0.0, 4.0), "modelnet10": (0.0, 8.0)}
ONE_SEED = "cifar10"
# z = 256 levels, without noise, as Theorem 4.2 has it
SERVER_MODEL = {"codec": {"name": "quantize", "levels": 256}}
LEVELS = 8
WIDTH = 64
DELTA = 1e-5
TRIALS = (8, 32, 2048, 32_768)
"""N with p = 1/2. 32 has a variance "of the order of k", as the paper asks for; a
finite epsilon needs thousands."""
QUICK_ROWS = 4096
QUICK_TEST = 2000
QUICK_BATCH = 128
QUICK = {"mnist": (1, 10), "modelnet10": (1, 10)}  # the values of Q
QUICK_CODECS = (
    *("none", "top-k 0.12", "top-k 0.23", "scalar 2", "scalar 8", "vector 64"),
    *("noisy 8 + Bin(8, 0.5)", "noisy 8 + Bin(32768, 0.5)"),
)


def codecs(low: float, high: float) -> dict[str, dict[str, Any]]:
    """The rule for embeddings by name: a family, and how much it keeps."""
    span = {"low": low, "high": high}
    made: dict[str, dict[str, Any]] = {"none": {}}
    made |= {
        f"top-k {keep:g}": {"codec": {"name": "top_k", "keep": keep}}
        for keep in (0.05, 0.12, 0.23, 0.5)
    }
    made |= {
        f"scalar {k}": {"codec": {"name": "quantize", "levels": k, **span}}
        for k in (2, 8, 32)
    }
    made |= {
        f"vector {n}": {"codec": {"name": "vector_quantize", "points": n, **span}}
        for n in (4, 64, 1024)
    }
    for trials in TRIALS:
        noise = {
            "name": "binomial",
            "levels": LEVELS,
            "trials": trials,
            "p": 0.5,
            **span,
        }
        made[f"noisy 8 + Bin({trials}, 0.5)"] = {"mechanism": noise}
    return made


def settings(
    path: Path,
    plan: Plan,
    holdings: Holdings,
    rule: Mapping[str, Any],
    q: int,
    rate: float | None = None,
) -> Settings:
    """The data set's federation file, with a rule for embeddings and Q local
    iterations, at its rate or another."""
    tables = Settings.from_toml(path).to_mapping()
    tables["algorithm"] |= {"local_steps": q} | (
        {} if rate is None else {"learning_rate": rate}
    )
    if plan.short:
        tables["train"] |= {"epochs": max(plan.epochs), "batch_size": QUICK_BATCH}
    parties = [name for name, held in holdings.columns.items()]
    if rule:
        tables["parties"] = {name: {"outbox": {"embedding": rule}} for name in parties}
        tables["parties"][holdings.label_owner] = {"outbox": {"model": SERVER_MODEL}}
    return Settings.from_mapping(tables, where=str(path))


def traffic(federation: Federation) -> tuple[float, float]:
    """Bytes up and down in all training rounds, over all parties."""
    ledger = federation.ledgers[federation.holdings.label_owner]
    rounds = [
        entry for entry in ledger.entries if (entry.batch or "").startswith("train/")
    ]
    ways = {
        way: sum(entry.bytes for entry in rounds if entry.direction == way)
        for way in ("in", "out")
    }
    return float(ways["in"]), float(ways["out"])


class Run(NamedTuple):
    data: str
    q: int
    codec: str
    seed: int

    @property
    def title(self) -> str:
        return f"{self.data}, Q {self.q}, {self.codec}"


def table(plan: Plan) -> dict[str, Run]:
    """Every run by the name of its cell: what takes longest first, and of that one seed
    alone."""
    chosen = QUICK if plan.short else dict.fromkeys(RANGE, LOCAL_STEPS)
    runs = [
        Run(data, q, codec, seed)
        for seed in plan.seeds
        for data in chosen
        for q in sorted(chosen[data], reverse=True)
        for codec in codecs(*RANGE[data])
        if (codec in QUICK_CODECS or not plan.short)
        and (seed == plan.seeds[0] or data != ONE_SEED)
    ]
    return {f"{one.title}, seed {one.seed}": one for one in runs}


def cells(plan: Plan) -> list[str]:
    return list(table(plan))


@lru_cache(maxsize=1)
def holdings_of(path: Path, short: bool) -> Holdings:
    holdings = from_dataset(Settings.from_toml(path))
    if short:
        holdings.splits["train"] = holdings.splits["train"][:QUICK_ROWS]
        holdings.splits["test"] = holdings.splits["test"][:QUICK_TEST]
    return holdings


def federation_of(study: Study, one: Run, rate: float | None = None) -> Federation:
    """All parties of a run."""
    path = study.plan.folder / "configs" / f"{one.data}.toml"
    holdings = holdings_of(path, study.plan.short)
    rule = codecs(*RANGE[one.data])[one.codec]
    return study.federation(
        settings(path, study.plan, holdings, rule, one.q, rate), one.seed, holdings
    )


def trained(study: Study, cell: str, federation: Federation) -> tuple[int, bool]:
    """How many rounds it trained, and whether to the end."""
    rounds = 0
    try:
        for step in federation.train():
            rounds += 1
            if study.watch is not None:
                study.watch(cell, step)
    except Diverged:
        return rounds, False
    return rounds, True


def run(study: Study, cell: str) -> None:
    """Train, score the test rows at the end, and count."""
    plan, one = study.plan, table(study.plan)[cell]
    federation = federation_of(study, one)
    rounds, ended = trained(study, cell, federation)
    score = federation.evaluate("test")["accuracy"] if ended else math.nan
    up, down = traffic(federation)
    study.record(f"{one.title}: accuracy", score)
    study.record(f"{one.title}: sent", (up + down) / 1e6, "MB")
    # the same for every Q and seed
    if (one.q, one.seed) == (LOCAL_STEPS[0], plan.seeds[0]) and rounds:
        study.record(f"{one.data}, {one.codec}: up per round", up / rounds / 1e3, "kB")
        study.record(
            f"{one.data}, {one.codec}: down per round", down / rounds / 1e3, "kB"
        )


def finish(study: Study) -> None:
    """What each codec lost against none, seed by seed; and what noise costs a row."""
    epsilons(study)
    for what, one in list(study.measured.items()):
        found = re.fullmatch(r"(\w+, Q \d+, )(.*): accuracy", what)
        plain = study.measured.get(f"{found[1]}none: accuracy") if found else None
        if found and plain is not None and found[2] != "none":
            for score, without in zip(one.by_seed, plain.by_seed, strict=False):
                study.record(f"{what} lost", without - score)


def epsilons(study: Study) -> None:
    """Of one release of a row, and of as many as a data set has epochs."""
    for trials in TRIALS:
        spent = key_of(
            DpEvent(
                "binomial",
                {"levels": LEVELS, "trials": trials, "p": 0.5, "coordinates": WIDTH},
            )
        )
        for data in RANGE:
            codec = f"noisy 8 + Bin({trials}, 0.5)"
            if not any(
                what.startswith(f"{data}, ") and codec in what
                for what in study.measured
            ):
                continue
            path = study.plan.folder / "configs" / f"{data}.toml"
            epochs = (
                max(study.plan.epochs)
                if study.plan.short
                else Settings.from_toml(path).train.epochs
            )
            try:
                for what, releases in (("one release", 1), ("training", epochs)):
                    epsilon = known_batch({spent: releases}, "replace-one", DELTA)
                    # JSON knows no infinity
                    finite = epsilon if math.isfinite(epsilon) else math.nan
                    study.record(f"{data}, {codec}: epsilon, {what}", finite, "")
            except ConfigError:  # dp-accounting is not installed here
                return


def draw(study: Study, out: Path) -> list[Path]:
    """Accuracy over MB sent, one line per family of codecs; one panel per data set and
    Q."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import LogLocator, NullLocator

    mean = {what: one.mean for what, one in study.measured.items()}
    points: dict[tuple[str, int], dict[str, list[tuple[float, float]]]] = {}
    for what, accuracy in mean.items():
        found = re.fullmatch(r"(\w+), Q (\d+), (\S+)(.*): accuracy", what)
        if found and math.isfinite(accuracy):
            sent = mean[what.replace(": accuracy", ": sent")]
            points.setdefault((found[1], int(found[2])), {}).setdefault(
                found[3], []
            ).append((sent, 100 * accuracy))
    rows = sorted({data for data, _ in points})
    columns = sorted({q for _, q in points})
    figure = Figure(
        figsize=(1.5 + 3.4 * len(columns), 0.8 + 2.7 * len(rows)), layout="constrained"
    )
    grid = figure.subplots(len(rows), len(columns), squeeze=False, sharey="row")
    families = list(
        dict.fromkeys(family for panel in points.values() for family in panel)
    )
    for at, data in enumerate(rows):
        for across, q in enumerate(columns):
            axes = grid[at][across]
            axes.set_visible((data, q) in points)
            for family, found_at in points.get((data, q), {}).items():
                number = families.index(family)
                style = {
                    "color": COLOURS[number % len(COLOURS)],
                    "marker": MARKS[number % len(MARKS)],
                }
                axes.plot(
                    *zip(*sorted(found_at), strict=True),
                    label=family,
                    markersize=5,
                    **style,
                )
            axes.set(
                xscale="log",
                title=f"{data}, Q = {q}",
                xlabel="MB sent in training, up and down",
            )
            axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
            axes.xaxis.set_major_formatter("{x:g}")
            axes.xaxis.set_minor_locator(NullLocator())
            axes.grid(alpha=0.3)
            axes.spines[["top", "right"]].set_visible(False)
        grid[at][0].set_ylabel("test accuracy, %")
    handles, labels = max(
        (axes.get_legend_handles_labels() for axes in grid.flat),
        key=lambda found: len(found[1]),
    )
    figure.legend(
        handles, labels, frameon=False, ncols=len(families), loc="outside lower center"
    )
    return save(figure, out / study.plan.name)
