"""Cells run in any number of processes, in any number of sittings, and give what one
sitting gives."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest
from tests.reproduction.test_expected import plan_folder

from colonnade.errors import ConfigError
from colonnade.reproduction import Study, plan, plans, reproduce
from colonnade.reproduction.cells import KeptCells, cells

SCRIPT = """
import os, pathlib
import numpy as np
from colonnade.errors import ConfigError

def cells(plan):
    return [f"{cell}, seed {seed}" for cell in ("first", "second") for seed in plan.seeds] + ["picky", "broken"]

def run(study, cell):
    name, _, seed = cell.partition(", seed ")
    with open(study.plan.folder / "begun", "a") as begun:
        begun.write(cell + "\\n")
    if name == "broken":
        1 / 0
    if name == "picky":
        if not (study.plan.folder / "present").exists():
            raise ConfigError("picky needs a file")
        study.record("picky", 1.0, "")
        return
    study.record("process", float(os.getpid()), "")
    study.record(name, float(seed), "")
    study.record("never", float("nan"), "")
    study.curves.setdefault(name, []).append([(1, 0.5), (2, float("nan"))])
    study.arrays[cell] = np.full(3, int(seed))

def finish(study):
    if {"first", "second"} <= set(study.measured):
        study.record("both", study.measured["first"].mean + study.measured["second"].mean, "")

def draw(study, out):
    (out / "own.txt").write_text(str(sorted(study.arrays)))
"""


@pytest.fixture
def papers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = plan_folder(tmp_path / "plans")
    (folder / "paper" / "answer.py").write_text(SCRIPT)
    monkeypatch.setattr("colonnade.reproduction.expected.folder", lambda: folder)
    return folder / "paper"


def begun(papers: Path) -> list[str]:
    return (papers / "begun").read_text().splitlines()


@pytest.mark.long
def test_a_plans_runs_are_cells_and_can_be_made_in_two_sittings(
    papers: Path, tmp_path: Path
) -> None:
    assert cells(plan("tiny")) == [
        f"{run}, seed {seed}" for run in ("SplitNN", "FDML") for seed in (0, 1)
    ]
    at_once = reproduce("tiny", out=tmp_path)
    (tmp_path / "cells" / "SplitNN_seed_1.json").unlink()
    again = reproduce("tiny", out=tmp_path)
    assert again.recorded() == at_once.recorded()
    assert again.measured["SplitNN, epoch 2"].figure.paper == 0.9712


@pytest.mark.long
def test_cells_run_in_other_processes_and_a_failed_one_leaves_them_alone(
    papers: Path, tmp_path: Path
) -> None:
    said: list[str] = []
    study = reproduce("answer", jobs=2, out=tmp_path / "out", say=said.append)
    assert os.getpid() not in study.measured["process"].by_seed
    assert study.measured["first"].by_seed == [0.0, 2.0]  # in the plan's order
    assert study.measured["both"].by_seed == [2.0]
    assert study.curves["second"][0][0] == (1, 0.5)
    assert np.isnan(study.curves["second"][1][1][1])
    assert study.measured["never"].to_json()["by_seed"] == [None] * 4
    assert study.arrays["second, seed 2"].tolist() == [2, 2, 2]
    assert str(study.failed["picky"]) == "picky needs a file"
    assert "ZeroDivisionError" in str(study.failed["broken"])
    assert len(said) == 6
    assert "first, seed 0" in (tmp_path / "out" / "own.txt").read_text()


@pytest.mark.parametrize("name", plans())
def test_every_cell_of_the_repository_has_a_file_of_its_own(name: str) -> None:
    """A name's signs become one sign in its file's name."""
    for one in (plan(name), plan(name).shortened()):
        paths = [KeptCells(one, Path()).path(cell) for cell in cells(one)]
        assert len(set(paths)) == len(paths)


def test_what_was_finished_is_not_run_again(papers: Path, tmp_path: Path) -> None:
    first = reproduce("answer", out=tmp_path)
    assert list(first.failed) == ["picky", "broken"]
    (papers / "present").touch()
    second = reproduce("answer", out=tmp_path)
    assert list(second.failed) == ["broken"]
    assert begun(papers) == [*cells(plan("answer")), "picky", "broken"]
    assert second.measured["process"].by_seed == first.measured["process"].by_seed
    assert {
        one["what"] for one in json.loads((tmp_path / "measured.json").read_text())
    } == set(second.measured)


def test_what_was_cut_off_is_kept_and_counts_only_when_nothing_is_run(
    papers: Path, tmp_path: Path
) -> None:
    chosen = plan("answer")
    kept = KeptCells(chosen, tmp_path / "cells")
    study = Study(chosen, keep=lambda study: kept.write("first, seed 0", study, False))
    study.record("first", 7.0, "")
    assert kept.read(cells(chosen), partly=False) == {}
    kept.write("second, seed 0", Study(chosen), True)
    together = reproduce("answer", jobs=0, out=tmp_path)
    assert together.measured["first"].by_seed == [7.0]
    assert not (papers / "begun").exists()
    assert reproduce("answer", out=tmp_path).measured["first"].by_seed == [0.0, 2.0]
    assert "second, seed 0" not in begun(papers)


def test_cells_of_another_version_are_refused(papers: Path, tmp_path: Path) -> None:
    reproduce("answer", quick=True, out=tmp_path)
    assert begun(papers) == ["first, seed 5", "second, seed 5", "picky", "broken"]
    with pytest.raises(
        ConfigError, match=r"'quick': False.* is to be run. Choose another folder"
    ):
        reproduce("answer", out=tmp_path)


def test_when_every_cell_fails_nothing_is_measured_and_why_is_told(
    papers: Path, tmp_path: Path
) -> None:
    (papers / "answer.py").write_text(
        "def run(study):\n    raise ValueError('no luck')\n"
    )
    study = reproduce("answer", out=tmp_path / "out")
    assert (study.measured, str(study.failed["answer"])) == ({}, "no luck")
    assert not (tmp_path / "out").exists()


def test_cells_of_a_pattern_are_run_and_join_those_that_were(
    papers: Path, tmp_path: Path
) -> None:
    reproduce("answer", out=tmp_path, only="*, seed 2")
    study = reproduce("answer", out=tmp_path, only="first*")
    assert begun(papers) == ["first, seed 2", "second, seed 2", "first, seed 0"]
    assert (study.measured["first"].by_seed, study.measured["second"].by_seed) == (
        [0.0, 2.0],
        [2.0],
    )
    with pytest.raises(
        ConfigError,
        match="No cell of answer is named 'third'; they are named 'first, seed 0'",
    ):
        reproduce("answer", only="third")
