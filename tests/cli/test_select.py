"""`colonnade select` on files: who is kept, what is written, and what is refused before anything is computed."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest
from tests.cli.called import Caller

from colonnade.cli.demo import write_tables

FAST = ("--queries", 48, "--tests", 8)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    write_tables(tmp_path)
    return tmp_path / "federation.toml"


def test_who_sells_noise_is_left_out_of_the_file_that_is_written(path: Path, call: Caller) -> None:
    fewer = path.with_name("fewer.toml")
    done = call("select", path, "--keep", 3, "--write", fewer, "--out", path.parent / "found", *FAST)
    assert done.code == 0, done.err
    for part in ("keep", "leave out", "Who learned what", "encryptions", f"colonnade run {fewer}"):
        assert part in done.out
    before, after = (tomllib.loads(one.read_text()) for one in (path, fewer))
    assert set(before["parties"]) - set(after["parties"]) == {"broker"}
    assert "# holds the labels and ten columns" in fewer.read_text()
    found = json.loads((path.parent / "found" / "selection.json").read_text())
    assert found["ranking"][-1] == "broker"
    assert sorted(found["chosen"]) == ["clinic", "lab_north", "lab_south"]
    assert (path.parent / "found" / "selection.png").stat().st_size > 5000


def test_the_label_owner_stays_whatever_its_columns_are_worth(path: Path, call: Caller) -> None:
    fewer = path.with_name("fewer.toml")
    done = call("select", path, "--keep", 1, "--method", "lasso", "--json", "--write", fewer)
    assert (done.code, done.err) == (0, "")
    (best,) = json.loads(done.out)["chosen"]
    assert set(tomllib.loads(fewer.read_text())["parties"]) == {"clinic", best}


def test_the_same_seed_selects_the_same(path: Path, call: Caller) -> None:
    first, again = (json.loads(call("select", path, "--keep", 2, "--json", *FAST).out) for _ in range(2))
    assert first["scores"] == again["scores"]


def test_what_cannot_be_done_is_refused_first(path: Path, call: Caller, tmp_path: Path) -> None:
    assert "at most 4" in call.fails(2, "select", path, "--keep", 5)
    assert "vf_ps" in call.fails(2, "select", path, "--keep", 2, "--method", "best")
    (tmp_path / "deep").mkdir()
    assert "relative to it" in call.fails(2, "select", path, "--keep", 2, "--write", tmp_path / "deep" / "x.toml")
    assert "folder that exists" in call.fails(2, "select", path, "--keep", 2, "--write", tmp_path / "no" / "x.toml")
    assert not list(tmp_path.glob("**/x.toml"))
