"""A request that is answered by Done waits, and travels with the next call to the same party: half a round's journeys.

    the algorithm asks     Embed 1    Descend 1    Embed 2             Descend 2    Embed 3             ...    (settle)
    a party is sent        Embed 1                 Descend 1, Embed 2               Descend 2, Embed 3         Descend 3

Done tells the driver nothing, so it need not wait for it. A party answers the calls of a frame one after the other,
each as if it had come alone: the same checks, numbers and ledger entries, in the same order, so the same bits. `settle`
sends what still waits, before anybody saves itself or hands over to another driver (`Peers.settle`).

A frame that is lost is sent again whole, and what was done of it is not done twice (`core.party`). Where a request that
waited fails, that is said when its frame is answered: by a PartyError with its own name and batch; the call that it
travelled with is then not done, as an algorithm would not have come that far. After a failure nothing of that frame is
sent again: the run ends, or its round does. A spent budget is no failure: training ends there and everybody is saved,
so what may not have arrived stays, and is sent once more.

It is for training between machines. A driver that goes on without parties that do not answer must know who did what, so
there nothing waits (`EngineSettings.around`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Any, Protocol, TypeVar, runtime_checkable

from colonnade.core.message import Done, Message, Ping, Request, answered_by
from colonnade.core.peers import Attempting, Transport
from colonnade.core.wire import AHEAD, Envelope
from colonnade.errors import BudgetExhausted, PartyError

R = TypeVar("R", bound=Message)
LARGEST = 16 << 20
"""Bytes of tensors in a frame with several calls: what is larger takes longer than the journey that it would save."""


@runtime_checkable
class Joining(Protocol):
    """A transport that may carry several calls to a party in one frame."""

    @property
    def joins(self) -> bool: ...


class Carrier(Transport, Attempting, Protocol):
    """What makes calls until they are answered (`transport.retrying`)."""


class Holding:
    """Holds back what is answered by Done, in its order, until the next call to the same party. Pings pass it by."""

    def __init__(self, inner: Carrier) -> None:
        self.inner = inner
        self.held: dict[str, tuple[Envelope[Any], ...]] = {}

    def exchange(self, to: str, envelope: Envelope[Request[R]]) -> R:
        if isinstance(envelope.message, Ping):
            return self.inner.exchange(to, envelope)
        return self._held_or_sent({to: envelope}, lambda joint: {to: self.inner.exchange(to, joint[to])})[to]

    def exchange_each(self, envelopes: Mapping[str, Envelope[Request[R]]]) -> dict[str, R]:
        return self._held_or_sent(envelopes, self.inner.exchange_each)

    def attempt_each(self, envelopes: Mapping[str, Envelope[Request[R]]]) -> dict[str, R | PartyError]:
        """Each answer, or the failure in its place; a failure of what waited is nobody's answer, and is raised."""
        self.settle()
        return self.inner.attempt_each(envelopes)

    def settle(self) -> None:
        """Send everything that waits, and wait until it is done."""
        self._send_alone(list(self.held))

    def _held_or_sent(
        self,
        envelopes: Mapping[str, Envelope[Request[R]]],
        send: Callable[[Mapping[str, Envelope[Request[R]]]], dict[str, R]],
    ) -> dict[str, R]:
        if all(self._may_wait(to, envelope) for to, envelope in envelopes.items()):
            for to, envelope in envelopes.items():
                self.held[to] = (*self.held.get(to, ()), replace(envelope, held=True))
            return {to: Done() for to in envelopes}  # type: ignore[misc]
        self._send_alone([to for to, e in envelopes.items() if to in self.held and not self._fits(to, e)])
        joint = {to: replace(e, ahead=self.held[to]) if to in self.held else e for to, e in envelopes.items()}
        try:
            replies = send(joint)
        except BudgetExhausted:
            raise
        except BaseException:
            self._forget(envelopes)
            raise
        self._forget(envelopes)
        return replies

    def _send_alone(self, parties: Collection[str]) -> None:
        """The last of what waits for each, with the others ahead of it."""
        waiting = {to: self.held.pop(to) for to in parties}
        if waiting:
            self.inner.exchange_each({to: replace(last, ahead=tuple(ahead)) for to, (*ahead, last) in waiting.items()})

    def _forget(self, parties: Collection[str]) -> None:
        for to in parties:
            self.held.pop(to, None)

    def _may_wait(self, to: str, envelope: Envelope[Request[Any]]) -> bool:
        told = answered_by(type(envelope.message))
        return told is Done and len(self.held.get(to, ())) < AHEAD and self._fits(to, envelope)

    def _fits(self, to: str, envelope: Envelope[Any]) -> bool:
        calls = (*self.held.get(to, ()), envelope)
        size: int = sum(item.receipt.bytes for one in calls for item in one.message.crossing())
        return size <= LARGEST
