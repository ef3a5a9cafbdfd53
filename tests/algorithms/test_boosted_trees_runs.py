"""Boosted trees from the outside: runs, resumed runs, sites, predictions, plans and
explanations."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.cli.called import Caller
from tests.federation import small_sites
from tests.federation.small import frames, quick, write

from colonnade.explain import explain
from colonnade.federation import Federation, Settings, load
from colonnade.planning import measure
from colonnade.planning.plan import plan
from colonnade.sites.driving import drive


def tables(encryption: str = "elgamal", **changes: Any) -> dict[str, Any]:
    trees = {
        "name": "boosted_trees",
        "encryption": encryption,
        "depth": 2,
        "bins": 6,
        "learning_rate": 0.5,
        "min_rows": 2,
        **changes.pop("algorithm", {}),
    }
    train = {"epochs": 3, "early_stop": False, **changes.pop("train", {})}
    return {**quick(train=train, **changes), "algorithm": trees}


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Caller:
    return Caller(monkeypatch, capfd)


@pytest.mark.parametrize(
    "more", [{}, {"ensemble": "forest", "row_share": 0.7}], ids=["boosted", "forest"]
)
def test_it_runs_resumes_and_predicts_bit_equal(
    call: Caller, tmp_path: Path, more: dict[str, Any]
) -> None:
    whole = Federation.from_toml(
        write(tmp_path / "whole", frames(90), tables(algorithm=more))
    )
    whole.fit()
    file = write(
        tmp_path / "half", frames(90), tables(algorithm=more, train={"epochs": 1})
    )
    assert call("run", file, "--out", tmp_path / "run", "--quiet").code == 0
    file = write(tmp_path / "half", frames(90), tables(algorithm=more))
    assert call("run", file, "--out", tmp_path / "run", "--resume", "--quiet").code == 0
    again = load(tmp_path / "run")
    assert torch.equal(again.outputs("test"), whole.outputs("test"))
    (tmp_path / "rows.csv").write_text("patient\nP003\nP001\n")
    found = call("predict", tmp_path / "run", "--rows", tmp_path / "rows.csv", "--json")
    assert [one["patient"] for one in json.loads(found.out)] == ["P003", "P001"]


def test_organisations_train_it_between_their_sites(tmp_path: Path) -> None:
    file, _ = small_sites.folders(
        tmp_path, settings=tables(federation={"cohort": "off", "device": "cpu"})
    )
    drive(small_sites.sites(tmp_path)["clinic"], "run")
    alone = Federation.from_toml(file)
    alone.fit(tmp_path / "alone")
    runs = tmp_path / "alone", tmp_path / "clinic" / "runs" / "run"
    one, other = (json.loads((run / "summary.json").read_text()) for run in runs)
    assert one["rounds"] == other["rounds"] == 3
    assert one["metrics"]["test"] == other["metrics"]["test"]


def test_it_says_who_matters(tmp_path: Path) -> None:
    federation = Federation.from_toml(write(tmp_path, frames(120), tables("none")))
    federation.fit(tmp_path / "run")
    report = explain(federation, tsne_rows=20)
    assert set(report.ranking) == {"clinic", "lab"}
    assert sum(federation.driver.importance().values()) == pytest.approx(1)


def test_a_plan_says_about_its_bytes(tmp_path: Path) -> None:
    file = write(tmp_path, frames(120), tables())
    planned = plan(Settings.from_toml(file))
    ran = Federation.from_toml(file)
    ran.fit()
    assert any("trees differ in how many splits" in one for one in planned.estimates)
    for name, book in ran.ledgers.items():
        assert planned.bytes[name]["out"] == pytest.approx(book.total("out"), rel=0.2)
        assert planned.bytes[name]["in"] == pytest.approx(book.total("in"), rel=0.2)


def test_a_plans_seconds_are_not_of_the_tree_that_makes_keys(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    laps_of = measure.laps_of

    def slow_at_first(federation: Federation) -> Iterator[measure.Lap]:
        for number, lap in enumerate(laps_of(federation)):
            yield dataclasses.replace(lap, seconds=1.0 if number else 100.0)

    monkeypatch.setattr(measure, "laps_of", slow_at_first)
    federation = Federation.from_toml(write(tmp_path, frames(90), tables("none")))
    found = measure.train(federation.settings, federation.holdings, lambda rows: rows)
    assert found is not None
    assert found.seconds == [1.0]


def test_while_it_trains_validation_rows_are_asked_about_new_rounds_alone(
    tmp_path: Path,
) -> None:
    federation = Federation.from_toml(
        write(tmp_path, frames(90), tables("none", train={"epochs": 4}))
    )
    federation.fit()
    asked = [
        e
        for e in federation.driver.ledger.entries
        if e.batch and e.batch.startswith("validation") and e.peer == "lab"
    ]
    widths = [entry.shape[1] for entry in asked if entry.direction == "in"]
    own = [len(table["column"]) for table in federation.owners["lab"].rounds]
    assert widths == [*own, sum(own)]  # a round at a time, and in the end all of them
