"""`colonnade run` and `colonnade predict`."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from tests.cli.called import Caller
from tests.federation.small import Spent, checkpoint_of, equal, frames, quick, records, write

from colonnade.core import Mechanism, Plain
from colonnade.federation import Federation, load, rules


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with tables and a finished run; tests copy it or leave it as it is."""
    folder = tmp_path_factory.mktemp("finished")
    Federation.from_toml(write(folder)).fit(folder / "run")
    return folder


def test_run_keeps_a_directory_and_shows_tables(call: Caller, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path)
    monkeypatch.chdir(tmp_path)
    called = call("run", path)
    assert called.code == 0
    for part in ("How good the joint model is", "accuracy", "What travelled", "clinic", "vimadmm: 2 epochs, 8 rounds"):
        assert part in called.out
    assert (tmp_path / "runs" / "federation" / "summary.json").exists()
    assert call("run", path).code == 0  # a new one beside it
    assert (tmp_path / "runs" / "federation-2" / "summary.json").exists()


def test_json_is_the_summary_and_quiet_is_silent(call: Caller, tmp_path: Path) -> None:
    path = write(tmp_path)
    told = call("run", path, "--out", tmp_path / "a", "--json")
    assert json.loads(told.out) == json.loads((tmp_path / "a" / "summary.json").read_text())
    assert told.err == ""
    quiet = call("run", path, "--out", tmp_path / "b", "--quiet")
    assert (quiet.code, quiet.out, quiet.err) == (0, "", "")
    assert equal(checkpoint_of(tmp_path / "a"), checkpoint_of(tmp_path / "b"))


def test_the_seed_can_be_given(call: Caller, tmp_path: Path) -> None:
    path = write(tmp_path)
    told = call("run", path, "--out", tmp_path / "run", "--json", "--seed", 5)
    assert json.loads(told.out)["seed"] == 5
    other = Federation.from_toml(path, seed=5).fit()
    assert json.loads(told.out)["metrics"] == other.summary["metrics"]


def test_resume_continues_the_latest_run_of_that_file(
    call: Caller, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path)
    monkeypatch.chdir(tmp_path)
    for folder in ("runs/federation", "runs/federation-2", "runs/federation-of-others"):
        with pytest.raises(KeyboardInterrupt):
            Federation.from_toml(path).fit(folder, watch=interrupt)
    called = call("run", path, "--resume", "--json")
    assert called.code == 0
    assert json.loads(called.out)["epochs"] == 2
    done = [
        name
        for name in ("federation", "federation-2", "federation-of-others")
        if Path(f"runs/{name}/summary.json").exists()
    ]
    assert done == ["federation-2"]
    Federation.from_toml(path).fit("whole")
    assert equal(checkpoint_of(Path("whole")), checkpoint_of(Path("runs/federation-2")))
    assert records(Path("whole")) == records(Path("runs/federation-2"))
    assert call("run", path, "--resume", "--out", "runs/federation", "--quiet").code == 0
    assert equal(checkpoint_of(Path("whole")), checkpoint_of(Path("runs/federation")))


def interrupt(event: Any) -> None:
    if isinstance(event, dict):
        raise KeyboardInterrupt


def test_what_cannot_be_run_is_one_message_and_code_2(call: Caller, finished: Path, tmp_path: Path) -> None:
    path = finished / "federation.toml"
    assert "cannot be read: No such file" in call.fails(2, "run", tmp_path / "none.toml")
    (tmp_path / "bad.toml").write_text("[train\n")
    assert "is not TOML" in call.fails(2, "run", tmp_path / "bad.toml")
    assert "already holds a run" in call.fails(2, "run", path, "--out", finished / "run")
    assert "There is no run to resume in" in call.fails(2, "run", path, "--out", tmp_path / "x", "--resume")
    refused = call.fails(2, "run", path, "--out", finished / "run", "--resume", "--seed", 3)
    assert "--seed cannot change a run that is resumed" in refused
    assert "cannot be written" in call.fails(2, "run", path, "--out", path / "run", "--quiet")


def test_a_failing_party_is_code_3(call: Caller, tmp_path: Path) -> None:
    path = write(tmp_path, settings=quick(parties={"lab": {"model": "tests.federation.small:Broken"}}))
    message = call.fails(3, "run", path, "--out", tmp_path / "run", "--quiet")
    assert message.startswith("PartyError: 'lab' failed while answering")
    assert "the tower fell" in message


def test_a_spent_budget_is_code_4_and_leaves_a_model(
    call: Caller, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mechanisms: dict[str, Callable[..., Mechanism]] = {"plain": Plain, "spent": Spent}
    monkeypatch.setattr(rules, "MECHANISMS", mechanisms)
    lab = {"outbox": {"train.embedding": {"mechanism": {"name": "spent", "after": 5}}}}
    path = write(tmp_path, settings=quick(parties={"lab": lab}))
    message = call.fails(4, "run", path, "--out", tmp_path / "run", "--quiet")
    assert message == "BudgetExhausted: 'lab' will not release \"embedding\" again: its budget is spent.\n"
    assert load(tmp_path / "run", ids=["P001"]).predict().labels.shape == (1,)
    told = call("run", path, "--out", tmp_path / "told", "--json")
    assert told.code == 4
    assert json.loads(told.out)["rounds"] == 5
    assert call("run", path, "--out", tmp_path / "shown").code == 4  # with tables, whatever could be measured
    never = {"outbox": {"embedding": {"mechanism": {"name": "spent", "after": 0}}}}
    nothing = call("run", write(tmp_path, settings=quick(parties={"lab": never})), "--out", tmp_path / "nothing")
    assert nothing.code == 4
    assert "No rows could be measured." in nothing.out


def ids_file(folder: Path, ids: list[str]) -> Path:
    path = folder / "rows.csv"
    pd.DataFrame({"patient": ids}).to_csv(path, index=False)
    return path


def expected(finished: Path, ids: list[str]) -> pd.DataFrame:
    return load(finished / "run", ids=ids).predict(ids).to_frame().rename(columns={"id": "patient"})


def test_predict_prints_csv_or_json_or_writes_files(call: Caller, finished: Path, tmp_path: Path) -> None:
    ids = ["P011", "P002", "P011"]
    rows, frame = ids_file(tmp_path, ids), expected(finished, ids)
    called = call("predict", finished / "run", "--rows", rows)
    assert (called.code, called.err) == (0, "")
    assert called.out == frame.to_csv(index=False)
    told = json.loads(call("predict", finished / "run", "--rows", rows, "--json").out)
    assert [row["patient"] for row in told] == ids
    assert [row["prediction"] for row in told] == frame["prediction"].tolist()
    for name, read in (("p.csv", pd.read_csv), ("p.parquet", pd.read_parquet)):
        called = call("predict", finished / "run", "--rows", rows, "--out", tmp_path / name)
        assert (called.code, called.err) == (0, "")
        assert "3 predictions are in" in called.out
        pd.testing.assert_frame_equal(read(tmp_path / name), frame, check_dtype=False)
    assert {path.name for path in tmp_path.iterdir()} == {"rows.csv", "p.csv", "p.parquet"}


def test_rows_may_come_from_any_table_with_the_id_column(call: Caller, finished: Path, tmp_path: Path) -> None:
    called = call("predict", finished / "run", "--rows", finished / "lab.csv")
    assert called.out == expected(finished, frames()["lab"]["patient"].tolist()).to_csv(index=False)
    frames()["lab"].to_parquet(tmp_path / "lab.parquet")
    assert call("predict", finished / "run", "--rows", tmp_path / "lab.parquet").out == called.out


def test_new_rows_come_from_tables_named_on_the_line(call: Caller, finished: Path, tmp_path: Path) -> None:
    for name, frame in frames(rows=4, seed=9).items():
        frame["patient"] = frame["patient"].str.replace("P", "N")
        frame.drop(columns="diagnosis", errors="ignore").to_csv(tmp_path / f"{name}.csv", index=False)
    tables = [f"--table={name}={tmp_path / name}.csv" for name in ("clinic", "lab")]
    called = call("predict", finished / "run", "--rows", tmp_path / "lab.csv", *tables)
    assert called.code == 0
    assert len(called.out.splitlines()) == 5
    assert "'clinic' lacks 4 of the ids" in call.fails(
        2, "predict", finished / "run", "--rows", tmp_path / "lab.csv", tables[1]
    )


def test_ids_keep_their_zeros(call: Caller, tmp_path: Path) -> None:
    given = frames(rows=60)
    for frame in given.values():
        frame["patient"] = frame["patient"].str.replace("P", "0")
    Federation.from_toml(write(tmp_path, given)).fit(tmp_path / "run")
    called = call("predict", tmp_path / "run", "--rows", ids_file(tmp_path, ["0007"]))
    assert called.out.splitlines()[1].startswith("0007,")


def test_what_cannot_be_predicted_is_one_message_and_code_2(call: Caller, finished: Path, tmp_path: Path) -> None:
    run, rows = finished / "run", ids_file(tmp_path, ["P001"])
    assert "is not a run directory" in call.fails(2, "predict", tmp_path, "--rows", rows)
    assert "there is no such file" in call.fails(2, "predict", run, "--rows", tmp_path / "none.csv")
    (tmp_path / "bytes.parquet").write_bytes(b"not parquet")
    assert "cannot be read as CSV or Parquet" in call.fails(2, "predict", run, "--rows", tmp_path / "bytes.parquet")
    (tmp_path / "other.csv").write_text("person\nP001\n")
    assert "'--rows' has no column 'patient', named as its id" in call.fails(
        2, "predict", run, "--rows", tmp_path / "other.csv"
    )
    (tmp_path / "empty.csv").write_text("patient\n")
    assert "has no rows to predict" in call.fails(2, "predict", run, "--rows", tmp_path / "empty.csv")
    assert "lacks 1 of the ids asked for" in call.fails(2, "predict", run, "--rows", ids_file(tmp_path, ["X"]))
    for wrong in ("labs=x.csv", "lab", "lab="):
        message = call.fails(2, "predict", run, "--rows", rows, "--table", wrong)
        assert "--table takes PARTY=FILE with one of clinic, lab" in message
    assert "--out must end in .csv or .parquet" in call.fails(2, "predict", run, "--rows", rows, "--out", "p.json")
    rows = ids_file(tmp_path, ["P001"])
    nowhere = tmp_path / "none" / "p.csv"
    assert "cannot be written" in call.fails(2, "predict", run, "--rows", rows, "--out", nowhere)


def test_a_damaged_run_is_code_2(call: Caller, finished: Path, tmp_path: Path) -> None:
    shutil.copytree(finished / "run", tmp_path / "run")
    (tmp_path / "run" / "checkpoint.json").write_text("{")
    assert "checkpoint.json is damaged" in call.fails(
        2, "predict", tmp_path / "run", "--rows", ids_file(tmp_path, ["P001"])
    )
