"""The figures of a run, by the name of their file; each exists only where the run has
its numbers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from itertools import product
from statistics import fmean
from typing import Any

from colonnade.evaluate import wilson
from colonnade.explain.importance import HEADS, MEASURES
from colonnade.report.chart import (
    WIDTH,
    Figure,
    Row,
    Series,
    _svg,
    bars,
    clipped,
    lines,
    width_of,
)
from colonnade.report.facts import Facts, Plain
from colonnade.report.html import Html, h
from colonnade.report.quality import quality_figures
from colonnade.report.trees import tree_figures
from colonnade.report.words import capital, metric, score, seconds, size

EDGE = 128
LEAST = 34
GAP = 10
MOST = 12
"""The most parties that a picture can show; with more, the table is clearer."""


def streams(
    name: str, title: str, sent: Mapping[tuple[str, str], int], order: list[str]
) -> Figure | None:
    """`sent` has bytes by (sender, receiver). None where there is nothing to draw, or
    too much."""
    real = {pair: count for pair, count in sent.items() if count > 0}
    if not real or len(order) > MOST:
        return None
    given = Counter[str]()
    taken = Counter[str]()
    for (giver, taker), count in real.items():
        given[giver] += count
        taken[taker] += count
    senders, receivers = (
        [party for party in order if party in counts] for counts in (given, taken)
    )
    # pixels a byte
    thick = max(120.0, 44.0 * max(len(given), len(taken))) / given.total()
    left, low = _stack(senders, given, thick)
    right, down = _stack(receivers, taken, thick)
    height = max(low, down) + 6
    bands = []
    used = Counter[tuple[str, str]]()  # bytes of an edge from which bands go already
    for giver, taker in product(senders, receivers):
        if count := real.get((giver, taker), 0):
            y0 = left[giver][0] + used["from", giver] * thick
            y1 = right[taker][0] + used["to", taker] * thick
            used.update({("from", giver): count, ("to", taker): count})
            kind = f"band s{senders.index(giver) % 8 + 1}"
            tip = f"{giver} to {taker}: {size(count)}"
            bands.append(
                h(
                    "path",
                    d=_band(y0, y1, max(count * thick, 1.2)),
                    class_=kind,
                    data_tip=tip,
                )
            )
    ends = [_end(party, left[party], given[party], "out") for party in senders]
    ends += [_end(party, right[party], taken[party], "in") for party in receivers]
    heads = [
        h("text", "sent by", x=EDGE - 12, y=14, text_anchor="end", class_="axis"),
        h("text", "received by", x=WIDTH - EDGE + 12, y=14, class_="axis"),
    ]
    svg = _svg(
        [h("title", title), *heads, *bands, *ends], height, title, "chart streams"
    )
    rows = [(giver, taker, size(count)) for (giver, taker), count in real.items()]
    return Figure(name, title, svg, ("sent by", "received by", "bytes"), rows)


def _stack(
    parties: list[str], counts: Mapping[str, int], thick: float
) -> tuple[dict[str, tuple[float, float]], float]:
    """Where each party's edge begins and how long it is, and where the last one ends."""
    edges = {}
    y = 30.0
    for party in parties:
        length = counts[party] * thick
        edges[party] = y + max(0.0, LEAST - length) / 2, length
        y += max(length, LEAST) + GAP
    return edges, y


def _band(y0: float, y1: float, wide: float) -> str:
    a = EDGE + 4
    b = WIDTH - EDGE - 4
    middle = WIDTH / 2
    return (
        f"M{a} {y0:.1f}C{middle} {y0:.1f} {middle} {y1:.1f} {b}"
        f" {y1:.1f}V{y1 + wide:.1f}C{middle} {y1 + wide:.1f} {middle} {y0 + wide:.1f}"
        f" {a} {y0 + wide:.1f}Z"
    )


def _end(party: str, place: tuple[float, float], count: int, side: str) -> Html:
    x = EDGE if side == "out" else WIDTH - EDGE - 4
    text, anchor = (EDGE - 8, "end") if side == "out" else (WIDTH - EDGE + 8, None)
    middle = place[0] + place[1] / 2
    at = {"x": text, "text_anchor": anchor}
    return h(
        "g",
        h(
            "rect",
            x=x,
            y=round(place[0], 1),
            width=4,
            height=round(max(place[1], 1.5), 1),
            class_="edge",
        ),
        h(
            "text",
            clipped(party, EDGE - 8),
            h("title", party),
            y=round(middle - 3, 1),
            class_="label",
            **at,
        ),
        h("text", size(count), y=round(middle + 13, 1), class_="value", **at),
    )


NAME = 84
"""Pixels for the attacker's and the victim's name each, where a label is too long."""


def figures(facts: Facts) -> dict[str, Figure]:
    """All figures for which the run has numbers, by name."""
    makers = (
        standing,
        progress,
        loss,
        score_by_bytes,
        streams_of,
        traffic,
        importance,
        selection,
        attacks,
        timing,
    )
    drawn = [
        *(make(facts) for make in makers),
        *quality_figures(facts),
        *tree_figures(facts),
    ]
    return {figure.name: figure for figure in drawn if figure is not None}


def x_axis(facts: Facts) -> str:
    return "round" if facts.several or facts.trees is not None else "epoch"


def progress(facts: Facts) -> Figure | None:
    """The score on all validation rows, and on those of each label owner."""
    name = facts.metric
    known = [
        record for record in facts.metrics if isinstance(record.get("validation"), dict)
    ]
    if not known:
        return None
    x = [record["epoch"] for record in known]
    scores = [record["validation"].get(name) for record in known]
    series = [Series("all rows" if facts.several else "validation rows", x, scores)]
    owners = dict.fromkeys(
        owner for record in known for owner in record.get("validation_each", {})
    )
    for owner in list(owners)[:7]:
        values = [
            record.get("validation_each", {}).get(owner, {}).get(name)
            for record in known
        ]
        series.append(Series(f"rows of {owner}", x, values))
    return lines(
        "progress",
        f"{capital(metric(name))} on validation rows",
        series,
        x=x_axis(facts),
        y=metric(name),
    )


def score_by_bytes(facts: Facts) -> Figure | None:
    """The score against the bytes it took, where baselines were measured."""
    name = facts.metric
    known = [
        record
        for record in facts.metrics
        if isinstance(record.get("validation"), dict) and "bytes" in record
    ]
    if len(known) < 2 or facts.baselines is None:
        return None
    x = [record["bytes"] for record in known]
    scores = [record["validation"].get(name) for record in known]
    series = Series("validation rows", x, scores)
    return lines(
        "bytes",
        f"{capital(metric(name))} by bytes sent in all",
        [series],
        x="bytes",
        y=metric(name),
    )


def loss(facts: Facts) -> Figure | None:
    known = [record for record in facts.metrics if "loss" in record]
    if not known:
        return None
    x = [record["epoch"] for record in known]
    series = [Series("training", x, [record["loss"] for record in known])]
    series.append(
        Series(
            "validation",
            x,
            [(record.get("validation") or {}).get("loss") for record in known],
        )
    )
    return lines("loss", "Loss", series, x=x_axis(facts), y="loss")


def standing(facts: Facts) -> Figure | None:
    """The joint model among its baselines."""
    baselines = facts.baselines
    if baselines is None:
        return None
    name = baselines["metric"]
    rows = int(baselines["rows"])
    several = int(baselines["splits"]) > 1

    def row(label: str, values: list[dict[str, Any]], kind: str) -> Row | None:
        known = [scores[name] for scores in values if scores.get(name) is not None]
        if not known:
            return None
        middle = sum(known) / len(known)
        low = None
        high = None
        if several:
            low = min(known)
            high = max(known)
        elif name == "accuracy" and rows:
            low, high = wilson(middle * rows, rows)
        return Row(label, middle, score(middle), kind, low, high)

    every_row = []
    for party, values in baselines["alone"].items():
        every_row.append(row(f"{party} alone", values, "s8"))
        if party in baselines.get("each", {}):
            every_row.append(row("with the others", baselines["each"][party], "s1"))
    if "each" not in baselines:
        every_row.append(row("together", baselines["joint"], "s1"))
    every_row.append(
        row("all in one place", baselines["together"], "s3")
        if baselines["together"]
        else None
    )
    every_row += [
        row(usual, values, "s4") for usual, values in baselines.get("usual", {}).items()
    ]
    drawn = [row for row in every_row if row is not None]
    among = (
        "alone and with the others"
        if "each" in baselines
        else "alone, together, and in one place"
    )
    if several:
        note = (
            f"Means over {baselines['splits']} splits of the rows; lines reach from the"
            " worst to the best split."
        )
    else:
        note = f"On {rows} {baselines['split']} rows."
        if name == "accuracy":
            note += (
                " Lines are 95 % intervals: with so many rows, smaller differences may"
                " be chance."
            )
    title = f"{capital(metric(name))} {among}"
    headings = ("who trains", metric(name))
    return bars(
        "baselines",
        title,
        drawn,
        x=metric(name),
        note=note,
        headings=headings,
        bar=False,
    )


def streams_of(facts: Facts) -> Figure | None:
    sent = Counter[tuple[str, str]]()
    for line in facts.flows:
        sent[line["from"], line["to"]] += line["bytes"]
    order = list(
        dict.fromkeys([*facts.parties, *(party for pair in sent for party in pair)])
    )
    return streams("streams", "Bytes from whom to whom", sent, order)


def traffic(facts: Facts) -> Figure | None:
    if not facts.traffic:
        return None
    rows = []
    cells = [
        (party, size(traffic["out"]), size(traffic["in"]))
        for party, traffic in facts.traffic.items()
    ]
    for party, sent, received in cells:
        rows.append(
            Row(
                party,
                facts.traffic[party]["out"],
                sent,
                "s1",
                tip=f"{party} sent {sent}",
            )
        )
        rows.append(
            Row(
                party,
                facts.traffic[party]["in"],
                received,
                "s8",
                tip=f"{party} received {received}",
            )
        )
    legend = (("s1", "sent"), ("s8", "received"))
    headings = ("party", "sent", "received")
    return bars(
        "traffic",
        "Bytes sent and received",
        rows,
        x="bytes",
        legend=legend,
        headings=headings,
        cells=cells,
    )


def importance(facts: Facts) -> Figure | None:
    importances = facts.importance or {}
    name = importances.get("ranked_by")
    values = (importances.get("measures") or {}).get(name)
    if not values or name not in MEASURES:
        return None
    spread = importances.get("deviations", {}).get(name, {})
    known = {party: value for party, value in values.items() if value is not None}
    rows = [
        Row(
            party,
            known[party],
            score(known[party]),
            "s1",
            *_whiskers(known[party], spread.get(party)),
        )
        for party in sorted(known, key=lambda party: -known[party])
    ]
    words = MEASURES[name].phrase
    unit = words if name in HEADS else f"{metric(importances['metric'])} {words}"
    note = (
        f"Lines are one standard deviation over {importances['repeats']} shuffles."
        if spread
        else ""
    )
    return bars(
        "importance",
        "How much each party matters",
        rows,
        x=unit,
        note=note,
        headings=("party", unit),
    )


def selection(facts: Facts) -> Figure | None:
    choice = facts.selection
    if not choice or not choice.get("scores"):
        return None
    errors = choice.get("errors", {})
    rows = []
    for party in choice["ranking"]:
        value = choice["scores"][party]
        kind = "s1" if party in choice["chosen"] else "s8"
        rows.append(
            Row(
                party,
                value,
                f"{value:z.3f}",
                kind,
                *_whiskers(value, errors.get(party)),
            )
        )
    note = "Lines are one standard error." if errors else ""
    unit = (
        "score"
        if choice["method"] in ("lasso", "random")
        else "mutual information with the label (nats)"
    )
    title = "Whose columns tell about the label"
    legend = (("s1", "kept"), ("s8", "left out"))
    return bars(
        "selection",
        title,
        rows,
        x=unit,
        legend=legend,
        note=note,
        headings=("party", "score"),
    )


def _whiskers(value: float, error: float | None) -> tuple[float | None, float | None]:
    return (None, None) if error is None else (value - error, value + error)


def attacks(facts: Facts) -> Figure | None:
    """Every finding of an audit on one axis: 0 is nothing, 1 is everything."""
    findings = (facts.audit or {}).get("findings", [])
    if not findings:
        return None
    alike = Counter(
        (finding["attacker"], finding["victim"], finding["attack"])
        for finding in findings
    )
    rows = []
    cells = []
    for finding in findings:
        by = finding["attacker"]
        on = finding["victim"]
        attack = finding["attack"]
        repeats = alike[by, on, attack] > 1
        score = "not measured"
        if finding["score"] is not None:
            score = f"{finding['score']:z.3f}"
        guessing = f"{finding['baseline']:z.3f}"
        rows.append(_attack_row(finding, score, guessing, repeats=repeats))
        cells.append((f"{by} on {on}", attack, finding["moment"], score, guessing))
    legend = [("s1", "attack"), ("mark", "guessing")]
    if any(finding["threshold"] is not None for finding in findings):
        legend.append(("limit", "threshold"))
    if any(finding["crossed"] for finding in findings):
        legend.append(("s7", "above it"))
    return bars(
        "attacks",
        "What attacks found",
        rows,
        x="score: 0 nothing, 1 everything; of AUC 0.5 is nothing",
        legend=legend,
        above=True,
        headings=("by, on", "attack", "when", "score", "by guessing"),
        cells=cells,
    )


def _attack_row(finding: Plain, score: str, guessing: str, *, repeats: bool) -> Row:
    """The bar of a finding. Where its full name is too long, parties are clipped, and
    the moment stands only where the same attack was made at several."""
    attack = finding["attack"]
    moment = finding["moment"]
    whole = f"{finding['attacker']} on {finding['victim']}: {attack}, {moment}"
    label = whole
    if width_of(whole) >= WIDTH - 10:
        by = clipped(finding["attacker"], NAME)
        on = clipped(finding["victim"], NAME)
        label = f"{by} on {on}: {attack}"
        label += f", {moment}" if repeats else ""
    return Row(
        label,
        max(finding["score"] or 0.0, 0.0),
        score,
        "s7" if finding["crossed"] else "s1",
        finding["low"],
        finding["high"],
        max(finding["baseline"], 0.0),
        finding["threshold"],
        f"{whole}: {finding['metric']} {score}; by guessing {guessing}",
    )


def timing(facts: Facts) -> Figure | None:
    known = [record for record in facts.metrics if "seconds" in record]
    if len(known) < 2:
        return None
    unit = x_axis(facts)
    took = [record["seconds"] for record in known]
    series = Series(f"seconds per {unit}", [record["epoch"] for record in known], took)
    note = f"On average {seconds(fmean(took))}, with its validation."
    return lines(
        "timing",
        f"Time per {unit}",
        [series],
        x=unit,
        y="seconds",
        zero=True,
        note=note,
    )
