"""The smallest noise with which a planned run stays inside its owner's budget:
Gaussian, or binomial."""

from __future__ import annotations

import math
from collections.abc import Iterable

from colonnade.core.receipt import DpEvent
from colonnade.errors import ConfigError
from colonnade.privacy import binomial
from colonnade.privacy.accounting import dp_accounting, key_of, known_batch, moves
from colonnade.settings.sections import Budget

PLENTY = 1 + 1e-6
"""A margin, so that the last planned release fits in spite of rounding."""
MOST_TRIALS = 1 << 22
"""The most coin flips of a value: more would need tables of more than 32 MB."""


def smallest_sigma(
    budget: Budget, rows: Iterable[tuple[int, float]], *, where: str
) -> float:
    """The smallest noise multiplier for rows with so many (appearances, sum of
    1/sigma^2 over their other releases). `where` is the budget's place in the file."""
    # The budget allows the mean to move by mu standard deviations in all; every release
    # moves it by moves / sigma.
    mu = 1 / float(dp_accounting().get_sigma_gaussian(budget.epsilon, budget.delta))
    needed = 0.0
    for appearances, others in rows:
        left = (mu / moves(budget.relation)) ** 2 - others
        if appearances and left <= 0:
            raise ConfigError(
                f"{where} epsilon {budget.epsilon} is spent by the rules that name"
                ' their own noise; nothing is left for sigma = "auto". Raise the'
                " budget, or the other sigma."
            )
        needed = max(needed, math.sqrt(appearances / left) if appearances else 0.0)
    return needed * PLENTY


def smallest_trials(
    budget: Budget, levels: int, p: float, values: int, appearances: int, *, where: str
) -> int:
    """The smallest N of Bin(N, p), to one in a hundred, by the exact loss, starting at
    a Gaussian of the same variance. `where` is the budget's place in the file."""

    def fits(trials: int) -> bool:
        parameters = {"levels": levels, "trials": trials, "p": p, "coordinates": values}
        event = DpEvent(
            binomial.KIND, {key: float(value) for key, value in parameters.items()}
        )
        return (
            known_batch({key_of(event): appearances}, budget.relation, budget.delta)
            <= budget.epsilon
        )

    sigma = float(dp_accounting().get_sigma_gaussian(budget.epsilon, budget.delta))
    variance = (levels - 1) ** 2 * values * appearances * sigma**2
    low = high = max(levels, math.ceil(variance / (p * (1 - p))))
    while high <= MOST_TRIALS and not fits(high):
        low = high
        high = math.ceil(1.1 * high)
    if high > MOST_TRIALS:
        raise ConfigError(
            f"{where} epsilon {budget.epsilon} would take about {high:,} coin flips a"
            f" value, and {MOST_TRIALS:,} are the most: {levels} levels and {values}"
            " values a row leave no room. Take fewer, or Gaussian noise."
        )
    # the first guess was too large
    while low == high and fits(smaller := math.floor(low / 1.1)) and smaller >= levels:
        low = high = smaller
    low = math.floor(high / 1.1) if low == high else low
    while high - low > max(1, high // 100):
        middle = (low + high) // 2
        low, high = (low, middle) if fits(middle) else (middle, high)
    return high
