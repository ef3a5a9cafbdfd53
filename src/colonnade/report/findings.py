"""What attacks could learn, from an audit of the run."""

from __future__ import annotations

from colonnade.report.chart import Figure, plates
from colonnade.report.facts import Facts
from colonnade.report.html import Content, cell, h, number, table
from colonnade.report.words import count, sentence


def audit_section(facts: Facts, figures: dict[str, Figure]) -> list[Content]:
    assert facts.audit is not None
    findings = facts.audit["findings"]
    crossed = [finding for finding in findings if finding.get("crossed")]
    limits = facts.audit.get("thresholds") or {}
    missed = facts.audit.get("not_attacked") or []
    intro = "Each attack was given what one party had received and holds anyway, and scored against the truth. "
    not_attacked = h("span", f"{count(len(missed), 'release')} that can be read: not attacked.", class_="over")
    content: list[Content] = [
        h("p", intro, _verdict(len(findings), len(crossed), bool(limits)), [" ", not_attacked] if missed else None),
        plates(figures, "attacks"),
    ]
    rows = []
    for finding in findings:
        low, high = finding.get("low"), finding.get("high")
        interval = "" if low is None or high is None else f"{low:.3f} – {high:.3f}"
        verdict: Content = finding["verdict"]
        if finding.get("crossed"):
            limit = f"above {finding['limit']} = {finding['threshold']:g}"
            verdict = [finding["verdict"], " ", h("span", limit, class_="over")]
        three = "{:.3f}".format
        numbers = cell(finding["score"], three), number(interval, low), cell(finding["baseline"], three)
        names = (finding[key] for key in ("attacker", "victim", "attack", "moment", "metric"))
        rows.append([*names, *numbers, verdict])
    headings = ("by", "on", "attack", "when", "measure", "score", "95 %", "without attack", "verdict")
    if rows:
        content.append(table("Findings", headings, rows))
    assumed = dict.fromkeys((finding["attack"], finding["assumes"]) for finding in findings)
    if assumed:
        items = [h("li", h("b", attack), f": by a party that {assumes}.") for attack, assumes in assumed]
        content.append(h("ul", items))
    if missed:
        lines = [[release["release"], release["owner"], release["receiver"], release["why"]] for release in missed]
        content.append(table("Not attacked", ("release", "of", "read by", "why"), lines))
    if statements := facts.audit.get("sites"):
        content.append(table("What sites say of their own columns", ("site", "says"), statements.items()))
    content += [h("p", sentence(note), class_="caption-note") for note in facts.audit.get("notes", [])]
    pictures = []
    for name, address in facts.pictures.items():
        title = f"What can be rebuilt of {name.removeprefix('inversion-')}'s columns"
        drawn = h("img", src=address, alt=f"{title}, drawn by the audit")
        pictures.append(h("figure", h("figcaption", title), drawn))
    content.append(h("div", pictures, class_="figures") if pictures else None)
    return content


def _verdict(total: int, crossed: int, limited: bool) -> Content:
    if crossed:
        return h("span", f"{crossed} of {total} findings are above a threshold that was set.", class_="over")
    if limited:
        return f"None of {count(total, 'finding')} is above the thresholds that were set."
    return "No thresholds were set in the run's [audit] table."
