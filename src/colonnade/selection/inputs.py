"""What a selection is given, checked before anything is sent: columns as float64, labels as classes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from colonnade.errors import ConfigError, DataError
from colonnade.selection.group_testing import Group
from colonnade.selection.knn_mi import Numbers, Whole

Array = Tensor | NDArray[Any]


def as_columns(name: str, values: Array, rows: Whole | None) -> Numbers:
    """A participant's columns, [N, F]; one dimension is one column."""
    found = np.asarray(values.detach().cpu().numpy() if isinstance(values, Tensor) else values)
    numbers = np.issubdtype(found.dtype, np.number) or found.dtype == bool
    if found.ndim not in (1, 2) or 0 in found.shape or not numbers:
        raise DataError(
            f"'{name}' must give numbers as [rows, columns], at least one of each; found {found.dtype} "
            f"{list(found.shape)}. Encode text, and flatten pictures."
        )
    found = found.astype(np.float64).reshape(len(found), -1)
    found = found if rows is None else found[rows]
    if not np.isfinite(found).all():
        raise DataError(f"'{name}' has cells that are no finite numbers, which have no distance. Fill them first.")
    return found


def as_classes(owner: str, labels: Array, rows: Whole | None, bins: int) -> Whole:
    """Labels as whole numbers; numbers are cut at quantiles where `bins` says into how many."""
    found = np.asarray(labels.detach().cpu().numpy() if isinstance(labels, Tensor) else labels)
    if found.ndim != 1:
        raise DataError(f"'{owner}' must give one label for each row; found the shape {list(found.shape)}.")
    found = found if rows is None else found[rows]
    if bins:
        if bins < 2 or not np.issubdtype(found.dtype, np.number):
            raise ConfigError(f"bins cuts labels that are numbers into 2 or more; found {bins} and {found.dtype}.")
        inner = np.quantile(found, np.arange(1, bins) / bins)
        return np.searchsorted(inner, found, side="right").astype(np.int64)
    if np.issubdtype(found.dtype, np.floating) and not (np.isfinite(found).all() and (found == np.round(found)).all()):
        raise ConfigError(
            f"'{owner}' has labels that are numbers, and ranks alone do not give Kraskov's estimate for these. "
            "Set bins, for example bins = 4, to take quantiles as classes."
        )
    return np.unique(found, return_inverse=True)[1].astype(np.int64)


def check_parties(
    features: Mapping[str, Numbers], labels: Whole, *, leader: str, decryptor: str, reserved: Sequence[str]
) -> None:
    """Two or more participants with as many rows as there are labels, and names of their own."""
    for name in (leader, *features):
        if name in reserved:
            raise ConfigError(f"A party cannot be called {name!r}, which is a server's name here. Rename it.")
    for name, held in features.items():
        if len(held) != len(labels):
            raise DataError(f"'{name}' has {len(held)} rows and there are {len(labels)} labels. Align them first.")
    least = 3 if decryptor == "participants" else 2
    if len(features) < least:
        why = ": of two, whoever sorts their sum could subtract its own part" if least == 3 else ""
        raise ConfigError(f"A selection takes {least} or more participants{why}; found {len(features)}.")
    if len(labels) < 3:
        raise DataError(f"A selection takes 3 or more rows; found {len(labels)}.")


def as_groups(names: Sequence[str], groups: Sequence[Sequence[str]]) -> list[Group]:
    """Groups of participants, each written in one way."""
    found = []
    for group in groups:
        unknown = [name for name in group if name not in names]
        if unknown or not group or len(set(group)) != len(group) or isinstance(group, str):
            raise ConfigError(f"A group names participants, each once, of {list(names)}; found {list(group)}.")
        found.append(tuple(name for name in names if name in group))
    if not found:
        raise ConfigError("groups is empty. Name at least one, or leave it out.")
    return found
