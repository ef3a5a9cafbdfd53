"""A picture of a selection: every party's score, best first, and who is kept."""

from __future__ import annotations

from pathlib import Path

from colonnade.explain import canvas
from colonnade.selection import Selection

SCORE = {
    "vf_ps": "mutual information with the label, mean of the groups a party was in (nats)",
    "leave_one_out": "mutual information with the label that is lost without a party (nats)",
    "brute_force": "mutual information with the label of the best group a party is in (nats)",
    "lasso": "absolute weight in a sparse linear model of all columns in one place",
    "random": "drawn at random",
}
"""What a score is, by method."""


def draw(selection: Selection, folder: Path) -> list[Path]:
    """Draw selection.png and selection.svg."""
    canvas.can_draw()
    from matplotlib import rc_context

    names = [canvas.short(name) for name in selection.ranking]
    scores = [selection.scores[name] for name in selection.ranking]
    colours = [canvas.BLUE if name in selection.chosen else canvas.FAINT for name in selection.ranking]
    left = 0.25 + 0.062 * max(map(len, names))
    height = max(0.8, min(0.26, 12 / len(names)) * len(names))
    with rc_context(canvas.STYLE):
        figure = canvas.page(left + 3.6, height + 1.15)
        (axis,) = canvas.panels(figure, 1, left=left, bottom=0.45, top=0.7, right=0.45)
        axis.barh(range(len(names)), scores, color=colours, height=0.7)
        for row, score in enumerate(scores):
            end, beside = (max(score, 0.0), row), (3, 0)
            axis.annotate(f"{score:.3f}", end, beside, textcoords="offset points", va="center", fontsize=7)
        axis.set_yticks(range(len(names)), names)
        axis.set_ylim(len(names) - 0.5, -0.5)
        canvas.clean(axis)
        axis.set_xlabel(SCORE[selection.method], color=canvas.GREY, fontsize=7)
        below = f"{selection.method}; kept: {len(selection.chosen)} of {len(names)} (blue)"
        canvas.headline(figure, "Whose columns are worth having", below)
        return canvas.save(figure, folder / "selection")
