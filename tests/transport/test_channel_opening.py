"""How a channel is opened: by the two sites that are named, of one run, with keys of
their own, and by nobody else."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from tests.transport.certified import (
    NAMES,
    Mirror,
    Wire,
    carried_to,
    channel,
    identity,
    pair,
)

from colonnade.errors import BoundaryError, WireError
from colonnade.transport.channel import (
    FINISH,
    HELLO,
    OPENING,
    REFUSED,
    WELCOME,
    Channel,
    _pack,
    _unpack,
)
from colonnade.transport.identity import Identity


@pytest.mark.parametrize("swapped", ["answerer", "run", "caller"])
def test_an_opening_for_another_site_or_run_is_refused(swapped: str) -> None:
    answerer = channel(
        "bob" if swapped == "answerer" else "lab",
        run="other" if swapped == "run" else "run",
    )
    desk = Mirror()
    wire = Wire(answerer, desk)
    if swapped == "caller":

        def as_bob(data: bytes) -> bytes:
            _, *rest = _unpack(HELLO, data, 4)
            return HELLO + _pack(b"bob", *rest)

        wire.there = as_bob
    line = channel("clinic").line("lab", wire)
    with pytest.raises(BoundaryError, match="'lab'"):
        line(b"text", 1.0)
    assert not desk.calls


def test_who_is_no_peer_gets_no_line_and_opens_none() -> None:
    clinic = Channel(identity("clinic"), ["clinic", "lab"], "run")
    for name in ("bob", "clinic", "server"):
        with pytest.raises(BoundaryError, match="has no line to"):
            clinic.line(name, lambda data, _deadline: data)
    desk = Mirror()
    with pytest.raises(BoundaryError, match="opened no channel to 'bob'"):
        channel("bob").line("clinic", carried_to(clinic, desk))(b"text", 1.0)
    assert "answers no call of 'bob'" in desk.refusals[0][1]


def test_a_carrier_between_two_channels_of_its_own_is_found_out() -> None:
    """The man in the middle: it has a certificate of the same root, under its own name."""
    lab = channel("lab")
    desk = Mirror()
    mallory = identity("bob")

    class Middle:
        """Answers as the laboratory, with its own keys."""

        def __call__(self, data: bytes, _deadline: float) -> bytes:
            ended = Channel(mallory, NAMES, "run")
            caller, _, run, key = _unpack(HELLO, data, 4)
            return ended.answer(HELLO + _pack(caller, b"bob", run, key), desk)

    with pytest.raises(BoundaryError, match="that came for 'lab' is of 'bob'"):
        channel("clinic").line("lab", Middle())(b"text", 1.0)

    as_the_clinic = Identity(
        "clinic", mallory.certificate, mallory.key, mallory.root, {}
    )
    forged = Channel(as_the_clinic, NAMES, "run")
    with pytest.raises(WireError, match="comes sealed"):
        forged.line("lab", carried_to(lab, desk))(b"text", 1.0)
    assert "that came for 'clinic' is of 'bob'" in desk.refusals[-1][1]
    assert not desk.calls


@pytest.mark.parametrize("kind", ["key", "signature", "certificate"])
@pytest.mark.parametrize("message", [WELCOME, FINISH])
def test_an_opening_with_parts_of_another_is_refused(kind: str, message: bytes) -> None:
    """Of two openings of the same sites: no part of one fits the other."""
    line, wire, _, _ = pair()
    line(b"text", 1.0)
    recorded = wire.seen[0][1] if message == WELCOME else wire.seen[1][0]
    place = {"key": 0, "certificate": 1, "signature": 2}[kind]
    theirs = _unpack(message, recorded, 3)
    if kind == "certificate":
        theirs[1] = identity("bob").certificate
    other, other_wire, desk, _ = pair()

    def mixed(data: bytes) -> bytes:
        if data[:1] != message:
            return data
        fields = _unpack(message, data, 3)
        fields[place] = theirs[place]
        return message + _pack(*fields)

    other_wire.there = other_wire.back = mixed
    with pytest.raises((BoundaryError, WireError)):
        other(b"text", 1.0)
    assert not desk.calls


@pytest.mark.parametrize("key", [b"", bytes(32), b"x" * 31, (1).to_bytes(32, "little")])
def test_a_key_that_is_none_is_refused(key: bytes) -> None:
    """Points of small order would make a secret that everybody knows."""
    _, wire, desk, _ = pair()
    assert wire.carry(HELLO + _pack(b"clinic", b"lab", b"run", key), 1.0) == REFUSED
    assert "came as a key, and are none" in desk.refusals[0][1]


def test_half_open_channels_take_little_and_do_not_end_an_open_one() -> None:
    line, wire, desk, end = pair()
    line(b"first", 1.0)
    for _ in range(3 * OPENING):
        assert (
            wire.carry(HELLO + _pack(b"clinic", b"lab", b"run", bytes(range(32))), 1.0)[
                :1
            ]
            == WELCOME
        )
    assert len(end._openings) == OPENING
    assert line(b"second", 1.0) == b"to clinic: second"
    assert not desk.refusals


def test_a_site_that_started_anew_is_found_again_and_its_older_channel_is_closed() -> (
    None
):
    desk = Mirror()
    lab = channel("lab")
    wire = Wire(lab, desk)
    before = channel("clinic").line("lab", wire)
    now = channel("clinic").line("lab", wire)
    before(b"first", 1.0)
    now(b"second", 1.0)
    with pytest.raises(ConnectionError):
        before(b"from the one that died", 1.0)
    assert [call for _, call in desk.calls] == [b"first", b"second"]


def test_an_answerer_that_started_anew_is_met_with_a_new_channel_by_the_next_try() -> (
    None
):
    desk = Mirror()
    ends = [channel("lab")]
    line = channel("clinic").line(
        "lab", lambda data, _deadline: ends[0].answer(data, desk)
    )
    line(b"first", 1.0)
    ends[0] = channel("lab")
    with pytest.raises(ConnectionError, match="the next is opened"):
        line(b"second", 1.0)
    assert line(b"second", 1.0) == b"to clinic: second"


def test_while_one_thread_opens_the_others_wait_for_it() -> None:
    desk = Mirror()
    lab = channel("lab")
    began = threading.Event()

    def slow(data: bytes, _deadline: float) -> bytes:
        if data[:1] == HELLO:
            assert not began.is_set(), "two openings"
            began.set()
        return lab.answer(data, desk)

    line = channel("clinic").line("lab", slow)
    with ThreadPoolExecutor(4) as pool:
        assert len(set(pool.map(lambda _: line(b"text", 5.0), range(4)))) == 1
