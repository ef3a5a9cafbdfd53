"""Wrong matches hurt, and nothing says so: ids of which 5 % are another's, on the
breast cancer data.

A fraction of a laboratory's ids is dealt anew among the rows that have them, as where
clerks mistype or households share an address: all rows are still matched, some to the
wrong person. `docs/how-to-bring-your-data.md` has figures.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from sklearn.datasets import load_breast_cancer

from colonnade.federation import Federation

SETTINGS: dict[str, Any] = {
    "algorithm": {"name": "logistic_regression"},
    "data": {"align": "exact", "test": 0.3},
    "federation": {"device": "cpu"},
}


def tables(share: float, seed: int) -> dict[str, Any]:
    """A clinic with the label and one weak column, a laboratory with the columns that
    tell, and this share of its ids dealt anew."""
    table = load_breast_cancer(as_frame=True).frame
    columns = list(table.columns[:-1])
    ids = np.array([f"p{number}" for number in range(len(table))])
    clinic = table[["mean smoothness", "target"]].assign(id=ids)
    draw = np.random.default_rng(seed)
    wrong = draw.permutation(len(ids))[: round(share * len(ids))]
    mixed = ids.copy()
    mixed[wrong] = np.roll(ids[wrong], 1)  # nobody keeps its own
    lab = table[[name for name in columns if name.startswith("worst")]].assign(id=mixed)
    return {"clinic": clinic, "lab": lab}


def accuracy(share: float, seed: int) -> tuple[float, int]:
    settings = {**SETTINGS, "federation": {"device": "cpu", "seed": seed}}
    outcome = Federation.from_frames(
        tables(share, seed), id="id", label="target", settings=settings
    ).fit()
    return float(outcome.summary["metrics"]["test"]["accuracy"]), sum(
        outcome.summary["rows"].values()
    )


@pytest.mark.parametrize(
    "seeds",
    [range(2), pytest.param(range(6), marks=pytest.mark.long)],
    ids=["two", "six"],
)
def test_a_twentieth_of_wrong_ids_costs_accuracy_and_nothing_says_so(
    seeds: range,
) -> None:
    """Rows are as many as before; about the accuracy of a coin is left on those that
    are wrong."""
    right, wrong = ([accuracy(share, seed) for seed in seeds] for share in (0.0, 0.05))
    # nobody is told
    assert all(one[1] == other[1] for one, other in zip(right, wrong, strict=True))
    lost = float(np.mean([a - b for (a, _), (b, _) in zip(right, wrong, strict=True)]))
    assert 0.0 < lost < 0.08
    assert float(np.mean([a for a, _ in right])) > 0.93
