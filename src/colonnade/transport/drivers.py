"""Parties that drive others, all in one process: computing side by side, or, where they
are alike, answered as one.

    K drivers, asked the same --> one twin of theirs --asks--> one twin of each party asked, stacked over the K askers

What a twin of drivers asks, all of them ask: every call is made in its driver's name,
passes the checks that it passes alone (`cohort.as_one`), is released by its owner's
outbox under the name of its batch, and written down by both sides. Only the arithmetic
is shared. No algorithm knows of it; its roles are stacked by what they hold:

    a driver                labels, loss and batches; `model`, of which it trains a `copy`, and which takes `inputs` per
                            row; and `as_one`, the requests that several may answer together
    a party that is asked   a table of features, `model`, what it `agreed` on with each driver, and a copy for each

Twins are made anew for every request, so that they are never out of date. A copy's
parameters become views of the stack's own, so there is nothing to hand back. On a GPU
the parties that are asked compute side by side.
"""

from __future__ import annotations

import copy
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from functools import cache, partial
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor

from colonnade.core.batches import Batches
from colonnade.core.message import Ledger, Message, Request
from colonnade.core.party import Party, one_torch_thread
from colonnade.core.roles import Peers
from colonnade.core.wire import Envelope
from colonnade.errors import BoundaryError, BudgetExhausted, PartyError
from colonnade.transport.cohort import (
    CohortOutbox,
    Stacked,
    alike,
    as_one,
    better_abreast,
    share_memory,
    shares,
    why_not_stackable,
)
from colonnade.transport.in_process import InProcess, Recording, at_once, work

R = TypeVar("R", bound=Message)
Stacking = Literal["auto", "on", "off"]
STACKING_PAYS = 5_000_000
"""Operations of one driver's forward pass, and of those it asks, up to which stacking
drivers pays on a CPU."""


class StackedBatches(Batches):
    """The training batches of several owners under one name, each with the owners' rows
    on a leading axis."""

    def __init__(
        self, name: str, first: Batches, each: Callable[[int, str], Sequence[Tensor]]
    ) -> None:
        """As many and as large as those of `first`; `each` gives every owner's rows of
        an epoch."""
        agreed: dict[str, Any] = {
            "epochs": first.epochs,
            "seed": first.seed,
            "reshuffle": first.reshuffle,
        }
        super().__init__(
            {"train": first.splits["train"]},
            batch_size=first.batch_size,
            owner=name,
            **agreed,
        )
        self._each = each
        self._last: tuple[tuple[int, str] | None, Tensor] = None, torch.empty(0)

    def _order(self, epoch: int, device: str) -> Tensor:
        if self._last[0] != (epoch, device):
            self._last = (epoch, device), torch.stack(list(self._each(epoch, device)))
        return self._last[1]


class DriverCohort:
    """Drivers that are alike, and the parties that they ask, each with its copies for
    them stacked."""

    def __init__(self, members: Mapping[str, Any]) -> None:
        self.members = dict(members)
        self.name = ", ".join(members)
        self.first = next(iter(self.members.values()))
        self.asked = parties_of(self.first)
        self.copy = _stacked([driver.copy for driver in self.members.values()])
        self.copies = {
            to: _stacked([party.copies[k] for k in self.members])
            for to, party in self.asked.items()
        }
        self.sides: dict[str, Party] = {}
        on_gpu = self.first.device.type == "cuda"
        self.streams = (
            [torch.cuda.Stream(self.first.device) for _ in self.asked] if on_gpu else []  # type: ignore[no-untyped-call]
        )

    def answer(
        self, envelopes: Mapping[str, Envelope[Request[R]]]
    ) -> dict[str, R] | None:
        """One stacked answer, taken apart; None where a member has answered its call
        before."""
        calls = [(driver, envelopes[k]) for k, driver in self.members.items()]
        first = calls[0][1]
        self.sides = {to: self._side(to, party) for to, party in self.asked.items()}
        answered = as_one(self._twin(), first.message, first.sender, calls)
        return answered and dict(zip(self.members, answered[1], strict=True))

    def exchange(self, to: str, envelope: Envelope[Request[R]]) -> R:
        return self.exchange_each({to: envelope})[to]

    def exchange_each(
        self, envelopes: Mapping[str, Envelope[Request[R]]]
    ) -> dict[str, R]:
        """What carries the twin's calls: each is one call of every member, to the twin
        of whom they ask."""
        tasks = [partial(self._ask, to, envelope) for to, envelope in envelopes.items()]
        return dict(
            zip(envelopes, at_once(tasks, self.first.device, self.streams), strict=True)
        )

    def _ask(self, to: str, envelope: Envelope[Request[R]]) -> R:
        party: Party = self.asked[to]
        whole = envelope.message
        requests = shares(whole, self.name, list(self.members))
        calls = [
            (party, Envelope(k, envelope.number, r))
            for k, r in zip(self.members, requests, strict=True)
        ]
        try:
            answered = as_one(self.sides[to], whole, self.name, calls)
        finally:
            for driver, request in zip(self.members.values(), requests, strict=True):
                driver.peers.note("out", to, request)
        assert answered is not None  # a call that was just numbered is new
        for driver, request, reply in zip(
            self.members.values(), requests, answered[1], strict=True
        ):
            driver.peers.take(to, request, reply)
        return answered[0]

    def _twin(self) -> Party:
        """The first driver, with what each has of its own stacked; their tables lie one
        below the other."""
        drivers = list(self.members.values())
        starts = [
            0,
            *torch.tensor([len(driver.labels) for driver in drivers])
            .cumsum(0)
            .tolist(),
        ]

        def rows(epoch: int, device: str) -> list[Tensor]:
            pairs = zip(starts, drivers, strict=False)
            return [
                start + driver.batches.epoch_rows(epoch, device)
                for start, driver in pairs
            ]

        twin = copy.copy(self.first)
        twin.name = self.name
        twin.outbox = self._outbox([driver.outbox for driver in drivers])
        twin.labels = torch.cat([driver.labels for driver in drivers])
        twin.loss = torch.vmap(self.first.loss)
        twin.batches = StackedBatches(self.name, self.first.batches, rows)
        twin.copy = self.copy
        twin.peers = Peers(self.name, self.asked, self, Ledger(self.name))
        return twin  # type: ignore[no-any-return]

    def _side(self, to: str, party: Any) -> Party:
        """A party as all drivers see it."""

        def rows(epoch: int, device: str) -> list[Tensor]:
            return [party.agreed.epoch_rows(k, epoch, device) for k in self.members]

        side = copy.copy(party)
        side.outbox = self._outbox([party.outbox] * len(self.members))
        side.agreed = StackedBatches(self.name, self.first.batches, rows)
        side.copies = {self.name: self.copies[to]}
        return side  # type: ignore[no-any-return]

    def _outbox(self, outboxes: Sequence[Any]) -> CohortOutbox:
        return CohortOutbox(outboxes, self.name, list(self.members))


class Turns:
    """Drivers of one round ask one after the other, each when it is its turn: so what
    is asked of others comes in one order, whoever is the fastest, and however many
    compute at a time. Who is not among them does not wait."""

    def __init__(self, drivers: Iterable[str] = ()) -> None:
        # whoever holds it computes alone, until it waits
        self.changed = threading.Condition()
        self._order = deque(drivers)
        self._under_way: set[str] = set()
        self._over: BaseException | None = None  # why nobody of them may ask any more

    @contextmanager
    def round(self, driver: str) -> Iterator[None]:
        """Inside, a driver computes; afterwards it asks no more."""
        with self.changed:
            if self._over is not None:
                raise self._over
            self._under_way.add(driver)
        try:
            yield
        finally:
            with self.changed:
                self._under_way.remove(driver)
                self._order.remove(driver)
                self.changed.notify_all()

    @contextmanager
    def of(self, driver: str) -> Iterator[None]:
        """Wait until it is a driver's turn; afterwards it is the next one's."""
        with self.changed:
            self.changed.wait_for(
                lambda: (
                    self._over or driver not in self._order or self._order[0] == driver
                )
            )
            if self._over is not None and driver in self._order:
                raise self._over
        try:
            yield
        except (BoundaryError, BudgetExhausted) as error:  # with which all rounds end
            self._over = error
            raise
        finally:
            with self.changed:
                if driver in self._order:
                    self._order.remove(driver)
                    self._order.append(driver)
                self.changed.notify_all()

    def stop(self, error: BaseException) -> None:
        """Have each end where it asks next, and wait until all have."""
        self._over = error
        with self.changed:
            self.changed.notify_all()
            self.changed.wait_for(lambda: not self._under_way)
            self._order.clear()


class InTurns:
    """Carries the calls of one driver, each in its turn."""

    def __init__(
        self, driver: str, inner: InProcess | Recording, drivers: Drivers
    ) -> None:
        self.driver = driver
        self.inner = inner
        self.drivers = drivers

    def exchange(self, to: str, envelope: Envelope[Request[R]]) -> R:
        return self.exchange_each({to: envelope})[to]

    def exchange_each(
        self, envelopes: Mapping[str, Envelope[Request[R]]]
    ) -> dict[str, R]:
        with self.drivers.turns.of(self.driver):
            return self.inner.exchange_each(envelopes)


class Drivers:
    """What carries calls to drivers in this process. It stacks those that are alike
    where that is faster ("auto"), wherever it can ("on"), or never ("off"). Others
    whose batches are much work take turns at asking, and compute at the same time, or
    one at a time ("never"): in which order they ask follows from the work alone, and so
    every bit.
    """

    def __init__(
        self,
        drivers: Mapping[str, Any],
        *,
        stack: Stacking = "auto",
        through_bytes: bool = False,
        # whenever they take turns, it pays
        parallel: Literal["auto", "always", "never"] = "auto",
    ) -> None:
        self.drivers = dict(drivers)
        self.stack = stack
        self.parallel = parallel
        self._inner = InProcess(
            self.drivers, through_bytes=through_bytes, parallel="never"
        )
        self.cohorts: dict[tuple[str, ...], DriverCohort] = {}
        # whether a driver has so little to do for a batch that Python takes most of the
        # time
        self._little = cache(lambda name: worth_stacking(self.drivers[name]))
        self.turns = Turns()
        for name, driver in self.drivers.items():
            if isinstance(transport := driver.peers.transport, InProcess | Recording):
                driver.peers.transport = InTurns(name, transport, self)

    def exchange(self, to: str, envelope: Envelope[Request[R]]) -> R:
        return self._inner.exchange(to, envelope)

    def exchange_each(
        self, envelopes: Mapping[str, Envelope[Request[R]]]
    ) -> dict[str, R]:
        replies: dict[str, R] = {}
        for to, answer in self.attempt_each(envelopes).items():
            if isinstance(answer, PartyError):
                raise answer
            replies[to] = answer
        return replies

    def attempt_each(
        self, envelopes: Mapping[str, Envelope[Request[R]]]
    ) -> dict[str, R | PartyError]:
        """Each answer, or the failure in its place."""
        answers: dict[str, R | PartyError] = {}
        for group in self._groups(envelopes):
            try:
                answers |= self._cohort(group).answer(envelopes) or {}
            # of somebody they asked, or their own: none of them can answer
            except PartyError as error:
                answers |= dict.fromkeys(group, error)
        rest = {to: envelope for to, envelope in envelopes.items() if to not in answers}
        if self._take_turns(rest):
            answers |= self._in_turns(rest)
        else:
            answers |= {
                to: self._attempt(to, envelope) for to, envelope in rest.items()
            }
        return {to: answers[to] for to in envelopes}

    def _attempt(self, to: str, envelope: Envelope[Request[R]]) -> R | PartyError:
        try:
            return self.exchange(to, envelope)
        except PartyError as error:
            return error

    def _take_turns(self, envelopes: Mapping[str, Envelope[Request[Any]]]) -> bool:
        """Whether these are whole rounds of much work, on a CPU, of drivers who ask
        parties of this process, and none is of an organisation that another one asks:
        that would answer while it computes."""
        if any(
            k not in self.drivers or type(e.message) not in self.drivers[k].as_one
            for k, e in envelopes.items()
        ):
            return False
        drivers = [self.drivers[k] for k in envelopes]
        here = all(
            driver.device.type == "cpu" and isinstance(driver.peers.transport, InTurns)
            for driver in drivers
        )
        asked = [
            party.outbox for driver in drivers for party in parties_of(driver).values()
        ]
        apart = not any(
            driver.outbox is outbox for driver in drivers for outbox in asked
        )
        return (
            len(drivers) > 1
            and here
            and apart
            and not any(map(self._little, envelopes))
        )

    def _in_turns(
        self, envelopes: Mapping[str, Envelope[Request[R]]]
    ) -> dict[str, R | PartyError]:
        """Each in a thread; where they are not to compute at the same time, one does
        until it waits for its turn."""
        turns = Turns(envelopes)

        def answer(to: str) -> R | PartyError:
            with (
                turns.changed if self.parallel == "never" else nullcontext(),
                turns.round(to),
            ):
                return self._attempt(to, envelopes[to])

        with one_torch_thread(), ThreadPoolExecutor(len(envelopes), "driver") as pool:
            try:
                self.turns = turns
                answers = [pool.submit(answer, to) for to in envelopes]
                return {
                    to: answer.result()
                    for to, answer in zip(envelopes, answers, strict=True)
                }
            except BaseException as error:
                turns.stop(error)
                raise

    def _cohort(self, group: tuple[str, ...]) -> DriverCohort:
        if group not in self.cohorts:  # a copy is a view of one stack only
            self.cohorts = {
                names: cohort
                for names, cohort in self.cohorts.items()
                if not set(names) & set(group)
            }
            self.cohorts[group] = DriverCohort({k: self.drivers[k] for k in group})
        return self.cohorts[group]

    def _groups(self, envelopes: Mapping[str, Envelope[Any]]) -> list[tuple[str, ...]]:
        """Which of the label owners that are asked can answer as one."""
        equal: dict[tuple[Any, ...], list[str]] = {}
        for k, envelope in envelopes.items():
            driver = self.drivers.get(k)
            message = envelope.message
            wanted = (
                self.stack != "off"
                and driver is not None
                and type(message) in driver.as_one
            )
            if wanted and _stackable(driver):
                equal.setdefault(
                    (envelope.sender, message, *_shape(driver)), []
                ).append(k)
        least = (
            1
            if any(driver.device.type == "cuda" for driver in self.drivers.values())
            else 2
        )
        # a GPU gains by graphs, too
        groups = [tuple(group) for group in equal.values() if len(group) >= least]
        groups = [
            group for group in groups if self.stack == "on" or self._little(group[0])
        ]
        return [
            group for group in groups if alike([self.drivers[k].state() for k in group])
        ]


def parties_of(driver: Any) -> dict[str, Any]:
    """The parties that it asks."""
    transport = driver.peers.transport
    inner = transport.inner if isinstance(transport, InTurns) else None
    below = inner.inner if isinstance(inner, Recording) else inner
    return (
        {name: below.parties[name] for name in driver.peers}
        if isinstance(below, InProcess)
        else {}
    )


def worth_stacking(driver: Any) -> bool:
    """Whether drivers like this one are faster as one. On a GPU always; on a CPU while
    a batch is little work."""
    if driver.device.type != "cpu":
        return True
    row = next(driver.model.parameters()).new_zeros(1, *driver.inputs)
    rows = driver.batches.batch_size
    below = sum(
        work(party.model, party.features[:1], rows)
        for party in parties_of(driver).values()
    )
    return below + work(driver.model, row, rows) <= STACKING_PAYS


def _stackable(driver: Any) -> bool:
    """Whether its calls may be answered here: they would cross as they are, and nobody
    listens."""
    transport = driver.peers.transport
    inner = transport.inner if isinstance(transport, InTurns) else None
    plain = (
        isinstance(inner, InProcess)
        and not inner.through_bytes
        and driver.peers.missing is None
    )
    if not plain or "train" not in driver.batches.splits:
        return False
    models = [driver.model, *(party.model for party in parties_of(driver).values())]
    return all(why_not_stackable(model) is None for model in models)


def _shape(driver: Any) -> tuple[Any, ...]:
    """Equal where two drivers do the same with batches of the same sizes, and ask the
    same parties."""
    parameters = (
        (name, tuple(p.shape), p.dtype, p.requires_grad)
        for name, p in driver.model.named_parameters()
    )
    settings = (
        type(driver),
        repr(driver.config),
        repr(driver.loss),
        str(driver.device),
        repr(driver.model),
    )
    asked = tuple((name, id(party)) for name, party in parties_of(driver).items())
    rows = len(driver.batches.splits.get("train", ())), driver.batches.batch_size
    return (*settings, tuple(parameters), asked, *rows)


def _stacked(copies: Sequence[Any]) -> Any:
    """Copies as one, over the same memory."""
    modules = [trained.model for trained in copies]
    whole = copies[0].like(Stacked(modules, abreast=better_abreast(modules[0])))
    share_memory(whole.model, modules)
    return whole
