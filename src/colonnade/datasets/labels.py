"""Labels as a model reads them: class numbers, or standardised values for regression.

The classes, or mean and scale, are learned on the training rows. Messages count rows and never show a label.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from colonnade.datasets.cells import kind_of
from colonnade.datasets.columns import RowNumbers, row_numbers
from colonnade.errors import CheckpointError, ConfigError, DataError

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Labels", "Task"]

Task = Literal["auto", "classification", "regression"]
MOST_FLOAT_CLASSES = 20


@dataclass(frozen=True)
class Labels:
    """How the label owner's column becomes a tensor, and a prediction becomes a label again."""

    owner: str
    task: Literal["classification", "regression"]
    classes: tuple[str | int | float | bool, ...] = ()
    mean: float = 0.0
    scale: float = 1.0

    @classmethod
    def fit(cls, label: pd.Series[Any], rows: RowNumbers | None = None, *, owner: str, task: Task = "auto") -> Labels:
        """Learn from these training rows (None: all).

        With task="auto", a float column of more than 20 distinct values is regression, all else classification.
        """
        if task not in get_args(Task):
            raise ConfigError(f"'{owner}' sets task to {task!r}, and it must be one of {get_args(Task)}.")
        training = label.iloc[row_numbers(rows, len(label), owner=owner)]
        _refuse_missing(training, owner)
        if task == "auto":
            many = training.dtype.kind == "f" and training.nunique() > MOST_FLOAT_CLASSES
            task = "regression" if many else "classification"
        if training.nunique() < 2:
            raise DataError(
                f"'{owner}' has a label {str(label.name)!r} with one value only on its {len(training)} rows, "
                f"so there is nothing to learn. Check the label column, or take more rows."
            )
        if task == "regression":
            values = _as_floats(training, owner)
            return cls(owner, task, mean=float(values.mean()), scale=float(values.std()))
        found = {_plain(value) for value in training.astype(object).unique()}
        return cls(owner, task, classes=tuple(sorted(found, key=lambda value: (isinstance(value, str), value))))

    def encode(self, label: pd.Series[Any]) -> Tensor:
        """int64 class numbers, or float32 values with the training rows' mean 0 and scale 1."""
        _refuse_missing(label, self.owner)
        if self.task == "regression":
            return torch.from_numpy((_as_floats(label, self.owner) - self.mean) / self.scale).to(torch.float32)
        number = {value: at for at, value in enumerate(self.classes)}
        places, values = label.astype(object).factorize()
        encoded = torch.tensor([number.get(_plain(value), -1) for value in values], dtype=torch.int64)[places]
        unseen = int((encoded < 0).sum())
        if unseen:
            first = int((encoded < 0).nonzero()[0])
            raise DataError(
                f"'{self.owner}' has {unseen} labels of a class that no training row has, the first in row {first}; "
                f"the training rows have {len(self.classes)} classes. Split the rows so that each class occurs in "
                f"training, or remove these rows."
            )
        return encoded

    def decode(self, encoded: Tensor) -> NDArray[Any]:
        """The labels in their original values: the inverse of `encode`, for class numbers or predicted values."""
        given = encoded.detach().cpu()
        if self.task == "regression":
            return np.asarray(given.to(torch.float64).numpy() * self.scale + self.mean)
        if given.is_floating_point() or (
            given.numel() and not 0 <= int(given.min()) <= int(given.max()) < len(self.classes)
        ):
            raise DataError(
                f"'{self.owner}' was given {given.dtype} values to decode, and they must be whole class numbers from 0 "
                f"to {len(self.classes) - 1}. Take the argmax of the scores first."
            )
        words = isinstance(self.classes[0], str)  # as objects: NumPy's own strings lose trailing zero characters
        return np.asarray(np.array(self.classes, dtype=object if words else None)[given.numpy()])

    def state(self) -> dict[str, Any]:
        """All that was learned, as JSON-able values."""
        learned = {"classes": list(self.classes), "mean": self.mean, "scale": self.scale}
        return {"owner": self.owner, "task": self.task, **learned}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Labels:
        """The labels that `state()` described."""
        try:
            if state["task"] not in ("classification", "regression"):
                raise ValueError("task")
            classes = tuple(_plain(value) for value in state["classes"])
            return cls(str(state["owner"]), state["task"], classes, float(state["mean"]), float(state["scale"]))
        except (KeyError, TypeError, ValueError) as error:
            raise CheckpointError(
                f"This is not the saved state of Labels ({type(error).__name__}: {error}). "
                f"Pass what Labels.state() returned."
            ) from None


def _plain(value: Any) -> str | int | float | bool:
    """A label as a plain Python value, so that it can be saved; other types become their text."""
    value = value.item() if isinstance(value, np.generic) else value
    return value if isinstance(value, str | int | float | bool) else str(value)


def _refuse_missing(label: pd.Series[Any], owner: str) -> None:
    missing = int(label.isna().sum())
    if missing:
        raise DataError(
            f"'{owner}' has {missing} rows without a label in {str(label.name)!r}, and every row needs one. "
            f"Remove these rows before aligning."
        )


def _as_floats(label: pd.Series[Any], owner: str) -> NDArray[np.float64]:
    if kind_of(label, owner=owner) != "number":
        raise DataError(
            f"'{owner}' has a label {str(label.name)!r} of type {label.dtype}, and regression needs numbers. "
            f"Convert it, or set task='classification'."
        )
    values = np.asarray(label.to_numpy(dtype=np.float64))
    if not np.isfinite(values).all():
        raise DataError(f"'{owner}' has infinite values in its label {str(label.name)!r}. Remove these rows.")
    return values
