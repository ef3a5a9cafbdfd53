"""Which columns of a table play which part, checked before any cell is read.

A column is the id, the label, a feature, or unused; never two of these. All messages name the owner, the
column and the cure, and show column names only, never a cell.
"""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from colonnade.errors import ConfigError, DataError

__all__ = ["Aside", "check_present", "choose_columns", "listing", "suggestion"]


Aside = Mapping[str, str] | None
"""Columns that are no features, by the setting that names them."""


def suggestion(name: str, options: Iterable[str]) -> str:
    """` Did you mean 'age'?` when one option is close to the name, else nothing."""
    close = difflib.get_close_matches(name, list(options), n=1)
    return f" Did you mean {close[0]!r}?" if close else ""


def listing(names: Sequence[str], limit: int = 30) -> str:
    """The names, quoted and separated by commas; a long list is cut and says by how much."""
    shown = ", ".join(repr(name) for name in names[:limit])
    return f"{shown} and {len(names) - limit} more" if len(names) > limit else shown


def check_present(asked: Iterable[str], present: Sequence[str], *, owner: str, part: str) -> None:
    """Refuse a column that the owner's table does not have; `part` says what it was asked for as."""
    held = set(present)
    for name in asked:
        if name not in held:
            raise DataError(
                f"'{owner}' has no column {name!r}, named as its {part}.{suggestion(name, present)} "
                f"Its columns are {listing(present)}."
            )


def choose_columns(
    present: Sequence[str],
    *,
    owner: str,
    id_column: str,
    label: str | None = None,
    columns: Sequence[str] | None = None,
    aside: Aside = None,
) -> list[str]:
    """The feature columns, in the order asked for; without `columns`, all that are neither id nor label, nor `aside`:
    columns that say something else of a row, by the setting that names them.

    A label owner may hold no features at all. A party with neither label nor features has nothing to bring.
    """
    _refuse_twice(present, owner=owner, where="its table", cure="Rename one of them in the table.")
    check_present([id_column], present, owner=owner, part="id")
    if label is not None:
        if label == id_column:
            raise ConfigError(f"'{owner}' names {id_column!r} as both id and label. Name a label column of its own.")
        check_present([label], present, owner=owner, part="label")
    for part, column in (aside or {}).items():
        check_present([column], present, owner=owner, part=f"{part} column")
    if columns is None:
        chosen = [name for name in present if name not in (id_column, label, *(aside or {}).values())]
    else:
        chosen = list(columns)
        _refuse_twice(chosen, owner=owner, where="columns", cure="List each feature once.")
        for name, part in ((id_column, "id"), (label, "label")):
            if name in chosen:
                raise ConfigError(
                    f"'{owner}' lists its {part} column {name!r} as a feature. Take it out of columns, "
                    f"for a model must not be fed the {part}."
                )
        check_present(chosen, present, owner=owner, part="feature")
    if not chosen and label is None:
        raise DataError(
            f"'{owner}' holds no feature and no label: its table has only the id column {id_column!r}. "
            f"Add a feature column, or name the label column."
        )
    return chosen


def _refuse_twice(names: Sequence[str], *, owner: str, where: str, cure: str) -> None:
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise DataError(f"'{owner}' has {listing(twice)} more than once in {where}. {cure}")


RowNumbers = Tensor | NDArray[np.int64] | Sequence[int]


def row_numbers(rows: RowNumbers | None, total: int, *, owner: str) -> NDArray[np.int64]:
    """The positions as an int64 array; None means all rows. Refuses none, non-integers, and what lies outside."""
    if rows is None:
        return np.arange(total, dtype=np.int64)
    given: NDArray[Any] = rows.cpu().numpy() if isinstance(rows, Tensor) else np.asarray(rows)
    if given.ndim != 1 or len(given) == 0 or given.dtype.kind not in "iu":
        raise DataError(
            f"'{owner}' was given training rows of shape {given.shape} and type {given.dtype}, and they must be a "
            f"non-empty list of row numbers. Pass Split.train."
        )
    if given.min() < 0 or given.max() >= total:
        raise DataError(
            f"'{owner}' was given row numbers from {given.min()} to {given.max()}, and its table has rows 0 to "
            f"{total - 1}. Split the rows of this table, not of another."
        )
    return given.astype(np.int64)
