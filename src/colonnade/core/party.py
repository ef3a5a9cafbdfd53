"""A party: one organisation in one role. It answers the requests its class serves, and
nothing leaves it otherwise."""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeVar, get_type_hints

import torch
from torch import Generator

from colonnade.core.batches import Agreed, Batches, seed_for
from colonnade.core.chance import secret_generator
from colonnade.core.files import mapped_zeros
from colonnade.core.ledger import Ledger
from colonnade.core.message import Done, Message, Request, answered_by, batch_of
from colonnade.core.outbox import Outbox
from colonnade.core.release import Rule
from colonnade.core.wire import Envelope
from colonnade.errors import BoundaryError, BudgetExhausted, NoAnswer, PartyError

State = dict[str, Any]
"""Nested dicts and lists of tensors and plain scalars: what a checkpoint can hold."""

log = logging.getLogger("colonnade.party")

R = TypeVar("R", bound=Message)
T = TypeVar("T")
Handler = TypeVar("Handler", bound=Callable[..., Message])


def serves(method: Handler) -> Handler:
    """Mark a method `(self, request: SomeRequest) -> SomeReply` as answering that
    request. One that releases something has a second argument, `asker: str | None`, and
    releases `to` it; None is the party itself."""
    method.__serves__ = method.__code__.co_argcount - 1  # type: ignore[attr-defined]
    return method


@dataclass(frozen=True)
class Bounds:
    """What a party on its own machine holds others to, whatever they send: how many
    outputs the model of this run has, and how many bytes an answer may take."""

    outputs: int
    answer: int


WINDOW = 64
"""How far a late call may lie behind the newest one."""


class Calls:
    """Which of a sender's calls a party has answered: each is answered once, and an old
    one never again.

    Numbers grow: a driver starts at its clock and counts on, so a restarted one is
    above all that it ever sent. As in IPsec (RFC 4303, 3.4.3) there is a window below
    the newest number. A number above the newest is new; one in the window that was not
    answered is late, and new; whatever else comes is a replay. The newest call has its
    reply kept, so that a repeated delivery of it is answered from memory. A call that
    failed is not noted: it may be tried again.
    """

    __slots__ = ("newest", "recent", "reply")

    def __init__(self, number: int, reply: Message) -> None:
        self.newest = number
        self.reply = reply
        # while a number is in the window, fewer others can be answered
        self.recent = deque((number,), 2 * WINDOW)

    def note(self, number: int, reply: Message) -> None:
        """Remember that a call was answered."""
        self.recent.append(number)
        if number > self.newest:
            self.newest = number
            self.reply = reply

    def repeated(self, number: int, party: str, sender: str) -> Message | None:
        """For a number that is not above the newest: the reply it had, None where it is
        late but new, or a refusal."""
        if number == self.newest:
            return self.reply
        if number > self.newest - WINDOW and number not in self.recent:
            return None
        raise BoundaryError(
            f"'{party}' refuses a call of {sender[:80]!r} that is older than what it"
            f" has answered: number {number}, and the newest is {self.newest}. It was"
            " replayed, or the sender's clock was set back: correct it."
        )


@dataclass
class Organisation:
    """An organisation in a federation: what its roles share, and the roles it plays.

    `roles` are known by the names that a checkpoint has for them: "features", "labels",
    "server". `fitted` says how its columns and labels became numbers.
    """

    name: str
    outbox: Outbox
    batches: Batches | Agreed
    generator: Generator
    ledger: Ledger
    device: torch.device
    # whether nobody who knows the agreed seed knows its random numbers
    secret: bool = False
    roles: dict[str, Party] = field(default_factory=dict)
    fitted: State = field(default_factory=dict)
    bounds: Bounds | None = None  # None: in one process, where nobody is a stranger
    # what its model learns from its own rows, before anybody trains
    pretrain: Callable[[], None] | None = None
    # while it trains: its roles as they were when validation rows scored best
    best: State | None = None
    # once it took its best: its roles as training left them, to go on from
    last: State | None = None

    @classmethod
    def at(
        cls,
        name: str,
        batches: Batches | Agreed,
        *,
        seed: int = 0,
        secret: bool = False,
        rules: Mapping[str, Rule] | None = None,
        device: torch.device | str = "cpu",
    ) -> Organisation:
        """An organisation with an empty ledger and the owner's rules. Its random
        numbers depend on the seed and the name, which others know; where it is
        `secret`, they come from the operating system."""
        generator = (
            secret_generator()
            if secret
            else Generator().manual_seed(seed_for(seed, name))
        )
        outbox = Outbox(name, generator, rules)
        return cls(
            name, outbox, batches, generator, Ledger(name), torch.device(device), secret
        )

    def start(self, seed: int) -> Generator:
        """Where the weights of a new model come from: this seed, or where they are
        secret, the operating system. They have a generator of their own, so that what
        the party's other one draws later says nothing about them."""
        return secret_generator() if self.secret else Generator().manual_seed(seed)

    def state(self) -> State:
        """For a checkpoint: where the random numbers, the receipts, the ledger and the
        budget stand, and each role.

        Secret noise is not in it: continued, it would hide two different tensors behind
        the same numbers.
        """
        own: State = {
            "generator": self.generator.get_state(),
            "released": self.outbox.released,
            "followed": self.outbox.followed,
            "ledger": self.ledger.state(),
        }
        own |= {} if self.outbox.meter is None else {"meter": self.outbox.meter.state()}
        aside = {
            key: kept
            for key, kept in (("best", self.best), ("last", self.last))
            if kept is not None
        }
        return {"seat": own} | self._of_roles() | aside

    def _of_roles(self) -> State:
        return {role: party.state() for role, party in self.roles.items()}

    def _become(self, state: State) -> None:
        for role, party in self.roles.items():
            party.load_state(state[role])

    def keep_best(self) -> None:
        """Remember its roles as they are now: no model scored better on validation
        rows."""
        self.best = copied(self._of_roles())
        self.last = None

    def drop_best(self) -> None:
        self.best = self.last = None

    def take_best(self) -> None:
        """Training has ended: have the best models again. Where training stopped is
        kept, to go on from there."""
        if self.best is not None and not same(now := self._of_roles(), self.best):
            self.last = copied(now)
            self._become(self.best)
        self.best = None

    def go_on(self) -> None:
        """Train further: from where training stopped, with the best models aside."""
        if self.last is not None:
            self.best = copied(self._of_roles())
            self._become(self.last)
            self.last = None

    def begin_with(self, state: State) -> None:
        """Start training with the models of another run, whose rows may be others: what
        belongs to its rows, where its optimizers and random numbers stood, and what it
        released stay behind."""
        for role, party in self.roles.items():
            now = party.state()
            before = state[role]
            found = taken(now, before)
            for part in ("model", "heads"):
                if part in now and not same(found[part], before[part]):
                    raise RuntimeError(f"{part} of another shape")
            party.load_state(found)

    def load_state(self, state: State) -> None:
        """Continue from `state()`; the ledger's own file is cut back by
        `Ledger.rewind`."""
        own = state["seat"]
        self.generator.set_state(own["generator"].cpu())
        self.outbox.released = own["released"]
        self.outbox.followed = own.get("followed", "")
        if self.outbox.meter is not None and "meter" in own:
            self.outbox.meter.load_state(own["meter"])
        # once kept beside the role's own
        older = {key: state[key] for key in ("drawn", "missing") if key in state}
        for role, party in self.roles.items():
            party.load_state(older | state[role])
        self.best = state.get("best")
        self.last = state.get("last")


def copied(state: State) -> State:
    """The same values in memory of their own."""

    def copy(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return mapped_zeros(value.shape, value.dtype, value.device).copy_(
                value.detach()
            )
        if isinstance(value, dict):
            return {key: copy(inner) for key, inner in value.items()}
        return (
            [copy(inner) for inner in value]
            if isinstance(value, (list, tuple))
            else value
        )

    return {key: copy(value) for key, value in state.items()}


def taken(now: Any, before: Any) -> Any:
    """A state with all tensors of an earlier one that have the same place and shape."""
    if (
        isinstance(now, torch.Tensor)
        and isinstance(before, torch.Tensor)
        and now.shape == before.shape
    ):
        return before.to(now.device, now.dtype, copy=True)
    if (
        isinstance(now, dict)
        and isinstance(before, dict)
        and now.keys() == before.keys()
    ):
        return {key: taken(value, before[key]) for key, value in now.items()}
    return now


def same(one: Any, other: Any) -> bool:
    """Whether two states have equal values."""
    if isinstance(one, torch.Tensor):
        return isinstance(other, torch.Tensor) and torch.equal(one, other)
    if isinstance(one, dict):
        return (
            isinstance(other, dict)
            and one.keys() == other.keys()
            and all(same(one[k], other[k]) for k in one)
        )
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(
            same(a, b) for a, b in zip(one, other, strict=True)
        )
    return bool(one == other)


def cores() -> int:
    """Those that this process may use."""
    return (
        len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    )


ALL_THREADS_PAY = 300_000_000
"""Operations from which torch gains by using more than one thread for them, and what is
between them."""


@contextmanager
def one_torch_thread(wanted: bool = True) -> Iterator[None]:
    """Inside, torch computes with one thread; the setting is the process's, so it is
    put back afterwards."""
    before = torch.get_num_threads()
    if not wanted or before == 1:
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


class Refused(Exception):  # noqa: N818 - a condition, not an error of its own; `answer` turns it into a PartyError
    """A request does not fit the party's state."""


def _request_of(method: Callable[..., Message]) -> type[Request[Any]]:
    """The class of the request that a method marked with `serves` takes."""
    hints = get_type_hints(method)
    return next(hint for key, hint in hints.items() if key != "return")  # type: ignore[no-any-return]


@contextmanager
def all_undisturbed(parties: Iterable[Party]) -> Iterator[None]:
    """Inside, all of these are undisturbed. Whoever asks for several names them in one
    order: else two may wait for each other."""
    held = []
    try:
        for party in parties:
            party._lock.acquire()
            held.append(party._lock)
        yield
    finally:
        for lock in held:
            lock.release()


class Party:
    """Answers requests. Subclass a role (`core.roles`) and mark methods with `@serves`."""

    # True: a cohort may compute for it, since it uses no keys of its own
    stackable = False
    # who may ask; None: whoever the transport lets through
    serves_for: Collection[str] | None = None
    # of some requests, who may ask them
    reserved: Mapping[type[Request[Any]], Collection[str]] = {}
    # answered while it computes, and not counted as calls
    aside: ClassVar[Collection[type[Request[Any]]]] = ()
    _served: ClassVar[dict[type[Request[Any]], str] | None] = None

    def __init__(self, organisation: Organisation) -> None:
        self.organisation = organisation
        self.name = organisation.name
        self.outbox = organisation.outbox
        self.generator = organisation.generator
        self.ledger = organisation.ledger
        self.device = organisation.device
        self._lock = threading.RLock()
        self._answered: dict[str, Calls] = {}

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls._served = None

    @classmethod
    def served(cls) -> dict[type[Request[Any]], str]:
        """Request class -> the name of the method that answers it."""
        if cls._served is None:
            marked = [
                name
                for name in dir(cls)
                if getattr(getattr(cls, name), "__serves__", 0)
            ]
            # whole at once: threads look here
            cls._served = {_request_of(getattr(cls, name)): name for name in marked}
        return cls._served

    def handle(self, envelope: Envelope[Request[R]]) -> R:
        """Answer one call and write down what came and went. A repeated call gets its
        first reply; older calls, and those of parties that were not agreed on, are
        refused. A cohort does the same for its members."""
        request = envelope.message
        sender = envelope.sender
        self.allow(sender, type(request))
        if type(request) in self.aside:
            return self._call(request, sender)
        with self._lock:
            reply = self.remembered(envelope)
            if reply is None:
                self.ledger.write("in", sender, request)
                reply = self.answer(request, sender)
                self.conclude(envelope, reply)
            return reply

    def allow(self, sender: str, kind: type[Request[Any]]) -> None:
        """Refuse a call of somebody who may not make it, and one that nobody may make:
        by who asks what, so that a transport can do so before it unpacks anything."""
        allowed = self.reserved.get(kind, self.serves_for)
        if allowed is not None and sender not in allowed:
            why = f"this is for {', '.join(sorted(allowed)) or 'nobody'} to ask"
            log.warning(
                "%s: refused %s of %.80r: %s", self.name, kind.kind, sender, why
            )
            raise BoundaryError(
                f"'{self.name}' does not answer {kind.kind} of {sender[:80]!r}: {why}."
            )
        self._method(kind)

    def _method(self, kind: type[Request[Any]]) -> str:
        """The name of what answers a request."""
        method = self.served().get(kind)
        if method is None:
            raise BoundaryError(
                f"'{self.name}' ({type(self).__module__}.{type(self).__name__}) does"
                f" not serve {kind.kind}.\n    It serves:"
                f" {', '.join(sorted(one.kind for one in self.served()))}."
            )
        return method

    def _call(self, request: Request[R], asker: str | None) -> R:
        method = getattr(self, self._method(type(request)))
        return method(*(request, asker)[: method.__serves__])  # type: ignore[no-any-return]

    def remembered(self, envelope: Envelope[Request[R]]) -> R | None:
        """The reply that a call had when it came the first time; None for a new one,
        and an old one is refused."""
        known = self._answered.get(envelope.sender)
        if known is None or envelope.number > known.newest:
            return None
        # Its frame came again. The request was done, and a reply that says no more than
        # that can be given again.
        was_answered = envelope.number in known.recent
        if was_answered and answered_by(type(envelope.message)) is Done:
            return Done()  # type: ignore[return-value]
        try:
            return known.repeated(envelope.number, self.name, envelope.sender)  # type: ignore[return-value]
        except BoundaryError:
            log.warning(
                "%s: refused a replayed %s of %.80r",
                self.name,
                envelope.message.kind,
                envelope.sender,
            )
            raise

    def conclude(self, envelope: Envelope[Request[R]], reply: R) -> None:
        """Write down and remember how a call was answered."""
        self.ledger.write("out", envelope.sender, reply)
        known = self._answered.get(envelope.sender)
        if known is None:
            self._answered[envelope.sender] = Calls(envelope.number, reply)
        else:
            known.note(envelope.number, reply)

    def undisturbed(self) -> AbstractContextManager[Any]:
        """While it is held, this party answers nobody: what a call reads does not
        change under it."""
        return self._lock

    def answer(self, request: Request[R], asker: str | None = None) -> R:
        """Do what somebody asks, or where nobody is named, this party itself.

        Whatever goes wrong names this party, the request and the batch. After a failure
        its attributes are those from before the call, so that what does not fit spoils
        nothing that was set aside; what a method changed in place, as a model's
        weights, stays changed, and the last checkpoint is the way back.
        """
        before = vars(self).copy()
        followed = self.outbox.followed
        try:
            return self._call(request, asker)
        # of somebody that this party had asked in turn: it answers itself, that it
        # failed
        except NoAnswer as error:
            raise PartyError(
                error.party, error.request, error.batch, error.cause
            ) from error
        except PartyError:
            raise
        except (BoundaryError, BudgetExhausted):
            self._restore(before, followed)
            raise
        # a model of one's own may end the program: here that is a failure
        except (Exception, SystemExit) as error:
            self._restore(before, followed)
            private = not isinstance(error, Refused)
            cause = f"{type(error).__name__}: {error}" if private else str(error)
            raise PartyError(
                self.name, request.kind, batch_of(request), cause, private=private
            ) from error

    def _restore(self, attributes: Mapping[str, Any], followed: str) -> None:
        self.outbox.followed = followed
        for added in vars(self).keys() - attributes.keys():
            del vars(self)[added]
        vars(self).update(attributes)

    def rows(self, batch: str) -> torch.Tensor:
        """The row numbers of an agreed batch, on this party's device."""
        return self.organisation.batches.rows(batch, self.device)

    def expect(self, condition: bool, otherwise: str) -> None:
        """Refuse a request that does not fit this party's state."""
        if not condition:
            raise Refused(otherwise)

    def needed(self, value: T | None, otherwise: str) -> T:
        """What a request takes for granted of this party's state; refused where it is
        not there."""
        self.expect(value is not None, otherwise)
        assert value is not None
        return value

    def state(self) -> State:
        """What this role must remember to continue bit-equal; roles add to it."""
        return {}

    def load_state(self, state: State) -> None:
        """Continue from `state()`."""
