"""What a service asks where the parties are elsewhere: a session between sites, batch by batch (`sites.prediction`).

Which of a batch's ids can be predicted is asked for once, and the rows that can are then predicted with what was found.
A party may be asked about ids that it lacks; with `align = "private"` it does not learn them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import torch

from colonnade.errors import NoAnswer
from colonnade.serving.source import EVERY, Row, rows_of
from colonnade.settings.federation_file import EngineSettings
from colonnade.sites.own_rows import written
from colonnade.sites.prediction import Rows, Session
from colonnade.sites.reader import Look
from colonnade.sites.site import Site

LONGEST = 10.0
"""Seconds in which a party must answer a caller's request, whatever was agreed for training; then once more."""


class SiteSource:
    """Of one run, at the site that drives; of several label owners, at one of them, with one `model` of its two."""

    failed: str | None = None  # a table that cannot be read is told in the site's log

    def __init__(self, site: Site, run: str, *, model: str | None = None) -> None:
        self.settings, self.site = site.own.settings, site
        self.session = Session(site, run, model=model, engine=hurried(site.own.settings.engine))
        self.session.warm()
        self.federation: object = written(site.own)
        self._looked: Rows | None = None
        self._stop = threading.Event()
        self._watch: threading.Thread | None = None

    @property
    def comparing_is_counted(self) -> bool:
        """Whether ids are compared privately."""
        return self.session.private

    @property
    def label_owner(self) -> str:
        """Who asks."""
        return self.site.own.name

    @property
    def parties(self) -> list[str]:
        """Who is asked."""
        return self.session.names

    def lacking(self, ids: Sequence[str]) -> set[str]:
        """Those that cannot be predicted. What this organisation itself lacks is asked of nobody, where it must hold
        all."""
        lenient, unknown, self._looked = self.session.may_lack, set[str](), None
        wanted = np.array(list(dict.fromkeys(ids)), dtype=np.str_)
        rows = self.session.own_part(wanted)
        if not lenient and rows.holdings.away:
            lost = torch.stack(list(rows.holdings.away.values())).any(0).numpy()
            unknown, wanted = set(wanted[lost].tolist()), wanted[~lost]
            rows = self.session.own_part(wanted) if len(wanted) else rows
        if len(wanted):
            self.session.look(rows)
            lost = rows.lacking(self.parties, lenient=lenient).numpy()
            self._answered(rows, bool(lost.any()))
            unknown |= set(wanted[lost].tolist())
            self._looked = rows
        return unknown

    def ask(self, ids: Sequence[str]) -> list[Row]:
        """Ask the parties for these rows."""
        known = {} if self._looked is None else {one: at for at, one in enumerate(self._looked.ids.tolist())}
        if not known.keys() >= set(ids):
            self.lacking(ids)
            assert self._looked is not None
            known = {one: at for at, one in enumerate(self._looked.ids.tolist())}
        assert self._looked is not None
        try:
            found = self.session.ask(self._looked, torch.tensor([known[one] for one in ids], dtype=torch.int64))
        finally:
            self.site.keep_alignment(self.session.folder.path)
        return [row for _, some in found for row in rows_of(some, self.parties)]

    def heartbeat(self) -> dict[str, bool]:
        """Who is there."""
        beats = self.session.there.heartbeat()
        return {name: name == self.label_owner or beats.get(name) is not None for name in self.parties}

    def budgets(self) -> dict[str, float]:
        """What a party has left is known to itself alone."""
        return {}

    def watch(self, changed: Callable[[], None], every: float = EVERY) -> None:
        """`changed` is called when this organisation's own table has; of the others' tables it knows nothing."""

        def look() -> None:
            while not self._stop.wait(every):
                if (seen := written(self.site.own)) != self.federation:
                    self.federation = seen
                    changed()

        self._watch = threading.Thread(target=look, daemon=True, name="tables")
        self._watch.start()

    def close(self) -> None:
        self._stop.set()
        if self._watch is not None:
            self._watch.join()
        self.session.close()

    def _answered(self, rows: Rows, lost: bool) -> None:
        """Whether nobody holds a row is known when all have said so."""
        silent = [name for name in self.parties if name != self.label_owner and name not in rows.places]
        if lost and silent:
            raise NoAnswer(silent[0], Look.kind, None, "it does not say which of the rows it holds")


def hurried(engine: EngineSettings) -> EngineSettings:
    """A caller waits for half a minute and no longer, so nobody is waited for until it is back."""
    on_missing = "fail" if engine.on_missing == "wait" else engine.on_missing
    return replace(
        engine, on_missing=on_missing, deadline=min(engine.deadline, LONGEST), retries=min(engine.retries, 1)
    )
