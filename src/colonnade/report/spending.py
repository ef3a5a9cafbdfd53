"""Privacy: what each organisation was promised against whom, and how much of its budget
is spent."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from colonnade.report.facts import Facts, Plain
from colonnade.report.html import Cell, Content, Html, cell, h, table
from colonnade.report.words import epsilon, sentence, times, whose_models

THROUGH = "also through the local model"


def headline(guarantee: Plain) -> float | None:
    """The epsilon that counts against a budget; without a budget the largest that is
    proven. None: no guarantee."""
    if guarantee.get("budget"):
        spent: float | None = guarantee["budget"]["spent"]
        return spent
    statements = [
        statement
        for statement in guarantee["statements"]
        if THROUGH not in statement["adversary"]
    ]
    known = [
        statement["epsilon"]
        for statement in statements
        if statement["accountant"] != "cpSGD's theorem"
    ]
    return None if not known or None in known else max(known)


def protected(guarantees: Sequence[Plain]) -> list[tuple[Plain, float]]:
    return [
        (guarantee, value)
        for guarantee in guarantees
        if (value := headline(guarantee)) is not None
    ]


def unprotected(guarantees: Sequence[Plain]) -> list[Plain]:
    return [guarantee for guarantee in guarantees if headline(guarantee) is None]


def spending(facts: Facts) -> list[Content]:
    if not facts.privacy:
        return [
            h(
                "p",
                "What the run costs anybody's privacy is known once its first"
                " checkpoint is saved.",
            )
        ]
    if facts.part is None:
        counted = (
            "Counted is what this page's run released, in training and since, until the"
            " page was made."
        )
    else:
        counted = (
            f"Counted is what {facts.part} released in this run and in all its runs"
            " before: its rows have one budget, whoever starts a run."
        )
    notes: list[str] = []
    tables = [
        _adversaries(guarantee, notes)
        for guarantee in facts.privacy
        if headline(guarantee) is not None
    ]
    listed = [h("li", sentence(note), value=at) for at, note in enumerate(notes, 1)]
    by_party = [
        (guarantee["party"], note)
        for guarantee in facts.privacy
        for note in guarantee["notes"]
    ]
    return [
        h(
            "p",
            "An ε (epsilon) bounds how much anybody can learn about one row from what"
            " was released; smaller is stronger, and without one there is no such"
            " bound. Each line names whom it holds against. Lines about columns and"
            f" about labels are never added up. {counted}",
        ),
        _overview(facts.privacy),
        *([h("h3", "Against whom")] if tables else []),
        *tables,
        h("ol", listed, class_="caption-note") if listed else None,
        *[h("p", h("b", party, ": "), sentence(note)) for party, note in by_party],
        *[h("p", words) for words in whose_models(facts.outcome)],
    ]


def _overview(guarantees: Sequence[Plain]) -> Html:
    rows = []
    for guarantee in guarantees:
        value = headline(guarantee)
        budget = guarantee.get("budget")
        shown: Content = (
            epsilon(value)
            if value is not None
            else h("span", "no guarantee", class_="over")
        )
        share: Content = "none set"
        if budget:
            used = (
                1.0
                if budget["spent"] is None
                else min(1.0, budget["spent"] / budget["epsilon"])
            )
            kind = "meter full" if used > 0.98 else "meter"
            meter = h(
                "span",
                h("i", style=f"width:{100 * used:.0f}%"),
                class_=kind,
                aria_hidden="true",
            )
            words = (
                f" {epsilon(budget['spent'])} of {budget['epsilon']:g} (δ ="
                f" {budget['delta']:g})"
            )
            share = h("span", meter, words, class_="spent")
        how = "; ".join(
            f"{release['release']}: {_how_released(release)}"
            for release in guarantee["releases"]
        )
        rows.append(
            [guarantee["party"], guarantee["protects"], Cell(shown, value), share, how]
        )
    headings = ("party", "protects", "ε spent", "budget", "what was released, and how")
    return table("Privacy spend per party", headings, rows)


def _how_released(release: Plain) -> str:
    most = release.get("appearances")
    return f"{release['mechanism']}{'' if most is None else f', each row at most {times(most)}'}"


def _adversaries(guarantee: Plain, notes: list[str]) -> Html:
    rows: list[list[Any]] = []
    for line in guarantee["statements"]:
        if line["note"] and line["note"] not in notes:
            notes.append(line["note"])
        mark = f"{notes.index(line['note']) + 1}" if line["note"] else ""
        delta = f"{line['delta']:g}" if line["epsilon"] is not None else "–"
        numbers = (
            cell(line["epsilon"], epsilon),
            Cell(delta, line["delta"]),
            Cell(mark, None),
        )
        rows.append([line["adversary"], line["relation"], line["accountant"], *numbers])
    caption = [
        h("span", guarantee["party"], class_="party"),
        f": {guarantee['protects']}",
    ]
    return table(
        caption,
        ("against", "neighbouring tables", "accountant", "ε", "δ", "note"),
        rows,
    )
