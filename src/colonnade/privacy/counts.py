"""How often each row was released, and by what: the table behind an account, and what a journal's records add up to.

Rows are known by a number made of their id. Each is there once, however often an id is given.
"""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from colonnade.core.files import write_bytes
from colonnade.core.receipt import DpEvent
from colonnade.privacy.accounting import Key, event_of, key_of

Rows = NDArray[np.int64]
Item = tuple[str, Key]
"""What was released and how: a release name and an event."""


@dataclass(frozen=True, eq=False)
class Record:
    """One release, or the sum of several: its name, what the mechanism did, how many training batches it was, and how
    often each row was in it."""

    name: str
    event: DpEvent
    rounds: int
    keys: Rows
    times: Rows


class Counts:
    """How often every known row was released, by release name and event."""

    def __init__(self, keys: Rows | Sequence[int] = ()) -> None:
        self.keys: Rows = np.unique(np.asarray(keys, dtype=np.int64))  # sorted, each once
        self.counts: dict[Item, Rows] = {}
        self.rounds: dict[Item, int] = {}  # training batches: for statements about hidden batches

    def find(self, keys: Rows) -> Rows:
        """Where rows are that were made room for."""
        return np.searchsorted(self.keys, keys).astype(np.int64)

    def widen(self, keys: Rows) -> None:
        """Make room for rows that were not seen before."""
        if len(self.keys) and (self.keys[np.searchsorted(self.keys[:-1], keys)] == keys).all():
            return  # to sort all rows for every record of a journal would take rows x rows
        wider = np.union1d(self.keys, keys)
        if len(wider) > len(self.keys):
            places = np.searchsorted(wider, self.keys)
            for item, counts in self.counts.items():
                self.counts[item] = np.zeros(len(wider), dtype=np.int64)
                self.counts[item][places] = counts
            self.keys = wider

    def add(self, item: Item, places: Rows, times: Rows, rounds: int) -> None:
        """Count a release of these rows, each of which is named once."""
        if item not in self.counts:
            self.counts[item], self.rounds[item] = np.zeros(len(self.keys), dtype=np.int64), 0
        self.counts[item][places] += times
        self.rounds[item] += rounds

    def add_record(self, record: Record) -> None:
        """Count what a journal says; a row that it names several times has all of them."""
        keys, at = np.unique(record.keys, return_inverse=True)
        times = np.zeros(len(keys), dtype=np.int64)
        np.add.at(times, at.reshape(-1), record.times)
        self.widen(keys)
        self.add((record.name, key_of(record.event)), self.find(keys), times, record.rounds)

    def raise_to(self, other: Counts) -> bool:
        """Count at least what another table says, row by row; whether that was more."""
        self.widen(other.keys)
        places, more = self.find(other.keys), False
        for item, theirs in other.counts.items():
            self.add(item, places[:0], theirs[:0], 0)
            mine = self.counts[item][places]
            more = more or bool((theirs > mine).any()) or other.rounds[item] > self.rounds[item]
            self.counts[item][places] = np.maximum(mine, theirs)
            self.rounds[item] = max(self.rounds[item], other.rounds[item])
        return more

    def records(self) -> Iterator[Record]:
        """What adds up to this table: one record for each name and event."""
        for (name, key), counts in self.counts.items():
            some = np.flatnonzero(counts)
            yield Record(name, event_of(key), self.rounds[name, key], self.keys[some], counts[some])

    def ways(self) -> list[dict[Item, int]]:
        """The different ways in which rows were released."""
        if not self.counts:
            return []
        return [dict(zip(self.counts, map(int, one), strict=True)) for one in different(list(self.counts.values()))]

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps of it."""
        items = [
            {"name": name, "event": key[0], "parameters": dict(key[1]), "rounds": self.rounds[name, key]}
            for name, key in self.counts
        ]
        counts = np.stack(list(self.counts.values())) if items else np.zeros((0, len(self.keys)), dtype=np.int64)
        return {"items": items, "keys": torch.from_numpy(self.keys.copy()), "counts": torch.from_numpy(counts)}

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> Counts:
        """As `state` has it; the rows of an older one come in any order."""
        keys, found = state["keys"].cpu().numpy(), cls()
        found.widen(keys)
        for about, counts in zip(state["items"], state["counts"].cpu().numpy(), strict=True):
            event = DpEvent(about["event"], about["parameters"])
            found.add_record(Record(about["name"], event, int(about["rounds"]), keys, counts))
        return found


def by_event(spent: Mapping[Item, int]) -> dict[Key, int]:
    """How often each event was paid for, under whatever name."""
    found: dict[Key, int] = {}
    for (_, key), count in spent.items():
        found[key] = found.get(key, 0) + count
    return found


def write_numbers(path: Path, magic: bytes, about: Mapping[str, Any], *parts: Rows) -> None:
    """Whole numbers side by side, after a line of JSON about them; the file begins with a checksum of all that."""
    rest = json.dumps(about).encode() + b"\n" + b"".join(part.astype("<i8").tobytes() for part in parts)
    write_bytes(path, [magic, f"{zlib.crc32(rest):08x} ".encode(), rest])


def read_numbers(path: Path, magic: bytes) -> tuple[dict[str, Any], Rows]:
    """What `write_numbers` wrote; ValueError where the file is damaged."""
    head, _, rest = path.read_bytes().partition(b" {")
    rest = b"{" + rest
    if head != magic + f"{zlib.crc32(rest):08x}".encode():
        raise ValueError(path)
    line, _, body = rest.partition(b"\n")
    return json.loads(line), np.frombuffer(body, dtype="<i8").astype(np.int64)


def keys_of(ids: Iterable[str]) -> Rows:
    """One number per id."""
    digests = (hashlib.blake2b(one.encode(), digest_size=8).digest() for one in ids)
    return np.frombuffer(b"".join(digests), dtype="<i8").astype(np.int64)


def different(columns: Sequence[Rows]) -> Rows:
    """The distinct rows of a table given by its columns; with one column its largest value is enough."""
    if len(columns) == 1:
        return np.array([[columns[0].max(initial=0)]], dtype=np.int64)
    return np.unique(np.stack(columns, axis=1), axis=0)
