"""How often each person was released, and how: all that a budget is decided by.

What was released and how is an `Item`: the release's name, and the event that says what
its rule did. What an item costs is not decided here but by `privacy.budget`, which is
shown the different ways in which people were released.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from colonnade.store.packing import to_json
from colonnade.store.places import IntArray, Places

ROOM = 1.25
"""Arrays grow by this factor, so that people who come one by one cost little."""


class Item(NamedTuple):
    """What was released, and how.

    Args:
        name: Of the release, such as "embedding".
        event: What the rule did, as canonical JSON: its kind, and its parameters.
    """

    name: str
    event: str

    @classmethod
    def of(cls, name: str, kind: str, parameters: Mapping[str, float]) -> Item:
        """The item of a release by a rule."""
        return cls(name, to_json({"kind": kind, "parameters": dict(parameters)}))

    @property
    def kind(self) -> str:
        """The kind of the event."""
        kind: str = json.loads(self.event)["kind"]
        return kind

    @property
    def parameters(self) -> dict[str, float]:
        """The parameters of the event."""
        parameters: dict[str, float] = json.loads(self.event)["parameters"]
        return parameters


Way = dict[Item, int]
"""How one person was released: how often by each item. Items with 0 are left out."""


class Counts:
    """The counts of everybody, by item."""

    def __init__(self) -> None:
        self._people = 0
        self._by_item: dict[Item, IntArray] = {}
        self.rounds: dict[Item, int] = {}
        self._newcomers: Way = {}

    @property
    def items(self) -> list[Item]:
        """The items that somebody was released by, the oldest first."""
        return list(self._by_item)

    def of(self, item: Item) -> IntArray:
        """How often each person was released by an item."""
        if item not in self._by_item:
            return np.zeros(self._people, dtype=np.int64)
        return self._by_item[item][: self._people]

    def widen(self, people: int) -> None:
        """Make room for new people. They begin with what newcomers are charged."""
        self._people = people
        for item, counts in self._by_item.items():
            if len(counts) < people:
                wider = self._new_array(item, int(people * ROOM))
                wider[: len(counts)] = counts
                self._by_item[item] = wider

    def add(self, item: Item, places: Places, rounds: int = 0) -> None:
        """Count a release.

        Args:
            item: What was released, and how.
            places: Whom it touched, and how often each.
            rounds: 1 for a training batch, and 0 for all else.
        """
        if item not in self._by_item:
            self._by_item[item] = self._new_array(item, self._people)
            self.rounds[item] = 0
        self._by_item[item][places.numbers] += places.times
        self.rounds[item] += rounds

    def charge_everybody(self, item: Item, times: int) -> None:
        """Count releases whose people are not known: everybody's, and also that of
        people who are not here yet, since they may have been here before."""
        if item not in self._by_item:
            self._by_item[item] = self._new_array(item, self._people)
            self.rounds[item] = 0
        self._by_item[item] += times
        self._newcomers[item] = self._newcomers.get(item, 0) + times

    def charge_everybody_the_most(self) -> None:
        """Let everybody have paid what anybody paid at most, also people who come from
        now on: it is not known any more who is who."""
        for item, counts in self._by_item.items():
            most = int(self.of(item).max(initial=0))
            self._newcomers[item] = max(most, self._newcomers.get(item, 0))
            counts[:] = self._newcomers[item]

    def ways(self, numbers: IntArray | None = None) -> list[Way]:
        """The different ways in which people were released; everybody by default."""
        columns = [
            self.of(item) if numbers is None else self.of(item)[numbers]
            for item in self._by_item
        ]
        return _ways(self.items, columns)

    def ways_after(self, item: Item, places: Places) -> list[Way]:
        """The different ways in which the people of a release will have been released
        after it."""
        items = self.items if item in self._by_item else [*self._by_item, item]
        columns = [self._of_places(known, places) for known in items]
        place = items.index(item)
        columns[place] = columns[place] + places.times
        return _ways(items, columns)

    def newcomers(self) -> Way:
        """What a person begins with who was never seen."""
        return dict(self._newcomers)

    def plain(self) -> dict[str, Any]:
        """What a checkpoint keeps, but for arrays."""
        return {
            "people": self._people,
            "items": [[*item, self.rounds[item]] for item in self._by_item],
            "newcomers": [[*item, times] for item, times in self._newcomers.items()],
        }

    def arrays(self) -> dict[str, IntArray]:
        """The arrays that a checkpoint keeps."""
        return {
            f"counts/{place}": self.of(item) for place, item in enumerate(self._by_item)
        }

    def load(self, plain: dict[str, Any], arrays: dict[str, IntArray]) -> None:
        """Go on from a checkpoint."""
        self._people = int(plain["people"])
        for place, (name, event, rounds) in enumerate(plain["items"]):
            item = Item(name, event)
            self._by_item[item] = arrays[f"counts/{place}"]
            self.rounds[item] = int(rounds)
        for name, event, times in plain["newcomers"]:
            self._newcomers[Item(name, event)] = int(times)

    def _of_places(self, item: Item, places: Places) -> IntArray:
        if item not in self._by_item:
            return np.full(
                len(places.numbers), self._newcomers.get(item, 0), dtype=np.int64
            )
        counts: IntArray = self._by_item[item][places.numbers]
        return counts

    def _new_array(self, item: Item, length: int) -> IntArray:
        return np.full(length, self._newcomers.get(item, 0), dtype=np.int64)


def _ways(items: Sequence[Item], columns: Sequence[IntArray]) -> list[Way]:
    """The distinct rows of a table whose columns are the counts by each item."""
    if not items or not len(columns[0]):
        return []
    return [
        {item: int(times) for item, times in zip(items, row, strict=True) if times}
        for row in _distinct_rows(columns)
    ]


def _distinct_rows(columns: Sequence[IntArray]) -> IntArray:
    """The distinct rows of a table.

    The counts of a person are written as one number, with as many digits as there are
    items, since numbers are sorted much faster than rows.
    """
    bases = [int(column.max()) + 1 for column in columns]
    combinations = 1
    for base in bases:
        combinations *= base
    if combinations >= 2**62:
        rows: IntArray = np.unique(np.stack(columns, axis=1), axis=0)
        return rows
    codes = np.zeros(len(columns[0]), dtype=np.int64)
    for column, base in zip(columns, bases, strict=True):
        codes = codes * base + column
    codes = np.unique(codes)
    digits = []
    for base in reversed(bases):
        digits.append(codes % base)
        codes = codes // base
    return np.stack(digits[::-1], axis=1)
