"""From a party's columns to the float32 matrix its model reads.

Numbers: the median fills gaps, a 0/1 column marks them when training had any, then a scaler. Categories (text,
bool, pandas category, mixed types): gaps become "missing", then one column per category; rare categories share
one when there are too many, and a category not seen in training gives zeros.

scikit-learn's transformers learn from the party's own training rows. What they learned is kept as plain numbers
and names, which is all that `transform` uses: so a saved preprocessor needs no pickle and gives equal bits.
Those names hold category values of the party. State and names are private to it.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from colonnade.core import mapped
from colonnade.datasets.cells import kind_of, numbers, text
from colonnade.datasets.columns import listing, suggestion
from colonnade.datasets.fitted import Category, Number, Scale, fit_categories, fit_numbers
from colonnade.datasets.rows import RowNumbers, row_numbers
from colonnade.datasets.table import Table
from colonnade.errors import CheckpointError, ConfigError, DataError

__all__ = ["Preprocessor"]

GROUP = 8  # columns of numbers learned together
PIECE = 65_536  # rows prepared at a time
MANY, NEARLY = 20, 0.9
"""Text with more different values than so many, and in more than this share of the rows, is hardly a category."""


@dataclass(frozen=True)
class Preprocessor:
    """What was learned about each column of one party; made by `fit`, used by `transform`."""

    owner: str
    scale: Scale
    columns: tuple[Number | Category, ...]

    @classmethod
    def fit(
        cls, table: Table, rows: RowNumbers | None = None, *, scale: Scale = "standard", max_categories: int = 50
    ) -> Preprocessor:
        """Learn from these training rows of the table (None: all). `max_categories` bounds a category's width."""
        if scale not in get_args(Scale):
            raise ConfigError(f"'{table.owner}' sets scale to {scale!r}, and it must be one of {get_args(Scale)}.")
        if max_categories < 2:
            raise ConfigError(f"'{table.owner}' sets max_categories to {max_categories}, and it must be at least 2.")
        if not table.columns:
            raise DataError(f"'{table.owner}' has no feature columns to preprocess. Name some with columns=[...].")
        training = row_numbers(rows, len(table), owner=table.owner)
        kinds = {name: kind_of(table.features[name], owner=table.owner) for name in table.columns}
        learned: dict[str, Number | Category] = {}
        useless, telling = _Useless(), list[str]()
        for names in _groups([name for name, kind in kinds.items() if kind == "number"]):
            values = {name: numbers(table.features[name].iloc[training]) for name in names}
            if useless.none_of(values):
                learned |= fit_numbers(values, scale)
        for name in (name for name, kind in kinds.items() if kind == "category"):
            cells = table.features[name].iloc[training]
            words = {name: text(cells)}
            filled = words[name][cells.notna().to_numpy()]
            if MANY < len(set(filled)) > NEARLY * len(filled):
                telling.append(name)
            if useless.none_of(words, empty=bool(cells.isna().all())):
                learned |= fit_categories(words, max_categories)
        useless.refuse(table.owner, table.columns, len(training))
        if telling:
            warnings.warn(
                f"'{table.owner}' has text with a different value in nearly every training row in {listing(telling)}. "
                "A category should come back in many rows; this looks like an id or free text, which a model learns by "
                "heart at best. Leave it out by naming the others: columns = [...].",
                stacklevel=2,
            )
        return cls(table.owner, scale, tuple(learned[name] for name in table.columns))

    @property
    def names(self) -> list[str]:
        """The output columns: `age`, `age is missing`, `job=clerk`, `job=(other)`."""
        return [name for column in self.columns for name in column.outputs]

    @property
    def spans(self) -> dict[str, slice]:
        """Which output columns each input column became."""
        ends = np.cumsum([len(column.outputs) for column in self.columns]).tolist()
        return {
            column.name: slice(end - len(column.outputs), end) for column, end in zip(self.columns, ends, strict=True)
        }

    def transform(self, table: Table) -> Tensor:
        """All rows of the table as float32, shape [rows, len(names)]."""
        self._check_columns(table)
        spans, large = self.spans, set[str]()
        cells = {column.name: table.features[column.name] for column in self.columns}
        out = mapped.array((len(table), len(self.names)), np.float32)
        for start in range(0, len(table), PIECE):
            piece = slice(start, start + PIECE)
            for column in self.columns:
                here = cells[column.name].iloc[piece]
                values = column.apply(numbers(here)) if isinstance(column, Number) else column.apply(text(here))
                with np.errstate(over="ignore"):  # told below
                    out[piece, spans[column.name]] = values
            if not np.isfinite(out[piece]).all():
                large |= {name for name, span in spans.items() if not np.isfinite(out[piece, span]).all()}
        if large:
            raise DataError(
                f"'{self.owner}' has values too large for float32 in {listing([n for n in spans if n in large])}. "
                f"Rescale these columns, for instance by a logarithm, or leave them out with columns=[...]."
            )
        mapped.let_go(out)
        return torch.from_numpy(out)

    def state(self) -> dict[str, Any]:
        """All that was learned, as JSON-able values."""
        return {"owner": self.owner, "scale": self.scale, "columns": [column.state() for column in self.columns]}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Preprocessor:
        """The preprocessor that `state()` described; its transform is bit-equal."""
        kinds: dict[str, type[Number] | type[Category]] = {"number": Number, "category": Category}
        try:
            if state["scale"] not in get_args(Scale):
                raise ValueError("scale")
            columns = tuple(kinds[column["kind"]].from_state(column) for column in state["columns"])
            return cls(str(state["owner"]), state["scale"], columns)
        except (KeyError, TypeError, ValueError) as error:
            raise CheckpointError(
                f"This is not the saved state of a Preprocessor ({type(error).__name__}: {error}). "
                f"Pass what Preprocessor.state() returned."
            ) from None

    def _check_columns(self, table: Table) -> None:
        trained = [column.name for column in self.columns]
        absent = [name for name in trained if name not in table.columns]
        extra = [name for name in table.columns if name not in trained]
        if absent or extra:
            faults = [f"lacks {listing(absent)}"] * bool(absent) + [f"also has {listing(extra)}"] * bool(extra)
            hint = suggestion(absent[0], extra) if absent else ""
            raise DataError(
                f"'{self.owner}' was fitted on {len(trained)} columns, and this table {' and '.join(faults)}.{hint} "
                f"Read it with the same columns=[...]."
            )
        for column in self.columns:
            cells = table.features[column.name]
            kind: Literal["number", "category"] = "number" if isinstance(column, Number) else "category"
            # A column without one value says nothing of its kind, whatever type the reader gave it.
            if not cells.isna().all() and kind_of(cells, owner=self.owner) != kind:
                raise DataError(
                    f"'{self.owner}' was fitted with {column.name!r} as a {kind}, and this table holds it as "
                    f"{cells.dtype}. Convert the column to what it was in training."
                )


def _groups(names: list[str]) -> list[list[str]]:
    """A few at a time, for memory's sake; never one alone of several, since NumPy adds up a single column otherwise."""
    cuts = list(range(0, len(names) - 1, GROUP)) or [0]
    return [names[start:stop] for start, stop in pairwise([*cuts, len(names)])] if names else []


class _Useless:
    """Columns no model can use, all to be named at once: empty, constant, or with infinite values."""

    def __init__(self) -> None:
        self.faults: dict[str, list[str]] = {"no value at all": [], "one value only": [], "infinite values": []}

    def none_of(self, columns: Mapping[str, NDArray[Any]], *, empty: bool = False) -> bool:
        """Note those of these columns that cannot be used; `empty` tells words that are nothing but gaps."""
        count = sum(map(len, self.faults.values()))
        for name, cells in columns.items():
            is_number = cells.dtype != object
            if empty or (is_number and np.isnan(cells).all()):
                self.faults["no value at all"].append(name)
            elif is_number and np.isinf(cells).any():
                self.faults["infinite values"].append(name)
            elif (cells == cells[0]).all():
                self.faults["one value only"].append(name)
        return sum(map(len, self.faults.values())) == count

    def refuse(self, owner: str, order: list[str], rows: int) -> None:
        """Raise, if there are any."""
        faults = [
            f"{what}: {listing([name for name in order if name in names])}"
            for what, names in self.faults.items()
            if names
        ]
        if faults:
            raise DataError(
                f"'{owner}' has columns that cannot be used as they look on its {rows} training rows: "
                f"{'; '.join(faults)}. Leave them out with columns=[...]"
                + (", or replace the infinite values." if self.faults["infinite values"] else ".")
            )
