"""Rounds while a fifth of all calls is disturbed, hundreds in `make test-all`: the end
is that of a quiet day."""

from __future__ import annotations

from typing import Any

import pytest
from tests.conformance.toy import assert_bit_equal, federation, sequential
from tests.transport.storm import Storm

from colonnade.algorithms import splitnn, vimadmm
from colonnade.algorithms.algorithm import AnyAlgorithm
from colonnade.core import Transport
from colonnade.transport import Retrying


@pytest.mark.parametrize(
    ("algorithm", "rounds"),
    [
        pytest.param(vimadmm.ALGORITHM, 60, id="vimadmm"),
        pytest.param(splitnn.ALGORITHM, 60, id="splitnn"),
        pytest.param(
            vimadmm.ALGORITHM, 500, id="vimadmm for long", marks=pytest.mark.long
        ),
    ],
)
def test_a_storm_changes_nothing(algorithm: AnyAlgorithm, rounds: int) -> None:
    storms: list[Storm] = []

    def stormy(parties: Any) -> Transport:
        storms.append(Storm(sequential(parties), share=0.2, seed=7, seconds=0.001))
        return Retrying(storms[0], deadline=30.0, retries=25, pause=0.0)

    quiet = federation(algorithm, epochs=rounds // 5)
    disturbed = federation(algorithm, stormy, epochs=rounds // 5)
    assert quiet.run(rounds) == disturbed.run(rounds)
    assert_bit_equal(quiet.states(), disturbed.states())
    for name, party in quiet.parties.items():
        # nothing was done or released twice
        assert party.ledger.entries == disturbed.parties[name].ledger.entries
    storm = storms[0]
    assert storm.calls > 6 * rounds  # the retries too
    assert 0.17 < sum(storm.seen.values()) / storm.calls < 0.23
    # of delays, drops, lost answers, duplicates and late calls each
    assert min(storm.seen.values()) > rounds / 10
