"""Importance, selection, alignment and attacks are shown as their own files have them."""

from __future__ import annotations

from dataclasses import replace

from tests.report.made import SELECTION, Page

from colonnade.report.facts import Facts
from colonnade.report.html import text
from colonnade.report.partners import (
    alignment_section,
    audit_section,
    importance_section,
    selection_section,
)


def test_importance(noisy_facts: Facts) -> None:
    found = noisy_facts.importance
    assert found is not None
    page = Page(text(importance_section(noisy_facts, {})))
    shown = page.tables[f"Measures on {found['rows']} {found['split']} rows"]
    assert [line[0] for line in shown[1:]] == found["ranking"]
    names = [
        name
        for name in ("head_norm", "head_change", "permutation", "silenced", "noise")
        if name in found["measures"]
    ]
    for line in shown[1:]:
        assert line[1:] == [f"{found['measures'][name][line[0]]:.4f}" for name in names]
    assert " and ".join(found["ranking"]) in page.text
    other = {
        "head_change": {"clinic": 1.0, "lab": 2.0},
        "permutation": {"clinic": 0.2, "lab": 0.1},
    }
    odd = replace(
        noisy_facts,
        importance=found
        | {
            "measures": other,
            "ranked_by": "head_change",
            "deviations": {},
        },
    )
    told = (
        'The measures disagree on who matters most: lab by "head change", clinic by'
        ' "shuffled".'
    )
    assert told in Page(text(importance_section(odd, {}))).text


def test_what_a_partner_adds_on_the_rows_it_holds(noisy_facts: Facts) -> None:
    found = noisy_facts.importance
    assert found is not None
    assert not [
        name
        for name in Page(text(importance_section(noisy_facts, {}))).tables
        if "adds" in name
    ]
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
    assert (
        "the highest possible is 0.325, the label's entropy."
        in Page(text(selection_section(scaled, {}))).text
    )
    assert (
        "It took 500 ms, 1.2 kB, 3 encryptions, 2 additions, 1 decryptions."
        in page.text
    )
    assert page.tables["What each learned from it"][1:] == [
        list(pair) for pair in SELECTION["learned"].items()
    ]


def test_alignment(noisy_facts: Facts) -> None:
    page = Page(text(alignment_section(noisy_facts)))
    assert "8 rows are common to all 2 parties" in page.text
    assert [line[:3] for line in page.tables["Alignment"][1:]] == [
        ["clinic (drives)", "9", "9"],
        ["lab", "9", "9"],
    ]
    assert "The run itself" not in page.text


def test_every_finding_with_its_score_and_what_was_crossed(noisy_facts: Facts) -> None:
    page = Page(text(audit_section(noisy_facts, {})))
    assert noisy_facts.audit is not None
    found = noisy_facts.audit["findings"]
    shown = page.tables["Findings"][1:]
    assert len(shown) == len(found)
    for line, one in zip(shown, found, strict=True):
        assert line[:6] == [
            *(one[k] for k in ("attacker", "victim", "attack", "moment", "metric")),
            f"{one['score']:.3f}",
        ]
        assert ("above label_inference = 0.3" in line[-1]) == one["crossed"]
    crossed = sum(one["crossed"] for one in found)
    assert crossed
    assert (
        f"{crossed} of {len(found)} findings are above a threshold that was set."
        in page.text
    )
    assert [address[:11] for address in page.values("src")] == ["data:image/"] * len(
        noisy_facts.pictures
    )


def test_verdicts_without_thresholds_and_without_findings(noisy_facts: Facts) -> None:
    assert noisy_facts.audit is not None
    calm = [one | {"crossed": False} for one in noisy_facts.audit["findings"]]
    within = replace(noisy_facts, audit=noisy_facts.audit | {"findings": calm})
    assert (
        "is above the thresholds that were set"
        in Page(text(audit_section(within, {}))).text
    )
    free = replace(
        noisy_facts, audit={"findings": [], "notes": ["nothing applies"]}, pictures={}
    )
    told = Page(text(audit_section(free, {}))).text
    assert "No thresholds were set" in told
    assert "Nothing applies." in told
