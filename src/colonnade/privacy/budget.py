"""An owner's budget, and the account that enforces it row by row.

Counted against whoever knows which rows a batch has: the label owner does. So a row pays for its own appearances, in
training, validation, test and prediction alike, and the row that paid most decides. The default relation is
replace-one: after alignment everybody knows which rows take part, so a row's presence is no secret; its values are.
"""

from __future__ import annotations

import hashlib
import math
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from colonnade.core.batches import Agreed, Batches
from colonnade.core.checks import Checked, one_of, positive
from colonnade.core.release import NON_PRIVATE, DpEvent, purpose
from colonnade.errors import BudgetExhausted, CheckpointError, WireError
from colonnade.privacy.accounting import Key, costs_nothing, key_of, known_batch
from colonnade.privacy.journal import Claim, Journal, Record

DELTA = 1e-5
Rows = NDArray[np.int64]
Item = tuple[str, Key]
"""What was released and how: a release name and an event."""


def _chance(value: Any) -> float | None:
    return float(value) if isinstance(value, float) and 0 < value < 1 else None


@dataclass(frozen=True)
class Budget:
    """(epsilon, delta) for every row of this owner's columns, under a neighbouring relation."""

    epsilon: float = positive(default=8.0)
    delta: float = Checked("a number above 0 and below 1", _chance, DELTA)  # type: ignore[assignment]
    relation: str = one_of("replace-one", "add-or-remove", default="replace-one")


class Account:
    """What each row was released with: a `core.Meter`. Without a budget it only counts.

    Rows are known by a hash of their id, so that an account goes on when the same ids are loaded in another order.
    """

    def __init__(self, owner: str, batches: Batches | Agreed, ids: Iterable[str], budget: Budget | None = None) -> None:
        self.owner, self.batches, self.budget = owner, batches, budget
        self.limit = budget or Budget()
        self.rows, self.batch_size = len(batches.splits.get("train", ())), batches.batch_size
        if isinstance(batches, Agreed):  # each label owner draws among its own rows: no statement about hidden batches
            self.rows = 0
        self.keys = keys_of(ids)
        self.at = np.arange(len(self.keys))  # where row number i of `batches` is in the account
        self.counts: dict[Item, NDArray[np.int64]] = {}
        self.rounds: dict[Item, int] = {}  # training batches: for statements about hidden batches
        self.worst = 0.0
        self.journal: Journal | None = None
        self._read = self._cleared = 0  # how much of the journal is counted here, and how often it began anew
        self._claim: Claim | None = None
        self._lock = threading.Lock()

    def charge(self, name: str, batch: str | None, size: int, event: DpEvent) -> float | None:
        """Count a release of `size` rows; gives the worst row's epsilon so far, None where there is no guarantee.

        Raises before anything is counted when a row would go over the budget.
        """
        with self._lock:
            self._catch_up()
            rows = self._rows(batch, size)
            if rows is None:  # not one row per row of data: no row's share of it is known
                rows, event = np.arange(len(self.keys)), event if costs_nothing(event) else NON_PRIVATE
            item = name, key_of(event)
            touched, times = np.unique(self.at[rows], return_counts=True)
            epsilon = self._epsilon(touched, item, times)
            if self.budget is not None and epsilon > self.budget.epsilon * (1 + 1e-9):
                raise BudgetExhausted(refusal(self.owner, name, epsilon, self.budget))
            if self.journal is not None:
                self.journal.append(Record(name, event, purpose(batch) == "train", self.keys[touched], times))
                self._read = self.journal.size
            self._count(item, touched, times, purpose(batch) == "train")
            self.worst = max(self.worst, epsilon)
            return None if math.isinf(self.worst) else self.worst

    def expect(self, name: str, purpose: str, times: int, event: DpEvent) -> None:
        """Count what a run will release, to say beforehand what it will cost."""
        rows = self.at[self.batches.splits[purpose].numpy()]
        self._count((name, key_of(event)), rows, np.full(len(rows), times), False)
        if purpose == "train":
            self.rounds[name, key_of(event)] += times * self.batches.per_epoch

    def spent(self) -> list[dict[Item, int]]:
        """The different ways in which rows paid so far."""
        if not self.counts:
            return []
        return [dict(zip(self.counts, map(int, one), strict=True)) for one in _different(list(self.counts.values()))]

    def released(self, item: Item) -> tuple[int, int]:
        """How often one row was released this way at most, and all rows together."""
        return int(self.counts[item].max(initial=0)), int(self.counts[item].sum())

    def _rows(self, batch: str | None, size: int) -> Rows | None:
        try:
            rows = None if batch is None else self.batches.rows(batch).numpy()
        except WireError:  # no agreed batch
            return None
        return rows if rows is not None and len(rows) == size else None

    def _epsilon(self, touched: Rows, item: Item, times: Rows) -> float:
        """Of the worst of these rows after one more release."""
        items = list(self.counts) if item in self.counts else [*self.counts, item]
        after = [self.counts[i][touched] if i in self.counts else np.zeros_like(times) for i in items]
        after[items.index(item)] = after[items.index(item)] + times
        return self._dearest([dict(zip(items, map(int, one), strict=True)) for one in _different(after)])

    def _paid(self) -> float:
        """Epsilon of the row that paid most so far."""
        return self._dearest(self.spent())

    def _dearest(self, ways: list[dict[Item, int]]) -> float:
        worst = 0.0
        for way in ways:
            spent: dict[Key, int] = {}
            for (_, key), count in way.items():
                spent[key] = spent.get(key, 0) + count
            worst = max(worst, known_batch(spent, self.limit.relation, self.limit.delta))
        return worst

    def _count(self, item: Item, rows: Rows, times: Rows, training: bool) -> None:
        if item not in self.counts:
            self.counts[item], self.rounds[item] = np.zeros(len(self.keys), dtype=np.int64), 0
        self.counts[item][rows] += times
        self.rounds[item] += training

    def keep(self, path: Path) -> None:
        """Write every release down before it is made, and count what was written there since the last checkpoint."""
        self.journal = Journal(path)
        self._cleared = self.journal.cleared
        self.replay(path)

    def replay(self, path: Path) -> None:
        """Count what a journal says."""
        with self._lock:
            self._read = 0
            self._replay(Journal(path))

    def claim(self) -> None:
        """Be the one process that releases under this account, or raise ConfigError; done before the first release."""
        with self._lock:
            self._catch_up()

    def settled(self) -> None:
        """A checkpoint holds all that the journal says."""
        if self.journal is not None:
            self.journal.clear()
            self._read, self._cleared = 0, self.journal.cleared

    def leave(self) -> None:
        """Another process may release; before this one does again, it counts what others did."""
        self._claim = None

    def _catch_up(self) -> None:
        """Count what others released since the journal was read: an earlier process, or another federation here."""
        if self.journal is None:
            return
        if self._claim is None:
            self._claim = self.journal.claim()
            self.journal.repair()
        if self.journal.cleared != self._cleared:
            raise CheckpointError(
                f"The run was trained further since '{self.owner}' was loaded from it, so what its rows have paid is "
                "not known here. Load the run again."
            )
        if self.journal.size > self._read:
            self._replay(self.journal)

    def _replay(self, journal: Journal) -> None:
        for record, end in journal.read_on(self._read):
            self._read = end
            self._widen(record.keys)
            item = record.name, key_of(record.event)
            self._count(item, self._find(record.keys), record.times, record.training)
        self.worst = self._paid()

    def _find(self, keys: NDArray[np.int64]) -> Rows:
        order = np.argsort(self.keys)
        return order[np.searchsorted(self.keys[order], keys)]

    def _widen(self, keys: NDArray[np.int64]) -> None:
        """Make room for rows that this account has not seen."""
        new = np.setdiff1d(keys, self.keys)
        if len(new):
            self.keys = np.concatenate([self.keys, new])
            self.counts = {i: np.concatenate([c, np.zeros(len(new), dtype=np.int64)]) for i, c in self.counts.items()}

    def state(self) -> dict[str, Any]:
        """For a checkpoint."""
        items = [
            {"name": name, "event": key[0], "parameters": dict(key[1]), "rounds": self.rounds[name, key]}
            for name, key in self.counts
        ]
        counts = np.stack(list(self.counts.values())) if items else np.zeros((0, len(self.keys)), dtype=np.int64)
        return {
            "items": items,
            "keys": torch.from_numpy(self.keys.copy()),
            "counts": torch.from_numpy(counts),
            "rows": self.rows,
            "batch_size": self.batch_size,
        }

    def load_state(self, state: dict[str, Any]) -> None:
        """Continue from `state()`, whatever rows are here now."""
        with self._lock:
            mine = self.keys[self.at]
            self.keys = state["keys"].cpu().numpy()
            self.counts, self.rounds = {}, {}
            for about, counts in zip(state["items"], state["counts"].cpu().numpy(), strict=True):
                item = about["name"], key_of(DpEvent(about["event"], about["parameters"]))
                self.counts[item], self.rounds[item] = counts.copy(), int(about["rounds"])
            self._widen(mine)
            self.at = self._find(mine)
            self.worst = self._paid()
            self.rows, self.batch_size = int(state["rows"]), int(state["batch_size"])


def keys_of(ids: Iterable[str]) -> NDArray[np.int64]:
    """One number per id."""
    digests = (hashlib.blake2b(one.encode(), digest_size=8).digest() for one in ids)
    return np.frombuffer(b"".join(digests), dtype="<i8").astype(np.int64)


def _different(columns: Sequence[NDArray[np.int64]]) -> NDArray[np.int64]:
    """The distinct rows of a table given by its columns; with one column its largest value is enough."""
    if len(columns) == 1:
        return np.array([[columns[0].max(initial=0)]], dtype=np.int64)
    return np.unique(np.stack(columns, axis=1), axis=0)


def refusal(owner: str, name: str, epsilon: float, budget: Budget) -> str:
    """As the owner and the asking party read it."""
    if math.isinf(epsilon):
        would = "infinite"
    else:
        would = f"{epsilon:.2f}" if epsilon - budget.epsilon > 0.005 else f"{epsilon:.6g}"
    delta = f"{budget.delta:g}".replace("e-0", "e-")
    return (
        f"'{owner}' will not release \"{name}\" again: epsilon would be {would} and its budget is "
        f"{budget.epsilon} at delta={delta}.\n"
        '    More noise or fewer epochs would cost less (sigma = "auto" finds the noise), or raise the budget; rows '
        "that were not released before can still be."
    )
