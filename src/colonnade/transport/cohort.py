"""M same-shaped feature owners in one process, answered as one: stacked parameters, one kernel instead of M.

    requests of ask_each --stack--> one request --the algorithm's own method--> one reply --unstack--> replies

The algorithm does not know. Each member keeps its own outbox, rules, random numbers and ledger; only the arithmetic
is shared. Calls that do not go to the whole cohort are answered by the member itself, after its share of the state
was handed back.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

import torch

from colonnade.core.ledger import Ledger
from colonnade.core.message import Message, Request, batch_of
from colonnade.core.party import Party, Seat
from colonnade.core.peers import Transport
from colonnade.core.release import NON_PRIVATE, Outbox, Receipt, Released
from colonnade.core.roles import FeatureOwner
from colonnade.core.wire import Envelope
from colonnade.errors import PartyError
from colonnade.transport.stacked import Stacked, stack, unstack, why_not_stackable

R = TypeVar("R", bound=Message)


class CohortOutbox(Outbox):
    """One release for all members, made by each member's own outbox under its own rules."""

    def __init__(self, outboxes: Sequence[Outbox], owner: str) -> None:
        super().__init__(owner, outboxes[0].generator)
        self.outboxes = outboxes
        self.parts: dict[int, list[Released]] = {}

    def release(self, tensor: torch.Tensor, as_: str, batch: str | None = None) -> Released:
        parts = [outbox.release(share, as_, batch) for outbox, share in zip(self.outboxes, tensor, strict=True)]
        self.released += 1
        self.parts[self.released] = parts
        whole = torch.stack([part.tensor for part in parts])
        return Released._seal(whole, Receipt(self.owner, self.released, as_, batch, NON_PRIVATE, "identity", 0))


class Cohort:
    """The members and their stacked twin."""

    def __init__(self, members: Mapping[str, FeatureOwner]) -> None:
        self.members = dict(members)
        parties = list(self.members.values())
        first = parties[0]
        name = ", ".join(self.members)
        self.outbox = CohortOutbox([party.outbox for party in parties], name)
        seat = Seat(name, self.outbox, first.seat.batches, first.generator, Ledger(name), first.device)
        features = torch.stack([party.features for party in parties])
        self.twin = type(first)(seat, features, Stacked([party.model for party in parties]), first.config)
        self.twin.row_axis = 1
        for index, party in enumerate(parties):
            party.features = features[index]  # the members' columns are views: one copy in memory
        self.restack()

    def restack(self) -> None:
        """Take the members' state over."""
        self.twin.load_state(stack([party.state() for party in self.members.values()]))
        self.fresh = True

    def settle(self) -> None:
        """Hand the state back, so that each member's model is its own again; nothing to do when it is."""
        if not self.fresh:
            for party, state in zip(self.members.values(), unstack(self.twin.state(), len(self.members)), strict=True):
                party.load_state(state)
            self.fresh = True

    def answer(self, envelopes: Mapping[str, Envelope[Request[R]]]) -> dict[str, R]:
        """One stacked answer, taken apart."""
        sender = next(iter(envelopes.values())).sender
        requests = [envelopes[name].message for name in self.members]
        for party, request in zip(self.members.values(), requests, strict=True):
            party.ledger.write("in", sender, request)
            party.outbox._recipient = sender
        self.fresh = False
        try:
            whole = self.twin.answer(self._join(requests))
        finally:
            for party in self.members.values():
                party.outbox._recipient = None
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
        fields = {name: self._stack([getattr(r, name) for r in requests], first, name) for name in first.hints()}
        return type(first)(**fields)

    def _stack(self, values: list[Any], request: Message, name: str) -> Any:
        first = values[0]
        if all(value is first for value in values):
            return first
        if isinstance(first, Released):
            return Released._seal(torch.stack([value.tensor for value in values]), first.receipt)
        if any(value != first for value in values):
            cause = f"its members were sent different values of {name}; run with cohort = 'off'"
            raise PartyError(self.twin.name, request.kind, batch_of(request), cause)
        return first

    def _part(self, message: R, index: int) -> R:
        fields = {name: getattr(message, name) for name in message.hints()}
        parts = {
            name: self.outbox.parts[value.receipt.number][index] if isinstance(value, Released) else value
            for name, value in fields.items()
        }
        return type(message)(**parts)


class Cohorts:
    """A transport that answers whole cohorts stacked and passes everything else on."""

    def __init__(self, inner: Transport, cohorts: Sequence[Cohort]) -> None:
        self.inner, self.cohorts = inner, cohorts

    def exchange(self, to: str, envelope: Envelope[Request[R]]) -> R:
        return self._alone({to: envelope})[to]

    def exchange_each(self, envelopes: Mapping[str, Envelope[Request[R]]]) -> dict[str, R]:
        replies: dict[str, R] = {}
        for cohort in self.cohorts:
            if cohort.members.keys() <= envelopes.keys():
                replies |= cohort.answer(envelopes)
        rest = {to: envelope for to, envelope in envelopes.items() if to not in replies}
        replies |= self._alone(rest) if rest else {}
        return {to: replies[to] for to in envelopes}

    def _alone(self, envelopes: Mapping[str, Envelope[Request[R]]]) -> dict[str, R]:
        touched = [cohort for cohort in self.cohorts if cohort.members.keys() & envelopes.keys()]
        for cohort in touched:
            cohort.settle()
        replies = self.inner.exchange_each(envelopes)
        for cohort in touched:
            cohort.restack()
        return replies

    def settle(self) -> None:
        for cohort in self.cohorts:
            cohort.settle()


def groups(parties: Mapping[str, Party]) -> list[dict[str, FeatureOwner]]:
    """The largest sets of two or more parties that can be stacked: same role, settings, device, columns and model."""
    found: dict[tuple[Any, ...], dict[str, FeatureOwner]] = {}
    for name, party in parties.items():
        if isinstance(party, FeatureOwner) and why_not_stackable(party.model) is None:
            found.setdefault(_shape(party), {})[name] = party
    return [group for group in found.values() if len(group) > 1]


def _shape(party: FeatureOwner) -> tuple[Any, ...]:
    model = party.model
    parameters: Iterable[Any] = ((name, tuple(p.shape), p.dtype) for name, p in model.named_parameters())
    kinds = tuple(type(part) for part in model.modules())
    settings = (type(party), repr(party.config), str(party.device), tuple(party.features.shape), party.features.dtype)
    return (*settings, repr(model), kinds, tuple(parameters))
