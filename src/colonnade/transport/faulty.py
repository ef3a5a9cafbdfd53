"""What networks do, on purpose and on schedule: delay, drop, duplicate, fail at the n-th call."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar

from colonnade.core.message import Message, Request, batch_of
from colonnade.core.peers import Transport
from colonnade.core.wire import Envelope
from colonnade.errors import ConfigError, PartyError

R = TypeVar("R", bound=Message)


@dataclass(frozen=True)
class Fault:
    """Something that happens to the `at`-th call to a party (counted from 1), or to every call when `at` is 0.

    delay      it arrives `seconds` later
    drop       it never arrives
    duplicate  it arrives twice
    fail       it arrives and is answered, and the answer is lost
    """

    kind: Literal["delay", "drop", "duplicate", "fail"]
    to: str
    at: int = 0
    seconds: float = 0.0

    def __post_init__(self) -> None:
        if self.kind not in ("delay", "drop", "duplicate", "fail"):
            raise ConfigError(f"A fault is one of delay, drop, duplicate, fail; found {self.kind!r}.")


class Faulty:
    """Passes calls on, except where a fault says otherwise."""

    def __init__(self, inner: Transport, faults: Sequence[Fault]) -> None:
        self.inner, self.faults = inner, faults
        self.calls: dict[str, int] = {}

    def exchange(self, to: str, envelope: Envelope[Request[R]]) -> R:
        self.calls[to] = self.calls.get(to, 0) + 1
        active = {fault.kind: fault for fault in self.faults if fault.to == to and fault.at in (0, self.calls[to])}
        if "delay" in active:
            time.sleep(active["delay"].seconds)
        if "drop" in active:
            raise PartyError(to, envelope.message.kind, batch_of(envelope.message), "the call never arrived")
        reply = self.inner.exchange(to, envelope)
        if "duplicate" in active:
            reply = self.inner.exchange(to, envelope)
        if "fail" in active:
            raise PartyError(to, envelope.message.kind, batch_of(envelope.message), "the answer was lost")
        return reply

    def exchange_each(self, envelopes: Mapping[str, Envelope[Request[R]]]) -> dict[str, R]:
        return {to: self.exchange(to, envelope) for to, envelope in envelopes.items()}
