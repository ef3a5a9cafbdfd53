"""The parties that one party may ask, and what carries its calls to them."""

from __future__ import annotations

import itertools
import queue
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ClassVar, Literal, Protocol, TypeVar, runtime_checkable

from torch import Tensor

from colonnade.core.answers import Answers, Declared
from colonnade.core.ledger import Ledger
from colonnade.core.message import Done, Message, Ping, Request, answered_by
from colonnade.core.missing import Missing
from colonnade.core.presence import Presence
from colonnade.core.wire import Envelope
from colonnade.errors import BoundaryError, NoAnswer, PartyError

R = TypeVar("R", bound=Message)
Call = Envelope[Request[Any]]
Answer = Message | PartyError
"""What comes of a call: the reply, or the failure of the party that was asked."""

NUMBERS = itertools.count(time.time_ns())
"""The numbers of all calls from this process.

They start at the clock, in nanoseconds, and nobody makes a call in each. So the numbers
of a restarted driver are above all that it ever used, and a party can tell an old call
by its number (`party.AnsweredCalls`)."""

_COUNTING = threading.Lock()


class Transport(Protocol):
    """Carries calls to parties, and their answers back."""

    def exchange(self, calls: Sequence[Envelope[Any]]) -> list[Answer]:
        """Make calls, which may be under way at the same time, and give the answer to
        each, in order.

        Calls to one party are done in their order. After one that fails, the party's
        other calls are not done and have the same failure for an answer. Any error but
        a PartyError is raised, once no call is under way.
        """
        ...


@runtime_checkable
class Holds(Protocol):
    """A transport that lets calls wait for the next one to the same party
    (`transport.holding`)."""

    def send_held(self) -> None: ...


def by_receiver(calls: Sequence[Envelope[Any]]) -> dict[str, list[Envelope[Any]]]:
    """The calls to each party, in their order."""
    groups: dict[str, list[Envelope[Any]]] = {}
    for call in calls:
        groups.setdefault(call.receiver, []).append(call)
    return groups


class Peer:
    """One other party."""

    def __init__(self, name: str, peers: Peers) -> None:
        self.name = name
        self._peers = peers

    def ask(self, request: Request[R]) -> R:
        return self._peers.ask_one(self.name, request)


class Peers(Mapping[str, Peer]):
    """The parties that one party may ask, in their agreed order.

    Args:
        owner: The party that asks.
        names: The parties that it may ask.
        transport: Carries the calls.
        ledger: The asker's own record of what leaves it and arrives.
    """

    answers: Answers | None = None
    """Looks at every answer before it is used, where parties may be strangers."""
    missing: Missing | None = None
    """Goes on without answers that do not come, where the settings allow it."""
    presence: Presence | None = None
    """Asks each party for the rows that it holds, where not all hold the same."""
    waited: ClassVar[int] = 0
    """How often this process would have waited for answers, were all parties
    elsewhere. Plans estimate times by it."""

    def __init__(
        self, owner: str, names: Iterable[str], transport: Transport, ledger: Ledger
    ) -> None:
        self.owner = owner
        self.transport = transport
        self.ledger = ledger
        self._peers = {name: Peer(name, self) for name in names}
        self._last_may_travel_later = False
        """Whether the last calls are answered by Done, so that they may travel with the
        next."""

    def __getitem__(self, name: str) -> Peer:
        return self._peers[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._peers)

    def __len__(self) -> int:
        return len(self._peers)

    def ask(self, request: Request[R]) -> dict[str, R]:
        """Ask all peers the same. Answers are in the agreed order of parties."""
        return self.ask_each(dict.fromkeys(self._peers, request))

    def ask_each(self, requests: Mapping[str, Request[R]]) -> dict[str, R]:
        """Ask each of some peers its own question. Answers are in the order of
        `requests`."""
        calls = self._calls_for(requests)
        if self.presence is not None:
            calls = self.presence.to_ask(calls)
        if self.missing is not None:
            replies, failures = self._attempt(self.missing.to_ask(calls))
            return self.missing.complete(calls, replies, failures)  # type: ignore[return-value]
        self._count_waiting([call.message for call in calls.values()])
        told: dict[str, Any] = {}
        for name, answer in self._exchange(calls).items():
            if isinstance(answer, PartyError):
                raise answer
            told[name] = answer
        return {
            name: self._taken(name, calls[name].message, reply)
            for name, reply in told.items()
        }

    def ask_one(self, name: str, request: Request[R]) -> R:
        """Ask one peer, whether or not it holds the rows that the request is about."""
        self._count_waiting([request])
        answer = self._exchange(self._calls_for({name: request}))[name]
        if isinstance(answer, PartyError):
            raise answer
        self.take(name, request, answer)
        return answer  # type: ignore[return-value]

    def attempt(
        self, requests: Mapping[str, Request[R]]
    ) -> tuple[dict[str, R], dict[str, PartyError]]:
        """Ask each of some peers its own question. Gives the replies, and the failures
        of the peers that did not answer."""
        return self._attempt(self._calls_for(requests))

    def stream(
        self,
        make: Callable[[str], Request[R] | None],
        turns: Iterable[str] | None = None,
    ) -> Iterator[tuple[str, R]]:
        """Ask without waiting for everybody: give each answer as it comes, and then ask
        that party its next question.

        When a party fails, or the answers are no longer wanted, the calls under way are
        waited for: what is saved or asked next must not meet a party that still
        computes.

        Args:
            make: Gives a party's next question, or None when there is none.
            turns: The order in which parties are asked, one at a time. A seeded order
                repeats a run. By default every party has one call under way.
        """
        if turns is None:
            yield from self._stream_as_they_arrive(make)
            return
        for name in turns:
            request = make(name)
            if request is not None:
                yield name, self.ask_one(name, request)

    def heartbeat(self) -> dict[str, float | None]:
        """How many seconds each peer took to say that it is there; None for a peer that
        did not."""

        def seconds_until(name: str) -> float | None:
            start = time.perf_counter()
            (call,) = self._calls_for({name: Ping()}).values()
            try:
                (answer,) = self.transport.exchange([call])
            except BoundaryError as refused:  # a party that refuses is there
                answer = PartyError(name, Ping.kind, None, str(refused))
            if isinstance(answer, NoAnswer):
                return None
            return time.perf_counter() - start

        most = max(len(self), 1)
        with ThreadPoolExecutor(most, thread_name_prefix="heartbeat") as pool:
            return dict(zip(self, pool.map(seconds_until, self), strict=True))

    def settle(self) -> None:
        """Have everything done that was asked: what waits for a next call is sent
        without one."""
        if self._last_may_travel_later:
            self._count_waiting([])
        if isinstance(self.transport, Holds):
            self.transport.send_held()

    def look(
        self,
        rows: Callable[[str], Tensor],
        widths: Mapping[str, int],
        releases: Mapping[str, Declared],
        wide: Collection[str],
    ) -> None:
        """Look at every answer from here on before it is used.

        Args:
            rows: The rows of a batch, by its name.
            widths: How many numbers each party sends per row.
            releases: What the algorithm declares of each release.
            wide: The releases that have as many numbers per row as the party told.
        """
        held = None if self.presence is None else self.presence.size
        self.answers = Answers(rows, widths, releases=releases, wide=wide, held=held)

    def take(self, name: str, request: Request[Any], reply: Message) -> None:
        """Write down a reply, and look at it before anybody uses it."""
        self.note("in", name, reply)
        if self.answers is not None:
            self.answers.check(name, request, reply)

    def note(
        self, direction: Literal["out", "in"], name: str, message: Message
    ) -> None:
        """Write down what crossed. Between two roles of one organisation, only the role
        that answers does so."""
        if name != self.owner:
            self.ledger.write(direction, name, message)

    def _calls_for(self, requests: Mapping[str, Request[Any]]) -> dict[str, Call]:
        """The calls for some questions, all with one new number."""
        number = next(NUMBERS)
        return {
            name: Envelope(self.owner, number, request, receiver=name)
            for name, request in requests.items()
        }

    def _attempt(
        self, calls: Mapping[str, Call]
    ) -> tuple[dict[str, Any], dict[str, PartyError]]:
        self._count_waiting([])
        replies: dict[str, Any] = {}
        failures: dict[str, PartyError] = {}
        for name, answer in self._exchange(calls).items():
            if isinstance(answer, PartyError):
                failures[name] = answer
            else:
                replies[name] = self._taken(name, calls[name].message, answer)
        return replies, failures

    def _exchange(self, calls: Mapping[str, Call]) -> dict[str, Answer]:
        """Make the calls. What was asked is written down however it ended."""
        try:
            answers = self.transport.exchange(list(calls.values()))
        finally:
            for name, call in calls.items():
                self.note("out", name, call.message)
        return dict(zip(calls, answers, strict=True))

    def _taken(self, name: str, request: Request[Any], reply: Message) -> Any:
        """A reply as the asker goes on with it, in all rows that were asked for."""
        self.take(name, request, reply)
        if self.presence is None:
            return reply
        return self.presence.complete(name, request, reply)

    def _count_waiting(self, requests: Sequence[Request[Any]]) -> None:
        """Count one wait, unless all of these may travel with the next calls."""
        only_done = all(answered_by(type(request)) is Done for request in requests)
        self._last_may_travel_later = bool(requests) and only_done
        if not self._last_may_travel_later:
            with _COUNTING:
                Peers.waited += 1

    def _stream_as_they_arrive(
        self, make: Callable[[str], Request[R] | None]
    ) -> Iterator[tuple[str, R]]:
        """Keep one call under way to every party that has a next question."""
        arrived: queue.SimpleQueue[tuple[str, R | BaseException]] = queue.SimpleQueue()

        def call(name: str, request: Request[R]) -> None:
            try:
                arrived.put((name, self.ask_one(name, request)))
            except BaseException as error:
                arrived.put((name, error))

        def start(name: str) -> int:
            """Begin a party's next call; how many calls were begun."""
            request = make(name)
            if request is None:
                return 0
            threading.Thread(target=call, args=(name, request), daemon=True).start()
            return 1

        under_way = 0
        try:
            for name in self:
                under_way += start(name)
            while under_way:
                name, answer = arrived.get()
                under_way -= 1
                if isinstance(answer, BaseException):
                    raise answer
                yield name, answer
                under_way += start(name)
        finally:
            # When the interpreter ends, the threads have ended before.
            while under_way and not sys.is_finalizing():
                arrived.get()
                under_way -= 1
