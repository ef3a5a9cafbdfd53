"""The picture of embeddings in the plane."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from colonnade.explain import canvas
from colonnade.explain.canvas import BLUE, FAINT, GREEN, ORANGE, PURPLE, SKY, VERMILLION

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from colonnade.explain.report import Report

CLASSES = (BLUE, ORANGE, GREEN, VERMILLION, PURPLE, SKY, "#000000", "#999933", "#882255", "#999999")
MOST_LISTED = 20


def tsne(report: Report) -> Figure:
    """What the most and the least important party's embeddings look like, coloured by label (Figures 4 and 6).

    Rows that lie on each other are spread by a hair, and drawn in random order, so that none hides the others.
    """
    assert report.tsne is not None
    labels, classes = np.array(report.tsne["labels"]), report.tsne["classes"]
    points = {party: np.array(xy) for party, xy in report.tsne["points"].items()}
    listed = 0 < len(classes) <= MOST_LISTED
    legend = max((0.45 + 0.07 * len(_short(name)) for name in classes), default=0.8)
    right = max(legend, 0.55) if listed or not classes else 0.15
    figure = canvas.page(3.2 * len(points) + 0.15 + right, 3.9)
    room = {"left": 0.15, "bottom": 0.15, "top": 0.85, "right": right}
    axes = canvas.panels(figure, len(points), **room, same_rows=False)
    random = np.random.default_rng(report.seed)
    order = random.permutation(len(labels))
    for axis, (party, xy) in zip(axes, points.items(), strict=True):
        x, y = (xy + random.normal(scale=0.006, size=xy.shape) * np.ptp(xy, axis=0))[order].T
        colours: Any = [_colour(int(one), len(classes)) for one in labels[order]] if classes else labels[order]
        drawn = axis.scatter(x, y, c=colours, s=9, linewidths=0, alpha=0.85, cmap=None if classes else "cividis")
        place = report.ranking.index(party) + 1
        axis.set_title(f"{party}, number {place} of {len(report.ranking)}", loc="left")
        axis.set(xticks=[], yticks=[], xlim=_around(x), ylim=_around(y))
        for side in axis.spines.values():
            side.set_color(FAINT)
    if listed:
        _legend(figure, classes)
    elif not classes:
        width = figure.get_figwidth()
        bar = figure.colorbar(drawn, cax=figure.add_axes((1 - 0.62 / width, 0.15, 0.12 / width, 0.5)))
        bar.outline.set_visible(False)
        bar.ax.set_title("label", fontsize=8)
    below = f"t-SNE of {report.tsne['rows']:,} {report.split} rows, coloured by label; ranked by "
    title = f"Embeddings of the most {'and the least ' * (len(points) > 1)}important party"
    canvas.headline(figure, title, below + canvas.words(report.ranked_by))
    return figure


def _around(values: Any) -> tuple[float, float]:
    margin = 0.04 * float(np.ptp(values)) or 1.0
    return float(values.min()) - margin, float(values.max()) + margin


def _legend(figure: Figure, classes: Sequence[str]) -> None:
    from matplotlib.lines import Line2D

    style: Any = {"marker": "o", "linestyle": "", "markersize": 5, "markeredgewidth": 0}
    marks = [Line2D([], [], color=_colour(at, len(classes)), **style) for at in range(len(classes))]
    names = [_short(name) for name in classes]
    place: Any = {"loc": "center right", "bbox_to_anchor": (1, 0.42)}
    figure.legend(marks, names, frameon=False, handletextpad=0.1, title="label", **place)


def _short(name: str) -> str:
    return name if len(name) <= 14 else name[:13] + "…"


def _colour(number: int, count: int) -> Any:
    if count <= len(CLASSES):
        return CLASSES[number]
    from matplotlib import colormaps

    return colormaps["viridis"](number / (count - 1))
