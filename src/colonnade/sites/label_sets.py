"""What label owners on different machines tell each other, so that an output means the
same to all of them.

    Describe -> Described      the names of the classes in its training rows; of numbers: how many, mean and deviation

It is what `Labels.fit` would learn from the training labels of all of them, and nothing
more of anybody's is told.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

from colonnade.core import Message, Organisation, Party, Request, serves
from colonnade.core.unit import Unit
from colonnade.datasets.preprocess import MOST_FLOAT_CLASSES, Labels, _plain
from colonnade.datasets.table import Table
from colonnade.errors import ConfigError, DataError
from colonnade.rows.holdings import Holdings
from colonnade.rows.making import divide, label_of
from colonnade.settings.party_file import SiteConfig
from colonnade.sites.host import MOST_ROWS
from colonnade.sites.reader import own_labels

if TYPE_CHECKING:
    import pandas as pd

MOST_CLASSES = 1 << 16
LARGEST = 1e100
"""A number that is added up with others, squared and over all rows: far from where this
overflows."""
UNSHOWN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")
"""What a terminal would obey, or no file can hold."""


class Described(Message):
    measured: bool  # numbers to be measured, and no classes
    classes: str  # JSON
    rows: int
    mean: float
    scale: float


class Describe(Request[Described]):
    """Asks a label owner what its labels are."""


class Describer(Party):
    """Answers for a label owner, and for it alone, what its labels are called."""

    def __init__(
        self,
        organisation: Organisation,
        own: SiteConfig,
        rows: Table,
        others: Collection[str],
    ) -> None:
        super().__init__(organisation)
        self.serves_for = frozenset(others)
        data = own.settings.data
        train = divide(rows.ids, data, own.settings.engine.seed, own.name, shared=True)[
            "train"
        ]
        self.described = described(
            label_of(rows).iloc[train.numpy()], self.name, data.task
        )

    @serves
    def describe(self, request: Describe) -> Described:  # noqa: ARG002
        return self.described


def described(labels: pd.Series[Any], owner: str, task: Any) -> Described:
    """Describe the labels of one label owner's training rows, which may all be of one
    class."""
    if labels.nunique() == 1 and not labels.isna().any() and task != "regression":
        return Described(
            False, json.dumps([_plain(labels.iloc[0])]), len(labels), 0.0, 1.0
        )
    mine = Labels.fit(labels, owner=owner, task=task)
    return Described(
        mine.task == "regression",
        json.dumps(list(mine.classes)),
        len(labels),
        mine.unit.mean,
        mine.unit.scale,
    )


def labels_alone(own: SiteConfig, table: Table | None, salt: str = "") -> Holdings:
    """Build what a label owner holds, as far as it can tell without the other label
    owners."""
    encoder = None
    if len(own.label_owners) > 1 and table is not None:  # others may know other classes
        mine = described(label_of(table), own.name, own.settings.data.task)
        task: Any = "regression" if mine.measured else "classification"
        encoder = Labels(own.name, task, tuple(json.loads(mine.classes)))
    return own_labels(own, table, encoder, salt)


def agreed_labels(by_owner: Mapping[str, Described], task: str) -> Labels:
    """Agree on what the labels of all label owners together mean, in the order of
    these."""
    owner = ", ".join(by_owner)
    classes = {name: _classes(name, labels) for name, labels in by_owner.items()}
    if all(labels.measured for labels in by_owner.values()):
        rows = sum(labels.rows for labels in by_owner.values())
        mean = sum(labels.rows * labels.mean for labels in by_owner.values()) / rows
        spread = (
            sum(
                labels.rows * (labels.scale**2 + (labels.mean - mean) ** 2)
                for labels in by_owner.values()
            )
            / rows
        )
        return Labels(owner, "regression", unit=Unit(mean, math.sqrt(spread)))
    known = {value for values in classes.values() for value in values}
    numbers = any(isinstance(value, float) for value in known)
    many = task == "auto" and numbers and len(known) > MOST_FLOAT_CLASSES
    if many or any(labels.measured for labels in by_owner.values()):
        raise ConfigError(
            "The label owners' labels are classes at some and numbers at others. Say"
            ' which they are: set [data] task = "classification" or "regression" in the'
            " agreed file."
        )
    if len(known) < 2:
        raise DataError(
            f"{owner} have labels of one class together, so there is nothing to learn."
        )
    words = any(isinstance(value, str) for value in known)
    values = {float(value) for value in known} if numbers and not words else known
    return Labels(
        owner,
        "classification",
        tuple(sorted(values, key=lambda value: (isinstance(value, str), value))),
    )


def _classes(name: str, labels: Described) -> list[Any]:
    """Read what a label owner calls its classes; what cannot be used is refused, with
    its name."""
    try:
        classes = json.loads(labels.classes)
    except (ValueError, RecursionError):
        classes = None
    fits = (
        isinstance(classes, list)
        and len(classes) <= MOST_CLASSES
        and all(map(_is_class, classes))
    )
    measured = (
        0 < labels.rows <= MOST_ROWS
        and abs(labels.mean) <= LARGEST
        and 0 <= labels.scale <= LARGEST
    )
    if not fits or not measured:
        raise DataError(
            f"'{name}' told of labels that are none, for {labels.rows} rows. It must"
            " look at its labels."
        )
    return list(classes)


def _is_class(value: Any) -> bool:
    if isinstance(value, str):
        return UNSHOWN.search(value) is None
    return isinstance(value, (int, float)) and abs(value) <= LARGEST
