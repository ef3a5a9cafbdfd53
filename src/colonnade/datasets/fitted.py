"""What is learned about one column, and how it is applied.

`Number` and `Category` are plain records: medians, scales, names. scikit-learn learns them, NumPy applies them,
and a test holds the result to scikit-learn's own pipeline.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

__all__ = ["Category", "Number", "Scale", "fit_categories", "fit_numbers"]

Scale = Literal["standard", "minmax", "none"]


@dataclass(frozen=True)
class Number:
    """(value - centre) / divisor, with the median in the gaps, and a 0/1 column for gaps if training had any."""

    name: str
    median: float
    centre: float
    divisor: float
    had_gaps: bool

    @property
    def outputs(self) -> list[str]:
        return [self.name, f"{self.name} is missing"] if self.had_gaps else [self.name]

    def apply(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        gaps = np.isnan(values)
        scaled = (np.where(gaps, self.median, values) - self.centre) / self.divisor
        return np.stack([scaled, gaps.astype(np.float64)] if self.had_gaps else [scaled], axis=1)

    def state(self) -> dict[str, Any]:
        return {"kind": "number", **asdict(self)}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Number:
        learned = (float(state["median"]), float(state["centre"]), float(state["divisor"]))
        return cls(str(state["name"]), *learned, bool(state["had_gaps"]))


@dataclass(frozen=True)
class Category:
    """One 0/1 column per frequent category, and a last one shared by the rare ones if there are any."""

    name: str
    frequent: tuple[str, ...]
    rare: tuple[str, ...]

    @property
    def outputs(self) -> list[str]:
        shared = [f"{self.name}=(other)"] if self.rare else []
        return [f"{self.name}={word}" for word in self.frequent] + shared

    def apply(self, words: NDArray[np.object_]) -> NDArray[np.float64]:
        place = {word: at for at, word in enumerate(self.frequent)} | dict.fromkeys(self.rare, len(self.frequent))
        at = np.array([place.get(word, -1) for word in words], dtype=np.int64)
        hot = np.zeros((len(words), len(self.outputs)))
        known = np.flatnonzero(at >= 0)
        hot[known, at[known]] = 1.0
        return hot

    def state(self) -> dict[str, Any]:
        return {"kind": "category", "name": self.name, "frequent": list(self.frequent), "rare": list(self.rare)}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Category:
        frequent, rare = (tuple(str(word) for word in state[part]) for part in ("frequent", "rare"))
        return cls(str(state["name"]), frequent, rare)


def fit_numbers(columns: Mapping[str, NDArray[np.float64]], scale: Scale) -> dict[str, Number]:
    """Medians, then the scaler on the filled columns; each column needs at least one value."""
    from sklearn.preprocessing import MinMaxScaler, StandardScaler

    if not columns:
        return {}
    gaps = {name: np.isnan(values) for name, values in columns.items()}
    medians = {name: float(np.median(values[~gaps[name]])) for name, values in columns.items()}
    filled = np.stack([np.where(gaps[name], medians[name], values) for name, values in columns.items()], axis=1)
    centre, divisor = np.zeros(len(columns)), np.ones(len(columns))
    if scale == "standard":
        standard = StandardScaler().fit(filled)
        centre, divisor = standard.mean_, standard.scale_
    elif scale == "minmax":
        minmax = MinMaxScaler().fit(filled)
        # scikit-learn's factor is 1 for a column it takes as constant, whose range would be no divisor.
        centre, divisor = minmax.data_min_, np.where(minmax.scale_ == 1.0, 1.0, minmax.data_range_)
    return {
        name: Number(name, medians[name], float(centre[at]), float(divisor[at]), bool(gaps[name].any()))
        for at, name in enumerate(columns)
    }


def fit_categories(columns: Mapping[str, NDArray[np.object_]], max_categories: int) -> dict[str, Category]:
    """The categories of each column, sorted; beyond `max_categories` the least frequent share one output."""
    from sklearn.preprocessing import OneHotEncoder

    learned = {}
    for name, words in columns.items():
        encoder = OneHotEncoder(handle_unknown="ignore", max_categories=max_categories).fit(words[:, None])
        pooled = encoder.infrequent_categories_[0]
        rare = () if pooled is None else tuple(str(word) for word in pooled)
        everything = (str(word) for word in encoder.categories_[0])
        learned[name] = Category(name, tuple(word for word in everything if word not in set(rare)), rare)
    return learned
