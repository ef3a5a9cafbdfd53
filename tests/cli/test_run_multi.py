"""`colonnade run`, `predict`, `privacy` and the rest where several organisations hold
labels."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.cli.called import Caller
from tests.federation.small import checkpoint_of, equal, records
from tests.federation.small_multi import GAUSSIAN, frames, quick, write

from colonnade.federation import Federation, load


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with tables and a finished run; tests leave it as it is."""
    folder = tmp_path_factory.mktemp("finished")
    Federation.from_toml(write(folder)).fit(folder / "run")
    return folder


def test_run_shows_every_label_owner(
    call: Caller, finished: Path, tmp_path: Path
) -> None:
    called = call("run", finished / "federation.toml", "--out", tmp_path / "run")
    assert called.code == 0, called
    parts = (
        "How good the joint model is",
        "By label owner: accuracy",
        "north",
        "never",
        "no data",
        "multi_vfl: 3 rounds",
    )
    for part in parts:
        assert part in called.out
    assert equal(checkpoint_of(tmp_path / "run"), checkpoint_of(finished / "run"))
    told = call(
        "run",
        finished / "federation.toml",
        "--out",
        tmp_path / "json",
        "--json",
        "--seed",
        4,
    )
    assert json.loads(told.out)["seed"] == 4
    assert told.err == ""


def test_resume_trains_the_rounds_that_are_left(call: Caller, tmp_path: Path) -> None:
    path = write(tmp_path, quick(train={"epochs": 1}))
    assert call("run", path, "--out", tmp_path / "run", "--quiet").code == 0
    write(tmp_path)
    assert call("run", path, "--out", tmp_path / "run", "--resume", "--quiet").code == 0
    assert call("run", path, "--out", tmp_path / "whole", "--quiet").code == 0
    assert [record["epoch"] for record in records(tmp_path / "run")] == [1, 2, 3]
    assert (
        records(tmp_path / "run")[-1]["losses"]
        == records(tmp_path / "whole")[-1]["losses"]
    )


def test_predict_as_any_label_owner_with_either_model(
    call: Caller, finished: Path, tmp_path: Path
) -> None:
    frames()["south"][["patient"]].iloc[:4].to_csv(tmp_path / "rows.csv", index=False)
    rows = "predict", finished / "run", "--rows", tmp_path / "rows.csv", "--json"
    told = {
        (owner, model): json.loads(call(*rows, "--as", owner, "--model", model).out)
        for owner in ("north", "south")
        for model in ("aggregated", "own")
    }
    # new to north, and the model is everybody's
    assert told["north", "aggregated"] == told["south", "aggregated"]
    assert told["north", "own"] != told["south", "own"] != told["south", "aggregated"]
    assert json.loads(call(*rows).out) == told["north", "aggregated"]
    loaded = load(finished / "run")
    ids = [one["patient"] for one in told["south", "own"]]
    expected = loaded.predict(ids, owner="south", model="own").scores[:, 0]
    assert [one["score_ill"] for one in told["south", "own"]] == pytest.approx(
        expected, abs=1e-6
    )
    assert "'nort' is no label owner here" in call.fails(2, *rows, "--as", "nort")
    assert "called 'mine': it predicts by one of aggregated, own" in call.fails(
        2, *rows, "--model", "mine"
    )


def test_new_rows_come_from_tables_named_on_the_line(
    call: Caller, finished: Path, tmp_path: Path
) -> None:
    for name in ("lab", "scan"):
        new = frames()[name].head(3).assign(patient=["N1", "N2", "N3"])
        new.to_csv(tmp_path / f"{name}.csv", index=False)
    tables = [
        part
        for name in ("lab", "scan")
        for part in ("--table", f"{name}={tmp_path / name}.csv")
    ]
    called = call("predict", finished / "run", "--rows", tmp_path / "lab.csv", *tables)
    assert called.code == 0, called
    assert [line.split(",")[0] for line in called.out.splitlines()] == [
        "patient",
        "N1",
        "N2",
        "N3",
    ]


def test_a_spent_budget_is_exit_code_four(call: Caller, tmp_path: Path) -> None:
    rule = {"name": "lab", "outbox": GAUSSIAN, "budget": {"epsilon": 4.6}}
    path = write(tmp_path, quick(data_owners=[rule]))
    called = call("run", path, "--out", tmp_path / "run", "--quiet")
    assert called.code == 4
    assert "'lab' will not release \"embedding\" again" in called.err
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["rounds"] == 2
    assert " of 4.6 is spent" in call("privacy", tmp_path / "run").out


def test_privacy_of_a_run_and_of_a_file(
    call: Caller, finished: Path, tmp_path: Path
) -> None:
    told = json.loads(call("privacy", finished / "run", "--json").out)["privacy"]
    assert {(one["party"], one["protects"]) for one in told} == {
        ("lab", "columns"),
        ("scan", "columns"),
        ("north", "labels"),
        ("south", "labels"),
    }
    planned = call(
        "privacy",
        write(tmp_path, quick(data_owners=[{"name": "lab", "outbox": GAUSSIAN}])),
    )
    assert "a row at most 6 times" in planned.out


def test_what_needs_one_label_owner_says_so(call: Caller, finished: Path) -> None:
    told = call.fails(2, "audit", finished / "run", "--dp")
    assert "This works with one label owner, and multi_vfl has 2" in told
    assert "`align`, `select`, `explain` and `audit` take both" in told


def test_single_runs_say_what_is_not_theirs(call: Caller, tmp_path: Path) -> None:
    from tests.federation import small

    small.federation().fit(tmp_path / "run")
    (tmp_path / "rows.csv").write_text("patient\nP001\n")
    told = call.fails(
        2, "predict", tmp_path / "run", "--rows", tmp_path / "rows.csv", "--as", "lab"
    )
    assert "'lab' is no label owner here; there are clinic" in told
    told = call.fails(
        2,
        "predict",
        tmp_path / "run",
        "--rows",
        tmp_path / "rows.csv",
        "--model",
        "own",
    )
    assert "called 'own': here is one joint model" in told
