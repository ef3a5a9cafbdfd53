"""What is answered by Done travels with the next call: the same bits, the same ledgers,
fewer frames; and no frame of several calls does more than its calls would do alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.conformance.battery import STEPS, every_algorithm
from tests.conformance.echo import Break, Echo, Remember, Sleep, Unserved, asker, echoes
from tests.conformance.toy import assert_bit_equal, federation, sequential
from tests.transport.lines import lines
from tests.transport.storm import Storm
from tests.transport.test_endpoint import desk, failure, whole

from colonnade.algorithms.algorithm import AnyAlgorithm
from colonnade.core import Done, Envelope, Party, Peers, Request, Transport, wire
from colonnade.core.message import Ping, answered_by
from colonnade.core.peers import Answer, by_receiver
from colonnade.errors import (
    BudgetExhausted,
    NoAnswer,
    PartyError,
    WireError,
)
from colonnade.settings.sections import EngineSettings
from colonnade.transport import InProcess, Recording, Retrying
from colonnade.transport.faulty import Distant, Network
from colonnade.transport.holding import LARGEST_FRAME, Holding
from colonnade.transport.kept_up import with_retries
from colonnade.transport.remote import ANSWER, HEAD, NONE, WHOLE, Endpoint, Remote


class Counted:
    """Counts calls by the kind of their answer, each frame once."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner
        self.frames = 0
        self.by_done = 0

    def exchange(self, calls: Sequence[Envelope[Any]]) -> list[Answer]:
        self.frames += len(by_receiver(calls))
        self.by_done += sum(answered_by(type(call.message)) is Done for call in calls)
        answers: list[Answer] = self.inner.exchange(calls)
        return answers


def holding(parties: Mapping[str, Party]) -> Holding:
    return Holding(Counted(lines(parties, "label owner")))


@every_algorithm
def test_an_algorithm_learns_the_same_and_writes_the_same_down_with_fewer_frames(
    algorithm: AnyAlgorithm,
) -> None:
    here = federation(algorithm, lambda parties: Counted(sequential(parties)))
    there = federation(algorithm, holding)
    assert here.run(STEPS) == there.run(STEPS)
    held = there.transport.held
    sent = there.transport.inner
    assert sent.frames + sum(map(len, held.values())) <= here.transport.frames
    waiting = len(held)
    there.peers.settle()
    assert not held
    assert sent.frames == here.transport.frames - here.transport.by_done + waiting
    assert_bit_equal(here.states(), there.states())
    assert here.driver.ledger.entries == there.driver.ledger.entries
    for name, party in here.parties.items():
        assert party.ledger.entries == there.parties[name].ledger.entries
    assert torch.equal(here.predict(), there.predict())


@every_algorithm
def test_an_own_role_and_a_rehearsed_network_are_asked_in_the_same_order(
    algorithm: AnyAlgorithm,
) -> None:
    def mixed(parties: Mapping[str, Party]) -> Transport:
        away = {name: party for name, party in parties.items() if name != "ada"}
        routes = lines(away, "ada").routes
        return Holding(Remote(routes, here=sequential(parties), own=["ada"]))

    def distant(parties: Mapping[str, Party]) -> Transport:
        return Holding(
            Retrying(Distant("ada", sequential(parties), Network(float("inf"))))
        )

    here = federation(algorithm, driver="ada")
    others = [federation(algorithm, wrap, driver="ada") for wrap in (mixed, distant)]
    losses = here.run(STEPS)
    for other in others:
        assert other.run(STEPS) == losses
        other.peers.settle()
        assert_bit_equal(here.states(), other.states())


@every_algorithm
def test_frames_that_are_lost_doubled_or_late_change_nothing(
    algorithm: AnyAlgorithm,
) -> None:
    def stormy(parties: Mapping[str, Party]) -> Transport:
        return Holding(
            Retrying(
                Storm(lines(parties, "label owner"), share=0.3, seed=5),
                retries=20,
                pause=0.0,
            )
        )

    here = federation(algorithm)
    there = federation(algorithm, stormy)
    assert here.run(STEPS) == there.run(STEPS)
    there.peers.settle()
    assert_bit_equal(here.states(), there.states())
    for name, party in here.parties.items():
        assert party.ledger.entries == there.parties[name].ledger.entries


def one() -> torch.Tensor:
    return torch.ones(6, 4)


def remembering(parties: Mapping[str, Echo]) -> tuple[Peers, Any, Any]:
    transport = Holding(Counted(lines(parties)))
    peers, outbox = asker(transport, tuple(parties))
    return (
        peers,
        transport,
        lambda value: Remember(outbox.release(value * one(), "value")),
    )


def test_order_is_kept_and_calls_keep_their_numbers() -> None:
    parties = echoes()
    peers, transport, remember = remembering(parties)
    for value in (1.0, 2.0):
        peers.ask(remember(value))
    peers["bob"].ask(remember(4.0))
    assert [party.held[0, 0].item() for party in parties.values()] == [0, 0, 0]
    held = transport.held["bob"]
    assert [e.message.value.tensor[0, 0].item() for e in held] == [1, 2, 4]
    assert [e.number for e in held] == sorted(e.number for e in held)
    assert peers.ledger.total("out", "bob") == 3 * 6 * 4 * 4
    peers["bob"].ask(Sleep(0.0))
    assert [party.held[0, 0].item() for party in parties.values()] == [0, 7, 0]
    assert list(transport.held) == ["ada", "cyd"]
    peers.settle()
    assert [party.held[0, 0].item() for party in parties.values()] == [3, 7, 3]
    assert transport.inner.frames == 3
    peers.settle()
    assert transport.inner.frames == 3


def test_at_most_so_many_calls_travel_ahead() -> None:
    parties = echoes(("ada",))
    peers, transport, remember = remembering(parties)
    for _ in range(2 * wire.AHEAD + 1):
        peers.ask(remember(1.0))
    assert transport.inner.frames == 1
    assert parties["ada"].held[0, 0].item() == wire.AHEAD + 1
    assert len(transport.held["ada"]) == wire.AHEAD


def test_large_tensors_do_not_wait_and_do_not_travel_behind_others() -> None:
    parties = echoes(("ada",))
    peers, transport, remember = remembering(parties)
    large = Remember(
        asker(transport)[1].release(torch.ones(LARGEST_FRAME // 16 + 1, 1, 4), "value")
    )
    peers.ask(remember(1.0))
    peers.ask(large)
    assert transport.inner.frames == 2  # what waited, and then this
    assert not transport.held
    assert parties["ada"].held.shape == (LARGEST_FRAME // 16 + 1, 6, 4)


def test_signs_of_life_pass_by_and_attempts_come_behind_what_waits() -> None:
    parties = echoes()
    peers, transport, remember = remembering(parties)
    peers.ask(remember(1.0))
    transport.exchange([Envelope("asker", 1, Ping(), "ada")])
    assert parties["ada"].held[0, 0].item() == 0
    replies, failures = peers.attempt({"bob": Break(0.0), "ada": Break(1.5)})
    assert list(transport.held) == ["cyd"]
    peers.settle()
    assert list(replies) == ["bob"]
    assert (failures["ada"].party, failures["ada"].request) == ("ada", "echo.Break")
    assert [party.held[0, 0].item() for party in parties.values()] == [1, 2, 1]


class Failing(Echo):
    """Cannot do what is answered by Done at one batch."""

    def handle(self, envelope: Envelope[Any]) -> Any:
        if (
            isinstance(envelope.message, Remember)
            and envelope.message.value.receipt.batch == "train/0/3"
        ):
            raise PartyError(self.name, envelope.message.kind, "train/0/3", "it cannot")
        return super().handle(envelope)


@pytest.mark.parametrize("alone", [False, True], ids=["with the next call", "settled"])
def test_a_failure_of_what_waited_is_told_with_its_own_name_and_batch(
    alone: bool,
) -> None:
    parties = echoes()
    parties["bob"].__class__ = Failing
    peers, transport, _ = remembering(parties)
    _, outbox = asker(transport)
    for batch in ("train/0/2", "train/0/3", "train/0/4"):
        peers.ask(Remember(outbox.release(one(), "value", batch)))
    with pytest.raises(PartyError) as caught:
        peers.settle() if alone else peers.ask(Sleep(0.0))
    assert (caught.value.party, caught.value.request, caught.value.batch) == (
        "bob",
        "echo.Remember",
        "train/0/3",
    )
    assert [party.held[0, 0].item() for party in parties.values()] == [3, 1, 3]
    assert [len(party.threads) for party in parties.values()] == (
        [0, 0, 0] if alone else [1, 0, 1]
    )
    assert not transport.held  # nothing of it is sent again
    peers.settle()


def test_where_a_budget_is_spent_what_may_not_have_arrived_is_sent_again_and_done_once() -> (
    None
):
    parties = echoes()
    lost: list[str] = []

    class Spent(Counted):
        def exchange(self, calls: Sequence[Envelope[Any]]) -> list[Answer]:
            if "first" not in lost:
                lost.append("first")
                # bob refuses, and cyd was not reached
                self.inner.exchange([c for c in calls if c.receiver != "cyd"])
                raise BudgetExhausted("'bob' will not release")
            return super().exchange(calls)

    transport = Holding(Spent(lines(parties)))
    peers, outbox = asker(transport)
    peers.ask(Remember(outbox.release(one(), "value")))
    with pytest.raises(BudgetExhausted):
        peers.ask(Sleep(0.0))
    assert [party.held[0, 0].item() for party in parties.values()] == [1, 1, 0]
    peers.settle()
    assert [party.held[0, 0].item() for party in parties.values()] == [1, 1, 1]
    assert not transport.held


def test_a_lost_answer_is_named_after_the_call_that_was_waited_for() -> None:
    def dead(_data: bytes, _deadline: float) -> bytes:
        raise ConnectionError("gone")

    peers, outbox = asker(Holding(Remote({"ada": dead})), ("ada",))
    peers.ask(Remember(outbox.release(one(), "value", "train/0/1")))
    with pytest.raises(
        NoAnswer, match=r"'ada' failed while answering echo.Sleep: no answer"
    ):
        peers.ask(Sleep(0.0))


def test_every_call_of_a_frame_has_its_time() -> None:
    parties = echoes(("ada",))
    seen = list[float]()
    route = lines(parties).routes["ada"]

    def timed(data: bytes, deadline: float) -> bytes:
        seen.append(deadline)
        return route(data, deadline)

    peers, outbox = asker(
        Holding(Retrying(Remote({"ada": timed}, deadline=7.0), deadline=7.0)), ("ada",)
    )
    for _ in range(2):
        peers.ask(Remember(outbox.release(one(), "value")))
    peers.ask(Sleep(0.0))
    peers.ask(Sleep(0.0))
    assert seen == [21.0, 7.0]


@pytest.mark.parametrize("on_missing", ["fail", "wait", "stale", "skip"])
def test_nothing_waits_where_parties_may_be_missing_or_calls_are_recorded(
    on_missing: Any,
) -> None:
    engine = EngineSettings(on_missing=on_missing)
    far = Remote({}, joins=True)
    assert isinstance(with_retries(far, engine), Holding) == (
        on_missing in ("fail", "wait")
    )
    for other in (Remote({}), Recording(far), InProcess({})):
        assert isinstance(with_retries(other, engine), Retrying)


def remember(value: float = 1.0) -> Remember:
    return Remember(asker(InProcess({}))[1].release(value * one(), "value"))


def call(number: int, message: Request[Any] | None = None) -> Envelope[Any]:
    return Envelope("asker", number, message or remember(), "ada")


def test_a_frame_that_comes_again_is_answered_again_and_nothing_is_done_twice() -> None:
    point, ada, refused = desk()
    frame = whole(call(1), call(2), call(3, Sleep(0.0)))
    first = point("asker", frame)
    assert point("asker", frame) == first
    assert ada.held[0, 0].item() == 2
    assert len(ada.threads) == 1
    # what tells nothing but Done is answered alone, too, and not done again
    assert wire.decode(point("asker", whole(call(2)))[1:]).message == Done()
    assert ada.held[0, 0].item() == 2
    assert not refused


def test_what_is_too_old_to_be_known_is_refused_in_a_frame_too() -> None:
    point, ada, refused = desk()
    for number in range(1000, 1200):
        point("asker", whole(call(number, remember(0.0))))
    told = failure(point("asker", whole(call(7), call(2000, Sleep(0.0)))))
    assert "older" in told.cause
    assert not ada.threads
    assert len(refused) == 1


def joint(count: int, frames: list[bytes], lengths: list[int] | None = None) -> bytes:
    head = wire.TOGETHER.pack(wire.JOINT, count)
    head += b"".join(
        length.to_bytes(8, "little") for length in lengths or map(len, frames)
    )
    head += bytes(-len(head) % wire.ALIGN)
    return HEAD.pack(WHOLE, NONE, 0, 0) + head + b"".join(frames)


def good(number: int) -> bytes:
    return wire.encode(call(number))


def hostile() -> dict[str, bytes]:
    last = wire.encode(call(99, Sleep(0.0)))
    many = [wire.encode(call(number, Unserved())) for number in range(10_000)]
    nested = b"".join(wire.buffers(call(4), call(5, Sleep(0.0))))
    damaged = bytearray(last)
    damaged[20] = 255
    return {
        "ten thousand": joint(10_000, many),
        "one too many": joint(
            wire.AHEAD + 2, [*map(good, range(1, wire.AHEAD + 2)), last]
        ),
        "none": joint(0, []),
        "nested": joint(2, [good(1), nested]),
        "shorter than it says": joint(
            2, [good(1), last[:-1]], [len(good(1)), len(last)]
        ),
        "longer than it says": joint(
            2, [good(1), last, b"more"], [len(good(1)), len(last)]
        ),
        "lengths beyond all": joint(2, [good(1), last], [2**64 - 1, len(last)]),
        "an empty one": joint(3, [good(1), b"", last]),
        "one that cannot be read": joint(2, [good(1), bytes(damaged)]),
    }


@pytest.mark.parametrize("name", hostile())
def test_a_frame_that_is_no_frame_of_ours_does_nothing(name: str) -> None:
    point, ada, refused = desk()
    assert failure(point("asker", hostile()[name])).error == "WireError"
    assert (ada.held[0, 0].item(), ada.threads, ada.ledger.entries, len(refused)) == (
        0,
        [],
        [],
        1,
    )


def forbidden() -> dict[str, tuple[str, bytes]]:
    last = wire.encode(call(99, Sleep(0.0)))
    alien = wire.encode(Envelope("bob", 2, remember(), "ada"))
    elsewhere = wire.encode(Envelope("asker", 2, remember(), "bob"))
    unserved = wire.encode(call(2, Unserved()))
    done: Any = Done()
    return {
        "another sender": (
            "says it is from 'bob', over the line",
            joint(3, [good(1), alien, last]),
        ),
        "another sender last": (
            "says it is from 'bob', over the line",
            joint(2, [good(1), alien]),
        ),
        "another receiver": ("that is for 'bob'", joint(2, [good(1), elsewhere])),
        "what tells something": (
            "only what is answered by Done",
            joint(3, [good(1), last, last]),
        ),
        "what nobody serves": ("does not serve", joint(3, [good(1), unserved, last])),
        "no request": (
            "which is no request",
            joint(3, [good(1), wire.encode(call(2, done)), last]),
        ),
    }


@pytest.mark.parametrize("name", forbidden())
def test_a_frame_with_one_call_that_may_not_be_made_does_nothing(name: str) -> None:
    point, ada, refused = desk()
    why, frame = forbidden()[name]
    told = failure(point("asker", frame))
    assert (told.error, told.party) == ("BoundaryError", "ada")
    assert why in told.cause
    assert (ada.held[0, 0].item(), ada.threads, ada.ledger.entries, len(refused)) == (
        0,
        [],
        [],
        1,
    )


def test_each_call_of_a_frame_may_unpack_to_as_much_as_one_alone() -> None:
    ada = echoes(("ada",))["ada"]
    # 6 x 4 values of 4 bytes
    point = Endpoint("ada", ada.handle, admitted=["asker"], allow=ada.allow, most=96)
    frame = whole(call(1), call(2), call(3, Sleep(0.0)))
    assert point("asker", frame)[:1] == ANSWER
    assert ada.held[0, 0].item() == 2


def test_a_call_that_does_not_unpack_ends_its_frame_and_those_before_it_are_done() -> (
    None
):
    """As if each had come alone."""
    point, ada, refused = desk()
    bad = bytearray(good(2))
    bad[bad.index(b'"shape":[6,4]') + 9] = ord("7")
    last = wire.encode(call(3, Sleep(0.0)))
    assert (
        failure(point("asker", joint(3, [good(1), bytes(bad), last]))).error
        == "WireError"
    )
    assert ada.held[0, 0].item() == 1
    assert not ada.threads
    assert len(refused) == 1


@given(st.binary(max_size=300))
def test_no_bytes_behind_the_magic_get_anything_but_a_refusal(data: bytes) -> None:
    point, ada, _ = desk()
    assert (
        failure(point("asker", HEAD.pack(WHOLE, NONE, 0, 0) + wire.JOINT + data)).error
        == "WireError"
    )
    assert not ada.threads


@given(st.integers(0, wire.AHEAD))
def test_frames_of_several_calls_are_read_as_they_were_written(count: int) -> None:
    calls = [call(number, remember(number)) for number in range(1, count + 2)]
    frame = memoryview(bytearray(b"".join(wire.buffers(*calls))))
    found = [incoming.unpack() for incoming in wire.calls(frame)]
    assert [one.number for one in found] == [one.number for one in calls]
    for mine, theirs in zip(calls, found, strict=True):
        assert torch.equal(mine.message.value.tensor, theirs.message.value.tensor)
    if count:
        with pytest.raises(WireError, match="one call is expected"):
            wire.decode(frame)
