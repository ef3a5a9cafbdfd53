"""`colonnade reproduce` and `colonnade bench`: figures for people and machines, and
code 6 when one is missed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.cli.called import Caller
from tests.reproduction.test_expected import plan_folder

from colonnade import benchmark
from colonnade.benchmark import Result
from colonnade.installation import project_url


@pytest.fixture
def plans(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "colonnade.reproduction.expected.folder",
        lambda: plan_folder(tmp_path / "plans"),
    )


def test_without_a_name_they_are_listed(call: Caller, plans: None) -> None:
    called = call("reproduce")
    assert called.code == 0
    assert called.out.splitlines() == [
        "tiny  digits can be learned",
        "impossible  nobody can be that good",
        "answer  a paper's own script",
    ]


def test_a_figure_that_holds_is_code_0(call: Caller, plans: None) -> None:
    told = call("reproduce", "tiny", "--quick", "--json")
    assert (told.code, told.err) == (0, "")
    (check,) = json.loads(told.out)
    assert check["holds"] is True
    assert check["by_seed"] == [check["mean"]]
    shown = call("reproduce", "tiny", "--quick")
    assert shown.code == 0
    for part in ("measured next to the paper", "97.12%", "holds"):
        assert part in shown.out
    assert "seed 0" in shown.err  # the bar


def test_measurements_and_curves_are_kept(
    call: Caller, plans: None, tmp_path: Path
) -> None:
    assert (
        call("reproduce", "tiny", "--quick", "--out", str(tmp_path / "kept")).code == 0
    )
    made = sorted(path.name for path in (tmp_path / "kept").iterdir())
    assert made == ["cells", "measured.json", "tiny.png", "tiny.svg"]
    (one,) = json.loads((tmp_path / "kept" / "measured.json").read_text())
    assert one["what"] == "SplitNN, epoch 2"


def test_a_figure_that_is_missed_is_code_6(call: Caller, plans: None) -> None:
    shown = call("reproduce", "impossible", "--quick")
    assert shown.code == 6
    assert "missed" in shown.out
    assert call("reproduce", "impossible", "--quick", "--json").code == 6


def test_all_of_them_are_run_and_one_that_misses_decides(
    call: Caller, plans: None, tmp_path: Path
) -> None:
    told = call(
        "reproduce", "--all", "--quick", "--json", "--out", str(tmp_path / "kept")
    )
    assert told.code == 6
    found = json.loads(told.out)
    assert {
        name: [one["holds"] for one in measured] for name, measured in found.items()
    } == {"tiny": [True], "impossible": [False], "answer": [False]}
    assert {path.name for path in (tmp_path / "kept").iterdir()} == set(found)
    shown = call("reproduce", "--all", "--quick")
    assert shown.code == 6
    assert "All reproductions" in shown.out
    assert "Give one or the other" in call.fails(2, "reproduce", "tiny", "--all")


def test_of_all_one_that_fails_leaves_the_others_alone(
    call: Caller, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = plan_folder(tmp_path / "plans")
    told = json.loads((folder / "paper" / "expected.json").read_text())
    (folder / "paper" / "expected.json").write_text(
        json.dumps({name: told[name] for name in ("answer", "tiny")})
    )
    (folder / "paper" / "answer.py").write_text(
        "from colonnade.errors import DataError\n\ndef run(study):\n    raise"
        " DataError('no table is there')\n"
    )
    monkeypatch.setattr("colonnade.reproduction.expected.folder", lambda: folder)
    called = call("reproduce", "--all", "--quick")
    assert (called.code, "no table is there" in called.err) == (2, True)
    assert "SplitNN, epoch 2" in called.out


def test_an_unknown_name_is_code_2(call: Caller, plans: None) -> None:
    assert "There is no reproduction 'tinny' (did you mean 'tiny'?)" in call.fails(
        2, "reproduce", "tinny"
    )
    message = call.fails(2, "bench", "croe")
    assert "There is no benchmark 'croe' (did you mean 'core'?)" in message


@pytest.mark.parametrize("command", ["bench", "reproduce"])
def test_outside_the_repository_they_are_told_where_studies_are(
    command: str, call: Caller, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("colonnade.reproduction.expected.REPOSITORY", tmp_path)
    for words in ([command], [command, "vim-mnist"]):
        message = call.fails(2, *words)
        assert "not part of the installed package" in message
        assert project_url("Source") in message


def test_bench_gives_tables_and_json(
    call: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = json.loads(call("bench", "core", "--quick", "--json").out)
    assert [set(line) for line in told] == [
        {"benchmark", "on", "what", "measured", "against", "target", "holds", "numbers"}
    ] * len(told)
    assert {"microseconds", "milliseconds"} == {
        key for line in told for key in line["numbers"]
    }
    results = [
        Result("a call", "3 µs", "2 µs", "≤ 5 µs", True),
        Result("a frame", "9 ms", "", "≤ 5 ms", False),
        Result("x", "1"),
    ]
    monkeypatch.setattr(benchmark, "run", lambda name, *, quick, say, share: results)
    shown = call("bench")
    assert shown.code == 0
    for part in ("a call", "3 µs", "reached", "missed"):
        assert part in shown.out
