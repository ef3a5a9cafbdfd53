"""Reading a table that is too large to be read whole: some rows at a time, into columns that are mapped.

What a CSV column holds is known only at its end: a column of numbers may turn out to be text in its last row, and then
it was text all along ("01" is a word). So each piece says what it saw, and columns whose pieces disagree are read a
second time, with their kind told. The columns are those that reading the whole file at once would have given.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from colonnade.core import mapped
from colonnade.datasets import table_files
from colonnade.datasets.cells import ids_as_text, kind_of
from colonnade.datasets.stored import Columns, Filling

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["PIECE", "is_large", "read_pieces"]

PIECE = 65_536  # rows read at a time
EXACT = 2.0**53  # whole numbers up to here are the same as floats


def is_large(path: Path, columns: Sequence[str] | None) -> bool:
    """Whether a table is to be read in pieces: its cells would be mapped, if they were one array."""
    name = path.name.lower()
    if not name.endswith(table_files.EXTENSIONS) or not path.is_file():
        return False
    if name.endswith(".parquet"):
        rows, present = table_files.parquet_shape(path)
        return rows * (present if columns is None else len(columns) + 2) * 8 > mapped.threshold()
    return path.stat().st_size * (4 if name.endswith(".gz") else 1) > mapped.threshold()


def read_pieces(
    path: Path,
    *,
    owner: str,
    id_column: str,
    label: str | None,
    columns: Sequence[str] | None,
    split: str | None = None,
) -> tuple[NDArray[np.str_], Columns, dict[str | None, pd.Series[Any]]]:
    """The ids, the columns, and by name the label and what divides rows, of a file."""
    import pandas as pd

    wanted, most = table_files.names_and_rows(path, owner, id_column, label, columns, split)
    aside = [name for name in (label, split) if name is not None]
    chosen = set(columns or ())
    features = [name for name in wanted if name != id_column and (name not in aside or name in chosen)]
    filling, at = Filling(features, most), 0
    ids: list[NDArray[np.str_]] = []
    beside: dict[str, list[pd.Series[Any]]] = {name: [] for name in aside}
    seen = {name: set[str]() for name in wanted if name != id_column}
    for piece in table_files.pieces(path, owner, wanted, PIECE):
        for name, kinds in seen.items():
            kinds |= _seen(piece[name])
        numbers = {name: kind_of(piece[name], owner=owner) == "number" for name in features}
        # A piece of gaps says nothing of its column; as numbers or as words, they are gaps.
        filling.add(
            piece, at, {name: is_number or bool(piece[name].isna().all()) for name, is_number in numbers.items()}
        )
        ids.append(ids_as_text(piece[id_column], owner))
        for name, read in beside.items():
            read.append(piece[name])
        at += len(piece)
    told = {} if path.name.lower().endswith(".parquet") else {n: k for n, kinds in seen.items() if (k := _told(kinds))}
    if told:
        _read_again(table_files.pieces(path, owner, wanted, PIECE, told), filling, told, beside)
    everybody = np.concatenate(ids) if ids else np.zeros(0, dtype=np.str_)
    joined: dict[str | None, pd.Series[Any]] = {
        name: pd.concat(read, ignore_index=True) for name, read in beside.items() if read
    }
    return everybody, filling.done(), joined


def _read_again(
    pieces: Iterator[pd.DataFrame], filling: Filling, told: dict[str, str], beside: dict[str, list[Any]]
) -> None:
    """The columns whose kind is told now, in the place of what was taken for them before."""
    filling.forget(told)
    for number, piece in enumerate(pieces):
        filling.add(piece, number * PIECE, {name: told[name] == "float64" for name in told if name in filling.names})
        for name in beside.keys() & told.keys():
            beside[name][number] = piece[name]


def _seen(cells: pd.Series[Any]) -> set[str]:
    """What a piece of a column looks like; nothing, if all of it are gaps."""
    import pandas as pd

    kind = cells.dtype
    if cells.isna().all():
        return set()
    if pd.api.types.is_bool_dtype(kind) or pd.api.types.infer_dtype(cells, skipna=True) == "boolean":
        return {"bool"}
    if pd.api.types.is_integer_dtype(kind):
        return {"int" if max(abs(int(cells.min())), abs(int(cells.max()))) < EXACT else "long"}
    return {"float" if pd.api.types.is_float_dtype(kind) else "text"}


def _told(kinds: set[str]) -> str | None:
    """How a column with such pieces is to be read again; None: it need not be."""
    if len(kinds) > 1 and kinds & {"bool", "text"}:
        return "str"
    return "float64" if {"long", "float"} <= kinds else None  # as text, long numbers may be rounded otherwise
