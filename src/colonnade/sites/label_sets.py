"""What label owners on different machines tell each other, so that an output means the
same to all of them.

    Describe -> Described      the names of the classes in its training rows, and of two the one that most rows have,
                               unless [data] positive names one; of numbers: how many, mean and deviation

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
from colonnade.datasets.preprocess import (
    Labels,
    _plain,
    are_in_a_row,
    commonest_class,
    likely_task,
)
from colonnade.datasets.table import Table
from colonnade.errors import ConfigError, DataError
from colonnade.rows.holdings import Holdings
from colonnade.rows.making import divide, draws_labels, label_of
from colonnade.settings.party_file import SiteConfig
from colonnade.settings.sections import DataSettings
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
    # JSON: of one or two classes the one that most rows have; null where it is not told
    commonest: str
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
            label_of(rows).iloc[train.numpy()],
            self.name,
            data.task,
            tells_commonest=data.positive is None
            and not draws_labels(own.settings, own.name),
        )

    @serves
    def describe(self, request: Describe) -> Described:  # noqa: ARG002
        return self.described


def described(
    labels: pd.Series[Any], owner: str, task: Any, *, tells_commonest: bool = False
) -> Described:
    """Describe the labels of one label owner's training rows, which may all be of one
    class.

    Args:
        labels: The labels of its training rows.
        owner: The label owner's name.
        task: Whether labels are classes or numbers, or "auto".
        tells_commonest: Whether to tell which of two classes most rows have: the label
            owners need it to agree on the rarer one, the positive class.
    """
    if labels.nunique() == 1 and not labels.isna().any() and task != "regression":
        name = json.dumps(_plain(labels.iloc[0]))
        commonest = name if tells_commonest else "null"
        return Described(False, f"[{name}]", commonest, len(labels), 0.0, 1.0)
    mine = Labels.fit(labels, owner=owner, task=task)
    tells_commonest = tells_commonest and len(mine.classes) == 2
    classes: list[Any] = list(mine.classes)
    if task == "auto" and labels.dtype.kind == "f":
        # together with those of others they may be numbers to predict
        classes = [float(name) for name in classes]
    return Described(
        mine.task == "regression",
        json.dumps(classes),
        json.dumps(commonest_class(labels)) if tells_commonest else "null",
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


def agreed_labels(by_owner: Mapping[str, Described], data: DataSettings) -> Labels:
    """Agree on what the labels of all label owners together mean, in the order of
    these, and which of two classes is the positive one."""
    agreed = _joined_labels(by_owner, data.task)
    if data.positive is not None:
        return agreed.with_positive(data.positive)
    commonest = []
    for name, labels in by_owner.items():
        told = _commonest(name, labels, agreed.classes)
        if told is not None:
            commonest.append((told, labels.rows))
    return agreed.with_rarer_positive(commonest)


def _joined_labels(by_owner: Mapping[str, Described], task: str) -> Labels:
    """What `Labels.fit` would learn from the training labels of all label owners."""
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
    in_doubt = False
    if task == "auto" and not any(isinstance(value, str) for value in known):
        guess, _ = likely_task(
            len(known),
            are_codes=not numbers and are_in_a_row(known),
            are_fractional=numbers,
        )
        in_doubt = guess == "regression"
    if in_doubt or any(labels.measured for labels in by_owner.values()):
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
    # as `Labels.fit` has it: a gap in a column makes 1 a 1.0
    if all(isinstance(value, float) and value.is_integer() for value in values):
        values = {int(value) for value in values}
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


def _commonest(name: str, labels: Described, classes: Collection[Any]) -> Any:
    """Read which class most rows of a label owner have; None where it does not tell."""
    try:
        told = json.loads(labels.commonest)
        fits = told is None or told in classes
    except (ValueError, RecursionError):
        fits = False
    if not fits:
        raise DataError(
            f"'{name}' told of a most frequent class that no label owner has. It must"
            " look at its labels."
        )
    return told


def _is_class(value: Any) -> bool:
    if isinstance(value, str):
        return UNSHOWN.search(value) is None
    return isinstance(value, (int, float)) and abs(value) <= LARGEST
