"""Learning curves of a study, as PNG and SVG."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from colonnade.errors import ConfigError

if TYPE_CHECKING:
    from colonnade.reproduction.study import Study

MARKS = "osD^vP*X"
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#999999")


def curves(study: Study, out: Path) -> list[Path]:
    """Test score by epoch, one line per run: the mean over seeds, and a band from the lowest to the highest seed."""
    try:
        from matplotlib.figure import Figure
        from matplotlib.ticker import MaxNLocator
    except ModuleNotFoundError:
        raise ConfigError('Pictures need matplotlib. Install it with: pip install "colonnade[plots]".') from None

    figure = Figure(figsize=(7, 4.2), layout="constrained")
    axes = figure.subplots()
    for number, (title, seeds) in enumerate(study.curves.items()):
        epochs = [epoch for epoch, _ in seeds[0]]
        scores = [[100 * score for _, score in curve] for curve in seeds]
        middle = [sum(at) / len(at) for at in zip(*scores, strict=True)]
        colour = COLOURS[number % len(COLOURS)]
        axes.plot(epochs, middle, color=colour, marker=MARKS[number % len(MARKS)], markersize=4, label=title)
        if len(seeds) > 1:
            low, high = [min(at) for at in zip(*scores, strict=True)], [max(at) for at in zip(*scores, strict=True)]
            axes.fill_between(epochs, low, high, color=colour, alpha=0.15, linewidth=0)
    axes.set(xlabel="epoch", ylabel="test accuracy, %", title=study.plan.name)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    out.mkdir(parents=True, exist_ok=True)
    paths = [out / f"{study.plan.name}.{ending}" for ending in ("png", "svg")]
    for path in paths:
        fresh = path.with_name(f".{path.name}")
        figure.savefig(fresh, format=path.suffix[1:], dpi=150)
        fresh.replace(path)
    return paths
