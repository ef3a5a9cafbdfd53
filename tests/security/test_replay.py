"""What was on the wire is recorded and sent again, and sent by somebody else: nothing
comes of it."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import pytest
from tests.conformance.battery import every_algorithm
from tests.conformance.toy import Toy, assert_bit_equal, federation
from tests.transport.one_by_one import OneByOne, only

from colonnade.algorithms.algorithm import AnyAlgorithm
from colonnade.core import Done, Envelope, Party, wire
from colonnade.errors import BoundaryError
from colonnade.transport import InProcess


class Wiretap(OneByOne):
    """Through bytes, and a copy of every frame to each party."""

    def __init__(self, parties: Mapping[str, Party]) -> None:
        self.inner = InProcess(parties, parallel="never", through_bytes=True)
        self.frames: list[tuple[str, bytes]] = []

    def one(self, call: Envelope[Any]) -> Any:
        self.frames.append((call.receiver, wire.encode(call)))
        return only(self.inner, call)


def trained(algorithm: AnyAlgorithm) -> tuple[Toy, list[tuple[str, bytes]], Any]:
    toy = federation(algorithm, Wiretap)
    toy.run(2)
    return toy, list(toy.transport.frames), toy.states()


def ledgers(toy: Toy) -> dict[str, int]:
    return {name: party.ledger.position for name, party in toy.parties.items()}


@every_algorithm
def test_a_recorded_run_sent_again_changes_nothing(algorithm: AnyAlgorithm) -> None:
    toy, frames, before = trained(algorithm)
    written = ledgers(toy)
    newest = {to: wire.decode(frame).number for to, frame in frames}
    for to, frame in frames:
        call = wire.decode(frame)
        try:
            reply = toy.parties[to].handle(call)
        except BoundaryError as error:
            assert "older than what it has answered" in str(error)  # noqa: PT017
        else:  # the newest has its reply again; an older one hears no more than Done
            assert call.number == newest[to] or reply == Done()
    assert_bit_equal(toy.states(), before)
    assert ledgers(toy) == written
    toy.run(1)  # and the driver goes on


@every_algorithm
def test_nobody_else_is_answered(algorithm: AnyAlgorithm) -> None:
    toy, frames, before = trained(algorithm)
    written = ledgers(toy)
    for party in toy.parties.values():
        party.serves_for = {"label owner"}
    for to, frame in frames:
        said = wire.decode(frame)
        for name in ("mallory", to, "Label owner"):
            with pytest.raises(BoundaryError, match="this is for label owner to ask"):
                toy.parties[to].handle(
                    Envelope(name, said.number + 1_000_000, copy.copy(said.message))
                )
    assert_bit_equal(toy.states(), before)
    assert ledgers(toy) == written
    toy.run(1)
