"""Which columns of a table play which part, and how their cells are read: as numbers, or as the text of categories.

A column is the id, the label, a feature, or unused; never two of these. That is checked before any
cell is read. All messages name the owner, the column and the cure, and show column names only, never a cell.
"""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from colonnade.datasets.readings import since_1970
from colonnade.errors import ConfigError, DataError

if TYPE_CHECKING:
    import pandas as pd


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


MISSING = "missing"


def kind_of(cells: pd.Series[Any], *, owner: str) -> Literal["number", "category"]:
    """Numbers are numeric columns but bool, and times; text, bool, pandas categories and mixed types are categories."""
    import pandas as pd

    if pd.api.types.is_bool_dtype(cells.dtype) or isinstance(cells.dtype, pd.CategoricalDtype):
        return "category"
    if pd.api.types.is_datetime64_any_dtype(cells.dtype):
        return "number"
    if pd.api.types.is_numeric_dtype(cells.dtype) and not pd.api.types.is_complex_dtype(cells.dtype):
        return "number"
    if pd.api.types.is_object_dtype(cells.dtype) or pd.api.types.is_string_dtype(cells.dtype):
        return "category"
    raise DataError(
        f"'{owner}' has column {str(cells.name)!r} of type {cells.dtype}, and a feature must hold numbers or "
        f"categories. Turn it into numbers, or leave it out with columns=[...]."
    )


def numbers(cells: pd.Series[Any]) -> NDArray[np.float64]:
    """The cells as float64, a gap as NaN; times as days since the first day of 1970."""
    import pandas as pd

    if pd.api.types.is_datetime64_any_dtype(cells.dtype):
        return since_1970(cells)
    if cells.isna().all():
        return np.full(len(cells), np.nan)
    return np.asarray(cells.to_numpy(dtype=np.float64, na_value=np.nan))


def text(cells: pd.Series[Any]) -> NDArray[np.object_]:
    """The cells as strings, a gap as "missing"; so a column of mixed types becomes plain categories."""
    import pandas as pd

    if isinstance(cells.dtype, pd.CategoricalDtype):  # each category once; a gap's code is -1, the last
        named = np.array([*map(str, cells.cat.categories.astype(object)), MISSING], dtype=object)
        return named[cells.cat.codes.to_numpy()]
    words = np.array([str(value) for value in cells.astype(object)] + [""], dtype=object)[:-1]
    words[cells.isna().to_numpy(dtype=bool)] = MISSING
    return words


def ids_as_text(column: pd.Series[Any], owner: str) -> NDArray[np.str_]:
    """Ids as they are compared: whole numbers by their digits, strings exactly."""
    values = column.astype(object).tolist()
    kinds = set(map(type, values))
    if kinds == {str}:  # as of every file: looked at all at once
        known = np.array(values, dtype=np.str_)
        if (np.strings.str_len(np.strings.strip(known)) > 0).all():
            return known
    missing = sum(
        empty or (isinstance(value, str) and not value.strip())
        for value, empty in zip(values, column.isna().tolist(), strict=True)
    )
    if missing:
        raise DataError(
            f"'{owner}' has {missing} rows without an id in column {str(column.name)!r}, and every row needs one. "
            f"Remove these rows, or give them ids."
        )
    wrong = {kind.__name__ for kind in kinds if kind is bool or not issubclass(kind, str | int)}
    if wrong:
        raise DataError(
            f"'{owner}' has ids of type {', '.join(sorted(wrong))} in column {str(column.name)!r}, and ids must be "
            f"text or whole numbers, to be compared exactly. {_cure(wrong, column)}"
        )
    return np.array([str(value) for value in values], dtype=np.str_)


def packed(ids: NDArray[np.str_]) -> NDArray[np.bytes_]:
    """Ids as UTF-8, a byte for each letter where text takes four; in this form they have the same order."""
    try:
        return ids.astype(np.bytes_)  # of ASCII, which is fast
    except UnicodeEncodeError:
        return np.char.encode(ids, "utf-8", "surrogatepass")


def unpacked(ids: NDArray[np.bytes_]) -> NDArray[np.str_]:
    """Packed ids as text again."""
    try:
        return ids.astype(np.str_)
    except UnicodeDecodeError:
        return np.char.decode(ids, "utf-8", "surrogatepass")


def _cure(wrong: set[str], column: pd.Series[Any]) -> str:
    """What to do about ids of these types. A float's text is "7.0", which is nobody's id."""
    name = repr(str(column.name))
    if wrong <= {"float", "float64", "float32"} and bool((column.dropna().astype(float) % 1 == 0).all()):
        return f'Make them whole numbers: frame[{name}] = frame[{name}].astype("int64").'
    if wrong <= {"float", "float64", "float32"}:
        return "These numbers have a fraction, so they are no ids: name another column as the id."
    return f"Write them as text, all parties in one form: frame[{name}] = frame[{name}].astype(str)."
