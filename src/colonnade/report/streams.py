"""Who sent how much to whom, as bands from senders on the left to receivers on the right."""

from __future__ import annotations

from collections.abc import Mapping

from colonnade.report.chart import WIDTH, Figure, _svg, clipped
from colonnade.report.html import Html, h
from colonnade.report.words import size

EDGE = 128
LEAST, GAP = 34, 10
MOST = 12
"""Parties that a picture can show; with more, the table says it better."""


def streams(name: str, title: str, sent: Mapping[tuple[str, str], int], order: list[str]) -> Figure | None:
    """`sent` has bytes by (sender, receiver). None where there is nothing to draw, or too much."""
    real = {pair: count for pair, count in sent.items() if count > 0}
    senders = [party for party in order if any(pair[0] == party for pair in real)]
    receivers = [party for party in order if any(pair[1] == party for pair in real)]
    if not real or len(order) > MOST:
        return None
    total = sum(real.values())
    thick = max(120.0, 44.0 * max(len(senders), len(receivers))) / total  # pixels a byte
    left, low = _stack(senders, {p: sum(n for pair, n in real.items() if pair[0] == p) for p in senders}, thick)
    right, down = _stack(receivers, {p: sum(n for pair, n in real.items() if pair[1] == p) for p in receivers}, thick)
    height = max(low, down) + 6
    used = {("from", p): 0.0 for p in senders} | {("to", p): 0.0 for p in receivers}
    bands = []
    for giver in senders:
        for taker in receivers:
            if (count := real.get((giver, taker))) is None:
                continue
            wide = count * thick
            y0, y1 = left[giver][0] + used["from", giver], right[taker][0] + used["to", taker]
            used["from", giver] += wide
            used["to", taker] += wide
            kind = f"band s{senders.index(giver) % 8 + 1}"
            bands.append(
                h("path", d=_band(y0, y1, max(wide, 1.2)), class_=kind, data_tip=f"{giver} to {taker}: {size(count)}")
            )
    ends = [_end(p, left[p], sum(n for pair, n in real.items() if pair[0] == p), "out") for p in senders]
    ends += [_end(p, right[p], sum(n for pair, n in real.items() if pair[1] == p), "in") for p in receivers]
    heads = [
        h("text", "sent by", x=EDGE - 12, y=14, text_anchor="end", class_="axis"),
        h("text", "received by", x=WIDTH - EDGE + 12, y=14, class_="axis"),
    ]
    svg = _svg([h("title", title), *heads, *bands, *ends], height, title, "chart streams")
    rows = [(giver, taker, size(count)) for (giver, taker), count in real.items()]
    return Figure(name, title, svg, ("sent by", "received by", "bytes"), list(rows))


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
    middle = place[0] + place[1] / 2
    return h(
        "g",
        h("rect", x=x, y=round(place[0], 1), width=4, height=round(max(place[1], 1.5), 1), class_="edge"),
        h(
            "text",
            clipped(party, EDGE - 8),
            h("title", party),
            x=text,
            y=round(middle - 3, 1),
            text_anchor=anchor,
            class_="label",
        ),
        h("text", size(count), x=text, y=round(middle + 13, 1), text_anchor=anchor, class_="value"),
    )
