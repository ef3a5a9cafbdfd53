"""How long a command takes before it does anything: CPU seconds of a process, the least
of a few, in turns.

Beside each there is what importing torch alone takes: nothing that computes can take
less.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from colonnade.benchmark import Result

ANSWERS = 0.4
RUNS = 2.0
"""CPU seconds at most: for a word of help or an error, and for a run beside its
training."""
FEDERATION = """\
[train]
epochs = 1
[parties.clinic]
table = "clinic.csv"
label = "ill"
[parties.lab]
table = "lab.csv"
"""
WRONG = FEDERATION.replace("epochs = 1", "epoch = 1")


def run(quick: bool) -> list[Result]:
    with tempfile.TemporaryDirectory(prefix="colonnade-startup-") as name:
        folder = Path(name)
        _write(folder)
        out = str(folder / "run")
        commands: dict[str, list[str]] = {
            "torch": ["-c", "import torch"],
            "--help": ["-m", "colonnade", "--help"],
            "algorithms": ["-m", "colonnade", "algorithms"],
            "an error in a file": [
                "-m",
                "colonnade",
                "run",
                str(folder / "wrong.toml"),
            ],
            "run": [
                "-W",
                "ignore",
                "-m",
                "colonnade",
                "run",
                str(folder / "good.toml"),
                "--quiet",
                "--out",
                out,
            ],
        }
        best = dict.fromkeys(commands, float("inf"))
        for turn in range(2 if quick else 5):
            for what, words in commands.items():
                best[what] = min(
                    best[what],
                    _cpu([*words[:-1], f"{out}{turn}"] if what == "run" else words),
                )
    against = f"importing torch alone: {best['torch']:.2f} CPU s"
    told = [
        _result(what, best[what], "", ANSWERS)
        for what in ("--help", "algorithms", "an error in a file")
    ]
    return [*told, _result("run: 500 rows, one epoch", best["run"], against, RUNS)]


def _result(what: str, seconds: float, against: str, most: float) -> Result:
    return Result(
        what,
        f"{seconds:.2f} CPU s",
        against,
        f"≤ {most} s",
        seconds <= most,
        {"seconds": seconds},
    )


def _cpu(words: Sequence[str]) -> float:
    """What a process of its own spends."""
    environment = dict(os.environ) | {"OMP_NUM_THREADS": "1"}
    nowhere = subprocess.DEVNULL
    process = subprocess.Popen(
        [sys.executable, *words], env=environment, stdout=nowhere, stderr=nowhere
    )
    _, _, used = os.wait4(process.pid, 0)
    return used.ru_utime + used.ru_stime


def _write(folder: Path) -> None:
    draw = np.random.default_rng(0)
    ids = np.arange(500)
    x = draw.normal(size=(500, 6))
    clinic = pd.DataFrame(
        {"id": ids, "a": x[:, 0], "b": x[:, 1], "ill": (x.sum(1) > 0).astype(int)}
    )
    lab = pd.DataFrame({"id": ids, **{f"c{at}": x[:, at] for at in range(2, 6)}})
    clinic.to_csv(folder / "clinic.csv", index=False)
    lab.to_csv(folder / "lab.csv", index=False)
    (folder / "good.toml").write_text(FEDERATION)
    (folder / "wrong.toml").write_text(WRONG)
