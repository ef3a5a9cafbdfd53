"""A run of trees: whose splits gained how much, the first trees, and for one
organisation its own columns.

The only thresholds shown are the reader's own, in the report of one organisation's part
of a run between sites.
"""

from __future__ import annotations

from colonnade.report.chart import (
    COLOURS,
    WIDTH,
    Figure,
    Row,
    _legend,
    _svg,
    bars,
    plates,
)
from colonnade.report.facts import Facts, Plain
from colonnade.report.html import Content, h, note
from colonnade.report.words import score

LEVEL = 44
MARGIN = 22
DEEPEST = 5
COLUMNS = 15
"""The most of an owner's columns that are drawn."""


def tree_figures(facts: Facts) -> list[Figure]:
    """Shares by party, the first trees, and an owner's own columns."""
    drawn: list[Figure] = []
    if trees := facts.trees:
        shares = trees["importance"]
        rows = [
            Row(name, shares[name], score(shares[name]))
            for name in sorted(shares, key=lambda name: -shares[name])
        ]
        unit = "share of all gains"
        drawn.append(
            bars(
                "gains",
                "Whose splits gained how much",
                rows,
                x=unit,
                headings=("party", unit),
            )
        )
        drawn += [
            _tree(number, tree, list(shares), facts.part)
            for number, tree in enumerate(trees["first"], 1)
        ]
    if facts.own_columns:
        own = list(facts.own_columns.items())[:COLUMNS]
        unit = "share of the rows that its splits parted"
        rows = [Row(name, share, score(share)) for name, share in own]
        drawn.append(
            bars(
                "own_columns",
                "Own columns in the trees",
                rows,
                x=unit,
                headings=("column", unit),
            )
        )
    return drawn


def trees_section(facts: Facts, figures: dict[str, Figure]) -> list[Content]:
    names = [
        "gains",
        *(name for name in figures if name.startswith("tree_")),
        "own_columns",
    ]
    words = (
        "A circle is a split, in its owner's colour and with its number; a square is a"
        " leaf, whose value is added "
    )
    words += (
        "to the score. Left are rows at or below the threshold, which its owner alone"
        " knows."
    )
    owners = (
        "How much each column matters is its owner's to know:"
        " parties/<name>/importance.json."
    )
    return [
        h("p", words) if facts.trees and facts.trees["first"] else None,
        plates(figures, *names),
        note(owners) if facts.part is None else None,
    ]


def _tree(number: int, tree: Plain, parties: list[str], reader: str | None) -> Figure:
    nodes = tree["nodes"]
    place = _places(nodes)
    legend, top = _legend([f"{at}: {name}" for at, name in enumerate(parties, 1)])
    kind = {name: f"s{at % COLOURS + 1}" for at, name in enumerate(parties)}
    lines = []
    marks = []
    for at, (x, level) in place.items():
        node = nodes[at]
        y = top + 12 + LEVEL * level
        for below, deeper in (
            place[child]
            for child in (node.get("left"), node.get("right"))
            if child in place
        ):
            lines.append(
                h(
                    "line",
                    x1=x,
                    y1=y,
                    x2=below,
                    y2=top + 12 + LEVEL * deeper,
                    class_="base",
                )
            )
        tip = h("title", _words(node, reader))
        if node["party"] is None:
            marks.append(
                h("rect", tip, x=x - 4, y=y - 4, width=8, height=8, class_="bar s8")
            )
        else:
            marks.append(
                h("circle", tip, cx=x, cy=y, r=7, class_=f"dot {kind[node['party']]}")
            )
            marks.append(
                h(
                    "text",
                    parties.index(node["party"]) + 1,
                    x=x + 10,
                    y=y + 2,
                    class_="label",
                )
            )
    height = top + 40 + LEVEL * max(level for _, level in place.values())
    title = f"Tree {number}"
    if tree["output"] or number != tree["round"] + 1:
        title += f": round {tree['round'] + 1}, output {tree['output'] + 1}"
    parts = [
        h("title", title),
        h("g", legend, class_="legend"),
        h("g", lines, class_="grid"),
        *marks,
    ]
    svg = _svg(parts, height, title, "chart")
    rows = [
        (at, _words(node, reader), node.get("gain"), node.get("value"))
        for at, node in enumerate(nodes)
    ]
    note = (
        ""
        if len(place) == len(nodes)
        else f"Below level {DEEPEST} it goes on; the numbers have all of it."
    )
    return Figure(
        f"tree_{number}", title, svg, ("node", "what", "gain", "adds"), rows, note
    )


def _words(node: Plain, reader: str | None) -> str:
    if node["party"] is None:
        return f"leaf: adds {node['value']:+.4g}"
    words = f"a split of {node['party']}"
    if reader == node["party"] and "column" in node:
        words += f": {node['column']} up to {node['threshold']:.4g} goes left"
    return f"{words}, then {node['left']} or {node['right']}"


def _places(nodes: list[Plain]) -> dict[int, tuple[float, int]]:
    """Where each node stands: leaves side by side, a split in the middle above its
    children."""
    positions: dict[int, tuple[float, int]] = {}
    ends: list[int] = []

    def walk(at: int, level: int) -> float:
        node = nodes[at]
        if node["party"] is None or level == DEEPEST:
            ends.append(at)
            x = float(len(ends) - 1)
        else:
            x = (walk(node["left"], level + 1) + walk(node["right"], level + 1)) / 2
        positions[at] = x, level
        return x

    walk(0, 0)
    if len(ends) == 1:
        return {0: (WIDTH / 2, 0)}
    step = (WIDTH - 2 * MARGIN) / (len(ends) - 1)
    return {
        at: (round(MARGIN + step * x, 2), level)
        for at, (x, level) in sorted(positions.items())
    }
