"""Hundreds of rounds while a fifth of all calls is disturbed: the end is what it is on a quiet day."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest
from tests.conformance.toy import assert_bit_equal, federation, sequential

from colonnade.algorithms import splitnn, vimadmm
from colonnade.core import Transport
from colonnade.transport import Retrying, Storm

ROUNDS = 500


@pytest.mark.parametrize(
    ("algorithm", "rounds"), [(vimadmm, ROUNDS), (splitnn, ROUNDS // 8)], ids=["vimadmm", "splitnn"]
)
def test_a_storm_changes_nothing(algorithm: ModuleType, rounds: int) -> None:
    storms: list[Storm] = []

    def stormy(parties: Any) -> Transport:
        storms.append(Storm(sequential(parties), share=0.2, seed=7, seconds=0.001))
        return Retrying(storms[0], deadline=30.0, retries=25, pause=0.0)

    quiet = federation(algorithm, epochs=ROUNDS // 5)
    disturbed = federation(algorithm, stormy, epochs=ROUNDS // 5)
    assert quiet.run(rounds) == disturbed.run(rounds)
    assert_bit_equal(quiet.states(), disturbed.states())
    for name, party in quiet.parties.items():
        assert party.ledger.entries == disturbed.parties[name].ledger.entries  # nothing was done or released twice
    storm = storms[0]
    assert storm.calls > 6 * rounds  # the retries too
    assert 0.17 < sum(storm.seen.values()) / storm.calls < 0.23
    assert min(storm.seen.values()) > rounds / 10  # of delays, drops, lost answers, duplicates and late calls each
