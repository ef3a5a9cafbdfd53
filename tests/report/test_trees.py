"""A report of trees shows whose splits gained, the first trees, and nobody's thresholds
but the reader's own."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from tests.federation import small_sites
from tests.federation.small import frames, quick, write

from colonnade.federation import Federation
from colonnade.report.facts import Facts, read
from colonnade.report.figures import figures
from colonnade.report.page import render
from colonnade.report.trees import DEEPEST, tree_figures
from colonnade.sites.driving import drive

TREES = {
    "name": "boosted_trees",
    "encryption": "none",
    "depth": 3,
    "bins": 6,
    "min_rows": 2,
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    settings = {**quick(train={"epochs": 4, "early_stop": False}), "algorithm": TREES}
    with pytest.warns(UserWarning, match="without encryption"):
        Federation.from_toml(write(tmp_path, frames(90), settings)).fit(
            tmp_path / "run"
        )
    return tmp_path / "run"


def test_everybody_sees_whose_splits_gained_and_nobody_a_threshold(
    folder: Path,
) -> None:
    facts = read(folder)
    made = figures(facts)
    assert {"gains", "tree_1", "tree_2", "tree_3"} <= set(made)
    assert "own_columns" not in made
    assert facts.trees is not None
    assert sum(facts.trees["importance"].values()) == pytest.approx(1)
    page = render(facts)
    assert 'id="trees"' in page
    assert "goes left" not in page
    owned = [
        node
        for tree in facts.trees["first"]
        for node in tree["nodes"]
        if "threshold" in node
    ]
    assert owned  # the label owner's own file has them
    assert {node["party"] for node in owned} == {"clinic"}
    assert not any(
        f"{node['threshold']:.4g}" in figure.svg
        for node in owned
        for figure in tree_figures(facts)
    )
    assert made["progress"].headings[0] == "round"


def test_an_organisation_sees_its_own_columns_and_thresholds(tmp_path: Path) -> None:
    settings = {
        **quick(federation={"cohort": "off", "device": "cpu"}),
        "algorithm": {**TREES, "encryption": "elgamal"},
    }
    small_sites.folders(tmp_path, settings=settings)
    drive(small_sites.sites(tmp_path)["clinic"], "run")
    for name in ("clinic", "lab"):
        run = tmp_path / name / "runs" / "run"
        facts = read(run)
        own = json.loads((run / "parties" / name / "importance.json").read_text())
        assert facts.own_columns == own
        assert sum(own.values()) == pytest.approx(1 if own else 0)
        assert ("own_columns" in figures(facts)) == bool(own)
        assert (facts.trees is not None) == (name == "clinic")
        page = render(facts)
        assert ("goes left" in page) == any(
            node["party"] == name
            for tree in (facts.trees or {"first": []})["first"]
            for node in tree["nodes"]
        )


def test_a_deep_tree_is_cut_and_says_so_and_a_leaf_is_a_tree() -> None:
    nodes = [
        {
            "party": "a",
            "split": at,
            "gain": 1.0,
            "left": 2 * at + 1,
            "right": 2 * at + 2,
        }
        for at in range(127)
    ]
    leaves = [{"party": None, "value": 0.5} for _ in range(128)]
    first = [
        {"round": 0, "output": 0, "nodes": [*nodes, *leaves]},
        {"round": 1, "output": 0, "nodes": leaves[:1]},
    ]
    facts = replace(read_nothing(), trees={"importance": {"a": 1.0}, "first": first})
    _, deep, leaf = tree_figures(facts)
    assert f"Below level {DEEPEST} it goes on" in deep.note
    assert deep.svg.count("<circle") == 2 ** (DEEPEST + 1) - 1
    assert len(deep.rows) == 255
    assert leaf.svg.count("<rect") >= 1
    assert leaf.note == ""


def read_nothing() -> Facts:
    return Facts("run")
