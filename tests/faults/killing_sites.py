"""Runs organisations with a folder each again and again, each time killed with SIGKILL
at a point given.

    python -m tests.faults.killing_sites BASE FIRST STEP

BASE has a folder per organisation (`tests.federation.small_sites`). BASE/whole is an
undisturbed copy; BASE/0, BASE/1, ... are killed before the file operation FIRST, FIRST
+ STEP, ... of the run, and resumed. All sites are in one process, and each saves
itself: so every kill leaves another mixture of who has saved and who has not. What is
printed: at which operations, and which checkpoints each organisation had then. Every
run is in a child: a process that has trained in threads is not forked.
"""

from __future__ import annotations

import faulthandler
import gc
import json
import os
import shutil
import sys
from pathlib import Path

import torch
from tests.faults.killing import Operations, killed
from tests.federation.small_sites import sites
from tests.forking import fork

from colonnade.federation import Federation
from colonnade.runs.run_directory import RunDirectory
from colonnade.sites.driving import drive
from colonnade.sites.participant import numbers

NAMES = ("clinic", "lab", "bank")


def start(base: Path, *, last: int | None = None, resume: bool = False) -> int:
    """A child that runs; it leaves behind how many file operations it made."""
    child = fork()
    if child:
        return child
    code = 1
    faulthandler.dump_traceback_later(100, exit=True)
    try:
        operations = Operations(base, last)
        drive(sites(base, NAMES)["clinic"], "run", resume=resume)
        (base.parent / f"{base.name}.operations").write_text(str(operations.seen))
        code = 0
    except BaseException as error:
        print(f"{base.name}: {error!r}", file=sys.stderr, flush=True)
    finally:
        os._exit(code)


def copied(base: Path, name: str) -> Path:
    for party in NAMES:
        shutil.copytree(base / party, base / name / party)
    return base / name


def main(base: Path, first: int, step: int) -> None:
    torch.set_num_threads(1)
    # so that a child has all imported
    Federation.from_toml(base / "all" / "federation.toml").fit(base / "here")
    gc.freeze()  # so that a child does not copy what it only looks at
    if killed(start(copied(base, "whole"))):
        raise SystemExit("nobody killed this one")
    operations = int((base / "whole.operations").read_text())
    found = []
    for number, last in enumerate(range(first, operations, step)):
        folder = copied(base, str(number))
        was_killed = killed(start(folder, last=last))
        kept = {
            name: numbers(RunDirectory(folder / name / "runs" / "run"))
            for name in NAMES
        }
        found.append({"operation": last, "killed": was_killed, "kept": kept})
        if killed(start(folder, resume=True)):
            raise SystemExit("nobody killed this one")
    print(json.dumps({"operations": operations, "found": found}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
