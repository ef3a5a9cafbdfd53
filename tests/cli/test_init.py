"""`colonnade init`: by guesses and by answers; what it writes, runs at once."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import pandas as pd
import pytest
from tests.cli.called import Caller
from tests.planning.three import frames

from colonnade.federation import Settings
from colonnade.settings.sections import Budget


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Three tables in an empty folder: rows overlap in part, a column is constant,
    another names everybody."""
    for number, (name, frame) in enumerate(frames(120).items()):
        some = frame.sample(frac=0.9, random_state=number)
        if name == "clinic":
            some.insert(1, "ward", "A")
            some.insert(2, "name", [f"person {n}" for n in range(len(some))])
        if name == "lab":
            some.to_parquet(tmp_path / "lab.parquet", index=False)
        else:
            some.to_csv(tmp_path / f"{name}.csv", index=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def answer(monkeypatch: pytest.MonkeyPatch, *lines: str) -> None:
    monkeypatch.setattr(
        sys, "stdin", io.StringIO("".join(f"{line}\n" for line in lines))
    )


def test_with_yes_it_asks_nothing_and_the_file_runs(call: Caller, folder: Path) -> None:
    called = call("init", "--yes")
    assert called.code == 0, called.err
    for part in (
        "are in all of them",
        "'ward' has one value only",
        "'name' has 108 different values",
        "colonnade plan",
        "cross between the parties",
        "--quick",
    ):
        assert part in " ".join(called.out.split()), part
    settings = Settings.from_toml(folder / "federation.toml")
    assert list(settings.parties) == ["clinic", "lab", "scan"]
    assert settings.parties["clinic"].columns == ("age", "weight")
    assert settings.data.align == "private"
    planned = json.loads(
        call("plan", "federation.toml", "--json", "--batches", "1").out
    )
    done = json.loads(
        call("run", "federation.toml", "--json", "--set", "train.epochs=12").out
    )
    assert planned["rows"] == done["rows"]
    assert done["metrics"]["test"]["accuracy"] > 0.6


def test_answers_are_asked_again_until_they_can_be(
    call: Caller, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer(
        monkeypatch,
        "y",
        "y",
        "n",  # scan.csv does not take part
        "the clinic",
        "hospital",
        "",  # a name has no space
        "age",
        "",  # no id
        "shoes",
        "hospital.diagnosis",
        "",
        "",
        "dead",
        "well",  # the positive class
        "nonsense",
        "fdml",
        "many",
        "2",
        "y",
        "-3",
        "4",
        "n",  # not the quick choice
    )
    called = call("init", "--out", "two.toml")
    assert called.code == 0, called.err
    for part in (
        "name of its own",
        "'age' cannot be the id",
        "it is in no table",
        "no 'nonsense' here",
        "at least 1",
        "above 0",
    ):
        assert (
            part in called.out.replace("\n", " ") or "no column 'age'" in called.out
        ), part
    settings = Settings.from_toml(folder / "two.toml")
    assert list(settings.parties) == ["hospital", "lab"]
    assert (settings.algorithm, settings.train.epochs) == ("fdml", 2)
    assert settings.data.positive == "well"
    assert "one_shot sends each row once and is done in seconds" in called.out
    assert settings.parties["lab"].budget == Budget(epsilon=4.0, delta=1e-5)
    assert call("run", "two.toml", "--quiet").code == 0


def test_a_file_is_not_replaced_without_force(call: Caller, folder: Path) -> None:
    (folder / "federation.toml").write_text("mine")
    assert "--force" in call.fails(2, "init", "--yes")
    assert (folder / "federation.toml").read_text() == "mine"
    assert call("init", "--yes", "--force").code == 0
    assert (folder / "federation.toml").read_text() != "mine"


def test_tables_elsewhere_are_named_from_where_the_file_is(
    call: Caller, folder: Path
) -> None:
    (folder / "there").mkdir()
    assert (
        call("init", "clinic.csv", "lab.parquet", "--yes", "--out", "there/f.toml").code
        == 0
    )
    text = (folder / "there" / "f.toml").read_text()
    assert 'table = "../clinic.csv"' in text
    assert Settings.from_toml(folder / "there" / "f.toml").parties["lab"].table == str(
        folder / "lab.parquet"
    )


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nowhere.csv", "clinic.csv"], "There is no file nowhere.csv"),
        (["clinic.csv"], "two tables at least"),
        (["clinic.csv", "scan.csv", "./clinic.csv"], "clinic.csv is named twice"),
        (["clinic.csv", "scan.csv", "--out", "no/f.toml"], "There is no folder no"),
    ],
)
def test_bad_arguments(
    arguments: list[str], words: str, call: Caller, folder: Path
) -> None:
    assert words in call.fails(2, "init", *arguments, "--yes")
    assert not list(folder.glob("*.toml"))


def test_an_empty_folder(
    call: Caller, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert "There is no table in this folder" in call.fails(2, "init")


def test_files_that_are_no_tables_are_left_out_and_said(
    call: Caller, folder: Path
) -> None:
    (folder / "bad.csv").write_text("word\nx\ny\n")
    called = call("init", "--yes")
    assert called.code == 0, called.err
    assert "bad.csv is left out: bad.csv has 2 rows and 1 columns" in " ".join(
        called.out.split()
    )
    assert list(Settings.from_toml(folder / "federation.toml").parties) == [
        "clinic",
        "lab",
        "scan",
    ]
    assert "bad.csv has 2 rows" in call.fails(
        2, "init", "clinic.csv", "bad.csv", "--yes", "--force"
    )
    named = call(
        "init", "clinic.csv", "scan.csv", "--yes", "--force", "--label", "diagnoss"
    )
    assert "(did you mean 'diagnosis'?)" in named.err


def test_the_label_may_be_named(call: Caller, folder: Path) -> None:
    assert call("init", "--yes", "--label", "clinic.age").code == 0
    settings = Settings.from_toml(folder / "federation.toml")
    assert (settings.parties["clinic"].label, settings.data.task) == (
        "age",
        "regression",
    )
    assert "it is in no table" in call.fails(
        2, "init", "--yes", "--force", "--label", "nothing"
    )
    # as it was
    assert (
        Settings.from_toml(folder / "federation.toml").parties["clinic"].label == "age"
    )


def test_what_the_tables_should_be_is_said(call: Caller, folder: Path) -> None:
    clinic = pd.read_csv(folder / "clinic.csv", dtype=str)
    clinic["churned"] = ["yes", None] * (len(clinic) // 2)
    clinic["visits"] = ["?", *map(str, range(1, len(clinic)))]
    clinic["calls"] = ["many", *map(str, range(1, len(clinic)))]
    clinic["patient"] = (
        clinic["patient"].str.lower().where(clinic.index < 20, clinic["patient"])
    )
    clinic.to_csv(folder / "clinic.csv", index=False)
    said = " ".join(call("init", "--yes").out.split())
    assert (
        "clinic.csv: 'churned' sounds like a label, and 54 of 108 rows have none."
        in said
    )
    assert "'clinic': the column 'visits' is read as numbers." in said
    assert (
        "'clinic': the column 'calls' is read as numbers. These words are read as gaps:"
        ' "many" 1.' in said
    )
    assert "The label is 'diagnosis' of 'clinic', as guessed: by its name." in said
    assert (
        "would be if those that differ in capitals or spaces alone were the same"
        in said
    )
    assert Settings.from_toml(folder / "federation.toml").alignment.ids == "normalised"


def test_whole_numbers_are_classes_or_numbers_as_one_says(
    call: Caller, folder: Path
) -> None:
    clinic = pd.read_csv(folder / "clinic.csv").drop(columns="diagnosis")
    clinic["g3"] = [number % 18 for number in range(len(clinic))]
    clinic.loc[:3, "g3"] = None
    clinic.to_csv(folder / "clinic.csv", index=False)
    said = " ".join(call("init", "--yes").out.split())
    assert (
        "'g3' has 18 different whole numbers, and is taken for a number to predict"
        in said
    )
    assert "'clinic' has 4 rows without a label in 'g3'; they are left out." in said
    assert Settings.from_toml(folder / "federation.toml").data.task == "regression"
    assert call("init", "--yes", "--force", "--task", "classification").code == 0
    assert Settings.from_toml(folder / "federation.toml").data.task == "classification"
    assert "--task is one of classification, regression" in call.fails(
        2, "init", "--yes", "--force", "--task", "both"
    )


def test_a_label_is_not_guessed_from_its_looks(call: Caller, folder: Path) -> None:
    clinic = pd.read_csv(folder / "clinic.csv").rename(columns={"diagnosis": "nb"})
    clinic.to_csv(folder / "clinic.csv", index=False)
    failed = " ".join(call.fails(2, "init", "--yes").split())
    assert "Say what to predict, as --label clinic.nb" in failed
    assert not (folder / "federation.toml").exists()
    named = call("init", "--yes", "--label", "nb", "--id", "clinic.patient", "--quick")
    assert named.code == 0, named.err
    settings = Settings.from_toml(folder / "federation.toml")
    assert (settings.algorithm, settings.data.id) == ("one_shot", "patient")
    assert "--quick" not in named.out


def test_tables_with_row_numbers_of_pandas_run(call: Caller, folder: Path) -> None:
    for name in ("clinic", "scan"):
        pd.read_csv(folder / f"{name}.csv").to_csv(folder / f"{name}.csv")
    called = call("init", "clinic.csv", "scan.csv", "--yes", "--quick")
    assert called.code == 0, called.err
    columns = Settings.from_toml(folder / "federation.toml").parties["scan"].columns
    assert columns == ("size", "edge")
    assert call("run", "federation.toml", "--quiet").code == 0


def test_where_nobody_answers_it_is_one_message_and_code_2(
    call: Caller, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer(monkeypatch)
    called = call("init")
    assert called.code == 2
    assert (
        "Nobody answers: the input has ended. Take every sure guess with --yes."
        in called.err
    )

    def interrupted(*_: object) -> str:
        raise KeyboardInterrupt

    monkeypatch.setattr(sys.stdin, "readline", interrupted)
    assert call("init").code == 130
