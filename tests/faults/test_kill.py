"""A run killed with SIGKILL at any point resumes, and ends bit-equal to one that was left alone."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.conformance.toy import assert_bit_equal
from tests.federation.small import ledgers, quick, records, write

from colonnade.core import checkpoint

ROOT = Path(__file__).parents[2]
EACH = 13
ALGORITHMS = ("vimadmm", "splitnn")


def points(seed: int) -> list[str]:
    """Where to kill: mostly at file operations, since that is where something could be left half done."""
    chance = random.Random(seed)
    return [f"{chance.random():.4f}{'f' if number % 4 else 's'}" for number in range(EACH)]


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, dict[str, Any]]]:
    """By algorithm a folder of runs that were killed once each and resumed, and what was told of them."""
    folder = tmp_path_factory.mktemp("killed")
    going = {}
    for seed, name in enumerate(ALGORITHMS):
        settings = {**quick(train={"epochs": 3, "early_stop": False}), "algorithm": {"name": name}}
        file = write(folder / name, settings=settings)
        command = [sys.executable, "-m", "tests.faults.killing", file, folder / name / "runs", *points(seed)]
        going[name] = subprocess.Popen(
            [str(word) for word in command], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
    found = {}
    for name, process in going.items():
        out, problems = process.communicate(timeout=300)
        assert process.returncode == 0, problems
        found[name] = folder / name / "runs", json.loads(out.splitlines()[-1])
    return found


def saved(run: Path) -> dict[str, Any]:
    """All that the last checkpoint holds, numbers of receipts and places in ledgers included."""
    mark = json.loads((run / "checkpoint.json").read_text())
    folders = sorted((run / "parties").iterdir())
    return {one.name: checkpoint.read(one / f"checkpoint-{mark['number']:06d}") for one in folders}


def summary(run: Path) -> dict[str, Any]:
    return {key: value for key, value in json.loads((run / "summary.json").read_text()).items() if key != "seconds"}


@pytest.mark.parametrize("name", ALGORITHMS)
def test_the_runs_were_killed_while_they_ran(name: str, killed: Any) -> None:
    _, told = killed[name]
    assert told["operations"] > 80
    by_file = [
        was for was, point in zip(told["kills"], points(ALGORITHMS.index(name)), strict=True) if point[-1] == "f"
    ]
    assert all(by_file)
    assert sum(told["kills"]) >= EACH - 1  # seconds are only a guess of where the run is


def test_there_were_enough_of_them(killed: Any) -> None:
    assert sum(sum(told["kills"]) for _, told in killed.values()) >= 25


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_killed_run_ends_as_if_nothing_had_happened(name: str, killed: Any) -> None:
    folder, _ = killed[name]
    whole = folder / "whole"
    for number in range(EACH):
        run = folder / str(number)
        assert_bit_equal(saved(whole), saved(run))
        assert records(run) == records(whole)
        assert summary(run) == summary(whole)
        assert ledgers(run) == ledgers(whole)
        left = [path.name for path in run.rglob("*") if path.name.startswith(".") and "checkpoint-" in path.name]
        assert not left
