"""Charts with one row per party: bars that begin at zero, and points with their intervals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from colonnade.report.chart import WIDTH, Figure, _place, _svg, around, clipped, ticks, width_of, written
from colonnade.report.html import Html, h

LABEL, WIDEST, VALUE = 140, 200, 76
"""Beside the bars there is room for labels from 140 pixels to 200; longer ones stand above them."""
ROW, PAIR, TALL = 30, 24, 44
Place = tuple[tuple[float, float], float, float]
"""An axis, and where on the page it begins and how long it is."""


@dataclass(frozen=True)
class Row:
    """One value under a label. `mark` is another to compare it with, `kind` a class of figure.css (s1 to s8)."""

    label: str
    value: float
    shown: str
    kind: str = "s1"
    low: float | None = None
    high: float | None = None
    mark: float | None = None
    limit: float | None = None
    tip: str = ""


def bars(
    name: str,
    title: str,
    rows: Sequence[Row],
    *,
    x: str,
    legend: Sequence[tuple[str, str]] = (),
    headings: tuple[str, ...] = (),
    cells: Sequence[tuple[Any, ...]] = (),
    note: str = "",
    above: bool = False,
    bar: bool = True,
) -> Figure:
    """Lengths from zero, for bytes, seconds and shares; without `bar`, places on an axis that need not begin there, for
    scores. A label that repeats is shown once, unless all are `above`."""
    ends = [value for row in rows for value in (row.value, row.low, row.high, row.mark, row.limit) if value is not None]
    axis = around(ends, zero=bar)
    top = 30 if legend else 10
    widest = max((width_of(row.label) for row in rows), default=0.0) + 10
    over = above or widest > WIDEST
    left = 6 if over else max(LABEL, round(widest))
    place = axis, left, WIDTH - left - VALUE
    drawn, y, before = [], top, ""
    for row in rows:
        named = above or row.label != before
        y += (TALL if over else ROW) if named else PAIR
        drawn.append(_row(row, place, y - 15, bar, above=over, named=named))
        before = row.label
    bottom = y + 4
    grid = []
    for value in ticks(*axis, 5):
        at = _place(value, *place)
        grid.append(h("line", x1=at, y1=top + 4, x2=at, y2=bottom, class_="base" if bar and value == 0 else None))
        grid.append(h("text", written(value), x=at, y=bottom + 17, text_anchor="middle"))
    parts = [
        h("title", title),
        h("g", grid, class_="grid"),
        h("text", x, x=WIDTH - 4, y=bottom + 38, text_anchor="end", class_="axis"),
        h("g", _legend(legend), class_="legend"),
        h("g", drawn, class_="rows"),
    ]
    column_names = headings or ("", x)
    lines = list(cells) or [(row.label, row.shown) for row in rows]
    return Figure(name, title, _svg(parts, bottom + 46, title, "chart rows"), column_names, lines, note)


def _row(row: Row, place: Place, y: float, bar: bool, *, above: bool, named: bool) -> Html:
    zero, end = _place(0.0, *place), _place(row.value, *place)
    parts: list[Html] = []
    if named:
        at = {"x": 6, "y": y - 13} if above else {"x": place[1] - 10, "y": y + 4, "text_anchor": "end"}
        words = clipped(row.label, WIDTH - 10 if above else place[1] - 10)
        parts.append(h("text", words, h("title", row.label), class_="label", **at))
    if bar:
        size = {"x": min(zero, end), "width": max(round(abs(end - zero), 2), 1)}
        parts.append(h("rect", y=y - 8, height=16, class_=f"bar {row.kind}", **size))
    if row.low is not None and row.high is not None:
        low, high = _place(row.low, *place), _place(row.high, *place)
        parts.append(h("path", d=f"M{low} {y}H{high}M{low} {y - 4}v8M{high} {y - 4}v8", class_="whisker"))
    if not bar:
        parts.append(h("circle", cx=end, cy=y, r=6, class_=f"dot {row.kind}"))
    if row.mark is not None:
        parts.append(h("path", d=f"M{_place(row.mark, *place)} {y - 11}v22", class_="mark"))
    if row.limit is not None:
        parts.append(h("path", d=f"M{_place(row.limit, *place)} {y - 11}v22", class_="limit"))
    parts.append(h("text", row.shown, x=WIDTH - 4, y=y + 4, text_anchor="end", class_="value"))
    return h("g", parts, data_tip=row.tip or f"{row.label}: {row.shown}")


def _legend(entries: Sequence[tuple[str, str]]) -> list[Html]:
    drawn, x = [], 4.0
    for kind, name in entries:
        mark = (
            h("path", d=f"M{x + 7} 6v16", class_=kind)
            if kind in ("mark", "limit")
            else h("rect", x=x, y=8, width=14, height=12, class_=f"bar {kind}")
        )
        drawn.append(h("g", mark, h("text", name, x=x + 20, y=18)))
        x += 34 + 7.4 * len(name)
    return drawn
