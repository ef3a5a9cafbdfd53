"""What trackers are told: numbers and settings, and no word of a person, a column or a
machine."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.federation.small import federation, quick, write
from tests.federation.small_multi import write as write_multi

from colonnade.federation import Settings
from colonnade.tracking.trackers import LONGEST, numbers_of, parameters_of, totals_of

NOISE = {"embedding": {"mechanism": {"name": "gaussian", "clip": 1.0, "sigma": 8.0}}}
DRAWN = {"labels": {"mechanism": {"name": "randomized_response", "epsilon": 3.0}}}


def test_settings_are_flat_and_hold_no_paths_or_column_names(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        settings=quick(parties={"lab": {"columns": ["zinc"], "outbox": NOISE}}),
    )
    told = parameters_of(Settings.from_toml(path).to_mapping())
    assert told["algorithm.name"] == "vimadmm"
    assert told["train.epochs"] == "2"
    assert told["model.hidden"] == "[6]"
    assert told["parties.lab.outbox.embedding.mechanism.sigma"] == "8.0"
    words = str(told)
    for private in (str(tmp_path), ".csv", "zinc", "iron", "diagnosis", "patient"):
        assert private not in words


def test_owners_in_lists_are_told_by_name(tmp_path: Path) -> None:
    told = parameters_of(Settings.from_toml(write_multi(tmp_path)).to_mapping())
    assert told["data_owners.lab.scale"] == "standard"
    assert told["label_model.hidden"] == "[5]"
    for private in (str(tmp_path), ".csv", "diagnosis", "patient"):
        assert private not in str(told)


def test_a_long_setting_is_cut() -> None:
    told = parameters_of({"model": {"name": "x" * 900}})
    assert len(told["model.name"]) == LONGEST
    assert told["model.name"].endswith("…")


def test_an_epochs_numbers_are_named_by_what_and_whose() -> None:
    record = {
        "epoch": 2,
        "step": 8,
        "loss": 0.5,
        "seconds": 0.1,
        "bytes": 100,
        "validation": {"accuracy": 0.75, "auc": float("nan")},
        "validation_each": {"north": {"accuracy": 0.5}},
        "losses": {"north": 0.25},
        "left_out": {"south": "it failed"},
        "epsilon": {"lab": 1.5, "clinic": float("inf")},
        "missing": {"lab": {"stale": 2, "not_updated": 1}},
    }
    assert numbers_of(record) == {
        "epoch": 2.0,
        "loss": 0.5,
        "seconds": 0.1,
        "bytes": 100.0,
        "validation/accuracy": 0.75,
        "validation_each/north/accuracy": 0.5,
        "losses/north": 0.25,
        "left_out/south": 1.0,
        "epsilon/lab": 1.5,
        "missing/lab": 3.0,
    }


def test_epsilons_are_those_of_the_summary_against_who_knows_the_batches() -> None:
    lab = {"outbox": NOISE, "budget": {"epsilon": 80.0, "relation": "add-or-remove"}}
    trained = federation(
        settings=quick(parties={"lab": lab, "clinic": {"outbox": DRAWN}})
    )
    outcome = trained.fit()
    told = totals_of(outcome.summary)
    assert told["epsilon/lab"] == pytest.approx(trained.accounts["lab"].worst)
    (budget,) = [one["budget"] for one in outcome.summary["privacy"] if one["budget"]]
    assert told["epsilon/lab"] == budget["spent"]
    assert told["epsilon_labels/clinic"] == 3.0
    assert "epsilon/clinic" not in told  # it is promised nothing, and no number says so
    assert told["bytes_out/lab"] == outcome.summary["bytes"]["lab"]["out"]
    assert told["test/accuracy"] == outcome.summary["metrics"]["test"]["accuracy"]
    assert (
        0
        < outcome.history[0]["epsilon"]["lab"]
        < outcome.history[1]["epsilon"]["lab"]
        <= told["epsilon/lab"]
    )
