"""A party serves what its algorithm asks for, and nothing else: what nobody asks in a
run is a door left open."""

from __future__ import annotations

import pytest
from tests.conformance.battery import VARIANTS
from tests.conformance.toy import ALSO, TRANSPORTS, federation, variant

from colonnade.algorithms import ALGORITHMS
from colonnade.core import roles
from colonnade.core.message import Ping

HOUSEKEEPING = {roles.Introduce.kind, Ping.kind}


@pytest.mark.parametrize(
    "name", [name for name, algorithm in ALGORITHMS.items() if algorithm.nested is None]
)
def test_whatever_a_feature_owner_serves_is_asked_in_some_run(name: str) -> None:
    algorithm = ALGORITHMS[name]
    others = [variant(algorithm, **settings) for settings in ALSO.get(name, [])]
    others += [one for one in VARIANTS.values() if one.config is algorithm.config]
    asked = set(HOUSEKEEPING)
    for way in [algorithm, *others]:
        toy = federation(way, TRANSPORTS["recording"])
        toy.run(2)
        toy.predict()
        asked |= {
            seen.message.kind
            for party in toy.parties
            for seen in toy.transport.of(party)
        }
    party = next(iter(toy.parties.values()))
    own = {
        request.kind for request, who in party.reserved.items() if who == {party.name}
    }
    assert {request.kind for request in party.served()} - own <= asked
