"""`colonnade plan`: tables for people, JSON for machines, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.cli.called import Caller
from tests.federation import small_multi
from tests.planning.three import GAUSSIAN, tables, write

from colonnade.cli.plan import duration

TWICE = small_multi.quick(algorithm={"local_epochs": 2})


def test_it_says_who_what_how_often_how_long_and_epsilon(
    call: Caller, tmp_path: Path
) -> None:
    lab = {"outbox": GAUSSIAN, "budget": {"epsilon": 4.0}}
    path = write(
        tmp_path, tables(parties={"lab": lab}, train={"epochs": 5, "early_stop": True})
    )
    called = call("plan", path, "--network", "20ms,10Mbit", "--batches", "2")
    assert called.code == 0, called.err
    for part in (
        "vimadmm, classification: 63 train, 9 validation, 18 test rows; on cpu.",
        "5 epochs of 4 batches of up to 16 rows: 20 rounds.",
        "at most: early_stop may end the run sooner",
        "Time here: about",
        "Over the network:",
        "'lab' needs",
        "of its budget of 4",
        "ends in epoch 2 of 5",
        "epsilon is infinite for the columns of 'scan'",
        "Nothing was sent or written",
        f"colonnade run {path}",
    ):
        assert part in called.out, part
    assert sorted(one.name for one in tmp_path.iterdir()) == [
        "clinic.csv",
        "federation.toml",
        "lab.csv",
        "scan.csv",
    ]


def test_it_shows_what_sigma_became_and_warns_where_it_is_many_times_the_clip(
    call: Caller, tmp_path: Path
) -> None:
    rule = {
        "embedding": {"mechanism": {"name": "gaussian", "clip": 1.0, "sigma": "auto"}}
    }
    lab = {"outbox": rule, "budget": {"epsilon": 8.0}}
    path = write(tmp_path, tables(parties={"lab": lab}, train={"epochs": 93}))
    words = " ".join(call("plan", path, "--batches", 1).out.split())
    assert (
        "What sigma = \"auto\" became: 'lab' 11.6 times its clip (embedding)." in words
    )
    assert (
        "The noise of 'lab' is 11.6 times its clip, on every number of embedding"
        in words
    )
    assert "for 93 epochs" in words
    assert "Train fewer epochs" in words
    words = " ".join(
        call("plan", path, "--batches", 1, "--set", "train.epochs=3").out.split()
    )
    assert "'lab' 2.08 times its clip (embedding)." in words
    assert "The noise of 'lab' is" not in words
    planned = json.loads(call("plan", path, "--batches", 1, "--json").out)
    sigmas = {party["name"]: party["sigma"] for party in planned["parties"]}
    assert sigmas == {
        "clinic": {},
        "lab": {"embedding": pytest.approx(11.58, 1e-3)},
        "scan": {},
    }


def test_json_has_the_bytes_of_the_run(call: Caller, tmp_path: Path) -> None:
    path = write(tmp_path, tables())
    planned = json.loads(
        call("plan", path, "--json", "--engine", "flare-sim", "--seed", "3").out
    )
    called = call("run", path, "--json", "--seed", "3", "--out", tmp_path / "run")
    done = json.loads(called.out)
    assert planned["bytes"] == done["bytes"]
    assert planned["privacy"] == done["privacy"]
    assert planned["rounds"] == done["rounds"] == 12
    assert {party["name"]: party["parameters"] for party in planned["parties"]}[
        "lab"
    ] == 46


def test_settings_may_be_other_than_the_files_as_with_run(
    call: Caller, tmp_path: Path
) -> None:
    path = write(tmp_path, tables())
    called = call(
        "plan",
        path,
        "--set",
        "train.batch_size=21",
        "--set",
        "model.hidden=[5, 5]",
        "--batches",
        1,
    )
    assert "batches of up to 21 rows" in called.out
    assert (
        f"colonnade run {path} --set train.batch_size=21 --set 'model.hidden=[5, 5]'"
        in called.out
    )
    assert "--set takes KEY=VALUE" in call.fails(2, "plan", path, "--set", "epochs")


def test_several_label_owners_have_rounds(call: Caller, tmp_path: Path) -> None:
    assert "in each 18 batches" in call("plan", small_multi.write(tmp_path, TWICE)).out
    called = call("plan", small_multi.write(tmp_path))
    assert "3 rounds, in each 9 batches of up to 16 rows" in called.out
    assert "labels of 'north', 'south'" in called.out


def test_what_is_not_trained_is_scored(call: Caller, tmp_path: Path) -> None:
    called = call(
        "plan",
        write(tmp_path, tables(algorithm={"name": "knn", "aggregation": "plain"})),
    )
    assert "Nothing is trained; rows are scored once" in called.out
    run = call("run", tmp_path / "federation.toml", "--out", tmp_path / "run")
    assert "s; nothing is trained." in run.out
    assert "epoch" not in run.out
    report = tmp_path / "report.html"
    assert call("report", tmp_path / "run", "--out", report).code == 0
    assert "0 epochs" not in report.read_text()
    assert "knn with plain aggregation" in called.out  # the algorithm's own warning


@pytest.mark.parametrize("name", ["party.toml", "federation.toml"])
def test_files_of_a_deployment_are_told_what_to_do_instead(
    name: str, call: Caller, tmp_path: Path
) -> None:
    (tmp_path / name).write_text('[parties.clinic]\nlabel = "y"\n[parties.lab]\n')
    message = call.fails(2, "plan", tmp_path / name)
    assert "A plan needs every party's table" in message
    assert "colonnade party check party.toml" in message


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--network", "0mbit"], "bandwidth above 0"),
        (["--network", "fast"], "as in 50ms,100mbit"),
        (
            ["--engine", "foo"],
            (
                "There is no engine 'foo'; there are in-process, flare-sim, flare-poc,"
                " flare"
            ),
        ),
    ],
)
def test_bad_options(
    options: list[str], words: str, call: Caller, tmp_path: Path
) -> None:
    assert words in call.fails(2, "plan", write(tmp_path, tables()), *options)


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0, "0.0 s"),
        (0.01, "less than 0.1 s"),
        (3.21, "3.2 s"),
        (61, "61 s"),
        (200, "3 min 20 s"),
        (15_000, "4 h 10 min"),
    ],
)
def test_durations(seconds: float, words: str) -> None:
    assert duration(seconds) == words


def test_a_run_rehearses_a_network_and_ends_with_the_same_numbers(
    call: Caller, tmp_path: Path
) -> None:
    path = write(tmp_path, tables(train={"epochs": 1}))
    near = json.loads(call("run", path, "--json", "--out", tmp_path / "near").out)
    far = json.loads(
        call("run", path, "--json", "--network", "5ms", "--out", tmp_path / "far").out
    )
    # the first one imports, too
    again = json.loads(call("run", path, "--json", "--out", tmp_path / "again").out)
    assert far["metrics"] == near["metrics"] == again["metrics"]
    assert far["seconds"] > again["seconds"]
    assert "between sites there is one" in call.fails(
        2, "run", path, "--network", "5ms", "--engine", "flare-sim"
    )
