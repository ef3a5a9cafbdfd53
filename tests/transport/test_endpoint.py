"""The party's side: who calls is what the line says, and no bytes can do more than be
refused."""

from __future__ import annotations

import gc
import logging
import weakref
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.conformance.echo import Echo, Multiply, Sleep, asker, echoes

from colonnade.core import Done, Envelope, Message, wire
from colonnade.core.failure import Failure
from colonnade.errors import ConfigError, PartyError, WireError
from colonnade.transport.remote import (
    ANSWER,
    GET,
    HEAD,
    LONG,
    NONE,
    OPEN,
    PUT,
    RUN,
    WHOLE,
    Endpoint,
    Remote,
    Transfers,
)


def desk(
    piece: int = 1 << 20, **more: Any
) -> tuple[Endpoint, Echo, list[tuple[str, str]]]:
    ada = echoes(("ada",))["ada"]
    refused: list[tuple[str, str]] = []
    made = Endpoint(
        "ada",
        more.get("handle", ada.handle),
        admitted=["asker", "bob"],
        allow=ada.allow,
        piece=piece,
        refused=lambda caller, why: refused.append((caller, why)),
    )
    return made, ada, refused


def whole(*calls: Envelope[Any]) -> bytes:
    """Calls to ada as one call of a line."""
    to_ada = [replace(call, receiver=call.receiver or "ada") for call in calls]
    return HEAD.pack(WHOLE, NONE, 0, 0) + b"".join(wire.buffers(*to_ada))


def failure(reply: bytes) -> Failure:
    assert reply[:1] == ANSWER
    message: Message = wire.decode(reply[1:]).message
    assert isinstance(message, Failure)
    return message


@pytest.mark.parametrize("caller", ["eve", "server", "", "ada"])
def test_who_is_no_party_of_the_federation_is_refused_and_written_down(
    caller: str, caplog: pytest.LogCaptureFixture
) -> None:
    one, ada, refused = desk()
    with caplog.at_level(logging.WARNING, "colonnade.party"):
        told = failure(one(caller, whole(Envelope(caller, 1, Sleep(0.0)))))
    assert told.error == "BoundaryError"
    assert "no party of its federation" in told.cause
    assert [who for who, _ in refused] == [caller]
    assert "refused a call of" in caplog.text
    assert not ada.threads
    assert not ada.ledger.entries


def test_a_call_under_another_name_than_the_lines_is_refused() -> None:
    """Whatever a frame says: else a feature owner could ask as the organisation itself,
    past its rules."""
    one, ada, refused = desk()
    for name in ("ada", "bob", "somebody"):
        told = failure(one("asker", whole(Envelope(name, 1, Sleep(0.0)))))
        assert (told.error, told.party) == ("BoundaryError", "ada")
        assert f"says it is from '{name}', over the line of 'asker'" in told.cause
    assert len(refused) == 3
    assert not ada.threads


def test_a_message_that_asks_nothing_is_refused() -> None:
    one, _, refused = desk()
    assert (
        "which is no request"
        in failure(one("asker", whole(Envelope("asker", 1, Done())))).cause
    )
    assert len(refused) == 1


def test_a_failure_says_what_kind_and_no_text(caplog: pytest.LogCaptureFixture) -> None:
    def handle(_envelope: Envelope[Any]) -> Message:
        raise KeyError("patient P007")

    one, _, refused = desk(handle=handle)
    told = failure(one("asker", whole(Envelope("asker", 5, Sleep(0.0)))))
    assert (told.error, told.request) == ("PartyError", "echo.Sleep")
    assert "P007" not in told.cause + caplog.text
    assert not refused


def test_what_the_organisation_must_put_right_is_in_its_own_log_alone(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def handle(_envelope: Envelope[Any]) -> Message:
        raise ConfigError("the table /data/secret.csv has no column 'iron'")

    one, _, _ = desk(handle=handle)
    told = failure(one("asker", whole(Envelope("asker", 5, Sleep(0.0)))))
    assert "secret.csv" in caplog.text
    assert "secret.csv" not in told.cause


@given(st.binary(max_size=200))
def test_no_bytes_get_anything_but_a_refusal(data: bytes) -> None:
    one, ada, _ = desk()
    assert failure(one("asker", data)).error == "WireError"
    assert not ada.threads


@given(
    st.sampled_from([WHOLE, PUT, RUN, GET]),
    st.binary(min_size=16, max_size=16),
    st.integers(0, 2**64 - 1),
    st.integers(0, 2**64 - 1),
    st.binary(max_size=40),
)
def test_no_head_gets_memory_it_did_not_send(
    kind: bytes, transfer: bytes, start: int, total: int, rest: bytes
) -> None:
    one, _, _ = desk()
    reply = one("asker", HEAD.pack(kind, transfer, start, total) + rest)
    fits = kind == PUT and start == 0 and len(rest) <= total <= wire.MAX_FRAME
    assert reply == ANSWER if fits else failure(reply).error == "WireError"


def test_pieces_out_of_turn_end_their_transfer() -> None:
    transfers = Transfers()
    transfers.put(b"t", 0, 10, memoryview(b"12345"))
    with pytest.raises(WireError, match="came out of turn"):
        transfers.put(b"t", 6, 10, memoryview(b"789"))
    with pytest.raises(WireError, match="out of turn"):
        transfers.put(b"t", 5, 10, memoryview(b"67890"))
    assert not transfers.arriving


def test_a_call_is_not_answered_before_all_of_it_came_and_only_once() -> None:
    transfers = Transfers()
    transfers.put(b"t", 0, 4, memoryview(b"12"))
    with pytest.raises(WireError, match="before all had come"):
        transfers.take(b"t")
    transfers.put(b"u", 0, 2, memoryview(b"12"))
    assert bytes(transfers.take(b"u")) == b"12"
    with pytest.raises(WireError, match="before all had come"):
        transfers.take(b"u")


def test_a_sender_has_a_limited_number_of_transfers_under_way() -> None:
    transfers = Transfers()
    for number in range(OPEN + 3):
        transfers.put(bytes([number]), 0, 10, memoryview(b"1"))
        transfers.keep([b"answer"])
    assert (
        len(transfers.arriving)
        == len(transfers.filled)
        == len(transfers.waiting)
        == OPEN
    )
    assert bytes([0]) not in transfers.arriving


def test_one_sender_cannot_fetch_what_waits_for_another() -> None:
    one, _, _ = desk(piece=50)
    reply = one("asker", whole(Envelope("asker", 1, Sleep(0.0))))
    kind, transfer, _, total = HEAD.unpack(reply)
    assert (kind, total > 50) == (LONG, True)
    assert failure(one("bob", HEAD.pack(GET, transfer, 0, total))).error == "WireError"
    assert one("asker", HEAD.pack(GET, transfer, 0, total))[1:5] == wire.MAGIC


def test_an_answer_that_was_given_up_is_an_error_for_who_fetches_it() -> None:
    one, _, _ = desk(piece=50)

    def forgetful(data: bytes, _deadline: float) -> bytes:
        reply = one("asker", data)
        one._transfers["asker"].waiting.clear()
        return reply

    peers, outbox = asker(Remote({"ada": forgetful}), ("ada",))
    with pytest.raises((PartyError, WireError), match="no such answer to fetch"):
        peers["ada"].ask(Multiply(outbox.release(torch.tensor(1.0), "by")))


def test_nothing_is_raised_into_what_carries_calls(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """FLARE would send the whole traceback to the caller."""

    def full(caller: str, why: str) -> None:
        raise OSError(28, "No space left on device", "/home/ada/runs")

    one, ada, _ = desk()
    one.refused = full
    assert failure(one("eve", b"")).error == "BoundaryError"
    assert failure(one("asker", b"")).error == "WireError"

    def no_memory(total: int) -> memoryview:
        raise MemoryError("ada's own words")

    monkeypatch.setattr("colonnade.transport.remote.room_for", no_memory)
    told = failure(one("asker", HEAD.pack(PUT, bytes(16), 0, 9) + b"part"))
    assert told.error == "PartyError"
    assert told.cause.startswith("MemoryError; the log of 'ada' has it")
    assert "own words" not in told.cause
    assert not ada.threads


def test_what_failed_to_begin_is_let_go_at_once() -> None:
    """Such as a lock: who asks again must not find it held until Python next looks for
    garbage."""

    class Held:
        pass

    held: list[weakref.ref[Held]] = []

    def handle(envelope: Envelope[Any]) -> Message:
        lock = Held()
        held.append(weakref.ref(lock))
        try:
            raise ConfigError("the run is there already")
        except ConfigError as error:
            raise PartyError(
                "ada", envelope.message.kind, None, "ConfigError", private=True
            ) from error

    one, _, _ = desk(handle=handle)
    gc.disable()
    try:
        assert (
            failure(one("asker", whole(Envelope("asker", 1, Sleep(0.0))))).error
            == "PartyError"
        )
        assert held[0]() is None
    finally:
        gc.enable()
