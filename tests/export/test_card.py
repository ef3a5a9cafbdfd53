"""The card says what the run's summary says."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.export.trained import run

from colonnade.export import export
from colonnade.export.card import LIMITS, _table
from colonnade.federation import load
from colonnade.runs.run_directory import RunDirectory

NOISE = {"embedding": {"mechanism": {"name": "gaussian", "clip": 1.0, "sigma": 8.0}}}


def test_its_numbers_are_the_summarys(tmp_path: Path) -> None:
    rules = {"lab": {"outbox": NOISE, "budget": {"epsilon": 80.0}}}
    folder = run(tmp_path / "at", {"name": "vimadmm", "local_steps": 2}, parties=rules)
    clinic, lab = export(folder, tmp_path / "out")
    card = json.loads((lab / "model_card.json").read_text())
    assert (clinic / "model_card.json").read_text() == (
        lab / "model_card.json"
    ).read_text()
    summary = json.loads((folder / "summary.json").read_text())
    for key in (
        "algorithm",
        "parties",
        "rows",
        "metrics",
        "bytes",
        "privacy",
        "rounds",
    ):
        assert card[key] == summary[key]
    assert (
        sum(one["bytes"] for one in card["crossed"] if one["from"] == "lab")
        == summary["bytes"]["lab"]["out"]
    )
    text = (lab / "README.md").read_text()
    assert all(limit in text for limit in LIMITS)
    for one in summary["privacy"]:
        for told in one["statements"]:
            epsilon = (
                "no guarantee" if told["epsilon"] is None else f"{told['epsilon']:.4g}"
            )
            assert (
                f"| {told['adversary']} | {told['relation']} | {told['accountant']} |"
                f" {epsilon} |" in text
            )
    assert "The train rows were not measured" in text
    assert str(tmp_path) not in text
    assert "Since the run" not in text

    # what is released later is paid for, and the card of a later export says so
    federation = load(folder)
    federation.predict(federation.holdings.ids.tolist())
    (lab,) = export(folder, tmp_path / "later", "lab")
    later = json.loads((lab / "model_card.json").read_text())
    text = (lab / "README.md").read_text()
    (before,), (after,) = (
        [one["budget"] for one in told if one["budget"]]
        for told in (card["privacy"], later["privacy"])
    )
    assert after["spent"] > before["spent"]
    assert later["crossed"] == card["crossed"]
    assert {one["from"] for one in later["crossed_since"]} == {"lab"}
    assert (
        text.index("What each party sent")
        < text.index("Since the run")
        < text.index("What was promised")
    )
    for told in (
        one
        for each in later["privacy"]
        for one in each["statements"]
        if one["epsilon"] is not None
    ):
        assert f"| {told['accountant']} | {told['epsilon']:.4g} |" in text


def test_it_says_what_the_run_says_against_its_model_and_names_no_class(
    tmp_path: Path,
) -> None:
    folder = run(tmp_path / "at", {"name": "splitnn"})
    verdict = "The model learned nothing. Do not use it."
    said = {
        "findings": [verdict],
        "label_findings": ["'clinic' has one row of 'maybe'."],
    }
    RunDirectory(folder).write_summary(
        {**(RunDirectory(folder).summary() or {}), **said}
    )
    for organisation in export(folder, tmp_path / "out"):
        text = (organisation / "README.md").read_text()
        assert (
            text.index("# run")
            < text.index(f"**{verdict}**")
            < text.index("## What is here")
        )
        assert json.loads((organisation / "model_card.json").read_text())[
            "findings"
        ] == [verdict]
        assert "maybe" not in text


def test_no_word_can_end_a_cell() -> None:
    markdown = pytest.importorskip(
        "markdown_it", reason="markdown-it-py is not installed"
    )
    text = _table(("one", "two"), [("a|b\nc", "\\"), ("[x](y)", "|")])
    cells = [
        one.content
        for one in markdown.MarkdownIt().enable("table").parse(text)
        if one.type == "inline"
    ]
    assert cells == ["one", "two", "a|b c", "\\", "[x](y)", "|"]


def test_its_front_matter_is_yaml(tmp_path: Path) -> None:
    yaml = pytest.importorskip("yaml", reason="PyYAML is not installed")
    folder = run(tmp_path / "at", {"name": "splitnn"})
    (lab,) = export(folder, tmp_path / "out", "lab")
    front = yaml.safe_load((lab / "README.md").read_text().split("---")[1])
    summary = json.loads((folder / "summary.json").read_text())
    (result,) = front["model-index"][0]["results"]
    told = {one["name"]: one["value"] for one in result["metrics"]}
    assert told["accuracy on test rows"] == summary["metrics"]["test"]["accuracy"]
    assert front["pipeline_tag"] == "tabular-classification"
