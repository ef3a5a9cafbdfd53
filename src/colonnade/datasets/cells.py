"""How a column's cells are read: as numbers, or as the text of categories."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from colonnade.datasets.readings import since_1970
from colonnade.errors import DataError

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["MISSING", "ids_as_text", "kind_of", "numbers", "text"]

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
    missing = sum(
        empty or (isinstance(value, str) and not value.strip())
        for value, empty in zip(values, column.isna().tolist(), strict=True)
    )
    if missing:
        raise DataError(
            f"'{owner}' has {missing} rows without an id in column {str(column.name)!r}, and every row needs one. "
            f"Remove these rows, or give them ids."
        )
    wrong = {kind.__name__ for kind in set(map(type, values)) if kind is bool or not issubclass(kind, str | int)}
    if wrong:
        raise DataError(
            f"'{owner}' has ids of type {', '.join(sorted(wrong))} in column {str(column.name)!r}, and ids must be "
            f"text or whole numbers, to be compared exactly. {_cure(wrong, column)}"
        )
    return np.array([str(value) for value in values], dtype=np.str_)


def _cure(wrong: set[str], column: pd.Series[Any]) -> str:
    """What to do about ids of these types. A float's text is "7.0", which is nobody's id."""
    name = repr(str(column.name))
    if wrong <= {"float", "float64", "float32"} and bool((column.dropna().astype(float) % 1 == 0).all()):
        return f'Make them whole numbers: frame[{name}] = frame[{name}].astype("int64").'
    if wrong <= {"float", "float64", "float32"}:
        return "These numbers have a fraction, so they are no ids: name another column as the id."
    return f"Write them as text, all parties in one form: frame[{name}] = frame[{name}].astype(str)."
