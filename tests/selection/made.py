"""Columns that know something about a label, and parties that hold them."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
from numpy.typing import NDArray

from colonnade.selection import Selection, SelectionSettings, select_here
from colonnade.selection.in_process import Meeting

Features = dict[str, NDArray[np.float64]]
EVERY = 10**6
"""More queries than there are rows: all of them."""


def classes(rows: int = 90, *, seed: int = 0) -> tuple[Features, NDArray[np.int64]]:
    """Four participants: the first knows most, the last nothing."""
    random = np.random.default_rng(seed)
    labels = random.integers(0, 3, rows)
    known = {
        name: labels[:, None] * knows
        for name, knows in (("ada", 1.5), ("bob", 1.0), ("cyd", 0.5), ("dan", 0.0))
    }
    return {
        name: part + random.normal(size=(rows, 1 + at % 2))
        for at, (name, part) in enumerate(known.items())
    }, labels


def numbers(rows: int = 90, *, seed: int = 0) -> tuple[Features, NDArray[np.float64]]:
    """The same four, and a label that is a number."""
    features, labels = classes(rows, seed=seed)
    return features, labels + 0.3 * np.random.default_rng(seed).normal(size=rows)


def plainly(features: Features, labels: NDArray[Any], **options: Any) -> Selection:
    """Without encryption, over all rows."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of "plain"
        every: dict[str, Any] = {"keep": 1, "queries": EVERY, "scheme": "plain"}
        return select_here(features, labels, **(every | options))


def meeting(
    features: Features,
    labels: NDArray[Any],
    *,
    record: bool = False,
    leader: str = "leader",
    **settings: Any,
) -> Meeting:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return Meeting(
            features,
            labels,
            SelectionSettings(**settings),
            leader=leader,
            record=record,
        )
