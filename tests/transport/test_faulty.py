"""What networks do, on purpose and on schedule."""

from __future__ import annotations

import time
from typing import Any

import pytest
import torch
from tests.conformance.echo import Break, Remember, Sleep, asker, echoes
from tests.transport.one_by_one import only
from tests.transport.storm import Storm

from colonnade.core import Envelope
from colonnade.errors import ConfigError, NoAnswer, PartyError
from colonnade.transport import Fault, Faulty, InProcess


def held(parties: Any) -> list[float]:
    return [float(party.held[0, 0]) for party in parties.values()]


@pytest.mark.parametrize("kind", ["drop", "fail", "duplicate", "delay"])
@pytest.mark.parametrize("through_bytes", [False, True])
def test_each_kind_at_the_second_call_only(kind: Any, through_bytes: bool) -> None:
    parties = echoes()
    network = Faulty(
        InProcess(parties, through_bytes=through_bytes), [Fault(kind, "bob", at=2)]
    )
    peers, outbox = asker(network)
    one = Remember(outbox.release(torch.tensor(1.0), "value"))
    peers.ask(one)
    assert held(parties) == [1, 1, 1]
    if kind in ("drop", "fail"):
        with pytest.raises(
            PartyError, match=r"'bob' failed while answering echo\.Remember"
        ):
            peers.ask(one)
        assert held(parties) == [2, 1 if kind == "drop" else 2, 2]
    else:
        peers.ask(one)
        assert held(parties) == [2, 2, 2]
    before = held(parties)
    peers.ask(one)
    assert held(parties) == [value + 1 for value in before]
    assert network.calls == {"ada": 3, "bob": 3, "cyd": 3}


@pytest.mark.parametrize(
    ("kind", "cause"),
    [("drop", "the call never arrived"), ("fail", "the answer was lost")],
)
def test_a_lost_call_names_party_request_and_batch(kind: Any, cause: str) -> None:
    peers, _ = asker(Faulty(InProcess(echoes()), [Fault(kind, "bob", at=1)]))
    with pytest.raises(PartyError) as caught:
        peers.ask(Break(0.0, batch="train/3/1"))
    error = caught.value
    assert (error.party, error.request, error.batch, error.cause) == (
        "bob",
        "echo.Break",
        "train/3/1",
        cause,
    )


def test_a_lost_answer_can_be_asked_for_again() -> None:
    """The caller repeats the same call; the party has done it already and only answers
    again."""
    parties = echoes()
    network = Faulty(InProcess(parties), [Fault("fail", "bob", at=1)])
    envelope: Envelope[Any] = Envelope("asker", 1, Break(0.0), "bob")
    with pytest.raises(PartyError, match="the answer was lost"):
        only(network, envelope)
    assert float(only(network, envelope).released()[0].tensor[0, 0]) == 1.0
    assert held(parties) == [0, 1, 0]


def test_at_zero_means_every_call() -> None:
    parties = echoes()
    peers, outbox = asker(Faulty(InProcess(parties), [Fault("duplicate", "bob")]))
    for _ in range(3):
        peers.ask(Remember(outbox.release(torch.tensor(1.0), "value")))
    assert held(parties) == [3, 3, 3]
    assert [len(party.ledger.entries) for party in parties.values()] == [3, 3, 3]
    peers, _ = asker(Faulty(InProcess(parties), [Fault("drop", "bob")]))
    for _ in range(2):
        with pytest.raises(PartyError):
            peers["bob"].ask(Sleep(0.0))


def test_a_delay_delays() -> None:
    peers, _ = asker(
        Faulty(InProcess(echoes()), [Fault("delay", "bob", at=1, seconds=0.05)])
    )
    start = time.perf_counter()
    peers.ask(Sleep(0.0))
    assert time.perf_counter() - start >= 0.05


def test_faults_add_up() -> None:
    faults = [
        Fault("delay", "bob", at=1, seconds=0.02),
        Fault("duplicate", "bob", at=1),
        Fault("fail", "bob", at=1),
    ]
    parties = echoes()
    peers, outbox = asker(Faulty(InProcess(parties), faults))
    start = time.perf_counter()
    with pytest.raises(PartyError, match="the answer was lost"):
        peers["bob"].ask(Remember(outbox.release(torch.tensor(1.0), "value")))
    assert time.perf_counter() - start >= 0.02
    assert held(parties) == [0, 1, 0]


def test_an_unknown_kind_is_refused() -> None:
    with pytest.raises(
        ConfigError, match="one of delay, drop, duplicate, fail; found 'explode'"
    ):
        Fault("explode", "bob")  # type: ignore[arg-type]


def test_a_storm_disturbs_the_share_it_is_told_to_in_every_way() -> None:
    parties = echoes()
    storm = Storm(InProcess(parties), share=0.3, seed=3)
    lost = 0
    for number in range(1, 1001):
        try:
            only(storm, Envelope("asker", number, Break(0.0), "bob"))
        except NoAnswer:
            lost += 1
    assert storm.calls == 1000
    assert 250 < sum(storm.seen.values()) < 350
    assert min(storm.seen.values()) > 40
    assert lost == storm.seen["drop"] + storm.seen["fail"] + storm.seen["reorder"]
    never = storm.seen["drop"] + len(storm._held.get("bob", []))
    # what was late arrived too, and what came twice was done once
    assert held(parties) == [0, 1000 - never, 0]


def test_a_quiet_storm_and_one_with_the_same_seed() -> None:
    quiet = Storm(InProcess(echoes()), share=0.0, seed=3)
    quiet.exchange([Envelope("asker", 1, Break(0.0), to) for to in ("bob", "cyd")])
    assert quiet.calls == 2
    assert sum(quiet.seen.values()) == 0
    drawn = [
        [Storm(InProcess({}), share=0.5, seed=4)._drawn() for _ in range(3)]
        for _ in range(2)
    ]
    assert drawn[0] == drawn[1]
