"""The result, in the first lines of a page and in its tables, is that of the summary
and the baselines."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from tests.report.made import Page

from colonnade.report.facts import Facts, read
from colonnade.report.html import text
from colonnade.report.result import (
    best_alone,
    mean,
    opening,
    promised,
    result,
    result_section,
    rival_of,
)


def test_the_result_in_one_sentence(noisy_facts: Facts) -> None:
    summary = noisy_facts.summary
    found = noisy_facts.baselines
    assert summary is not None
    assert found is not None
    together = summary["metrics"]["test"]["accuracy"]
    alone = found["alone"]["clinic"][0]["accuracy"]
    largest = summary["majority"]["test"]
    assert (
        result(noisy_facts)
        == f"Two organisations together reach an accuracy of {together:.3f} on"
        f" {summary['rows']['test']} test rows (always saying the largest class:"
        f" {largest['share']:.3f}); clinic alone, which holds the labels,"
        f" {alone:.3f}."
    )
    assert result(
        replace(noisy_facts, baselines=None, summary=summary | {"majority": {}})
    ).endswith("test rows.")
    assert "It says the same class" not in Page(opening(noisy_facts)).text
    silent = replace(
        noisy_facts,
        summary=summary | {"majority": {"test": largest | {"always_one": True}}},
    )
    assert "It says the same class of every row" in Page(opening(silent)).text


def test_it_opens_with_what_the_run_says_against_its_model(noisy_facts: Facts) -> None:
    assert noisy_facts.summary is not None
    verdict = "The model learned nothing. Do not use it."
    slip = "'clinic' has fewer than 5 rows in a class."
    plain = noisy_facts.summary | {"findings": [], "label_findings": []}
    found = replace(
        noisy_facts, summary=plain | {"findings": [verdict], "label_findings": [slip]}
    )
    page = Page(opening(found)).text
    assert (
        page.index(verdict)
        < page.index(slip)
        < page.index("Two organisations together")
    )
    assert (
        "Do not use it" not in Page(opening(replace(noisy_facts, summary=plain))).text
    )


def test_what_is_not_finished_says_so(noisy_facts: Facts) -> None:
    running = replace(noisy_facts, summary=None, baselines=None)
    assert "have reached" in result(running)
    assert "This run has not finished." in Page(opening(running)).text
    assert "has not finished" not in Page(opening(noisy_facts)).text
    begun = Facts(name="x", settings={"parties": {"a": {"label": "y"}}})
    assert result(begun) == "One organisation is training a model."


def test_an_early_stop_is_told(noisy_facts: Facts) -> None:
    assert noisy_facts.summary is not None
    stopped = replace(
        noisy_facts,
        summary=noisy_facts.summary | {"stopped": "'lab' will not release\n   again."},
    )
    assert (
        "It stopped early: 'lab' will not release again." in Page(opening(stopped)).text
    )


def test_what_is_promised(noisy_facts: Facts, plain: Path) -> None:
    told = Page(text(promised(noisy_facts))).text
    spent = next(one for one in noisy_facts.privacy if one["party"] == "lab")["budget"][
        "spent"
    ]
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
    diverged = {
        "metric": "loss",
        "alone": {"a": [{"loss": None}], "b": [{"loss": 0.5}]},
    }
    assert rival_of(Facts(name="x", settings=labels, baselines=diverged)) == (
        "b",
        0.5,
        ", whose columns tell most",
    )
    elsewhere = {"parties": {"c": {"label": "y"}, "b": {}}}
    best = rival_of(Facts(name="x", settings=elsewhere, baselines=found))
    assert best is not None
    assert best[0] == "b"


def test_scores_are_those_of_the_summary_to_the_last_digit(noisy_facts: Facts) -> None:
    markup = text(result_section(noisy_facts, {}))
    page = Page(markup)
    assert noisy_facts.summary is not None
    metrics = noisy_facts.summary["metrics"]
    rows = noisy_facts.summary["rows"]
    shown = page.tables["How good the joint model is"]
    assert [line[0] for line in shown[1:]] == list(metrics)
    for line, keys, (split, values) in zip(
        shown[1:], page.keys(markup, "How good"), metrics.items(), strict=True
    ):
        assert line[1] == str(rows[split])
        share = noisy_facts.summary["majority"][split]["share"]
        # what it leads with is first
        told = [values["accuracy"], share, values["loss"], *list(values.values())[2:]]
        assert line[2:] == [f"{value:.4f}" for value in told]
        assert [float(key) for key in keys] == [rows[split], *told]
    assert shown[0][2:5] == ["accuracy", "largest class", "loss"]
    assert (
        "The train rows were not measured: releasing training rows once more would cost"
        " privacy." in page.text
    )


def test_baselines_are_those_of_their_file(noisy_facts: Facts) -> None:
    page = Page(text(result_section(noisy_facts, {})))
    found = noisy_facts.baselines
    assert found is not None
    shown = {
        line[0]: line[1:]
        for line in page.tables["On test rows that nobody trained on"][1:]
    }
    expected = {
        "clinic alone": found["alone"]["clinic"],
        "lab alone, given the labels": found["alone"]["lab"],
    }
    expected |= {"together, as in this run": found["joint"], **found["usual"]}
    expected |= {"the same model, all columns in one place": found["together"]}
    assert shown == {
        name: [f"{value:.4f}" for value in scores[0].values()]
        for name, scores in expected.items()
    }
    gain = found["joint"][0]["accuracy"] - found["alone"]["clinic"][0]["accuracy"]
    words = (
        f"{abs(gain):.4f} {'above' if gain > 0 else 'below'}"
        if f"{gain:.4f}" not in ("0.0000", "-0.0000")
        else "the same as"
    )
    assert (
        f"Together, accuracy is {words} clinic alone, which holds the labels"
        in page.text
    )


def test_without_baselines_the_page_says_how_to_get_them(plain: Path) -> None:
    told = Page(text(result_section(read(plain), {}))).text
    assert "colonnade report DIR --baselines" in told
    assert "all tables on one machine" in told


def test_scores_by_who_holds_a_row_are_those_of_the_test_rows(plain: Path) -> None:
    facts = read(plain)
    kinds = {
        "everybody": {"rows": 1200, "loss": 0.5, "auc": 0.75},
        "without lab": {"rows": 7, "loss": 0.75, "auc": 0.5},
    }
    subsets = {
        "train": {"everybody": {"rows": 1, "loss": 9.0, "auc": 0.1}},
        "test": kinds,
    }
    page = Page(
        text(
            result_section(
                replace(facts, summary={**(facts.summary or {}), "subsets": subsets}),
                {},
            )
        )
    )
    shown = page.tables["By who holds a row, of the test rows"]
    assert shown[2:] == [
        ["everybody", "1,200", "0.5000", "0.7500"],
        ["without lab", "7", "0.7500", "0.5000"],
    ]
    assert facts.summary is not None
    counts = facts.summary["rows"]
    whole = facts.summary["metrics"]["test"]
    assert shown[1] == [
        "all rows",
        str(counts["test"]),
        f"{whole['loss']:.4f}",
        f"{whole['auc']:.4f}",
    ]


def test_label_owners_have_their_own_scores(multi: Path) -> None:
    facts = read(multi)
    assert facts.summary is not None
    page = Page(text(result_section(facts, {})))
    shown = page.tables["By label owner: accuracy of the joint model on its rows"][1:]
    for line, (owner, about) in zip(
        shown, facts.summary["label_owners"].items(), strict=True
    ):
        scores = [
            f"{about['metrics'][split]['accuracy']:.4f}"
            for split in facts.summary["metrics"]
        ]
        assert line == [owner, str(sum(about["rows"].values())), *scores, "never"]


@pytest.mark.parametrize(
    ("away", "words"), [([2, 3], "in round 2, 3"), (list(range(20)), "in 20 rounds")]
)
def test_who_was_left_out_and_who_did_not_answer(
    multi: Path, away: list[int], words: str
) -> None:
    facts = read(multi)
    assert facts.summary is not None
    owners = {
        name: about | {"left_out": away}
        for name, about in facts.summary["label_owners"].items()
    }
    changed = replace(
        facts,
        summary=facts.summary
        | {
            "label_owners": owners,
            "missing": {"lab": {"stale": 3}},
        },
    )
    told = Page(text(result_section(changed, {}))).text
    assert words in told
    assert "lab did not always answer: its last answer was used 3 times." in told


def test_a_baseline_that_diverged_is_in_the_table_and_in_no_comparison(
    noisy_facts: Facts,
) -> None:
    found = noisy_facts.baselines
    assert found is not None
    name = found["metric"]
    diverged = {
        **found,
        "together": [{name: None}],
        "usual": {"another model": [{name: None}]},
    }
    section = Page(
        text(result_section(replace(noisy_facts, baselines=diverged), {}))
    ).text
    assert "another model" in section
    assert "nan" not in section.lower().split()
    assert f"Together, {name} is" in section
