"""The headline is the run's own result."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from tests.report.made import Page

from colonnade.report.facts import Facts, read
from colonnade.report.html import text
from colonnade.report.result import best_alone, mean, opening, promised, result, rival_of


def test_the_result_in_one_sentence(noisy_facts: Facts) -> None:
    summary, found = noisy_facts.summary, noisy_facts.baselines
    assert summary is not None
    assert found is not None
    together, alone = summary["metrics"]["test"]["accuracy"], found["alone"]["clinic"][0]["accuracy"]
    largest = summary["majority"]["test"]
    assert result(noisy_facts) == (
        f"Two organisations together reach an accuracy of {together:.3f} on {summary['rows']['test']} test rows "
        f"(always saying the largest class: {largest['share']:.3f}); clinic alone, which holds the labels, {alone:.3f}."
    )
    assert result(replace(noisy_facts, baselines=None, summary=summary | {"majority": {}})).endswith("test rows.")
    assert "It says the same class" not in Page(opening(noisy_facts)).text
    silent = replace(noisy_facts, summary=summary | {"majority": {"test": largest | {"always_one": True}}})
    assert "It says the same class of every row" in Page(opening(silent)).text


def test_it_opens_with_what_the_run_says_against_its_model(noisy_facts: Facts) -> None:
    assert noisy_facts.summary is not None
    verdict, slip = "The model learned nothing. Do not use it.", "'clinic' has fewer than 5 rows in a class."
    plain = noisy_facts.summary | {"findings": [], "label_findings": []}
    found = replace(noisy_facts, summary=plain | {"findings": [verdict], "label_findings": [slip]})
    page = Page(opening(found)).text
    assert page.index(verdict) < page.index(slip) < page.index("Two organisations together")
    assert "Do not use it" not in Page(opening(replace(noisy_facts, summary=plain))).text


def test_what_is_not_finished_says_so(noisy_facts: Facts) -> None:
    running = replace(noisy_facts, summary=None, baselines=None)
    assert "have reached" in result(running)
    assert "This run has not finished." in Page(opening(running)).text
    assert "has not finished" not in Page(opening(noisy_facts)).text
    begun = Facts(name="x", settings={"parties": {"a": {"label": "y"}}})
    assert result(begun) == "One organisation is training a model."


def test_an_early_stop_is_told(noisy_facts: Facts) -> None:
    assert noisy_facts.summary is not None
    stopped = replace(noisy_facts, summary=noisy_facts.summary | {"stopped": "'lab' will not release\n   again."})
    assert "It stopped early: 'lab' will not release again." in Page(opening(stopped)).text


def test_what_is_promised(noisy_facts: Facts, plain: Path) -> None:
    told = Page(text(promised(noisy_facts))).text
    spent = next(one for one in noisy_facts.privacy if one["party"] == "lab")["budget"]["spent"]
    assert f"lab's columns: ε = {spent:.3f} of 8 for a row's own releases." in told
    assert "No guarantee for clinic's labels and clinic's columns." in told
    assert "nobody's columns or labels" in Page(text(promised(read(plain)))).text
    assert "not known" in str(promised(Facts(name="x")))


def test_whom_to_compare_with() -> None:
    scores = {"a": [{"accuracy": 0.5}], "b": [{"accuracy": 0.9}, {"accuracy": 0.7}]}
    found = {"metric": "accuracy", "alone": scores}
    told = best_alone(found)
    assert told is not None
    assert told[0] == "b"
    assert told[1] == pytest.approx(0.8)
    assert best_alone({"metric": "accuracy", "alone": {}}) is None
    assert mean([{"r2": 1.0}, {"r2": None}], "r2") == 1.0
    labels = {"parties": {"a": {"label": "y"}, "b": {}}}
    rival = rival_of(Facts(name="x", settings=labels, baselines=found))
    assert rival is not None
    assert rival[0] == "a"
    diverged = {"metric": "loss", "alone": {"a": [{"loss": None}], "b": [{"loss": 0.5}]}}
    assert rival_of(Facts(name="x", settings=labels, baselines=diverged)) == ("b", 0.5, ", whose columns tell most")
    elsewhere = {"parties": {"c": {"label": "y"}, "b": {}}}
    best = rival_of(Facts(name="x", settings=elsewhere, baselines=found))
    assert best is not None
    assert best[0] == "b"
