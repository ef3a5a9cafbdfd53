"""The figures of a run, by the name of their file; each exists only where the run has its numbers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from itertools import product
from statistics import fmean
from typing import Any

from colonnade.evaluate import wilson
from colonnade.explain.importance import HEADS, MEASURES
from colonnade.report.chart import WIDTH, Figure, Series, _svg, clipped, lines, width_of
from colonnade.report.facts import Facts
from colonnade.report.html import Html, h
from colonnade.report.quality import quality_figures
from colonnade.report.rows import Row, bars, points
from colonnade.report.trees import tree_figures
from colonnade.report.words import capital, metric, score, seconds, size

EDGE = 128
LEAST, GAP = 34, 10
MOST = 12
"""Parties that a picture can show; with more, the table says it better."""


def streams(name: str, title: str, sent: Mapping[tuple[str, str], int], order: list[str]) -> Figure | None:
    """`sent` has bytes by (sender, receiver). None where there is nothing to draw, or too much."""
    real = {pair: count for pair, count in sent.items() if count > 0}
    if not real or len(order) > MOST:
        return None
    given, taken = Counter[str](), Counter[str]()
    for (giver, taker), count in real.items():
        given[giver] += count
        taken[taker] += count
    senders, receivers = ([party for party in order if party in counts] for counts in (given, taken))
    thick = max(120.0, 44.0 * max(len(given), len(taken))) / given.total()  # pixels a byte
    left, low = _stack(senders, given, thick)
    right, down = _stack(receivers, taken, thick)
    height = max(low, down) + 6
    bands, used = [], Counter[tuple[str, str]]()  # bytes of an edge from which bands go already
    for giver, taker in product(senders, receivers):
        if count := real.get((giver, taker), 0):
            y0, y1 = left[giver][0] + used["from", giver] * thick, right[taker][0] + used["to", taker] * thick
            used.update({("from", giver): count, ("to", taker): count})
            kind, tip = f"band s{senders.index(giver) % 8 + 1}", f"{giver} to {taker}: {size(count)}"
            bands.append(h("path", d=_band(y0, y1, max(count * thick, 1.2)), class_=kind, data_tip=tip))
    ends = [_end(party, left[party], given[party], "out") for party in senders]
    ends += [_end(party, right[party], taken[party], "in") for party in receivers]
    heads = [
        h("text", "sent by", x=EDGE - 12, y=14, text_anchor="end", class_="axis"),
        h("text", "received by", x=WIDTH - EDGE + 12, y=14, class_="axis"),
    ]
    svg = _svg([h("title", title), *heads, *bands, *ends], height, title, "chart streams")
    rows = [(giver, taker, size(count)) for (giver, taker), count in real.items()]
    return Figure(name, title, svg, ("sent by", "received by", "bytes"), rows)


def _stack(parties: list[str], counts: Mapping[str, int], thick: float) -> tuple[dict[str, tuple[float, float]], float]:
    """Where each party's edge begins and how long it is; and where all end."""
    found, y = {}, 30.0
    for party in parties:
        length = counts[party] * thick
        found[party] = y + max(0.0, LEAST - length) / 2, length
        y += max(length, LEAST) + GAP
    return found, y


def _band(y0: float, y1: float, wide: float) -> str:
    a, b, middle = EDGE + 4, WIDTH - EDGE - 4, WIDTH / 2
    return (
        f"M{a} {y0:.1f}C{middle} {y0:.1f} {middle} {y1:.1f} {b} {y1:.1f}"
        f"V{y1 + wide:.1f}C{middle} {y1 + wide:.1f} {middle} {y0 + wide:.1f} {a} {y0 + wide:.1f}Z"
    )


def _end(party: str, place: tuple[float, float], count: int, side: str) -> Html:
    x = EDGE if side == "out" else WIDTH - EDGE - 4
    text, anchor = (EDGE - 8, "end") if side == "out" else (WIDTH - EDGE + 8, None)
    middle, at = place[0] + place[1] / 2, {"x": text, "text_anchor": anchor}
    return h(
        "g",
        h("rect", x=x, y=round(place[0], 1), width=4, height=round(max(place[1], 1.5), 1), class_="edge"),
        h("text", clipped(party, EDGE - 8), h("title", party), y=round(middle - 3, 1), class_="label", **at),
        h("text", size(count), y=round(middle + 13, 1), class_="value", **at),
    )


NAME = 84
"""Pixels for each of two long names, beside what one did to the other."""


def figures(facts: Facts) -> dict[str, Figure]:
    """All that can be drawn."""
    draw = standing, progress, loss, score_by_bytes, streams_of, traffic, importance, selection, attacks, timing
    found = [*(one(facts) for one in draw), *quality_figures(facts), *tree_figures(facts)]
    return {one.name: one for one in found if one is not None}


def x_axis(facts: Facts) -> str:
    return "round" if facts.several or facts.trees is not None else "epoch"


def progress(facts: Facts) -> Figure | None:
    """The score on validation rows, of all and of each label owner."""
    name = facts.metric
    known = [record for record in facts.metrics if isinstance(record.get("validation"), dict)]
    if not known:
        return None
    x = [record["epoch"] for record in known]
    series = [
        Series("all rows" if facts.several else "validation rows", x, [one["validation"].get(name) for one in known])
    ]
    owners = dict.fromkeys(owner for one in known for owner in one.get("validation_each", {}))
    for owner in list(owners)[:7]:
        each = [one.get("validation_each", {}).get(owner, {}).get(name) for one in known]
        series.append(Series(f"rows of {owner}", x, each))
    title = f"{capital(metric(name))} on validation rows"
    return lines("progress", title, series, x=x_axis(facts), y=metric(name))


def score_by_bytes(facts: Facts) -> Figure | None:
    """The price of a score; beside the baselines, where there are some."""
    name = facts.metric
    known = [one for one in facts.metrics if isinstance(one.get("validation"), dict) and "bytes" in one]
    if len(known) < 2 or facts.baselines is None:
        return None
    series = Series("validation rows", [one["bytes"] for one in known], [one["validation"].get(name) for one in known])
    return lines("bytes", f"{capital(metric(name))} by bytes sent in all", [series], x="bytes", y=metric(name))


def loss(facts: Facts) -> Figure | None:
    known = [record for record in facts.metrics if "loss" in record]
    if not known:
        return None
    x = [record["epoch"] for record in known]
    series = [Series("training", x, [one["loss"] for one in known])]
    series.append(Series("validation", x, [(one.get("validation") or {}).get("loss") for one in known]))
    return lines("loss", "Loss", series, x=x_axis(facts), y="loss")


def standing(facts: Facts) -> Figure | None:
    """The joint model among its baselines."""
    found = facts.baselines
    if found is None:
        return None
    name, rows = found["metric"], int(found["rows"])
    several = int(found["splits"]) > 1

    def row(label: str, values: list[dict[str, Any]], kind: str) -> Row | None:
        known = [one[name] for one in values if one.get(name) is not None]
        if not known:
            return None
        middle = sum(known) / len(known)
        low, high = None, None
        if several:
            low, high = min(known), max(known)
        elif name == "accuracy" and rows:
            low, high = wilson(middle * rows, rows)
        return Row(label, middle, score(middle), kind, low, high)

    made = []
    for party, values in found["alone"].items():
        made.append(row(f"{party} alone", values, "s8"))
        if party in found.get("each", {}):
            made.append(row("with the others", found["each"][party], "s1"))
    if "each" not in found:
        made.append(row("together", found["joint"], "s1"))
    made.append(row("all in one place", found["together"], "s3") if found["together"] else None)
    made += [row(usual, values, "s4") for usual, values in found.get("usual", {}).items()]
    drawn = [one for one in made if one is not None]
    among = "alone and with the others" if "each" in found else "alone, together, and in one place"
    if several:
        note = f"Means over {found['splits']} splits of the rows; lines reach from the worst to the best split."
    else:
        note = f"On {rows} {found['split']} rows."
        if name == "accuracy":
            note += " Lines are 95 % intervals: with so many rows, smaller differences may be chance."
    title, headings = f"{capital(metric(name))} {among}", ("who trains", metric(name))
    return points("baselines", title, drawn, x=metric(name), note=note, headings=headings)


def streams_of(facts: Facts) -> Figure | None:
    sent: dict[tuple[str, str], int] = {}
    for line in facts.flows:
        pair = line["from"], line["to"]
        sent[pair] = sent.get(pair, 0) + line["bytes"]
    order = list(dict.fromkeys([*facts.parties, *(party for pair in sent for party in pair)]))
    return streams("streams", "Bytes from whom to whom", sent, order)


def traffic(facts: Facts) -> Figure | None:
    if not facts.traffic:
        return None
    rows = []
    for party, one in facts.traffic.items():
        rows.append(Row(party, one["out"], size(one["out"]), "s1", tip=f"{party} sent {size(one['out'])}"))
        rows.append(Row(party, one["in"], size(one["in"]), "s8", tip=f"{party} received {size(one['in'])}"))
    cells = [(party, size(one["out"]), size(one["in"])) for party, one in facts.traffic.items()]
    legend, headings = (("s1", "sent"), ("s8", "received")), ("party", "sent", "received")
    return bars("traffic", "Bytes sent and received", rows, x="bytes", legend=legend, headings=headings, cells=cells)


def importance(facts: Facts) -> Figure | None:
    found = facts.importance or {}
    name = found.get("ranked_by")
    values = (found.get("measures") or {}).get(name)
    if not values or name not in MEASURES:
        return None
    spread = found.get("deviations", {}).get(name, {})
    known = {party: value for party, value in values.items() if value is not None}
    rows = [
        Row(party, known[party], score(known[party]), "s1", *_whiskers(known[party], spread.get(party)))
        for party in sorted(known, key=lambda one: -known[one])
    ]
    told = MEASURES[name].told
    unit = told if name in HEADS else f"{metric(found['metric'])} {told}"
    note = f"Lines are one standard deviation over {found['repeats']} shuffles." if spread else ""
    return bars("importance", "How much each party matters", rows, x=unit, note=note, headings=("party", unit))


def selection(facts: Facts) -> Figure | None:
    found = facts.selection
    if not found or not found.get("scores"):
        return None
    errors = found.get("errors", {})
    rows = []
    for party in found["ranking"]:
        value, kind = found["scores"][party], "s1" if party in found["chosen"] else "s8"
        rows.append(Row(party, value, f"{value:.3f}", kind, *_whiskers(value, errors.get(party))))
    note = "Lines are one standard error." if errors else ""
    unit = "score" if found["method"] in ("lasso", "random") else "mutual information with the label (nats)"
    title, legend = "Whose columns tell about the label", (("s1", "kept"), ("s8", "left out"))
    return bars("selection", title, rows, x=unit, legend=legend, note=note, headings=("party", "score"))


def _whiskers(value: float, error: float | None) -> tuple[float | None, float | None]:
    return (None, None) if error is None else (value - error, value + error)


def attacks(facts: Facts) -> Figure | None:
    """Every finding of an audit on one axis: 0 is nothing, 1 is everything."""
    found = (facts.audit or {}).get("findings", [])
    if not found:
        return None
    rows, cells, alike = [], [], Counter((one["attacker"], one["victim"], one["attack"]) for one in found)
    for one in found:
        by, on, what = one["attacker"], one["victim"], f"{one['attack']}, {one['moment']}"
        whole = f"{by} on {on}: {what}"
        if width_of(whole) >= WIDTH - 10 and alike[by, on, one["attack"]] == 1:
            what = one["attack"]  # the moment tells it from no other; the table has it
        label = whole if width_of(whole) < WIDTH - 10 else f"{clipped(by, NAME)} on {clipped(on, NAME)}: {what}"
        shown, without = f"{one['score']:.3f}", f"{one['baseline']:.3f}"
        tip = f"{whole}: {one['metric']} {shown}; without an attack {without}"
        kind = "s7" if one.get("crossed") else "s1"
        marks = one.get("low"), one.get("high"), max(one["baseline"], 0.0), one.get("threshold")
        rows.append(Row(label, max(one["score"], 0.0), shown, kind, *marks, tip))
        cells.append((f"{by} on {on}", one["attack"], one["moment"], shown, without))
    legend = [("s1", "attack"), ("mark", "without an attack")]
    legend += [("limit", "threshold")] if any(one.get("threshold") is not None for one in found) else []
    legend += [("s7", "above it")] if any(one.get("crossed") for one in found) else []
    return bars(
        "attacks", "What attacks found", rows, x="score: 0 nothing, 1 everything", legend=legend, above=True,
        headings=("by, on", "attack", "when", "score", "without an attack"), cells=cells,
    )  # fmt: skip


def timing(facts: Facts) -> Figure | None:
    known = [record for record in facts.metrics if "seconds" in record]
    if len(known) < 2:
        return None
    unit = x_axis(facts)
    series = Series(f"seconds per {unit}", [one["epoch"] for one in known], [one["seconds"] for one in known])
    note = f"On average {seconds(fmean(one['seconds'] for one in known))}, with its validation."
    return lines("timing", f"Time per {unit}", [series], x=unit, y="seconds", zero=True, note=note)
