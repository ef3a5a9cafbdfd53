"""VF-PS's data sets, baselines and times, shortened to seconds. `colonnade reproduce
vf-ps` runs the whole."""

from __future__ import annotations

import itertools
import json
import runpy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from colonnade import reproduction
from colonnade.datasets.preprocess import Labels
from colonnade.federation import Federation, Settings
from colonnade.reproduction import Study
from colonnade.reproduction.cells import cells, script_of
from colonnade.rows.holdings import Columns, Holdings
from colonnade.selection import select_here

TABLE_1 = {  # instances, features, classes, partitions
    "Synthesis": (1000, 50, 2, 5),
    "Simulated G2-4": (2048, 4, 2, 4),
    "Simulated G2-128": (2048, 128, 2, 4),
    "Bank": (3200, 8, 2, 4),
    "Unbalance": (6500, 2, 8, 2),
    "Letter": (20_000, 16, 26, 4),
    "Birch1": (100_000, 2, 100, 2),
    "Birch2": (100_000, 2, 100, 2),
}


@pytest.fixture
def study(data_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Study:
    monkeypatch.setenv("COLONNADE_DATA", str(data_folder))
    return Study(reproduction.plan("vf-ps").shortened())


@pytest.fixture(scope="module")
def script() -> Any:
    return script_of(reproduction.plan("vf-ps"))


@pytest.mark.parametrize("name", TABLE_1)
def test_data_sets_are_those_of_table_1(name: str, study: Study, script: Any) -> None:
    here = script.cut(name, 0)
    rows, features, *_ = TABLE_1[name]
    widths = [columns.shape[1] for columns in here.columns.values()]
    assert (
        len(here.labels),
        sum(widths),
        len(np.unique(here.labels)),
        len(widths),
    ) == TABLE_1[name]
    assert max(widths) - min(widths) <= 1
    assert (len(here.train), len(here.validation), len(here.test)) == (
        rows - 2 * (rows // 10),
        rows // 10,
        rows // 10,
    )
    assert (
        len(np.unique(np.concatenate([here.train, here.validation, here.test]))) == rows
    )
    joined = here.joined(here.parties)[here.train]
    assert np.allclose(joined.mean(0), 0, atol=1e-9)
    assert np.allclose(joined.std(0), 1)
    assert (
        np.abs(np.corrcoef(joined.T) - np.eye(features))[
            np.triu_indices(features, 1)
        ].max()
        < 0.999
    )  # no column twice


def test_seeds_have_their_own_rows_and_partitions(study: Study, script: Any) -> None:
    one, again, other = (script.cut("Bank", seed) for seed in (0, 0, 1))
    assert all(
        np.array_equal(one.columns[name], again.columns[name]) for name in one.columns
    )
    assert not np.array_equal(one.train, other.train)
    assert not np.array_equal(one.joined(one.parties), other.joined(other.parties))


def test_the_paper_leaves_25_percent_out_where_there_are_two_participants() -> None:
    printed = reproduction.plan("vf-ps").figures
    for name, (_, _, _, partitions) in TABLE_1.items():
        for method in ("VF-PS", "brute force"):
            assert printed[f"{name}, kNN, {method}, 50 %"].paper is not None
            assert (f"{name}, kNN, {method}, 25 %" in printed) == (partitions >= 4)


def test_its_knn_is_what_a_federation_predicts(study: Study, script: Any) -> None:
    here = script.cut("Synthesis", 0)
    parties = {
        name: Columns(torch.from_numpy(columns).float())
        for name, columns in here.columns.items()
    }
    splits = {
        "train": torch.from_numpy(here.train),
        "test": torch.from_numpy(here.test),
    }
    encoder = Labels("leader", "classification", (0, 1))
    ids = np.arange(1000).astype(np.str_)
    holdings = Holdings.of_one(
        parties, torch.from_numpy(here.labels), ids, splits, "leader", encoder
    )
    federation = Federation(
        Settings.from_mapping({"algorithm": {"name": "knn", "k": 5, "fade": 0.0}}),
        holdings,
    )
    assert federation.evaluate("test")["accuracy"] == script.knn(
        here, here.parties, here.test
    )


def test_brute_force_is_best_on_the_validation_rows(study: Study, script: Any) -> None:
    here = script.cut("Synthesis", 1)
    seconds = dict[str, float]()
    ranking = {"LASSO": here.parties, "VF-PS": here.parties[::-1]}
    found = script.chosen_groups(here, 2, ranking, seconds)
    scores = {
        group: script.knn(here, group, here.validation)
        for group in itertools.combinations(here.parties, 2)
    }
    assert scores[found["brute force"][0]] == max(scores.values())
    assert len(found["RANDOM"]) == 10
    assert set(found["RANDOM"]) <= set(scores)
    assert found["LASSO"] == [("party_0", "party_1")]
    assert found["VF-PS"] == [("party_3", "party_4")]


@pytest.mark.long
def test_a_cell_measures_accuracies_and_times_and_can_be_drawn(
    study: Study, script: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(script, "RANDOM_DRAWS", 2)
    script.run(study, "Synthesis, seed 0")
    measured = {what: one.mean for what, one in study.measured.items()}
    for model, method in itertools.product(script.MODELS, script.METHODS):
        assert 0.4 <= measured[f"Synthesis, {model}, {method}, 50 %"] <= 1
    assert measured["Synthesis, LR, ALL, 50 %"] >= 0.8  # a hyperplane is what LR finds
    assert all(value > 0 for value in measured.values())
    took = measured["Synthesis, training LR encrypted, extrapolated"]
    assert (
        took / measured["Synthesis, selection"]
        == measured["Synthesis, encrypted LR takes so many selections"]
    )
    expected = {
        what
        for what in reproduction.plan("vf-ps").figures
        if what.startswith("Synthesis,")
    }
    assert expected <= set(measured)
    assert {path.suffix for path in script.draw(study, tmp_path)} == {".png", ".svg"}


def test_extrapolation_counts_batches_parties_logits_and_rows(
    study: Study, script: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    ticks = itertools.count()
    # whatever is measured takes 1 s
    monkeypatch.setattr(script.time, "process_time", lambda: float(next(ticks)))
    monkeypatch.setattr(script, "VALUES", 52_000)
    here = script.cut("Unbalance", 0)
    assert script.encrypted_logistic(here, 7) == 21 * 7 * 2 * 8  # of 256 of 5,200 rows
    # 10 rows have 52,000 distances
    assert script.encrypted_knn(here) == pytest.approx(1300 / 10)


def test_cells_and_the_count_of_close_calls(study: Study, script: Any) -> None:
    plan = reproduction.plan("vf-ps")
    named = cells(plan)
    assert len(named) == len(set(named)) == 3 * 8
    assert cells(plan.shortened()) == ["Unbalance, seed 0", "Synthesis, seed 0"]
    whole = Study(plan)
    for at, name in enumerate(script.SETS):
        whole.record(f"{name}, kNN, VF-PS, 50 %", 0.9)
        whole.record(f"{name}, kNN, brute force, 50 %", 0.919 if at < 5 else 0.921)
    script.finish(whole)
    count = whole.measured[
        "data sets where VF-PS is within 0.02 of brute force, 50 %, of 8"
    ]
    assert (count.mean, count.holds) == (5, False)


def test_the_scale_test_measures_seconds_and_bytes() -> None:
    plan = reproduction.plan("vf-ps-scale")
    assert len(cells(plan)) == 9
    study = Study(plan)
    script_of(plan).run(study, cells(plan)[-1])
    assert set(study.measured) == {
        f"4 participants, 1,000 rows, {what}"
        for what in (
            "processor seconds",
            "MB sent by all",
            "share of rows that are candidates",
        )
    }


@pytest.mark.parametrize(
    ("name", "kind"), [("vf-ps", "tables"), ("vf-ps-scale", "scale")]
)
def test_the_readmes_tables_are_what_was_measured(name: str, kind: str) -> None:
    folder = reproduction.plan(name).folder
    (measured,) = json.loads((folder / "expected.json").read_text(encoding="utf-8"))[
        name
    ]["measured"]
    made = runpy.run_path(str(folder / "tables.py"))[kind](measured["values"])
    assert len(made.splitlines()) > 4
    told = (folder / "README.md").read_text(encoding="utf-8").splitlines()
    assert set(made.splitlines()) <= set(told)


def test_select_then_train_is_one_pipeline() -> None:
    """Three of six parties carry the labels: they are chosen, and their encrypted kNN
    is as good as everybody's."""
    generator = np.random.default_rng(0)
    x = generator.normal(size=(6, 400, 2))
    y = (x[:3].sum((0, 2)) > 0).astype(np.int64)
    columns = {f"party_{at}": part for at, part in enumerate(x)}
    train = torch.arange(300)
    test = torch.arange(300, 400)
    chosen = select_here(columns, y, keep=3, rows=train, queries=128).chosen
    assert sorted(chosen) == ["party_0", "party_1", "party_2"]
    accuracy = {}
    for names in (chosen, tuple(columns)):
        parties = {
            name: Columns(torch.from_numpy(columns[name]).float()) for name in names
        }
        encoder = Labels("leader", "classification", (0, 1))
        ids = np.arange(400).astype(np.str_)
        splits = {"train": train, "test": test}
        holdings = Holdings.of_one(
            parties, torch.from_numpy(y), ids, splits, "leader", encoder
        )
        federation = Federation(
            Settings.from_mapping({"algorithm": {"name": "knn"}}), holdings
        )
        accuracy[names] = federation.evaluate("test")["accuracy"]
    assert accuracy[chosen] >= accuracy[tuple(columns)]
