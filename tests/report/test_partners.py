"""Importance, selection and alignment are what their own files say."""

from __future__ import annotations

from dataclasses import replace

from tests.report.made import SELECTION, Page

from colonnade.report.facts import Facts
from colonnade.report.html import text
from colonnade.report.partners import alignment_section, importance_section, selection_section


def test_importance(noisy_facts: Facts) -> None:
    found = noisy_facts.importance
    assert found is not None
    page = Page(text(importance_section(noisy_facts, {})))
    shown = page.tables[f"Measures on {found['rows']} {found['split']} rows"]
    assert [line[0] for line in shown[1:]] == found["ranking"]
    names = [
        name for name in ("head_norm", "head_change", "permutation", "silenced", "noise") if name in found["measures"]
    ]
    for line in shown[1:]:
        assert line[1:] == [f"{found['measures'][name][line[0]]:.4f}" for name in names]
    assert " and ".join(found["ranking"]) in page.text
    other = {"head_change": {"clinic": 1.0, "lab": 2.0}, "permutation": {"clinic": 0.2, "lab": 0.1}}
    odd = replace(noisy_facts, importance=found | {"measures": other, "ranked_by": "head_change", "deviations": {}})
    told = 'The measures disagree on who matters most: lab by "head change", clinic by "shuffled".'
    assert told in Page(text(importance_section(odd, {}))).text


def test_what_a_partner_adds_on_the_rows_it_holds(noisy_facts: Facts) -> None:
    found = noisy_facts.importance
    assert found is not None
    assert not [name for name in Page(text(importance_section(noisy_facts, {}))).tables if "adds" in name]
    added = {"lab": {"rows": 1200, "with_it": 0.81, "without_it": 0.765, "gain": 0.045}}
    facts = replace(noisy_facts, importance=found | {"added": added})
    (lab,) = Page(text(importance_section(facts, {}))).tables[
        f"What each partner adds, on the {found['split']} rows that it holds"
    ][1:]
    assert lab == ["lab", "1,200", "0.8100", "0.7650", "0.0450"]


def test_selection(noisy_facts: Facts) -> None:
    page = Page(text(selection_section(noisy_facts, {})))
    assert "Kept: lab." in page.text
    assert "the highest possible" not in page.text
    scaled = replace(noisy_facts, selection=SELECTION | {"entropy": 0.325})
    assert "the highest possible is 0.325, the label's entropy." in Page(text(selection_section(scaled, {}))).text
    assert "It took 500 ms, 1.2 kB, 3 encryptions, 2 additions, 1 decryptions." in page.text
    assert page.tables["What each learned from it"][1:] == [list(pair) for pair in SELECTION["learned"].items()]


def test_alignment(noisy_facts: Facts) -> None:
    page = Page(text(alignment_section(noisy_facts)))
    assert "8 rows are common to all 2 parties" in page.text
    assert [line[:3] for line in page.tables["Alignment"][1:]] == [["clinic (drives)", "9", "9"], ["lab", "9", "9"]]
    assert "The run itself" not in page.text
