"""Many rows to predict, some of them at a time, by a saved federation."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from colonnade.core.outbox import Outbox
from colonnade.datasets.table import packed, unpacked
from colonnade.federation.federation import Federation, load
from colonnade.rows.asked import AskedFor, rows_asked_for
from colonnade.rows.holdings import with_tables
from colonnade.rows.missing import Missing, with_missing
from colonnade.runs.run_directory import RunDirectory

if TYPE_CHECKING:
    import pandas as pd

ROWS_AT_ONCE = 65_536
"""Rows that are prepared and predicted at a time."""
Packed = NDArray[np.bytes_]


class ManyRows:
    """Rows that a saved federation predicts, some of them at a time.

    Tables are read once and all ids are looked for at once, but only rows of one piece
    are prepared together. Each piece has a federation of its own, which goes on where the
    one before it stood: what they predict, write down and pay is what one federation of
    all rows would.

    Args:
        folder: The run directory.
        keys: What the rows are called, in the order asked for. A row that occurs again
            gets its first answer, and is asked for and paid once.
        owner: The label owner that asks; by default the first.
        model: "own" or "aggregated", where label owners have a model of each kind.
        tables: By party, a file with its table, where it is not that of training.
        allow_models: Models outside of Colonnade that the run may name.
        strict: Whether an id that cannot be predicted is an error.
    """

    def __init__(
        self,
        folder: str | Path,
        keys: Packed,
        *,
        owner: str | None = None,
        model: str | None = None,
        tables: Mapping[str, str] | None = None,
        allow_models: Sequence[str] = (),
        strict: bool = False,
    ) -> None:
        self.run = RunDirectory(Path(folder))
        self.keys = keys
        self.owner = owner
        self.model = model
        self.strict = strict
        self.settings = self.run.settings(allow_models)
        self._whole: Federation | None = None  # whose rows are those of a data set
        self._rows: AskedFor | None = None  # the rows of tables
        self._outboxes: dict[str, Outbox] = {}  # of the last piece's organisations
        ordered = np.sort(keys)
        is_again = ordered[1:] == ordered[:-1]
        self.repeated = set(unpacked(ordered[1:][is_again]).tolist())
        different = unpacked(np.unique(ordered) if self.repeated else ordered)
        self.missing: Missing = self._look_for(different, tables or {}, allow_models)

    @property
    def are_many(self) -> bool:
        """Whether there are too many for one piece."""
        return len(self.keys) > ROWS_AT_ONCE

    def frames(self) -> Iterator[tuple[slice, pd.DataFrame]]:
        """The predictions, without their ids, piece by piece in the order asked for, and
        the places of each piece. Unless it is strict, a column says who lacks a row."""
        import pandas as pd

        answered: pd.DataFrame | None = None  # rows that are asked for again, by key
        for piece in self._pieces():
            wanted = unpacked(self.keys[piece]).tolist()
            known = [key for key in wanted if key not in self.missing]
            new = [
                key
                for key in dict.fromkeys(known)
                if answered is None or key not in answered.index
            ]
            parts = [] if answered is None else [answered]
            if new:
                parts.append(self._predicted(new))
            answers = pd.concat(parts) if len(parts) > 1 else parts[0]
            if self.repeated:
                answered = answers[answers.index.isin(self.repeated)]
            frame = answers.loc[known].reset_index(drop=True)
            if not self.strict:
                frame = with_missing(frame, wanted, self.missing)
            yield piece, frame

    def _look_for(
        self, keys: NDArray[np.str_], tables: Mapping[str, str], allow: Sequence[str]
    ) -> Missing:
        """Find all rows in their tables; by key of those that cannot be predicted, who
        lacks them."""
        if self.settings.data.dataset is not None:
            self._whole = load(self.run.path, owner=self.owner, allow_models=allow)
            return self._whole.question(
                keys.tolist(), self.owner, strict=self.strict
            ).missing
        self.run.check_whole()
        self.settings = with_tables(self.settings, tables)
        fitted = self.run.all_fitted(self.settings)
        self._rows = rows_asked_for(
            self.settings, fitted, keys, self.owner, strict=self.strict
        )
        return self._rows.missing

    def _pieces(self) -> Iterator[slice]:
        """The places of each piece. A row that can be predicted is in each: it says what
        a piece's columns are."""
        rows = len(self.keys)
        is_known = np.ones(rows, dtype=bool)
        if self.missing:
            lacking = packed(np.array([*self.missing], dtype=np.str_))
            is_known = ~np.isin(self.keys, lacking)
        last_known = int(np.flatnonzero(is_known)[-1])
        start = 0
        for stop in [*range(ROWS_AT_ONCE, rows, ROWS_AT_ONCE), rows]:
            is_last = stop == rows
            if is_last or (is_known[start:stop].any() and last_known >= stop):
                yield slice(start, stop)
                start = stop

    def _predicted(self, keys: Sequence[str]) -> pd.DataFrame:
        """Predictions for rows that are there, by their keys."""
        federation = self._whole or self._federation_of(keys)
        predictions = federation.predict(
            keys, owner=self.owner, model=self.model, strict=True
        )
        return predictions.to_frame("id").set_index("id")

    def _federation_of(self, keys: Sequence[str]) -> Federation:
        """A federation of these rows, which goes on where the one before it stood."""
        assert self._rows is not None
        gc.collect()  # the one before, whose parties know each other, with its rows
        federation = Federation(self.settings, self._rows.holdings(keys))
        self.run.load(federation, self.run.mark())
        for name, outbox in self._outboxes.items():
            federation.organisations[name].outbox.go_on_from(outbox)
        federation.owner_named(self.owner)
        self.run.follow(federation)
        if not self._outboxes:
            self.run.warn_unfinished(trains=federation.algorithm.trains)
        self._outboxes = {
            name: organisation.outbox
            for name, organisation in federation.organisations.items()
        }
        return federation
