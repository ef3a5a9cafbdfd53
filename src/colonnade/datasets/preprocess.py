"""From a party's columns to the float32 matrix its model reads, and from its labels to
class numbers or scaled values.

Numbers, times, and text that means them (`readings`): the median fills gaps, a 0/1
column marks them when training had any, then a scaler, normal scores of ranks, or a few
quantile bins (`fitted`). Categories (text, bool, pandas category, mixed types): gaps
become "missing", then one column per category; rare categories share one when there are
too many, and a category not seen in training gives zeros. Columns that say nothing are
left out.

scikit-learn's transformers learn from the party's own training rows. What they learned
is kept as plain numbers and names, which is all that `transform` uses: so a saved
preprocessor needs no pickle and gives equal bits. Those names hold category values of
the party. State and names are private to it. Messages about labels count rows and never
show one.
"""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from colonnade.core.files import let_go, mapped_array
from colonnade.core.unit import AS_IT_IS, Unit, learned_unit
from colonnade.datasets import fitted
from colonnade.datasets.readings import (
    FORMATS,
    OddWords,
    is_all_gaps,
    odd_words,
    read,
    recognise,
)
from colonnade.datasets.readings import NUMBERS as READ_AS_NUMBERS
from colonnade.datasets.table import Table
from colonnade.datasets.table_files import listing
from colonnade.datasets.target_scale import TargetScale, refuse_no_logarithm, scale_of
from colonnade.errors import CheckpointError, ConfigError, DataError, did_you_mean

if TYPE_CHECKING:
    import pandas as pd

Wanted = Literal["auto"] | fitted.Numbers
SCALES = get_args(fitted.Scale)
GROUP = 8  # columns of numbers learned together
# rows prepared at a time: their values stay in a processor's cache, and those of 65,536
# do not
PIECE = 8_192
MANY = 20
NEARLY = 0.9
"""Text with more different values than this, and than this share of the rows, is hardly
a category."""


@dataclass(frozen=True)
class Preprocessor:
    """What was learned about each column of one party; made by `fit`, used by
    `transform`."""

    owner: str
    scale: fitted.Scale
    columns: tuple[fitted.Column, ...]
    # how the text of columns that mean numbers is read
    readings: Mapping[str, str] = field(default_factory=dict)
    # columns that say nothing: empty, or with one value only
    left_out: tuple[str, ...] = ()
    # the words that are no numbers in columns that are numbers; they are private
    odd: Mapping[str, OddWords] = field(default_factory=dict)

    @classmethod
    def fit(
        cls,
        table: Table,
        rows: RowNumbers | None = None,
        *,
        scale: fitted.Scale = "standard",
        numbers_as: Wanted | Mapping[str, Wanted] = "standard",
        classes: int = 2,
        max_categories: int = 50,
    ) -> Preprocessor:
        """Learn from these training rows of the table (None: all). `numbers_as` says
        how numbers are prepared, in all columns, or by column name, and under "" in the
        others: by `scale` ("standard"), or otherwise ("auto": `fitted.best_way`, for so
        many `classes`). `max_categories` bounds a category's width."""
        if scale not in SCALES:
            raise ConfigError(
                f"'{table.owner}' sets scale to {scale!r}, and it must be one of"
                f" {SCALES}."
            )
        if max_categories < 2:
            raise ConfigError(
                f"'{table.owner}' sets max_categories to {max_categories}, and it must"
                " be at least 2."
            )
        if not table.columns:
            raise DataError(
                f"'{table.owner}' has no feature columns to preprocess. Name some with"
                " columns=[...]."
            )
        training = row_numbers(rows, len(table), owner=table.owner)
        kinds = {
            name: fitted.kind_of(table.features[name], owner=table.owner)
            for name in table.columns
        }
        readings = _readings(table, kinds, training)
        kinds |= dict.fromkeys(readings, "number")
        learned: dict[str, fitted.Column] = {}
        unusable = _UnusableColumns()
        like_ids = list[str]()

        def values_of(name: str) -> NDArray[np.float64]:
            return fitted.numbers(
                table.features[name].iloc[training], readings.get(name)
            )

        ways = {
            name: (
                fitted.best_way(values_of(name), classes=classes)
                if way == "auto"
                else way
            )
            for name, way in _ways(table, kinds, numbers_as).items()
            if kinds[name] == "number"
        }
        for way in get_args(fitted.Numbers):
            for names in _groups(
                [name for name, chosen in ways.items() if chosen == way]
            ):
                learned |= _fit(
                    unusable.usable({name: values_of(name) for name in names}),
                    way,
                    scale,
                )
        for name in (name for name, kind in kinds.items() if kind == "category"):
            cells = table.features[name].iloc[training]
            words = fitted.text(cells)
            filled = words[cells.notna().to_numpy()]
            if MANY < len(set(filled)) > NEARLY * len(filled):
                like_ids.append(name)
            if unusable.usable({name: words}, empty=not len(filled)):
                learned[name] = fitted.fit_category(name, words, max_categories)
        unusable.tell(table.owner, table.columns, len(training), any_left=bool(learned))
        if like_ids:
            warnings.warn(
                f"'{table.owner}' has text with a different value in nearly every"
                f" training row in {listing(like_ids)}. A category should come back in"
                " many rows; this looks like an id or free text, which a model learns"
                " by heart at best. Leave it out by naming the others: columns ="
                " [...].",
                stacklevel=2,
            )
        columns = tuple(learned[name] for name in table.columns if name in learned)
        left_out = tuple(name for name in table.columns if name not in learned)
        readings_used = {name: way for name, way in readings.items() if name in learned}
        odd = _odd_words(table, readings_used)
        _tell_odd_words(table.owner, odd)
        return cls(table.owner, scale, columns, readings_used, left_out, odd)

    @property
    def names(self) -> list[str]:
        """The output columns: `age`, `age is missing`, `job=clerk`, `job=(other)`."""
        return [name for column in self.columns for name in column.outputs]

    @property
    def spans(self) -> dict[str, slice]:
        """Which output columns each input column became."""
        ends = accumulate((len(column.outputs) for column in self.columns), initial=0)
        return {
            column.name: slice(*both)
            for column, both in zip(self.columns, pairwise(ends), strict=True)
        }

    @property
    def text_columns(self) -> list[str]:
        """The columns that were text in training, and must be read as text again.

        A file with few rows may have such a column look like plain numbers: "1.234",
        which was 1234 in training, or the word "01".
        """
        categories = [
            column.name
            for column in self.columns
            if isinstance(column, fitted.Category) and not column.is_yes_or_no
        ]
        return [*self.readings, *categories]

    def check(self, table: Table, rows: NDArray[np.int64]) -> dict[str, str]:
        """Raise where these rows of a table cannot be prepared, and tell their owner of
        odd words that training had not.

        Returns:
            By column, the format in which its text is read: a part of the rows might
            not tell it.
        """
        ways = self.ways(table)
        odd = _odd_words(table.taking(rows), ways)
        seen = {name: words.counts for name, words in self.odd.items()}
        new = {name: words.without(seen.get(name, ())) for name, words in odd.items()}
        _tell_odd_words(
            self.owner, {name: words for name, words in new.items() if words}
        )
        # if the least and the greatest number of a column fit, all do
        ends = set[int]()
        for column in self.columns:
            if not isinstance(column, fitted.Category):
                values = fitted.numbers(
                    table.features[column.name].iloc[rows], ways.get(column.name)
                )
                if not np.isnan(values).all():
                    ends |= {int(np.nanargmin(values)), int(np.nanargmax(values))}
        self.transform(table.taking(rows[sorted(ends)]), ways)
        return ways

    def transform(self, table: Table, ways: Mapping[str, str] | None = None) -> Tensor:
        """All rows of the table as float32, shape [rows, len(names)]. Where the table
        is a part of a larger one, `ways` is what `check` gave for that."""
        ways = self.ways(table) if ways is None else ways
        spans = self.spans
        large = set[str]()
        cells = {column.name: table.features[column.name] for column in self.columns}
        out = mapped_array((len(table), len(self.names)), np.float32)
        for start in range(0, len(table), PIECE):
            piece = slice(start, start + PIECE)
            for column in self.columns:
                piece_cells = cells[column.name].iloc[piece]
                if isinstance(column, fitted.Category):
                    values = column.apply(fitted.text(piece_cells))
                else:
                    values = column.apply(
                        fitted.numbers(piece_cells, ways.get(column.name))
                    )
                with np.errstate(over="ignore"):  # an error below says so
                    out[piece, spans[column.name]] = values
            if not np.isfinite(out[piece]).all():
                large |= {
                    name
                    for name, span in spans.items()
                    if not np.isfinite(out[piece, span]).all()
                }
        if large:
            raise DataError(
                f"'{self.owner}' has values too large for float32 in"
                f" {listing([n for n in spans if n in large])}. Rescale these columns,"
                " for instance by a logarithm, or leave them out with columns=[...]."
            )
        let_go(out)
        return torch.from_numpy(out)

    def state(self) -> dict[str, Any]:
        """All that was learned, as JSON-able values."""
        learned = {
            "owner": self.owner,
            "scale": self.scale,
            "columns": [column.state() for column in self.columns],
        }
        optional = {
            "readings": dict(self.readings),
            "left_out": list(self.left_out),
            "odd_words": {name: words.state() for name, words in self.odd.items()},
        }
        return learned | {key: value for key, value in optional.items() if value}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Preprocessor:
        """The preprocessor that `state()` described; its transform is bit-equal."""
        kinds = {
            kind.kind: kind
            for kind in (
                fitted.Number,
                fitted.Quantile,
                fitted.Piecewise,
                fitted.Category,
            )
        }
        try:
            if state["scale"] not in SCALES:
                raise ValueError("scale")
            columns = tuple(
                kinds[column["kind"]].from_state(column) for column in state["columns"]
            )
            readings = {
                str(name): str(way) for name, way in state.get("readings", {}).items()
            }
            left_out = tuple(str(name) for name in state.get("left_out", ()))
            odd = {
                str(name): OddWords.from_state(words)
                for name, words in state.get("odd_words", {}).items()
            }
            owner = str(state["owner"])
            return cls(owner, state["scale"], columns, readings, left_out, odd)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise CheckpointError(
                "This is not the saved state of a Preprocessor"
                f" ({type(error).__name__}: {error}). Pass what Preprocessor.state()"
                " returned."
            ) from None

    def ways(self, table: Table) -> dict[str, str]:
        """The format in which each column's text is read, of those that are numbers.

        Raises unless the table has the columns of training. Give it all rows that there
        are: a part of them may not tell a column's format.
        """
        self._check_names(table)
        ways = {}
        for column in self.columns:
            way = self._way_of(column, table.features[column.name])
            if way is not None:
                ways[column.name] = way
        return ways

    def _check_names(self, table: Table) -> None:
        trained = [column.name for column in self.columns]
        absent = [name for name in trained if name not in table.columns]
        known = {*trained, *self.left_out}
        extra = [name for name in table.columns if name not in known]
        faults = []
        if absent:
            faults.append(f"lacks {listing(absent)}")
        if extra:
            faults.append(f"also has {listing(extra)}")
        if faults:
            hint = did_you_mean(absent[0], extra) if absent else ""
            raise DataError(
                f"'{self.owner}' was fitted on {len(trained)} columns, and this table"
                f" {' and '.join(faults)}{hint}. Read it with the same columns=[...]."
            )

    def _way_of(self, column: fitted.Column, cells: pd.Series[Any]) -> str | None:
        """The format of a column's text; None where it needs none, for its cells are
        numbers, categories as in training, or gaps alone."""
        # a column of gaps says nothing of its kind, whatever type the reader gave it
        if cells.isna().all():
            return None
        trained = "category" if isinstance(column, fitted.Category) else "number"
        now = fitted.kind_of(cells, owner=self.owner)
        if now == trained:
            return None
        if trained == "number":
            way = self.readings.get(column.name) or recognise(cells)
            if way is not None:
                return way
            if is_all_gaps(cells):
                return next(iter(FORMATS))
        raise DataError(
            f"'{self.owner}' was fitted with {column.name!r} as a {trained}, and this"
            f" table holds it as {cells.dtype}. Convert the column to what it was in"
            " training."
        )


RowNumbers = Tensor | NDArray[np.int64] | Sequence[int]


def row_numbers(
    rows: RowNumbers | None, total: int, *, owner: str
) -> NDArray[np.int64]:
    """The positions as an int64 array; None means all rows. Refuses none, non-integers,
    and what lies outside."""
    if rows is None:
        return np.arange(total, dtype=np.int64)
    numbers: NDArray[Any] = (
        rows.cpu().numpy() if isinstance(rows, Tensor) else np.asarray(rows)
    )
    if numbers.ndim != 1 or len(numbers) == 0 or numbers.dtype.kind not in "iu":
        raise DataError(
            f"'{owner}' was given training rows of shape {numbers.shape} and type"
            f" {numbers.dtype}, and they must be a non-empty list of row numbers. Pass"
            " Split.train."
        )
    if numbers.min() < 0 or numbers.max() >= total:
        raise DataError(
            f"'{owner}' was given row numbers from {numbers.min()} to {numbers.max()},"
            f" and its table has rows 0 to {total - 1}. Split the rows of this table,"
            " not of another."
        )
    return numbers.astype(np.int64)


def _ways(
    table: Table, kinds: Mapping[str, str], numbers_as: Wanted | Mapping[str, Wanted]
) -> dict[str, Wanted]:
    """How the numbers of each column are prepared."""
    if isinstance(numbers_as, str):
        ways: dict[str, Wanted] = dict.fromkeys(kinds, numbers_as)
    else:
        ways = {
            name: numbers_as.get(name, numbers_as.get("", "standard")) for name in kinds
        }
        for name in numbers_as:
            if name and kinds.get(name) != "number":
                fault = (
                    "holds categories there" if name in kinds else "has no such column"
                )
                raise ConfigError(
                    f"'{table.owner}' says how the numbers of {name!r} are prepared,"
                    f" and {fault}{did_you_mean(name, list(kinds))}. Remove it."
                )
    for way in ways.values():
        if way not in (known := ("auto", *get_args(fitted.Numbers))):
            raise ConfigError(
                f"'{table.owner}' has numbers prepared as {way!r}; it must be one of"
                f" {known}."
            )
    return ways


def _fit(
    values: Mapping[str, NDArray[np.float64]], way: fitted.Numbers, scale: fitted.Scale
) -> Mapping[str, fitted.Column]:
    if way == "standard":
        return fitted.fit_numbers(values, scale)
    fit = fitted.fit_piecewise if way == "piecewise" else fitted.fit_quantile
    return {name: fit(name, cells) for name, cells in values.items()}


def _groups(names: list[str]) -> list[list[str]]:
    """Groups of a few names, to save memory. None but an only name is alone: NumPy sums
    a single column differently."""
    cuts = list(range(0, len(names) - 1, GROUP)) or [0]
    return (
        [names[start:stop] for start, stop in pairwise([*cuts, len(names)])]
        if names
        else []
    )


def _readings(
    table: Table, kinds: Mapping[str, str], training: NDArray[np.int64]
) -> dict[str, str]:
    """The formats of columns whose text means numbers or times on the training rows.

    A frame's column that its owner made a category stays one.
    """
    import pandas as pd

    is_frame = isinstance(table.features, pd.DataFrame)
    ways = {}
    for name in (name for name, kind in kinds.items() if kind == "category"):
        cells = table.features[name]
        is_meant = is_frame and isinstance(cells.dtype, pd.CategoricalDtype)
        if is_meant or pd.api.types.is_bool_dtype(cells.dtype):
            continue
        if way := recognise(cells.iloc[training]):
            ways[name] = way
    return ways


def _odd_words(table: Table, ways: Mapping[str, str]) -> dict[str, OddWords]:
    """The odd words of each column that has some, when it is read in its format."""
    found = {name: odd_words(table.features[name], way) for name, way in ways.items()}
    return {name: words for name, words in found.items() if words}


def _tell_odd_words(owner: str, odd: Mapping[str, OddWords]) -> None:
    """Warn an owner of words that are read as gaps. They are cells of its table: this
    is for its own eyes, and no part of an error, which may travel."""
    if odd:
        words = "; ".join(f"{name!r} has {found}" for name, found in odd.items())
        warnings.warn(
            f"'{owner}' has words in columns of numbers, and they are read as gaps:"
            f" {words}. If they mean gaps, say so in its settings, as in gaps ="
            ' ["k.A."]; if they mean numbers, write numbers.',
            stacklevel=3,
        )


class _UnusableColumns:
    """Columns that no model can use, collected to be named at once: empty, constant, or
    with infinite values."""

    def __init__(self) -> None:
        self.faults: dict[str, list[str]] = {
            "no value at all": [],
            "one value only": [],
            "infinite values": [],
        }

    def usable(
        self, columns: Mapping[str, NDArray[Any]], *, empty: bool = False
    ) -> dict[str, NDArray[Any]]:
        """Note which of these columns cannot be used, and give the others. `empty`: all
        cells are gaps."""
        for name, cells in columns.items():
            is_number = cells.dtype != object
            if empty or (is_number and np.isnan(cells).all()):
                self.faults["no value at all"].append(name)
            elif is_number and np.isinf(cells).any():
                self.faults["infinite values"].append(name)
            elif (cells == cells[0]).all():
                self.faults["one value only"].append(name)
        unusable = {name for names in self.faults.values() for name in names}
        return {name: cells for name, cells in columns.items() if name not in unusable}

    def tell(self, owner: str, order: list[str], rows: int, *, any_left: bool) -> None:
        """Say which columns are left out; infinite values, and a table of which nothing
        is left, are refused."""
        faults = {
            fault: listing(sorted(names, key=order.index))
            for fault, names in self.faults.items()
            if names
        }
        if infinite := faults.pop("infinite values", None):
            raise DataError(
                f"'{owner}' has infinite values in {infinite}, on its {rows} training"
                " rows. Replace them, or leave these columns out with columns=[...]."
            )
        reasons = "; ".join(f"{fault}: {names}" for fault, names in faults.items())
        if reasons and not any_left:
            raise DataError(
                f"'{owner}' has no column that says anything on its {rows} training"
                f" rows: {reasons}. Check the table."
            )
        if reasons:
            warnings.warn(
                f"'{owner}' leaves out columns that say nothing on its {rows} training"
                f" rows: {reasons}.",
                stacklevel=3,
            )


Kind = Literal["classification", "regression"]
Task = Literal["auto"] | Kind
MOST_DOUBTFUL = 20
"""With more different fractional numbers than this, nobody takes a label for classes."""
MOST_CODES = 100
"""Whole numbers in a row from 0 or 1 are the codes of at most so many classes."""
MOST_WHOLE_CLASSES = 12
"""Other whole numbers are the names of at most so many classes."""
TASKS: tuple[Task, ...] = ("auto", "classification", "regression")
MOST_NAMED = 20
"""An error names at most so many classes."""
POSITIVE_BY = ("setting", "rarer", "order")
"""Why a class is the positive one: a setting names it, it is the rarer one of the
training rows, or it is the second in order."""


@dataclass(frozen=True)
class Labels:
    """How the label owner's column becomes a tensor, and a prediction becomes a label
    again."""

    owner: str
    task: Kind
    classes: tuple[str | int | float | bool, ...] = ()
    unit: Unit = AS_IT_IS  # of numbers
    # of two classes, the number of the one that scores, curves and thresholds are about;
    # no class gets another number by it, and training is the same
    positive: int = 1
    positive_by: str = "order"  # why it is that one, of `POSITIVE_BY`

    @classmethod
    def fit(
        cls,
        label: pd.Series[Any],
        rows: RowNumbers | None = None,
        *,
        owner: str,
        task: Task = "auto",
        target_scale: TargetScale = "linear",
    ) -> Labels:
        """Learn from the labels of training rows.

        Args:
            label: The label column.
            rows: Which rows are training rows. By default all.
            owner: The label owner's name.
            task: Whether labels are classes or numbers. "auto" decides by their values,
                and warns where these could be the other (`likely_task`).
            target_scale: On which scale numbers are trained. "auto" trains positive
                and skewed ones on a log scale (`target_scale.is_skewed`).
        """
        if task not in TASKS:
            raise ConfigError(
                f"'{owner}' sets task to {task!r}, and it must be one of {TASKS}."
            )
        training = label.iloc[row_numbers(rows, len(label), owner=owner)]
        _refuse_missing(training, owner)
        if task == "auto":
            task = _guessed_task(training, owner)
        if training.nunique() < 2:
            raise DataError(
                f"'{owner}' has a label {str(label.name)!r} with one value only on its"
                f" {len(training)} rows, so there is nothing to learn. Check the label"
                " column, or take more rows."
            )
        if task == "regression":
            values = _as_floats(training, owner)
            if target_scale == "auto" and (_as_floats(label, owner) <= 0).any():
                target_scale = "linear"  # other rows have no logarithm
            is_log = scale_of(values, target_scale, owner) == "log"
            return cls(owner, task, unit=learned_unit(values, is_log=is_log))
        classes = {_plain(value) for value in training.astype(object).unique()}
        # a gap in a column makes 1 a 1.0
        if all(isinstance(value, float) and value.is_integer() for value in classes):
            classes = {int(value) for value in classes}
        return cls(
            owner,
            task,
            classes=tuple(
                sorted(classes, key=lambda value: (isinstance(value, str), value))
            ),
        )

    def encode(self, label: pd.Series[Any]) -> Tensor:
        """int64 class numbers, or float32 values with the training rows' mean 0 and
        scale 1."""
        _refuse_missing(label, self.owner)
        if self.task == "regression":
            numbers = _as_floats(label, self.owner)
            if self.unit.is_log:
                refuse_no_logarithm(numbers, self.owner)
            return torch.from_numpy(self.unit.trained(numbers)).to(torch.float32)
        number = {value: at for at, value in enumerate(self.classes)}
        places, values = label.astype(object).factorize()
        encoded = torch.tensor(
            [number.get(_plain(value), -1) for value in values], dtype=torch.int64
        )[places]
        unseen = int((encoded < 0).sum())
        if unseen:
            first = int((encoded < 0).nonzero()[0])
            raise DataError(
                f"'{self.owner}' has {unseen} labels of a class that no training row"
                f" has, the first in row {first}; "
                f"the training rows have {len(self.classes)} classes. Take more rows of"
                " these classes, or "
                f"remove them; if the labels are numbers to predict, set task ="
                f' "regression" under [data].'
            )
        return encoded

    def decode(self, encoded: Tensor) -> NDArray[Any]:
        """The labels in their original values: the inverse of `encode`, for class
        numbers or predicted values."""
        values = encoded.detach().cpu()
        if self.task == "regression":
            return np.asarray(self.unit.own(values).numpy())
        if values.is_floating_point() or (
            values.numel()
            and not 0 <= int(values.min()) <= int(values.max()) < len(self.classes)
        ):
            raise DataError(
                f"'{self.owner}' was given {values.dtype} values to decode, and they"
                f" must be whole class numbers from 0 to {len(self.classes) - 1}. Take"
                " the argmax of the scores first."
            )
        # as objects: NumPy's own strings lose trailing zero characters
        words = isinstance(self.classes[0], str)
        return np.asarray(
            np.array(self.classes, dtype=object if words else None)[values.numpy()]
        )

    def state(self) -> dict[str, Any]:
        """All that was learned, as JSON-able values."""
        learned = {
            "classes": list(self.classes),
            "mean": self.unit.mean,
            "scale": self.unit.scale,
            "target_scale": "log" if self.unit.is_log else "linear",
            "positive": self.positive,
            "positive_by": self.positive_by,
        }
        return {"owner": self.owner, "task": self.task, **learned}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Labels:
        """The labels that `state()` described."""
        try:
            if state["task"] not in ("classification", "regression"):
                raise ValueError("task")
            if state["target_scale"] not in ("linear", "log"):
                raise ValueError("target_scale")
            classes = tuple(_plain(value) for value in state["classes"])
            if state["positive"] not in (0, 1):
                raise ValueError("positive")
            if state["positive_by"] not in POSITIVE_BY:
                raise ValueError("positive_by")
            unit = Unit(
                float(state["mean"]),
                float(state["scale"]),
                is_log=state["target_scale"] == "log",
            )
            return cls(
                str(state["owner"]),
                state["task"],
                classes,
                unit,
                int(state["positive"]),
                str(state["positive_by"]),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise CheckpointError(
                f"This is not the saved state of Labels ({type(error).__name__}:"
                f" {error}). Pass what Labels.state() returned."
            ) from None

    @property
    def positive_class(self) -> str | int | float | bool | None:
        """The positive one of two classes; None for several classes, or numbers."""
        return self.classes[self.positive] if len(self.classes) == 2 else None

    def number_of(self, name: Any) -> int | None:
        """The number of the class that a setting calls by this name; None if there is
        none."""
        wanted = spellings(name)
        for number, known in enumerate(self.classes):
            if wanted & spellings(known):
                return number
        return None

    def with_rarer_positive(self, commonest: Sequence[tuple[Any, int]]) -> Labels:
        """The same labels, with the rarer one of two classes as the positive one.

        Of classes that are equally common the second stays the positive one.

        Args:
            commonest: For each label owner that tells it, the class that most of its
                training rows have, and how many training rows it has.
        """
        if len(self.classes) != 2 or not commonest:
            return self
        rows_for = [0, 0]
        for name, rows in commonest:
            rows_for[self.classes.index(name)] += rows
        rarer = 0 if rows_for[1] > rows_for[0] else 1
        return dataclasses.replace(self, positive=rarer, positive_by="rarer")

    def with_positive(self, positive: Any) -> Labels:
        """The same labels, with the positive class that a setting names."""
        if self.task == "regression":
            raise ConfigError(
                f"[data] positive = {positive!r} names a class, and the label of"
                f" '{self.owner}' is a number. Remove it, or set task ="
                ' "classification".'
            )
        named = ", ".join(map(repr, self.classes[:MOST_NAMED]))
        if len(self.classes) != 2:
            raise ConfigError(
                f"[data] positive = {positive!r} names one of two classes, and the"
                f" label of '{self.owner}' has {len(self.classes)}: {named}. Remove it."
            )
        number = self.number_of(positive)
        if number is None:
            raise ConfigError(
                f"[data] positive = {positive!r} is no class of the label of"
                f" '{self.owner}'. Its classes are {named}; write one of them as the"
                " label column does."
            )
        return dataclasses.replace(self, positive=number, positive_by="setting")


def likely_task(
    count: int, *, are_codes: bool, are_fractional: bool
) -> tuple[Kind, bool]:
    """Whether a label is a class or a number, and whether its values leave no doubt.

    Two values are classes. Fractional numbers, also those that are written as 3.0 and
    4.0, are in an order, and are taken for numbers to predict. So are many whole
    numbers, but not those that look like the codes of classes.

    Args:
        count: How many different numbers the label has.
        are_codes: Whether these are whole numbers in a row from 0 or 1 (`are_in_a_row`).
        are_fractional: Whether they are written with a fraction, be it .0.
    """
    if count <= 2:
        return "classification", True
    if are_fractional:
        return "regression", count > MOST_DOUBTFUL
    if are_codes and count <= MOST_CODES:
        return "classification", count <= MOST_WHOLE_CLASSES
    if count > MOST_WHOLE_CLASSES:
        return "regression", count > MOST_CODES
    return "classification", False


def are_in_a_row(values: Collection[float]) -> bool:
    """Whether these different numbers are 0, 1, 2 and so on, or 1, 2, 3 and so on."""
    first = min(values)
    last = max(values)
    return first in (0, 1) and last - first == len(values) - 1 and last % 1 == 0


def _guessed_task(label: pd.Series[Any], owner: str) -> Kind:
    """Guess whether labels are classes or numbers, and warn where it is in doubt."""
    values = _numbers_in(label)
    if values is None:
        return "classification"
    distinct = np.unique(values)
    is_text = label.dtype.kind not in "iuf"
    are_fractional = label.dtype.kind == "f" or bool((distinct % 1 != 0).any())
    if is_text and not are_fractional:
        return "classification"
    task, is_sure = likely_task(
        len(distinct),
        are_codes=not are_fractional and are_in_a_row(distinct.tolist()),
        are_fractional=are_fractional,
    )
    if not is_sure:
        name = str(label.name)
        warnings.warn(
            f"'{owner}': {in_doubt(name, len(distinct), task)} set [data] task ="
            f' "{other_task(task)}".',
            stacklevel=4,
        )
    return task


def _numbers_in(label: pd.Series[Any]) -> NDArray[np.float64] | None:
    """The label as numbers, also where text means them; None where it is none."""
    if label.dtype.kind in "iuf":
        return np.asarray(label.to_numpy(dtype=np.float64))
    if label.dtype.kind == "b":
        return None
    way = recognise(label, share=1.0)
    if way not in READ_AS_NUMBERS:
        return None
    values = read(label, way)
    return values if np.isfinite(values).all() else None


def in_doubt(name: str, count: int, task: Kind) -> str:
    """The words that tell what was taken for what, up to the setting that says
    otherwise."""
    values = f"the label {name!r} has {count} different numbers"
    if task == "regression":
        return (
            f"{values}, which are taken for numbers to predict (regression). If they"
            " are classes,"
        )
    return (
        f"{values}, which are taken for classes. If they are numbers to predict"
        " (regression),"
    )


def other_task(task: Kind) -> Kind:
    return "classification" if task == "regression" else "regression"


def spellings(name: Any) -> set[str]:
    """The ways in which a setting may write the name of a class: true for True, and 2
    for 2.0."""
    ways = {str(name)}
    if isinstance(name, bool):
        ways.add(str(name).lower())
    if isinstance(name, float):
        ways.add(f"{name:g}")
    return ways


def commonest_class(label: pd.Series[Any]) -> str | int | float | bool:
    """The class that most rows have; of classes with equally many, the first in order."""
    counts = label.value_counts()
    largest = [_plain(name) for name in counts.index[counts == counts.max()]]
    return min(largest, key=lambda name: (isinstance(name, str), name))


def _plain(value: Any) -> str | int | float | bool:
    """A label as a plain Python value, so that it can be saved; other types become
    their text."""
    value = value.item() if isinstance(value, np.generic) else value
    return value if isinstance(value, str | int | float | bool) else str(value)


def _refuse_missing(label: pd.Series[Any], owner: str) -> None:
    missing = int(label.isna().sum())
    if missing:
        raise DataError(
            f"'{owner}' has {missing} rows without a label in {str(label.name)!r}, and"
            " every row needs one. Remove these rows before aligning."
        )


def _as_floats(label: pd.Series[Any], owner: str) -> NDArray[np.float64]:
    is_number = fitted.kind_of(label, owner=owner) == "number"
    way = None if is_number else recognise(label, share=1.0)
    if not is_number and way not in READ_AS_NUMBERS:
        raise DataError(
            f"'{owner}' has a label {str(label.name)!r} of type {label.dtype}, and"
            " regression needs numbers. Convert it, or set task='classification'."
        )
    values = (
        np.asarray(label.to_numpy(dtype=np.float64))
        if way is None
        else read(label, way)
    )
    if not np.isfinite(values).all():
        raise DataError(
            f"'{owner}' has infinite values in its label {str(label.name)!r}. Remove"
            " these rows."
        )
    return values
