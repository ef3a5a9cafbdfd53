"""Organisations killed with SIGKILL while some have saved and others not: the run
resumes, bit-equal to an undisturbed one, and what each wrote down about it is the same.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.conformance.toy import assert_bit_equal
from tests.faults.killing_sites import NAMES
from tests.federation.small import frames, ledgers, quick, records
from tests.federation.small_sites import folders

from colonnade.core import files
from colonnade.runs.run_directory import RunDirectory

ROOT = Path(__file__).parents[2]
FIRST = 5
"""Of a run's file operations, the first that it is killed before."""


@pytest.fixture(scope="module", params=[36, pytest.param(12, marks=pytest.mark.long)])
def step(request: pytest.FixtureRequest) -> int:
    """How many operations later the next kill is."""
    step: int = request.param
    return step


@pytest.fixture(scope="module")
def base(step: int, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("killed")
    given = frames()
    given["bank"] = given["lab"].rename(columns={"iron": "income", "zinc": "loans"})
    folders(folder, given, quick(train={"epochs": 2, "early_stop": False}))
    return folder


@pytest.fixture(scope="module")
def told(base: Path, step: int) -> dict[str, Any]:
    command = [
        sys.executable,
        "-m",
        "tests.faults.killing_sites",
        str(base),
        str(FIRST),
        str(step),
    ]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_they_were_killed_with_different_checkpoints(
    step: int, told: dict[str, Any]
) -> None:
    assert sum(one["killed"] for one in told["found"]) > 150 / step
    newest = [
        {max(kept, default=0) for kept in one["kept"].values()} for one in told["found"]
    ]
    assert sum(len(each) > 1 for each in newest) >= 48 / step, (
        "some had saved, and others not yet"
    )
    assert all(max(each) - min(each) <= 1 for each in newest)


@pytest.mark.parametrize("name", NAMES)
def test_every_organisation_ends_as_if_nothing_had_happened(
    name: str, base: Path, told: dict[str, Any]
) -> None:
    whole = base / "whole" / name / "runs" / "run"
    for number in range(len(told["found"])):
        run = base / str(number) / name / "runs" / "run"
        assert_bit_equal(_saved(whole, name), _saved(run, name))
        assert ledgers(run) == ledgers(whole)
        assert _summary(run) == _summary(whole)
        if name == "clinic":
            assert records(run) == records(whole)
        kept = [
            path.name
            for path in (run / "parties" / name).iterdir()
            if "checkpoint-" in path.name
        ]
        assert len(kept) == 2
        assert not any(one.startswith(".") for one in kept)


def _saved(run: Path, name: str) -> Any:
    mark = json.loads((run / "checkpoint.json").read_text())
    return files.read_state(run / "parties" / name / f"checkpoint-{mark['number']:06d}")


def _summary(run: Path) -> dict[str, Any]:
    found = RunDirectory(run).summary() or {}
    return {key: value for key, value in found.items() if key != "seconds"}
