"""A request that is answered by Done waits, and travels with the next call to the same
party: half a round's journeys.

    the algorithm asks     Embed 1    Descend 1    Embed 2             Descend 2    Embed 3             ...    (settle)
    a party is sent        Embed 1                 Descend 1, Embed 2               Descend 2, Embed 3         Descend 3

Done tells the driver nothing, so it need not wait for it. A party answers the calls of
a frame one after the other, each as if it had come alone: the same checks, numbers and
ledger entries in the same order, so the same bits. What still waits is sent before
anybody saves itself or hands over to another driver (`Peers.settle`). A lost frame is
sent again whole, and what was done of it is not done twice (`core.party`). A request
that waited and fails is named, with its batch, when its frame is answered; what
travelled behind it is not done, as an algorithm would not have come that far, and
nothing of the frame is sent again: the run ends, or its round does.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, TypeVar

from colonnade.core.message import Done, Message, Ping, Request, answered_by
from colonnade.core.roles import Attempting, Transport
from colonnade.core.wire import AHEAD, JOINED, Envelope
from colonnade.errors import BudgetExhausted, PartyError

R = TypeVar("R", bound=Message)
LARGEST = JOINED // 2
"""Bytes of tensors in a frame with several calls: what is larger takes longer than the
journey that it would save."""


class Holding:
    """Holds back what is answered by Done, in its order, until the next call to the
    same party. Pings pass it by."""

    def __init__(self, inner: Transport) -> None:
        self.inner = inner
        self.held: dict[str, tuple[Envelope[Any], ...]] = {}
        # to a party goes one frame at a time
        self._lines: dict[str, threading.RLock] = {}

    def exchange(self, to: str, envelope: Envelope[Request[R]]) -> R:
        passes = isinstance(envelope.message, Ping)
        return (
            self.inner.exchange(to, envelope)
            if passes
            else self.exchange_each({to: envelope})[to]
        )

    def exchange_each(
        self, envelopes: Mapping[str, Envelope[Request[R]]]
    ) -> dict[str, R]:
        with self._alone_with(envelopes):
            if all(self._may_wait(to, envelope) for to, envelope in envelopes.items()):
                for to, envelope in envelopes.items():
                    self.held[to] = (
                        *self.held.get(to, ()),
                        replace(envelope, held=True),
                    )
                return {to: Done() for to in envelopes}  # type: ignore[misc]
            self._send(
                [
                    to
                    for to, envelope in envelopes.items()
                    if not self._fits(to, envelope)
                ]
            )
            waited = {to: self.held.pop(to) for to in envelopes if to in self.held}
            return self._exchange(
                {
                    to: replace(e, ahead=waited[to]) if to in waited else e
                    for to, e in envelopes.items()
                },
                waited,
            )

    def attempt_each(
        self, envelopes: Mapping[str, Envelope[Request[R]]]
    ) -> dict[str, R | PartyError]:
        """As the other transport does it best, or one after the other."""
        self.send_held()
        with self._alone_with(envelopes):
            if isinstance(self.inner, Attempting):
                return self.inner.attempt_each(envelopes)
            found: dict[str, R | PartyError] = {}
            for to, envelope in envelopes.items():
                try:
                    found[to] = self.inner.exchange(to, envelope)
                except PartyError as error:
                    found[to] = error
            return found

    def send_held(self) -> None:
        """Send everything that waits, and return when it is done."""
        parties = list(self.held)
        with self._alone_with(parties):
            self._send(parties)

    @contextmanager
    def _alone_with(self, parties: Iterable[str]) -> Iterator[None]:
        """Inside, no other thread sends these anything: a frame that is on its way with
        what was held back is not overtaken by the next."""
        # all in one order
        lines = [
            self._lines.setdefault(to, threading.RLock()) for to in sorted(parties)
        ]
        taken = []
        try:
            for line in lines:
                line.acquire()
                taken.append(line)
            yield
        finally:
            for line in taken:
                line.release()

    def _send(self, parties: Collection[str]) -> None:
        waited = {to: self.held.pop(to) for to in parties if to in self.held}
        if waited:
            self._exchange(
                {
                    to: replace(last, ahead=tuple(ahead))
                    for to, (*ahead, last) in waited.items()
                },
                waited,
            )

    def _exchange(
        self,
        envelopes: Mapping[str, Envelope[Request[R]]],
        waited: dict[str, tuple[Envelope[Any], ...]],
    ) -> dict[str, R]:
        try:
            return self.inner.exchange_each(envelopes)
        # training ends here and all are saved: whoever was not reached must be
        except BudgetExhausted:
            self.held |= waited
            raise

    def _may_wait(self, to: str, envelope: Envelope[Request[Any]]) -> bool:
        told = answered_by(type(envelope.message))
        return (
            told is Done
            and len(self.held.get(to, ())) < AHEAD
            and self._fits(to, envelope)
        )

    def _fits(self, to: str, envelope: Envelope[Any]) -> bool:
        calls = (*self.held.get(to, ()), envelope)
        return bool(
            sum(line[-1].bytes for one in calls for line in one.message.lines())
            <= LARGEST
        )
