"""`colonnade tune` searches by validation rows within what it said, goes on where it
stopped; `run --set`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.cli.called import Caller
from tests.federation.small import Tables, entries, frames, quick, splitnn, write

from colonnade.errors import Diverged
from colonnade.federation import Settings
from colonnade.federation.fit import fit
from colonnade.planning import tuning

ONE = splitnn(train={"epochs": 2, "batch_size": 16}, algorithm={"learning_rate": 0.05})


def noisy(**budget: float) -> Tables:
    rule = {"embedding": {"mechanism": {"name": "gaussian", "sigma": 4.0, "clip": 1.0}}}
    return {
        **ONE,
        "parties": {"lab": {"outbox": rule, "budget": {"delta": 1e-5, **budget}}},
    }


def lines(out: Path) -> list[dict[str, Any]]:
    return [
        json.loads(line) for line in (out / "trials.jsonl").read_text().splitlines()
    ]


def test_it_says_first_what_it_sends_and_then_chooses_by_validation_rows_alone(
    call: Caller, tmp_path: Path
) -> None:
    file = write(tmp_path, settings=ONE)
    out = tmp_path / "search"
    called = call("tune", file, "--runs", 3, "--out", out, "--json")
    assert called.code == 0, called.err
    told = json.loads(called.out)
    found = lines(out)
    assert [one["trial"] for one in found] == [0, 1, 2]
    assert found[0]["changes"] == {}
    assert set(found[1]["changes"]) == {
        "algorithm.learning_rate",
        "train.batch_size",
        "model.hidden",
        "preprocess.numbers",
    }
    assert (
        "3 runs of splitnn, of which 3 to be done, all parties in this process"
        in called.err
    )
    assert "nothing is spent, and nothing is promised" in called.err
    assert {one["by"] for one in found} == {"loss"}, (
        "of few validation rows, as early stopping has it"
    )
    best = min(found, key=lambda one: one["validation"]["loss"])
    assert told["best"] == best["trial"]
    # which has the test rows of a whole run, too
    assert sum(one["sent"] for one in found) <= told["forecast"]["sends"]
    chosen = Settings.from_toml(out / "federation.toml")
    assert chosen == Settings.from_toml(
        out / best["run"] / "federation.toml", saved=True
    )
    for one in found:
        summary = json.loads((out / one["run"] / "summary.json").read_text())
        assert "test" not in summary["metrics"]
        assert "test" in summary["not_measured"]
        used = {
            str(entry["batch"]).replace("[", "/").partition("/")[0]
            for entry in entries(out / one["run"])
        }
        assert used & {"train", "validation", "test"} == {"train", "validation"}
    assert (
        call("run", out / "federation.toml", "--out", tmp_path / "run", "--quiet").code
        == 0
    )
    assert (
        "test" in json.loads((tmp_path / "run" / "summary.json").read_text())["metrics"]
    )


def test_a_search_that_was_stopped_goes_on_as_it_would_have(
    call: Caller, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = write(tmp_path, settings=ONE)
    whole = tmp_path / "whole"
    parts = tmp_path / "parts"
    assert call("tune", file, "--runs", 3, "--out", whole, "--quiet").code == 0
    tried = tuning._run_trial

    def killed(trial: tuning.Trial, out: Path, watch: Any) -> Any:
        def stop(part: float) -> None:
            if trial.number == 1 and part > 0.6:
                raise KeyboardInterrupt
            watch(part)

        return tried(trial, out, stop)

    monkeypatch.setattr(tuning, "_run_trial", killed)
    stopped = call("tune", file, "--runs", 3, "--out", parts, "--quiet")
    assert stopped.code == 130
    assert (
        "Stopped after 1 trial. The same command goes on: colonnade tune" in stopped.err
    )
    monkeypatch.setattr(tuning, "_run_trial", tried)
    assert [one["trial"] for one in lines(parts)] == [0]
    assert (parts / "trial-001" / "federation.toml").exists()
    assert call("tune", file, "--runs", 2, "--out", parts, "--quiet").code == 0
    assert call("tune", file, "--runs", 3, "--out", parts, "--quiet").code == 0
    assert "3/3 best" in call("tune", file, "--runs", 3, "--out", parts).err, (
        "all was done"
    )
    assert [{**one, "seconds": 0} for one in lines(parts)] == [
        {**one, "seconds": 0} for one in lines(whole)
    ]
    assert (parts / "federation.toml").read_text() == (
        whole / "federation.toml"
    ).read_text()


def test_of_equal_scores_the_lower_loss_is_better_and_a_failed_trial_is_last() -> None:
    scores = [None, (1.0, -0.3), (1.0, -0.1), (0.9, -0.01), (0.9, -0.01)]
    done = {
        number: {"trial": number, "score": one} for number, one in enumerate(scores)
    }
    assert [one["trial"] for one in tuning.ranked(done)] == [2, 1, 3, 4, 0]


def test_a_table_tells_the_trials_and_the_bytes(call: Caller, tmp_path: Path) -> None:
    called = call(
        "tune", write(tmp_path, settings=ONE), "--runs", 2, "--out", tmp_path / "search"
    )
    for part in (
        "They send about",
        "kB in all",
        "learning rate",
        "Test rows were not looked at",
        "as in the file",
        "colonnade run",
    ):
        assert part in called.out
    first = next(row for row in called.out.splitlines() if row.split()[1:2] == ["0"])
    assert "0.05" in first.split(), "the file's own settings are shown, too"


def test_a_budget_covers_every_run_or_nothing_is_sent(
    call: Caller, tmp_path: Path
) -> None:
    out = tmp_path / "search"
    one = write(tmp_path / "small", settings=noisy(epsilon=3.0))
    called = call("tune", one, "--runs", 1, "--out", tmp_path / "single", "--json")
    assert "All 1 together spend epsilon" in called.err
    paid = [
        json.loads(line)["epsilon"]["lab"]
        for line in (tmp_path / "single/trial-000/metrics.jsonl").open()
    ]
    assert json.loads(called.out)["forecast"]["epsilon"]["lab"] == pytest.approx(
        paid[-1]
    )
    message = call.fails(2, "tune", one, "--runs", 40, "--out", out)
    assert (
        "'lab' has a budget of epsilon 3, and 40 runs of 2 epochs would spend"
        in message
    )
    assert not out.exists()
    # nor does it go on with one begun
    message = call.fails(2, "tune", one, "--runs", 40, "--out", tmp_path / "single")
    assert "would spend" in message


def test_a_trial_that_was_broken_off_is_paid_for_twice(
    call: Caller, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It releases rows again when it goes on: a budget for two runs is then not enough
    for two trials."""
    free = write(tmp_path / "free", settings=noisy(epsilon=100.0))
    two = json.loads(
        call("tune", free, "--runs", 2, "--out", tmp_path / "both", "--json").out
    )["forecast"]["epsilon"]
    file = write(tmp_path / "just", settings=noisy(epsilon=two["lab"] * 1.001))
    out = tmp_path / "search"

    def killed(*_: Any, **__: Any) -> Any:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("colonnade.planning.tuning.fit", killed)
        assert call("tune", file, "--runs", 2, "--out", out, "--quiet").code == 130
    assert "and 3 runs (1 of them broken off) of 2 epochs would spend" in call.fails(
        2, "tune", file, "--runs", 2, "--out", out
    )
    assert call("tune", file, "--runs", 1, "--out", out, "--quiet").code == 0


def test_settings_with_which_it_diverges_are_a_failed_trial(
    call: Caller, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def diverges(federation: Any, out: Path, **more: Any) -> Any:
        if out.name == "trial-001":
            raise Diverged("The loss is no number.")
        return fit(federation, out, **more)

    monkeypatch.setattr("colonnade.planning.tuning.fit", diverges)
    called = call(
        "tune", write(tmp_path, settings=ONE), "--runs", 2, "--out", tmp_path / "search"
    )
    assert called.code == 0
    assert "failed" in called.out
    assert lines(tmp_path / "search")[1]["failed"] == "The loss is no number."


def test_other_settings_or_another_folder_are_refused(
    call: Caller, tmp_path: Path
) -> None:
    file = write(tmp_path, settings=ONE)
    out = tmp_path / "search"
    assert call("tune", file, "--runs", 1, "--out", out, "--quiet").code == 0
    assert "other settings or another seed" in call.fails(
        2, "tune", file, "--runs", 2, "--out", out, "--seed", 5
    )
    assert "something else than a search" in call.fails(
        2, "tune", file, "--runs", 2, "--out", tmp_path
    )
    (out / "trials.jsonl").write_text("{\n")
    assert "a line that is no trial" in call.fails(
        2, "tune", file, "--runs", 1, "--out", out
    )


def test_without_validation_rows_or_with_drawn_labels_it_is_refused(
    call: Caller, tmp_path: Path
) -> None:
    none = write(tmp_path / "none", settings={**ONE, "data": {"validation": 0.0}})
    assert "validation rows, and there are none" in call.fails(
        2, "tune", none, "--out", tmp_path / "search"
    )
    rule = {"labels": {"mechanism": {"name": "randomized_response", "epsilon": 2.0}}}
    drawn = write(
        tmp_path / "drawn", settings={**ONE, "parties": {"clinic": {"outbox": rule}}}
    )
    assert "drawn at random, anew in each run" in call.fails(
        2, "tune", drawn, "--out", tmp_path / "search"
    )


@pytest.mark.parametrize("algorithm", ["logistic_regression", "boosted_trees", "knn"])
def test_what_is_searched_over_follows_from_what_an_algorithm_has(
    algorithm: str, tmp_path: Path
) -> None:
    settings = Settings.from_mapping(
        {"algorithm": {"name": algorithm}, "train": {"epochs": 2, "batch_size": 16}}
    )
    found = set(tuning.choices(settings))
    assert (
        found
        == {
            "logistic_regression": {"algorithm.l2", "preprocess.numbers"},
            "boosted_trees": {"algorithm.learning_rate", "algorithm.l2"},
            "knn": set(),
        }[algorithm]
    )


def test_run_takes_settings_and_keeps_them_and_its_own_file_resumes_it(
    call: Caller, tmp_path: Path
) -> None:
    file = write(tmp_path, frames(60), quick())
    out = tmp_path / "run"
    assert (
        call(
            "run",
            file,
            "--out",
            out,
            "--quiet",
            "--set",
            "train.epochs=1",
            "--set",
            "model.width=5",
        ).code
        == 0
    )
    kept = Settings.from_toml(out / "federation.toml", saved=True)
    assert (kept.train.epochs, kept.model["width"]) == (1, 5)
    message = call.fails(
        2, "run", file, "--out", out, "--resume", "--set", "train.epochs=2"
    )
    assert f"colonnade run {out / 'federation.toml'} --out {out} --resume" in message
    message = call.fails(2, "run", file, "--out", out, "--resume")
    assert (
        f"now and was 5. Undo it, name the run's own file, {out / 'federation.toml'}"
        in message
    )
    told = call("run", out / "federation.toml", "--out", out, "--resume", "--quiet")
    assert (told.code, told.err) == (0, "")
    assert "that all agreed on" in call.fails(
        2, "run", file, "--engine", "flare", "--set", "train.epochs=2"
    )
    assert "did you mean 'epochs'" in call.fails(
        2, "run", file, "--set", "train.epoch=2"
    )
