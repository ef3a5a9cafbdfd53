"""Lost calls are made again, done once, and given up by name."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
import torch
from tests.conformance.echo import Break, Echo, Remember, Sleep, asker, echoes
from tests.transport.one_by_one import OneByOne, only

from colonnade.core import Envelope, Transport
from colonnade.core.message import Ping
from colonnade.core.peers import Answer
from colonnade.errors import BoundaryError, NoAnswer, PartyError
from colonnade.transport import Fault, Faulty, InProcess, Retrying


def held(parties: Mapping[str, Echo]) -> list[float]:
    return [float(party.held[0, 0]) for party in parties.values()]


def retrying(inner: Transport, **settings: Any) -> Retrying:
    return Retrying(inner, **({"deadline": 5.0, "retries": 3, "pause": 0.0} | settings))


@pytest.mark.parametrize("kind", ["drop", "fail"])
@pytest.mark.parametrize("lost", [1, 3])
def test_a_lost_call_is_made_again_and_done_once(kind: Any, lost: int) -> None:
    parties = echoes()
    faulty = Faulty(
        InProcess(parties), [Fault(kind, "bob", at=at) for at in range(1, lost + 1)]
    )
    peers, outbox = asker(retrying(faulty))
    peers.ask(Remember(outbox.release(torch.tensor(1.0), "value")))
    assert held(parties) == [1, 1, 1]
    assert faulty.calls["bob"] == lost + 1
    assert [len(party.ledger.entries) for party in parties.values()] == [1, 1, 1]


def test_one_call_too_many_is_given_up_with_what_is_known() -> None:
    faulty = Faulty(InProcess(echoes()), [Fault("drop", "bob")])
    peers, _ = asker(retrying(faulty, retries=2))
    with pytest.raises(NoAnswer) as caught:
        peers["bob"].ask(Break(0.0, batch="train/3/1"))
    error = caught.value
    assert (error.party, error.request, error.batch) == (
        "bob",
        "echo.Break",
        "train/3/1",
    )
    assert (
        error.cause
        == "the call never arrived; asked 3 times, and it gives no sign of life"
    )
    assert faulty.calls["bob"] == 3 + 1  # and one heartbeat
    with pytest.raises(
        NoAnswer, match="it did not answer before, and gives no sign of life"
    ):
        peers["bob"].ask(Break(0.0, batch="train/3/2"))
    # who is gone costs a heartbeat, not all the retries
    assert faulty.calls["bob"] == 4 + 1


def test_a_party_that_says_it_failed_is_not_asked_again() -> None:
    parties = echoes()
    faulty = Faulty(InProcess(parties), [])
    peers, _ = asker(retrying(faulty))
    with pytest.raises(PartyError, match="'ada' failed") as caught:
        peers["ada"].ask(Break(10.0))
    assert not isinstance(caught.value, NoAnswer)
    assert faulty.calls == {"ada": 1}
    with pytest.raises(PartyError, match="'ada' failed"):
        peers.ask(Break(2.0))
    assert faulty.calls == {"ada": 2, "bob": 1, "cyd": 1}


def test_a_slow_party_is_given_a_deadline_and_its_answer_taken_later() -> None:
    """The second try waits for the first and gets the answer that it made; nothing is
    done twice."""
    parties = echoes()
    peers, _ = asker(retrying(InProcess(parties), deadline=0.2))
    start = time.perf_counter()
    peers["bob"].ask(Sleep(0.3))
    assert time.perf_counter() - start >= 0.3
    assert len(parties["bob"].threads) == len(parties["bob"].ledger.entries) == 1
    peers, _ = asker(retrying(InProcess(parties), deadline=0.02, retries=0))
    with pytest.raises(
        NoAnswer,
        match=r"no answer within 0\.02 s; asked once, and it gives a sign of life",
    ):
        peers["cyd"].ask(Sleep(0.5))


def test_nothing_newer_is_sent_while_a_call_that_was_given_up_is_under_way() -> None:
    parties = echoes()
    peers, _ = asker(retrying(InProcess(parties), deadline=0.05, retries=0))
    with pytest.raises(NoAnswer, match="no answer within"):
        peers["bob"].ask(Sleep(0.5))
    with pytest.raises(NoAnswer, match="a call before this one is still under way"):
        peers["bob"].ask(Break(0.0))
    assert held(parties) == [0, 0, 0]
    time.sleep(0.6)
    peers["bob"].ask(Break(0.0))
    assert held(parties) == [0, 1, 0]


def test_the_others_are_answered_although_one_is_missing() -> None:
    parties = echoes()
    faulty = Faulty(InProcess(parties), [Fault("drop", "ada")])
    peers, outbox = asker(retrying(faulty, retries=1))
    request = Remember(outbox.release(torch.tensor(1.0), "value"))
    replies, failures = peers.attempt(dict.fromkeys(parties, request))
    assert list(replies) == ["bob", "cyd"]
    assert list(failures) == ["ada"]
    assert isinstance(failures["ada"], NoAnswer)
    assert held(parties) == [0, 1, 1]


def test_attempting_keeps_failures_apart() -> None:
    parties = echoes()
    faulty = Faulty(InProcess(parties), [Fault("drop", "cyd")])
    peers, _ = asker(retrying(faulty, retries=0))
    replies, failures = peers.attempt(dict.fromkeys(parties, Break(2.0)))
    assert list(replies) == ["bob"]
    assert {name: type(error) for name, error in failures.items()} == {
        "ada": PartyError,
        "cyd": NoAnswer,
    }


def test_waiting_ends_when_the_party_is_back() -> None:
    parties = echoes()
    gone = Fault("drop", "bob")
    faulty = Faulty(InProcess(parties), [gone])
    peers, outbox = asker(retrying(faulty, retries=0, wait=True, pause=0.005))
    back = threading.Timer(0.1, lambda: setattr(faulty, "faults", []))
    back.start()
    start = time.perf_counter()
    peers.ask(Remember(outbox.release(torch.tensor(1.0), "value")))
    assert time.perf_counter() - start > 0.08
    assert held(parties) == [1, 1, 1]
    assert 3 < faulty.calls["bob"] < 100


def test_a_heartbeat_is_answered_while_a_party_computes() -> None:
    parties = echoes()
    peers, _ = asker(retrying(InProcess(parties)))
    asking = threading.Thread(target=lambda: peers["bob"].ask(Sleep(0.5)))
    asking.start()
    time.sleep(0.05)
    beats = peers.heartbeat()
    assert asking.is_alive()
    asking.join()
    assert list(beats) == ["ada", "bob", "cyd"]
    assert all(seconds is not None and seconds < 0.4 for seconds in beats.values())
    silent, _ = asker(retrying(Faulty(InProcess(parties), [Fault("drop", "bob")])))
    assert [
        name for name, seconds in silent.heartbeat().items() if seconds is None
    ] == ["bob"]


def test_a_heartbeat_is_no_call_that_counts() -> None:
    """A repeated call is still answered from memory after one, and only who may ask is
    answered."""
    party = echoes()["bob"]
    call: Envelope[Any] = Envelope("asker", 5, Break(0.0))
    party.handle(call)
    party.handle(Envelope("asker", 9, Ping()))
    party.handle(call)
    assert float(party.held[0, 0]) == 1
    assert party.ledger.entries[-1].message != Ping.kind
    party.serves_for = {"clinic"}
    with pytest.raises(
        BoundaryError, match=r"does not answer message\.Ping of 'asker'"
    ):
        party.handle(Envelope("asker", 10, Ping()))


def test_of_several_only_the_silent_are_asked_again_where_that_can_be_told() -> None:
    """What a party did before it failed it would do again, such as release rows."""
    parties = echoes()
    calls = list[str]()

    class Telling(OneByOne):
        """Gives each answer, or the failure in its place."""

        def __init__(self) -> None:
            self.inner = Faulty(InProcess(parties), [Fault("drop", "cyd", at=1)])

        def one(self, call: Envelope[Any]) -> Any:
            calls.append(call.receiver)
            return only(self.inner, call)

    peers, _ = asker(retrying(Telling()))
    replies, failures = peers.attempt(dict.fromkeys(parties, Break(2.5)))
    assert (set(replies), set(failures)) == ({"cyd"}, {"ada", "bob"})
    assert sorted(calls) == ["ada", "bob", "cyd", "cyd"]


def test_who_gives_no_sign_of_life_is_not_waited_for_until_the_deadline() -> None:
    """A process that was killed never answers; one that computes for long still says
    that it is there."""

    class Killed(InProcess):
        def exchange(self, calls: Sequence[Envelope[Any]]) -> list[Answer]:
            if any(call.receiver == "bob" for call in calls):
                threading.Event().wait(20)
            return super().exchange(calls)

    peers, _ = asker(retrying(Killed(echoes()), deadline=0.2, gone=60.0))
    peers.transport.deadline = 600.0  # type: ignore[attr-defined]
    peers.transport.gone = 0.4  # type: ignore[attr-defined]
    began = time.monotonic()
    peers.transport.alive = lambda to, _sender: to != "bob"  # type: ignore[attr-defined]
    with pytest.raises(NoAnswer, match=r"'bob' .*no sign of life for 0\.4 s; asked"):
        peers["bob"].ask(Sleep(0.0))
    assert time.monotonic() - began < 5.0
    began = time.monotonic()
    peers["ada"].ask(Sleep(1.0))
    assert time.monotonic() - began >= 1.0


def test_an_answer_that_arrives_does_not_wait_for_heartbeats() -> None:
    peers, _ = asker(retrying(InProcess(echoes()), deadline=600.0, gone=0.4))

    answered = threading.Event()
    peers.transport.alive = lambda _to, _sender: answered.wait(60)  # type: ignore[attr-defined]
    began = time.monotonic()
    peers.ask(Sleep(0.3))
    answered.set()
    assert time.monotonic() - began < 30.0
