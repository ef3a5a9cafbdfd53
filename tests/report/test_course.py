"""Time, settings, and what is missing."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from tests.report.made import Page

from colonnade.alignment import REVEALS
from colonnade.report.course import (
    flat,
    missing_section,
    settings_section,
    timing_section,
)
from colonnade.report.course import plain as shown_as
from colonnade.report.facts import Facts, read
from colonnade.report.html import text


def test_time_is_the_summarys(noisy_facts: Facts) -> None:
    markup = text(timing_section(noisy_facts, {}))
    assert noisy_facts.summary is not None
    seconds = noisy_facts.summary["seconds"]
    rounds = noisy_facts.summary["rounds"]
    keys = [float(key[0]) for key in Page(markup).keys(markup, "Where the time went")]
    assert keys == [seconds, seconds / 3, seconds / rounds, 0.5]


def test_settings_are_all_there_and_no_path_of_anybodys_machine(noisy: Path) -> None:
    facts = read(noisy)
    page = Page(text(settings_section(facts)))
    shown = dict(page.tables["All settings"][1:])
    assert shown["algorithm.local_steps"] == "2"
    assert shown["parties.lab.outbox.embedding.mechanism.sigma"] == "4"
    assert shown["parties.lab.table"] == "lab.csv"
    assert str(noisy.parent) not in page.text
    assert len(shown) == len(flat(facts.settings))


def test_what_was_chosen_for_auto_is_told(noisy_facts: Facts) -> None:
    assert noisy_facts.summary is not None
    shown = dict(
        Page(text(settings_section(noisy_facts))).tables['What "auto" became'][1:]
    )
    assert shown == {
        where: shown_as(value) for where, value in noisy_facts.summary["chosen"].items()
    }
    assert shown == {
        "data.task": "classification",
        "model.ending": "none",
    }, "the others say what they are"


def test_lists_and_values() -> None:
    given = {
        "a": {"b": [1, 2.5], "c": True},
        "owners": [{"name": "x", "table": "/home/me/t.csv"}],
    }
    assert [(where, shown_as(value)) for where, value in flat(given)] == [
        ("a.b", "1, 2.5"),
        ("a.c", "yes"),
        ("owners.x.table", "t.csv"),
    ]


def test_what_could_be_added(noisy_facts: Facts, plain: Path) -> None:
    assert missing_section(noisy_facts) is None
    told = Page(text(missing_section(read(plain)))).text
    for command in (
        "report DIR --baselines",
        "explain DIR",
        "audit DIR",
        "select FEDERATION.toml",
        "align FEDERATION.toml",
    ):
        assert f"colonnade {command}" in told


def test_an_alignment_within_the_run_is_not_missing(plain: Path) -> None:
    facts = read(plain)
    aligned = replace(
        facts, flows=[facts.flows[0] | {"name": next(iter(REVEALS))}, *facts.flows]
    )
    words = Page(text(missing_section(aligned))).text
    assert "Private alignment" not in words
    assert "Baselines" in words
