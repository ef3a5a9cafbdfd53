"""What networks do, on purpose: delay, drop, duplicate, fail at the n-th call
(`Faulty`).

A rehearsal of a wide-area network in one process: every question and answer takes as
long as it would over links of a bandwidth and a latency (`colonnade run --network
50ms,100mbit`).

Whoever asks has one link. Questions leave over it one after the other, and answers come
over it one after the other, as they are ready; half of the latency is spent each way.
Who answers computes meanwhile, and all of them at once. What two roles of one
organisation tell each other crosses no link.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from colonnade.core.message import Message, batch_of
from colonnade.core.peers import Answer, Transport
from colonnade.core.wire import Envelope
from colonnade.errors import ConfigError, NoAnswer, PartyError


@dataclass(frozen=True)
class Fault:
    """Something that happens to the `at`-th call to a party (counted from 1), or to
    every call when `at` is 0.

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
            raise ConfigError(
                f"A fault is one of delay, drop, duplicate, fail; found {self.kind!r}."
            )


class Faulty:
    """Passes calls on, except where a fault says otherwise."""

    def __init__(self, inner: Transport, faults: Sequence[Fault]) -> None:
        self.inner = inner
        self.faults = faults
        self.calls: dict[str, int] = {}

    def exchange(self, calls: Sequence[Envelope[Any]]) -> list[Answer]:
        answers: list[Answer] = []
        failures: dict[str, PartyError] = {}
        for call in calls:
            failure = failures.get(call.receiver)
            answer = failure or self._exchange_one(call)
            if isinstance(answer, PartyError):
                failures[call.receiver] = answer
            answers.append(answer)
        return answers

    def _exchange_one(self, call: Envelope[Any]) -> Answer:
        to = call.receiver
        self.calls[to] = self.calls.get(to, 0) + 1
        active = {
            fault.kind: fault
            for fault in self.faults
            if fault.to == to and fault.at in (0, self.calls[to])
        }
        if "delay" in active:
            time.sleep(active["delay"].seconds)
        if "drop" in active:
            return self._no_answer(call, "the call never arrived")
        (answer,) = self.inner.exchange([call])
        if "duplicate" in active:
            (answer,) = self.inner.exchange([call])
        if "fail" in active:
            return self._no_answer(call, "the answer was lost")
        return answer

    def _no_answer(self, call: Envelope[Any], cause: str) -> NoAnswer:
        kind = call.message.kind
        return NoAnswer(call.receiver, kind, batch_of(call.message), cause)


UNITS = {"kbit": 1e3, "mbit": 1e6, "gbit": 1e9, "ms": 1e-3, "s": 1.0}
WORD = re.compile(r"(\d+(?:\.\d+)?)\s*(kbit|mbit|gbit|ms|s)(?:/s|ps)?")
HEADER = 200
"""Bytes of a message besides its tensors, about; ledgers do not count them."""


@dataclass(frozen=True)
class Network:
    """Bits a second each way at every party, and seconds for a message and its answer."""

    bandwidth: float
    latency: float = 0.0

    @classmethod
    def parse(cls, text: str) -> Network:
        """From words: "50ms,100mbit"; one of the two is enough."""
        values: dict[str, float] = {}
        for word in filter(None, re.split(r"[,\s]+", text.strip().lower())):
            match = WORD.fullmatch(word)
            kind = (
                ""
                if match is None
                else "bandwidth"
                if match[2].endswith("bit")
                else "latency"
            )
            if match is None or kind in values:
                raise ConfigError(
                    "--network is a latency and a bandwidth, as in 50ms,100mbit; found"
                    f" {text!r}."
                )
            values[kind] = float(match[1]) * UNITS[match[2]]
        if not values or values.get("bandwidth") == 0:
            raise ConfigError(
                "--network needs a bandwidth above 0 or a latency, as in 50ms,100mbit;"
                f" found {text!r}."
            )
        return cls(values.get("bandwidth", float("inf")), values.get("latency", 0.0))

    def seconds(
        self, traffic: Mapping[str, Mapping[str, int]], exchanges: float
    ) -> float:
        """For all of it: the busiest party's link carries what it sends and then what
        it receives, and every question waits for its answer."""
        busiest = max((sum(ways.values()) for ways in traffic.values()), default=0)
        headers = 2 * HEADER * exchanges * max(len(traffic) - 1, 0)
        return (busiest + headers) * 8 / self.bandwidth + exchanges * self.latency


class Distant:
    """Passes calls on, and lets their answers arrive when they would over a network."""

    def __init__(self, owner: str, inner: Transport, network: Network) -> None:
        self.owner = owner
        self.inner = inner
        self.network = network

    def exchange(self, calls: Sequence[Envelope[Any]]) -> list[Answer]:
        begun = time.perf_counter()
        away = [call for call in calls if call.receiver != self.owner]
        leaving = 0.0
        arrival: dict[str, float] = {}  # of the last question to each party
        for call in away:
            leaving += self._carrying(call.message)
            arrival[call.receiver] = leaving + self.network.latency / 2
        answers = self.inner.exchange(calls)
        computing = time.perf_counter() - begun
        replies = {
            call.receiver: answer for call, answer in zip(calls, answers, strict=True)
        }
        back = 0.0
        for receiver, arrives in arrival.items():
            reply = replies[receiver]
            if not isinstance(reply, PartyError):
                back = max(back, arrives + computing) + self._carrying(reply)
        if arrival:
            until = begun + back + self.network.latency / 2
            time.sleep(max(until - time.perf_counter(), 0.0))
        return answers

    def _carrying(self, message: Message) -> float:
        """Seconds in which a link carries a message."""
        size = HEADER + sum(item.receipt.bytes for item in message.crossing())
        return size * 8 / self.network.bandwidth
