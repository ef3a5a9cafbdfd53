"""The federation that a service asks: loaded once, with every row that can be
predicted, and again when a file changes.

The files are the parties' tables and the run's checkpoint. A new federation is loaded
beside the one in use, and takes its place when it is complete; a table that cannot be
read, such as one that is half-written, changes nothing.
"""

from __future__ import annotations

import logging
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from colonnade.core.files import stamp
from colonnade.federation import Federation, Predictions, Settings, load
from colonnade.runs.layout import MARK
from colonnade.runs.run_directory import RunDirectory

log = logging.getLogger("colonnade.serving")
EVERY = 1.0
"""Seconds between two looks at the files."""


@contextmanager
def repeating(
    do: Callable[[], None], every: float, name: str, patience: float | None = None
) -> Iterator[None]:
    """Call a function every so many seconds, in a thread of its own, until the block
    ends. The end waits for a call under way, at most so long as there is `patience`."""
    ended = threading.Event()

    def repeat() -> None:
        while not ended.wait(every):
            do()

    thread = threading.Thread(target=repeat, daemon=True, name=name)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join(patience)


@dataclass(frozen=True)
class Row:
    """The answer for one row: the prediction, a score per class (none for numbers), and
    who was missing."""

    id: str
    prediction: Any
    scores: Mapping[str, float | None]
    answered: tuple[str, ...]
    missing: tuple[str, ...] = ()
    is_unknown: bool = False  # it cannot be predicted

    @classmethod
    def unknown(cls, id_: str) -> Row:
        """A row that cannot be predicted. It does not say which party lacks it."""
        return cls(id_, None, {}, (), is_unknown=True)


class PredictionSource(ABC):
    """What a batcher asks: the parties of this process (`Source`), or those of other
    sites (`SiteSource`)."""

    settings: Settings
    label_owner: str  # who asks
    parties: list[str]  # who is asked
    federation: object  # replaced when earlier answers may not be true any more
    # the kind of error that the last change of a file ended in
    failed: str | None = None
    # whether parties allow so many ids a day to be compared with theirs
    comparing_is_counted = False

    def __init__(self) -> None:
        self._watching = ExitStack()

    @abstractmethod
    def lacking(self, ids: Sequence[str]) -> set[str]:
        """The ids that cannot be predicted."""

    @abstractmethod
    def ask(self, ids: Sequence[str]) -> list[Row]:
        """Ask the parties for these rows."""

    @abstractmethod
    def heartbeat(self) -> dict[str, bool]:
        """Which parties are there."""

    @abstractmethod
    def refresh(self) -> bool:
        """Check whether a file has changed; True where its new content is now in use."""

    def budgets(self) -> dict[str, float]:
        """The epsilon left to the row that paid most, of each party whose budget is
        known here."""
        return {}

    def watch(self, changed: Callable[[], None], every: float = EVERY) -> None:
        """Check the files from time to time, and call `changed` when their new content
        is in use."""

        def look() -> None:
            if self.refresh():
                changed()

        self._watching.enter_context(repeating(look, every, "tables"))

    def close(self) -> None:
        self._watching.close()


class Source(PredictionSource):
    """A run in this process. With several label owners, one asks (`owner`, else the
    first), with one `model`."""

    federation: Federation

    def __init__(
        self,
        folder: Path,
        *,
        owner: str | None = None,
        model: str | None = None,
        tables: Mapping[str, str] | None = None,
        allow_models: Sequence[str] = (),
    ) -> None:
        super().__init__()
        self.allow_models = tuple(allow_models)
        self.folder = folder
        self.owner = owner
        self.model = model
        self.tables = dict(tables or {})
        self.settings = RunDirectory(folder).settings()
        self._seen = self._files()
        self._use(self._load())

    def lacking(self, ids: Sequence[str]) -> set[str]:
        wanted = np.array(ids, dtype=np.str_)
        return (
            set(wanted[~self.index.find(wanted)[1]].tolist()) if len(wanted) else set()
        )

    def ask(self, ids: Sequence[str]) -> list[Row]:
        federation = self.federation
        return rows_of(
            federation.predict(ids, owner=self.owner, model=self.model, strict=True),
            list(federation.owners),
        )

    def heartbeat(self) -> dict[str, bool]:
        """Whether each party answers, and its part of the run directory exists."""
        federation = self.federation
        run = RunDirectory(self.folder)
        peers = federation.label_owners[self.label_owner].peers
        beats = (
            peers.heartbeat() if (self.folder / MARK).exists() else dict.fromkeys(peers)
        )
        return {
            name: beat is not None and run.party(name).is_dir()
            for name, beat in beats.items()
        }

    def budgets(self) -> dict[str, float]:
        accounts = self.federation.accounts
        return {
            n: max(a.budget.epsilon - a.worst, 0.0)
            for n, a in accounts.items()
            if a.budget is not None
        }

    def refresh(self) -> bool:
        files = self._files()
        if files == self._seen:
            return False
        self._seen = files
        try:
            self._use(self._load())
        # whatever a half-written file does: the next change is looked at, too
        except Exception as error:
            self.failed = type(error).__name__
            log.warning(
                "a file changed and cannot be used (%s); what was loaded before is"
                " still in use",
                self.failed,
            )
            return False
        self.failed = None
        log.info("a file changed: %d rows can be predicted", len(self.index))
        return True

    def _use(self, federation: Federation) -> None:
        owner = federation.owner_named(self.owner)
        # takes a while; then all changes at once
        index = federation.holdings.label_owners[owner].index
        self.federation = federation
        self.parties = list(federation.owners)
        self.label_owner = owner
        self.index = index

    def _load(self) -> Federation:
        return load(
            self.folder,
            ids="all",
            owner=self.owner,
            tables=self.tables,
            allow_models=self.allow_models,
        )

    def _files(self) -> list[tuple[int, int]]:
        """When each file was written, and its size."""
        paths: list[str | None] = [str(self.folder / MARK)]
        for name, party in self.settings.parties.items():
            paths += [
                self.tables.get(name, party.table),
                *(grouped["table"] for grouped in party.tables.values()),
            ]
        return [stamp(Path(path)) for path in paths if path]


def rows_of(predictions: Predictions, parties: list[str]) -> list[Row]:
    """The predictions as rows."""
    scores = np.where(
        np.isfinite(predictions.scores), predictions.scores, np.nan
    ).tolist()
    degraded = predictions.degraded or [""] * len(predictions.ids)
    # the positive one of two classes comes first
    places = predictions.in_order
    names = {place: str(predictions.classes[place]) for place in places}
    rows = []
    ids = predictions.ids.tolist()
    labels = predictions.labels.tolist()
    for id_, label, values, away in zip(ids, labels, scores, degraded, strict=True):
        missing = tuple(away.split())
        by_class = {
            name: None if values[place] != values[place] else values[place]
            for place, name in names.items()
        }
        answered = tuple(party for party in parties if party not in missing)
        rows.append(Row(id_, label, by_class, answered, missing))
    return rows
