"""The smallest Gaussian noise with which a planned run stays inside its owner's budget."""

from __future__ import annotations

import math
from collections.abc import Iterable

from colonnade.errors import ConfigError
from colonnade.privacy.accounting import dp_accounting, moves
from colonnade.privacy.budget import Budget

PLENTY = 1 + 1e-6
"""The last planned release must fit in spite of rounding."""


def planned(epochs: int) -> dict[str, int]:
    """How often a run releases a row, by what the row is for: training and validation rows once per epoch, test rows
    at the end, and validation rows too where nothing is trained; a prediction is not planned, and one release of a new
    row always fits."""
    return {"train": epochs, "validation": max(epochs, 1), "test": 1, "predict": 1}


def smallest_sigma(budget: Budget, rows: Iterable[tuple[int, float]], *, where: str) -> float:
    """Noise multiplier for rows that are released so many times with it, and with other Gaussian noise besides.

    `rows` has, for each kind of row, (appearances, sum of 1/sigma^2 over what else is released of it). `where` is the
    budget's place in the file.
    """
    # The budget allows the mean to move by mu standard deviations in all; every release moves it by moves / sigma.
    mu = 1 / float(dp_accounting().get_sigma_gaussian(budget.epsilon, budget.delta))
    needed = 0.0
    for appearances, others in rows:
        left = (mu / moves(budget.relation)) ** 2 - others
        if appearances and left <= 0:
            raise ConfigError(
                f"{where} epsilon {budget.epsilon} is spent by the rules that name their own noise; "
                'nothing is left for sigma = "auto". Raise the budget, or the other sigma.'
            )
        needed = max(needed, math.sqrt(appearances / left) if appearances else 0.0)
    return needed * PLENTY
