"""`colonnade demo`: a minute that shows the whole, and touches nothing that is not its
own."""

from __future__ import annotations

import re
import sys
import time
import tomllib
from pathlib import Path

import pandas as pd
import pytest
from tests.cli.called import Caller

from colonnade.cli.demo import SPLITS, _activate, write_tables
from colonnade.errors import ConfigError


@pytest.mark.parametrize("splits", [1, pytest.param(SPLITS, marks=pytest.mark.long)])
def test_the_demo_shows_three_accuracies_what_travelled_and_what_was_learned(
    splits: int, call: Caller, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(write_tables.__globals__, "SPLITS", splits)
    start = time.process_time()
    called = call("demo", "--out", tmp_path / "demo", "--quiet")
    assert time.process_time() - start < 60
    assert (called.code, called.err) == (0, "")
    found = {
        name: float(score)
        for name, score in re.findall(
            r"│ (the clinic alone|together, nothing moved|all tables in one"
            r" place)\s+│\s+([\d.]+)",
            called.out,
        )
    }
    assert len(found) == 3
    assert min(found.values()) > 0.8
    assert found["together, nothing moved"] > 0.9
    assert (
        "broker"
        not in tomllib.loads((tmp_path / "demo" / "chosen.toml").read_text())["parties"]
    )
    for part in (
        "rows are common to all 4 parties",
        "as good as lab_north",
        "What travelled",
        "What each party learned about the others",
        "lab_north",
        "embedding",
        f"colonnade ledger {tmp_path}/demo/run",
        f"colonnade explain {tmp_path}/demo/run",
        f"colonnade select {tmp_path}/demo/federation.toml --keep 3",
    ):
        assert part in called.out
    assert (
        "crossed to find the patients that these 3 share: step 1 once more"
        in " ".join(called.out.split())
    )
    page = tmp_path / "demo" / "run" / "report.html"
    assert called.out.rstrip().endswith(str(page))
    assert 'id="importance"' in page.read_text()
    assert 'id="selection"' in page.read_text()
    assert f"{found['the clinic alone']:.4f}" in page.read_text()
    assert {path.name for path in (tmp_path / "demo").iterdir()} == {
        "clinic.csv",
        "lab_north.csv",
        "lab_south.csv",
        "broker.csv",
        "federation.toml",
        "chosen.toml",
        "shared.csv",
        "run",
    }

    rows = tmp_path / "demo" / "shared.csv"  # the line that the demo tells to try next
    predicted = call("predict", tmp_path / "demo" / "run", "--rows", rows)
    assert predicted.code == 0
    assert 430 < len(predicted.out.splitlines()) < 480


@pytest.mark.long
def test_the_demo_comes_out_the_same_again(
    call: Caller, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(write_tables.__globals__, "SPLITS", 1)
    called, again = (
        call("demo", "--out", tmp_path / "demo", "--quiet") for _ in range(2)
    )
    assert (called.code, again.code) == (0, 0)
    runs = [one.out.partition("What travelled")[2] for one in (called, again)]
    assert runs[0] == runs[1] != ""


def test_where_its_commands_are_not_found_the_demo_says_how_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "prefix", str(tmp_path / ".venv"))
    monkeypatch.setenv("PATH", "")
    monkeypatch.chdir(tmp_path)
    assert _activate() == "", "there is no such environment"
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    (tmp_path / ".venv" / "bin" / "activate").touch()
    assert _activate() == "  source .venv/bin/activate\n"
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    assert _activate() == f"  source {tmp_path}/.venv/bin/activate\n"
    (tmp_path / "colonnade").touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert _activate() == ""


def test_an_earlier_demo_is_replaced(tmp_path: Path) -> None:
    first = write_tables(tmp_path / "demo")
    (tmp_path / "demo" / "run").mkdir()
    (tmp_path / "demo" / "federation.toml").write_text("changed")
    second = write_tables(tmp_path / "demo")
    assert not (tmp_path / "demo" / "run").exists()
    assert (
        (tmp_path / "demo" / "federation.toml")
        .read_text()
        .startswith("# Four organisations")
    )
    for name in first:
        pd.testing.assert_frame_equal(first[name], second[name])


def test_the_tables_share_most_patients_and_no_column(tmp_path: Path) -> None:
    made = write_tables(tmp_path)
    columns = [set(frame.columns) - {"patient"} for frame in made.values()]
    assert [len(names) for names in columns] == [11, 10, 10, 10]
    assert len(set.union(*columns)) == 41
    patients = [set(frame["patient"]) for frame in made.values()]
    assert all(len(held) == 529 for held in patients)
    assert 400 < len(set.intersection(*patients)) < 450


@pytest.mark.parametrize("kind", ["folder", "file"])
def test_what_is_not_a_demo_is_left_alone(
    kind: str, call: Caller, tmp_path: Path
) -> None:
    mine = tmp_path / "thesis.txt" if kind == "folder" else tmp_path / "demo"
    mine.write_text("mine")
    out = tmp_path if kind == "folder" else mine
    with pytest.raises(ConfigError, match="holds something that is not a demo"):
        write_tables(out)
    assert "Choose another place with --out" in call.fails(2, "demo", "--out", out)
    assert [path.read_text() for path in tmp_path.iterdir()] == ["mine"]
    assert "The demo cannot be written to" in call.fails(
        2, "demo", "--out", mine / "deeper"
    )
