"""`colonnade predict`."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pandas as pd
from tests.cli.called import Caller
from tests.federation.small import frames, write

from colonnade.federation import Federation, load


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
