"""Benchmarks: ratios measured side by side in one run, because machines are shared and
noisy.

    benchmarks/<name>.py     a function `run(quick: bool) -> list[Result]`, or `-> Cells`

Both sides take turns, and the minimum over repetitions counts. A benchmark that
measures no time may be made of cells, which need nothing of each other: they run in
many processes, on many machines, and are put together from a folder.
"""

from __future__ import annotations

import dataclasses
import json
import multiprocessing
import platform
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from colonnade.core.files import write_text
from colonnade.core.party import cores
from colonnade.reproduction.cells import Say, matching, module_at
from colonnade.reproduction.expected import check_known, in_repository


@dataclass(frozen=True)
class Result:
    """One line of a benchmark: a value, what it is compared with, and the target if
    there is one."""

    what: str
    measured: str
    against: str = ""
    target: str = ""
    holds: bool | None = None
    numbers: Mapping[str, float] = dataclasses.field(default_factory=dict)
    benchmark: str = dataclasses.field(default="", compare=False)  # whose line it is
    on: str = dataclasses.field(default="", compare=False)  # the machine, in words

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


@dataclass(frozen=True)
class Cells:
    """A benchmark in named parts; `measure` gives plain JSON for a part."""

    names: Sequence[str]
    measure: Callable[[str], dict[str, Any]]
    # of all parts that were measured
    results: Callable[[Mapping[str, dict[str, Any]]], list[Result]]


@dataclass(frozen=True)
class Share:
    """Which cells are run here, in how many processes, and where their values are kept."""

    jobs: int = 1  # 0: nothing is run, and kept cells are put together
    out: Path | None = None
    only: str = "*"


def folder() -> Path:
    """Where the benchmarks are."""
    return in_repository("benchmarks")


def names() -> list[str]:
    return sorted(path.stem for path in folder().glob("*.py"))


def run(
    name: str = "all",
    *,
    quick: bool = False,
    say: Say | None = None,
    share: Share | None = None,
) -> list[Result]:
    """Run one benchmark, or all of them; `share` is for those that are made of cells."""
    if name != "all":
        check_known("benchmark", name, names())
    results: list[Result] = []
    for benchmark in names() if name == "all" else [name]:
        if say is not None:
            say(benchmark)
        outcome = _load(benchmark).run(quick)
        if isinstance(outcome, Cells):
            measured = _measure_cells(
                benchmark, outcome, quick, say or (lambda _: None), share or Share()
            )
            outcome = outcome.results(measured)
        results += [
            dataclasses.replace(result, benchmark=benchmark, on=machine())
            for result in outcome
        ]
    return results


def _measure_cells(
    name: str, cells: Cells, quick: bool, say: Say, share: Share
) -> dict[str, dict[str, Any]]:
    """The values of each chosen cell, measured now or earlier; with a folder, every
    cell is kept as it ends."""
    chosen = matching(cells.names, share.only, name)
    version = f"{name}, quick" if quick else name  # a quick cell measures less
    kept = (
        {}
        if share.out is None
        else {cell: share.out / f"{version}, {cell}.json" for cell in chosen}
    )
    measured = {
        cell: json.loads(path.read_text(encoding="utf-8"))
        for cell, path in kept.items()
        if path.exists()
    }
    todo = [cell for cell in chosen if cell not in measured] if share.jobs else []
    spawned = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(max(1, min(share.jobs, len(todo))), spawned) as pool:
        running = {pool.submit(_measure_cell, name, cell, quick): cell for cell in todo}
        for future in as_completed(running):
            cell = running[future]
            measured[cell] = future.result()
            say(
                f"{len(measured)} of {len(chosen)}: {cell} {json.dumps(measured[cell])}"
            )
            if cell in kept:
                kept[cell].parent.mkdir(parents=True, exist_ok=True)
                write_text(kept[cell], json.dumps(measured[cell]) + "\n")
    return {cell: measured[cell] for cell in chosen if cell in measured}


def _measure_cell(name: str, cell: str, quick: bool) -> dict[str, Any]:
    """Measure a cell in this process, which is its own."""
    return _cells(name, quick).measure(cell)


@lru_cache(maxsize=1)
def _cells(name: str, quick: bool) -> Cells:
    """A benchmark's cells, made once per process, since it may read tables for all of
    them."""
    cells = _load(name).run(quick)
    assert isinstance(cells, Cells)
    return cells


def machine() -> str:
    """What this process computes with: cores, torch, and a GPU where there is one."""
    import torch

    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text(encoding="utf-8").splitlines() if cpuinfo.exists() else []
    named = next(
        (
            line.partition(":")[2].strip()
            for line in lines
            if line.startswith("model name")
        ),
        "",
    )
    count = cores()
    gpu = f", {torch.cuda.get_device_name()}" if torch.cuda.is_available() else ""
    processor = (
        f"{count} core{'s' if count > 1 else ''} of {named or platform.machine()}"
    )
    return f"{processor}{gpu}, torch {torch.__version__.partition('+')[0]}"


def race(
    runners: Mapping[str, Callable[[], object]],
    *,
    turns: int,
    clock: Callable[[], float] | None = None,
) -> dict[str, float]:
    """The fastest time of each runner, in seconds; they take turns, so that what
    disturbs one disturbs all.

    `clock` is the wall's, or `time.process_time` to leave out other processes."""
    now = clock or time.perf_counter
    best = dict.fromkeys(runners, float("inf"))
    for runner in runners.values():
        runner()
    for _ in range(turns):
        for name, runner in runners.items():
            start = now()
            runner()
            best[name] = min(best[name], now() - start)
    return best


def _load(name: str) -> Any:
    return module_at(folder() / f"{name}.py", f"colonnade_benchmark_{name}")
