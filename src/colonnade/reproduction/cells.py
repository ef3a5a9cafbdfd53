"""A study in cells: named parts that need nothing of each other, so that each can run
in a process of its own.

Of a plan with `runs`, a cell is one run with one seed. A script offers

    run(study)                       all of it, in one cell; or

    cells(plan) -> list[str]         the cells, in the order in which they begin: the longest first
    run(study, cell)                 one of them
    finish(study)                    optional: what follows from all of them together

    draw(study, out) -> list[Path]   optional: pictures of its own, instead of learning curves

With a folder, a cell is written to `cells/` there whenever it records something, and a
finished cell is not run again: a study that was cut off goes on where it was, also on
another machine.
"""

from __future__ import annotations

import importlib.util
import inspect
import json
import multiprocessing
import os
import re
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from colonnade.core.files import write_text
from colonnade.datasets.download import written_whole
from colonnade.datasets.formats import read_npz
from colonnade.errors import ColonnadeError, ConfigError
from colonnade.reproduction.expected import Plan, plan
from colonnade.reproduction.pictures import curves
from colonnade.reproduction.study import Study, Watch

CellResult = tuple[dict[str, Any], dict[str, NDArray[Any]]]
"""What a cell recorded, and its arrays."""
Say = Callable[[str], None]


def reproduce(
    name: str,
    *,
    quick: bool = False,
    watch: Watch | None = None,
    say: Say | None = None,
    jobs: int = 1,
    out: Path | None = None,
    only: str = "*",
) -> Study:
    """Run every cell of the pattern `only` that `out` does not hold yet, in `jobs`
    processes, and put all together. `measured.json` and the pictures are written to
    `out`. If a cell fails, the others go on: see `study.failed`. With no jobs nothing
    is run, and cells that were cut off count with what they recorded."""
    chosen = plan(name).shortened() if quick else plan(name)
    names = cells(chosen)
    study = Study(chosen, watch)
    kept = None if out is None else KeptCells(chosen, out / "cells")
    results = {} if kept is None else kept.read(names, partly=jobs == 0)
    wanted = matching(names, only, name)
    todo = [cell for cell in wanted if cell not in results] if jobs else []
    for cell, outcome in _run_cells(chosen, todo, watch, jobs, kept):
        if isinstance(outcome, Exception):
            study.failed[cell] = outcome
        else:
            results[cell] = outcome
        if say is not None:
            say(
                f"{len(results)} of {len(names)} cells, last"
                f" {cell}{' (failed)' if cell in study.failed else ''}"
            )
    for cell in names:  # in the plan's order, so that seeds stay in order
        if cell in results:
            study.add(*results[cell], cell)
    if results and (finish := getattr(script_of(chosen), "finish", None)) is not None:
        finish(study)
    if results and out is not None:
        _write(study, out)
    return study


def cells(plan: Plan) -> list[str]:
    """The names of a plan's cells."""
    if plan.script is None:
        return [f"{title}, seed {seed}" for title in plan.runs for seed in plan.seeds]
    listed = getattr(script_of(plan), "cells", None)
    return [plan.name] if listed is None else list(listed(plan))


def matching(cells: Sequence[str], only: str, name: str) -> list[str]:
    """The cells of that pattern, of which there must be one."""
    if matches := [cell for cell in cells if fnmatchcase(cell, only)]:
        return matches
    examples = ", ".join(map(repr, cells[:3]))
    raise ConfigError(
        f"No cell of {name} is named {only!r}; they are named {examples} and so on."
    )


def run(study: Study, cell: str) -> None:
    """Run one cell in this process."""
    plan = study.plan
    if plan.script is None:
        title, _, seed = cell.rpartition(", seed ")
        study.train(title, study.settings(plan.runs[title]), int(seed))
    elif len(inspect.signature(script_of(plan).run).parameters) == 1:
        script_of(plan).run(study)
    else:
        script_of(plan).run(study, cell)


@dataclass(frozen=True)
class KeptCells:
    """The cells of a study in a folder: a JSON file each and, where there are arrays,
    an npz file beside it."""

    plan: Plan
    folder: Path

    @property
    def version(self) -> dict[str, Any]:
        """What cells must have in common to belong together."""
        return {
            "quick": self.plan.short,
            "seeds": list(self.plan.seeds),
            "epochs": list(self.plan.epochs),
        }

    def path(self, cell: str) -> Path:
        return self.folder / f"{re.sub(r'[^A-Za-z0-9.]+', '_', cell)}.json"

    def write(self, cell: str, study: Study, finished: bool) -> None:
        path = self.path(cell)
        path.parent.mkdir(parents=True, exist_ok=True)
        if study.arrays:
            with written_whole(path.with_suffix(".npz")) as stream:
                np.savez_compressed(stream, **study.arrays)  # type: ignore[arg-type]
        header = {
            "cell": cell,
            "plan": self.plan.name,
            "version": self.version,
            "finished": finished,
        }
        write_text(path, json.dumps(header | study.recorded()) + "\n")

    def read(self, cells: Sequence[str], partly: bool) -> dict[str, CellResult]:
        """The finished cells in the folder; with `partly`, also those that were cut
        off."""
        results: dict[str, CellResult] = {}
        for path in sorted(self.folder.glob("*.json")):
            record = json.loads(path.read_text(encoding="utf-8"))
            if (record["plan"], record["version"]) != (self.plan.name, self.version):
                raise ConfigError(
                    f"{path} is of {record['plan']} {record['version']}, and"
                    f" {self.plan.name} {self.version} is to be run. Choose another"
                    " folder, or delete that one."
                )
            arrays = path.with_suffix(".npz")
            if record["cell"] in cells and (record["finished"] or partly):
                results[record["cell"]] = (
                    record,
                    (read_npz(arrays) if arrays.exists() else {}),
                )
        return results


def _run_cells(
    plan: Plan,
    todo: Sequence[str],
    watch: Watch | None,
    jobs: int,
    kept: KeptCells | None,
) -> Iterator[tuple[str, CellResult | Exception]]:
    """Each cell and its result, or why it failed, as they end."""
    if jobs == 1 or len(todo) < 2:
        for cell in todo:
            try:
                yield cell, _run_cell(plan, cell, watch, kept)
            except Exception as error:
                yield cell, error
        return
    spawned = multiprocessing.get_context("spawn")  # a forked process cannot use CUDA
    threads = max(1, (os.cpu_count() or 1) // jobs)
    with ProcessPoolExecutor(
        min(jobs, len(todo)), spawned, torch.set_num_threads, (threads,)
    ) as pool:
        running = {
            pool.submit(_run_in_process, plan, cell, kept): cell for cell in todo
        }
        for future in as_completed(running):
            try:
                outcome = future.result()
            # a process was killed, and with it the others
            except BrokenProcessPool as error:
                outcome = str(error)
            yield (
                running[future],
                (ColonnadeError(outcome) if isinstance(outcome, str) else outcome),
            )


def _run_in_process(plan: Plan, cell: str, kept: KeptCells | None) -> CellResult | str:
    """Run a cell in another process. Its error becomes text, since not every error can
    be sent back."""
    try:
        return _run_cell(plan, cell, None, kept)
    except ColonnadeError as error:
        return str(error)
    except Exception:
        return traceback.format_exc()


def _run_cell(
    plan: Plan, cell: str, watch: Watch | None, kept: KeptCells | None
) -> CellResult:
    study = Study(
        plan,
        watch,
        None if kept is None else lambda study: kept.write(cell, study, False),
    )
    run(study, cell)
    if kept is not None:
        kept.write(cell, study, True)
    return study.recorded(), study.arrays


def _write(study: Study, out: Path) -> None:
    out.mkdir(parents=True, exist_ok=True)
    text = json.dumps(
        [measured.to_json() for measured in study.measured.values()], indent=2
    )
    write_text(out / "measured.json", text + "\n")
    if (draw := getattr(script_of(study.plan), "draw", None)) is not None:
        draw(study, out)
    elif study.curves:
        curves(study, out)


def script_of(plan: Plan) -> Any:
    """A paper's own script, loaded once; None where the plan has runs."""
    script = plan.script
    if script is None:
        return None
    name = f"colonnade_reproduction_{script.parent.name}_{script.stem}"
    loaded = sys.modules.get(name)
    return (
        loaded
        if loaded is not None and loaded.__file__ == str(script)
        else module_at(script, name)
    )


def module_at(file: Path, name: str) -> Any:
    """A file outside the package, run as a module of that name."""
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
