"""Figures in the page: a caption, the chart, its numbers as a table, and its files."""

from __future__ import annotations

from typing import Any

from colonnade.report.chart import Figure
from colonnade.report.html import Html, cell, h, number, table
from colonnade.report.words import amount


def plate(figure: Figure) -> Html:
    """A figure with its title and words."""
    saves = [
        h("button", kind.upper(), type="button", data_save=kind, aria_label=f"Save {figure.title} as {kind.upper()}")
        for kind in ("svg", "png")
    ]
    rows = [[_cell(value) for value in row] for row in figure.rows]
    numbers = h(
        "details", h("summary", "Numbers"), table(figure.title, figure.headings, rows), id=f"{figure.name}-numbers"
    )
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
        return number("–", None)
    if isinstance(value, int):
        return cell(value, amount)
    return cell(value, "{:.6g}".format) if isinstance(value, float) else value
