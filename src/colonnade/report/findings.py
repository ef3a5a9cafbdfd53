"""What attacks could learn, from an audit of the run."""

from __future__ import annotations

from colonnade.report.chart import Figure
from colonnade.report.facts import Facts
from colonnade.report.html import Content, cell, h, number, table
from colonnade.report.plates import plates
from colonnade.report.words import count, sentence


def audit_section(facts: Facts, figures: dict[str, Figure]) -> list[Content]:
    """The section's content; the run has an audit."""
    assert facts.audit is not None
    found = facts.audit["findings"]
    crossed = [one for one in found if one.get("crossed")]
    limits = facts.audit.get("thresholds") or {}
    missed = facts.audit.get("not_attacked") or []
    intro = "Each attack was given what one party had received and holds anyway, and scored against the truth. "
    not_attacked = h("span", f"{count(len(missed), 'release')} that can be read: not attacked.", class_="over")
    told: list[Content] = [
        h("p", intro, _verdict(len(found), len(crossed), bool(limits)), [" ", not_attacked] if missed else None),
        plates(figures, "attacks"),
    ]
    rows = []
    for one in found:
        interval = "" if one.get("low") is None or one.get("high") is None else f"{one['low']:.3f} – {one['high']:.3f}"
        verdict: Content = one["verdict"]
        if one.get("crossed"):
            verdict = [one["verdict"], " ", h("span", f"above {one['limit']} = {one['threshold']:g}", class_="over")]
        three = "{:.3f}".format
        numbers = cell(one["score"], three), number(interval, one.get("low")), cell(one["baseline"], three)
        rows.append([*(one[key] for key in ("attacker", "victim", "attack", "moment", "metric")), *numbers, verdict])
    headings = ("by", "on", "attack", "when", "measure", "score", "95 %", "without attack", "verdict")
    if rows:
        told.append(table("Findings", headings, rows))
    assumed = dict.fromkeys((one["attack"], one["assumes"]) for one in found)
    if assumed:
        told.append(h("ul", [h("li", h("b", attack), f": by a party that {assumes}.") for attack, assumes in assumed]))
    if missed:
        lines = [[one["release"], one["owner"], one["receiver"], one["why"]] for one in missed]
        told.append(table("Not attacked", ("release", "of", "read by", "why"), lines))
    if said := facts.audit.get("sites"):
        told.append(table("What sites say of their own columns", ("site", "says"), said.items()))
    told += [h("p", sentence(note), class_="caption-note") for note in facts.audit.get("notes", [])]
    pictures = []
    for name, address in facts.pictures.items():
        title = f"What can be rebuilt of {name.removeprefix('inversion-')}'s columns"
        drawn = h("img", src=address, alt=f"{title}, drawn by the audit")
        pictures.append(h("figure", h("figcaption", title), drawn))
    told.append(h("div", pictures, class_="figures") if pictures else None)
    return told


def _verdict(total: int, crossed: int, limited: bool) -> Content:
    if crossed:
        return h("span", f"{crossed} of {total} findings are above a threshold that was set.", class_="over")
    if limited:
        return f"None of {count(total, 'finding')} is above the thresholds that were set."
    return "No thresholds were set in the run's [audit] table."
