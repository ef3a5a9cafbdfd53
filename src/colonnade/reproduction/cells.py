"""A study in cells: named parts that need nothing of each other, so that each can run in a process of its own.

Of a plan with `runs`, a cell is one run with one seed. A script offers

    run(study)                       all of it, in one cell; or

    cells(plan) -> list[str]         the cells, in the order in which they begin: the longest first
    run(study, cell)                 one of them
    finish(study)                    optional: what follows from all of them together

    draw(study, out) -> list[Path]   optional: pictures of its own, instead of learning curves

With a folder, what a cell has measured is in `cells/` there after everything it records, and a cell that was finished
is not run again: a study that was cut off goes on where it was, on another machine too.
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

Found = tuple[dict[str, Any], dict[str, NDArray[Any]]]
"""What a cell measured, and its arrays."""
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
    """Run every cell of that pattern that `out` does not hold yet, in that many processes, and put all together. With
    `out`, `measured.json` and the pictures are made there. A cell that fails leaves the others alone: see
    `study.failed`. With no jobs nothing is run, and what cells that were cut off had measured is taken as it is."""
    chosen = plan(name).shortened() if quick else plan(name)
    names, study = cells(chosen), Study(chosen, watch)
    kept = None if out is None else Kept(chosen, out / "cells")
    found = {} if kept is None else kept.read(names, partly=jobs == 0)
    wanted = matching(names, only, name)
    todo = [cell for cell in wanted if cell not in found] if jobs else []
    for cell, outcome in _outcomes(chosen, todo, watch, jobs, kept):
        if isinstance(outcome, Exception):
            study.failed[cell] = outcome
        else:
            found[cell] = outcome
        if say is not None:
            say(f"{len(found)} of {len(names)} cells, last {cell}{' (failed)' if cell in study.failed else ''}")
    for cell in names:  # in the plan's order, so that seeds are in theirs
        if cell in found:
            study.add(*found[cell], cell)
    if found and (finish := getattr(script_of(chosen), "finish", None)) is not None:
        finish(study)
    if found and out is not None:
        _write(study, out)
    return study


def cells(plan: Plan) -> list[str]:
    """The names of a plan's cells."""
    if plan.script is None:
        return [f"{title}, seed {seed}" for title in plan.runs for seed in plan.seeds]
    listed = getattr(script_of(plan), "cells", None)
    return [plan.name] if listed is None else list(listed(plan))


def matching(cells: Sequence[str], only: str, name: str) -> list[str]:
    """Those of that pattern, of which there must be one."""
    if found := [cell for cell in cells if fnmatchcase(cell, only)]:
        return found
    some = ", ".join(map(repr, cells[:3]))
    raise ConfigError(f"No cell of {name} is named {only!r}; they are named {some} and so on.")


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
class Kept:
    """The cells of a study in a folder: a JSON file each and, where there are arrays, an npz file beside it."""

    plan: Plan
    folder: Path

    @property
    def version(self) -> dict[str, Any]:
        """Cells of another version do not belong together."""
        return {"quick": self.plan.short, "seeds": list(self.plan.seeds), "epochs": list(self.plan.epochs)}

    def path(self, cell: str) -> Path:
        return self.folder / f"{re.sub(r'[^A-Za-z0-9.]+', '_', cell)}.json"

    def write(self, cell: str, study: Study, finished: bool) -> None:
        path = self.path(cell)
        path.parent.mkdir(parents=True, exist_ok=True)
        if study.arrays:
            with written_whole(path.with_suffix(".npz")) as stream:
                np.savez_compressed(stream, **study.arrays)  # type: ignore[arg-type]
        about = {"cell": cell, "plan": self.plan.name, "version": self.version, "finished": finished}
        write_text(path, json.dumps(about | study.found()) + "\n")

    def read(self, cells: Sequence[str], partly: bool) -> dict[str, Found]:
        """Those that are there and finished, or also those that were cut off."""
        found: dict[str, Found] = {}
        for path in sorted(self.folder.glob("*.json")):
            told = json.loads(path.read_text(encoding="utf-8"))
            if (told["plan"], told["version"]) != (self.plan.name, self.version):
                raise ConfigError(
                    f"{path} is of {told['plan']} {told['version']}, and {self.plan.name} {self.version} is to be run. "
                    "Choose another folder, or delete that one."
                )
            arrays = path.with_suffix(".npz")
            if told["cell"] in cells and (told["finished"] or partly):
                found[told["cell"]] = told, read_npz(arrays) if arrays.exists() else {}
        return found


def _outcomes(
    plan: Plan, todo: Sequence[str], watch: Watch | None, jobs: int, kept: Kept | None
) -> Iterator[tuple[str, Found | Exception]]:
    """Each cell and what it found, or why it failed, as they end."""
    if jobs == 1 or len(todo) < 2:
        for cell in todo:
            try:
                yield cell, _one(plan, cell, watch, kept)
            except Exception as error:
                yield cell, error
        return
    spawned = multiprocessing.get_context("spawn")  # a forked process cannot use CUDA
    threads = max(1, (os.cpu_count() or 1) // jobs)
    with ProcessPoolExecutor(min(jobs, len(todo)), spawned, torch.set_num_threads, (threads,)) as pool:
        running = {pool.submit(_told, plan, cell, kept): cell for cell in todo}
        for done in as_completed(running):
            try:
                outcome = done.result()
            except BrokenProcessPool as error:  # a process was killed, and with it the others
                outcome = str(error)
            yield running[done], ColonnadeError(outcome) if isinstance(outcome, str) else outcome


def _told(plan: Plan, cell: str, kept: Kept | None) -> Found | str:
    """In another process: why it failed is said in words, since not every error can travel."""
    try:
        return _one(plan, cell, None, kept)
    except ColonnadeError as error:
        return str(error)
    except Exception:
        return traceback.format_exc()


def _one(plan: Plan, cell: str, watch: Watch | None, kept: Kept | None) -> Found:
    study = Study(plan, watch, None if kept is None else lambda study: kept.write(cell, study, False))
    run(study, cell)
    if kept is not None:
        kept.write(cell, study, True)
    return study.found(), study.arrays


def _write(study: Study, out: Path) -> None:
    out.mkdir(parents=True, exist_ok=True)
    told = json.dumps([one.to_json() for one in study.measured.values()], indent=2)
    write_text(out / "measured.json", told + "\n")
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
    known = sys.modules.get(name)
    return known if known is not None and known.__file__ == str(script) else module_at(script, name)


def module_at(file: Path, name: str) -> Any:
    """A file outside the package, run as a module of that name."""
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
