"""Runs side by side: what differs, and the numbers of each."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from tests.report.made import Page

from colonnade.errors import ConfigError
from colonnade.report.compare import (
    common,
    differences,
    figures,
    gather,
    headline,
    render,
    rows_of,
    warnings,
    write,
)
from colonnade.report.facts import Facts


def test_numbers_are_those_of_the_summaries(plain: Path, noisy: Path) -> None:
    runs = gather([plain, noisy])
    headings, lines = rows_of(runs)
    # both folders are called "run": told apart by what is above them
    assert len(runs) == 2
    for line, path in zip(lines, (plain, noisy), strict=True):
        summary = json.loads((path / "summary.json").read_text())
        sent = sum(one["out"] for one in summary["bytes"].values())
        loss, accuracy, *others = summary["metrics"]["test"].values()
        # what shows most comes first
        scores = accuracy, summary["majority"]["test"]["share"], loss, *others
        assert line[1:-2] == (
            "vimadmm",
            *scores,
            summary["rounds"],
            sent,
            summary["seconds"],
        )
    assert headings[2:5] == ("test accuracy", "test largest class", "test loss")
    lab = next(
        one
        for one in json.loads((noisy / "summary.json").read_text())["privacy"]
        if one["party"] == "lab"
    )
    assert (lines[0][-2], lines[1][-2]) == (None, lab["budget"]["spent"])


def test_an_epsilon_of_some_is_not_taken_for_the_runs(plain: Path, noisy: Path) -> None:
    headings, (open_, guarded) = rows_of(gather([plain, noisy]))
    assert headings[-2:] == ("largest ε of those that have one", "without a guarantee")
    # the clinic's columns and labels
    assert (open_[-1], guarded[-1]) == ("3 of 3", "2 of 3")
    assert rows_of({"a": Facts("a"), "b": Facts("b")})[1][0][-2:] == (None, "not known")
    assert "It is not the run's" in Page(render(gather([plain, noisy]))).text


def test_only_settings_that_differ(plain: Path, noisy: Path) -> None:
    found = dict(differences(gather([plain, noisy])))
    assert found == {
        "audit.label_inference": ["–", "0.3"],
        "parties.lab.outbox.embedding.mechanism.name": ["–", "gaussian"],
        "parties.lab.outbox.embedding.mechanism.clip": ["–", "1"],
        "parties.lab.outbox.embedding.mechanism.sigma": ["–", "4"],
        "parties.lab.budget.epsilon": ["–", "8"],
        "parties.lab.budget.delta": ["–", "1e-05"],
        "parties.lab.budget.relation": ["–", "replace-one"],
    }


def test_curves_lie_over_each_other(plain: Path, noisy: Path) -> None:
    runs = gather([plain, noisy])
    made = figures(runs)
    assert set(made) == {"compare-epochs", "compare-bytes", "compare-loss"}
    assert made["compare-epochs"].headings == ("epoch", *runs)
    for at, facts in enumerate(runs.values(), 1):
        assert [row[at] for row in made["compare-epochs"].rows] == [
            one["validation"]["accuracy"] for one in facts.metrics
        ]
    assert [row[0] for row in made["compare-bytes"].rows] == sorted(
        {one["bytes"] for f in runs.values() for one in f.metrics}
    )


def test_the_best_is_named(plain: Path, noisy: Path) -> None:
    runs = gather([plain, noisy])
    split, name = common(runs)
    best = max(
        runs,
        key=lambda run: (runs[run].scores[split][name], runs[run].scores[split]["auc"]),
    )
    assert headline(runs).startswith(f"{best} has the best test accuracy of two runs")


def test_of_two_classes_the_auc_decides_too() -> None:
    def runs(**scores: tuple[float, float]) -> dict[str, Facts]:
        both = {
            name: {"accuracy": accuracy, "auc": auc}
            for name, (accuracy, auc) in scores.items()
        }
        return {
            name: Facts(name, summary={"metrics": {"test": one}})
            for name, one in both.items()
        }

    best = "{} has the best test accuracy of two runs: 0.900"
    assert (
        headline(runs(a=(0.9, 0.6), b=(0.8, 0.7)))
        == f"{best.format('a')}; by AUC it is b, 0.700."
    )
    assert (
        headline(runs(a=(0.9, 0.6), b=(0.9, 0.7)))
        == f"{best.format('b')}, as high as a; by AUC too, 0.700."
    )
    silent = {
        "metrics": {"test": {"accuracy": 0.9}},
        "majority": {"test": {"share": 0.9, "always_one": True}},
    }
    assert warnings({"a": Facts("a", summary=silent)}) == [
        "a: It says the same class of every row: its accuracy on test rows, 0.9000, is"
        " that class's share. Scores may still tell rows apart: choose the score from"
        " which on to act."
    ]


def test_what_a_run_says_against_its_model_is_said_here_too() -> None:
    verdict = "The model learned nothing. Do not use it."
    runs = {
        "a": Facts("a", summary={"findings": [verdict], "label_findings": ["A slip."]}),
        "b": Facts("b"),
    }
    assert warnings(runs) == [f"a: {verdict}", "a: A slip."]
    assert f"a: {verdict}" in Page(render(runs)).text


def test_the_page(plain: Path, noisy: Path, multi: Path, tmp_path: Path) -> None:
    page = Page(render(gather([plain, noisy, multi])))
    assert "do not have the same numbers of rows" in page.text
    # what is told, and the three runs
    assert all(len(row) == 4 for row in page.tables["Runs"])
    assert page.tables["Runs"][1] == ["algorithm", "vimadmm", "vimadmm", "multi_vfl"]
    path = write(gather([plain, noisy]), tmp_path / "compare.html")
    assert path.exists()
    assert {one.name for one in (tmp_path / "figures").iterdir()} == {
        "compare-epochs.svg",
        "compare-bytes.svg",
        "compare-loss.svg",
    }


def test_what_cannot_be_compared(plain: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="two or more"):
        gather([plain])
    with pytest.raises(ConfigError, match="named twice"):
        gather([plain, plain])
    shutil.copytree(plain, tmp_path / "other")
    assert list(gather([plain, tmp_path / "other"])) == ["run", "other"]
    assert (
        "All settings are the same."
        in Page(render(gather([plain, tmp_path / "other"]))).text
    )
