"""The first box of a report: what somebody signs who answers for a run.

It has the facts of a statement (`colonnade.signing`), and takes their words from the
same places. It says nothing of who signed, so the page stays the same when it is written
again, and its hash holds.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from colonnade.report.facts import Facts
from colonnade.report.html import Cell, Content, Html, cell, h, joined, note, table
from colonnade.report.words import amount, count, epsilon, size
from colonnade.signing.contents import Audited, Columns, Contents
from colonnade.signing.inventory import Digests

NO_AUDIT = "no audit"
UNFOLDED = 40
"""The most lines of what was received that are shown at once."""
LINES = ("Name, organisation", "Signature", "Date")


def signing_section(facts: Facts) -> list[Content] | None:
    """The box; None while there is nothing to sign."""
    contents = facts.contents
    if contents is None:
        return None
    return [
        _opening(contents),
        _facts(facts, contents),
        h("h3", "Who received what"),
        _received(facts),
        h("h3", "What it costs privacy"),
        _privacy(facts),
        h("h3", "The files"),
        _files("Models", contents.inventory.models),
        _files("Ledgers", contents.inventory.ledgers),
        *_columns(contents.columns),
        h("div", [h("div", line) for line in LINES], class_="sign"),
    ]


def _opening(contents: Contents) -> Html:
    """What a signature means, and how one is made that binds."""
    who = contents.part or "PARTY"
    audit = contents.audited
    if audit is None or not audit.is_current:
        why = "was not audited" if audit is None else "was trained since its audit"
        return h(
            "p",
            h("b", f"This run {why}, so it cannot be signed yet."),
            " Run ",
            h("code", "colonnade audit DIR"),
            ", then ",
            h("code", f"colonnade sign DIR --as {who}"),
            ".",
        )
    return h(
        "p",
        "Who signs says: this is the run, this left, this is promised, and this is what"
        " attacks found. A signature that binds covers the files by their SHA-256: ",
        h("code", f"colonnade sign DIR --as {who}"),
        ". Whoever has it checks it with ",
        h("code", "colonnade verify"),
        ".",
    )


def _facts(facts: Facts, contents: Contents) -> Html:
    identity = contents.identity
    unknown = "none: begun by an earlier version"
    whose = "all parties, in one process" if facts.part is None else facts.part
    rows: list[list[Content]] = [
        ["run", facts.name],
        ["run id", unknown if identity is None else identity.id],
        ["begun (UTC)", unknown if identity is None else identity.begun],
        ["version", unknown if identity is None else f"Colonnade {identity.version}"],
        ["algorithm", facts.algorithm],
        ["part of", whose],
        ["audit begun (UTC)", _audit_date(contents.audited)],
        ["audit, worst verdict", _verdict(contents.audited)],
    ]
    return table("The run", ("what", "value"), rows)


def _audit_date(audited: Audited | None) -> str:
    return NO_AUDIT if audited is None else audited.verdict.date


def _verdict(audited: Audited | None) -> str:
    if audited is None:
        return NO_AUDIT
    words = audited.verdict.text
    if audited.party is not None:
        words = f"{words} (attacks by or on {audited.party} alone)"
    if not audited.is_current:
        return f"{words} (of other models than these)"
    return words


def _received(facts: Facts) -> Html:
    """A line per receiver, sender and release, in training and since."""
    totals: dict[tuple[str, ...], list[int]] = {}
    for during, flows in (("training", facts.flows), ("after", facts.later)):
        for flow in flows:
            about = (flow["to"], flow["from"], flow["name"], flow["protection"], during)
            counted = totals.setdefault(about, [0, 0])
            counted[0] += flow["times"]
            counted[1] += flow["bytes"]
    rows = [
        [*about, cell(times, amount), cell(many_bytes, size)]
        for about, (times, many_bytes) in sorted(totals.items(), key=_by_receiver)
    ]
    headings = ("received by", "from", "what", "rule", "when", "count", "bytes")
    whole = table("By the ledgers that are here", headings, rows)
    if len(rows) <= UNFOLDED:
        return whole
    return h("details", h("summary", f"All {len(rows)} lines"), whole)


def _by_receiver(line: tuple[tuple[str, ...], list[int]]) -> tuple[str, str]:
    """By receiver and sender; what was released stays in the order of its time."""
    receiver, sender, *_ = line[0]
    return receiver, sender


def _privacy(facts: Facts) -> Html:
    rows = [
        [
            guarantee["party"],
            guarantee["protects"],
            cell(line["epsilon"], epsilon),
            Cell("–" if line["epsilon"] is None else f"{line['delta']:g}"),
            line["adversary"],
            line["relation"],
        ]
        for guarantee in facts.privacy
        for line in guarantee["statements"]
    ]
    headings = ("owner", "protects", "ε", "δ", "against", "neighbouring tables")
    return table("Each promise, and against whom it holds", headings, rows)


def _files(kind: str, digests: Digests) -> Html:
    rows = [
        [path, cell(about.bytes, size), h("code", about.sha256)]
        for path, about in digests.items()
    ]
    summary = h("summary", f"{kind}: SHA-256 of {count(len(rows), 'file')}")
    return h("details", summary, table(kind, ("file", "size", "SHA-256"), rows))


def _columns(columns: Mapping[str, Columns]) -> Iterable[Content]:
    """The columns of each organisation whose folder is here: between sites that is the
    reader's own alone."""
    if not any(own.features or own.label for own in columns.values()):
        return
    yield h("h3", "Own columns")
    for name, own in columns.items():
        label = [] if own.label is None else [f"; label: {own.label}"]
        summary = h("summary", f"{name}: {count(len(own.features), 'column')}", label)
        yield h("details", summary, h("p", joined(own.features)))
    if len(columns) > 1:
        yield note(
            "All organisations are in one process here. Between sites, and in what each"
            " of them signs, an organisation's copy names its own columns alone."
        )
