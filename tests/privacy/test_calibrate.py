"""The smallest noise for a budget: it meets it, and less would not."""

from __future__ import annotations

from typing import Any

import pytest

from colonnade.core import DpEvent
from colonnade.errors import ConfigError
from colonnade.federation.rules import planned
from colonnade.privacy import Budget
from colonnade.privacy.accounting import key_of, known_batch
from colonnade.privacy.calibrate import smallest_sigma, smallest_trials


def cost(budget: Budget, *releases: tuple[float, int]) -> float:
    spent = {
        key_of(DpEvent("gaussian", {"noise_multiplier": sigma, "clip": 1.0})): n
        for sigma, n in releases
    }
    return known_batch(spent, budget.relation, budget.delta)


@pytest.mark.parametrize("relation", ["replace-one", "add-or-remove"])
@pytest.mark.parametrize(("epsilon", "appearances"), [(0.5, 1), (1.0, 10), (8.0, 50)])
def test_it_meets_the_budget_within_a_percent_and_half_of_it_would_not(
    relation: Any, epsilon: float, appearances: int
) -> None:
    budget = Budget(epsilon=epsilon, relation=relation)
    sigma = smallest_sigma(
        budget, [(appearances, 0.0), (1, 0.0)], where="[parties.lab.budget]"
    )
    assert 0.99 * epsilon < cost(budget, (sigma, appearances)) <= epsilon
    assert cost(budget, (sigma * 0.99, appearances)) > epsilon
    assert cost(budget, (sigma / 2, appearances)) > 1.5 * epsilon


def test_other_noise_on_the_same_rows_is_taken_off() -> None:
    budget = Budget(epsilon=4.0)
    sigma = smallest_sigma(budget, [(10, 3 / 7.0**2)], where="[parties.lab.budget]")
    assert cost(budget, (sigma, 10), (7.0, 3)) == pytest.approx(4.0, rel=1e-4)


def test_a_budget_that_others_spend_leaves_nothing() -> None:
    with pytest.raises(
        ConfigError,
        match=r"\[parties\.lab\.budget\] epsilon 1\.0 is spent by the rules",
    ):
        smallest_sigma(Budget(epsilon=1.0), [(1, 4.0)], where="[parties.lab.budget]")


def test_rows_are_planned_once_an_epoch_and_tested_once() -> None:
    assert planned(7) == {"train": 7, "validation": 7, "test": 1, "predict": 1}


@pytest.mark.parametrize(
    ("levels", "p", "epsilon", "appearances"),
    [(2, 0.5, 1.0, 1), (4, 0.5, 8.0, 3), (3, 0.3, 4.0, 2)],
)
def test_the_fewest_coin_flips_meet_the_budget_and_fewer_do_not(
    levels: int, p: float, epsilon: float, appearances: int
) -> None:
    budget = Budget(epsilon=epsilon)
    trials = smallest_trials(
        budget, levels, p, 8, appearances, where="[parties.lab.budget]"
    )

    def spent(trials: int) -> float:
        about = {
            "levels": float(levels),
            "trials": float(trials),
            "p": p,
            "coordinates": 8.0,
        }
        return known_batch(
            {key_of(DpEvent("binomial", about)): appearances}, "replace-one", 1e-5
        )

    assert 0.97 * epsilon < spent(trials) <= epsilon
    assert spent(round(0.97 * trials)) > epsilon


def test_few_bits_and_a_small_epsilon_exclude_each_other() -> None:
    """Noisy C-VFL's 16 levels and 256 values: epsilon 0.5 for ten epochs would take
    millions of coin flips a value."""
    with pytest.raises(
        ConfigError,
        match=(
            r"epsilon 0\.5 would take about [\d,]+ coin flips a value, and"
            r" 4,194,304 are"
        ),
    ):
        smallest_trials(
            Budget(epsilon=0.5), 16, 0.5, 256, 10, where="[parties.lab.budget]"
        )
