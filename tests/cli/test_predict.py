"""`colonnade predict`."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from tests.cli.called import Caller
from tests.datasets.test_progress import Terminal
from tests.federation.small import frames, quick, write

from colonnade.cli.predict import _write
from colonnade.datasets.progress import progress
from colonnade.federation import Federation, load, many_rows
from colonnade.report.words import warnings_of
from colonnade.rows.asked import AskedFor
from colonnade.rows.holdings import Holdings
from colonnade.runs.run_directory import RunDirectory


def ids_file(folder: Path, ids: list[str]) -> Path:
    path = folder / "rows.csv"
    pd.DataFrame({"patient": ids}).to_csv(path, index=False)
    return path


def expected(finished: Path, ids: list[str]) -> pd.DataFrame:
    return load(finished / "run", ids=ids).predict(ids).to_frame()


def warned(finished: Path) -> str:
    """What the run says against its model, which was trained for a moment."""
    return "".join(
        f"{words}\n"
        for words in warnings_of(RunDirectory(finished / "run").summary() or {})
    )


def test_predict_prints_csv_or_json_or_writes_files(
    call: Caller, finished: Path, tmp_path: Path
) -> None:
    ids = ["P011", "P002", "P011"]
    rows = ids_file(tmp_path, ids)
    frame = expected(finished, ids)
    called = call("predict", finished / "run", "--rows", rows)
    assert (called.code, called.err) == (0, warned(finished))
    assert called.out == frame.to_csv(index=False)
    told = json.loads(call("predict", finished / "run", "--rows", rows, "--json").out)
    assert [row["patient"] for row in told] == ids
    assert [row["prediction"] for row in told] == frame["prediction"].tolist()
    for name, read in (("p[1].csv", pd.read_csv), ("p.parquet", pd.read_parquet)):
        called = call(
            "predict", finished / "run", "--rows", rows, "--out", tmp_path / name
        )
        assert (called.code, called.err) == (0, warned(finished))
        assert f"3 predictions in {tmp_path / name}." in called.out
        written = read(tmp_path / name).fillna({"missing": ""})
        pd.testing.assert_frame_equal(written, frame, check_dtype=False)
    assert {path.name for path in tmp_path.iterdir()} == {
        "rows.csv",
        "p[1].csv",
        "p.parquet",
    }


def test_what_the_run_says_against_its_model_is_said_on_standard_error(
    call: Caller, finished: Path, tmp_path: Path
) -> None:
    shutil.copytree(finished, tmp_path / "at")
    run = RunDirectory(tmp_path / "at" / "run")
    verdict = "The model learned nothing [at all]. Do not use it."
    run.write_summary({**(run.summary() or {}), "findings": [verdict], "majority": {}})
    rows = ids_file(tmp_path, ["P011"])
    for options in ([], ["--json"], ["--quiet"]):
        called = call("predict", run.path, "--rows", rows, *options)
        assert (called.code, called.err) == (0, f"{verdict}\n")
        assert verdict not in called.out


def test_rows_may_come_from_any_table_with_the_id_column(
    call: Caller, finished: Path, tmp_path: Path
) -> None:
    called = call("predict", finished / "run", "--rows", finished / "lab.csv")
    assert called.out == expected(finished, frames()["lab"]["patient"].tolist()).to_csv(
        index=False
    )
    frames()["lab"].to_parquet(tmp_path / "lab.parquet")
    assert (
        call("predict", finished / "run", "--rows", tmp_path / "lab.parquet").out
        == called.out
    )


def test_new_rows_come_from_tables_named_on_the_line(
    call: Caller, finished: Path, tmp_path: Path
) -> None:
    for name, frame in frames(rows=4, seed=9).items():
        frame["patient"] = frame["patient"].str.replace("P", "N")
        frame.drop(columns="diagnosis", errors="ignore").to_csv(
            tmp_path / f"{name}.csv", index=False
        )
    tables = [f"--table={name}={tmp_path / name}.csv" for name in ("clinic", "lab")]
    called = call("predict", finished / "run", "--rows", tmp_path / "lab.csv", *tables)
    assert called.code == 0
    assert len(called.out.splitlines()) == 5
    assert "'clinic' lacks 4 of the ids" in call.fails(
        2, "predict", finished / "run", "--rows", tmp_path / "lab.csv", tables[1]
    )


LACKED = ["P002", "P013"]


@pytest.fixture
def lacking(finished: Path, tmp_path: Path) -> list[str]:
    """Options that give the laboratory a table without some rows."""
    lab = frames()["lab"]
    lab[~lab["patient"].isin(LACKED)].to_csv(tmp_path / "lab.csv", index=False)
    return ["--table", f"lab={tmp_path / 'lab.csv'}"]


@pytest.mark.parametrize("at_once", [65_536, 3])
def test_an_id_that_a_party_lacks_is_named_and_the_others_are_predicted(
    call: Caller,
    finished: Path,
    tmp_path: Path,
    lacking: list[str],
    at_once: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also where all rows of a piece lack somebody, and where rows come again."""
    monkeypatch.setattr(many_rows, "ROWS_AT_ONCE", at_once)
    ids = ["P013", "P002", "X", "P013", "P011", "P002", "P003", "P011", "X", "X", "X"]
    who = {"P013": "lab", "P002": "lab", "X": "clinic lab"}
    rows = ids_file(tmp_path, ids)
    here = expected(finished, ["P011", "P003"]).set_index("patient")
    for name, read in (("p.csv", pd.read_csv), ("p.parquet", pd.read_parquet)):
        out = tmp_path / name
        words = (
            r"^3 of 5 ids cannot be predicted, .*: (clinic and lab \(1\)|lab \(2\), )"
        )
        with pytest.warns(UserWarning, match=words):
            called = call(
                "predict", finished / "run", "--rows", rows, "--out", out, *lacking
            )
        assert called.code == 0
        assert f"{sum(name not in who for name in ids)} predictions in" in called.out
        found = read(out).fillna({"missing": ""})
        assert found["patient"].tolist() == ids
        assert found["missing"].tolist() == [who.get(name, "") for name in ids]
        for _, row in found.iterrows():
            if row["patient"] in who:
                assert row.drop(["patient", "missing"]).isna().all()
            else:
                known = here.loc[row["patient"]]
                assert row["prediction"] == known["prediction"]
                assert row["score_ill"] == pytest.approx(known["score_ill"])


def test_with_strict_an_id_that_a_party_lacks_is_an_error_and_nobody_is_asked(
    call: Caller, finished: Path, tmp_path: Path, lacking: list[str]
) -> None:
    before = left(finished)
    rows = ids_file(tmp_path, ["P011", "P002"])
    out = tmp_path / "p.csv"
    more = ["--rows", rows, "--out", out, "--strict", *lacking]
    assert "'lab' lacks 1 of the ids asked for" in call.fails(
        2, "predict", finished / "run", *more
    )
    assert not out.exists()
    assert left(finished) == before
    whole = call(
        "predict", finished / "run", "--rows", ids_file(tmp_path, ["P011"]), "--strict"
    )
    assert "missing" not in whole.out


def test_ids_keep_their_zeros(call: Caller, tmp_path: Path) -> None:
    given = frames(rows=60)
    for frame in given.values():
        frame["patient"] = frame["patient"].str.replace("P", "0")
    Federation.from_toml(write(tmp_path, given)).fit(tmp_path / "run")
    called = call("predict", tmp_path / "run", "--rows", ids_file(tmp_path, ["0007"]))
    assert called.out.splitlines()[1].startswith("0007,")


def test_no_id_or_class_is_a_formula_in_a_csv_file(
    call: Caller, tmp_path: Path
) -> None:
    """A spreadsheet runs what begins with such a sign; nobody who opens a file of
    predictions asked for that."""
    given = frames(rows=60)
    run = "=HYPERLINK(A1)"
    for frame in given.values():
        frame["patient"] = frame["patient"].str.replace("P", "@P")
    given["clinic"]["diagnosis"] = given["clinic"]["diagnosis"].replace("ill", run)
    Federation.from_toml(write(tmp_path, given)).fit(tmp_path / "run")
    rows = ids_file(tmp_path, [f"@P{number:03d}" for number in range(20)])
    out = tmp_path / "out.csv"
    printed = call("predict", tmp_path / "run", "--rows", rows).out
    call("predict", tmp_path / "run", "--rows", rows, "--out", out)
    assert printed == out.read_text()
    assert f"'{run}" in printed
    read = pd.read_csv(out)
    cells = [*read.columns, *read["patient"], *read["prediction"]]
    assert not [cell for cell in cells if str(cell)[0] in "=+-@\t\r"]
    kept = json.loads(call("predict", tmp_path / "run", "--rows", rows, "--json").out)
    assert [f"'{row['patient']}" for row in kept] == read["patient"].tolist()


def test_what_cannot_be_predicted_is_one_message_and_code_2(
    call: Caller, finished: Path, tmp_path: Path
) -> None:
    run = finished / "run"
    rows = ids_file(tmp_path, ["P001"])
    assert "is not a run directory" in call.fails(
        2, "predict", tmp_path, "--rows", rows
    )
    assert "No such file" in call.fails(
        2, "predict", run, "--rows", tmp_path / "none.csv"
    )
    (tmp_path / "bytes.parquet").write_bytes(b"not parquet")
    assert "bytes.parquet of --rows is not a Parquet file" in call.fails(
        2, "predict", run, "--rows", tmp_path / "bytes.parquet"
    )
    (tmp_path / "other.csv").write_text("person\nP001\n")
    assert "'--rows' has no column 'patient', named as its id" in call.fails(
        2, "predict", run, "--rows", tmp_path / "other.csv"
    )
    (tmp_path / "empty.csv").write_text("patient\n")
    assert "has no rows to predict" in call.fails(
        2, "predict", run, "--rows", tmp_path / "empty.csv"
    )
    unknown = call.fails(2, "predict", run, "--rows", ids_file(tmp_path, ["X"]))
    assert "lacks 1 of the ids asked for" in unknown
    assert "To train" not in unknown, "nobody trains"
    for wrong in ("labs=x.csv", "lab", "lab="):
        message = call.fails(2, "predict", run, "--rows", rows, "--table", wrong)
        assert "--table takes PARTY=FILE with one of clinic, lab" in message
    assert "--out must end in .csv or .parquet" in call.fails(
        2, "predict", run, "--rows", rows, "--out", "p.json"
    )
    rows = ids_file(tmp_path, ["P001"])
    before = left(finished)
    (tmp_path / "folder.csv").mkdir()
    for place in (tmp_path / "none" / "p.csv", rows / "p.csv", tmp_path / "folder.csv"):
        assert "cannot be written" in call.fails(
            2, "predict", run, "--rows", rows, "--out", place
        )
    assert left(finished) == before, "nobody was asked, or paid"


def test_a_damaged_run_is_code_2(call: Caller, finished: Path, tmp_path: Path) -> None:
    shutil.copytree(finished / "run", tmp_path / "run")
    (tmp_path / "run" / "checkpoint.json").write_text("{")
    assert "checkpoint.json is damaged" in call.fails(
        2, "predict", tmp_path / "run", "--rows", ids_file(tmp_path, ["P001"])
    )


@pytest.mark.long
def test_many_rows_are_predicted_and_written_piece_by_piece(
    call: Caller, finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(many_rows, "ROWS_AT_ONCE", 25)
    ids = frames()["lab"]["patient"].tolist()
    ids = [*ids[:30], *ids[:4], *ids[20:40]]  # some again, in other pieces
    rows = ids_file(tmp_path, ids)
    frame = expected(finished, ids)
    for name, read in (("p.csv", pd.read_csv), ("p.parquet", pd.read_parquet)):
        before = len(left(finished))
        called = call(
            "predict", finished / "run", "--rows", rows, "--out", tmp_path / name
        )
        assert called.code == 0
        written = read(tmp_path / name).fillna({"missing": ""})
        pd.testing.assert_frame_equal(written, frame, check_dtype=False, rtol=1e-5)
        assert "54/54 rows" in called.err
        # what left the laboratory is written down: every row once, though 14 were asked
        # for twice
        assert sum(entry["shape"][0] for entry in left(finished)[before:]) == 40
    assert call(
        "predict",
        finished / "run",
        "--rows",
        rows,
        "--out",
        tmp_path / "p.csv",
        "--quiet",
    ).err == warned(finished)


def test_pieces_are_what_one_federation_predicts_writes_down_and_pays(
    call: Caller, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Noise and rounding go on from piece to piece, as does what rows have paid; only a
    piece's rows are prepared."""
    rule = {
        "embedding": {
            "mechanism": {"name": "gaussian", "clip": 1.0, "sigma": 40.0},
            "codec": {"name": "quantize"},
        }
    }
    settings = quick(
        parties={"lab": {"outbox": rule, "budget": {"epsilon": 3.0}}},
        federation={"noise": "seeded"},
    )
    Federation.from_toml(write(tmp_path, settings=settings)).fit(tmp_path / "run")
    shutil.copytree(tmp_path / "run", tmp_path / "other")
    ids = frames()["lab"]["patient"].tolist()[:20]
    prepared = list[int]()
    one = load(tmp_path / "other", ids=ids)
    expected = pd.concat(
        [one.predict(ids[start : start + 7]).to_frame() for start in (0, 7, 14)],
        ignore_index=True,
    )
    holdings = AskedFor.holdings

    def counted(self: AskedFor, some: Sequence[str]) -> Holdings:
        prepared.append(len(some))
        return holdings(self, some)

    monkeypatch.setattr(many_rows, "ROWS_AT_ONCE", 7)
    monkeypatch.setattr(AskedFor, "holdings", counted)
    out = tmp_path / "p.parquet"
    assert (
        call(
            "predict", tmp_path / "run", "--rows", ids_file(tmp_path, ids), "--out", out
        ).code
        == 0
    )
    pd.testing.assert_frame_equal(
        pd.read_parquet(out), expected, check_dtype=False, check_exact=True
    )
    assert prepared == [7, 7, 6]
    lab, other = (tmp_path / run / "parties" / "lab" for run in ("run", "other"))
    assert (lab / "ledger-after.jsonl").read_text() == (
        other / "ledger-after.jsonl"
    ).read_text()
    accounts = [load(tmp_path / run).accounts["lab"] for run in ("run", "other")]
    assert accounts[0].spent() == accounts[1].spent() != []


def test_a_row_of_the_last_piece_that_cannot_be_prepared_is_told_before_the_first_is_asked_for(
    call: Caller, finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(many_rows, "ROWS_AT_ONCE", 7)
    lab = frames()["lab"]
    number = next(name for name in lab.columns if lab[name].dtype.kind == "f")
    lab[number] = lab[number].astype(object)
    # the cells before them would all be numbers
    lab.iloc[19:, list(lab.columns).index(number)] = "more or less"
    lab.to_csv(tmp_path / "lab.csv", index=False)
    rows = ids_file(tmp_path, lab["patient"].tolist()[:20])
    before = left(finished)
    more = ["--table", f"lab={tmp_path}/lab.csv", "--out", tmp_path / "p.csv"]
    assert "as a number, and this table holds it as" in call.fails(
        2, "predict", finished / "run", "--rows", rows, *more
    )
    assert left(finished) == before
    assert not list(tmp_path.glob("*p*.csv"))


def left(finished: Path) -> list[dict[str, Any]]:
    """What crossed from the laboratory after training."""
    file = finished / "run" / "parties" / "lab" / "ledger-after.jsonl"
    entries = (
        [json.loads(line) for line in file.read_text().splitlines()]
        if file.exists()
        else []
    )
    return [entry for entry in entries if entry["direction"] == "out"]


RULE = {"embedding": {"mechanism": {"name": "gaussian", "clip": 1.0, "sigma": 4.0}}}


@pytest.fixture
def private(tmp_path: Path) -> Path:
    """A run whose laboratory counts what its rows are released with."""
    # two appearances of a row cost 2.94
    lab = {"outbox": RULE, "budget": {"epsilon": 3.0}}
    settings = quick(parties={"lab": lab}, train={"epochs": 2, "early_stop": False})
    Federation.from_toml(write(tmp_path, settings=settings)).fit(tmp_path / "run")
    return tmp_path


def test_what_was_predicted_before_a_budget_was_spent_is_kept(
    call: Caller, private: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(many_rows, "ROWS_AT_ONCE", 5)
    one = load(private / "run")
    spent, fresh = (
        one.holdings.ids[one.batches.splits[split]].tolist()
        for split in ("train", "test")
    )
    rows = ids_file(private, fresh[:8] + spent[:3])
    out = private / "p.csv"
    message = call.fails(
        4, "predict", private / "run", "--rows", rows, "--out", out, "--quiet"
    )
    assert "The first 5 predictions in" in message
    assert not out.exists()
    assert pd.read_csv(private / "p.partial.csv")["patient"].tolist() == fresh[:5]
    assert not list(private.glob(".p*"))


def test_who_predicts_while_another_process_counts_waits_for_it(
    call: Caller, private: Path
) -> None:
    """A service and a prediction may use one budget at the same time. Each release
    waits for the other's."""
    rows = ids_file(private, ["P001"])
    lock = private / "run" / "parties" / "lab" / "store" / "lock"
    holding = (
        "import fcntl, sys, time; file = open(sys.argv[1]);"
        " fcntl.flock(file, fcntl.LOCK_EX); print('holding', flush=True);"
        " time.sleep(0.5)"
    )
    command = [sys.executable, "-S", "-c", holding, str(lock)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "holding\n"
        assert call("privacy", private / "run").code == 0  # whoever reads need not wait
        assert call("predict", private / "run", "--rows", rows).code in (0, 4)
        assert other.poll() == 0


def test_another_engine_has_its_own_tables(
    call: Caller, finished: Path, tmp_path: Path
) -> None:
    option = "--table=lab=x.csv"
    message = call.fails(
        2,
        "predict",
        finished / "run",
        "--rows",
        "r.csv",
        "--engine",
        "flare-sim",
        option,
    )
    assert "--table is for --engine in-process" in message


def test_a_quiet_call_hides_its_own_bars_alone(
    call: Caller, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert call("predict", tmp_path, "--rows", "new.csv", "--quiet").code == 2
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    with progress("thing", 5, unit="items") as advance:
        advance(5)
    assert "thing" in terminal.getvalue()


@pytest.mark.parametrize("crash", [KeyboardInterrupt, MemoryError])
def test_what_was_predicted_before_it_was_broken_off_is_kept(
    crash: type[BaseException], tmp_path: Path
) -> None:
    def pieces() -> Iterator[pd.DataFrame]:
        yield pd.DataFrame({"patient": ["P1", "P2"], "label": [0, 1]})
        raise crash

    for name, read in (("p.csv", pd.read_csv), ("p.parquet", pd.read_parquet)):
        with pytest.raises(crash):
            _write(tmp_path / name, pieces())
        kept = read((tmp_path / name).with_suffix(f".partial{Path(name).suffix}"))
        assert kept["patient"].tolist() == ["P1", "P2"]
    assert sorted(one.name for one in tmp_path.iterdir()) == [
        "p.partial.csv",
        "p.partial.parquet",
    ]
