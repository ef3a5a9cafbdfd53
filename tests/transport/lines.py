"""Desks in this process with lines to them, so that calls take the way they take
between machines, without machines."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, TypeVar

from colonnade.core import Envelope, Message, Party, Transport
from colonnade.core.peers import Answer
from colonnade.transport.remote import PIECE, Endpoint, Remote, Route

R = TypeVar("R", bound=Message)
ASKERS = ("asker", "label owner", "ada", "bob", "cyd", "dan")


def line_to(desk: Endpoint, caller: str) -> Route:
    """What a site calls with: the line, not the frame, says who it is."""
    return lambda data, _deadline: desk(caller, data)


def lines(
    parties: Mapping[str, Party],
    caller: str = "asker",
    *,
    admitted: Collection[str] = ASKERS,
    piece: int = PIECE,
) -> Remote:
    desks = {
        name: Endpoint(
            name,
            party.handle,
            admitted=admitted,
            allow=party.allow,
            device=party.device,
            piece=piece,
        )
        for name, party in parties.items()
    }
    return Remote(
        {name: line_to(desk, caller) for name, desk in desks.items()}, piece=piece
    )


class ByCaller:
    """Lines of their own for every caller, as every site has: the batteries' drivers
    have several names."""

    def __init__(self, parties: Mapping[str, Party], piece: int = PIECE) -> None:
        self.sides = {caller: lines(parties, caller, piece=piece) for caller in ASKERS}

    def exchange(self, calls: Sequence[Envelope[Any]]) -> list[Answer]:
        return self.sides[calls[0].sender].exchange(calls)


def in_pieces(parties: Mapping[str, Party]) -> Transport:
    """Nothing goes in one call."""
    return ByCaller(parties, piece=100)
