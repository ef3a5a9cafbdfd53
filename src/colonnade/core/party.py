"""A party: one organisation in one role. It answers the requests that its class serves,
and nothing leaves it otherwise."""

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
    """Mark a method `(self, request: SomeRequest) -> SomeReply` as the one that answers
    that request.

    A method that releases something has a second argument, `asker: str | None`, and
    releases `to` it. None is the party itself.
    """
    method.__serves__ = method.__code__.co_argcount - 1  # type: ignore[attr-defined]
    return method


@dataclass(frozen=True)
class Bounds:
    """What a party on its own machine holds others to, whatever they send.

    Args:
        outputs: How many outputs the model of this run has.
        answer: How many bytes an answer may take.
    """

    outputs: int
    answer: int


CALL_WINDOW = 64
"""How far a late call may lie behind the newest one."""


class AnsweredCalls:
    """The calls of one sender that a party has answered. Each is answered once.

    Numbers grow: a driver starts at its clock and counts on, so a restarted driver is
    above all that it ever sent. As in IPsec (RFC 4303, 3.4.3) there is a window below
    the newest number. A number above the newest is new. A number in the window that was
    not answered is late, and new. Any other is a replay. The newest call has its reply
    kept, so that a repeated delivery of it is answered from memory. A call that failed
    is not noted: it may be tried again.
    """

    __slots__ = ("newest", "recent", "reply")

    def __init__(self, number: int, reply: Message) -> None:
        self.newest = number
        self.reply = reply
        # Fewer calls than this can be answered while a number is in the window.
        self.recent = deque((number,), 2 * CALL_WINDOW)

    def note(self, number: int, reply: Message) -> None:
        """Remember that a call was answered."""
        self.recent.append(number)
        if number > self.newest:
            self.newest = number
            self.reply = reply

    def is_late(self, number: int) -> bool:
        """Whether a number below the newest belongs to a call that comes only now."""
        return number > self.newest - CALL_WINDOW and number not in self.recent


@dataclass
class Organisation:
    """An organisation in a federation: what its roles share, and the roles it plays."""

    name: str
    outbox: Outbox
    batches: Batches | Agreed
    generator: Generator
    ledger: Ledger
    device: torch.device
    secret: bool = False
    """Whether its random numbers are unknown to who knows the agreed seed."""
    roles: dict[str, Party] = field(default_factory=dict)
    """Its roles by their names in a checkpoint: "features", "labels", "server"."""
    fitted: State = field(default_factory=dict)
    """How its columns and labels became numbers."""
    bounds: Bounds | None = None
    """None in one process, where nobody is a stranger."""
    pretrain: Callable[[], None] | None = None
    """Lets its model learn from its own rows, before anybody trains."""
    best: State | None = None
    """While it trains: its roles as they were when validation rows scored best."""
    last: State | None = None
    """Once it took its best: its roles as training left them, to go on from."""

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
        """Make an organisation with an empty ledger.

        Args:
            name: Its name.
            batches: What it agreed on with the label owners.
            seed: The agreed seed. Its random numbers follow from the seed and its name.
            secret: Draw random numbers from the operating system instead.
            rules: Its owner's rules, by release name.
            device: Where it computes.
        """
        if secret:
            generator = secret_generator()
        else:
            generator = Generator().manual_seed(seed_for(seed, name))
        outbox = Outbox(name, generator, rules)
        ledger = Ledger(name)
        return cls(
            name, outbox, batches, generator, ledger, torch.device(device), secret
        )

    def start(self, seed: int) -> Generator:
        """A generator for the weights of a new model.

        It is apart from the party's own generator, so that what the party draws later
        says nothing about the weights. Where weights are secret, the seed is not used.
        """
        return secret_generator() if self.secret else Generator().manual_seed(seed)

    def state(self) -> State:
        """What a checkpoint keeps: where the random numbers, the receipts, the ledger
        and the budget stand, and each role.

        Secret noise is not in it. Continued, it would hide two different tensors behind
        the same numbers.
        """
        own: State = {
            "generator": self.generator.get_state(),
            "released": self.outbox.released,
            "followed": self.outbox.followed,
            "ledger": self.ledger.state(),
        }
        if self.outbox.meter is not None:
            own["meter"] = self.outbox.meter.state()
        state: State = {"seat": own} | self._state_of_roles()
        if self.best is not None:
            state["best"] = self.best
        if self.last is not None:
            state["last"] = self.last
        return state

    def load_state(self, state: State) -> None:
        """Continue from `state()`. The ledger's own file is cut back by
        `Ledger.rewind`."""
        own = state["seat"]
        self.generator.set_state(own["generator"].cpu())
        self.outbox.released = own["released"]
        self.outbox.followed = own["followed"]
        if self.outbox.meter is not None and "meter" in own:
            self.outbox.meter.load_state(own["meter"])
        self._load_roles(state)
        self.best = state.get("best")
        self.last = state.get("last")

    def _state_of_roles(self) -> State:
        return {role: party.state() for role, party in self.roles.items()}

    def _load_roles(self, state: State) -> None:
        for role, party in self.roles.items():
            party.load_state(state[role])

    def keep_best(self) -> None:
        """Remember the roles as they are now: no model scored better on validation
        rows."""
        self.best = copied(self._state_of_roles())
        self.last = None

    def drop_best(self) -> None:
        """Forget the best models."""
        self.best = None
        self.last = None

    def take_best(self) -> None:
        """Have the best models again, when training has ended. The last ones are kept,
        to go on from there."""
        if self.best is not None:
            now = self._state_of_roles()
            if not same(now, self.best):
                self.last = copied(now)
                self._load_roles(self.best)
        self.best = None

    def go_on(self) -> None:
        """Train further from where training stopped, with the best models aside."""
        if self.last is not None:
            self.best = copied(self._state_of_roles())
            self._load_roles(self.last)
            self.last = None

    def begin_with(self, state: State) -> None:
        """Start training with the models of another run, whose rows may be others.

        What belongs to the other run's rows stays behind: where its optimizers and
        random numbers stood, and what it released.
        """
        for role, party in self.roles.items():
            now = party.state()
            before = state[role]
            merged = taken(now, before)
            for part in ("model", "heads"):
                if part in now and not same(merged[part], before[part]):
                    raise RuntimeError(f"{part} of another shape")
            party.load_state(merged)


def copied(state: State) -> State:
    """The same values in memory of their own."""
    return {key: _copied_value(value) for key, value in state.items()}


def _copied_value(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        copy = mapped_zeros(value.shape, value.dtype, value.device)
        return copy.copy_(value.detach())
    if isinstance(value, dict):
        return {key: _copied_value(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_copied_value(inner) for inner in value]
    return value


def taken(now: Any, before: Any) -> Any:
    """A state with all tensors of an earlier state that have the same place and
    shape."""
    if isinstance(now, torch.Tensor) and isinstance(before, torch.Tensor):
        if now.shape == before.shape:
            return before.to(now.device, now.dtype, copy=True)
        return now
    if isinstance(now, dict) and isinstance(before, dict):
        if now.keys() == before.keys():
            return {key: taken(value, before[key]) for key, value in now.items()}
    return now


def same(one: Any, other: Any) -> bool:
    """Whether two states have equal values."""
    if isinstance(one, torch.Tensor):
        return isinstance(other, torch.Tensor) and torch.equal(one, other)
    if isinstance(one, dict):
        if not isinstance(other, dict) or one.keys() != other.keys():
            return False
        return all(same(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        if len(one) != len(other):
            return False
        return all(same(a, b) for a, b in zip(one, other, strict=True))
    return bool(one == other)


def cores() -> int:
    """How many cores this process may use."""
    everywhere = os.cpu_count() or 1
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else everywhere


ALL_THREADS_PAY = 300_000_000
"""Operations from which torch gains by using several threads for them and for what is
between them."""


@contextmanager
def one_torch_thread(wanted: bool = True) -> Iterator[None]:
    """Let torch compute with one thread inside.

    The setting is the process's, so it is put back afterwards.
    """
    before = torch.get_num_threads()
    if not wanted or before == 1:
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


class Refused(Exception):  # noqa: N818 - a condition; `Party.answer` makes it an error
    """A request does not fit the party's state."""


@contextmanager
def all_undisturbed(parties: Iterable[Party]) -> Iterator[None]:
    """Keep several parties from answering anybody, as long as this lasts.

    Whoever holds several names them in one order: two who do not may wait for each
    other.
    """
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
    """Answers requests. Subclass a role (`core.roles`) and mark methods with
    `@serves`."""

    stackable = False
    """Whether a cohort may compute for it. A role that uses keys of its own may not."""
    serves_for: Collection[str] | None = None
    """The parties that may ask; None for whoever the transport lets through."""
    reserved: Mapping[type[Request[Any]], Collection[str]] = {}
    """The parties that may ask some requests, in place of `serves_for`."""
    aside: ClassVar[Collection[type[Request[Any]]]] = ()
    """Requests that are answered while the party computes. They are not counted as
    calls."""
    _served: ClassVar[dict[type[Request[Any]], str] | None] = None

    def __init__(self, organisation: Organisation) -> None:
        self.organisation = organisation
        self.name = organisation.name
        self.outbox = organisation.outbox
        self.generator = organisation.generator
        self.ledger = organisation.ledger
        self.device = organisation.device
        self._lock = threading.RLock()
        self._answered: dict[str, AnsweredCalls] = {}

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls._served = None

    @classmethod
    def served(cls) -> dict[type[Request[Any]], str]:
        """The requests that this class answers, and the name of the method for each."""
        if cls._served is None:
            served: dict[type[Request[Any]], str] = {}
            for name in dir(cls):
                method = getattr(cls, name)
                if getattr(method, "__serves__", 0):
                    served[_request_type(method)] = name
            cls._served = served  # whole at once, since threads look here
        return cls._served

    def handle(self, envelope: Envelope[Request[R]]) -> R:
        """Answer one call, and write down what came and what went.

        A repeated call gets its first reply. Older calls, and those of parties that may
        not ask, are refused. A cohort does the same for its members.
        """
        request = envelope.message
        self.allow(envelope.sender, type(request))
        if type(request) in self.aside:
            return self._call(request, envelope.sender)
        with self._lock:
            reply = self.remembered(envelope)
            if reply is None:
                self.ledger.write("in", envelope.sender, request)
                reply = self.answer(request, envelope.sender)
                self.conclude(envelope, reply)
            return reply

    def allow(self, sender: str, kind: type[Request[Any]]) -> None:
        """Refuse a request that the sender may not make, or that nobody may make.

        It needs no more than the request's kind, so that a transport can ask before it
        unpacks anything.
        """
        may_ask = self.reserved.get(kind, self.serves_for)
        if may_ask is not None and sender not in may_ask:
            why = f"this is for {', '.join(sorted(may_ask)) or 'nobody'} to ask"
            log.warning(
                "%s: refused %s of %.80r: %s", self.name, kind.kind, sender, why
            )
            raise BoundaryError(
                f"'{self.name}' does not answer {kind.kind} of {sender[:80]!r}: {why}."
            )
        self._method_for(kind)

    def _method_for(self, kind: type[Request[Any]]) -> str:
        """The name of the method that answers a request."""
        method = self.served().get(kind)
        if method is None:
            role = f"{type(self).__module__}.{type(self).__name__}"
            served = ", ".join(sorted(known.kind for known in self.served()))
            raise BoundaryError(
                f"'{self.name}' ({role}) does not serve {kind.kind}.\n    It serves:"
                f" {served}."
            )
        return method

    def _call(self, request: Request[R], asker: str | None) -> R:
        """Answer a request by the method that serves it."""
        method = getattr(self, self._method_for(type(request)))
        arguments = (request, asker)[: method.__serves__]
        reply: R = method(*arguments)
        return reply

    def remembered(self, envelope: Envelope[Request[R]]) -> R | None:
        """The reply that a repeated call had the first time; None for a new call. A
        replayed call is refused."""
        number = envelope.number
        answered = self._answered.get(envelope.sender)
        if answered is None or number > answered.newest or answered.is_late(number):
            return None
        if number == answered.newest:
            return answered.reply  # type: ignore[return-value]
        # A frame with several calls came again. A reply that says no more than that the
        # request was done can be given again.
        was_answered = number in answered.recent
        if was_answered and answered_by(type(envelope.message)) is Done:
            return Done()  # type: ignore[return-value]
        log.warning(
            "%s: refused a replayed %s of %.80r",
            self.name,
            envelope.message.kind,
            envelope.sender,
        )
        raise BoundaryError(
            f"'{self.name}' refuses a call of {envelope.sender[:80]!r} that is older"
            f" than what it has answered: number {number}, and the newest is"
            f" {answered.newest}. It was replayed, or the sender's clock was set back:"
            " correct it."
        )

    def conclude(self, envelope: Envelope[Request[R]], reply: R) -> None:
        """Write down and remember how a call was answered."""
        self.ledger.write("out", envelope.sender, reply)
        answered = self._answered.get(envelope.sender)
        if answered is None:
            self._answered[envelope.sender] = AnsweredCalls(envelope.number, reply)
        else:
            answered.note(envelope.number, reply)

    def undisturbed(self) -> AbstractContextManager[Any]:
        """Keep this party from answering anybody: what a call reads does not change
        under it."""
        return self._lock

    def answer(self, request: Request[R], asker: str | None = None) -> R:
        """Do what somebody asks.

        Whatever goes wrong names this party, the request and the batch. After a failure
        the party's attributes are those from before the call, so that a request that
        does not fit spoils nothing that was set aside. What a method changed in place,
        such as a model's weights, stays changed; the last checkpoint is the way back.

        Args:
            request: The request.
            asker: The party that asks. By default this party itself.
        """
        attributes = vars(self).copy()
        followed = self.outbox.followed
        try:
            return self._call(request, asker)
        except NoAnswer as error:
            # Another party did not answer this one. This one did: it says so.
            raise PartyError(
                error.party, error.request, error.batch, error.cause
            ) from error
        except PartyError:
            raise
        except (BoundaryError, BudgetExhausted):
            self._restore(attributes, followed)
            raise
        except Refused as error:
            self._restore(attributes, followed)
            raise PartyError(
                self.name, request.kind, batch_of(request), str(error), private=False
            ) from error
        # A model of one's own may end the program. Here that is a failure like another.
        except (Exception, SystemExit) as error:
            self._restore(attributes, followed)
            cause = f"{type(error).__name__}: {error}"
            raise PartyError(
                self.name, request.kind, batch_of(request), cause, private=True
            ) from error

    def _restore(self, attributes: Mapping[str, Any], followed: str) -> None:
        """Take back what a failed call set."""
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
        """A part of this party's state that a request takes for granted. The request is
        refused where it is missing."""
        if value is None:
            raise Refused(otherwise)
        return value

    def state(self) -> State:
        """What this role must remember to continue with equal bits. Roles add to it."""
        return {}

    def load_state(self, state: State) -> None:
        """Continue from `state()`."""


def _request_type(method: Callable[..., Message]) -> type[Request[Any]]:
    """The class of the request that a method marked with `serves` takes."""
    hints = get_type_hints(method)
    arguments = [hint for name, hint in hints.items() if name != "return"]
    request: type[Request[Any]] = arguments[0]
    return request
