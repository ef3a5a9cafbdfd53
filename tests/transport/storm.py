"""What networks do, all of it by chance, calls that overtake each other included."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, TypeVar

import torch
from tests.transport.one_by_one import OneByOne, only

from colonnade.core import Envelope, Message, Transport
from colonnade.core.message import batch_of
from colonnade.errors import ColonnadeError, NoAnswer

R = TypeVar("R", bound=Message)
WEATHER = ("delay", "drop", "fail", "duplicate", "reorder")


class Storm(OneByOne):
    """Passes calls on, and disturbs a share of them: each with one of `kinds`, drawn
    with a seed of its own.

    The kinds are those of `Fault`, and "reorder": the call is held back, and arrives
    after the next one to that party.
    """

    def __init__(
        self,
        inner: Transport,
        *,
        share: float,
        seed: int,
        seconds: float = 0.0,
        kinds: Sequence[str] = WEATHER,
    ) -> None:
        self.inner = inner
        self.share = share
        self.seconds = seconds
        self.kinds = kinds
        self.seen = dict.fromkeys(kinds, 0)
        self.calls = 0
        self._held: dict[str, list[Envelope[Any]]] = {}
        self._generator = torch.Generator().manual_seed(seed)
        self._lock = threading.Lock()

    def one(self, call: Envelope[Any]) -> Any:
        kind = self._drawn()
        lost = NoAnswer(
            call.receiver,
            call.message.kind,
            batch_of(call.message),
            f"the storm took it ({kind})",
        )
        if kind == "drop":
            raise lost
        if kind == "reorder":
            with self._lock:
                self._held.setdefault(call.receiver, []).append(call)
            raise lost
        if kind == "delay":
            time.sleep(self.seconds)
        reply = only(self.inner, call)
        if kind == "duplicate":
            reply = only(self.inner, call)
        self._deliver(call.receiver)
        if kind == "fail":
            raise lost
        return reply

    def _drawn(self) -> str | None:
        with self._lock:
            self.calls += 1
            if float(torch.rand((), generator=self._generator)) >= self.share:
                return None
            kind = self.kinds[
                int(torch.randint(len(self.kinds), (), generator=self._generator))
            ]
            self.seen[kind] += 1
            return kind

    def _deliver(self, to: str) -> None:
        """What was held back arrives now, when nobody waits for its answer any more."""
        with self._lock:
            late = self._held.pop(to, [])
        for envelope in late:
            # refused as a replay, which is as it should be
            with suppress(ColonnadeError):
                only(self.inner, envelope)
