"""One document that needs nothing outside itself, in which no name can become markup."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
from tests.federation import small_sites
from tests.report.made import HOSTILE, NOISY, Page

from colonnade.report.facts import Facts, read
from colonnade.report.html import Html
from colonnade.report.page import document, main_of, render
from colonnade.runs.run_directory import RunDirectory
from colonnade.sites.driving import drive


def test_nothing_is_fetched_from_anywhere(noisy_facts: Facts) -> None:
    markup = render(noisy_facts)
    page = Page(markup)
    for attribute in ("src", "href", "action", "poster", "data", "srcset"):
        assert all(
            value.startswith(("data:image/", "#")) for value in page.values(attribute)
        ), attribute
    assert "url(http" not in markup
    assert "@import" not in markup
    # a name, not an address
    assert set(re.findall(r"https?://[^\s'\"<)]+", markup)) <= {
        "http://www.w3.org/2000/svg"
    }
    (policy,) = [value for value in page.values("content") if "src" in value]
    assert policy.startswith("default-src 'none'")
    assert "connect-src" not in policy
    assert [
        value
        for value in Page(
            document("live", main_of(noisy_facts), live=Html("<div></div>"))
        ).values("content")
        if "connect-src 'self'" in value
    ]


def test_the_document_is_whole_and_accessible(noisy_facts: Facts, multi: Path) -> None:
    for facts in (noisy_facts, read(multi), Facts(name="begun")):
        page = Page(render(facts))  # every tag is closed, in order
        ids = page.values("id")
        assert len(ids) == len(set(ids))
        assert {value[1:] for value in page.values("href")} <= set(ids)
        assert set(page.values("aria-labelledby")) <= set(ids)
        tags = [tag for tag, name, _ in page.attributes if name == "lang"]
        assert tags == ["html"]
        assert all(
            value
            for tag, name, value in page.attributes
            if (tag, name) == ("img", "alt")
        )


def test_sections_that_have_nothing_are_left_out(
    noisy_facts: Facts, plain: Path
) -> None:
    every = [value[1:] for value in Page(main_of(noisy_facts)).values("href")]
    assert every == [
        "sign",
        "result",
        "quality",
        "parties",
        "crossing",
        "privacy",
        "audit",
        "importance",
        "selection",
        "alignment",
        "timing",
        "settings",
        "about",
    ]
    some = [value[1:] for value in Page(main_of(read(plain))).values("href")]
    assert some == [
        "sign",
        "result",
        "quality",
        "parties",
        "crossing",
        "privacy",
        "timing",
        "settings",
        "missing",
        "about",
    ]
    running = replace(read(plain), summary=None)
    assert "missing" not in [
        value[1:] for value in Page(main_of(running)).values("href")
    ]


def spoiled(value: Any, spoil: Callable[[str], str]) -> Any:
    """Every text in plain data, names as well as values, made hostile."""
    if isinstance(value, str):
        return spoil(value)
    if isinstance(value, dict):
        return {
            spoil(key) if key in ("clinic", "lab") else key: spoiled(inner, spoil)
            for key, inner in value.items()
        }
    return [spoiled(one, spoil) for one in value] if isinstance(value, list) else value


def test_no_text_of_anybody_becomes_markup(noisy_facts: Facts) -> None:
    kept = {
        "accuracy",
        "test",
        "features",
        "labels",
        "vimadmm",
        "vf_ps",
        "head_change",
        "permutation",
        "columns",
    }

    def spoil(words: str) -> str:
        return words if words in kept or words.startswith("data:") else words + HOSTILE

    values = {
        one.name: spoiled(getattr(noisy_facts, one.name), spoil)
        for one in fields(Facts)
    }
    markup = render(Facts(**values))
    assert "<img src=x" not in markup
    page = Page(markup)
    assert f"clinic{HOSTILE}" in page.text
    assert not [name for _, name, _ in page.attributes if name.startswith("on")]


def test_a_script_cannot_be_closed_by_a_name() -> None:
    markup = document("</title><script>", Html("<p>x</p>"))
    assert markup.count("<script>") == 1
    assert markup.count("</script>") == 1


@pytest.mark.parametrize(
    "cut", ["summary.json", "checkpoint.json", "parties", "metrics.jsonl"]
)
def test_a_run_without_a_part_still_has_a_page(
    noisy: Path, tmp_path: Path, cut: str
) -> None:
    run = tmp_path / "run"
    shutil.copytree(noisy, run)
    shutil.rmtree(run / cut) if (run / cut).is_dir() else (run / cut).unlink()
    if cut == "summary.json":
        RunDirectory(run).keep_mark(RunDirectory(run).mark() | {"finished": False})
    page = Page(render(read(run)))
    assert ("has not finished" in page.text) == (cut == "summary.json")


def test_the_page_of_one_organisations_part_says_whose_it_is_and_what_it_cost(
    tmp_path: Path,
) -> None:
    """The page that a feature owner's privacy officer signs."""
    small_sites.folders(
        tmp_path, settings={**NOISY, "federation": {"device": "cpu", "cohort": "off"}}
    )
    drive(small_sites.sites(tmp_path)["clinic"], "run")
    run = tmp_path / "lab" / "runs" / "run"
    facts = read(run)
    page = Page(render(facts))
    summary = json.loads((run / "summary.json").read_text())
    spent = summary["privacy"][0]["budget"]["spent"]
    assert (
        "The part of lab in a run with clinic: what it sent and received" in page.text
    )
    assert f"lab's columns: ε = {spent:.3f} of 8" in page.text
    assert "12 rounds of exchange" in page.text
    assert facts.traffic == {
        "lab": {
            "out": summary["bytes"]["lab"]["out"],
            "in": summary["bytes"]["lab"]["in"],
        }
    }
    assert {row[0] for row in page.tables["Everything that crossed"][1:]} == {
        "clinic",
        "lab",
    }
    for wrong in (
        "has not finished",
        "0 epochs",
        "0 s",
        "--baselines",
        "They share",
        "this page's run",
        "what attacks",
    ):
        assert wrong not in page.text
    clinic = Page(render(read(tmp_path / "clinic" / "runs" / "run"))).text
    assert "The part of clinic in a run with lab" in clinic
    assert "The joint model has an accuracy of" in clinic
