"""Private set intersection by Diffie-Hellman, for two parties and for many, among
parties that follow the protocol.

Meadows, IEEE S&P 1986; Huberman, Franklin and Hogg, EC 1999. H hashes an id to a point
of secp256k1, party k has a secret multiplier a_k, and multiplications commute:

    1  every party k hands out { a_k H(id) }, shuffled
    2  each list passes through every other party j in turn: multiplied by a_j, and shuffled anew
    3  the driver compares the M lists { a_1 ... a_M H(id) }; what all hold is common, and sorted it is the order
    4  unless only the count is wanted, the positions of the common points go back the way each list came, every party
       undoing its shuffle, to the list's owner: it then knows its common rows, in the order that all share

In a ring everybody works on one list at a time: M rounds, M multiplications per id. The
driver carries the lists.

Who learns what, when all follow the protocol and do not pool what they saw:

    every party         how many distinct ids each other one has
    a learner           its own common rows and their agreed order, which says nothing about any party's own order;
                        with reveal = "count" only how many there are
    the driver          the count; and with three or more parties how many ids any group of them shares, but not which:
                        its own list comes back shuffled, so it cannot tell its ids apart in it
    who is no learner   with reveal = "rows": the count, from the positions that pass through it

A count can say much: a party that brings a single id learns whether all others have it.
Nothing here can see that a party brings ids it does not have, or hands out points it
did not compute; a driver could hand a party other points than it says, and tell by them
which of its guesses are held, even where only a count is agreed on. So between machines
each party bounds how often, with whom and with how short a list it takes part
(`allowance`). Among parties that follow the protocol ids are safe although they are
easy to guess, since no guess can be tried without the owner's secret.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial, reduce
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from colonnade.alignment import curve
from colonnade.alignment.id_owner import (
    ALIGN,
    POSITIONS,
    Agree,
    Blind,
    End,
    Fetch,
    IdCount,
    IdOwner,
    Learn,
    Points,
    Raise,
    Tell,
    Trace,
    as_points,
)
from colonnade.core.message import Message, Request
from colonnade.core.party import Refused
from colonnade.core.peers import Peers
from colonnade.core.release import Released
from colonnade.errors import ConfigError, PartyError

CHUNK = 8192
"""Points in a message: 270 kB, and about a second of work."""

R = TypeVar("R", bound=Message)
Watch = Callable[[int, int], None]
"""Called with how many multiplications are done, of how many."""


@dataclass(frozen=True)
class Alignment:
    """What the driver knows in the end. Each learner keeps its common rows to itself:
    `IdOwner.common_rows`."""

    driver: str
    sizes: dict[str, int]  # distinct ids of each party
    common: int
    ids: str
    reveal: str
    learners: tuple[str, ...]
    helper: str = ""  # who compared keyed hashes; "": nobody, by Diffie-Hellman
    by_key: tuple[int, ...] = ()  # how many of the common ids each key matched

    @property
    def protocol(self) -> str:
        return "helper" if self.helper else "ecdh"

    def learned(self) -> dict[str, str]:
        """In words, what each party knows now and did not before; and the helper, where
        there is one."""
        count = "how many rows are common"
        every_size = "the others' numbers of ids"
        rows = (
            "which of its rows are common, and their order"
            if self.reveal == "rows"
            else count
        )
        groups = ""
        sizes = every_size
        # who neither learns nor drives
        others = count if self.reveal == "rows" else f"not {count}"
        if self.helper:
            sizes = "the shortest list's number of ids"
            others = "nothing more"
        elif len(self.sizes) > 2:
            groups = "; how many ids any group of parties shares, not which"
        in_words = {
            name: f"{sizes}; {rows if name in self.learners else others}"
            for name in self.sizes
        }
        in_words[self.driver] = (
            f"{every_size}; {rows if self.driver in self.learners else count}{groups}"
        )
        if self.helper:
            equal = (
                "how many ids each has, and which blinded ids are equal; with any"
                " party's help it could test ids"
            )
            in_words[self.helper] = equal
        return in_words


def align(
    driver: IdOwner,
    peers: Peers,
    *,
    predict: bool = False,
    reveal: str | None = None,
    watch: Watch | None = None,
    chunk: int = CHUNK,
) -> Alignment:
    """Find the common rows of the driver and its peers or, to `predict` some rows, of
    the driver and one peer. They are each learner's `common_rows` then; with `reveal`
    "count" nobody learns them, whatever the settings allow."""
    names = (driver.name, *peers)
    if len(names) < 2 or len(set(names)) != len(names):
        raise ConfigError(
            "An alignment takes two or more parties with names of their own; found"
            f" {list(names)}."
        )
    revealed = reveal or driver.settings.reveal
    alignments = []
    # a count does not say which rows are unmatched
    for key in range(len(driver.keys) if revealed == "rows" else 1):
        if (
            predict
            and key
            and not len(driver.keys[key].left(driver.rows_by_key, fill=False))
        ):
            break
        alignments.append(
            _Run(driver, peers, names, predict, revealed, watch, chunk, key)()
        )
    return joined(alignments)


def joined(alignments: Sequence[Alignment]) -> Alignment:
    """One alignment made of those by each key."""
    counts = tuple(alignment.common for alignment in alignments)
    return replace(alignments[0], common=sum(counts), by_key=counts)


@dataclass
class _Run:
    """One alignment by one key, as its driver conducts it. The driver asks itself like
    the others; nothing crosses."""

    driver: IdOwner
    peers: Peers
    names: tuple[str, ...]
    predict: bool
    reveal: str
    watch: Watch | None
    chunk: int
    key: int

    def __call__(self) -> Alignment:
        self.learners = self.driver.settings.learners_among(self.names)
        # each party's list, as far as it got
        self.lists: dict[str, list[Released]] = {}
        self.done = 0
        self.failed = threading.Event()
        self.lock = threading.Lock()
        self._agree()
        self._together(self._blind)
        for turn in range(1, len(self.names)):
            self._together(partial(self._raise, turn))
        positions = common_positions({name: self._final(name) for name in self.names})
        common = len(positions[self.driver.name])
        for name in self.learners:
            if self.reveal == "rows":
                self._show(name, positions[name])
            else:
                self._ask(name, Tell(common))
        for name in self.names:
            self._ask(name, End())
        settings = self.driver.settings
        return Alignment(
            self.driver.name,
            self.sizes,
            common,
            settings.ids,
            self.reveal,
            self.learners,
        )

    def _ask(self, name: str, request: Request[R]) -> R:
        return (
            self.driver.answer(request)
            if name == self.driver.name
            else self.peers.ask_one(name, request)
        )

    def _at(self, owner: str, turn: int) -> str:
        """The party that a list reaches at this turn."""
        return self.names[(self.names.index(owner) + turn) % len(self.names)]

    def _agree(self) -> None:
        settings = self.driver.settings
        agreed = (self.names, settings.ids, self.reveal, self.learners)
        own = self._ask(self.driver.name, Agree(*agreed, int(self.predict), self.key))
        request = Agree(*agreed, own.ids if self.predict else 0, self.key)
        counts = {
            name: own if name == self.driver.name else self._ask(name, request)
            for name in self.names
        }
        check_columns(counts, self.driver.name, request)
        self.sizes = {name: count.ids for name, count in counts.items()}

    def _together(self, work: Callable[[str], None]) -> None:
        """Work on all lists at once, each at another party; the first failure stops the
        others at their next part."""

        def work_on_list(owner: str) -> None:
            try:
                work(owner)
            except BaseException:
                self.failed.set()
                raise

        with ThreadPoolExecutor(len(self.names), thread_name_prefix="align") as pool:
            try:
                list(pool.map(work_on_list, self.names))
            except BaseException:  # also an interruption from the keyboard
                self.failed.set()
                raise

    def _parts(self, owner: str) -> Iterator[tuple[int, int]]:
        for start in range(0, self.sizes[owner], self.chunk):
            if self.failed.is_set():
                return
            yield start, min(self.chunk, self.sizes[owner] - start)

    def _blind(self, owner: str) -> None:
        blinded = self.lists[owner] = []
        for start, count in self._parts(owner):
            request = Blind(start, count)
            blinded.append(
                self._checked(owner, request, self._ask(owner, request), count)
            )
            self._tick(count)

    def _raise(self, turn: int, owner: str) -> None:
        giver = self._at(owner, turn - 1)
        taker = self._at(owner, turn)
        waiting = deque(self.lists.pop(owner))  # what is sent need not be kept
        for start, count in self._parts(owner):
            self._ask(
                taker, Raise(owner, giver, start, self.sizes[owner], waiting.popleft())
            )
            self._tick(count)
        raised = []
        for start, count in self._parts(owner):
            request = Fetch(owner, start, count)
            raised.append(
                self._checked(taker, request, self._ask(taker, request), count)
            )
        self.lists[owner] = raised

    def _checked(
        self, giver: str, request: Request[Points], answer: Points, count: int
    ) -> Released:
        try:
            given = len(as_points(answer.points, "the answer"))
        except Refused as refused:
            raise PartyError(giver, request.kind, None, str(refused)) from None
        if given != count:
            raise PartyError(
                giver,
                request.kind,
                None,
                f"it was asked for {count} points and gave {given}",
            )
        return answer.points

    def _tick(self, count: int) -> None:
        with self.lock:
            self.done += count
            if self.watch is not None:
                self.watch(self.done, sum(self.sizes.values()) * len(self.names))

    def _final(self, owner: str) -> NDArray[np.uint8]:
        """A list that passed through everybody. No party will multiply it again, so its
        points are checked here."""
        giver = self._at(owner, len(self.names) - 1)
        points = np.concatenate(
            [released.tensor.cpu().numpy() for released in self.lists.pop(owner)]
        )
        if giver != self.driver.name:
            try:
                curve.check(points)
            except curve.NotAPoint as error:
                raise PartyError(
                    giver,
                    Fetch.kind,
                    None,
                    f"{error}, of what it handed out of '{owner}'",
                ) from None
        if has_twice(points):
            raise PartyError(
                giver,
                Fetch.kind,
                None,
                f"it handed out points of '{owner}' more than once",
            )
        return points

    def _show(self, owner: str, positions: NDArray[np.int64]) -> None:
        """Send positions back the way the list came, every party undoing its shuffle."""
        released = self.driver.outbox.release(
            torch.from_numpy(positions.astype(np.int32)), POSITIONS, ALIGN
        )
        for turn in range(len(self.names) - 1, 0, -1):
            released = self._ask(
                self._at(owner, turn), Trace(owner, released)
            ).positions
        self._ask(owner, Learn(released))


def check_columns(
    counts: Mapping[str, IdCount], driver: str, request: Request[IdCount]
) -> None:
    """Check that all parties make their ids of as many columns as the driver, and have
    some."""
    columns = counts[driver].columns
    for name, count in counts.items():
        if count.columns != columns:
            raise ConfigError(
                f"'{name}' makes its ids of {count.columns} columns and '{driver}' of"
                f" {columns}. Make them of the same columns, in the same order."
            )
        if count.ids < 1:
            raise PartyError(
                name, request.kind, None, f"it says that it has {count.ids} ids"
            )


def has_twice(rows: NDArray[np.uint8]) -> bool:
    """Whether a list has one entry more than once."""
    ordered = np.sort(_comparable(rows))
    return bool((ordered[1:] == ordered[:-1]).any())


def common_positions(
    lists: Mapping[str, NDArray[np.uint8]],
) -> dict[str, NDArray[np.int64]]:
    """The positions in each list of the points that all lists have, in the points' own
    order. No list has one twice."""
    words = {name: _comparable(points) for name, points in lists.items()}
    common = reduce(partial(np.intersect1d, assume_unique=True), words.values())
    found = {
        name: np.intersect1d(common, every, assume_unique=True, return_indices=True)
        for name, every in words.items()
    }
    return {name: places for name, (_, _, places) in found.items()}


def _comparable(points: NDArray[np.uint8]) -> NDArray[np.bytes_]:
    """Rows as strings of equal length, which numpy sorts like bytes."""
    return np.ascontiguousarray(points).view(f"S{points.shape[1]}").reshape(-1)
