"""A report on disk: explain.json, tsne.json, and pictures with every party in the same
order and each measure in the same colour everywhere; and the picture of a selection.

They are drawn from the report alone, so they show no party's values: what a party holds
is shown as a region. All have one style, colours that colour-blind readers can tell
apart, and appear as whole files.
"""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryFile
from typing import TYPE_CHECKING, Any

import numpy as np

from colonnade.core.files import write_figure, write_text, written_out
from colonnade.evaluate import class_name, metric
from colonnade.explain.importance import HEADS, MEASURES
from colonnade.explain.report import Report, summary_of
from colonnade.installation import can_draw, no_pictures
from colonnade.selection import Selection

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


BLUE = "#0072B2"
SKY = "#56B4E9"
GREEN = "#009E73"
ORANGE = "#E69F00"
VERMILLION = "#D55E00"
PURPLE = "#CC79A7"
"""Okabe and Ito's colours."""

INK = "#222222"
GREY = "#8a8a8a"
FAINT = "#e6e6e6"
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


def page(width: float, height: float) -> Figure:
    """White paper of so many inches."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), dpi=200, facecolor="white")


def panels(
    figure: Figure,
    count: int,
    *,
    left: float,
    bottom: float,
    top: float,
    right: float = 0.15,
    same_rows: bool = True,
) -> list[Axes]:
    """Panels side by side, with margins in inches; with the same rows, only the first
    names them."""
    width, height = figure.get_size_inches()
    room = {
        "left": left / width,
        "right": 1 - right / width,
        "bottom": bottom / height,
        "top": 1 - top / height,
    }
    gap = {"wspace": 0.22 if same_rows else 0.05}
    return list(
        figure.subplots(
            1, count, sharey=same_rows, squeeze=False, gridspec_kw=room | gap
        )[0]
    )


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
    figure.text(
        0.15 / width,
        1 - 0.12 / height,
        text,
        fontsize=10.5,
        fontweight="bold",
        va="top",
    )
    figure.text(
        0.15 / width, 1 - 0.34 / height, below, fontsize=8, color=GREY, va="top"
    )


def rows_height(count: int) -> float:
    """Inches for so many rows, which are lower where there are many."""
    return max(0.8, min(0.24 * count, 12))


def names_width(names: Sequence[str]) -> float:
    """Inches that the names of rows take."""
    return 0.25 + 0.062 * max(map(len, names))


def row_names(report: Report) -> list[str]:
    """The parties' names, and what they hold unless that is drawn."""
    holdings = (
        "" if "region" in held else f"  ({held['holds']})"
        for held in report.holds.values()
    )
    return [
        short(name) + holding
        for name, holding in zip(report.parties, holdings, strict=True)
    ]


def name_rows(axis: Axes, names: Sequence[str]) -> None:
    """A row per name, the first on top."""
    axis.set_yticks(range(len(names)), names)
    axis.tick_params(axis="y", labelsize=7.5 if len(names) <= 50 else 6)
    axis.set_ylim(len(names) - 0.5, -0.5)


def score(report: Report, value: float | None) -> str:
    if value is None or not math.isfinite(value):
        return "not known"
    return f"{value:z.1%}" if report.metric == "accuracy" else f"{value:z.3f}"


def short(name: str, most: int = 24) -> str:
    return name if len(name) <= most else name[: most - 1] + "…"


def words(measure: str) -> str:
    return measure.replace("_", " ")


CLASSES = (
    BLUE,
    ORANGE,
    GREEN,
    VERMILLION,
    PURPLE,
    SKY,
    "#000000",
    "#999933",
    "#882255",
    "#999999",
)
MOST_LISTED = 20
SCORE = {
    "vf_ps": (
        "mutual information with the label, mean of the groups a party was in (nats)"
    ),
    "leave_one_out": (
        "mutual information with the label that is lost without a party (nats)"
    ),
    "brute_force": (
        "mutual information with the label of the best group a party is in (nats)"
    ),
    "lasso": "absolute weight in a sparse linear model of all columns in one place",
    "random": "drawn at random",
}
"""What a selection's score is, by method."""


def tsne(report: Report) -> Figure:
    """What the most and the least important party's embeddings look like, coloured by
    label (Figures 4 and 6). Points are moved by a hair, and drawn in random order, so
    that none hides the others."""
    assert report.tsne is not None
    labels = np.array(report.tsne["labels"])
    classes = report.tsne["classes"]
    points = {party: np.array(xy) for party, xy in report.tsne["points"].items()}
    listed = 0 < len(classes) <= MOST_LISTED
    legend = max(
        (0.45 + 0.07 * len(short(class_name(name), 14)) for name in classes),
        default=0.8,
    )
    right = max(legend, 0.55) if listed or not classes else 0.15
    figure = page(3.2 * len(points) + 0.15 + right, 3.9)
    room = {"left": 0.15, "bottom": 0.15, "top": 0.85, "right": right}
    axes = panels(figure, len(points), **room, same_rows=False)
    random = np.random.default_rng(report.seed)
    order = random.permutation(len(labels))
    for axis, (party, xy) in zip(axes, points.items(), strict=True):
        x, y = (xy + random.normal(scale=0.006, size=xy.shape) * np.ptp(xy, axis=0))[
            order
        ].T
        colours: Any = (
            [_colour(int(label), len(classes)) for label in labels[order]]
            if classes
            else labels[order]
        )
        drawn = axis.scatter(
            x,
            y,
            c=colours,
            s=9,
            linewidths=0,
            alpha=0.85,
            cmap=None if classes else "cividis",
        )
        axis.set_title(
            f"{party}, number {report.ranking.index(party) + 1} of"
            f" {len(report.ranking)}",
            loc="left",
        )
        axis.set(xticks=[], yticks=[], xlim=_around(x), ylim=_around(y))
        for side in axis.spines.values():
            side.set_color(FAINT)
    if listed:
        _legend(figure, classes)
    elif not classes:
        width = figure.get_figwidth()
        bar = figure.colorbar(
            drawn, cax=figure.add_axes((1 - 0.62 / width, 0.15, 0.12 / width, 0.5))
        )
        bar.outline.set_visible(False)
        bar.ax.set_title("label", fontsize=8)
    below = (
        f"t-SNE of {report.tsne['rows']:,} {report.split} rows, coloured by label;"
        " ranked by "
    )
    title = (
        f"Embeddings of the most {'and the least ' * (len(points) > 1)}important party"
    )
    headline(figure, title, below + words(report.ranked_by))
    return figure


def _around(values: Any) -> tuple[float, float]:
    margin = 0.04 * float(np.ptp(values)) or 1.0
    return float(values.min()) - margin, float(values.max()) + margin


def _legend(figure: Figure, classes: Sequence[str]) -> None:
    from matplotlib.lines import Line2D

    style: Any = {"marker": "o", "linestyle": "", "markersize": 5, "markeredgewidth": 0}
    marks = [
        Line2D([], [], color=_colour(at, len(classes)), **style)
        for at in range(len(classes))
    ]
    names = [short(class_name(name), 14) for name in classes]
    place: Any = {"loc": "center right", "bbox_to_anchor": (1, 0.42)}
    figure.legend(
        marks, names, frameon=False, handletextpad=0.1, title="label", **place
    )


def _colour(number: int, count: int) -> Any:
    if count <= len(CLASSES):
        return CLASSES[number]
    from matplotlib import colormaps

    return colormaps["viridis"](number / (count - 1))


COLOURS = dict(
    zip(MEASURES, (BLUE, SKY, VERMILLION, ORANGE, GREEN, PURPLE), strict=True)
)


def draw(report: Report, folder: Path) -> list[Path]:
    """Draw all pictures that a report has numbers for, as PNG and SVG.

    Without matplotlib none is drawn, and a warning says how to get it.
    """
    if not can_draw():
        warnings.warn(no_pictures(), stacklevel=2)
        return []
    from matplotlib import rc_context

    pictures: dict[str, Callable[[Report], Figure]] = {"importance": importance}
    if report.tsne and "points" in report.tsne:
        pictures["tsne"] = tsne
    if report.summarization:
        pictures["summarization"] = summarization
    if report.denoising and report.denoising["clean"]["head_norm"]:
        pictures["denoising"] = denoising
    with rc_context(STYLE):
        return [
            path
            for name, picture in pictures.items()
            for path in write_figure(picture(report), folder / name)
        ]


def draw_selection(selection: Selection, folder: Path) -> list[Path]:
    """Draw every party's score, best first, and who is kept, as selection.png and
    selection.svg.

    Without matplotlib neither is drawn, and a warning says how to get it.
    """
    if not can_draw():
        warnings.warn(no_pictures(), stacklevel=2)
        return []
    from matplotlib import rc_context

    names = [short(name) for name in selection.ranking]
    scores = [selection.scores[name] for name in selection.ranking]
    colours = [
        BLUE if name in selection.chosen else FAINT for name in selection.ranking
    ]
    left = names_width(names)
    with rc_context(STYLE):
        figure = page(left + 3.6, rows_height(len(names)) + 1.15)
        (axis,) = panels(figure, 1, left=left, bottom=0.45, top=0.7, right=0.45)
        axis.barh(range(len(names)), scores, color=colours, height=0.7)
        for row, value in enumerate(scores):
            end = (max(value, 0.0), row)
            beside = (3, 0)
            axis.annotate(
                f"{value:z.3f}",
                end,
                beside,
                textcoords="offset points",
                va="center",
                fontsize=7,
            )
        clean(axis)
        name_rows(axis, names)
        axis.set_xlabel(SCORE[selection.method], color=GREY, fontsize=7)
        below = (
            f"{selection.method}; kept: {len(selection.chosen)} of {len(names)} (blue)"
        )
        headline(figure, "Whose columns are worth having", below)
        return write_figure(figure, folder / "selection")


def importance(report: Report) -> Figure:
    """A panel per measure, beside what each party holds (Figure 5)."""
    names = [name for name in MEASURES if name in report.measures]
    ranks = report.ranked_by
    mapped = all("region" in held for held in report.holds.values())
    rows = row_names(report)
    height = rows_height(len(rows))
    small = min(0.86 * height / len(rows), 0.5) if mapped else 0.0
    left = names_width(rows) + (small + 0.12 if mapped else 0)
    figure = page(left + 1.4 * len(names) + 0.15, height + 1.5)
    axes = panels(figure, len(names), left=left, bottom=0.5, top=1.0)
    # two parties always agree or disagree
    compared = report.correlations if len(report.parties) > 2 else []
    pairs = {frozenset(pair["between"]): pair["spearman"] for pair in compared}
    for axis, name in zip(axes, names, strict=True):
        _bars(axis, report, name)
        axis.set_title(_title(report, name), loc="left", pad=6)
        agreed = pairs.get(frozenset((name, ranks)))
        agreement = "" if agreed is None else f"rank correlation {agreed:+z.2f}"
        axis.set_xlabel(
            "ranks the parties" if name == ranks else agreement, color=GREY, fontsize=7
        )
    name_rows(axes[0], rows)
    if mapped:
        axes[0].tick_params(axis="y", pad=72 * (small + 0.14))
        _map(figure, axes[0], report, small)
    how_good = f"{metric(report.metric)} {score(report, report.score)}"
    below = f"{report.algorithm}, {how_good} on {report.rows:,} {report.split} rows"
    below += f"; Spearman's rank correlations with {words(ranks)}" if compared else ""
    headline(figure, "How much each party matters", below)
    return figure


def denoising(report: Report) -> Figure:
    """Heads when one party's columns are noisy in training, beside heads without noise
    (Figure 5, rows 2 and 4)."""
    results = report.denoising
    assert results is not None
    names = [name for name in HEADS if results["clean"][name]]
    parties, rows = row_names(report), range(len(report.parties))
    left = names_width(parties)
    figure = page(left + 2.3 * len(names) + 0.15, rows_height(len(rows)) + 1.75)
    axes = panels(figure, len(names), left=left, bottom=0.3, top=1.4)
    labels = {
        "clean": "as it was",
        "noisy": f"with noise at {results['party']}, σ = {results['sigma']:g}",
    }
    for axis, name in zip(axes, names, strict=True):
        before, after = (
            [results[kind][name][party] for party in report.parties] for kind in labels
        )
        axis.hlines(rows, before, after, color=GREY, linewidth=1.2)
        for values, kind, colour in (
            (before, "clean", SKY),
            (after, "noisy", VERMILLION),
        ):
            how_good = score(report, results[kind]["score"])
            label = f"{labels[kind]}: {report.split} {metric(report.metric)} {how_good}"
            axis.plot(values, rows, "o", color=colour, markersize=5, label=label)
        clean(axis)
        axis.grid(axis="y", color=FAINT, linewidth=0.7)
        axis.set_title(MEASURES[name].title, loc="left", pad=6)
    name_rows(axes[0], parties)
    axes[0].get_yticklabels()[report.parties.index(results["party"])].set_fontweight(
        "bold"
    )
    corner = 0.1 / figure.get_figwidth(), 1 - 0.55 / figure.get_figheight()
    handles, texts = axes[0].get_legend_handles_labels()
    figure.legend(
        handles,
        texts,
        loc="upper left",
        frameon=False,
        bbox_to_anchor=corner,
        borderaxespad=0,
    )
    headline(
        figure,
        "Noise at one party, and its head",
        "trained again with its columns noised in all rows",
    )
    return figure


def summarization(report: Report) -> Figure:
    """The score with all parties, and with a share of the most or the least important
    (Table 1)."""
    assert report.summarization is not None
    summaries = [
        summary for summary in report.summarization if summary["score"] is not None
    ]
    figure = page(5.2, 0.3 * len(summaries) + 1.25)
    (axis,) = panels(figure, 1, left=2.0, bottom=0.5, top=0.7, right=0.6)
    colours = {"all": GREY, "most": BLUE, "least": ORANGE}
    scale = 100 if report.metric == "accuracy" else 1
    names = []
    for row, summary in enumerate(summaries):
        value = summary["score"] * scale
        count = len(summary["parties"])
        axis.barh(row, value, height=0.72, color=colours[summary["which"]])
        end = (max(value, 0), row)
        axis.annotate(
            score(report, summary["score"]),
            end,
            (3, 0),
            textcoords="offset points",
            va="center",
        )
        share = (
            "all"
            if summary["which"] == "all"
            else f"{summary['which']} important {summary['share']} %"
        )
        names.append(f"{share} ({count} part{'y' if count == 1 else 'ies'})")
    clean(axis)
    name_rows(axis, names)
    axis.set_xlabel(f"{report.split} {metric(report.metric)}{', %' * (scale == 100)}")
    below = (
        f"trained again with these parties alone; ranked by {words(report.ranked_by)}"
    )
    headline(figure, "A few parties instead of all", below)
    return figure


def _bars(axis: Axes, report: Report, name: str) -> None:
    """Draw bars from zero; head norms that differ by little, as after a random start,
    are dots on their own range."""
    scale = 100 if name not in HEADS and report.metric == "accuracy" else 1
    values = [
        (report.measures[name].get(party) or 0.0) * scale for party in report.parties
    ]
    rows = range(len(values))
    if name == "head_norm" and len(values) > 1 and min(values) > 0.7 * max(values):
        axis.plot(values, rows, "o", color=COLOURS[name], markersize=4.5)
        axis.grid(axis="y", color=FAINT, linewidth=0.7)
        margin = 0.12 * (max(values) - min(values)) or 0.1
        axis.set_xlim(min(values) - margin, max(values) + margin)
    else:
        axis.barh(rows, values, height=0.72, color=COLOURS[name])
    if name in report.deviations:
        spread = [
            (report.deviations[name].get(party) or 0.0) * scale
            for party in report.parties
        ]
        axis.errorbar(values, rows, xerr=spread, fmt="none", ecolor=INK, elinewidth=0.7)
    clean(axis)


def _map(figure: Figure, axis: Axes, report: Report, small: float) -> None:
    """A small picture per party, with the region that it holds filled in."""
    from matplotlib.patches import Rectangle

    box, (page_width, page_height) = axis.get_position(), figure.get_size_inches()
    row = box.height / len(report.parties)
    for number, held in enumerate(report.holds.values()):
        (height, width), (top, left, tall, wide) = held["picture"], held["region"]
        across, down = (small * side / max(height, width) for side in (width, height))
        middle = box.y1 - (number + 0.5) * row
        corner = (
            box.x0 - (0.08 + small / 2 + across / 2) / page_width,
            middle - down / 2 / page_height,
        )
        small_picture = figure.add_axes(
            (*corner, across / page_width, down / page_height)
        )
        small_picture.set(xlim=(0, width), ylim=(height, 0))
        small_picture.add_patch(
            Rectangle((0, 0), width, height, facecolor=FAINT, linewidth=0)
        )
        small_picture.add_patch(
            Rectangle((left, top), wide, tall, facecolor=INK, linewidth=0)
        )
        small_picture.axis("off")


def _title(report: Report, name: str) -> str:
    if name in HEADS:
        return MEASURES[name].title
    noise = f", σ = {report.noise_sigma:g}" if name == "noise" else ""
    return (
        f"{'Points' if report.metric == 'accuracy' else metric(report.metric)}"
        f" {MEASURES[name].title}{noise}"
    )


PICTURES = ("importance", "tsne", "summarization", "denoising")
OTHER_FILES = (
    "tsne.json",
    *(f"{name}.{kind}" for name in PICTURES for kind in ("png", "svg")),
)
"""The files that `write` may write beside explain.json."""


def write(report: Report, folder: Path, *, pictures: bool = True) -> list[Path]:
    """Write explain.json and, with `pictures`, the pictures. The plane of t-SNE has a
    file of its own, tsne.json."""
    prepare(folder)
    with written_out("The explanation", folder):
        written = [folder / "explain.json"]
        write_text(written[0], summary_of(report).to_json())
        if report.tsne:
            written.append(folder / "tsne.json")
            write_text(written[1], json.dumps(report.tsne) + "\n")
        written += draw(report, folder) if pictures else []
        for old in (folder / name for name in OTHER_FILES):
            if old not in written:  # from an earlier report
                old.unlink(missing_ok=True)
    return written


def prepare(folder: Path) -> None:
    """Make the folder, before anything is measured that a party pays for."""
    with written_out("The explanation", folder):
        folder.mkdir(parents=True, exist_ok=True)
        TemporaryFile(dir=folder).close()
