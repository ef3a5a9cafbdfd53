"""The inputs of a selection, checked before anything is sent: columns as float64, labels as classes or numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from colonnade.errors import ConfigError, DataError
from colonnade.selection.group_testing import Group
from colonnade.selection.knn_mi import Numbers, Whole
from colonnade.selection.settings import KEYS, SERVER, SelectionSettings

Array = Tensor | NDArray[Any]
LARGEST = 1e150
"""The largest value: the squares of larger ones, summed over rows, overflow."""


def as_columns(name: str, values: Array, rows: Whole | None) -> Numbers:
    """A participant's columns, [N, F]; one dimension is one column."""
    columns = np.asarray(values.detach().cpu().numpy() if isinstance(values, Tensor) else values)
    if columns.ndim not in (1, 2) or 0 in columns.shape or columns.dtype.kind not in "fiub":
        raise DataError(
            f"'{name}' must give numbers as [rows, columns], at least one of each; found {columns.dtype} "
            f"{list(columns.shape)}. Encode text, and flatten pictures."
        )
    columns = columns.astype(np.float64).reshape(len(columns), -1)
    columns = columns if rows is None else columns[rows]
    if not (np.abs(columns) <= LARGEST).all():
        raise DataError(
            f"'{name}' has cells that are no finite numbers, or beyond {LARGEST:g}, which have no distance. Fill or "
            "rescale them first."
        )
    return columns


def as_labels(owner: str, given: Array, rows: Whole | None, settings: SelectionSettings) -> Whole | Numbers:
    """Classes as whole numbers from 0, or numbers as float64. Floats that are not all whole are numbers, unless the
    settings' estimator says what labels are; `bins` cuts numbers at quantiles into classes."""
    labels = np.asarray(given.detach().cpu().numpy() if isinstance(given, Tensor) else given)
    if labels.ndim != 1:
        raise DataError(f"'{owner}' must give one label for each row; found the shape {list(labels.shape)}.")
    labels = labels if rows is None else labels[rows]
    floats = np.issubdtype(labels.dtype, np.floating)
    if floats and not (np.abs(labels.astype(np.float64)) <= LARGEST).all():
        raise DataError(f"'{owner}' has labels that are no finite numbers, or beyond {LARGEST:g}. Leave them out.")
    chosen = settings.settled(numbers=bool(floats and (labels != np.round(labels)).any()))
    if (chosen.bins or chosen.estimator == "kraskov") and not np.issubdtype(labels.dtype, np.number):
        raise ConfigError(
            f"bins and estimator = \"kraskov\" take labels that are numbers, and those of '{owner}' are "
            f"{labels.dtype}. Leave them out to take labels as classes."
        )
    if chosen.estimator == "kraskov":
        return labels.astype(np.float64)
    if chosen.bins:
        if chosen.bins < 2:
            raise ConfigError(f"bins cuts labels that are numbers into 2 or more; found {chosen.bins}.")
        inner = np.quantile(labels, np.arange(1, chosen.bins) / chosen.bins)
        return np.searchsorted(inner, labels, side="right").astype(np.int64)
    try:
        return np.unique(labels, return_inverse=True)[1].astype(np.int64)
    except TypeError:
        raise DataError(f"'{owner}' has labels of several types, or none in some rows. Make them all text.") from None


def check_parties(rows: Mapping[str, int], labels: int, *, leader: str, decryptor: str) -> None:
    """Check that there are enough participants, each with as many `rows` as there are labels, and with its own name."""
    for name in (leader, *rows):
        if name in (SERVER, KEYS):
            raise ConfigError(f"A party cannot be called {name!r}, which is a server's name here. Rename it.")
    for name, held in rows.items():
        if held != labels:
            raise DataError(f"'{name}' has {held} rows and there are {labels} labels. Align them first.")
    if len(rows) < 2:
        raise ConfigError(f"A selection takes 2 or more participants with columns; found {len(rows)}.")
    count = len(rows) - (decryptor == "leader" and leader in rows)
    if decryptor != "key_server" and count < 3:
        why = {
            "participants": "participants where they sort: of two, who sorts could subtract its own part of their sum",
            "leader": f"participants besides '{leader}', who decrypts for a label that is a number: of two it may read "
            "nothing but the sum of both, which ranks neither",
        }[decryptor]
        cure = {
            "participants": 'Set decryptor = "key_server".',
            "leader": "Set bins, for example bins = 4: then ranks are enough, and so are two participants.",
        }[decryptor]
        raise ConfigError(f"A selection takes 3 or more {why}; found {count}. {cure}")
    if labels < 3:
        raise DataError(f"A selection takes 3 or more rows; found {labels}.")


def check_hidden(groups: Sequence[Group], leader: str) -> None:
    """Where the leader decrypts, refuse a group with one participant besides it, whose distances it would read."""
    for group in groups:
        if len(set(group) - {leader}) == 1:
            raise ConfigError(
                f"'{leader}' decrypts each group's distances, and with the group {list(group)} it would read those of "
                "one participant. Test groups with two or more besides it (brute_force: keep more); or set bins, for "
                "example bins = 4, if labels are numbers: then ranks are enough, and a group of one sorts by itself."
            )


def as_groups(names: Sequence[str], groups: Sequence[Sequence[str]]) -> list[Group]:
    """Groups of participants, each in the order of `names`."""
    checked = []
    for group in groups:
        unknown = [name for name in group if name not in names]
        if unknown or not group or len(set(group)) != len(group) or isinstance(group, str):
            raise ConfigError(f"A group names participants, each once, of {list(names)}; found {list(group)}.")
        checked.append(tuple(name for name in names if name in group))
    if not checked:
        raise ConfigError("groups is empty. Name at least one, or leave it out.")
    return checked
