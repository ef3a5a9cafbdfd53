"""Runs `colonnade run` again and again, each in a process of its own that is killed
with SIGKILL at a point given.

    python -m tests.faults.killing '{"FEDERATION.toml": ["OUT", "POINT", ...], ...}'

POINT is a share of the run: of the file operations that it makes inside the run
directory (0.25f: the process is killed just before the operation that is a quarter
through), or of its seconds (0.25s). OUT/whole is an undisturbed run; OUT/0, OUT/1, ...
are each killed at their point and resumed until they are done. What is printed, a line
for each file: how often each was killed. The first run is made here, so that a forked
child has everything imported and warm.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import typer.testing
from tests.forking import fork

from colonnade.cli import app

OPERATIONS = (
    "open",
    "os.rename",
    "os.mkdir",
    "os.rmdir",
    "os.remove",
    "os.listdir",
    "os.scandir",
)


class Operations:
    """Counts what this process does to files below a folder; before the one given, it
    is dead."""

    def __init__(self, folder: Path, last: int | None = None) -> None:
        self.folder = str(folder)
        self.last = last
        self.seen = 0
        sys.addaudithook(self)

    def __call__(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event in OPERATIONS and str(arguments[0]).startswith(self.folder):
            self.seen += 1
            if self.seen == self.last:
                os.kill(os.getpid(), signal.SIGKILL)


def run(file: Path, out: Path) -> None:
    """Start the run, or resume it where there is one."""
    resume = ["--resume"] if (out / "federation.toml").exists() else []
    result = typer.testing.CliRunner().invoke(
        app, ["run", str(file), "--out", str(out), "--quiet", *resume]
    )
    if result.exit_code:
        raise SystemExit(
            f"{out.name} {resume} ended with {result.exit_code}: {result.output}"
            f" {result.exception!r}"
        )


def start(file: Path, out: Path, last: int | None = None) -> int:
    """A child that runs."""
    child = fork()
    if child:
        return child
    code = 1
    try:
        if last is not None:
            Operations(out, last)
        run(file, out)
        code = 0
    except BaseException as error:
        print(error, file=sys.stderr, flush=True)
    finally:
        os._exit(code)


def killed(child: int) -> bool:
    """Whether it was, when it ended; otherwise it must have ended well."""
    _, status = os.waitpid(child, 0)
    if status and not (
        os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
    ):
        raise SystemExit(f"a run ended with status {status}")
    return status != 0


def main(file: Path, out: Path, points: list[str]) -> None:
    run(file, out / "warm up")
    operations = Operations(out / "whole")
    began = time.perf_counter()
    run(file, out / "whole")
    seconds = time.perf_counter() - began
    kills = []
    gc.freeze()  # so that a child does not copy what it only looks at
    for number, point in enumerate(points):
        share = float(point[:-1])
        folder = out / str(number)
        if point.endswith("f"):
            child = start(file, folder, last=1 + int(share * operations.seen))
        else:
            child = start(file, folder)
            time.sleep(share * seconds)
            os.kill(child, signal.SIGKILL)
        kills.append(killed(child))
        if killed(start(file, folder)):
            raise SystemExit("nobody killed this one")
    print(
        json.dumps({"operations": operations.seen, "seconds": seconds, "kills": kills})
    )


if __name__ == "__main__":
    for file, (out, *points) in json.loads(sys.argv[1]).items():
        main(Path(file), Path(out), points)
