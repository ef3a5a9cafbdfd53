"""The two roles that every algorithm has, and the peers that a driver asks. Algorithms
subclass the roles and add the requests they serve; of the others they know `Peers`
only, and what carries the calls is a `Transport`.

Methods are written for `[..., rows, features]`: the same method serves one party and a
cohort of stacked ones.
"""

from __future__ import annotations

import itertools
import math
import queue
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from typing import Any, ClassVar, Literal, Protocol, TypeVar, runtime_checkable

import torch
from torch import Tensor, nn

from colonnade.core.answers import Answers, Declared, Missing
from colonnade.core.batches import Agreed
from colonnade.core.cipher import Ciphertext
from colonnade.core.ledger import Ledger
from colonnade.core.message import Done, Message, Ping, Pong, Request, answered_by
from colonnade.core.party import Organisation, Party, State, serves
from colonnade.core.presence import Presence
from colonnade.core.receipt import DpEvent
from colonnade.core.release import Released
from colonnade.core.wire import Envelope
from colonnade.errors import (
    BoundaryError,
    BudgetExhausted,
    ConfigError,
    NoAnswer,
    PartyError,
)

Kept = TypeVar("Kept", bound=tuple[Any, ...])
R = TypeVar("R", bound=Message)
NUMBER = 4
"""Bytes of one."""
MOST_WIDTH = 1 << 18
"""Numbers that a party may send for a row: whoever is told makes room for a model of so
many inputs."""


class Introduction(Message):
    """How who holds columns introduces itself to a label owner: what it sends per row,
    how many rows they share, and what it thinks was agreed."""

    shape: tuple[int, ...]
    rows: int
    agreed: str


class Introduce(Request[Introduction]):
    """Asked once, before anything else."""


class Reachable(Party):
    """Says that it is there, whatever it computes meanwhile."""

    aside = (Ping,)

    @serves
    def ping(self, request: Ping) -> Pong:  # noqa: ARG002
        return Pong()


class FeatureOwner(Reachable):
    """Holds columns and a local model f_k."""

    row_axis = 0
    # False: no cohort may answer for it: it has keys, or methods for one party's rows
    # alone
    stackable = True
    # None: it does not learn by gradient steps
    optimizer: torch.optim.Optimizer | None = None

    def __init__(
        self,
        organisation: Organisation,
        features: Tensor,
        model: nn.Module,
        config: Any,
    ) -> None:
        super().__init__(organisation)
        self.features, self.model, self.config = (
            features.to(self.device),
            model.to(self.device),
            config,
        )

    @property
    def steps_at_once(self) -> int:
        """How many steps on a batch its model takes without the interpreter in between."""
        return 1

    def x(self, batch: str) -> Tensor:
        """This party's columns of a batch's rows."""
        rows = self.rows(batch)
        bounds = self.organisation.bounds
        if bounds is not None:
            fits = len(rows) * bounds.outputs * NUMBER <= bounds.answer
            self.expect(
                fits,
                f"outputs for {len(rows)} rows at once would take more than its"
                " memory_per_call",
            )
        return self.features.index_select(self.row_axis, rows)

    def expect_shape(
        self, what: str, given: Released | Ciphertext, *shape: int
    ) -> None:
        """Refuse what is not of the shape that this party's own rows and model give it:
        a frame of a few bytes may stand for a tensor that meets every row. In a cohort
        there is a party's axis before it, or one for all."""
        given_shape = tuple(given.shape)
        fits = (
            given_shape[-len(shape) :] == shape
            and len(given_shape) <= len(shape) + self.row_axis
        )
        self.expect(
            fits,
            f"{what} has the shape {list(given_shape)}, and here it is {list(shape)}",
        )

    def expect_pending(self, pending: Kept | None, batch: str, what: str) -> Kept:
        """What was set aside for a batch, after its name; refused where another one is
        pending, or none."""
        there = None if pending is None else pending[0]
        self.expect(there == batch, f"{what} for batch {batch}, but {there} is pending")
        assert pending is not None
        return pending

    def expect_outputs(self, outputs: int) -> None:
        """Refuse what is made for another number of outputs than the run was prepared
        for."""
        bounds = self.organisation.bounds
        self.expect(
            bounds is None or outputs == bounds.outputs,
            f"it is for {outputs} outputs, not those of this run",
        )

    def training(self, batch: str) -> bool:
        """Whether a batch is to learn from, not only training rows to be scored; the
        model is put into that mode."""
        training = batch.startswith("train/")
        if self.model.training != training:
            self.model.train(training)
        return training

    @serves
    def introduce(self, request: Introduce) -> Introduction:  # noqa: ARG002
        self.model.eval()
        with torch.no_grad():
            first_row = self.features.narrow(
                self.row_axis, 0, min(1, self.features.shape[self.row_axis])
            )
            width = self.model(first_row).shape[-1]
        return Introduction(
            (width,),
            self.features.shape[self.row_axis],
            self.organisation.batches.fingerprint(),
        )

    def state(self) -> State:
        state = super().state() | {"model": self.model.state_dict()}
        return (
            state
            if self.optimizer is None
            else state | {"optimizer": self.optimizer.state_dict()}
        )

    def load_state(self, state: State) -> None:
        super().load_state(state)
        self.model.load_state_dict(state["model"])
        if self.optimizer is not None:
            self.optimizer.load_state_dict(state["optimizer"])


def check_shape(party: str, shape: tuple[int, ...]) -> None:
    """Raise unless a party may send this much for a row."""
    if not shape or min(shape) < 1 or math.prod(shape) > MOST_WIDTH:
        raise ConfigError(
            f"'{party}' says that it sends {list(shape)} numbers for a row, and one to"
            f" {MOST_WIDTH} can be taken.\n    Let its model end in fewer."
        )


NUMBERS = itertools.count(time.time_ns())
"""Of all calls from this process. They start at the clock, in nanoseconds, and nobody
makes a call in each: so those of a restarted driver are above those it had, and a party
can tell an old call by its number (`party.Calls`)."""


WAITING = threading.Lock()


Answer = Message | PartyError
"""What comes of a call: the reply, or the failure of the party that was asked."""


class Transport(Protocol):
    """Carries calls to parties, and their answers back."""

    def exchange(self, calls: Sequence[Envelope[Any]]) -> list[Answer]:
        """Make calls, which may be under way at the same time, and give the answer to
        each, in order.

        Calls to one party are done in their order; after one that fails, the party's
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

    `answers`, where set, looks at every answer before it is used; `missing` goes on
    without those that do not come; `presence` asks each for the rows it holds.
    """

    answers: Answers | None = None
    missing: Missing | None = None
    presence: Presence | None = None
    # how often anybody in this process had to wait for answers, were all others
    # elsewhere
    waited: ClassVar[int] = 0
    # whether the last call was answered by Done, which may travel with the next
    _untold = False

    def __init__(
        self, owner: str, names: Iterable[str], transport: Transport, ledger: Ledger
    ) -> None:
        self.owner = owner
        self.transport = transport
        self.ledger = ledger
        self._peers = {name: Peer(name, self) for name in names}
        self._calls = NUMBERS

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
            found: dict[str, Any] = self.missing.complete(calls, replies, failures)
            return found
        self._count([call.message for call in calls.values()])
        answers = self._exchange(calls)
        told: dict[str, Any] = {}
        for name, answer in answers.items():
            if isinstance(answer, PartyError):
                raise answer
            told[name] = answer
        return {
            name: self._taken(name, calls[name].message, reply)
            for name, reply in told.items()
        }

    def ask_one(self, name: str, request: Request[R]) -> R:
        """Ask one peer, whether or not it holds the rows that the request is about."""
        self._count([request])
        answer = self._exchange(self._calls_for({name: request}))[name]
        if isinstance(answer, PartyError):
            raise answer
        self.take(name, request, answer)
        return answer  # type: ignore[return-value]

    def attempt(
        self, requests: Mapping[str, Request[R]]
    ) -> tuple[dict[str, R], dict[str, PartyError]]:
        """Ask each of some peers its own question; give the replies, and the failures
        of those that did not answer."""
        return self._attempt(self._calls_for(requests))

    def _calls_for(
        self, requests: Mapping[str, Request[Any]]
    ) -> dict[str, Envelope[Request[Any]]]:
        number = next(self._calls)
        return {
            name: Envelope(self.owner, number, request, receiver=name)
            for name, request in requests.items()
        }

    def _attempt(
        self, calls: Mapping[str, Envelope[Request[Any]]]
    ) -> tuple[dict[str, Any], dict[str, PartyError]]:
        self._count([])
        replies: dict[str, Any] = {}
        failures: dict[str, PartyError] = {}
        for name, answer in self._exchange(calls).items():
            if isinstance(answer, PartyError):
                failures[name] = answer
            else:
                replies[name] = self._taken(name, calls[name].message, answer)
        return replies, failures

    def _exchange(
        self, calls: Mapping[str, Envelope[Request[Any]]]
    ) -> dict[str, Answer]:
        """Make the calls. What was asked is written down however it ended."""
        try:
            answers = self.transport.exchange(list(calls.values()))
        finally:
            for name, call in calls.items():
                self.note("out", name, call.message)
        return dict(zip(calls, answers, strict=True))

    def heartbeat(self) -> dict[str, float | None]:
        """By peer the seconds until it said that it is there, or None."""

        def beat(name: str) -> float | None:
            start = time.perf_counter()
            (call,) = self._calls_for({name: Ping()}).values()
            try:
                (answer,) = self.transport.exchange([call])
            except BoundaryError as refused:  # it is there to say so
                answer = PartyError(name, Ping.kind, None, str(refused))
            if isinstance(answer, NoAnswer):
                return None
            return time.perf_counter() - start

        with ThreadPoolExecutor(
            max(len(self), 1), thread_name_prefix="heartbeat"
        ) as pool:
            return dict(zip(self, pool.map(beat, self), strict=True))

    def stream(
        self,
        make: Callable[[str], Request[R] | None],
        turns: Iterable[str] | None = None,
    ) -> Iterator[tuple[str, R]]:
        """Asynchrony: answers one at a time, each followed by that party's next
        question, until `make` gives None.

        With `turns` the parties are asked in that order, so a seeded order reproduces.
        Without, every party has one call under way and answers come as they arrive.
        When one fails, or the answers are no longer wanted, the calls under way are
        waited for: what is saved or asked next must not meet a party that still
        computes.
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

    def settle(self) -> None:
        """When this returns, everything that was asked is done: what waits for a next
        call is sent without one."""
        if self._untold:
            self._count([])
        if isinstance(self.transport, Holds):
            self.transport.send_held()

    def _count(self, requests: Sequence[Request[Any]]) -> None:
        """Whether these calls may wait for the next; where they may not, that is waited
        once."""
        self._untold = bool(requests) and all(
            answered_by(type(request)) is Done for request in requests
        )
        with WAITING:
            Peers.waited += not self._untold

    def _taken(self, name: str, request: Request[Any], reply: Message) -> Any:
        self.take(name, request, reply)
        return (
            reply
            if self.presence is None
            else self.presence.complete(name, request, reply)
        )

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

    def note(
        self, direction: Literal["out", "in"], name: str, message: Message
    ) -> None:
        """Between two roles of one organisation the one that answers writes it down,
        once."""
        if name != self.owner:
            self.ledger.write(direction, name, message)


class LabelOwner(Party):
    """Holds labels and drives. `meet` is called once, with the introductions of all
    feature owners."""

    peers: Peers
    shapes: dict[str, tuple[int, ...]]  # what each party sends per row
    # how much each row counts, as a column of its own says; None: all alike
    row_weights: Tensor | None = None
    # how its labels were drawn, where it learns from labels drawn at random
    drawn: DpEvent | None = None
    # fingerprints of what parties that lack some rows agreed on
    agreed_apart: Mapping[str, str] = {}

    def __init__(
        self, organisation: Organisation, labels: Tensor, loss: Any, config: Any
    ) -> None:
        super().__init__(organisation)
        self.labels = labels.to(self.device)
        self.loss = loss
        self.config = config

    def meet(self, introductions: Mapping[str, Introduction]) -> None:
        """Check that everybody agreed to the same rows, and learn what they send per
        row."""
        agreed = self.agreed
        for party, told in introductions.items():
            apart = self.agreed_apart.get(party)
            # which counts them
            mine, rows = (
                (agreed, len(self.labels)) if apart is None else (apart, told.rows)
            )
            if (told.agreed, told.rows) != (mine, rows):
                raise ConfigError(
                    f"'{party}' and '{self.name}' do not agree on the rows: {told.rows}"
                    f" rows with fingerprint {told.agreed} there, {rows} with {mine}"
                    " here.\n    Give both the same aligned rows, split, batch size"
                    " and seed."
                )
            check_shape(party, told.shape)
        self.shapes = {
            party: tuple(told.shape) for party, told in introductions.items()
        }

    def _call(self, request: Request[R], asker: str | None) -> R:
        """Where somebody drives it in turn: when it answers, all that it asked of
        others is done; and where a budget is spent, since all are saved then."""
        try:
            reply = super()._call(request, asker)
        except BudgetExhausted:
            self.peers.settle()
            raise
        self.peers.settle()
        return reply

    @property
    def agreed(self) -> str:
        """The fingerprint of what all must have agreed on."""
        return self.organisation.batches.fingerprint()

    def one_width(self, rule: str) -> int:
        """How wide everybody's embeddings are; refused by this rule where they are not
        as wide as each other."""
        if len(set(self.widths.values())) > 1:
            widths = ", ".join(
                f"'{party}' {width}" for party, width in self.widths.items()
            )
            raise ConfigError(f"{rule}; found {widths}.")
        return next(iter(self.widths.values()))

    @property
    def widths(self) -> dict[str, int]:
        """How wide each party's embeddings are."""
        return {party: shape[-1] for party, shape in self.shapes.items()}

    def y(self, batch: str) -> Tensor:
        """The labels of a batch's rows."""
        return self.labels.index_select(0, self.rows(batch))

    def counts(self, rows: Tensor) -> Tensor | None:
        """How much each of these rows counts, where they differ: 1 on average over the
        training rows, so that a row that counts twice is one that is there twice, and
        learning rates stay what they are."""
        return None if self._counts is None else self._counts[rows]

    @cached_property
    def _counts(self) -> Tensor | None:
        if self.row_weights is None or (train := self._trained()) is None:
            return None
        return self.row_weights / self.row_weights[train].mean()

    def weighted_loss(self, outputs: Tensor, rows: Tensor) -> float | None:
        """The loss of these rows, where some count more than others."""
        if self.row_weights is None and not self.loss.weights:
            return None
        return float(self.loss(outputs, self.labels[rows], self.counts(rows)))

    def lost(self, outputs: Tensor, batch: str) -> Tensor:
        """The mean loss of a batch's rows, as they count."""
        loss: Tensor = self.loss(outputs, self.y(batch), self.counts(self.rows(batch)))
        return loss

    def slope(self, outputs: Tensor, batch: str) -> tuple[float, Tensor]:
        """That, and its gradient by the outputs."""
        leaf = outputs.detach().requires_grad_()
        loss = self.lost(leaf, batch)
        (gradient,) = torch.autograd.grad(loss, leaf)
        return loss.item(), gradient

    def state(self) -> State:
        state = super().state()
        if (missing := self.peers.missing) is not None:
            state["missing"] = missing.state()
            state["held_out"] = missing.held_out
        if self.drawn is not None and (train := self._trained()) is not None:
            state["drawn"] = self.labels[train]
        return state

    def load_state(self, state: State) -> None:
        super().load_state(state)
        if (missing := self.peers.missing) is not None:
            missing.load_state(state.get("missing", {}))
            missing.held_out = dict(state.get("held_out", {}))
        # drawn once: a second draw would cost again
        if "drawn" in state and (train := self._trained()) is not None:
            self.labels[train] = state["drawn"].to(self.device)

    def _trained(self) -> Tensor | None:
        batches = self.organisation.batches
        train = (
            batches[self.name] if isinstance(batches, Agreed) else batches
        ).splits.get("train")
        return None if train is None else train.to(self.device)


ELEMENTWISE = (
    nn.ReLU,
    nn.ELU,
    nn.GELU,
    nn.Tanh,
    nn.Sigmoid,
    nn.SiLU,
    nn.LeakyReLU,
    nn.Identity,
)


class ByRow(nn.Module):
    """A layer without weights that reads nothing but a row's last dimension."""


def by_row(layer: nn.Module) -> bool:
    """Whether a layer is known to treat every row by itself, so that it runs for a
    stack of parties as it is."""
    return type(layer) in (nn.Linear, *ELEMENTWISE) or isinstance(layer, ByRow)
