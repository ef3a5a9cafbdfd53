"""The federation that a service asks: loaded once, with every row that can be predicted, and again when a file changes.

The files are the parties' tables and the run's checkpoint. What is new is loaded beside what is in use and takes its
place when it is whole; a table that cannot be read, such as one that is half-written, changes nothing.
"""

from __future__ import annotations

import logging
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from colonnade.federation import Federation, Predictions, Settings, load
from colonnade.runs.layout import MARK
from colonnade.runs.run_directory import RunDirectory

log = logging.getLogger("colonnade.serving")
EVERY = 1.0
"""Seconds between two looks at the files."""


@dataclass(frozen=True)
class Row:
    """One answer: the prediction, a score per class (none for numbers), and who was missing."""

    id: str
    prediction: Any
    scores: Mapping[str, float | None]
    answered: tuple[str, ...]
    missing: tuple[str, ...] = ()


class Asked(ABC):
    """What a batcher asks: the parties of this process (`Source`), or those of other sites (`SiteSource`)."""

    settings: Settings
    label_owner: str  # who asks
    parties: list[str]  # that are asked
    federation: object  # another one when what was answered before may not be true any more
    failed: str | None = None  # the kind of error that the last change of a file ended in
    comparing_is_counted = False  # whether parties allow so many ids a day to be compared with theirs
    _watch: threading.Thread | None = None

    def __init__(self) -> None:
        self._stop = threading.Event()

    @abstractmethod
    def lacking(self, ids: Sequence[str]) -> set[str]:
        """Those that cannot be predicted."""

    @abstractmethod
    def ask(self, ids: Sequence[str]) -> list[Row]:
        """Ask the parties for these rows."""

    @abstractmethod
    def heartbeat(self) -> dict[str, bool]:
        """Which parties are there."""

    @abstractmethod
    def refresh(self) -> bool:
        """Look whether a file has changed; True where what it says is in use from here on."""

    def budgets(self) -> dict[str, float]:
        """What is left to the row that paid most, of each party whose budget is known here."""
        return {}

    def watch(self, changed: Callable[[], None], every: float = EVERY) -> None:
        """Look at the files from time to time; `changed` is called when what they say is in use."""

        def look() -> None:
            while not self._stop.wait(every):
                if self.refresh():
                    changed()

        self._watch = threading.Thread(target=look, daemon=True, name="tables")
        self._watch.start()

    def close(self) -> None:
        self._stop.set()
        if self._watch is not None:
            self._watch.join()


class Source(Asked):
    """Of one run; with several label owners, as one of them (`owner`, else the first) and with one `model`."""

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
        self.folder, self.owner, self.model, self.tables = folder, owner, model, dict(tables or {})
        self.settings = RunDirectory(folder).settings()
        self._seen = self._files()
        self._use(self._load())

    def lacking(self, ids: Sequence[str]) -> set[str]:
        wanted = np.array(ids, dtype=np.str_)
        return set(wanted[~self.index.find(wanted)[1]].tolist()) if len(wanted) else set()

    def ask(self, ids: Sequence[str]) -> list[Row]:
        one = self.federation
        return rows_of(one.predict(ids, owner=self.owner, model=self.model), list(one.owners))

    def heartbeat(self) -> dict[str, bool]:
        """Those whose part of the run directory is there."""
        one, run = self.federation, RunDirectory(self.folder)
        peers = one.label_owners[self.label_owner].peers
        kept = (self.folder / MARK).exists()
        return {
            name: beat is not None and kept and run.party(name).is_dir() for name, beat in peers.heartbeat().items()
        }

    def budgets(self) -> dict[str, float]:
        accounts = self.federation.accounts
        return {n: max(a.budget.epsilon - a.worst, 0.0) for n, a in accounts.items() if a.budget is not None}

    def refresh(self) -> bool:
        files = self._files()
        if files == self._seen:
            return False
        self._seen = files
        try:
            self._use(self._load())
        except Exception as error:  # whatever a half-written file does: the next change is looked at, too
            self.failed = type(error).__name__
            log.warning("a file changed and cannot be used (%s); what was loaded before is still in use", self.failed)
            return False
        self.failed = None
        log.info("a file changed: %d rows can be predicted", len(self.index))
        return True

    def _use(self, federation: Federation) -> None:
        owner = federation.owner_named(self.owner)
        index = federation.holdings.label_owners[owner].index  # which takes a while: nothing changes before it is there
        self.federation, self.parties, self.label_owner, self.index = federation, list(federation.owners), owner, index

    def _load(self) -> Federation:
        found = load(self.folder, ids="all", owner=self.owner, tables=self.tables, allow_models=self.allow_models)
        for account in found.accounts.values():
            account.claim()
        return found

    def _files(self) -> list[tuple[int, int] | None]:
        """When each was written, and its size."""
        tables = [self.tables.get(name, party.table) for name, party in self.settings.parties.items()]
        return [_written(Path(one)) for one in [str(self.folder / MARK), *(table for table in tables if table)]]


def _written(path: Path) -> tuple[int, int] | None:
    try:
        about = path.stat()
    except OSError:
        return None
    return about.st_mtime_ns, about.st_size


def rows_of(found: Predictions, parties: list[str]) -> list[Row]:
    """Predictions, one by one."""
    scores = np.where(np.isfinite(found.scores), found.scores, np.nan).tolist()
    degraded = found.degraded or [""] * len(found.ids)
    names = [str(one) for one in found.classes]
    rows = []
    for one, label, values, away in zip(found.ids.tolist(), found.labels.tolist(), scores, degraded, strict=True):
        missing = tuple(away.split())
        by_class = {name: None if value != value else value for name, value in zip(names, values, strict=False)}
        answered = tuple(party for party in parties if party not in missing)
        rows.append(Row(one, label, by_class, answered, missing))
    return rows
