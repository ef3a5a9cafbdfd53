"""What may cross between parties, and the records of what did.

A message has fields that are released tensors and plain scalars, nothing else:

    class Embedding(Message):
        values: Released

    class Embed(Request[Embedding]):
        batch: str

A subclass becomes a frozen dataclass. Its field types are checked when it is first
used, its values whenever one is made, so a bare tensor fails in mypy and again here.

A ledger is a party's own record of every tensor that left it or arrived: for its owner
to read, never sent. It has one line per tensor and peer. `bytes` counts the packed
tensor as it travels; a message's header (about 200 bytes) is not in it. Direction "own"
is a call between two roles of the same organisation: nothing crossed. After training,
what crosses is written to a file of its own as it crosses (`follow`).

A transcript is what reached one party, in order: all that an attacker in its place
could work with, besides its own holdings. It is kept outside the parties (see
`transport.in_process`), for tests, audits and pictures, and counts bytes from the
encoded tensors themselves, independently of the ledgers.
"""

from __future__ import annotations

import dataclasses
import json
import threading
import types
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import (
    Annotated,
    Any,
    ClassVar,
    Generic,
    Literal,
    NamedTuple,
    TypeVar,
    Union,
    dataclass_transform,
    get_args,
    get_origin,
    get_type_hints,
)

from torch import Tensor

from colonnade.core.cipher import Ciphertext
from colonnade.core.receipt import Receipt
from colonnade.core.release import Identity, Released
from colonnade.errors import BoundaryError, ConfigError

MESSAGES: dict[str, type[Message]] = {}
"""Every message class by its wire name, 'module.Class': the only names that a frame may
carry."""
# as far as `answered_by` was asked
ANSWERS: dict[type[Request[Any]], type[Message]] = {}

R = TypeVar("R", bound="Message")
SEALED = (Released, Ciphertext)
Line = tuple[str, str | None, tuple[int, ...], Receipt]
LEAVES: tuple[type, ...] = (Released, Ciphertext, str, int, float, bool, type(None))


@dataclass_transform(frozen_default=True)
class Message:
    """Something that may cross; subclass it and annotate its fields."""

    kind: ClassVar[str]
    _hints: ClassVar[dict[str, Any] | None]
    _kinds: ClassVar[dict[str, tuple[Any, ...]] | None]
    _holding: ClassVar[Sequence[str]] = ()  # the fields that can hold a tensor

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        dataclass(frozen=True)(cls)
        cls.kind = f"{cls.__module__.rsplit('.', 1)[-1]}.{cls.__qualname__}"
        cls._hints = cls._kinds = None
        known = MESSAGES.get(cls.kind)
        if known is not None and known.__module__ != cls.__module__:
            raise TypeError(
                f"two message classes are called {cls.kind}: in {known.__module__} and"
                f" {cls.__module__}"
            )
        MESSAGES[cls.kind] = cls

    def __post_init__(self) -> None:
        for name, hint in self.hints().items():
            value = getattr(self, name)
            if type(value) is not hint:
                _check(value, hint, f"{self.kind}.{name}")

    @classmethod
    def hints(cls) -> dict[str, Any]:
        """Field name -> type, resolved once."""
        if cls._hints is None:
            every = get_type_hints(cls)
            hints = {field.name: every[field.name] for field in dataclasses.fields(cls)}  # type: ignore[arg-type]
            for name, hint in hints.items():
                _allow(hint, f"{cls.kind}.{name}")
            cls._holding = [name for name, hint in hints.items() if _may_hold(hint)]
            # only now: a class that was refused once is refused again
            cls._hints = hints
        return cls._hints

    @classmethod
    def kinds(cls) -> dict[str, tuple[Any, ...]]:
        """Of each field that can hold a tensor, which kinds of releases it is for: what
        is beside its type in `Annotated[Released, ...]`."""
        if cls._kinds is None:
            every = get_type_hints(cls, include_extras=True)
            holding = [every[name] for name in cls.hints() if name in cls._holding]
            kinds = (
                get_args(hint)[1:] if get_origin(hint) is Annotated else ()
                for hint in holding
            )
            cls._kinds = dict(zip(cls._holding, kinds, strict=True))
        return cls._kinds

    def crossing(self, *fields: str) -> Sequence[Released | Ciphertext]:
        """All in here, or in some fields, that went through an outbox, in field order."""
        items: list[Released | Ciphertext] = []
        _collect([getattr(self, name) for name in fields or self._holding], items)
        return items

    def lines(self) -> Sequence[Line]:
        """What ledgers say of each of these: the message, its batch, and the tensor's
        shape and receipt."""
        if not self._holding:
            return ()
        # both ends write it down
        known: Sequence[Line] | None = vars(self).get("_lines")
        if known is None:
            kind = self.kind
            batch = batch_of(self)
            known = vars(self)["_lines"] = [
                (kind, batch, item.shape, item.receipt) for item in self.crossing()
            ]
        return known

    def released(self) -> list[Released]:
        """The tensors among a message's fields."""
        return [item for item in self.crossing() if isinstance(item, Released)]


class Request(Message, Generic[R]):
    """A message that is answered by an R."""


class Done(Message):
    """The answer that says only: it was done."""


def answered_by(request: type[Request[Any]]) -> type[Message]:
    """The message class that answers a request, as its declaration says."""
    if request not in ANSWERS:
        bases = [
            base
            for kind in request.__mro__
            for base in getattr(kind, "__orig_bases__", ())
        ]
        named = [get_args(base)[0] for base in bases if get_origin(base) is Request]
        ANSWERS[request] = next(
            (kind for kind in named if isinstance(kind, type)), Message
        )
    return ANSWERS[request]


def batch_of(message: Message) -> str | None:
    """The batch a message speaks of, where it has a field of that name; errors and
    ledgers name it."""
    return vars(message).get("batch")


def _collect(value: Any, found: list[Released | Ciphertext]) -> None:
    for item in value.values() if isinstance(value, dict) else value:
        if type(item) in SEALED:
            found.append(item)
        elif isinstance(item, (tuple, dict)):
            _collect(item, found)


def _may_hold(hint: Any) -> bool:
    return hint in SEALED or any(_may_hold(part) for part in get_args(hint))


def _allow(hint: Any, where: str) -> None:
    """Raise unless a field of this type can only hold what may cross."""
    origin = get_origin(hint)
    if hint in LEAVES:
        return
    if origin in (Union, types.UnionType):
        for part in get_args(hint):
            _allow(part, where)
    elif origin is tuple and len(get_args(hint)) == 2 and get_args(hint)[1] is Ellipsis:
        _allow(get_args(hint)[0], where)
    elif origin is dict and get_args(hint)[0] is str:
        _allow(get_args(hint)[1], where)
    else:
        raise BoundaryError(
            f"{where} is declared as {getattr(hint, '__name__', hint)}, which may not"
            " cross a boundary.\n    Declare it as Released, Ciphertext, str, int,"
            " float or bool, or a tuple[..., ...] or dict[str, ...] of these."
        )


def _check(value: Any, hint: Any, where: str) -> None:
    """Raise unless the value fits its declared type."""
    if isinstance(value, Tensor):
        raise BoundaryError(
            f"{where} is a bare Tensor, and only Released tensors may leave a party.\n"
            '    Release it first: self.outbox.release(tensor, as_="embedding").'
        )
    if not _fits(value, hint):
        raise BoundaryError(
            f"{where} must be {getattr(hint, '__name__', hint)}; found"
            f" {type(value).__name__}."
        )
    if isinstance(value, (tuple, dict)):
        if get_origin(hint) in (Union, types.UnionType):
            hint = next(part for part in get_args(hint) if _fits(value, part))
        part = get_args(hint)[0] if isinstance(value, tuple) else get_args(hint)[1]
        for item in value.values() if isinstance(value, dict) else value:
            _check(item, part, where)


def _fits(value: Any, hint: Any) -> bool:
    origin = get_origin(hint)
    if origin in (Union, types.UnionType):
        return any(_fits(value, part) for part in get_args(hint))
    if origin is dict:
        return isinstance(value, dict) and all(isinstance(key, str) for key in value)
    if hint is float:
        return isinstance(value, (int, float)) and not isinstance(value, bool)
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool)
    return isinstance(value, origin or hint)


class Pong(Message):
    """The party is there."""


class Ping(Request[Pong]):
    """Is it there? Answered at once, whatever the party computes meanwhile, and with
    nothing of its data."""


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
    # of what went out: this owner's row that paid most so far; None: no guarantee
    epsilon: float | None = None

    def to_json(self) -> str:
        return json.dumps(
            self._asdict() | {"parameters": dict(self.parameters)},
            separators=(",", ":"),
        )


class Ledger:
    """Entries since the last flush, and totals since the start."""

    def __init__(self, owner: str) -> None:
        self.owner = owner
        self._entries: list[Entry] = []
        # one at a time makes entries of what is fresh, or takes them from here
        self._lock = threading.RLock()
        self._fresh: deque[tuple[Direction, str, Line]] = deque()
        self.written = 0
        self._path: Path | None = None  # where they were flushed to last
        self._most = MOST
        self._bytes: dict[tuple[Direction, str], int] = defaultdict(int)
        self._carried: list[Entry] = []

    def write(
        self, direction: Literal["out", "in"], peer: str, message: Message
    ) -> None:
        """Note each released tensor of a message that goes to, or came from, a peer."""
        way: Direction = "own" if peer == self.owner else direction
        for line in message.lines():
            self._fresh.append((way, peer, line))
            self._bytes[way, peer] += line[-1].bytes
        if self._path is not None and self.waiting >= self._most:
            self.flush(self._path)

    @property
    def entries(self) -> list[Entry]:
        """What waits here. Entries are made when somebody looks: a driver of many
        parties writes thousands a second."""
        with self._lock:
            while self._fresh:
                way, peer, (kind, asked, shape, r) = self._fresh.popleft()
                batch = r.batch or asked
                epsilon = r.epsilon if way == "out" and r.owner == self.owner else None
                event = r.event.kind, r.event.parameters
                self._entries.append(
                    Entry(
                        way,
                        peer,
                        kind,
                        batch,
                        r.name,
                        shape,
                        r.bytes,
                        r.codec,
                        *event,
                        r.owner,
                        r.number,
                        epsilon,
                    )
                )
            return self._entries

    @property
    def waiting(self) -> int:
        """How many entries wait here for a file."""
        return len(self._entries) + len(self._fresh)

    def carry(self, entries: Iterable[Entry]) -> None:
        """Begin with what crossed before there was a run, while rows were agreed on.
        Until it is in a file it is not forgotten: a run that goes on from a checkpoint
        has agreed on rows again, and adds it."""
        self._carried = list(entries)
        self.add(self._carried)

    def take(self) -> list[Entry]:
        """What waits here, to be carried on by another ledger of this owner's."""
        with self._lock:
            taken = self.entries
            self._entries = []
        for entry in taken:
            self._bytes[entry.direction, entry.peer] -= entry.bytes
        return taken

    def add(self, entries: Iterable[Entry]) -> None:
        """What another ledger of this owner's took."""
        for entry in entries:
            self.entries.append(entry)
            self._bytes[entry.direction, entry.peer] += entry.bytes

    def total(self, direction: Direction, peer: str | None = None) -> int:
        """Bytes sent ("out"), received ("in") or kept inside ("own"), with one peer or
        with all."""
        if direction not in get_args(Direction):
            raise ConfigError(
                f"A ledger has the directions {', '.join(get_args(Direction))}; found"
                f" {direction!r}."
            )
        # a thread that takes answers as they arrive may be writing
        known = list(self._bytes.items())
        return sum(
            n for (way, who), n in known if way == direction and peer in (None, who)
        )

    @property
    def position(self) -> int:
        """How many entries were ever written; a checkpoint remembers it."""
        return self.written + self.waiting

    def flush(self, path: Path) -> None:
        """Append what is new to the file and forget it here; from now on the file also
        takes what is too much to keep.

        What it took after a checkpoint that a run continues from is cut off by
        `rewind`."""
        with self._lock:
            new = self.entries
            with path.open("a", encoding="utf-8") as file:
                file.writelines(entry.to_json() + "\n" for entry in new)
            self.written += len(new)
            new.clear()
        self._carried = []
        self._path, self._most = path, self._most if path == self._path else MOST

    def follow(self, path: Path) -> None:
        """From here on every entry goes to the end of this file as it is written."""
        if self.entries:
            self.flush(path)
        self._path = path
        self._most = 1

    def rewind(self, path: Path, state: dict[str, Any]) -> None:
        """Cut the file back to a checkpoint's position, so that a resumed run does not
        count twice."""
        self.recall(state)
        position = self.written
        self.written = 0
        if path.exists():
            with path.open("r+b") as file:
                end = 0
                while self.written < position and file.readline().endswith(b"\n"):
                    self.written = self.written + 1
                    end = file.tell()
                file.truncate(end)
        self._path = path
        self._most = MOST

    def recall(self, state: dict[str, Any]) -> None:
        """Totals as they were at a checkpoint; files stay as they are."""
        self.entries.clear()
        self.written = int(state["position"])
        self._bytes.clear()
        self._bytes.update({(way, peer): n for way, peer, n in state["bytes"]})
        self.add(self._carried)

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps of it."""
        return {
            "position": self.position,
            "bytes": [[way, peer, n] for (way, peer), n in self._bytes.items()],
        }


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
        self.seen.append(
            Seen(sender, message, sum(map(wire_bytes, message.crossing())))
        )

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
        """Bytes that arrived from one peer or from all the others; what a party told
        itself does not count."""
        return sum(
            s.bytes
            for s in self.seen
            if sender in (None, s.sender) and s.sender != self.party
        )


def wire_bytes(released: Released | Ciphertext) -> int:
    """The length of a tensor as it travels, by encoding it, or of a ciphertext."""
    if isinstance(released, Ciphertext):
        return len(released.encrypted.data)
    return len((released.packed or Identity().encode(released.tensor)).data)
