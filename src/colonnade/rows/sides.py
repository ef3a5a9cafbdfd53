"""Sides of rows that do not follow from their ids: by a column that names them, by
times, or by a list of test ids.

Where sides follow from labels or a column, the label owner tells them to the others
(`sides_to_tell`, `sides_heard`).
"""

from __future__ import annotations

import base64
import binascii
import warnings
import zlib
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from colonnade.datasets.readings import read_times
from colonnade.errors import ConfigError, DataError
from colonnade.rows.holdings import Ids, LabelledRows
from colonnade.settings.sections import DataSettings

SIDES = ("train", "validation", "test")
WORDS = {
    "train": ("train", "training", "trn"),
    "validation": ("validation", "valid", "val", "dev", "eval"),
    "test": ("test", "tst", "holdout", "hold-out", "oot"),
}
MOST_TOLD = 900_000
"""Characters in which sides are told: a frame's header has a million at most."""


def named_sides(cells: Any) -> NDArray[np.int64] | None:
    """Give the number of each cell's side; None unless every cell names one."""
    known = {word: side for side, name in enumerate(SIDES) for word in WORDS[name]}
    numbers = [known.get(str(cell).strip().lower(), -1) for cell in cells]
    return None if -1 in numbers else np.array(numbers, dtype=np.int64)


def listed_sides(listed: Ids, ids: Ids, owner: str) -> NDArray[np.int64]:
    """Give the number of each row's side, where the rows of the listed ids are the test
    rows."""
    there = np.isin(ids, listed)
    if not there.any():
        raise DataError(
            f"None of the {len(listed)} ids that '{owner}' names as test_ids is among"
            f" its {len(ids)} rows. Compare how they are written."
        )
    if len(lost := np.setdiff1d(listed, ids)):
        warnings.warn(
            f"{len(lost)} of the {len(listed)} ids that '{owner}' names as test_ids,"
            f" such as {str(lost[0])!r}, are not among the {len(ids)} rows of this"
            " federation. A row that the table writes otherwise is trained on. Compare"
            " how they are written.",
            stacklevel=2,
        )
    return np.where(there, 2, 0)


def by_time(
    cells: Any, data: DataSettings, owner: str
) -> tuple[NDArray[np.int64], int, int]:
    """Order rows by a column of times or numbers, the latest first, and count the test
    rows, which are the latest, and these together with the validation rows, which come
    before them."""
    times = read_times(cells)
    if times is None:
        raise DataError(
            f"'{owner}' has a column {data.split_by!r}, named as [data] split_by, whose"
            " cells are neither sides nor times. A cell must be one of"
            f" {', '.join(word for words in WORDS.values() for word in words)}; or all"
            " must be dates or numbers, of which the latest become test rows."
        )
    if np.isnan(times).any():
        raise DataError(
            f"'{owner}' has {int(np.isnan(times).sum())} rows without a time in"
            f" {data.split_by!r}, named as [data] split_by. Remove these rows, or fill"
            " the cells."
        )
    order = np.argsort(-times, kind="stable")
    test = _latest(times, data.test_from, data.test, "test_from", owner)
    return (
        order,
        test,
        _latest(
            times, data.validation_from, data.validation, "validation_from", owner, test
        ),
    )


def _latest(
    times: NDArray[np.float64],
    start: Any,
    share: float,
    key: str,
    owner: str,
    above: int = 0,
) -> int:
    """Count the latest rows that a side takes, together with those that come after it:
    all from `start` on, or a share. Rows of one time are on one side."""
    if start is None:
        if not share:
            return above
        count = above + (int(share) if share >= 1 else round(share * len(times)))
        least = np.sort(times)[::-1][min(count, len(times)) - 1] if count else np.inf
        return int((times >= least).sum())
    read = read_times([start])
    if read is None or np.isnan(read[0]):
        raise ConfigError(
            f'[data] {key} must be a date or a number, as in {key} = "2024-01-31";'
            f" found {start!r}."
        )
    count = int((times >= read[0]).sum())
    if count <= above:
        raise ConfigError(
            f"[data] {key} = {start!r}: no row of '{owner}' is left from then on."
            " Choose another."
        )
    return count


def sides_to_tell(ids: Ids, held: LabelledRows) -> str:
    """Write down the sides of all these rows, for who cannot work them out: two bits a
    row, 3 where it is left out."""
    sides = np.full(len(ids), 3, dtype=np.uint8)
    at = np.searchsorted(ids, held.ids)
    for side, name in enumerate(SIDES):
        if name in held.splits:
            sides[at[held.splits[name].numpy()]] = side
    padded = np.concatenate(
        [sides, np.full(-len(sides) % 4, 3, dtype=np.uint8)]
    ).reshape(-1, 4)
    packed = (padded << np.array([0, 2, 4, 6], dtype=np.uint8)).sum(1).astype(np.uint8)
    text = f"{len(sides)}:" + base64.b64encode(
        zlib.compress(packed.tobytes(), 9)
    ).decode("ascii")
    if len(text) > MOST_TOLD:
        raise ConfigError(
            f"The sides of {len(sides):,} rows are too many to tell. Set [data]"
            " stratify = false in the agreed file: then they follow from ids alone."
        )
    return text


def sides_heard(text: str, ids: Ids) -> tuple[Ids, dict[str, Tensor]] | None:
    """Read what `sides_to_tell` wrote: the rows that are not left out, and their sides;
    None if it is of other rows."""
    count, _, packed = text.partition(":")
    if count != str(len(ids)):
        return None
    size = -(-len(ids) // 4)
    try:
        reader = zlib.decompressobj()
        given = reader.decompress(base64.b64decode(packed, validate=True), size + 1)
    except (zlib.error, binascii.Error, ValueError):
        return None
    if len(given) != size or not reader.eof:
        return None
    bits = (
        np.frombuffer(given, dtype=np.uint8)[:, None]
        >> np.array([0, 2, 4, 6], dtype=np.uint8)
    ) & 3
    sides = bits.reshape(-1)[: len(ids)]
    kept = sides < 3
    splits = {
        name: torch.from_numpy(np.flatnonzero(sides[kept] == side))
        for side, name in enumerate(SIDES)
    }
    return ids[kept], {name: rows for name, rows in splits.items() if len(rows)}
