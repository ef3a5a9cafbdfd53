"""All that follows from the log's entries: what the store knows.

The log is the truth. This is its sum, kept in memory, so that one entry is enough to
change it and a checkpoint of it is enough to go on from.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from colonnade.store.allowances import Allowances, Orders, Runs
from colonnade.store.chain import Entry
from colonnade.store.counts import Counts, Item
from colonnade.store.labels import LabelColumn, Labels
from colonnade.store.packing import pack, unpack
from colonnade.store.people import Identity, People
from colonnade.store.places import unpack_places
from colonnade.store.uses import Uses

CREATED = "created"
PEOPLE = "people"
RELEASE = "release"
USED = "used"
LABELS = "labels"
ALLOWANCE = "allowance"
ORDER = "order"
RUN = "run"
LEDGER = "ledger"
REFUSAL = "refusal"
KEEPER = "keeper"
CHECKPOINT = "checkpoint"
RECOVERED = "recovered"
EXHAUSTED = "exhausted"

TAKEN_IN = (PEOPLE, RELEASE, USED, LABELS, CHECKPOINT)
"""Kinds of entries whose bodies a checkpoint has taken in."""

LOST = "(lost)"
"""The name of releases that were lost, of which only their number is known."""

EXHAUSTED_ITEM = Item.of("(exhausted)", "non-private", {})
"""Costs an infinite epsilon, so that nobody is released any more."""


class State:
    """What a store knows after some entry of its log.

    Args:
        store: The store's id.
        owner: The organisation's name.
    """

    def __init__(self, store: str = "", owner: str = "") -> None:
        self.store = store
        self.owner = owner
        self.public_keys: list[str] = []
        self.charges = 0
        self.keepers: dict[str, int] = {}
        self.gaps: list[tuple[int, int]] = []
        self.refusals = 0
        self.people = People(store)
        self.counts = Counts()
        self.uses = Uses()
        self.labels = Labels()
        self.allowances = Allowances()
        self.orders = Orders()
        self.runs = Runs()

    def apply(self, entry: Entry) -> None:
        """Take an entry in. The log has checked that it is as it was written."""
        content = entry.content
        handler = self._handlers()[entry.kind]
        handler(content, entry.body or b"")

    def is_in_gap(self, serial: int) -> bool:
        """Whether entries up to this serial were lost, and everybody charged for it."""
        return any(after < serial <= to for after, to in self.gaps)

    def pack(self) -> bytes:
        """The state as a checkpoint keeps it."""
        plain = {
            "store": self.store,
            "owner": self.owner,
            "public_keys": self.public_keys,
            "charges": self.charges,
            "keepers": self.keepers,
            "gaps": self.gaps,
            "refusals": self.refusals,
            "people": self.people.plain(),
            "counts": self.counts.plain(),
            "uses": self.uses.plain(),
            "labels": self.labels.plain(),
            "allowances": self.allowances.plain(),
            "orders": self.orders.plain(),
            "runs": self.runs.plain(),
        }
        arrays = {
            **self.people.arrays(),
            **self.counts.arrays(),
            **self.uses.arrays(),
            **self.labels.arrays(),
        }
        return pack(plain, arrays)

    @classmethod
    def unpack(cls, data: bytes) -> State:
        """Read what `pack` wrote."""
        plain, arrays = unpack(data)
        state = cls(plain["store"], plain["owner"])
        state.public_keys = plain["public_keys"]
        state.charges = plain["charges"]
        state.keepers = plain["keepers"]
        state.gaps = [(after, to) for after, to in plain["gaps"]]
        state.refusals = plain["refusals"]
        state.people.load(plain["people"], arrays)
        state.counts.load(plain["counts"], arrays)
        state.uses.load(plain["uses"], arrays)
        state.labels.load(plain["labels"], arrays)
        state.allowances.load(plain["allowances"])
        state.orders.load(plain["orders"])
        state.runs.load(plain["runs"])
        return state

    def _handlers(self) -> dict[str, Callable[[dict[str, Any], bytes], None]]:
        return {
            CREATED: self._created,
            PEOPLE: self._people,
            RELEASE: self._release,
            USED: self._used,
            LABELS: self._labels,
            ALLOWANCE: self._allowance,
            ORDER: self._order,
            RUN: self._run,
            LEDGER: _only_kept,
            REFUSAL: self._refusal,
            KEEPER: self._keeper,
            CHECKPOINT: _only_kept,
            RECOVERED: self._recovered,
            EXHAUSTED: self._exhausted,
        }

    def _created(self, content: dict[str, Any], _: bytes) -> None:
        self.store = content["store"]
        self.owner = content["owner"]
        self.public_keys = [content["public_key"]]
        self.people = People(self.store)

    def _people(self, content: dict[str, Any], body: bytes) -> None:
        if content["word"] == "same_people":
            # Whose counts, uses and labels are whose is not known from here on.
            self.counts.charge_everybody_the_most()
            self.uses.forget_nothing()
            self.labels.some_may_be_lost = True
        self.people.identity = Identity(content["column"], content["first_name"])
        digests = np.frombuffer(body, dtype="<i8").astype(np.int64)
        self.people.add(digests, is_confirmed=content["word"] is not None)
        self.counts.widen(len(self.people))
        self.uses.widen(len(self.people))
        self.labels.widen(len(self.people))

    def _release(self, content: dict[str, Any], body: bytes) -> None:
        item = Item(content["name"], content["event"])
        places = unpack_places(body)
        self.counts.add(item, places, content["rounds"])
        if not content["is_free"]:
            self.charges += int(places.times.max(initial=0))

    def _used(self, content: dict[str, Any], body: bytes) -> None:
        self.uses.add(content["side"], unpack_places(body).numbers)

    def _labels(self, content: dict[str, Any], body: bytes) -> None:
        _, arrays = unpack(body)
        column = LabelColumn(content["table"], content["column"])
        self.labels.add(
            column,
            content["rule"],
            numbers=arrays["numbers"],
            drawn=arrays["drawn"],
            actual=arrays["actual"],
        )

    def _allowance(self, content: dict[str, Any], _: bytes) -> None:
        self.allowances.add(
            content["day"], content["asker"], content["kind"], content["more"]
        )

    def _order(self, content: dict[str, Any], _: bytes) -> None:
        self.orders.add(content["number"], content["written"])

    def _run(self, content: dict[str, Any], _: bytes) -> None:
        self.runs.add(content["name"], content["about"])

    def _refusal(self, _: dict[str, Any], __: bytes) -> None:
        self.refusals += 1

    def _keeper(self, content: dict[str, Any], _: bytes) -> None:
        self.keepers.setdefault(content["name"], content["since"])

    def _recovered(self, content: dict[str, Any], _: bytes) -> None:
        """Take everything that was lost as if it had been the worst."""
        self.public_keys = content["public_keys"]
        if not content["is_loss"]:
            return
        self.gaps.append((content["after"], content["to"]))
        self.uses.forget_nothing()
        self.labels.some_may_be_lost = True
        self.allowances.use_up(content["at"][:10])
        self.orders.refused_until = content["at"]
        if content["charged"]:
            item = Item(LOST, content["event"])
            self.counts.charge_everybody(item, content["charged"])
            self.charges += content["charged"]

    def _exhausted(self, _: dict[str, Any], __: bytes) -> None:
        self.counts.charge_everybody(EXHAUSTED_ITEM, 1)
        self.charges += 1


def _only_kept(_: dict[str, Any], __: bytes) -> None:
    """Nothing follows from such an entry: it is there to be read."""
