"""Counting goes on where an owner has no rule with noise and no budget: a budget that
comes later must know of it.

Of a person whose row left as it is, nothing is promised any more, however often that
happens. So each person is written down once for each release by its name, and after the
first epoch nothing waits for the disk.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from colonnade.core.batches import Agreed, Batches
from colonnade.core.receipt import NON_PRIVATE, DpEvent
from colonnade.privacy.accounting import costs_nothing
from colonnade.privacy.budget import rows_named
from colonnade.privacy.counts import Rows
from colonnade.store import Item, Release, SiteStore, Word


class PlainCount:
    """Writes down whose rows left as they are: a `core.Meter` that refuses nothing.

    Args:
        batches: Says which rows a batch has.
        ids: Gives the id of each row of `batches`.
    """

    def __init__(
        self, batches: Batches | Agreed, ids: Callable[[], NDArray[np.str_]]
    ) -> None:
        self.batches = batches
        self._ids = ids
        self._store: SiteStore | None = None
        self._people: Rows = np.empty(0, dtype=np.int64)
        self._is_written: dict[str, NDArray[np.bool_]] = {}
        self._lock = threading.Lock()

    def keep(self, store: SiteStore, column: str, word: Word | None = None) -> None:
        """Write down in the organisation's store from here on.

        Args:
            store: The store.
            column: The column that the rows' ids are of.
            word: What the owner says about people whom the store does not know.
        """
        self._people = store.numbers_of(self._ids().tolist(), column, word)
        self._store = store
        self._is_written = {}

    def charge(
        self, name: str, batch: str | None, size: int, event: DpEvent
    ) -> float | None:
        """Write a release down, for those who are in it for the first time."""
        if self._store is None or costs_nothing(event):
            return None
        rows = rows_named(self.batches, batch)
        if rows is None or len(rows) != size:
            rows = np.arange(len(self._people))  # it may depend on any row
        with self._lock:
            is_written = self._written_of(self._store, name)
            new = np.unique(rows[~is_written[rows]])
            if len(new):
                release = Release(
                    name, NON_PRIVATE.kind, NON_PRIVATE.parameters, self._people[new]
                )
                self._store.release(release)
                is_written[new] = True
        return None

    def state(self) -> dict[str, Any]:
        """A checkpoint keeps nothing: the store does."""
        return {}

    def load_state(self, state: dict[str, Any]) -> None:
        """Nothing follows from a checkpoint."""

    def _written_of(self, store: SiteStore, name: str) -> NDArray[np.bool_]:
        """Which rows of the batches are written down for a release of this name."""
        if name not in self._is_written:
            item = Item.of(name, NON_PRIVATE.kind, NON_PRIVATE.parameters)
            counts = store.counts(self._people).get(item)
            if counts is None:
                counts = np.zeros(len(self._people), dtype=np.int64)
            self._is_written[name] = counts > 0
        return self._is_written[name]
