"""Keeps, beside the calls, what each party received: for tests, audits and pictures."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from colonnade.core.message import Message, Request
from colonnade.core.peers import Transport
from colonnade.core.transcript import Transcript
from colonnade.core.wire import Envelope

R = TypeVar("R", bound=Message)


class Recording:
    """Passes every call on, and writes one transcript per receiver."""

    def __init__(self, inner: Transport) -> None:
        self.inner = inner
        self.transcripts: dict[str, Transcript] = {}

    def of(self, party: str) -> Transcript:
        """What one party received."""
        return self.transcripts.setdefault(party, Transcript(party))

    def exchange(self, to: str, envelope: Envelope[Request[R]]) -> R:
        return self.exchange_each({to: envelope})[to]

    def exchange_each(self, envelopes: Mapping[str, Envelope[Request[R]]]) -> dict[str, R]:
        for to, envelope in envelopes.items():
            self.of(to).add(envelope.sender, envelope.message)
        replies = self.inner.exchange_each(envelopes)
        for to, reply in replies.items():
            self.of(envelopes[to].sender).add(to, reply)
        return replies
