"""An owner's budget, and the account that enforces it row by row.

It counts against an adversary who knows which rows a batch has, as the label owner
does. So a row pays for its own appearances, in training, validation, test and
prediction alike, and the row that paid most decides. The default relation is
replace-one: after alignment everybody knows which rows take part, so a row's presence
is no secret; its values are.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from colonnade.core.batches import Agreed, Batches, purpose
from colonnade.core.receipt import NON_PRIVATE, DpEvent
from colonnade.errors import BudgetExhausted, CheckpointError, WireError
from colonnade.privacy.accounting import costs_nothing, key_of, known_batch
from colonnade.privacy.counts import (
    Counts,
    Item,
    Record,
    Rows,
    by_event,
    different,
    keys_of,
)
from colonnade.privacy.journal import Claim, Extent, Journal
from colonnade.settings.sections import Budget

ROOM = 1 << 16
"""Bytes by which a journal may grow, beside doubling, before it is written anew."""


class Account:
    """Counts how each row was released: a `core.Meter`. Without a budget it only
    counts. Rows are known by a hash of their id, each once, in whatever order they are
    loaded. Where it is kept in a journal, the journal is the truth."""

    def __init__(
        self,
        owner: str,
        batches: Batches | Agreed,
        ids: Iterable[str],
        budget: Budget | None = None,
        *,
        # the names whose releases have a line for each row; None: any may
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
        self._keys = keys_of(ids)  # of row number i of `batches`
        self._use(Counts())
        self.journal: Journal | None = None
        # what was known before the journal was read, until the journal has it
        self._floor: Counts | None = None
        self._expected = self._closed = False
        # which version of the journal is counted here, and up to where
        self._seen = Extent()
        self._claim: Claim | None = None
        self._lock = threading.Lock()

    @property
    def counts(self) -> dict[Item, Rows]:
        """How often each known row was released, by name and event, in the account's
        own order of rows."""
        return self._table.counts

    def by_row(self) -> dict[Item, Rows]:
        """How often each row of `batches` was released, by name and event, in their
        order."""
        return {item: counts[self.places] for item, counts in self.counts.items()}

    @property
    def rounds(self) -> dict[Item, int]:
        """How many training batches were released, by name and event."""
        return self._table.rounds

    def charge(
        self, name: str, batch: str | None, size: int, event: DpEvent
    ) -> float | None:
        """Count a release of `size` rows, or raise where one would go over the budget.
        Returns the worst row's epsilon so far, None where there is no guarantee."""
        with self._lock, self._exclusive():
            touched, times, event, epsilon = self._affordable(name, batch, size, event)
            item = (name, key_of(event))
            training = int(purpose(batch) == "train")
            if self.journal is not None:
                self.journal.append(
                    Record(name, event, training, self._table.keys[touched], times)
                )
                self._seen = self.journal.extent()
            self._table.add(item, touched, times, training)
            self.worst = max(self.worst, epsilon)
            return None if math.isinf(self.worst) else self.worst

    def check(self, name: str, batch: str | None, size: int, event: DpEvent) -> None:
        """Raise where `charge` would, and count nothing."""
        with self._lock, self._exclusive():
            self._affordable(name, batch, size, event)

    def expect(self, name: str, purpose: str, times: int, event: DpEvent) -> None:
        """Count what a run will release, to say beforehand what it will cost."""
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
        self._table.add((name, key_of(event)), rows, counts, rounds)

    def spent(self) -> list[dict[Item, int]]:
        """The different ways in which rows paid so far."""
        return self._table.ways()

    def released(self, item: Item) -> tuple[int, int]:
        """The most often that one row was released this way, and how often all rows
        together."""
        return int(self.counts[item].max(initial=0)), int(self.counts[item].sum())

    def _affordable(
        self, name: str, batch: str | None, size: int, event: DpEvent
    ) -> tuple[Rows, Rows, DpEvent, float]:
        """The rows that a release touches, how often each, the event that it costs
        them, and the epsilon of the worst after it; raises where that is over the
        budget."""
        # else it may have as many lines as rows by chance
        by_row = self.per_row is None or name in self.per_row
        rows = rows_named(self.batches, batch) if by_row else None
        # no line per row of data, so no row's share of it is known
        if rows is None or len(rows) != size:
            touched = np.arange(len(self._table.keys))
            event = event if costs_nothing(event) else NON_PRIVATE
            times = np.ones_like(touched)
        else:
            touched, times = np.unique(self.places[rows], return_counts=True)
        epsilon = self._epsilon(touched, (name, key_of(event)), times)
        if self.budget is not None and epsilon > self.budget.epsilon * (1 + 1e-9):
            raise BudgetExhausted(refusal(self.owner, name, epsilon, self.budget))
        return touched, times, event, epsilon

    def _epsilon(self, touched: Rows, item: Item, times: Rows) -> float:
        """The epsilon of the worst of these rows after one more release."""
        items = list(self.counts) if item in self.counts else [*self.counts, item]
        after = [
            self.counts[i][touched] if i in self.counts else np.zeros_like(times)
            for i in items
        ]
        after[items.index(item)] = after[items.index(item)] + times
        return self._worst_of(
            [
                dict(zip(items, map(int, times), strict=True))
                for times in different(after)
            ]
        )

    def _worst_of(self, ways: list[dict[Item, int]]) -> float:
        limit = self.limit
        return max(
            (known_batch(by_event(way), limit.relation, limit.delta) for way in ways),
            default=0.0,
        )

    def keep(
        self,
        path: Path,
        *,
        ids: str = "exact",
        sync_every: float = 0.0,
        alone: bool = False,
    ) -> None:
        """Write every release down before it is made, and count what is written there,
        or what is known already where that is more. `alone`: be the one process that
        releases from now on, not only from the first release on."""
        with self._lock:
            self._claim = None
            self._seen = Extent()
            self._closed = False
            self.journal = Journal(path, ids=ids, sync_every=sync_every)
            if self._expected and not path.exists():
                raise self.journal.gone()
            self._floor = self._table
            self._expected = False
            if not alone:
                self._reread(self.journal)
        if alone:
            self.claim()

    def replay(self, path: Path, *, ids: str = "exact") -> None:
        """Count what a journal says, and go on without it."""
        with self._lock:
            self._floor = self._table
            self._reread(Journal(path, ids=ids))
            self._floor = None
            self._seen = Extent()

    def claim(self) -> None:
        """Be the one process that releases under this account, or raise ConfigError;
        done before the first release."""
        with self._lock, self._exclusive():
            pass

    def settled(self) -> None:
        """Make the journal short where it has grown: called at moments that have time
        for it."""
        with self._lock, self._exclusive():
            if self.journal is not None:
                shortest = 16 * sum(
                    int(np.count_nonzero(counts)) for counts in self.counts.values()
                )
                if self._seen.size > 2 * shortest + ROOM:
                    self._rewrite(self.journal)
                self.journal.sync()

    def sync_each(self) -> None:
        """Force every release onto the disk before it leaves, from now on."""
        if self.journal is not None:
            self.journal.sync()
            self.journal.sync_every = 0.0

    def leave(self) -> None:
        """Let another process release; before this one does again, it counts what
        others did."""
        if self.journal is not None:
            self.journal.sync()
        self._claim = None

    def close(self) -> None:
        """Release nothing any more."""
        self.leave()
        self._closed = True

    @contextmanager
    def _exclusive(self) -> Iterator[None]:
        """Keep everybody else, here or elsewhere, from releasing meanwhile; and count
        what they released before."""
        if self._closed:
            raise CheckpointError(
                f"'{self.owner}' has left this run, and counts for others now."
                " Resume it."
            )
        if self.journal is None:
            yield
            return
        claim = self._claim or self.journal.claim()
        with claim.lock:
            if self._claim is None:
                self._take_over(self.journal)
                self._claim = claim
            elif self.journal.extent() != self._seen:
                self._catch_up(self.journal)
            yield

    def _take_over(self, journal: Journal) -> None:
        """Count all that another process may have written, and write down all that
        counts."""
        more, torn = self._reread(journal)
        if more or not self._seen.version:
            self._rewrite(journal)
        else:
            self._mend(journal, torn)
        self._floor = None

    def _catch_up(self, journal: Journal) -> None:
        """Count what another account of this process released since the journal was
        read."""
        version = journal.extent().version
        torn = None
        if not version:
            raise journal.gone()
        if version != self._seen.version:
            _, torn = self._reread(journal)
        else:
            for record, end in journal.read(self._seen.size):
                torn = record if end == self._seen.size else None
                self._table.add_record(record)
                self._seen = self._seen._replace(size=end)
            self._use(self._table)
        self._mend(journal, torn)

    def _reread(self, journal: Journal) -> tuple[bool, Record | None]:
        """Count all of the journal, and no less than was known before it. Returns
        whether more was known before, and what could be read of a record that was cut
        short."""
        extent = journal.extent()
        table = Counts()
        torn = None
        last = extent.first
        floor = self._floor or Counts()
        records = list(journal.read())
        table.widen(
            np.concatenate([table.keys, *(record.keys for record, _ in records)])
        )
        for record, end in records:
            torn = record if end == last else None
            table.add_record(record)
            last = end
        more = table.raise_to(floor)
        self._use(table)
        self._seen = extent._replace(size=last)
        return more, torn

    def _mend(self, journal: Journal, torn: Record | None) -> None:
        # a crash, or a write that failed, as on a full disk
        if journal.extent() != self._seen:
            journal.mend(self._seen.size, torn)
            self._seen = journal.extent()

    def _rewrite(self, journal: Journal) -> None:
        journal.replace(self._table.records())
        self._seen = journal.extent()

    def _use(self, table: Counts) -> None:
        """Count in this table from here on."""
        table.widen(self._keys)
        self._table, self.places = table, table.find(self._keys)
        self.worst = self._worst_of(table.ways())

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps: what is known now, as a floor under what the journal
        will say."""
        settings: dict[str, Any] = {
            "rows": self.rows,
            "batch_size": self.batch_size,
            "kept": self.journal is not None,
        }
        settings |= {} if self.sampling == "epoch" else {"sampling": self.sampling}
        return self._table.state() | settings

    def load_state(self, state: dict[str, Any]) -> None:
        """Continue from `state()`, whatever rows are here now."""
        with self._lock:
            self._use(Counts.from_state(state))
            self._floor = self._table
            self._claim = None  # what a journal says is counted again before a release
            self.rows = int(state["rows"])
            self.batch_size = int(state["batch_size"])
            self.sampling = str(state.get("sampling", "epoch"))
            self._expected = bool(state.get("kept", False))


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
