"""Whether a column holds numbers or categories, what is learned about it, and how that
is applied.

`Number`, `Quantile`, `Piecewise` and `Category` are plain records: medians, scales,
knots, names. NumPy learns and applies them, and tests hold the result to scikit-learn's
own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from colonnade.datasets.readings import (
    NUMBERS,
    is_gap,
    is_gap_of_label,
    read,
    recognise,
    since_1970,
)
from colonnade.errors import DataError
from colonnade.first_use import special

if TYPE_CHECKING:
    import pandas as pd

Scale = Literal["standard", "minmax", "none"]
Numbers = Literal["standard", "quantile", "piecewise"]
"""How numbers are prepared: by a scale, by where they stand among the training rows, or
by how far they fill each of a few quantile bins."""
ENOUGH = 500
TAIL = 8.0
"""With so many training rows per class, bins are worth their weights; with fewer, a
column is ranked if a value lies so many deviations from its mean."""
EPSILON = float(np.finfo(np.float64).eps)
BINS = 12
KNOTS = 101
"""Percentiles that a quantile column remembers."""

MISSING = "missing"


def kind_of(cells: pd.Series[Any], *, owner: str) -> Literal["number", "category"]:
    """Numeric columns and times are numbers; text, bool, pandas categories and mixed
    types are categories."""
    import pandas as pd

    kind = cells.dtype
    types = pd.api.types
    if types.is_bool_dtype(kind) or isinstance(kind, pd.CategoricalDtype):
        return "category"
    if types.is_datetime64_any_dtype(kind) or (
        types.is_numeric_dtype(kind) and not types.is_complex_dtype(kind)
    ):
        return "number"
    if types.is_object_dtype(kind) or types.is_string_dtype(kind):
        return "category"
    raise DataError(
        f"'{owner}' has column {str(cells.name)!r} of type {cells.dtype}, and a feature"
        " must hold numbers or categories. Turn it into numbers, or leave it out with"
        " columns=[...]."
    )


def numbers(cells: pd.Series[Any], way: str | None = None) -> NDArray[np.float64]:
    """The cells as float64, a gap as NaN; times as days since the first day of 1970;
    text as the `way` has it."""
    import pandas as pd

    if way is not None:
        return read(cells, way)
    if cells.dtype == np.float64:
        return np.asarray(cells.to_numpy())
    if pd.api.types.is_datetime64_any_dtype(cells.dtype):
        return since_1970(cells)
    if cells.isna().all():
        return np.full(len(cells), np.nan)
    return np.asarray(cells.to_numpy(dtype=np.float64, na_value=np.nan))


def without_gap_words(label: pd.Series[Any]) -> pd.Series[Any]:
    """A label's cells, with gaps instead of words that stand for gaps.

    Where all other cells are numbers, the label becomes numbers. A label has no odd
    words: `"10+"` beside numbers is a class of its own.
    """
    import pandas as pd

    is_number = pd.api.types.is_numeric_dtype(label.dtype)
    if is_number or pd.api.types.is_datetime64_any_dtype(label.dtype):
        return label
    words = label.astype(object).map(str, na_action="ignore")
    if not words.map(is_gap, na_action="ignore").eq(True).any():
        return label
    way = recognise(label, share=1.0)
    if way in NUMBERS:
        return pd.Series(read(label, way), index=label.index, name=label.name)
    is_no_label = words.map(is_gap_of_label, na_action="ignore").eq(True)
    return label.astype(object).mask(is_no_label)


def text(cells: pd.Series[Any]) -> NDArray[np.object_]:
    """The cells as strings, a gap as "missing"; so a column of mixed types becomes
    plain categories."""
    import pandas as pd

    # each category once; a gap's code is -1, the last
    if isinstance(cells.dtype, pd.CategoricalDtype):
        named = np.array(
            [*map(str, cells.cat.categories.astype(object)), MISSING], dtype=object
        )
        return named[cells.cat.codes.to_numpy()]
    words = np.array(
        [str(value) for value in cells.astype(object)] + [""], dtype=object
    )[:-1]
    words[cells.isna().to_numpy(dtype=bool)] = MISSING
    return words


class _FittedColumn:
    """What was learned about a column, as plain values."""

    kind: ClassVar[str]

    def state(self) -> dict[str, Any]:
        values = {
            key: list(value) if isinstance(value, tuple) else value
            for key, value in vars(self).items()
        }
        return {"kind": self.kind, **values}


@dataclass(frozen=True)
class _NumberColumn(_FittedColumn):
    """A column of numbers: the median fills gaps, and a 0/1 column marks them if
    training had any."""

    name: str
    median: float
    had_gaps: bool

    @property
    def outputs(self) -> list[str]:
        return [*self._names(), *([f"{self.name} is missing"] if self.had_gaps else [])]

    def apply(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        gaps = np.isnan(values)
        scaled = self._scaled(np.where(gaps, self.median, values))
        return np.column_stack([scaled, gaps] if self.had_gaps else [scaled])

    def _names(self) -> list[str]:
        return [self.name]

    def _scaled(self, filled: NDArray[np.float64]) -> NDArray[np.float64]:
        raise NotImplementedError

    @staticmethod
    def _known(state: Mapping[str, Any]) -> tuple[str, float, bool]:
        """What any such column has in its state."""
        return str(state["name"]), float(state["median"]), bool(state["had_gaps"])


@dataclass(frozen=True)
class Number(_NumberColumn):
    """(value - centre) / divisor."""

    kind = "number"
    centre: float
    divisor: float

    def _scaled(self, filled: NDArray[np.float64]) -> NDArray[np.float64]:
        return (filled - self.centre) / self.divisor

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Number:
        return cls(*cls._known(state), float(state["centre"]), float(state["divisor"]))


@dataclass(frozen=True)
class Quantile(_NumberColumn):
    """The normal score of a value's rank among the training rows: linear between knots,
    and constant beyond them. So a heavy tail has no more weight than any other end of a
    column."""

    kind = "quantile"
    knots: tuple[float, ...]
    scores: tuple[float, ...]

    def _scaled(self, filled: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.interp(filled, self.knots, self.scores)

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Quantile:
        knots, scores = (
            tuple(float(number) for number in state[part])
            for part in ("knots", "scores")
        )
        if len(knots) != len(scores) or not knots:
            raise ValueError("knots")
        return cls(*cls._known(state), knots, scores)


@dataclass(frozen=True)
class Piecewise(_NumberColumn):
    """One output per bin between two quantiles of the training rows: 0 below the bin, 1
    above it, and inside how far the value has come (Gorishniy et al., On Embeddings for
    Numerical Features in Tabular Deep Learning, 2022, Eq. 1, here with the ends cut
    off, too). A linear model of these is piecewise linear in the column."""

    kind = "piecewise"
    edges: tuple[float, ...]

    def _names(self) -> list[str]:
        return [
            f"{self.name} {low:.6g} to {high:.6g}" for low, high in pairwise(self.edges)
        ]

    def _scaled(self, filled: NDArray[np.float64]) -> NDArray[np.float64]:
        edges = np.array(self.edges)
        return np.asarray(
            np.clip((filled[:, None] - edges[:-1]) / np.diff(edges), 0.0, 1.0)
        )

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Piecewise:
        edges = tuple(float(edge) for edge in state["edges"])
        if len(edges) < 2 or not all(low < high for low, high in pairwise(edges)):
            raise ValueError("edges")
        return cls(*cls._known(state), edges)


@dataclass(frozen=True)
class Category(_FittedColumn):
    """One 0/1 column per frequent category, and a last one shared by the rare ones if
    there are any."""

    kind = "category"
    name: str
    frequent: tuple[str, ...]
    rare: tuple[str, ...]
    # training rows of each frequent category; (): an old state without counts
    counts: tuple[int, ...] = ()

    @property
    def is_yes_or_no(self) -> bool:
        """Whether the column was True and False, perhaps with gaps."""
        return {*self.frequent, *self.rare} <= {"True", "False", MISSING}

    @property
    def outputs(self) -> list[str]:
        shared = [f"{self.name}=(other)"] if self.rare else []
        return [f"{self.name}={word}" for word in self.frequent] + shared

    def apply(self, words: NDArray[np.object_]) -> NDArray[np.float64]:
        import pandas as pd

        place = {word: at for at, word in enumerate(self.frequent)} | dict.fromkeys(
            self.rare, len(self.frequent)
        )
        codes, different = pd.factorize(words)
        outputs = np.array([place.get(word, -1) for word in different], dtype=np.int64)[
            codes
        ]
        hot = np.zeros((len(words), len(self.outputs)))
        rows = np.flatnonzero(outputs >= 0)
        hot[rows, outputs[rows]] = 1.0
        return hot

    def without_few(self, least: int) -> dict[str, Any]:
        """The categories as others may see them: words of fewer training rows than
        `least` are cells of single people, and are not named. Each keeps its place;
        where rare words share an output, so does every word not named."""
        counts = self.counts or (0,) * len(self.frequent)
        named = [
            word if count >= least or word == MISSING else None
            for word, count in zip(self.frequent, counts, strict=True)
        ]
        return {
            "kind": "category",
            "name": self.name,
            "frequent": named,
            "other": bool(self.rare),
        }

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Category:
        frequent, rare = (
            tuple(str(word) for word in state[part]) for part in ("frequent", "rare")
        )
        counts = tuple(int(count) for count in state.get("counts", ()))
        if counts and len(counts) != len(frequent):
            raise ValueError("counts")
        return cls(str(state["name"]), frequent, rare, counts)


def fit_numbers(
    columns: Mapping[str, NDArray[np.float64]], scale: Scale
) -> dict[str, Number]:
    """Learn medians, then the scale of the filled columns; each column needs at least
    one value."""
    if not columns:
        return {}
    gaps = {name: np.isnan(values) for name, values in columns.items()}
    medians = {
        name: float(np.median(values[~gaps[name]])) for name, values in columns.items()
    }
    filled = np.stack(
        [
            np.where(gaps[name], medians[name], values)
            for name, values in columns.items()
        ],
        axis=1,
    )
    centre = np.zeros(len(columns))
    divisor = np.ones(len(columns))
    if scale == "standard":
        centre, divisor = _standard(filled)
    elif scale == "minmax":
        centre = filled.min(0)
        reach = filled.max(0) - centre
        divisor = np.where(reach < 10 * EPSILON, 1.0, reach)
    return {
        name: Number(
            name,
            medians[name],
            bool(gaps[name].any()),
            float(centre[at]),
            float(divisor[at]),
        )
        for at, name in enumerate(columns)
    }


def _standard(
    filled: NDArray[np.float64],
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Mean and standard deviation of each column, bit-equal to scikit-learn's
    StandardScaler: the sum of deviations, 0 but for rounding, corrects the variance,
    and a column that is constant but for rounding is divided by 1."""
    rows = len(filled)
    mean = filled.sum(0) / rows
    deviations = filled - mean
    correction = deviations.sum(0)
    variance = ((deviations**2).sum(0) - correction**2 / rows) / rows
    constant = variance <= rows * EPSILON * variance + (rows * mean * EPSILON) ** 2
    return mean, np.where(constant | (variance == 0), 1.0, np.sqrt(variance))


Column = Number | Quantile | Piecewise | Category


def best_way(values: NDArray[np.float64], *, classes: int) -> Numbers:
    """How to prepare a column for a model that tells `classes` apart (2: or gives a
    number; 0: bins do not suit it). Quantile bins, where there are rows to fill them:
    of fewer rows a network learns them by heart. Otherwise scaled, or ranked where the
    column's tail would outweigh all the rest."""
    filled = values[np.isfinite(values)]
    if classes and len(values) >= ENOUGH * classes:
        return "piecewise"
    spread = float(filled.std()) if len(filled) else 0.0
    return (
        "quantile"
        if spread > 0 and float(np.abs(filled - filled.mean()).max()) > TAIL * spread
        else "standard"
    )


def fit_piecewise(name: str, values: NDArray[np.float64]) -> Piecewise:
    """Bins that hold about equally many training rows; of few different values, one
    between any two neighbours."""
    filled = values[~np.isnan(values)]
    return Piecewise(
        name,
        float(np.median(filled)),
        len(filled) < len(values),
        tuple(_knots(filled, BINS + 1)),
    )


def fit_quantile(name: str, values: NDArray[np.float64]) -> Quantile:
    """Learn percentiles, and the normal score of the middle of the ranks that each
    holds."""
    filled = np.sort(values[~np.isnan(values)])
    knots = np.array(_knots(filled, KNOTS))
    below, upto = (np.searchsorted(filled, knots, side) for side in ("left", "right"))
    scores = special.ndtri((below + upto + 1) / (2 * len(filled) + 2))
    gaps = len(filled) < len(values)
    return Quantile(
        name,
        float(np.median(filled)),
        gaps,
        tuple(knots.tolist()),
        tuple(scores.tolist()),
    )


def _knots(filled: NDArray[np.float64], count: int) -> list[float]:
    """All values where they are few, else quantiles, each once."""
    values = np.unique(filled)
    if len(values) > count:
        values = np.unique(
            np.quantile(filled, np.linspace(0, 1, count), method="nearest")
        )
    if len(values) == 1:  # one value, and gaps, which have a column of their own
        values = np.array([values[0], values[0] + 1.0])
    return [float(value) for value in values]


def fit_category(
    name: str, cells: NDArray[np.object_], max_categories: int
) -> Category:
    """The categories of a column, sorted; beyond `max_categories` the least frequent
    share one output."""
    counts = Counter(cells.tolist())
    words = sorted(counts)
    pooled: set[str] = set()
    if len(words) >= max_categories:
        pooled.update(
            sorted(words, key=counts.__getitem__)[: len(words) - (max_categories - 1)]
        )
    frequent = tuple(word for word in words if word not in pooled)
    rare = tuple(word for word in words if word in pooled)
    return Category(name, frequent, rare, tuple(counts[word] for word in frequent))
