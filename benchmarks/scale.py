"""How far one process goes: a million rows of four parties within four gigabytes, and
how cost grows with rows and parties. Times are CPU seconds, so that what else runs on
the machine counts little; memory is a process's own peak.

The rows are random; the models are the default ones (50-120-60), batches have 1,024
rows.
"""

from __future__ import annotations

import json
import math
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch

from colonnade import datasets
from colonnade.algorithms import find
from colonnade.benchmark import Result, race
from colonnade.core import Envelope, Transport
from colonnade.core.files import let_go, mapped_array, mapped_folder
from colonnade.core.peers import Answer
from colonnade.datasets.preprocess import Labels
from colonnade.federation.federation import Federation
from colonnade.rows.holdings import Columns, Holdings, LabelledRows
from colonnade.rows.making import from_tables
from colonnade.settings.federation_file import Settings

COLUMNS = 50
BATCH = 1024
PARTIES = 4
ROWS = (10_240, 102_400, 1_024_000)
LIMIT = 4.0  # GB
ALGORITHMS = (
    "splitnn",
    "vafl",
    "fdml",
    "vimsgd",
    "vimadmm",
    "vimadmm_joint",
    "compressed_vfl",
)
OTHERS: dict[str, dict[str, Any]] = {
    "logistic_regression": {},
    "boosted_trees": {"encryption": "none"},
    "vfedcce": {"mode": "plaintext"},
    "knn": {"aggregation": "plain"},
    "one_shot": {},
    "multi_vfl": {},
}
"""Of which only the growth is measured, in the clear."""
SMALL = {"vfedcce": 64}
"""Rows of a batch, where each has a gradient of its own by every weight."""
BY_COUNT = {"vfedcce": {"classes": 1.28}, "one_shot": {"classes": 1.25}}
"""Exponents of the arithmetic, where they are above 1: a Jacobian has a gradient of a
row for each class but one, for 32 classes 31 times as many as for 2, by 1.14 times as
many weights; boosted trees have a tree a round for each of 32 classes, and for 2 one.
"""
ASKED = 64
"""Rows that kNN, which does not train, is asked for."""


def run(quick: bool) -> list[Result]:
    rows = 50_000 if quick else 1_000_000
    return [
        *_from_files(rows),
        _by_rows(
            ROWS[:2] if quick else ROWS,
            laps=3 if quick else 20,
            steps=10 if quick else 50,
        ),
        _by_parties(
            (2, 4, 8) if quick else (2, 4, 8, 16, 32, 64), laps=2 if quick else 5
        ),
        *(
            _traffic(name, rows=4 * BATCH if quick else 20 * BATCH)
            for name in ALGORITHMS
        ),
        *(_exponents(name, {}, laps=2 if quick else 4) for name in ALGORITHMS),
        *(
            _exponents(name, config, laps=2 if quick else 6)
            for name, config in OTHERS.items()
        ),
    ]


def _from_files(rows: int) -> list[Result]:
    """Written by one process; read, prepared, trained on for an epoch, scored and saved
    by another: its peak counts."""
    with tempfile.TemporaryDirectory(dir=mapped_folder()) as folder:
        for what in ("write", "train"):
            command = [sys.executable, __file__, what, folder, str(rows)]
            done = subprocess.run(
                command,
                check=True,
                capture_output=True,
                text=True,
                env=dict(os.environ),
            )
        found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    told = ", ".join(
        f"{stage} {found[stage]:.1f}" for stage in ("read", "prepare", "train", "rest")
    )
    return [
        Result(
            f"{rows:,} rows x {PARTIES} parties x {COLUMNS} columns, Parquet to saved"
            " model: memory",
            f"{found['peak']:.2f} GB at most",
            f"{found['anonymous']:.2f} GB of it at the end not backed by a file",
            f"≤ {LIMIT} GB" if rows >= 1_000_000 else "",
            found["peak"] <= LIMIT if rows >= 1_000_000 else None,
            found,
        ),
        Result("the same: CPU seconds (VIMADMM, one epoch)", told, numbers=found),
    ]


def _by_rows(sizes: tuple[int, ...], *, laps: int, steps: int) -> Result:
    """Of VIMADMM with one local step, which leaves the most of fetching rows; the sizes
    take turns. An epoch at the largest is as long as all laps, so that shuffling it is
    counted."""
    runs = {
        str(rows): (
            Federation(_settings(local_steps=1), _holdings(rows, PARTIES)).train()
        )
        for rows in sizes
    }
    spent = _laps(runs, laps, steps)
    speed = {
        name: laps * steps * BATCH / sum(seconds) for name, seconds in spent.items()
    }
    middle = (max(speed.values()) + min(speed.values())) / 2
    apart = max(speed.values()) / middle - 1
    return Result(
        f"rows a second by the number of rows, {PARTIES} parties",
        ", ".join(f"{int(name):,}: {value:,.0f}" for name, value in speed.items()),
        f"± {apart:.1%}",
        "± 10 %",
        apart <= 0.1,
        speed,
    )


def _by_parties(counts: tuple[int, ...], *, laps: int) -> Result:
    runs = {
        str(count): (
            Federation(_settings(local_steps=1), _holdings(10 * BATCH, count)).train()
        )
        for count in counts
    }
    spent = _laps(runs, laps, 4)
    each = {name: min(seconds) / 4 / int(name) * 1e3 for name, seconds in spent.items()}
    growth = max(each[str(b)] / each[str(a)] for a, b in pairwise(counts))
    return Result(
        "a VIMADMM round by the number of parties",
        ", ".join(f"{name}: {value:.1f}" for name, value in each.items())
        + " ms for each party",
        f"twice the parties cost at most {2 * growth:.2f} times as much",
        "≤ 2.2 times",
        2 * growth <= 2.2,
        each,
    )


def _traffic(name: str, rows: int) -> Result:
    """What an algorithm sends and computes for one row, at each party, in one epoch,
    and how often all are asked."""
    federation = Federation(_settings(name), _holdings(rows, PARTIES))
    training = federation.train()
    steps = rows // BATCH - 1
    next(training)
    before = _sent(federation)
    asked = _Asked(federation.peers.transport)
    federation.peers.transport = asked
    seconds = _spend(training, steps)
    count = steps * BATCH * PARTIES
    up, down = ((b - a) / count for a, b in zip(before, _sent(federation), strict=True))
    numbers = {
        "up": up,
        "down": down,
        "cpu_us": seconds / count * 1e6,
        "calls": asked.times / steps,
    }
    return Result(
        f"{name}: one row at one of {PARTIES} parties, one epoch",
        f"{up:.0f} bytes up, {down:.0f} down, {numbers['cpu_us']:.1f} µs of CPU",
        f"all are asked {numbers['calls']:.0f} times a batch",
        numbers=numbers,
    )


def _exponents(name: str, config: Mapping[str, Any], *, laps: int) -> Result:
    """How an epoch's CPU time grows: b in time ~ size^b, between a size and some times
    as much of one thing. Where the number of batches grows with the rows, it is 1 for
    rows, and what a batch costs more. Of what trains in one step it is the whole
    training, of kNN some rows' answers, of several label owners a round of two."""
    sizes: dict[str, dict[str, int]] = {"": {}} | {
        "rows": {"rows": 16 * 4 * BATCH},
        "columns": {"columns": 8 * COLUMNS},
        "parties": {"parties": 4 * PARTIES},
        "classes": {"classes": 32},
    }
    times = {"rows": 16, "columns": 8, "parties": 4, "classes": 16}
    base = {"rows": 4 * BATCH, "parties": PARTIES, "columns": COLUMNS, "classes": 2}
    work = WORK.get(name, _steps)
    runs = {what: work(name, config, base | size) for what, size in sizes.items()}
    best = race(runs, turns=laps, clock=time.process_time)
    found = {
        what: math.log(best[what] / best[""]) / math.log(factor)
        for what, factor in times.items()
    }
    found["rows"] += work is _steps and find(name).config.in_batches
    counted = BY_COUNT.get(name, {})
    return Result(
        f"{name}: exponents of an epoch's CPU time",
        ", ".join(f"{what} {value:.2f}" for what, value in found.items()),
        f"from {4 * BATCH:,} rows, {COLUMNS} columns, {PARTIES} parties, 2 classes",
        "≤ 1.05 each"
        + "".join(
            f", {what} ≤ {law + 0.05:.2f} (counted: {law})"
            for what, law in counted.items()
        ),
        all(value <= counted.get(what, 1.0) + 0.05 for what, value in found.items()),
        found,
    )


Work = Callable[[], object]


def _steps(name: str, config: Mapping[str, Any], size: Mapping[str, int]) -> Work:
    training = Federation(_settings(name, **config), _holdings(**size)).train()
    next(training)
    return lambda: [next(training) for _ in range(2)]


def _whole(name: str, config: Mapping[str, Any], size: Mapping[str, int]) -> Work:
    settings = _settings(name, **config)
    holdings = _holdings(**size)
    return lambda: list(Federation(settings, holdings).train())


def _answers(name: str, config: Mapping[str, Any], size: Mapping[str, int]) -> Work:
    federation = Federation(_settings(name, **config), _holdings(**size))
    return lambda: federation.outputs("test")


def _rounds(name: str, config: Mapping[str, Any], size: Mapping[str, int]) -> Work:
    held = _holdings(**size)
    half = len(held.ids) // 2
    owners = ("north", "south")
    rows = {"north": torch.arange(half), "south": torch.arange(half, len(held.ids))}
    settings = Settings.from_mapping(
        {
            "algorithm": {"name": name, **config},
            "train": {"epochs": 1000, "batch_size": BATCH},
            "label_owners": [{"name": owner} for owner in owners],
            "data_owners": [{"name": party} for party in held.columns],
            "federation": {"device": "cpu"},
        }
    )
    labelled = {
        k: LabelledRows(
            held.packed[at.numpy()],
            held.labelled.labels[at],
            {"train": torch.arange(half)},
            at,
            k,
        )
        for k, at in rows.items()
    }
    training = Federation(
        settings, replace(held, label_owners=labelled, server=settings.server)
    ).train()
    next(training)
    return lambda: next(training)


WORK = {"one_shot": _whole, "knn": _answers, "multi_vfl": _rounds}


class _Asked:
    """A transport that counts how often several are asked at once: each is a round
    trip."""

    def __init__(self, inner: Transport) -> None:
        self.inner = inner
        self.times = 0

    def exchange(self, calls: Sequence[Envelope[Any]]) -> list[Answer]:
        self.times += 1
        return self.inner.exchange(calls)


def _laps(
    runs: Mapping[str, Iterator[Any]], laps: int, steps: int
) -> dict[str, list[float]]:
    """CPU seconds of each lap of each run, in turns, after a first step."""
    for training in runs.values():
        next(training)
    spent: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(laps):
        for name, training in runs.items():
            spent[name].append(_spend(training, steps))
    return spent


def _spend(training: Iterator[Any], steps: int) -> float:
    start = time.process_time()
    for _ in range(steps):
        next(training)
    return time.process_time() - start


def _sent(federation: Federation) -> tuple[int, int]:
    book = federation.driver.ledger
    return book.total("in"), book.total("out")


def _settings(name: str = "vimadmm", **config: Any) -> Settings:
    return Settings.from_mapping(
        {
            "algorithm": {"name": name, **config},
            "train": {"epochs": 1000, "batch_size": SMALL.get(name, BATCH)},
            "federation": {"device": "cpu"},
        }
    )


def _holdings(
    rows: int, parties: int, columns: int = COLUMNS, classes: int = 2
) -> Holdings:
    """Random columns, as a table's would lie; all rows are training rows."""
    draw = np.random.default_rng(0)
    held = {}
    for name in datasets.party_names(parties):
        table = mapped_array((rows, columns), np.float32)
        for start in range(0, rows, BATCH):
            table[start : start + BATCH] = draw.standard_normal(
                (BATCH, columns), dtype=np.float32
            )
        let_go(table)
        held[name] = Columns(torch.from_numpy(table))
    labels = torch.from_numpy(draw.integers(0, classes, rows))
    ids = np.arange(rows).astype(np.str_)
    encoder = Labels("server", "classification", tuple(range(classes)))
    return Holdings.of_one(
        held,
        labels,
        ids,
        {"train": torch.arange(rows), "test": torch.arange(ASKED)},
        "server",
        encoder,
    )


def write(folder: Path, rows: int) -> None:
    """Four Parquet files, each in an order of its own, and the federation file."""
    import pyarrow
    import pyarrow.parquet

    draw = np.random.default_rng(0)
    sections = [
        '[algorithm]\nname = "vimadmm"\nlocal_steps = 5\n[train]\nepochs ='
        ' 1\n[federation]\ndevice = "cpu"\n'
    ]
    for party in range(PARTIES):
        order = draw.permutation(rows)
        values: dict[str, Any] = {"id": np.char.mod("person-%08d", order)}
        values |= {
            f"x{column}": draw.standard_normal(rows, dtype=np.float32)
            for column in range(COLUMNS)
        }
        if party == 0:
            values["label"] = (values["x0"] + values["x1"] > 0).astype(np.int64)
        pyarrow.parquet.write_table(pyarrow.table(values), folder / f"p{party}.parquet")
        label = 'label = "label"\n' if party == 0 else ""
        sections.append(f'[parties.p{party}]\ntable = "p{party}.parquet"\n{label}')
    (folder / "federation.toml").write_text("".join(sections), encoding="utf-8")


def train(folder: Path) -> dict[str, float]:
    from colonnade.rows.holdings import read_tables

    found = {}
    marks = [time.process_time()]

    def mark(stage: str) -> None:
        marks.append(time.process_time())
        found[stage] = marks[-1] - marks[-2]

    settings = Settings.from_toml(folder / "federation.toml")
    tables = read_tables(settings)
    mark("read")
    holdings = from_tables(settings, tables)
    del tables
    federation = Federation(settings, holdings)
    mark("prepare")
    trained: list[float] = []
    federation.fit(folder / "run", watch=lambda _: trained.append(time.process_time()))
    mark("rest")
    found["train"] = trained[-2] - trained[0] if len(trained) > 2 else 0.0
    found["rest"] -= found["train"]
    # ru_maxrss counts kilobytes, on macOS bytes
    unit = 1024 if sys.platform != "darwin" else 1
    found["peak"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e9
    found["anonymous"] = _anonymous()
    return found


def _anonymous() -> float:
    """Memory that no file stands behind, in GB; where the system tells."""
    status = Path("/proc/self/status")
    lines = status.read_text(encoding="utf-8").splitlines() if status.exists() else []
    return next(
        (
            int(line.split()[1]) * 1024 / 1e9
            for line in lines
            if line.startswith("RssAnon")
        ),
        float("nan"),
    )


if __name__ == "__main__":
    if sys.argv[1] == "write":
        write(Path(sys.argv[2]), int(sys.argv[3]))
    else:
        print(json.dumps(train(Path(sys.argv[2]))))
