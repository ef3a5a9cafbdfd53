"""The others, as a party that drives sees them: ask one, ask all, ask each something else, or take turns.

Algorithms know only this; what carries the calls is a `Transport`.
"""

from __future__ import annotations

import itertools
import queue
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ClassVar, Literal, Protocol, TypeVar, runtime_checkable

import torch
from torch import Tensor

from colonnade.core.cipher import Ciphertext
from colonnade.core.message import Done, Ledger, Message, Ping, Request, answered_by, batch_of
from colonnade.core.missing import Missing
from colonnade.core.presence import Presence
from colonnade.core.release import Released
from colonnade.core.wire import Envelope
from colonnade.errors import BoundaryError, ColonnadeError, NoAnswer, PartyError

R = TypeVar("R", bound=Message)
NUMBERS = itertools.count(time.time_ns())
"""Of all calls from this process. They start at the clock, in nanoseconds, and nobody makes a call in each: so those of
a restarted driver are above those it had, and a party can tell an old call by its number (`party.Calls`)."""


class Transport(Protocol):
    """Carries a call to a party and its answer back. A failure is a PartyError that names the party."""

    def exchange(self, to: str, envelope: Envelope[Request[R]]) -> R: ...

    def exchange_each(self, envelopes: Mapping[str, Envelope[Request[R]]]) -> dict[str, R]:
        """Several at once, answers in the order of `envelopes`; when one fails, the first failure is raised."""
        ...


@runtime_checkable
class Holds(Protocol):
    """A transport that lets calls wait for the next one to the same party (`transport.holding`)."""

    def send_held(self) -> None: ...


@runtime_checkable
class Attempting(Transport, Protocol):
    """A transport that can ask several so that the failure of one does not end the call."""

    def attempt_each(self, envelopes: Mapping[str, Envelope[Request[R]]]) -> dict[str, R | PartyError]: ...


class Peer:
    """One other party."""

    def __init__(self, name: str, peers: Peers) -> None:
        self.name, self._peers = name, peers

    def ask(self, request: Request[R]) -> R:
        return self._peers.ask_one(self.name, request)


class Peers(Mapping[str, Peer]):
    """The parties that one party may ask, in their agreed order.

    `answers`, where set, looks at every answer before it is used; `missing` goes on without those that do not come;
    `presence` asks each for the rows it holds.
    """

    answers: Answers | None = None
    missing: Missing | None = None
    presence: Presence | None = None
    waited: ClassVar[int] = 0  # how often anybody in this process had to wait for answers, were all others elsewhere
    _untold = False  # whether the last call was answered by Done, which may travel with the next
    _unheard: Exception | None = None  # what failed when nobody could be told

    def __init__(self, owner: str, names: Iterable[str], transport: Transport, ledger: Ledger) -> None:
        self.owner, self.transport, self.ledger = owner, transport, ledger
        self._peers = {name: Peer(name, self) for name in names}
        self._calls = NUMBERS

    def __getitem__(self, name: str) -> Peer:
        return self._peers[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._peers)

    def __len__(self) -> int:
        return len(self._peers)

    def ask(self, request: Request[R]) -> dict[str, R]:
        """The same question to all; answers in party order."""
        envelope = Envelope(self.owner, next(self._calls), request)
        return self._exchange(dict.fromkeys(self._peers, envelope))

    def ask_each(self, requests: Mapping[str, Request[R]]) -> dict[str, R]:
        """To each its own question; answers in the order of `requests`."""
        number = next(self._calls)
        return self._exchange({name: Envelope(self.owner, number, r) for name, r in requests.items()})

    def ask_one(self, name: str, request: Request[R]) -> R:
        self.note("out", name, request)
        self._count([request])
        reply = self.transport.exchange(name, Envelope(self.owner, next(self._calls), request))
        self.take(name, request, reply)
        return reply

    def attempt(self, requests: Mapping[str, Request[R]]) -> tuple[dict[str, R], dict[str, PartyError]]:
        """To each its own question; the answers, and the failures of those that did not answer. All are asked at once,
        unless the transport knows better (`Attempting`); anything but a PartyError is raised when all are done."""
        number = next(self._calls)
        return self._attempt({name: Envelope(self.owner, number, request) for name, request in requests.items()})

    def _attempt(self, envelopes: Mapping[str, Envelope[Request[Any]]]) -> tuple[dict[str, Any], dict[str, PartyError]]:
        found: dict[str, Any] = {}
        self._count([])
        try:
            if isinstance(self.transport, Attempting):
                found = self.transport.attempt_each(envelopes)
            else:
                with ThreadPoolExecutor(max(len(envelopes), 1), thread_name_prefix="attempt") as pool:
                    calls = {name: pool.submit(self.transport.exchange, name, e) for name, e in envelopes.items()}
                for name, call in calls.items():
                    error = call.exception()
                    if error is not None and not isinstance(error, PartyError):
                        raise error
                    found[name] = error or call.result()
        finally:
            self._note_asked(envelopes)
        replies: dict[str, Any] = {}
        failures: dict[str, PartyError] = {}
        for name, answer in found.items():
            if isinstance(answer, PartyError):
                failures[name] = answer
            else:
                replies[name] = self._taken(name, envelopes[name].message, answer)
        return replies, failures

    def heartbeat(self) -> dict[str, float | None]:
        """By peer the seconds until it said that it is there, or None."""

        def beat(name: str) -> float | None:
            start = time.perf_counter()
            try:
                self.transport.exchange(name, Envelope(self.owner, next(self._calls), Ping()))
            except NoAnswer:
                return None
            except (BoundaryError, PartyError):  # it is there to say so
                pass
            return time.perf_counter() - start

        with ThreadPoolExecutor(max(len(self), 1), thread_name_prefix="heartbeat") as pool:
            return dict(zip(self, pool.map(beat, self), strict=True))

    def stream(
        self, make: Callable[[str], Request[R] | None], turns: Iterable[str] | None = None
    ) -> Iterator[tuple[str, R]]:
        """Asynchrony: answers one at a time, each followed by that party's next question, until `make` gives None.

        With `turns` the parties are asked in that order, so a seeded order reproduces. Without, every party has one
        call under way and answers come as they arrive. When one fails, or the answers are no longer wanted, the calls
        under way are waited for: what is saved or asked next must not meet a party that still computes.
        """
        if turns is not None:
            for name in turns:
                if (request := make(name)) is not None:
                    yield name, self.ask_one(name, request)
            return
        answers: queue.SimpleQueue[tuple[str, R | BaseException]] = queue.SimpleQueue()

        def call(name: str, request: Request[R]) -> None:
            try:
                answers.put((name, self.ask_one(name, request)))
            except BaseException as error:
                answers.put((name, error))

        def start(name: str) -> int:
            if (request := make(name)) is None:
                return 0
            threading.Thread(target=call, args=(name, request), daemon=True).start()
            return 1

        under_way = 0
        try:
            for name in self:
                under_way += start(name)
            while under_way:
                name, answer = answers.get()
                under_way -= 1
                if isinstance(answer, BaseException):
                    raise answer
                yield name, answer
                under_way += start(name)
        finally:
            while under_way and not sys.is_finalizing():  # by then threads are gone
                answers.get()
                under_way -= 1

    def _exchange(self, envelopes: Mapping[str, Envelope[Request[Any]]]) -> dict[str, Any]:
        if self.presence is not None:
            envelopes = self.presence.to_ask(envelopes)
        if self.missing is not None:
            answered, failures = self._attempt(self.missing.to_ask(envelopes))
            return self.missing.complete(envelopes, answered, failures)
        self._count([envelope.message for envelope in envelopes.values()])
        try:
            replies = self.transport.exchange_each(envelopes)
        finally:
            self._note_asked(envelopes)
        return {name: self._taken(name, envelopes[name].message, reply) for name, reply in replies.items()}

    def settle(self, *, unheard: bool = False) -> None:
        """When this returns, everything that was asked is done: what waits for a next call is sent without one. Where
        a failure would be `unheard`, as Python drops what a generator raises while it is closed, whoever asks or
        settles next is told."""
        try:
            if self._untold or self._unheard is not None:
                self._count([])
            if isinstance(self.transport, Holds):
                self.transport.send_held()
        except Exception as error:
            if not unheard:
                raise
            self._unheard = error

    def _count(self, requests: Sequence[Request[Any]]) -> None:
        """Whether these calls may wait for the next; where they may not, that is waited once. Whoever makes them is
        told first what failed unheard."""
        error, self._unheard = self._unheard, None
        if error is not None:
            raise error
        self._untold = bool(requests) and all(answered_by(type(request)) is Done for request in requests)
        Peers.waited += not self._untold

    def _note_asked(self, envelopes: Mapping[str, Envelope[Request[Any]]]) -> None:
        """What was asked is written down however it ended; while a GPU works on the answer."""
        for name, envelope in envelopes.items():
            self.note("out", name, envelope.message)

    def _taken(self, name: str, request: Request[Any], reply: Message) -> Any:
        self.take(name, request, reply)
        return reply if self.presence is None else self.presence.complete(name, request, reply)

    def take(self, name: str, request: Request[Any], reply: Message) -> None:
        """An answer came: it is written down, and looked at before anybody uses it."""
        self.note("in", name, reply)
        if self.answers is not None:
            self.answers.check(name, request, reply)

    def look(
        self,
        rows: Callable[[str], Tensor],
        widths: Mapping[str, int],
        releases: Mapping[str, Declared],
        wide: Collection[str],
    ) -> None:
        """From here on every answer is looked at before it is used."""
        held = None if self.presence is None else self.presence.size
        self.answers = Answers(rows, widths, releases=releases, wide=wide, held=held)

    def note(self, direction: Literal["out", "in"], name: str, message: Message) -> None:
        """Between two roles of one organisation the one that answers writes it down, once."""
        if name != self.owner:
            self.ledger.write(direction, name, message)


class Declared(Protocol):
    """What an algorithm says of a name that it releases under."""

    @property
    def kind(self) -> object: ...

    @property
    def per_row(self) -> bool: ...


class Answers:
    """What a driver looks at before it uses an answer: is it for this batch, of this shape, and made of numbers?

    What does not fit ends the step before anything was learned from it, with an error that names the party. It is for
    parties elsewhere: those of one process are the same program, and a diverged model there shows in the loss. `rows`
    looks a batch up. A field of a message says of which kinds its releases are, and `releases` what the algorithm says
    of each: one per row has a line for each of the batch's rows, and where its name is in `wide`, a line is as wide as
    the party said (`widths`). The name is the sender's word, so one that the field is not for is refused."""

    def __init__(
        self,
        rows: Callable[[str], Tensor],
        widths: Mapping[str, int],
        *,
        releases: Mapping[str, Declared],
        wide: Collection[str],
        held: Callable[[str, str], int] | None = None,
    ) -> None:
        self.rows, self.widths, self.releases, self.wide = rows, widths, releases, wide
        self.held = held  # of how many rows of a batch a party has something, where parties differ

    def check(self, party: str, request: Request[Any], reply: Message) -> None:
        """Raise a PartyError unless the reply can be used."""
        batch = batch_of(request)
        for field, kinds in reply.kinds().items():
            for item in reply.crossing(field):
                receipt = item.receipt
                if batch is not None and receipt.batch not in (None, batch):
                    raise self._wrong(party, request, f"it answered for batch {receipt.batch}")
                declared = self.releases.get(receipt.name)
                if declared is None or declared.kind not in kinds:
                    raise self._misnamed(party, request, f"{reply.kind}.{field}", kinds, item)
                if declared.per_row and batch is not None:
                    self._check_shape(party, request, receipt.name, item.shape)
        for released in reply.released():
            tensor, receipt = released.tensor, released.receipt
            if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
                bad = tensor.numel() - int(torch.isfinite(tensor).sum())
                cause = (
                    f"{bad} of the {tensor.numel()} values it sent as {receipt.name} are no numbers (NaN or infinite). "
                    "Its model may have diverged: lower learning_rate, or look at its columns"
                )
                raise self._wrong(party, request, cause)

    def _misnamed(
        self, party: str, request: Request[Any], field: str, kinds: Collection[object], item: Released | Ciphertext
    ) -> PartyError:
        names = [repr(name) for name, declared in self.releases.items() if declared.kind in kinds]
        cause = (
            f"it sent {list(item.shape)} values in {field} as {item.receipt.name[:40]!r}, and only what this algorithm "
            f"releases as {' or '.join(names) or 'nothing'} may be there. Let it run the same version of Colonnade as "
            "you, unchanged"
        )
        return self._wrong(party, request, cause)

    def _check_shape(self, party: str, request: Request[Any], name: str, shape: tuple[int, ...]) -> None:
        try:
            batch = batch_of(request) or ""
            rows = len(self.rows(batch)) if self.held is None else self.held(party, batch)
        except ColonnadeError:  # not a batch of rows
            rows = None
        width = self.widths.get(party) if name in self.wide else None
        fits = (rows is None or shape[:1] == (rows,)) and (width is None or shape[-1:] == (width,))
        if not fits or (width is not None and len(shape) < 2):
            said = [word if known is None else str(known) for known, word in ((rows, "rows"), (width, "..."))]
            raise self._wrong(
                party, request, f"it sent {list(shape)} values, and [{', '.join(said)}] were asked for as {name}"
            )

    def _wrong(self, party: str, request: Request[Any], cause: str) -> PartyError:
        return PartyError(party, request.kind, batch_of(request), cause)
