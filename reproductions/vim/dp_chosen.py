"""Each method at each epsilon with what validation rows chose in `dp_grid.py`: three seeds, each beside its control.

In the control uploads are noise alone, of the same size: what it scores comes from the labels in what the label owner
sends down. A method's columns are worth what it scores above it. Validation rows and test rows go out as they are.

Every run is a cell.
"""

from __future__ import annotations

import itertools
from typing import NamedTuple

from colonnade import reproduction
from colonnade.reproduction import Plan, Study
from colonnade.reproduction.cells import script_of


class Chosen(NamedTuple):
    sigma: float
    clip: float
    rate: float
    epoch: int  # the last that epsilon allows


CHOSEN = {
    ("VAFL", 0.1): Chosen(5, 0.1, 0.05, 1),
    ("VAFL", 0.3): Chosen(5, 0.05, 1, 7),
    ("VAFL", 1.0): Chosen(2, 0.1, 0.5, 10),
    ("VIMSGD", 0.1): Chosen(20, 0.01, 0.5, 10),
    ("VIMSGD", 0.3): Chosen(5, 0.1, 0.5, 7),
    ("VIMSGD", 1.0): Chosen(2, 0.3, 1, 10),
    ("VIMADMM", 0.1): Chosen(20, 0.01, 0.05, 10),
    ("VIMADMM", 0.3): Chosen(5, 0.01, 0.05, 7),
    ("VIMADMM", 1.0): Chosen(2, 0.01, 0.05, 10),
    ("FDML", 0.1): Chosen(20, 0.3, 0.5, 10),
    ("FDML", 0.3): Chosen(5, 0.3, 0.5, 7),
    ("FDML", 1.0): Chosen(2, 0.3, 0.5, 10),
    ("VIMADMM-J", 0.1): Chosen(20, 0.01, 0.05, 10),
    ("VIMADMM-J", 0.3): Chosen(5, 0.05, 0.05, 7),
    ("VIMADMM-J", 1.0): Chosen(2, 0.1, 0.05, 10),
}
"""By the best of the grid on validation rows."""
QUICK = (("VIMADMM", 1.0), ("FDML", 1.0))
MECHANISMS = {"": "gaussian", ", noise alone": "noise_only"}


def table(plan: Plan) -> dict[str, tuple[str, float, str, int]]:
    """Method, epsilon, what is sent, and seed by the name of the cell."""
    points = QUICK if plan.short else CHOSEN
    return {
        f"{method}, epsilon {epsilon:g}{sent}, seed {seed}": (method, epsilon, sent, seed)
        for seed, (method, epsilon), sent in itertools.product(plan.seeds, points, MECHANISMS)
    }


def cells(plan: Plan) -> list[str]:
    return list(table(plan))


def run(study: Study, cell: str) -> None:
    method, epsilon, sent, seed = table(study.plan)[cell]
    dp, grid = (script_of(reproduction.plan(name)) for name in ("vim-dp", "vim-dp-grid"))
    one = CHOSEN[method, epsilon]
    made = dp.noisy(study, method, MECHANISMS[sent], one.sigma, one.clip, one.rate, seed)
    title = f"{method}, epsilon {epsilon:g}{sent}"
    grid.follow(study, title, made)


def finish(study: Study) -> None:
    """At the epoch that epsilon allows: the score, and how far it is above its control."""
    for (method, epsilon), one in CHOSEN.items():
        epoch = max(study.plan.epochs) if study.plan.short else one.epoch
        title = f"{method}, epsilon {epsilon:g}"
        scores, controls = (study.measured.get(f"{title}{sent}, epoch {epoch}, test") for sent in MECHANISMS)
        if scores is None or controls is None:
            continue
        for score, control in zip(scores.by_seed, controls.by_seed, strict=False):
            study.record(f"{title}: test", score)
            study.record(f"{title}: noise alone", control)
            study.record(f"{title}: above noise alone", score - control)
