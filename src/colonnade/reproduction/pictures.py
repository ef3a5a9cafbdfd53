"""Learning curves of a study, as PNG and SVG."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

from colonnade.core.files import write_figure
from colonnade.installation import can_draw, no_pictures

if TYPE_CHECKING:
    from colonnade.reproduction.study import Curves, Study

MARKS = "osD^vP*X"
COLOURS = (
    "#0072B2",
    "#D55E00",
    "#009E73",
    "#CC79A7",
    "#E69F00",
    "#56B4E9",
    "#000000",
    "#999999",
)


def curves(study: Study, out: Path) -> list[Path]:
    """Draw a line per run over epochs, the mean over seeds with a band of their range,
    in the plan's panels."""
    if not can_draw():
        warnings.warn(no_pictures(), stacklevel=2)
        return []
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    panels: dict[str, tuple[dict[str, Curves], float, str]] = {
        "loss": (study.losses, 1.0, "training loss"),
        "score": (study.curves, 100.0, "test accuracy, %"),
    }
    chosen = study.plan.panels
    figure = Figure(
        figsize=(7 if len(chosen) == 1 else 5 * len(chosen), 4.2), layout="constrained"
    )
    for at, name in enumerate(chosen):
        runs, times, label = panels[name]
        axes = figure.add_subplot(1, len(chosen), at + 1)
        for number, (title, seeds) in enumerate(runs.items()):
            _line(
                axes,
                number,
                title,
                [[(epoch, times * value) for epoch, value in curve] for curve in seeds],
            )
        axes.set(xlabel="epoch", ylabel=label)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.grid(alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(frameon=False)
    figure.suptitle(study.plan.name, fontsize="medium")
    return save(figure, out / study.plan.name)


def save(
    figure: Any, stem: Path, endings: tuple[str, ...] = ("png", "svg")
) -> list[Path]:
    """Write the picture under that name, whole or not at all."""
    stem.parent.mkdir(parents=True, exist_ok=True)
    return write_figure(figure, stem, endings, dpi=150)


def _line(axes: Any, number: int, title: str, seeds: Curves) -> None:
    values = ([value for _, value in curve] for curve in seeds)
    at_epochs = list(zip(*values, strict=False))  # as far as all seeds have come
    epochs = [epoch for epoch, _ in seeds[0]][: len(at_epochs)]
    colour = COLOURS[number % len(COLOURS)]
    mark = MARKS[number % len(MARKS)]
    every = max(1, len(epochs) // 10)
    middle = [sum(at) / len(at) for at in at_epochs]
    axes.plot(
        epochs,
        middle,
        color=colour,
        marker=mark,
        markevery=every,
        markersize=4,
        label=title,
    )
    if len(seeds) > 1:
        low = [min(at) for at in at_epochs]
        high = [max(at) for at in at_epochs]
        axes.fill_between(epochs, low, high, color=colour, alpha=0.15, linewidth=0)
