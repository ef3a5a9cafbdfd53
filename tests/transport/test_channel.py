"""Laws of a sealed line: what one site seals, its receiver opens, once, in its place,
and nobody else ever."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.conformance.echo import Multiply, asker, echoes
from tests.transport.certified import Mirror, carried_to, channel, pair
from torch import tensor

from colonnade.errors import BoundaryError, NoAnswer, PartyError, WireError
from colonnade.transport import Retrying
from colonnade.transport.channel import (
    ANSWER,
    CALL,
    FINISH,
    HEAD,
    HELLO,
    REFUSED,
    WELCOME,
    WINDOW,
    Keys,
)
from colonnade.transport.remote import Endpoint, Remote


@given(st.lists(st.binary(max_size=300), min_size=1, max_size=5))
def test_what_goes_in_comes_out_under_the_callers_name_and_is_nowhere_on_the_way(
    texts: list[bytes],
) -> None:
    line, wire, desk, _ = pair()
    for text in texts:
        assert line(text, 1.0) == b"to clinic: " + text
    assert desk.calls == [("clinic", text) for text in texts]
    assert not desk.refusals
    carried = b"".join(part for both in wire.seen for part in both)
    assert b"to clinic: " not in carried
    assert not any(len(text) > 16 and text in carried for text in texts)


def test_one_opening_serves_all_calls() -> None:
    line, wire, _, _ = pair()
    for number in range(5):
        line(bytes([number]), 1.0)
    assert [data[:1] for data, _ in wire.seen] == [HELLO, FINISH, *[CALL] * 5]


def test_equal_calls_look_different() -> None:
    line, wire, _, _ = pair()
    line(b"the same", 1.0)
    line(b"the same", 1.0)
    one, other = wire.seen[-2:]
    assert one[0][HEAD.size :] != other[0][HEAD.size :]
    assert one[1][HEAD.size :] != other[1][HEAD.size :]


def test_two_channels_of_the_same_sites_have_nothing_in_common() -> None:
    """So what was recorded is worth nothing to a site that started anew."""
    line, wire, _, _ = pair()
    line(b"text", 1.0)
    other, other_wire, desk, _ = pair()
    other(b"text", 1.0)
    assert wire.seen[-1][0] != other_wire.seen[-1][0]
    for data, _ in wire.seen[1:]:
        assert other_wire.carry(data, 1.0) == REFUSED
    assert len(desk.calls) == 1


@pytest.mark.parametrize("place", range(0, HEAD.size + 20, 3))
@pytest.mark.parametrize("way", ["there", "back"])
def test_a_changed_bit_is_refused(place: int, way: str) -> None:
    line, wire, desk, _ = pair()
    line(b"first", 1.0)

    def flipped(data: bytes) -> bytes:
        return data[:place] + bytes([data[place] ^ 4]) + data[place + 1 :]

    setattr(wire, way, flipped)
    with pytest.raises((WireError, ConnectionError)):
        line(b"second", 1.0)
    assert len(desk.calls) == (1 if way == "there" else 2)
    setattr(wire, way, lambda data: data)
    assert line(b"third", 1.0) == b"to clinic: third"


@pytest.mark.parametrize("way", ["there", "back"])
def test_what_is_cut_short_or_longer_is_refused(way: str) -> None:
    line, wire, desk, _ = pair()
    line(b"first", 1.0)
    changes: list[Callable[[bytes], bytes]] = [
        lambda data: data[:-1],
        lambda data: data + b"\0",
        lambda data: data[: HEAD.size],
        lambda data: data[:5],
        lambda data: b"",
    ]
    for change in changes:
        setattr(wire, way, change)
        with pytest.raises((WireError, ConnectionError, BoundaryError)):
            line(b"second", 1.0)
        setattr(wire, way, lambda data: data)
        line(b"again", 1.0)
    assert [call for _, call in desk.calls].count(b"second") == (
        0 if way == "there" else len(changes)
    )


def test_a_call_is_taken_once() -> None:
    line, wire, desk, _ = pair()
    line(b"pay", 1.0)
    line(b"other", 1.0)
    for data, _ in list(wire.seen):
        if data[:1] == CALL:
            assert wire.carry(data, 1.0) == REFUSED
    assert [call for _, call in desk.calls] == [b"pay", b"other"]
    assert [who for who, _ in desk.refusals] == ["who the carrier says"] * 2
    assert "came again" in desk.refusals[0][1]


def test_calls_may_overtake_each_other_within_a_window() -> None:
    line, wire, desk, end = pair()
    line(b"first", 1.0)
    held: list[bytes] = []

    def hold(data: bytes) -> bytes:
        held.append(data)
        raise TimeoutError

    wire.there = hold
    for number in range(2):
        with pytest.raises(TimeoutError):
            line(b"held %d" % number, 1.0)
    wire.there = lambda data: data
    line(b"newer", 1.0)
    assert wire.carry(held[0], 1.0)[:1] == ANSWER
    for _ in range(WINDOW):
        line(b"", 1.0)
    assert wire.carry(held[1], 1.0) == REFUSED
    assert [call for _, call in desk.calls if call] == [b"first", b"newer", b"held 0"]
    assert len(end._answering["clinic"]._taken) <= 2 * WINDOW + 1


@given(st.lists(st.integers(0, 3 * WINDOW), max_size=60))
def test_no_number_is_ever_taken_twice(numbers: list[int]) -> None:
    keys = Keys("clinic", b"secret", b"said")
    taken = list[int]()
    for number in numbers * 2:
        try:
            keys.take(number)
        except WireError:
            assert number in taken or number <= max(taken) - WINDOW
        else:
            taken.append(number)
    assert len(taken) == len(set(taken))


def test_what_is_forgotten_of_old_numbers_is_not_taken_again() -> None:
    keys = Keys("clinic", b"secret", b"said")
    for number in range(5 * WINDOW):
        keys.take(number)
    assert len(keys._taken) <= 2 * WINDOW
    for number in range(5 * WINDOW):
        with pytest.raises(WireError, match="came again"):
            keys.take(number)


def test_answers_that_were_swapped_are_refused() -> None:
    line, wire, _, _ = pair()
    line(b"first", 1.0)
    older = wire.seen[-1][1]
    wire.back = lambda _reply: older
    with pytest.raises(
        WireError, match="was asked call 2, and the answer to call 1 came"
    ):
        line(b"second", 1.0)


def test_a_call_that_is_sent_back_is_no_answer_and_no_call_of_its_receiver() -> None:
    line, wire, _, _ = pair()
    line(b"first", 1.0)
    call, answer = wire.seen[-1]
    wire.back = lambda _reply: call
    with pytest.raises(WireError, match="comes sealed"):
        line(b"second", 1.0)
    renamed = ANSWER + call[1:]
    wire.back = lambda _reply: renamed
    with pytest.raises(WireError, match="was not sealed by it"):
        line(b"third", 1.0)
    clinic = channel("clinic")
    desk = Mirror()
    assert clinic.answer(call, desk) == REFUSED
    assert wire.carry(CALL + answer[1:], 1.0) == REFUSED
    assert not desk.calls


def test_what_is_for_one_site_is_nothing_to_another() -> None:
    line, wire, _, _ = pair("clinic", "lab")
    other, other_wire, desk, _ = pair("clinic", "bob")
    line(b"for the lab", 1.0)
    other(b"for bob", 1.0)
    for data, _ in wire.seen:
        assert other_wire.carry(data, 1.0) == REFUSED
    assert desk.calls == [("clinic", b"for bob")]


def test_many_calls_at_once_share_a_channel() -> None:
    line, wire, desk, _ = pair()
    with ThreadPoolExecutor(8) as pool:
        replies = list(pool.map(lambda n: line(b"%d" % n, 5.0), range(200)))
    assert replies == [b"to clinic: %d" % n for n in range(200)]
    assert [data[:1] for data, _ in wire.seen].count(HELLO) == 1
    assert not desk.refusals


def test_two_sites_call_each_other_while_they_answer() -> None:
    """As label owners do: each direction has a channel of its own."""
    ends = {name: channel(name) for name in ("clinic", "lab")}
    desks: dict[str, Mirror] = {name: Mirror() for name in ends}
    back = ends["lab"].line("clinic", carried_to(ends["clinic"], desks["clinic"]))

    class Asks(Mirror):
        def __call__(self, caller: str, data: bytes) -> bytes:
            return back(data, 1.0) + b", by way of the lab"

    there = ends["clinic"].line("lab", carried_to(ends["lab"], Asks()))
    assert there(b"text", 1.0) == b"to lab: text, by way of the lab"


def over(
    lose: Callable[[int], bool], **retrying: Any
) -> tuple[Any, Any, dict[str, Any]]:
    """Echoing parties behind sealed lines, of whose calls some are lost on the way."""
    parties = echoes(("ada",))
    count = [0]
    desk = Endpoint(
        "ada", parties["ada"].handle, admitted=["asker"], allow=parties["ada"].allow
    )
    answerer = channel("ada")

    def carry(data: bytes, _deadline: float) -> bytes:
        count[0] += 1
        reply = answerer.answer(data, desk)
        if lose(count[0]):
            raise TimeoutError("lost")
        return reply

    carrier = Retrying(
        Remote({"ada": channel("asker").line("ada", carry)}), pause=0.0, **retrying
    )
    peers, outbox = asker(carrier, ("ada",))
    return peers, outbox, parties


def test_a_lost_call_is_sealed_again_and_done_once() -> None:
    peers, outbox, parties = over(lambda number: number in (1, 4, 7))
    for value in (2.0, 3.0):
        reply = peers["ada"].ask(Multiply(outbox.release(tensor(value), "by")))
        assert reply is not None
    assert len(parties["ada"].ledger.entries) == 4, (
        "two in, two out: nothing was done twice"
    )


def test_who_never_answers_is_no_answer_and_who_is_another_is_a_failure() -> None:
    peers, outbox, _ = over(lambda _: True, retries=1, deadline=1.0)
    with pytest.raises(NoAnswer):
        peers["ada"].ask(Multiply(outbox.release(tensor(2.0), "by")))
    line = channel("asker").line("ada", lambda _data, _deadline: REFUSED)
    peers, outbox = asker(Retrying(Remote({"ada": line}), pause=0.0), ("ada",))
    with pytest.raises(PartyError, match="opened no channel to 'asker'") as caught:
        peers["ada"].ask(Multiply(outbox.release(tensor(2.0), "by")))
    assert not isinstance(caught.value, NoAnswer)


@given(
    st.binary(max_size=200),
    st.sampled_from([b"", HELLO, WELCOME, FINISH, CALL, ANSWER, REFUSED]),
)
def test_no_bytes_get_anything_but_a_refusal(data: bytes, kind: bytes) -> None:
    _, wire, desk, _ = pair()
    assert wire.carry(kind + data, 1.0) == REFUSED
    assert len(desk.refusals) == 1
    assert not desk.calls


@given(st.binary(max_size=200))
def test_no_bytes_pass_for_an_answer(data: bytes) -> None:
    with pytest.raises((WireError, BoundaryError)):
        channel("clinic").line("lab", lambda _data, _deadline: data)(b"text", 1.0)
