"""A run killed with SIGKILL at any point resumes, and ends bit-equal to one that was
left alone."""

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

from colonnade.core import files
from colonnade.runs.run_directory import RunDirectory

ROOT = Path(__file__).parents[2]
ALGORITHMS = ("vimadmm", "splitnn")


def points(seed: int, count: int) -> list[str]:
    """Where to kill: mostly at file operations, since that is where something could be
    left half done."""
    chance = random.Random(seed)
    return [
        f"{chance.random():.4f}{'f' if number % 4 else 's'}" for number in range(count)
    ]


@pytest.fixture(scope="module", params=[4, pytest.param(13, marks=pytest.mark.long)])
def times(request: pytest.FixtureRequest) -> int:
    """How many runs of each algorithm are killed."""
    count: int = request.param
    return count


@pytest.fixture(scope="module")
def killed(
    times: int, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, tuple[Path, dict[str, Any]]]:
    """By algorithm a folder of runs that were killed once each and resumed, and what
    was told of them."""
    folder = tmp_path_factory.mktemp("killed")
    asked = {}
    for seed, name in enumerate(ALGORITHMS):
        settings = {
            **quick(train={"epochs": 3, "early_stop": False}),
            "algorithm": {"name": name},
        }
        asked[str(write(folder / name, settings=settings))] = [
            str(folder / name / "runs"),
            *points(seed, times),
        ]
    command = [sys.executable, "-m", "tests.faults.killing", json.dumps(asked)]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stderr
    told = done.stdout.splitlines()[-len(ALGORITHMS) :]
    return {
        name: (folder / name / "runs", json.loads(line))
        for name, line in zip(ALGORITHMS, told, strict=True)
    }


def saved(run: Path) -> dict[str, Any]:
    """All that the last checkpoint holds, numbers of receipts and places in ledgers
    included."""
    mark = json.loads((run / "checkpoint.json").read_text())
    folders = sorted((run / "parties").iterdir())
    return {
        one.name: files.read_state(one / f"checkpoint-{mark['number']:06d}")
        for one in folders
    }


def summary(run: Path) -> dict[str, Any]:
    found = RunDirectory(run).summary() or {}
    return {key: value for key, value in found.items() if key != "seconds"}


@pytest.mark.parametrize("name", ALGORITHMS)
def test_the_runs_were_killed_while_they_ran(
    name: str, times: int, killed: Any
) -> None:
    _, told = killed[name]
    assert told["operations"] > 80
    planned = points(ALGORITHMS.index(name), times)
    assert all(
        was
        for was, point in zip(told["kills"], planned, strict=True)
        if point[-1] == "f"
    )
    # seconds are only a guess of where the run is
    assert sum(told["kills"]) >= times - 1


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_killed_run_ends_as_if_nothing_had_happened(
    name: str, times: int, killed: Any
) -> None:
    folder, _ = killed[name]
    whole = folder / "whole"
    for number in range(times):
        run = folder / str(number)
        assert_bit_equal(saved(whole), saved(run))
        assert records(run) == records(whole)
        assert summary(run) == summary(whole)
        assert ledgers(run) == ledgers(whole)
        left = [
            path.name
            for path in run.rglob("*")
            if path.name.startswith(".") and "checkpoint-" in path.name
        ]
        assert not left
