"""Who took part, and what each party sent: in words, in bytes, from the ledgers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from colonnade.algorithms import find
from colonnade.alignment import REVEALS
from colonnade.core.cipher import NOT_ENCRYPTED
from colonnade.federation.rules import CODECS
from colonnade.report.chart import Figure, plates
from colonnade.report.facts import Facts, Flow
from colonnade.report.html import Content, Html, cell, h, table
from colonnade.report.words import amount, listed, size

HOLDS = {"features": "columns", "labels": "labels"}


def parties_section(facts: Facts) -> list[Content]:
    rows = []
    for name, roles in facts.parties.items():
        holds = [
            (
                f"{facts.columns[name]} columns"
                if role == "features" and name in facts.columns
                else HOLDS.get(role, role)
            )
            for role in roles
        ]
        rows.append([name, " and ".join(holds) or "no data", _rules(facts, name)])
    splits = [
        f"{many:,} for {'training' if split == 'train' else split}"
        for split, many in facts.rows.items()
    ]
    shared = "The label owners have labels of" if facts.several else "They share"
    shared = shared if facts.part is None else f"{facts.part} takes part with"
    source = facts.settings.get("data", {}).get("dataset")
    others = (
        "Others have their own parts of this run, on their own machines:"
        f" {listed(facts.others)}."
    )
    cut = h(
        "p",
        "A simulation: the public data set ",
        h("b", source),
        " was cut into parties on one machine.",
    )
    return [
        h("p", _method(facts)),
        table(
            "Organisations", ("party", "holds", "its own rules for what leaves"), rows
        ),
        h("p", others) if facts.others and facts.part is not None else None,
        (
            h("p", f"{shared} {sum(facts.rows.values()):,} rows: {', '.join(splits)}.")
            if splits
            else None
        ),
        cut if source else None,
        _odd_words(facts) if facts.odd_words else None,
    ]


def _odd_words(facts: Facts) -> Html:
    """The words among numbers, which their owners may want to put right."""
    rows = [
        [party, column, str(words), cell(words.cells, amount)]
        for party, columns in facts.odd_words.items()
        for column, words in columns.items()
    ]
    caption = (
        "Words in columns of numbers, which were read as gaps. They are cells of the"
        " party's table, and nobody else is told"
    )
    return table(caption, ("party", "column", "words and cells", "cells"), rows)


def _method(facts: Facts) -> Content:
    """The algorithm and the models in a sentence each."""
    algorithm = {
        key: value
        for key, value in facts.settings.get("algorithm", {}).items()
        if key != "name"
    }
    train = facts.settings.get("train", {})
    model = facts.settings.get("model") or {"name": "mlp"}
    record = find(facts.algorithm)
    most = train.get("epochs", "?")
    unit = ("round" if facts.several or not record.config.in_batches else "epoch") + (
        "" if most == 1 else "s"
    )
    size_ = (
        f" in batches of {train.get('batch_size', '?')} rows"
        if record.config.in_batches
        else ""
    )
    return [
        "Trained with " if record.trains else "Told by ",
        h("b", facts.algorithm),
        f" ({_in_words(algorithm)})" if algorithm else "",
        ". ",
        (
            f"Each party's model, unless it says otherwise: {_in_words(model)}. "
            if record.draws_weights
            else ""
        ),
        f"At most {most} {unit}{size_}. " if record.trains else "",
        f"Seed {facts.settings.get('federation', {}).get('seed', '?')}.",
    ]


def _rules(facts: Facts, name: str) -> Content:
    lists = [
        *facts.settings.get("label_owners", []),
        *facts.settings.get("data_owners", []),
    ]
    sections = [section for section in lists if section.get("name") == name]
    rules = []
    for section in sections or [facts.settings.get("parties", {}).get(name, {})]:
        for release, rule in section.get("outbox", {}).items():
            rules.append(f"{release}: {_in_words(rule)}")
        if section.get("budget"):
            rules.append(f"budget: {_in_words(section['budget'])}")
    return "; ".join(rules) or "none: what the algorithm sends leaves as it is"


def _in_words(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(
            (
                _in_words(inner)
                if key in ("name", "mechanism")
                else f"{key} {_in_words(inner)}"
            )
            for key, inner in value.items()
        )
    if isinstance(value, list):
        return " and ".join(map(_in_words, value))
    return f"{value:g}" if isinstance(value, float) else str(value)


def crossing_section(facts: Facts, figures: dict[str, Figure]) -> list[Content]:
    if not facts.flows:
        return [h("p", "No ledger in this directory says that anything crossed yet.")]
    senders = dict.fromkeys(line["from"] for line in facts.flows)
    elsewhere = [name for name in senders if name not in facts.ledgers]
    whose = f"The ledgers of {listed(elsewhere)} are on their own machines: what they"
    if len(elsewhere) == 1:
        whose = f"The ledger of {elsewhere[0]} is on its own machine: what it"
    aligned = [line for line in facts.flows if line["name"] in REVEALS]
    trained = [line for line in facts.flows if line["name"] not in REVEALS]
    # Before training, and many lines: folded, so that what the algorithm sends is seen.
    before = h(
        "summary",
        "Before that, to find the common rows:"
        f" {size(sum(line['bytes'] for line in aligned))}",
    )
    folded = h(
        "details",
        before,
        _lines("To find the common rows", aligned),
        id="aligned-lines",
    )
    later = (
        "To predict, to explain or to audit, this crossed since; it is in no total"
        " above."
    )
    return [
        h(
            "p",
            "Every tensor that left an organisation is one line in its own ledger."
            " Added up, this is all that ",
            (
                "crossed; "
                if facts.part is None
                else f"crossed to and from {facts.part}; "
            ),
            "bytes are those of the packed tensors.",
        ),
        h("p", whose, " sent is told as it arrived.") if elsewhere else None,
        h(
            "dl",
            [_words(sender, trained, aligned) for sender in senders],
            class_="crossed",
        ),
        plates(figures, "streams", "traffic"),
        _lines(
            "What crossed in training" if aligned else "Everything that crossed",
            trained,
        ),
        folded if aligned else None,
        _per_party(facts),
        (
            [
                h("h3", "After training"),
                h("p", later),
                _lines("Crossed after training", facts.later),
            ]
            if facts.later
            else None
        ),
    ]


def _lines(caption: str, lines: Iterable[Flow]) -> Html:
    rows = [
        [
            line["from"],
            line["to"],
            [line["name"], _owner(line)],
            cell(line["times"], amount),
            cell(line["values"], amount),
            cell(line["bytes"], size),
            _protection(line),
            line["meaning"],
        ]
        for line in lines
    ]
    headings = (
        "from",
        "to",
        "what",
        "times",
        "numbers",
        "bytes",
        "protection",
        "what it tells the receiver",
    )
    return table(caption, headings, rows)


def _words(sender: str, trained: Iterable[Flow], aligned: Iterable[Flow]) -> Content:
    """As: lab_north sent 108 kB: embedding to clinic, 51 times, 108 kB: the local
    model's output for each row. What it sent to find the common rows is one line of its
    own, so that its total is that of all figures and tables."""
    sent_lines = [line for line in trained if line["from"] == sender]
    before = sum(line["bytes"] for line in aligned if line["from"] == sender)
    kinds: dict[tuple[str, str, str], list[Flow]] = {}
    for line in sent_lines:
        kinds.setdefault((line["name"], line["protection"], _owner(line)), []).append(
            line
        )
    whole = size(sum(line["bytes"] for line in sent_lines) + before)
    content: list[Content] = [
        h("dt", h("span", sender, class_="party"), f" sent {whole}:")
    ]
    for (name, _, owner), group in kinds.items():
        to = [line["to"] for line in group]
        whom = listed(to) if len(to) <= 4 else f"{len(to)} parties"
        times = sum(line["times"] for line in group)
        count = sum(line["bytes"] for line in group)
        often = "once" if times == 1 else f"{amount(times)} times"
        words = (
            f"{owner} to {whom}, {often}, {size(count)}: {group[0]['meaning']}."
            f" {_readable(group[0])}"
        )
        content.append(h("dd", h("b", name), words))
    if before:
        content.append(
            h(
                "dd",
                h("b", "to find the common rows"),
                f", before training, {size(before)}.",
            )
        )
    return content


def _owner(line: Flow) -> str:
    return (
        "" if line["owner"] in (line["from"], "") else f" of {line['owner']}, passed on"
    )


def _protection(line: Flow) -> str:
    shown = "none" if line["protection"] == "plain" else line["protection"]
    return shown if line["codec"] in ("identity", "") else f"{shown}; {line['codec']}"


def _readable(line: Flow) -> str:
    if line["protection"] != "plain":
        return f"Protected: {line['protection']}."
    if line["codec"] in ("identity", NOT_ENCRYPTED):
        return "It crossed unprotected."
    if line["codec"] in CODECS:
        return f"It was made smaller ({line['codec']}), not safer."
    return (
        f"It crossed encrypted ({line['codec']}), and whoever has the key reads it as"
        " it is."
    )


def _per_party(facts: Facts) -> Html:
    rounds = max(facts.rounds, 1)
    rows = []
    for party, traffic in facts.traffic.items():
        sent = traffic["out"]
        received = traffic["in"]
        times = sum(line["times"] for line in facts.flows if line["from"] == party)
        counts = cell(times, amount), cell(facts.rounds, amount)
        rows.append(
            [
                party,
                cell(sent, size),
                cell(received, size),
                *counts,
                cell(sent / rounds, size),
            ]
        )
    headings = ("party", "sent", "received", "tensors sent", "rounds", "sent per round")
    return table("Bytes and rounds per party", headings, rows)
