"""Rows that were asked for and cannot be predicted: who lacks them, and how that is told.

What can be predicted is; the others are named, in the order asked, so that the result can
be joined to the table of who asked. A row that is predicted without some party is none of
these: that is `degraded`.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import pandas as pd

COLUMN = "missing"
DEGRADED = "degraded"
OR = " or "
NULLABLE = {"i": "Int64", "u": "UInt64", "b": "boolean"}
"""The pandas types, by numpy's kinds, in which a column of whole numbers or truth values
stays one where some cells are empty."""
Missing = Mapping[str, str]
"""By id, the parties that lack the row, separated by spaces."""


def who_lacks(
    ids: NDArray[np.str_],
    lacks: Mapping[str, NDArray[np.bool_]],
    predictable: NDArray[np.bool_],
) -> dict[str, str]:
    """By id of each row that is not predictable, the parties that lack it.

    Args:
        ids: What the rows are called.
        lacks: By party, which of the rows it lacks.
        predictable: Which of the rows can be predicted.
    """
    missing = {}
    for place in np.flatnonzero(~predictable).tolist():
        parties = [party for party, mask in lacks.items() if mask[place]]
        missing[str(ids[place])] = " ".join(parties)
    return missing


def some_of(parties: Collection[str]) -> str:
    """What is said where one of these parties lacks a row, and it is not known which."""
    return OR.join(parties)


def counted(missing: Missing, asked: int) -> str:
    """How many of the ids asked for cannot be predicted, and who lacks them, without
    naming an id: it may stand in a log."""
    times = Counter(missing.values())
    by_parties = []
    for parties, count in times.items():
        names = parties if OR in parties else parties.replace(" ", " and ")
        by_parties.append(f"{names} ({count:,})")
    return (
        f"{len(missing):,} of {asked:,} ids cannot be predicted, since a table that is"
        f" needed lacks them: {', '.join(by_parties)}."
    )


def missing_in(frame: pd.DataFrame) -> Missing:
    """The ids in a frame of predictions that have none, and who lacks each."""
    if frame.columns[-1] != COLUMN:
        return {}
    lacking = frame[frame.iloc[:, -1] != ""]
    return dict(zip(lacking.iloc[:, 0], lacking.iloc[:, -1], strict=True))


def rows_predicted(frame: pd.DataFrame) -> int:
    """How many rows of a frame of predictions have one."""
    if frame.columns[-1] != COLUMN:
        return len(frame)
    return int((frame.iloc[:, -1] == "").sum())


def warn_missing(missing: Missing, asked: int, *, stacklevel: int) -> None:
    """Warn of ids that cannot be predicted; with a `stacklevel` of 2 at the line of who
    calls this."""
    warnings.warn(
        f"{counted(missing, asked)} The others are predicted, and the column {COLUMN!r}"
        " says who lacks which. strict=True (--strict) makes this an error.",
        stacklevel=stacklevel,
    )


def with_missing(
    predicted: pd.DataFrame, asked: Sequence[str], missing: Missing
) -> pd.DataFrame:
    """A frame with a row for every id asked, in that order, and a column `missing`.

    Args:
        predicted: Predictions without their ids, for the ids that are not missing, in the
            order asked.
        asked: All ids that were asked for.
        missing: Those without a prediction. Their cells are empty, and `missing` says who
            lacks the row; it is "" for all others.
    """
    import pandas as pd

    frame = predicted.assign(**{COLUMN: ""})
    reasons = [missing.get(name) for name in asked]
    is_missing = np.array([reason is not None for reason in reasons], dtype=bool)
    if not is_missing.any():
        return frame
    nullable = {
        column: NULLABLE[dtype.kind]
        for column, dtype in frame.dtypes.items()
        if dtype.kind in NULLABLE
    }
    others = pd.DataFrame(
        {COLUMN: [reason for reason in reasons if reason is not None]}
    )
    if DEGRADED in frame:
        others[DEGRADED] = ""
    whole = pd.concat([frame.astype(nullable), others], ignore_index=True)
    places = np.concatenate([np.flatnonzero(~is_missing), np.flatnonzero(is_missing)])
    return whole.iloc[places.argsort()].reset_index(drop=True)
