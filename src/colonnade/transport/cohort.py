"""M same-shaped feature owners in one process, answered as one: stacked parameters, one kernel instead of M.

    requests of ask_each --stack--> one request --the algorithm's own method--> one reply --unstack--> replies

The algorithm does not know. Each member keeps its own outbox, rules, random numbers and ledger; only the arithmetic
is shared. Calls that do not go to the whole cohort are answered by the member itself, after its share of the state
was handed back.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any, TypeVar

import torch
from torch import nn

from colonnade.core import mapped
from colonnade.core.cipher import Ciphertext, Encrypted
from colonnade.core.ledger import Ledger
from colonnade.core.message import Message, Request, batch_of
from colonnade.core.party import Party, Seat
from colonnade.core.peers import Transport
from colonnade.core.release import NON_PRIVATE, DpEvent, Outbox, Receipt, Released
from colonnade.core.roles import FeatureOwner
from colonnade.core.wire import Envelope
from colonnade.errors import BoundaryError, PartyError
from colonnade.transport.computing import one_torch_thread, work
from colonnade.transport.stacked import Stacked, alike, slicewise, stack, unstack, why_not_stackable

R = TypeVar("R", bound=Message)
STACKING_PAYS = 5_000_000
"""Operations of one party's forward pass up to which stacking pays on a CPU.

With less to do, a party mostly waits for Python, and one call for all saves most of that. With more, one party's
numbers fit a core's cache where those of all do not, and parties in threads can use every core. CPU time of a VIMADMM
round as a cohort against party by party, one thread, 14 parties of 56-120-60: 0.49 at 0.9 million operations,
0.79 at 3.6, 0.82 at 7.1, 1.01 at 14. The bound lies below where these meet, for machines with more than one core.
"""
ALL_THREADS_PAY = 300_000_000
"""Operations of a cohort's forward pass from which torch gains by using more than one thread for it."""


class CohortOutbox(Outbox):
    """One release for all members, made by each member's own outbox under its own rules."""

    def __init__(self, outboxes: Sequence[Outbox], owner: str) -> None:
        super().__init__(owner, outboxes[0].generator)
        self.outboxes = outboxes
        self.parts: dict[int, list[Released]] = {}

    def bounded(self, tensor: torch.Tensor, as_: str, batch: str | None = None) -> torch.Tensor:
        return slicewise([partial(outbox.bounded, as_=as_, batch=batch) for outbox in self.outboxes], tensor)

    def release(self, tensor: torch.Tensor, as_: str, batch: str | None = None) -> Released:
        parts = [outbox.release(share, as_, batch) for outbox, share in zip(self.outboxes, tensor, strict=True)]
        self.released += 1
        self.parts[self.released] = parts
        whole = torch.stack([part.tensor for part in parts])
        return Released._seal(whole, Receipt(self.owner, self.released, as_, batch, NON_PRIVATE, "identity", 0))

    def own(self, released: Released) -> torch.Tensor:
        if released.receipt.name not in self.seals:
            return released.tensor
        parts = zip(self.outboxes, self.parts[released.receipt.number], strict=True)
        return torch.stack([outbox.own(part) for outbox, part in parts])

    def _sealed(self, encrypted: Encrypted, as_: str, batch: str | None, event: DpEvent | None) -> Ciphertext:  # noqa: ARG002
        raise BoundaryError(
            f"'{self.owner}' are answered for as one, and each must encrypt {as_} for itself.\n"
            "    Set stackable = False on their FeatureOwner."
        )


class Cohort:
    """The members and their stacked twin."""

    def __init__(self, members: Mapping[str, FeatureOwner]) -> None:
        self.members = dict(members)
        parties = list(self.members.values())
        first = parties[0]
        name = ", ".join(self.members)
        self.outbox = CohortOutbox([party.outbox for party in parties], name)
        seat = Seat(name, self.outbox, first.seat.batches, first.generator, Ledger(name), first.device)
        features = mapped.stack([party.features for party in parties])
        self.twin = type(first)(seat, features, Stacked([party.model for party in parties]), first.config)
        self.twin.row_axis = 1
        for index, party in enumerate(parties):
            party.features = features[index]  # the members' columns are views: one copy in memory
        self._lock = threading.Lock()
        on_cpu = first.device.type == "cpu"
        self.small = on_cpu and len(parties) * work(first, first.seat.batches.batch_size) < ALL_THREADS_PAY
        self.restack()

    def restack(self) -> None:
        """Take the members' state over, if it can be stacked: members that trained alone may have come apart."""
        states = [party.state() for party in self.members.values()]
        self.alike = alike(states)
        if self.alike:
            self.twin.load_state(stack(states))
        self.fresh, self.stale = True, False

    def settle(self) -> None:
        """Hand the state back, so that each member's model is its own again; nothing to do when it is."""
        with self._lock:
            if not self.fresh:
                states = unstack(self.twin.state(), len(self.members))
                for party, state in zip(self.members.values(), states, strict=True):
                    party.load_state(state)
                self.fresh = True

    def leave(self) -> None:
        """Members are about to be asked alone: they get their state, and the twin's is out of date from here on."""
        self.settle()
        self.stale = True

    def together(self) -> bool:
        """Whether the members can be answered as one, with the state they have now."""
        if self.stale:
            self.restack()
        return self.alike

    def answer(self, envelopes: Mapping[str, Envelope[Request[R]]]) -> dict[str, R]:
        """One stacked answer, taken apart."""
        sender = next(iter(envelopes.values())).sender
        requests = [envelopes[name].message for name in self.members]
        self.fresh = False
        try:
            with one_torch_thread(self.small), ExitStack() as answering:
                for party in self.members.values():
                    answering.enter_context(party.outbox.answering(sender))
                whole = self.twin.answer(self._join(requests))
        finally:  # a GPU works meanwhile
            for party, request in zip(self.members.values(), requests, strict=True):
                party.ledger.write("in", sender, request)
        replies = {name: self._part(whole, index) for index, name in enumerate(self.members)}
        self.outbox.parts.clear()
        for name, reply in replies.items():
            self.members[name].ledger.write("out", sender, reply)
        return replies

    def _join(self, requests: Sequence[Request[R]]) -> Request[R]:
        """One request from M: a tensor that all share stays one, the others are stacked; plain fields must agree."""
        first = requests[0]
        if all(request is first for request in requests):
            return first
        if any(type(request) is not type(first) for request in requests):
            raise self._differ(first, "requests")
        fields = {name: self._stack([getattr(r, name) for r in requests], first, name) for name in first.hints()}
        return type(first)(**fields)

    def _stack(self, values: list[Any], request: Message, name: str) -> Any:
        first = values[0]
        if all(value is first for value in values):
            return first
        if any(type(value) is not type(first) for value in values):
            raise self._differ(request, f"values of {name}")
        if isinstance(first, Released):
            return Released._seal(torch.stack([value.tensor for value in values]), first.receipt)
        if isinstance(first, tuple) and all(len(value) == len(first) for value in values):
            return tuple(self._stack(list(items), request, name) for items in zip(*values, strict=True))
        if isinstance(first, dict) and all(value.keys() == first.keys() for value in values):
            return {key: self._stack([value[key] for value in values], request, name) for key in first}
        if any(value != first for value in values):
            raise self._differ(request, f"values of {name}")
        return first

    def _differ(self, request: Message, what: str) -> PartyError:
        cause = f"its members were sent different {what}; run with cohort = 'off'"
        return PartyError(self.twin.name, request.kind, batch_of(request), cause)

    def _part(self, message: R, index: int) -> R:
        return type(message)(**{name: self._share(getattr(message, name), index) for name in message.hints()})

    def _share(self, value: Any, index: int) -> Any:
        """One member's share of a field."""
        if isinstance(value, Released):
            return self.outbox.parts[value.receipt.number][index]
        if isinstance(value, tuple):
            return tuple(self._share(item, index) for item in value)
        if isinstance(value, dict):
            return {key: self._share(item, index) for key, item in value.items()}
        return value


class Cohorts:
    """A transport that answers whole cohorts stacked and passes everything else on."""

    def __init__(self, inner: Transport, cohorts: Sequence[Cohort]) -> None:
        self.inner, self.cohorts = inner, cohorts

    def exchange(self, to: str, envelope: Envelope[Request[R]]) -> R:
        return self._alone({to: envelope})[to]

    def exchange_each(self, envelopes: Mapping[str, Envelope[Request[R]]]) -> dict[str, R]:
        replies: dict[str, R] = {}
        for cohort in self.cohorts:
            if cohort.members.keys() <= envelopes.keys() and cohort.together():
                replies |= cohort.answer(envelopes)
        rest = {to: envelope for to, envelope in envelopes.items() if to not in replies}
        replies |= self._alone(rest) if rest else {}
        return {to: replies[to] for to in envelopes}

    def _alone(self, envelopes: Mapping[str, Envelope[Request[R]]]) -> dict[str, R]:
        for cohort in self.cohorts:
            if cohort.members.keys() & envelopes.keys():
                cohort.leave()
        return self.inner.exchange_each(envelopes)

    def settle(self) -> None:
        for cohort in self.cohorts:
            cohort.settle()


def groups(parties: Mapping[str, Party]) -> list[dict[str, FeatureOwner]]:
    """The largest sets of two or more parties that can be stacked: same role, settings, device, columns, model and
    agreed rows."""
    found: dict[tuple[Any, ...], dict[str, FeatureOwner]] = {}
    for name, party in parties.items():
        if isinstance(party, FeatureOwner) and party.stackable and why_not_stackable(party.model) is None:
            found.setdefault(_shape(party), {})[name] = party
    return [group for group in found.values() if len(group) > 1]


def worth_stacking(group: Mapping[str, FeatureOwner], rows: int) -> bool:
    """Whether a cohort is faster. On a GPU always; on a CPU while a party's batch is little work."""
    first = next(iter(group.values()))
    return first.device.type != "cpu" or work(first, rows) <= STACKING_PAYS


PLAIN = set(vars(nn.Module()))
"""What every module has; its other attributes are settings, and equal modules have equal ones."""


def _shape(party: FeatureOwner) -> tuple[Any, ...]:
    model = party.model
    parameters = ((name, tuple(p.shape), p.dtype, p.requires_grad) for name, p in model.named_parameters())
    kinds = ((type(part), repr({k: v for k, v in vars(part).items() if k not in PLAIN})) for part in model.modules())
    settings = (type(party), repr(party.config), str(party.device), tuple(party.features.shape), party.features.dtype)
    return (*settings, party.seat.batches.fingerprint(), repr(model), tuple(kinds), tuple(parameters))
