"""An owner's budget, and the account that enforces it row by row.

It counts against an adversary who knows which rows a batch has, as the label owner
does. So a row pays for its own appearances, in training, validation, test and
prediction alike, and the row that paid most decides. The default relation is
replace-one: after alignment everybody knows which rows take part, so a row's presence
is no secret; its values are.

An account counts in memory until it is given the organisation's store (`Account.keep`).
From then on the store is the truth: it outlives the process, and other processes of the
organisation count in it, too.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import lru_cache
from typing import Any, Protocol

import numpy as np

from colonnade.core.batches import Agreed, Batches, purpose
from colonnade.core.receipt import NON_PRIVATE, DpEvent
from colonnade.errors import BudgetExhausted, CheckpointError, StoreError, WireError
from colonnade.privacy.accounting import costs_nothing, event_of, key_of, known_batch
from colonnade.privacy.counts import Counts, Item, Rows, by_event, keys_of
from colonnade.settings.sections import Budget
from colonnade.store import Item as StoredItem
from colonnade.store import Release, SiteStore, Word

Ways = Sequence[dict[Item, int]]
Affordable = Callable[[Ways], object]


class Tally(Protocol):
    """Where an account counts: in memory, or in the organisation's store."""

    @property
    def places(self) -> Rows:
        """Where each row of the batches is among all rows that are counted."""
        ...

    def release(
        self,
        item: Item,
        rows: Rows | None,
        *,
        in_training: bool,
        affordable: Affordable,
    ) -> None:
        """Count a release of rows of the batches, or of all rows, where `affordable`
        does not raise. It is given the ways in which they are released then."""
        ...

    def check(self, item: Item, rows: Rows | None, affordable: Affordable) -> None:
        """Raise where `release` would, and count nothing."""
        ...

    def counts(self) -> dict[Item, Rows]:
        """How often each row was released, by item."""
        ...

    def rounds(self) -> dict[Item, int]:
        """How many training batches were released, by item."""
        ...

    def ways(self) -> Ways:
        """The different ways in which rows were released."""
        ...


class InMemory:
    """Counts that end with the process, or are kept by a checkpoint.

    Args:
        ids: Of each row of the batches. A row that is named twice is there once.
    """

    def __init__(self, ids: Iterable[str]) -> None:
        self._keys = keys_of(ids)
        self.use(Counts())

    def use(self, table: Counts) -> None:
        """Go on from these counts."""
        table.widen(self._keys)
        self.table = table
        self.places: Rows = table.find(self._keys)

    def release(
        self,
        item: Item,
        rows: Rows | None,
        *,
        in_training: bool,
        affordable: Affordable,
    ) -> None:
        numbers, times = self._touched(rows)
        affordable(self.table.ways_after(item, numbers, times))
        self.table.add(item, numbers, times, int(in_training))

    def check(self, item: Item, rows: Rows | None, affordable: Affordable) -> None:
        numbers, times = self._touched(rows)
        affordable(self.table.ways_after(item, numbers, times))

    def counts(self) -> dict[Item, Rows]:
        return self.table.counts

    def rounds(self) -> dict[Item, int]:
        return self.table.rounds

    def ways(self) -> Ways:
        return self.table.ways()

    def _touched(self, rows: Rows | None) -> tuple[Rows, Rows]:
        """The places of the rows of a release, each once, and how often each is in it."""
        if rows is not None:
            return np.unique(self.places[rows], return_counts=True)
        everybody = np.arange(len(self.table.keys))
        return everybody, np.ones_like(everybody)


class InStore:
    """Counts in an organisation's store.

    Args:
        store: The store.
        places: The number of the person in each row of the batches.
    """

    def __init__(self, store: SiteStore, places: Rows) -> None:
        self.store = store
        self.places = places

    def release(
        self,
        item: Item,
        rows: Rows | None,
        *,
        in_training: bool,
        affordable: Affordable,
    ) -> None:
        self.store.release(
            self._release(item, rows, in_training=in_training),
            lambda ways: affordable([_read_way(way) for way in ways]),
        )

    def check(self, item: Item, rows: Rows | None, affordable: Affordable) -> None:
        self.store.check(
            self._release(item, rows),
            lambda ways: affordable([_read_way(way) for way in ways]),
        )

    def counts(self) -> dict[Item, Rows]:
        return {_read(item): counts for item, counts in self.store.counts().items()}

    def rounds(self) -> dict[Item, int]:
        return {_read(item): count for item, count in self.store.rounds().items()}

    def ways(self) -> Ways:
        ways = [_read_way(way) for way in self.store.ways()]
        return [*ways, _read_way(self.store.newcomers())]

    def _release(
        self, item: Item, rows: Rows | None, *, in_training: bool = False
    ) -> Release:
        name, key = item
        event = event_of(key)
        return Release(
            name,
            event.kind,
            event.parameters,
            people=None if rows is None else self.places[rows],
            is_training=in_training,
            is_free=costs_nothing(event),
        )


class Account:
    """Counts how each row was released: a `core.Meter`. Without a budget it only
    counts. Rows are known by their ids, each once, in whatever order they are loaded.

    Args:
        owner: The organisation.
        batches: Says which rows a batch has.
        ids: Of each row of `batches`.
        budget: What each row may spend. None: as much as is asked for.
        per_row: The names whose releases have a line for each row. None: any may.
    """

    def __init__(
        self,
        owner: str,
        batches: Batches | Agreed,
        ids: Iterable[str],
        budget: Budget | None = None,
        *,
        per_row: Collection[str] | None = None,
    ) -> None:
        self.owner = owner
        self.batches = batches
        self.budget = budget
        self.per_row = per_row
        self.limit = budget or Budget()
        self.rows = batches.drawn_from
        self.batch_size = batches.batch_size
        self.sampling = batches.sampling
        self.worst = 0.0
        self._ids = list(ids)
        self._memory = InMemory(self._ids)
        self._in_store: InStore | None = None
        self._kept_in = ""  # the id of the store that a checkpoint expects
        self._is_closed = False
        self._lock = threading.Lock()

    @property
    def places(self) -> Rows:
        """Where each row of `batches` is in `counts`."""
        return self._tally.places

    @property
    def counts(self) -> dict[Item, Rows]:
        """How often each known row was released, by name and event, in the account's
        own order of rows."""
        return self._tally.counts()

    @property
    def store(self) -> SiteStore:
        """The store that it counts in."""
        if self._in_store is None:
            raise StoreError(f"The account of '{self.owner}' counts in memory.")
        return self._in_store.store

    def by_row(self) -> dict[Item, Rows]:
        """How often each row of `batches` was released, by name and event, in their
        order."""
        return {item: counts[self.places] for item, counts in self.counts.items()}

    @property
    def rounds(self) -> dict[Item, int]:
        """How many training batches were released, by name and event."""
        return self._tally.rounds()

    def charge(
        self, name: str, batch: str | None, size: int, event: DpEvent
    ) -> float | None:
        """Count a release of `size` rows, or raise where one would go over the budget.
        Returns the worst row's epsilon so far, None where there is no guarantee."""
        rows, event = self._rows_of(name, batch, size, event)
        paid = 0.0

        def affordable(ways: Ways) -> None:
            nonlocal paid
            paid = self._within_budget(name, ways)

        with self._lock:
            self._check_open()
            self._tally.release(
                (name, key_of(event)),
                rows,
                in_training=purpose(batch) == "train",
                affordable=affordable,
            )
            self.worst = max(self.worst, paid)
            return None if math.isinf(self.worst) else self.worst

    def check(self, name: str, batch: str | None, size: int, event: DpEvent) -> None:
        """Raise where `charge` would, and count nothing."""
        rows, event = self._rows_of(name, batch, size, event)
        with self._lock:
            self._check_open()
            self._tally.check(
                (name, key_of(event)),
                rows,
                lambda ways: self._within_budget(name, ways),
            )

    def expect(self, name: str, purpose: str, times: int, event: DpEvent) -> None:
        """Count in memory what a run will release, to say beforehand what it will
        cost."""
        places = self.places[self.batches.splits[purpose].numpy()]
        rounds = times * self.batches.per_epoch if purpose == "train" else 0
        rows = np.unique(places)
        counts = np.full(len(rows), times)
        # the seed tells how often each row will be drawn
        if purpose == "train" and self.sampling != "epoch":
            batches = (
                self.batches.one if isinstance(self.batches, Agreed) else self.batches
            )
            counts = np.zeros_like(counts)
            np.maximum.at(
                counts,
                np.searchsorted(rows, places),
                batches.appearances(times).numpy(),
            )
        self._memory.table.add((name, key_of(event)), rows, counts, rounds)

    def spent(self) -> Ways:
        """The different ways in which rows paid so far."""
        return self._tally.ways()

    def released(self, item: Item) -> tuple[int, int]:
        """The most often that one row was released this way, and how often all rows
        together."""
        counts = self.counts[item]
        return int(counts.max(initial=0)), int(counts.sum())

    def keep(self, store: SiteStore, column: str, word: Word | None = None) -> None:
        """Count in the organisation's store from here on, on top of all that it says.

        What was counted in memory before is written down there, too.

        Args:
            store: The store.
            column: The column that the rows' ids are of.
            word: What the owner says about people whom the store does not know.
        """
        with self._lock:
            if self._kept_in not in ("", store.id):
                raise StoreError(
                    f"The store of '{self.owner}' is not the one that its checkpoint"
                    " counted in, so what rows paid is not in it. Put that store back."
                )
            self._kept_in = store.id
            tally = InStore(store, store.numbers_of(self._ids, column, word))
            for item, counts in self._memory.counts().items():
                rows = np.repeat(np.arange(len(tally.places)), self._once_each(counts))
                if len(rows):
                    tally.release(
                        item, rows, in_training=False, affordable=_all_is_affordable
                    )
            self._memory.use(Counts())
            self._in_store = tally
            self._is_closed = False
            self.worst = self._worst_of(tally.ways())

    def look_at(self, store: SiteStore) -> None:
        """Say from here on what all rows of a store have paid, for a report."""
        self._in_store = InStore(store, np.empty(0, dtype=np.int64))
        self.worst = self._worst_of(self._in_store.ways())

    def close(self) -> None:
        """Release nothing any more."""
        self._is_closed = True

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps: settings, and either the counts or where they are."""
        settings: dict[str, Any] = {
            "rows": self.rows,
            "batch_size": self.batch_size,
            "store": self._kept_in,
        }
        settings |= {} if self.sampling == "epoch" else {"sampling": self.sampling}
        return self._memory.table.state() | settings

    def load_state(self, state: dict[str, Any]) -> None:
        """Continue from `state()`, whatever rows are here now. An empty state is of a
        time without rules, of which the store says all."""
        if not state:
            return
        with self._lock:
            self._memory.use(Counts.from_state(state))
            self.rows = int(state["rows"])
            self.batch_size = int(state["batch_size"])
            self.sampling = str(state.get("sampling", "epoch"))
            self._kept_in = str(state["store"])
            self._in_store = None
            self.worst = self._worst_of(self._memory.ways())

    @property
    def _tally(self) -> Tally:
        return self._memory if self._in_store is None else self._in_store

    def _once_each(self, counts: Rows) -> Rows:
        """How often each row of the batches is to be written down, so that rows that
        are named twice count once."""
        places = self._memory.places
        times = np.zeros(len(places), dtype=np.int64)
        _, first = np.unique(places, return_index=True)
        times[first] = counts[places[first]]
        return times

    def _check_open(self) -> None:
        if self._is_closed:
            raise CheckpointError(
                f"'{self.owner}' has left this run, and counts for others now."
                " Resume it."
            )

    def _rows_of(
        self, name: str, batch: str | None, size: int, event: DpEvent
    ) -> tuple[Rows | None, DpEvent]:
        """The rows that a release touches, and the event that it costs them.

        Where a release has no line for each row of data, no row's share of it is known:
        it touches all rows, and costs them whatever it may be.
        """
        # else it may have as many lines as rows by chance
        by_row = self.per_row is None or name in self.per_row
        rows = rows_named(self.batches, batch) if by_row else None
        if rows is not None and len(rows) == size:
            return rows, event
        return None, event if costs_nothing(event) else NON_PRIVATE

    def _within_budget(self, name: str, ways: Ways) -> float:
        """The epsilon of the worst of these ways; raises where it is over the budget."""
        epsilon = self._worst_of(ways)
        if self.budget is not None and epsilon > self.budget.epsilon * (1 + 1e-9):
            raise BudgetExhausted(refusal(self.owner, name, epsilon, self.budget))
        return epsilon

    def _worst_of(self, ways: Ways) -> float:
        limit = self.limit
        return max(
            (known_batch(by_event(way), limit.relation, limit.delta) for way in ways),
            default=0.0,
        )


def _all_is_affordable(_: Ways) -> None:
    """What was released before a store was there is written down, whatever it cost."""


@lru_cache(maxsize=1024)
def _read(item: StoredItem) -> Item:
    """An item as accounting knows it."""
    return item.name, key_of(DpEvent(item.kind, item.parameters))


def _read_way(way: dict[StoredItem, int]) -> dict[Item, int]:
    return {_read(item): times for item, times in way.items()}


def rows_named(batches: Batches | Agreed, batch: str | None) -> Rows | None:
    """The rows of a batch; None where it names no agreed rows."""
    try:
        return None if batch is None else batches.rows(batch).numpy()
    except WireError:
        return None


def refusal(owner: str, name: str, epsilon: float, budget: Budget) -> str:
    """The refusal, as the owner and the asking party read it."""
    delta = f"{budget.delta:g}".replace("e-0", "e-")
    if math.isinf(epsilon):
        written = "infinite"
        cure = (
            f'No rule with noise applies to it. Give "{name}" one where it has a line'
            " per row; else take an "
        )
        cure += "algorithm that releases nothing of the kind, or do without the budget."
    else:
        written = (
            f"{epsilon:.2f}" if epsilon - budget.epsilon > 0.005 else f"{epsilon:.6g}"
        )
        cure = (
            'More noise or fewer epochs would cost less (sigma = "auto" finds the'
            " noise), or raise the budget; rows "
        )
        cure += "that were not released before can still be."
    return (
        f"'{owner}' will not release \"{name}\" again: epsilon would be {written} and"
        f" its budget is {budget.epsilon} at delta={delta}.\n    {cure}"
    )
