"""How long it took, with which settings, and what this report does not have."""

from __future__ import annotations

from pathlib import PurePath
from typing import Any

from colonnade.alignment import REVEALS
from colonnade.report.chart import Figure, plates
from colonnade.report.facts import Facts
from colonnade.report.html import Content, cell, h, table
from colonnade.report.words import seconds, size
from colonnade.version import __version__

ADDED = {
    "baselines": ("Baselines", "colonnade report DIR --baselines"),
    "importance": ("Client importance", "colonnade explain DIR"),
    "audit": ("What attacks could learn", "colonnade audit DIR"),
    "selection": (
        "Participant selection",
        "colonnade select FEDERATION.toml --keep L --out DIR/selection",
    ),
    "alignment": (
        "Private alignment",
        "colonnade align FEDERATION.toml --out DIR/alignment",
    ),
}
"""The facts that other commands add to a run directory, each with its title and
command."""


def timing_section(facts: Facts, figures: dict[str, Figure]) -> list[Content]:
    rounds = max(facts.rounds, 1)
    epochs = max(facts.epochs, 1)
    unit = "round" if facts.several else "epoch"
    took = {"training, with validation": facts.seconds}
    if facts.rounds:
        took[f"per {unit}"] = facts.seconds / epochs
    if facts.rounds and not facts.several:
        took["per round of exchange"] = facts.seconds / rounds
    if facts.selection:
        took["selecting partners"] = facts.selection["cost"]["seconds"]
    device = facts.outcome.get("device")
    left = f"; {size(facts.sent / rounds)} left them per round" if facts.rounds else ""
    return [
        table(
            "Where the time went",
            ("what", "took"),
            [[what, cell(value, seconds)] for what, value in took.items()],
        ),
        (
            h("p", f"All parties that computed here used {device}{left}.")
            if device
            else None
        ),
        plates(figures, "timing"),
    ]


def settings_section(facts: Facts) -> list[Content]:
    shown = ("algorithm", "model", "label_model", "train", "data")
    rows = [
        [section, key, plain(value)]
        for section in shown
        for key, value in (facts.settings.get(section) or {}).items()
        if value != ""
    ]
    everything = [[where, plain(value)] for where, value in flat(facts.settings)]
    chosen = [
        [where, plain(value)]
        for where, value in (facts.outcome.get("chosen") or {}).items()
    ]
    return [
        h(
            "p",
            "As the run's federation.toml has them, with every default written out;"
            " tables by file name alone.",
        ),
        table('What "auto" became', ("setting", "value"), chosen) if chosen else None,
        h(
            "details",
            h(
                "summary",
                f"The {len(rows)} settings of algorithm, model, training and data",
            ),
            table("Settings", ("table", "setting", "value"), rows),
            id="settings-main",
        ),
        h(
            "details",
            h("summary", f"All {len(everything)} settings"),
            table("All settings", ("setting", "value"), everything),
            id="settings-all",
        ),
    ]


def flat(value: Any, where: str = "") -> list[tuple[str, Any]]:
    """Nested settings as a list of dotted names and values."""
    if isinstance(value, dict) and value:
        dot = f"{where}." if where else ""
        return [
            setting
            for key, inner in value.items()
            for setting in flat(inner, f"{dot}{key}")
        ]
    if isinstance(value, list) and any(isinstance(entry, dict) for entry in value):
        entries = [
            {"name": at, **entry}
            for at, entry in enumerate(value)
            if isinstance(entry, dict)
        ]
        named = [(entry.pop("name"), entry) for entry in entries]
        return [
            setting
            for name, entry in named
            for setting in flat(entry, f"{where}.{name}")
        ]
    if where.endswith(".table"):  # an organisation's folders are not shown to others
        return [(where, PurePath(str(value)).name)]
    return [(where, value)]


def plain(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return ", ".join(map(plain, value))
    return f"{value:g}" if isinstance(value, float) else str(value)


def missing_section(facts: Facts) -> list[Content] | None:
    """What could still be added, and by which command."""
    if facts.part is not None:
        return [
            h(
                "p",
                "Baselines, client importance and attacks are not here: they need the"
                " parts of all parties on one machine. Rehearse the run there: ",
                h("code", "colonnade run FEDERATION.toml --out DIR"),
                " with all tables, then ",
                h("code", "colonnade audit DIR"),
                " and ",
                h("code", "colonnade report DIR"),
                ".",
            )
        ]
    # in the run itself, and its lines are in this page
    aligned = any(line["name"] in REVEALS for line in facts.flows)
    here = {name for name in ADDED if getattr(facts, name) is not None} | (
        {"alignment"} if aligned else set()
    )
    absent = [words for name, words in ADDED.items() if name not in here]
    if not absent:
        return None
    return [
        h(
            "p",
            "Not measured, or kept elsewhere. Run the command, then ",
            h("code", "colonnade report DIR"),
            " again.",
        ),
        h(
            "ul",
            [
                h("li", f"{missing}: ", h("code", command))
                for missing, command in absent
            ],
        ),
    ]


def about_section() -> list[Content]:
    return [
        h(
            "footer",
            f"Made by Colonnade {__version__} from the run directory alone:"
            " federation.toml, metrics.jsonl, summary.json and the parties' ledgers."
            " This file needs no network and holds no row of anybody's own table.",
        ),
    ]
