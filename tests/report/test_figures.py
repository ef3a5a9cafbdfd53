"""Figures carry the numbers of the run, and exist only where the run has them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from tests.report.made import Page

from colonnade.evaluate import wilson
from colonnade.report.facts import Facts, read
from colonnade.report.figures import figures

EVERY = {
    "baselines",
    "progress",
    "loss",
    "bytes",
    "streams",
    "traffic",
    "importance",
    "selection",
    "attacks",
    "timing",
}
EVERY |= {"roc", "precision_recall", "lift", "calibration", "distribution"}


def test_every_figure_of_a_run_that_has_everything(noisy_facts: Facts) -> None:
    made = figures(noisy_facts)
    assert set(made) == EVERY
    for name, figure in made.items():
        assert figure.name == name
        assert Page(figure.svg).values("aria-label") == [figure.title]


def test_curves_hold_every_epoch(noisy_facts: Facts) -> None:
    made = figures(noisy_facts)
    records = noisy_facts.metrics
    assert made["loss"].rows == [
        (one["epoch"], one["loss"], one["validation"]["loss"]) for one in records
    ]
    assert made["progress"].rows == [
        (one["epoch"], one["validation"]["accuracy"]) for one in records
    ]
    assert made["bytes"].rows == [
        (one["bytes"], one["validation"]["accuracy"]) for one in records
    ]
    assert made["timing"].rows == [(one["epoch"], one["seconds"]) for one in records]
    drawn = json.loads(Page(made["loss"].svg).values("data-chart")[0])["series"][0]["y"]
    assert drawn == pytest.approx([one["loss"] for one in records], rel=1e-6)


def test_baselines_are_shown_with_their_means_and_intervals(noisy_facts: Facts) -> None:
    found = noisy_facts.baselines
    assert found is not None
    shown = dict(figures(noisy_facts)["baselines"].rows)
    expected = {
        f"{party} alone": scores[0]["accuracy"]
        for party, scores in found["alone"].items()
    }
    expected |= {
        "together": found["joint"][0]["accuracy"],
        "all in one place": found["together"][0]["accuracy"],
    }
    expected |= {name: scores[0]["accuracy"] for name, scores in found["usual"].items()}
    assert len(found["usual"]) == 2
    assert shown == {name: f"{value:.4f}" for name, value in expected.items()}
    assert "95 %" in figures(noisy_facts)["baselines"].note
    assert (
        wilson(found["joint"][0]["accuracy"] * found["rows"], found["rows"])[0]
        < found["joint"][0]["accuracy"]
    )
    twice = {"splits": 2, "joint": [{"accuracy": 0.5}, {"accuracy": 0.75}]}
    several = replace(noisy_facts, baselines=found | twice)
    assert dict(figures(several)["baselines"].rows)["together"] == "0.6250"


def test_an_attack_between_long_names_says_who_and_what(noisy_facts: Facts) -> None:
    assert noisy_facts.audit is not None
    found = noisy_facts.audit["findings"][0]
    long = {
        "attacker": "clinic_of_internal_medicine_and_cardiology",
        "victim": "laboratory_north_of_the_river",
    }
    figure = figures(replace(noisy_facts, audit={"findings": [found, found | long]}))[
        "attacks"
    ]
    first, second = (
        one.split("<title>")[0] for one in figure.svg.split('class="label"')[1:]
    )
    assert f"{found['attacker']} on {found['victim']}: {found['attack']}" in first
    assert "clin" in second
    assert "iver: " in second
    assert (
        f"{long['attacker']} on {long['victim']}: "
        in Page(figure.svg).values("data-tip")[1]
    )


def test_a_run_that_has_only_begun_has_no_figures() -> None:
    assert figures(Facts(name="x")) == {}


def test_each_label_owner_has_its_curve(multi: Path) -> None:
    facts = read(multi)
    figure = figures(facts)["progress"]
    assert figure.headings == ("round", "all rows", "rows of north", "rows of south")
    each = [one["validation_each"]["south"]["accuracy"] for one in facts.metrics]
    assert [row[-1] for row in figure.rows] == each
