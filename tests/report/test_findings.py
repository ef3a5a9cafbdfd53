"""The audit's findings, its thresholds and its pictures."""

from __future__ import annotations

from dataclasses import replace

from tests.report.made import Page

from colonnade.report.facts import Facts
from colonnade.report.html import text
from colonnade.report.partners import audit_section


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
    assert f"{crossed} of {len(found)} findings are above a threshold that was set." in page.text
    assert [address[:11] for address in page.values("src")] == ["data:image/"] * len(noisy_facts.pictures)


def test_verdicts_without_thresholds_and_without_findings(noisy_facts: Facts) -> None:
    assert noisy_facts.audit is not None
    calm = [one | {"crossed": False} for one in noisy_facts.audit["findings"]]
    within = replace(noisy_facts, audit=noisy_facts.audit | {"findings": calm})
    assert "is above the thresholds that were set" in Page(text(audit_section(within, {}))).text
    free = replace(noisy_facts, audit={"findings": [], "notes": ["nothing applies"]}, pictures={})
    told = Page(text(audit_section(free, {}))).text
    assert "No thresholds were set" in told
    assert "Nothing applies." in told
