"""`colonnade explain`."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from tests.cli.called import Caller
from tests.federation import small_multi
from tests.federation.small import federation, frames, quick, write

from colonnade.errors import ConfigError
from colonnade.explain import Report
from colonnade.federation import Federation, Settings

pytest.importorskip("matplotlib")
Image = pytest.importorskip("PIL.Image")
NAMES = [f"client_{number:02d}" for number in range(1, 5)]


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run; tests write beside it."""
    run = tmp_path_factory.mktemp("digits") / "run"
    tables = quick(
        data={"dataset": "digits", "split": "strips", "parts": 4},
        train={"batch_size": 256},
    )
    Federation.from_settings(Settings.from_mapping(tables)).fit(run)
    return run


def test_a_run_is_explained_in_tables_files_and_pictures(
    call: Caller, digits: Path
) -> None:
    called = call("explain", digits, "--rows", 120)
    assert called.code == 0, called
    for word in (
        "How much each party matters",
        "shuffled",
        "silenced",
        "noise",
        "Spearman",
        *NAMES,
        "importance.png",
    ):
        assert word in called.out
    assert "left out" not in called.out
    folder = digits / "explain"
    names = [
        "explain.json",
        "importance.png",
        "importance.svg",
        "tsne.json",
        "tsne.png",
        "tsne.svg",
    ]
    assert sorted(path.name for path in folder.iterdir()) == names
    for name in ("importance.png", "tsne.png"):
        with Image.open(folder / name) as picture:
            low, high = picture.convert("L").getextrema()
            assert low < 100
            assert high == 255
    report = Report.from_json((folder / "explain.json").read_text())
    assert report.parties == NAMES
    assert report.rows == 120


def test_json_goes_to_machines(call: Caller, digits: Path, tmp_path: Path) -> None:
    called = call(
        "explain",
        digits,
        "--json",
        "--no-pictures",
        "--out",
        tmp_path,
        "--rows",
        60,
        "--by",
        "permutation",
    )
    assert called.code == 0
    assert called.err == ""
    assert called.out == (tmp_path / "explain.json").read_text()
    found = json.loads(called.out)
    assert found["ranked_by"] == "permutation"
    assert list(found["measures"]["head_norm"]) == NAMES
    assert not list(tmp_path.glob("*.png"))
    quiet = call(
        "explain", digits, "--quiet", "--no-pictures", "--out", tmp_path, "--rows", 60
    )
    assert (quiet.code, quiet.out, quiet.err) == (0, "", "")


@pytest.mark.long
def test_training_again_is_announced_and_added(call: Caller, tmp_path: Path) -> None:
    run = tmp_path / "run"
    Federation.from_toml(write(tmp_path / "tables", frames(task="regression"))).fit(run)
    called = call("explain", run, "--retrain", "--train-noise", 2, "--noisy", "lab")
    assert called.code == 0, called
    assert "Training again 3 times, about" in called.err
    assert "left out" in called.out
    assert "Trained with noise at lab, σ = 2" in called.out
    made = {path.name for path in (run / "explain").iterdir()}
    assert {"summarization.png", "denoising.png", "denoising.svg"} <= made
    (run / "summary.json").unlink()
    again = call("explain", run, "--retrain", "--no-pictures", "--out", tmp_path / "b")
    assert "Training again 3 times.\n" in again.err


def test_what_was_measured_is_kept_when_training_fails(
    call: Caller, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Federation.from_toml(write(tmp_path / "tables")).fit(tmp_path / "run")

    def diverge(*_: object, **__: object) -> None:
        raise ConfigError("Training diverged.")

    monkeypatch.setattr("colonnade.explain.report.retrain", diverge)
    assert "Training diverged" in call.fails(
        2, "explain", tmp_path / "run", "--retrain", "--no-pictures"
    )
    assert (tmp_path / "run" / "explain" / "explain.json").exists()


def test_algorithms_without_heads_say_so(call: Caller, tmp_path: Path) -> None:
    settings = {**quick(), "algorithm": {"name": "fdml"}}
    Federation.from_toml(write(tmp_path / "tables", settings=settings)).fit(
        tmp_path / "run"
    )
    called = call("explain", tmp_path / "run", "--no-pictures")
    assert called.code == 0
    assert "fdml: heads stay at the parties" in called.out
    assert "head norm" not in called.out.split("fdml: heads")[0]


def test_what_cannot_be_explained_is_one_message_and_code_2(
    call: Caller, digits: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "is not a run directory" in call.fails(2, "explain", tmp_path)
    assert "There is no folder" in call.fails(2, "explain", tmp_path / "none")
    assert "--noise must be a number that is not negative" in call.fails(
        2, "explain", digits, "--noise", -1
    )
    assert "--train-noise must be" in call.fails(
        2, "explain", digits, "--train-noise", "nan"
    )
    assert "--noisy names one of client_01" in call.fails(
        2, "explain", digits, "--retrain", "--noisy", "lab"
    )
    assert "Add --retrain" in call.fails(2, "explain", digits, "--noisy", "client_01")
    message = call.fails(
        2, "explain", digits, "--by", "weight", "--rows", 20, "--no-pictures"
    )
    assert "can be ranked by head_change" in message
    (tmp_path / "file").write_text("")
    for place, engine in (
        (tmp_path / "file", "in-process"),
        ("/proc", "in-process"),
        (tmp_path / "file", "flare"),
    ):
        options = ("--rows", 20, "--no-pictures", "--out", place, "--engine", engine)
        assert f"cannot be written to {place}: " in call.fails(
            2, "explain", digits, *options
        )


def test_tables_must_still_be_where_the_run_says(call: Caller, tmp_path: Path) -> None:
    Federation.from_toml(write(tmp_path / "tables")).fit(tmp_path / "run")
    shutil.move(tmp_path / "tables" / "lab.csv", tmp_path / "lab.csv")
    assert "lab.csv" in call.fails(2, "explain", tmp_path / "run")
    federation().fit(tmp_path / "frames")
    assert "[parties.clinic] must name its table" in call.fails(
        2, "explain", tmp_path / "frames"
    )


def test_each_of_several_label_owners_has_an_explanation_of_its_own_rows(
    tmp_path: Path, call: Caller
) -> None:
    Federation.from_toml(
        small_multi.write(tmp_path / "all", small_multi.quick(train={"epochs": 1}))
    ).fit(tmp_path / "run")
    given = (tmp_path / "run", "--no-pictures", "--json")
    north, south = (
        json.loads(call("explain", *given, "--as", name).out)
        for name in small_multi.LABELS
    )
    assert north["rows"] != south["rows"]
    assert sorted(south["ranking"]) == sorted(small_multi.COLUMNS)
    assert "without --retrain" in call.fails(2, "explain", *given, "--retrain")
    assert "train again with all columns" in call.fails(
        2, "explain", *given, "--retrain", "--engine", "flare-sim"
    )
