"""Send a request that is answered by Done together with the next call to the same party.

    the algorithm asks     Embed 1    Descend 1    Embed 2             Descend 2    ...
    a party is sent        Embed 1                 Descend 1, Embed 2               ...

Done tells the driver nothing, so the driver need not wait for it. Between sites this
saves half of the journeys. A party answers the calls of a frame one after the other,
each as if it had come alone, so no bit changes. What still waits is sent before anybody
saves itself or hands over to another driver (`Peers.settle`). When a held request
fails, the error names it and its batch, and what came after it in the frame is not
done.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from colonnade.core.message import Done, Ping, answered_by
from colonnade.core.peers import Answer, Transport
from colonnade.core.wire import AHEAD, JOINED, Envelope
from colonnade.errors import BudgetExhausted, PartyError

Call = Envelope[Any]
LARGEST_FRAME = JOINED // 2
"""Bytes of tensors in a frame with several calls. A larger frame takes longer than the
journey that it would save."""


class Holding:
    """Holds requests that are answered by Done until the next call to the same party.

    Args:
        inner: The transport that carries the calls.
    """

    def __init__(self, inner: Transport) -> None:
        self.inner = inner
        self.held: dict[str, list[Call]] = {}
        self._lines: dict[str, threading.RLock] = {}

    def exchange(self, calls: Sequence[Call]) -> list[Answer]:
        if any(isinstance(call.message, Ping) for call in calls):
            return self.inner.exchange(calls)  # a sign of life waits for nothing
        with self._alone_with(call.receiver for call in calls):
            if all(self._may_wait(call) for call in calls):
                for call in calls:
                    self.held.setdefault(call.receiver, []).append(call)
                return [Done() for _ in calls]
            self._send(call.receiver for call in calls if not self._fits(call))
            return self._exchange_with_held(calls)

    def send_held(self) -> None:
        """Send everything that waits, and return when it is done."""
        receivers = list(self.held)
        with self._alone_with(receivers):
            self._send(receivers)

    @contextmanager
    def _alone_with(self, receivers: Iterable[str]) -> Iterator[None]:
        """Inside, no other thread sends these parties anything, so that a frame with
        held calls is not overtaken by a later one."""
        # Everybody takes the locks in one order, so nobody waits for the other.
        lines = [
            self._lines.setdefault(receiver, threading.RLock())
            for receiver in sorted(set(receivers))
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

    def _send(self, receivers: Iterable[str]) -> None:
        """Send what waits for some parties, without a further call."""
        waiting = [call for to in receivers for call in self.held.pop(to, [])]
        if waiting:
            for answer in self._exchange_or_hold_again(waiting):
                if isinstance(answer, PartyError):
                    raise answer

    def _exchange_with_held(self, calls: Sequence[Call]) -> list[Answer]:
        """Exchange calls behind what waits for their receivers. A held call that failed
        gives the answer to the call behind it, which was not done."""
        waiting = [call for one in calls for call in self.held.pop(one.receiver, [])]
        answers = self._exchange_or_hold_again([*waiting, *calls])
        failures: dict[str, PartyError] = {}
        for call, answer in zip(waiting, answers, strict=False):
            if isinstance(answer, PartyError):
                failures.setdefault(call.receiver, answer)
        told = answers[len(waiting) :]
        return [
            failures.get(call.receiver, answer)
            for call, answer in zip(calls, told, strict=True)
        ]

    def _exchange_or_hold_again(self, calls: Sequence[Call]) -> list[Answer]:
        try:
            return self.inner.exchange(calls)
        except BudgetExhausted:
            # Training ends here and everybody is saved: who was not reached must be.
            for call in calls:
                if answered_by(type(call.message)) is Done:
                    self.held.setdefault(call.receiver, []).append(call)
            raise

    def _may_wait(self, call: Call) -> bool:
        is_done = answered_by(type(call.message)) is Done
        has_room = len(self.held.get(call.receiver, [])) < AHEAD
        return is_done and has_room and self._fits(call)

    def _fits(self, call: Call) -> bool:
        """Whether a call is small enough to travel with what waits for its receiver."""
        size = 0
        for one in (*self.held.get(call.receiver, []), call):
            size += sum(line[-1].bytes for line in one.message.lines())
        return size <= LARGEST_FRAME
