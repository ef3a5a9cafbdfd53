"""Paper, ink and files of the pictures: one style, colours that colour-blind readers can tell apart, whole files."""

from __future__ import annotations

import math
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from colonnade.core.files import replaced
from colonnade.errors import InputError
from colonnade.explain.report import Report

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BLUE, SKY, GREEN, ORANGE, VERMILLION, PURPLE = "#0072B2", "#56B4E9", "#009E73", "#E69F00", "#D55E00", "#CC79A7"
"""Okabe and Ito's colours."""

INK, GREY, FAINT = "#222222", "#8a8a8a", "#e6e6e6"
STYLE: Any = {
    "font.family": "sans-serif",
    "font.size": 8,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": GREY,
    "axes.titlesize": 8.5,
    "xtick.color": INK,
    "ytick.color": INK,
    "svg.hashsalt": "colonnade",
}


def can_draw() -> None:
    """Raise unless matplotlib is here."""
    if find_spec("matplotlib") is None:
        raise InputError('Pictures need matplotlib. Install it: pip install "colonnade[plots]".')


def page(width: float, height: float) -> Figure:
    """White paper of so many inches."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), dpi=200, facecolor="white")


def panels(
    figure: Figure, count: int, *, left: float, bottom: float, top: float, right: float = 0.15, same_rows: bool = True
) -> list[Axes]:
    """Panels side by side, with margins in inches; with the same rows, only the first names them."""
    width, height = figure.get_size_inches()
    room = {"left": left / width, "right": 1 - right / width, "bottom": bottom / height, "top": 1 - top / height}
    gap = {"wspace": 0.22 if same_rows else 0.05}
    return list(figure.subplots(1, count, sharey=same_rows, squeeze=False, gridspec_kw=room | gap)[0])


def clean(axis: Axes) -> None:
    """Light lines for the values, no frame, and a line at zero."""
    axis.set_axisbelow(True)
    axis.grid(axis="x", color=FAINT, linewidth=0.7)
    for side in ("top", "right", "left"):
        axis.spines[side].set_visible(False)
    axis.tick_params(length=0, labelsize=7)
    axis.locator_params(axis="x", nbins=4)
    if axis.get_xlim()[0] <= 0:
        axis.axvline(0, color=GREY, linewidth=0.8)


def headline(figure: Figure, text: str, below: str = "") -> None:
    width, height = figure.get_size_inches()
    figure.text(0.15 / width, 1 - 0.12 / height, text, fontsize=10.5, fontweight="bold", va="top")
    figure.text(0.15 / width, 1 - 0.34 / height, below, fontsize=8, color=GREY, va="top")


def save(figure: Figure, stem: Path) -> list[Path]:
    """Save a figure as PNG and SVG; each file appears whole or not at all."""
    paths = []
    for kind, metadata in (("png", None), ("svg", {"Date": None})):
        path = stem.with_suffix(f".{kind}")
        with replaced(path) as fresh:
            figure.savefig(fresh, format=kind, metadata=metadata)
        paths.append(path)
    return paths


def rows_height(count: int) -> float:
    """Inches for so many rows, which are lower where there are many."""
    return max(0.8, min(0.24 * count, 12))


def names_width(names: Sequence[str]) -> float:
    """Inches that the names of rows take."""
    return 0.25 + 0.062 * max(map(len, names))


def row_names(report: Report) -> list[str]:
    """The parties' names, and what they hold unless that is drawn."""
    holdings = ("" if "region" in held else f"  ({held['holds']})" for held in report.holds.values())
    return [short(name) + holding for name, holding in zip(report.parties, holdings, strict=True)]


def name_rows(axis: Axes, names: Sequence[str]) -> None:
    """A row per name, the first on top."""
    axis.set_yticks(range(len(names)), names)
    axis.tick_params(axis="y", labelsize=7.5 if len(names) <= 50 else 6)
    axis.set_ylim(len(names) - 0.5, -0.5)


def score(report: Report, value: float | None) -> str:
    if value is None or not math.isfinite(value):
        return "not known"
    return f"{value:.1%}" if report.metric == "accuracy" else f"{value:.3f}"


def short(name: str, most: int = 24) -> str:
    return name if len(name) <= most else name[: most - 1] + "…"


def words(measure: str) -> str:
    return measure.replace("_", " ")
