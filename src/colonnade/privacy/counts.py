"""How often each row was released, and how: the table behind an account that counts in
memory.

Rows are known by a number made of their id. Each row occurs once, however often its id
is given.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from colonnade.core.receipt import DpEvent
from colonnade.privacy.accounting import Key, key_of

Rows = NDArray[np.int64]
Item = tuple[str, Key]
"""What was released and how: a release name and an event."""


class Counts:
    """How often every known row was released, by release name and event."""

    def __init__(self, keys: Rows | Sequence[int] = ()) -> None:
        # sorted, each once
        self.keys: Rows = np.unique(np.asarray(keys, dtype=np.int64))
        self.counts: dict[Item, Rows] = {}
        # training batches: for statements about hidden batches
        self.rounds: dict[Item, int] = {}

    def find(self, keys: Rows) -> Rows:
        """The places of rows that the table has."""
        return np.searchsorted(self.keys, keys).astype(np.int64)

    def widen(self, keys: Rows) -> None:
        """Make room for rows that were not seen before."""
        if (
            len(self.keys)
            and (self.keys[np.searchsorted(self.keys[:-1], keys)] == keys).all()
        ):
            return
        wider = np.union1d(self.keys, keys)
        if len(wider) > len(self.keys):
            places = np.searchsorted(wider, self.keys)
            for item, counts in self.counts.items():
                self.counts[item] = np.zeros(len(wider), dtype=np.int64)
                self.counts[item][places] = counts
            self.keys = wider

    def add(self, item: Item, places: Rows, times: Rows, rounds: int) -> None:
        """Count a release of the rows at these places, each of which is named once."""
        if item not in self.counts:
            self.counts[item], self.rounds[item] = (
                np.zeros(len(self.keys), dtype=np.int64),
                0,
            )
        self.counts[item][places] += times
        self.rounds[item] += rounds

    def ways_after(
        self, item: Item, places: Rows, times: Rows
    ) -> list[dict[Item, int]]:
        """The different ways in which these rows will have been released after one more
        release, in which each is so many times."""
        if not len(places):
            return []
        items = list(self.counts) if item in self.counts else [*self.counts, item]
        after = [
            self.counts[known][places] if known in self.counts else np.zeros_like(times)
            for known in items
        ]
        after[items.index(item)] = after[items.index(item)] + times
        return [
            dict(zip(items, map(int, row), strict=True)) for row in different(after)
        ]

    def ways(self) -> list[dict[Item, int]]:
        """The different ways in which rows were released."""
        if not self.counts:
            return []
        ways = different(list(self.counts.values()))
        return [dict(zip(self.counts, map(int, times), strict=True)) for times in ways]

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps of this table."""
        items = [
            {
                "name": name,
                "event": key[0],
                "parameters": dict(key[1]),
                "rounds": self.rounds[name, key],
            }
            for name, key in self.counts
        ]
        counts = (
            np.stack(list(self.counts.values()))
            if items
            else np.zeros((0, len(self.keys)), dtype=np.int64)
        )
        return {
            "items": items,
            "keys": torch.from_numpy(self.keys.copy()),
            "counts": torch.from_numpy(counts),
        }

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> Counts:
        """Read what `state` gave, whose rows come in any order."""
        keys = state["keys"].cpu().numpy()
        table = cls(keys)
        places = table.find(keys)
        for item, counts in zip(
            state["items"], state["counts"].cpu().numpy(), strict=True
        ):
            key = key_of(DpEvent(item["event"], item["parameters"]))
            table.add((item["name"], key), places, counts, int(item["rounds"]))
        return table


def by_event(spent: Mapping[Item, int]) -> dict[Key, int]:
    """How often each event was paid for, under whatever name."""
    totals: dict[Key, int] = {}
    for (_, key), count in spent.items():
        totals[key] = totals.get(key, 0) + count
    return totals


def keys_of(ids: Iterable[str]) -> Rows:
    """One number per id."""
    digests = (hashlib.blake2b(text.encode(), digest_size=8).digest() for text in ids)
    return np.frombuffer(b"".join(digests), dtype="<i8").astype(np.int64)


def different(columns: Sequence[Rows]) -> Rows:
    """The distinct rows of a table given by its columns; of a single column only the
    largest value."""
    if len(columns) == 1:
        return np.array([[columns[0].max(initial=0)]], dtype=np.int64)
    return np.unique(np.stack(columns, axis=1), axis=0)
