"""A party's own record of every tensor that left it or arrived: for its owner to read, never sent.

One line per tensor and peer. `bytes` counts the packed tensor as it travels; a message's header (about 200 bytes)
is not in it. Direction "own" is a call between two roles of the same organisation: nothing crossed. After training,
what crosses is written to a file of its own as it crosses (`follow`).

What reached one party, in order: all that an attacker in its place could work with, besides its own holdings.

A transcript is kept outside the parties (see `transport.in_process`), for tests, audits and pictures. It counts bytes
from the encoded tensors themselves, independently of the ledgers.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

from torch import Tensor

from colonnade.core.cipher import Ciphertext
from colonnade.core.message import Message, batch_of
from colonnade.core.release import Identity, Released
from colonnade.errors import ConfigError

Direction = Literal["out", "in", "own"]
MOST = 10_000
"""Entries that wait in memory where there is a file to write them to."""


class Entry(NamedTuple):
    """One tensor, one peer, one direction."""

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
    epsilon: float | None = None  # of what went out: this owner's row that paid most so far; None: no guarantee

    def to_json(self) -> str:
        return json.dumps(self._asdict() | {"parameters": dict(self.parameters)}, separators=(",", ":"))


class Ledger:
    """Entries since the last flush, and totals since the start."""

    def __init__(self, owner: str) -> None:
        self.owner = owner
        self.entries: list[Entry] = []
        self.written = 0
        self._path: Path | None = None  # where they were flushed to last
        self._most = MOST
        self._bytes: dict[tuple[Direction, str], int] = defaultdict(int)
        self._carried: list[Entry] = []

    def write(self, direction: Literal["out", "in"], peer: str, message: Message) -> None:
        """Note each released tensor of a message that goes to, or came from, a peer."""
        crossing = message.crossing()
        if not crossing:
            return
        way: Direction = "own" if peer == self.owner else direction
        for item in crossing:
            r = item.receipt
            self.entries.append(
                Entry(
                    way, peer, message.kind, r.batch or batch_of(message), r.name, item.shape,
                    r.bytes, r.codec, r.event.kind, r.event.parameters, r.owner, r.number,
                    r.epsilon if way == "out" else None,
                )
            )  # fmt: skip
            self._bytes[way, peer] += r.bytes
        if len(self.entries) >= self._most and self._path is not None:
            self.flush(self._path)

    def carry(self, entries: Iterable[Entry]) -> None:
        """Begin with what crossed before there was a run, while rows were agreed on. Until it is in a file it is not
        forgotten: a run that goes on from a checkpoint has agreed on rows again, and adds it."""
        self._carried = list(entries)
        self.add(self._carried)

    def take(self) -> list[Entry]:
        """What waits here, to be carried on by another ledger of this owner's."""
        taken, self.entries = self.entries, []
        for entry in taken:
            self._bytes[entry.direction, entry.peer] -= entry.bytes
        return taken

    def add(self, entries: Iterable[Entry]) -> None:
        """What another ledger of this owner's took."""
        for entry in entries:
            self.entries.append(entry)
            self._bytes[entry.direction, entry.peer] += entry.bytes

    def total(self, direction: Direction, peer: str | None = None) -> int:
        """Bytes sent ("out"), received ("in") or kept inside ("own"), with one peer or with all."""
        if direction not in get_args(Direction):
            raise ConfigError(f"A ledger has the directions {', '.join(get_args(Direction))}; found {direction!r}.")
        known = list(self._bytes.items())  # a thread that takes answers as they arrive may be writing
        return sum(n for (way, who), n in known if way == direction and peer in (None, who))

    @property
    def position(self) -> int:
        """How many entries were ever written; a checkpoint remembers it."""
        return self.written + len(self.entries)

    def flush(self, path: Path) -> None:
        """Append what is new to the file and forget it here; from now on the file also takes what is too much to keep.

        What it took after a checkpoint that a run continues from is cut off by `rewind`."""
        with path.open("a", encoding="utf-8") as file:
            file.writelines(entry.to_json() + "\n" for entry in self.entries)
        self.written += len(self.entries)
        self.entries.clear()
        self._carried = []
        self._path, self._most = path, self._most if path == self._path else MOST

    def follow(self, path: Path) -> None:
        """From here on every entry goes to the end of this file as it is written."""
        if self.entries:
            self.flush(path)
        self._path, self._most = path, 1

    def rewind(self, path: Path, state: dict[str, Any]) -> None:
        """Cut the file back to a checkpoint's position, so that a resumed run does not count twice."""
        self.recall(state)
        position, self.written = self.written, 0
        if path.exists():
            with path.open("r+b") as file:
                end = 0
                while self.written < position and file.readline().endswith(b"\n"):
                    self.written, end = self.written + 1, file.tell()
                file.truncate(end)
        self._path, self._most = path, MOST

    def recall(self, state: dict[str, Any]) -> None:
        """Totals as they were at a checkpoint; files stay as they are."""
        self.entries.clear()
        self.written = int(state["position"])
        self._bytes.clear()
        self._bytes.update({(way, peer): n for way, peer, n in state["bytes"]})
        self.add(self._carried)

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps of it."""
        return {"position": self.position, "bytes": [[way, peer, n] for (way, peer), n in self._bytes.items()]}


@dataclass(frozen=True, slots=True)
class Seen:
    """One message that arrived, whole, and how many bytes its tensors took."""

    sender: str
    message: Message
    bytes: int

    @property
    def batch(self) -> str | None:
        return batch_of(self.message)


@dataclass
class Transcript:
    """Everything one party received."""

    party: str
    seen: list[Seen] = field(default_factory=list)

    def add(self, sender: str, message: Message) -> None:
        self.seen.append(Seen(sender, message, sum(map(wire_bytes, message.crossing()))))

    def __iter__(self) -> Iterator[Seen]:
        return iter(self.seen)

    def tensors(self, name: str, sender: str | None = None) -> list[Tensor]:
        """The tensors that arrived under a release name, from one peer or from all."""
        return [
            released.tensor
            for seen in self.seen
            if sender in (None, seen.sender)
            for released in seen.message.released()
            if released.receipt.name == name
        ]

    def total(self, sender: str | None = None) -> int:
        """Bytes that arrived from one peer or from all the others; what a party told itself does not count."""
        return sum(s.bytes for s in self.seen if sender in (None, s.sender) and s.sender != self.party)


def wire_bytes(released: Released | Ciphertext) -> int:
    """The length of a tensor as it travels, by encoding it, or of a ciphertext."""
    if isinstance(released, Ciphertext):
        return len(released.encrypted.data)
    return len((released.packed or Identity().encode(released.tensor)).data)
