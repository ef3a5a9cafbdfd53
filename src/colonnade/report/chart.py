"""Figures of a page as SVG, readable as they are, and with page.js also under the
pointer: line charts, and charts with one row per party, of bars that begin at zero or
of points with their intervals.

A line chart's own data-chart has what page.js needs to read values out and to zoom.
Axes have round numbers.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from colonnade.report.html import Cell, Html, cell, h, table
from colonnade.report.words import amount

STEPS = (1, 2, 2.5, 5, 10)


def ticks(
    low: float, high: float, most: int = 6, *, whole: bool = False
) -> list[float]:
    """Multiples of 1, 2, 2.5 or 5 times a power of ten within [low, high], at most
    `most` of them."""
    span = high - low
    if not (math.isfinite(span) and span > 0):
        return [low]
    power = 10.0 ** math.floor(math.log10(span / most))
    steps = (power * step * ten for ten in (1, 10) for step in STEPS)
    step = next(
        size
        for size in steps
        if span / size < most and not (whole and (size < 1 or size != round(size)))
    )
    first = math.ceil(low / step - 1e-9)
    return [
        round(number * step, 12)
        for number in range(first, math.floor(high / step + 1e-9) + 1)
    ]


def around(values: Sequence[float], *, zero: bool = False) -> tuple[float, float]:
    """An axis that holds all values with a little room; with `zero`, also 0, without
    room beyond it."""
    known = [value for value in values if math.isfinite(value)] or [0.0, 1.0]
    low = min(known)
    high = max(known)
    if zero:
        low = min(low, 0.0)
        high = max(high, 0.0)
    room = 0.06 * (high - low) or abs(high) * 0.1 or 1.0
    return low if zero and low == 0 else low - room, (
        high if zero and high == 0 > low else high + room
    )


def written(value: float) -> str:
    """A tick: 0.95, 1.5k, 20M."""
    for limit, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= limit:
            return f"{value / limit:g}{unit}"
    return f"{value:g}" if abs(value) >= 1e-4 or value == 0 else f"{value:.0e}"


WIDTH = 480
HEIGHT = 270
LEFT = 58
RIGHT = 16
BOTTOM = 46
COLOURS = 8
"""figure.css has s1 to s8, which differ in colour and in dashes."""
FONT = 16
NARROW = "fijlrt.,:;|'!() -"
WIDE = "mwMW%@…"
"""The size of letters in pixels as page.css has it on a phone, and the narrow and the
wide letters."""


@dataclass(frozen=True)
class Figure:
    """A chart, what it shows in words, and its numbers as a table."""

    name: str  # of its file
    title: str
    svg: Html
    headings: tuple[str, ...] = ()
    rows: list[tuple[Any, ...]] = field(default_factory=list)
    note: str = ""


@dataclass(frozen=True)
class Series:
    """One line; a value that is None is a gap."""

    name: str
    x: Sequence[float]
    y: Sequence[float | None]


def lines(
    name: str,
    title: str,
    series: Sequence[Series],
    *,
    x: str,
    y: str,
    note: str = "",
    zero: bool = False,
) -> Figure:
    """Values over epochs, rounds or bytes; `x` and `y` name the axes."""
    drawn = [line for line in series if any(_known(value) for value in line.y)]
    legend, top = _legend([line.name for line in drawn] if len(drawn) > 1 else [])
    box = LEFT, top, WIDTH - LEFT - RIGHT, HEIGHT - top - BOTTOM
    xs = [value for line in drawn for value in line.x]
    x_axis = (min(xs), max(xs)) if xs and max(xs) > min(xs) else around(xs)
    y_axis = around(
        [
            value
            for line in drawn
            for value in line.y
            if value is not None and _known(value)
        ],
        zero=zero,
    )
    whole = all(float(value).is_integer() for value in xs)
    about = {
        "box": box,
        "x": x_axis,
        "y": y_axis,
        "names": [x, y],
        "whole": whole,
        "series": [
            {"name": line.name, "x": _short(line.x), "y": _short(line.y)}
            for line in drawn
        ],
    }
    clip = f"clip-{name}"
    inside = h(
        "clipPath",
        h("rect", x=box[0] - 5, y=box[1] - 6, width=box[2] + 10, height=box[3] + 12),
        id=clip,
    )
    parts = [
        h("title", title),
        h("defs", inside),
        h("g", _grid(box, x_axis, y_axis, whole), class_="grid"),
        h("text", y, x=4, y=14, class_="axis"),
        h("text", x, x=WIDTH - RIGHT, y=HEIGHT - 6, class_="axis", text_anchor="end"),
        h("g", legend, class_="legend"),
        h(
            "g",
            [_line(*numbered, box, x_axis, y_axis) for numbered in enumerate(drawn)],
            clip_path=f"url(#{clip})",
        ),
    ]
    svg = _svg(parts, HEIGHT, title, "chart lines", data_chart=json.dumps(about))
    steps = sorted({value for line in drawn for value in line.x})
    values = [dict(zip(line.x, line.y, strict=True)) for line in drawn]
    rows = [(step, *(by_step.get(step) for by_step in values)) for step in steps]
    return Figure(name, title, svg, (x, *(line.name for line in drawn)), rows, note)


def _svg(
    parts: Sequence[Html], height: float, title: str, kind: str, **attributes: Any
) -> Html:
    return h(
        "svg",
        list(parts),
        viewBox=f"0 0 {WIDTH} {height:g}",
        class_=kind,
        role="img",
        aria_label=title,
        **attributes,
    )


def _legend(names: Sequence[str]) -> tuple[list[Html], int]:
    """One entry per line, in as many rows as they need, and where the chart begins
    below them."""
    entries = []
    x = LEFT
    y = 34
    for number, name in enumerate(names):
        shown = clipped(name, WIDTH - LEFT - RIGHT - 34)
        wide = 34 + width_of(shown)
        if x > LEFT and x + wide > WIDTH - RIGHT:
            x = LEFT
            y = y + 19
        mark = [
            h("rect", x=x - 2, y=y - 13, width=wide - 6, height=18, class_="hit"),
            h(
                "line",
                x1=x,
                y1=y - 4,
                x2=x + 22,
                y2=y - 4,
                class_=f"s{number % COLOURS + 1}",
            ),
            h("text", shown, h("title", name), x=x + 28, y=y),
        ]
        entries.append(h("g", mark, data_series=number))
        x += int(wide) + 8
    return entries, y + 14 if names else 30


def _grid(
    box: tuple[int, int, int, int],
    xs: tuple[float, float],
    ys: tuple[float, float],
    whole: bool,
) -> list[Html]:
    left, top, width, height = box
    marks = []
    for value in ticks(*ys, 5):
        at = _place(value, ys, top + height, -height)
        marks.append(h("line", x1=left, y1=at, x2=left + width, y2=at))
        marks.append(h("text", written(value), x=left - 8, y=at + 4, text_anchor="end"))
    for value in ticks(*xs, 7, whole=whole):
        at = _place(value, xs, left, width)
        marks.append(
            h("line", x1=at, y1=top + height, x2=at, y2=top + height + 5, class_="tick")
        )
        marks.append(
            h("text", written(value), x=at, y=top + height + 20, text_anchor="middle")
        )
    marks.append(
        h(
            "line",
            x1=left,
            y1=top + height,
            x2=left + width,
            y2=top + height,
            class_="base",
        )
    )
    return marks


def _line(
    number: int,
    line: Series,
    box: tuple[int, int, int, int],
    xs: tuple[float, float],
    ys: tuple[float, float],
) -> Html:
    left, top, width, height = box
    path = []
    points = []
    pen = "M"
    for x, y in zip(line.x, line.y, strict=True):
        if y is None or not _known(y):
            pen = "M"
            continue
        place = _place(x, xs, left, width), _place(y, ys, top + height, -height)
        path.append(f"{pen}{place[0]:g} {place[1]:g}")
        points.append(h("circle", cx=place[0], cy=place[1], r=2.6))
        pen = "L"
    shown = points if len(points) <= 40 else []
    kind = f"series s{number % COLOURS + 1}"
    return h("g", h("path", d="".join(path)), shown, class_=kind, data_series=number)


def _place(
    value: float, axis: tuple[float, float], start: float, length: float
) -> float:
    return round(start + length * (value - axis[0]) / (axis[1] - axis[0]), 2)


def _known(value: Any) -> bool:
    return isinstance(value, (int, float)) and math.isfinite(value)


def _short(values: Sequence[float | None]) -> list[float | None]:
    return [
        float(f"{value:.7g}") if value is not None and _known(value) else None
        for value in values
    ]


def width_of(text: str) -> float:
    """About how many pixels a text takes on a phone, whose letters are larger."""
    return sum(
        FONT * (0.3 if c in NARROW else 0.9 if c in WIDE or ord(c) > 0x2E7F else 0.58)
        for c in text
    )


def clipped(name: str, room: float) -> str:
    """A name that fits into so much room: a long one keeps its beginning and its end,
    since many names begin alike."""
    kept = len(name)
    shown = name
    while width_of(shown) > room and kept > 2:
        kept -= 1
        shown = f"{name[: (kept + 1) // 2]}…{name[len(name) - kept // 2 :]}"
    return shown


LABEL = 140
WIDEST = 200
VALUE = 76
"""Beside the bars there is room for labels from 140 pixels to 200; longer ones stand
above them."""
ROW = 30
PAIR = 24
TALL = 44
Place = tuple[tuple[float, float], float, float]
"""An axis, and where on the page it begins and how long it is."""


@dataclass(frozen=True)
class Row:
    """One value under a label. `mark` is another to compare it with, `kind` a class of
    figure.css (s1 to s8)."""

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
    """Lengths from zero, for bytes, seconds and shares; without `bar`, places on an
    axis that need not begin there, for scores. A label that repeats is shown once,
    unless all are `above`."""
    ends = [
        value
        for row in rows
        for value in (row.value, row.low, row.high, row.mark, row.limit)
        if value is not None
    ]
    axis = around(ends, zero=bar)
    top = 30 if legend else 10
    widest = max((width_of(row.label) for row in rows), default=0.0) + 10
    over = above or widest > WIDEST
    left = 6 if over else max(LABEL, round(widest))
    place = axis, left, WIDTH - left - VALUE
    drawn = []
    y = top
    before = ""
    for row in rows:
        named = above or row.label != before
        y += (TALL if over else ROW) if named else PAIR
        drawn.append(_row(row, place, y - 15, bar, above=over, named=named))
        before = row.label
    bottom = y + 4
    grid = []
    for value in ticks(*axis, 5):
        at = _place(value, *place)
        grid.append(
            h(
                "line",
                x1=at,
                y1=top + 4,
                x2=at,
                y2=bottom,
                class_="base" if bar and value == 0 else None,
            )
        )
        grid.append(
            h("text", written(value), x=at, y=bottom + 17, text_anchor="middle")
        )
    parts = [
        h("title", title),
        h("g", grid, class_="grid"),
        h("text", x, x=WIDTH - 4, y=bottom + 38, text_anchor="end", class_="axis"),
        h("g", _kinds(legend), class_="legend"),
        h("g", drawn, class_="rows"),
    ]
    numbers = list(cells) or [(row.label, row.shown) for row in rows]
    return Figure(
        name,
        title,
        _svg(parts, bottom + 46, title, "chart rows"),
        headings or ("", x),
        numbers,
        note,
    )


def _row(
    row: Row, place: Place, y: float, bar: bool, *, above: bool, named: bool
) -> Html:
    zero = _place(0.0, *place)
    end = _place(row.value, *place)
    parts: list[Html] = []
    if named:
        at = (
            {"x": 6, "y": y - 13}
            if above
            else {"x": place[1] - 10, "y": y + 4, "text_anchor": "end"}
        )
        words = clipped(row.label, WIDTH - 10 if above else place[1] - 10)
        parts.append(h("text", words, h("title", row.label), class_="label", **at))
    if bar:
        size = {"x": min(zero, end), "width": max(round(abs(end - zero), 2), 1)}
        parts.append(h("rect", y=y - 8, height=16, class_=f"bar {row.kind}", **size))
    if row.low is not None and row.high is not None:
        low = _place(row.low, *place)
        high = _place(row.high, *place)
        parts.append(
            h(
                "path",
                d=f"M{low} {y}H{high}M{low} {y - 4}v8M{high} {y - 4}v8",
                class_="whisker",
            )
        )
    if not bar:
        parts.append(h("circle", cx=end, cy=y, r=6, class_=f"dot {row.kind}"))
    if row.mark is not None:
        parts.append(
            h("path", d=f"M{_place(row.mark, *place)} {y - 11}v22", class_="mark")
        )
    if row.limit is not None:
        parts.append(
            h("path", d=f"M{_place(row.limit, *place)} {y - 11}v22", class_="limit")
        )
    parts.append(
        h("text", row.shown, x=WIDTH - 4, y=y + 4, text_anchor="end", class_="value")
    )
    return h("g", parts, data_tip=row.tip or f"{row.label}: {row.shown}")


def _kinds(entries: Sequence[tuple[str, str]]) -> list[Html]:
    drawn = []
    x = 4.0
    for kind, name in entries:
        mark = (
            h("path", d=f"M{x + 7} 6v16", class_=kind)
            if kind in ("mark", "limit")
            else h("rect", x=x, y=8, width=14, height=12, class_=f"bar {kind}")
        )
        drawn.append(h("g", mark, h("text", name, x=x + 20, y=18)))
        x += 34 + 7.4 * len(name)
    return drawn


def plate(figure: Figure) -> Html:
    """A figure with its title and words."""
    saves = [
        h(
            "button",
            kind.upper(),
            type="button",
            data_save=kind,
            aria_label=f"Save {figure.title} as {kind.upper()}",
        )
        for kind in ("svg", "png")
    ]
    rows = [[_cell(value) for value in row] for row in figure.rows]
    whole = table(figure.title, figure.headings, rows)
    numbers = h("details", h("summary", "Numbers"), whole, id=f"{figure.name}-numbers")
    return h(
        "figure",
        h("figcaption", figure.title),
        figure.svg,
        h("p", figure.note, class_="note") if figure.note else None,
        h("div", h("span", "Save as", class_="soft"), saves, class_="tools"),
        numbers if rows else None,
        id=f"figure-{figure.name}",
    )


def plates(figures: dict[str, Figure], *names: str) -> Html | None:
    """The figures of these names that exist, side by side where there is room."""
    drawn = [plate(figures[name]) for name in names if name in figures]
    return h("div", drawn, class_="figures") if drawn else None


def _cell(value: Any) -> Any:
    if value is None:
        return Cell("–")
    if isinstance(value, int):
        return cell(value, amount)
    return cell(value, "{:.6g}".format) if isinstance(value, float) else value
