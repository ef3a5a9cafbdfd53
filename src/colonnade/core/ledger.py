"""A ledger: a party's own record of every tensor that left it or arrived.

It is for its owner to read and is never sent. It has one entry per tensor and peer.
`bytes` counts the packed tensor as it travels; a message's header, about 200 bytes, is
not counted. The direction "own" is a call between two roles of one organisation, where
nothing crossed.

Before training, entries wait in memory. Once training has a file, each is written as it
crosses (`Ledger.follow`).
"""

from __future__ import annotations

import json
import threading
from collections import defaultdict, deque
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

from colonnade.core.message import Line, Message
from colonnade.errors import ConfigError

Direction = Literal["out", "in", "own"]

MOST_WAITING = 10_000
"""Entries that wait in memory where there is a file to write them to."""


class Entry(NamedTuple):
    """One tensor that crossed, in one direction, between a party and one peer.

    `epsilon` is what the owner's row that paid most has spent so far. It is None for
    what arrived, and where there is no guarantee.
    """

    direction: Direction
    peer: str
    message: str
    batch: str | None
    name: str
    shape: tuple[int, ...]
    bytes: int
    codec: str
    event: str
    parameters: Mapping[str, float]
    owner: str
    number: int
    epsilon: float | None = None

    def to_json(self) -> str:
        """The entry as a line of a ledger's file."""
        values = self._asdict() | {"parameters": dict(self.parameters)}
        return json.dumps(values, separators=(",", ":"))


class Ledger:
    """The entries of one party since they were last written to a file, and totals since
    the start.

    Args:
        owner: The party that keeps the ledger.
    """

    def __init__(self, owner: str) -> None:
        self.owner = owner
        self.written = 0
        """How many entries are in the file."""
        self._entries: list[Entry] = []
        self._noted: deque[tuple[Direction, str, Line]] = deque()
        """What crossed since entries were last made of it."""
        self._lock = threading.RLock()
        """Held by whoever makes entries of what was noted, or takes entries away."""
        self._path: Path | None = None
        self._most_waiting = MOST_WAITING
        self._bytes: dict[tuple[Direction, str], int] = defaultdict(int)
        self._carried: list[Entry] = []

    def write(
        self, direction: Literal["out", "in"], peer: str, message: Message
    ) -> None:
        """Note each value of a message that goes to a peer or came from it."""
        way: Direction = "own" if peer == self.owner else direction
        for line in message.lines():
            receipt = line[-1]
            self._noted.append((way, peer, line))
            self._bytes[way, peer] += receipt.bytes
        if self._path is not None and self.waiting >= self._most_waiting:
            self.flush(self._path)

    @property
    def entries(self) -> list[Entry]:
        """The entries that wait in memory.

        Entries are made only when somebody looks: a driver of many parties notes
        thousands of values a second.
        """
        with self._lock:
            while self._noted:
                self._entries.append(self._entry(*self._noted.popleft()))
            return self._entries

    def _entry(self, direction: Direction, peer: str, line: Line) -> Entry:
        kind, batch, shape, receipt = line
        is_own_release = direction == "out" and receipt.owner == self.owner
        return Entry(
            direction=direction,
            peer=peer,
            message=kind,
            batch=receipt.batch or batch,
            name=receipt.name,
            shape=shape,
            bytes=receipt.bytes,
            codec=receipt.codec,
            event=receipt.event.kind,
            parameters=receipt.event.parameters,
            owner=receipt.owner,
            number=receipt.number,
            epsilon=receipt.epsilon if is_own_release else None,
        )

    @property
    def waiting(self) -> int:
        """How many entries wait in memory to be written."""
        return len(self._entries) + len(self._noted)

    @property
    def position(self) -> int:
        """How many entries there ever were. A checkpoint remembers it."""
        return self.written + self.waiting

    def carry(self, entries: Iterable[Entry]) -> None:
        """Begin with what crossed while rows were agreed on, before there was a run.

        These entries are kept until they are in a file: a run that goes on from a
        checkpoint has agreed on rows again, and `recall` adds them.
        """
        self._carried = list(entries)
        self.add(self._carried)

    def take(self) -> list[Entry]:
        """Take out the entries that wait, for another ledger of the same owner."""
        with self._lock:
            taken = self.entries
            self._entries = []
        for entry in taken:
            self._bytes[entry.direction, entry.peer] -= entry.bytes
        return taken

    def add(self, entries: Iterable[Entry]) -> None:
        """Add entries that were taken out of another ledger of the same owner."""
        for entry in entries:
            self.entries.append(entry)
            self._bytes[entry.direction, entry.peer] += entry.bytes

    def total(self, direction: Direction, peer: str | None = None) -> int:
        """How many bytes were sent ("out"), received ("in") or kept inside ("own").

        Args:
            direction: The direction.
            peer: The peer. By default all.
        """
        if direction not in get_args(Direction):
            raise ConfigError(
                f"A ledger has the directions {', '.join(get_args(Direction))}; found"
                f" {direction!r}."
            )
        total = 0
        # A copy, since a thread that takes answers as they arrive may be writing.
        for (way, name), size in list(self._bytes.items()):
            if way == direction and peer in (None, name):
                total += size
        return total

    def flush(self, path: Path) -> None:
        """Append the entries that wait to a file, and forget them here.

        From now on the file also takes what is too much to keep in memory. What it took
        after a checkpoint is cut off by `rewind` when a run goes on from there.
        """
        with self._lock:
            new = self.entries
            with path.open("a", encoding="utf-8") as file:
                file.writelines(entry.to_json() + "\n" for entry in new)
            self.written += len(new)
            new.clear()
        self._carried = []
        if path != self._path:
            self._path = path
            self._most_waiting = MOST_WAITING

    def follow(self, path: Path) -> None:
        """Write every entry to the end of this file as it crosses, from here on."""
        if self.entries:
            self.flush(path)
        self._path = path
        self._most_waiting = 1

    def rewind(self, path: Path, state: dict[str, Any]) -> None:
        """Cut the file back to a checkpoint, so that a resumed run counts nothing
        twice.

        Args:
            path: The ledger's file.
            state: The ledger's state in the checkpoint.
        """
        self.recall(state)
        wanted = self.written
        self.written = 0
        if path.exists():
            with path.open("r+b") as file:
                end = 0
                while self.written < wanted and file.readline().endswith(b"\n"):
                    self.written += 1
                    end = file.tell()
                file.truncate(end)
        self._path = path
        self._most_waiting = MOST_WAITING

    def recall(self, state: dict[str, Any]) -> None:
        """Take totals over from a checkpoint. Files stay as they are."""
        self.entries.clear()
        self.written = int(state["position"])
        self._bytes.clear()
        for direction, peer, size in state["bytes"]:
            self._bytes[direction, peer] = size
        self.add(self._carried)

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps of the ledger."""
        sizes = [[way, peer, size] for (way, peer), size in self._bytes.items()]
        return {"position": self.position, "bytes": sizes}
