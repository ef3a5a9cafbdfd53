"""What tests need to stand in for a transport, or to make one call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from colonnade.core import Envelope, Transport
from colonnade.core.peers import Answer
from colonnade.errors import PartyError


def only(transport: Transport, call: Envelope[Any]) -> Any:
    """Make one call: its reply, or the error of the party that failed."""
    (answer,) = transport.exchange([call])
    if isinstance(answer, PartyError):
        raise answer
    return answer


class OneByOne:
    """A transport that carries one call after the other. Subclasses say how, by `one`,
    which may raise."""

    def exchange(self, calls: Sequence[Envelope[Any]]) -> list[Answer]:
        answers: list[Answer] = []
        failures: dict[str, PartyError] = {}
        for call in calls:
            if call.receiver not in failures:
                try:
                    answers.append(self.one(call))
                    continue
                except PartyError as error:
                    failures[call.receiver] = error
            answers.append(failures[call.receiver])
        return answers

    def one(self, call: Envelope[Any]) -> Any:
        raise NotImplementedError
