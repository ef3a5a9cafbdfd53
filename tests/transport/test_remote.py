"""The asker's side: what crosses by lines is what would have crossed in one process,
whole or in pieces."""

from __future__ import annotations

import tracemalloc
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.conformance.battery import STEPS, every_algorithm
from tests.conformance.echo import (
    NAMES,
    Break,
    Echo,
    Multiply,
    Sleep,
    Unserved,
    Value,
    asker,
    echoes,
)
from tests.conformance.toy import Wrap, assert_bit_equal, federation
from tests.transport.lines import ByCaller, in_pieces, line_to, lines

from colonnade.algorithms.algorithm import AnyAlgorithm
from colonnade.core import (
    Batches,
    Envelope,
    Message,
    Organisation,
    Party,
    Peers,
    Released,
    Request,
    roles,
    serves,
)
from colonnade.core.message import answered_by
from colonnade.errors import BoundaryError, BudgetExhausted, PartyError, WireError
from colonnade.transport import InProcess
from colonnade.transport.remote import Endpoint, Remote, Route, cut


@every_algorithm
@pytest.mark.parametrize("transport", [ByCaller, in_pieces], ids=["whole", "in pieces"])
def test_an_algorithm_learns_the_same_to_the_bit(
    algorithm: AnyAlgorithm, transport: Wrap
) -> None:
    here = federation(algorithm)
    there = federation(algorithm, transport)
    assert here.run(STEPS) == there.run(STEPS)
    assert_bit_equal(here.states(), there.states())
    assert torch.equal(here.predict(), there.predict())


@given(
    st.lists(st.binary(max_size=50), max_size=6), st.integers(1, 40), st.integers(0, 30)
)
def test_pieces_joined_are_the_frame(parts: list[bytes], size: int, start: int) -> None:
    whole = b"".join(parts)
    pieces = list(cut(list(parts), size, start))
    assert b"".join(piece for _, piece in pieces) == whole[start:]
    assert [at for at, _ in pieces] == list(range(start, len(whole), size))


def test_a_large_answer_is_never_held_twice() -> None:
    """Memory in which frames lie, on both sides together: one buffer at the receiver,
    and a few pieces."""
    size = 24 << 20
    parties = echoes(("ada",))
    parties["ada"].features = torch.ones(size // 4 // 8, 8)
    piece = 1 << 20
    peers, outbox = asker(lines(parties, piece=piece), ("ada",))
    by = outbox.release(torch.tensor(2.0), "by")
    tracemalloc.start()
    try:
        answer = peers["ada"].ask(Multiply(by))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert answer.value.tensor.shape == (size // 32, 8)
    assert float(answer.value.tensor[-1, -1]) == 2.0
    assert size < peak < size + 8 * piece


def test_a_large_question_is_never_held_twice() -> None:
    size = 24 << 20
    piece = 1 << 20
    peers, outbox = asker(lines(echoes(("ada",)), piece=piece), ("ada",))
    by = outbox.release(torch.ones(size // 4), "by")
    tracemalloc.start()
    try:
        with pytest.raises(
            PartyError, match=r"'ada' failed while answering echo\.Multiply"
        ):
            # a shape that does not fit: the answer is short
            peers["ada"].ask(Multiply(by))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert size < peak < size + 8 * piece


def test_a_line_that_breaks_or_takes_too_long_names_party_request_and_batch() -> None:
    told: list[float] = []

    def broken(_data: bytes, deadline: float) -> bytes:
        told.append(deadline)
        raise TimeoutError("no reply after 7 seconds")

    peers, _ = asker(Remote({"ada": broken}, deadline=7.0), ("ada",))
    with pytest.raises(
        PartyError,
        match=(
            r"'ada' failed .* echo.Break at batch train/0/0: no answer"
            r" \(TimeoutError: no"
        ),
    ):
        peers["ada"].ask(Break(2.5))
    assert told == [7.0]


def test_a_party_without_a_line_is_no_party() -> None:
    peers, _ = asker(lines(echoes()), ("eve",))
    with pytest.raises(
        PartyError,
        match=(
            r"'eve' failed while answering echo.Sleep: no such party; there are"
            r" lines to"
        ),
    ):
        peers["eve"].ask(Sleep(0.0))


def test_the_first_failure_in_the_order_of_the_questions_is_raised_and_its_text_stays_there() -> (
    None
):
    parties = echoes()
    peers, _ = asker(lines(parties))
    with pytest.raises(PartyError) as caught:
        peers.ask_each({name: Break(2.5) for name in ("cyd", "bob", "ada")})
    assert (caught.value.party, caught.value.request, caught.value.batch) == (
        "bob",
        "echo.Break",
        "train/0/0",
    )
    assert caught.value.cause.startswith(
        "ArithmeticError; the log of 'bob' has it under reference "
    )
    assert "too small" not in str(caught.value)
    assert float(parties["cyd"].held[0, 0]) == 1.0


def test_each_answer_or_the_failure_in_its_place() -> None:
    transport = lines(echoes())
    parties = ("cyd", "bob", "ada")
    calls = [Envelope("asker", n, Break(2.5), to) for n, to in enumerate(parties, 1)]
    answers = transport.exchange(calls)
    found = dict(zip(parties, answers, strict=True))
    assert [(to, isinstance(answer, PartyError)) for to, answer in found.items()] == [
        ("cyd", False),
        ("bob", True),
        ("ada", True),
    ]


@pytest.mark.parametrize(
    "error",
    [BudgetExhausted("it is spent"), BoundaryError("it is not for you")],
    ids=repr,
)
def test_what_is_meant_for_the_asker_arrives_as_it_is(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    parties = echoes(("ada",))
    monkeypatch.setattr(parties["ada"], "answer", _raise(error))
    peers, _ = asker(lines(parties), ("ada",))
    with pytest.raises(type(error), match=str(error)):
        peers["ada"].ask(Sleep(0.0))


def _raise(error: Exception) -> Any:
    def answer(_request: Message, _asker: str | None) -> Message:
        raise error

    return answer


def test_what_the_role_does_not_serve_is_refused() -> None:
    peers, _ = asker(lines(echoes()))
    with pytest.raises(BoundaryError, match=r"does not serve echo.Unserved"):
        peers.ask(Unserved())


class Impostor:
    """Answers a call with another name, number or message than it should."""

    def __init__(
        self, sender: str = "ada", ahead: int = 0, message: Message | None = None
    ) -> None:
        self.sender = sender
        self.ahead = ahead
        self.message = message

    def __call__(self, data: bytes, deadline: float) -> bytes:
        from colonnade.core import wire
        from colonnade.transport.remote import ANSWER, HEAD

        envelope = wire.decode(data[HEAD.size :])
        message = self.message or roles.Introduction((1,), 1, "x")
        return ANSWER + wire.encode(
            Envelope(self.sender, envelope.number + self.ahead, message)
        )


@pytest.mark.parametrize(
    ("impostor", "why"),
    [
        (Impostor(sender="bob"), "as 'bob'"),
        (Impostor(ahead=1), "it answered call"),
        (
            Impostor(message=roles.Introduce()),
            "it answered with roles.Introduce, and roles.Introduction answers this",
        ),
    ],
    ids=["another name", "another call", "another message"],
)
def test_an_answer_that_is_not_of_this_call_is_an_error(
    impostor: Impostor, why: str
) -> None:
    peers, _ = asker(Remote({"ada": impostor}), ("ada",))
    with pytest.raises(PartyError, match=why):
        peers["ada"].ask(roles.Introduce())


@pytest.mark.parametrize(
    "reply",
    [b"", b"X", b"A", b"Anonsense", b"L", b"L" + bytes(40), b"L" + b"\xff" * 32],
    ids=repr,
)
def test_whatever_comes_back_is_an_answer_or_a_party_error(reply: bytes) -> None:
    peers, _ = asker(Remote({"ada": lambda _data, _deadline: reply}), ("ada",))
    with pytest.raises(PartyError, match=r"'ada' failed while answering echo\.Sleep"):
        peers["ada"].ask(Sleep(0.0))


def test_this_organisations_own_roles_are_asked_here_and_cross_nothing() -> None:
    parties = echoes()
    away = {name: party for name, party in parties.items() if name != "bob"}
    called: list[str] = []

    def far(name: str) -> Route:
        inner = line_to(
            Endpoint(name, away[name].handle, admitted=["bob"], allow=away[name].allow),
            "bob",
        )

        def line(data: bytes, deadline: float) -> bytes:
            called.append(name)
            return inner(data, deadline)

        return line

    transport = Remote(
        {name: far(name) for name in away},
        here=InProcess({"bob": parties["bob"]}),
        own=["bob"],
    )
    peers = Peers("bob", NAMES, transport, parties["bob"].ledger)
    assert list(peers.ask(Sleep(0.0))) == list(NAMES)
    assert sorted(called) == ["ada", "cyd"]
    assert {
        entry.direction
        for entry in parties["bob"].ledger.entries
        if entry.peer == "bob"
    } == {"own"}


class Total(Message):
    value: Released


class AddUp(Request[Total]):
    """Ask your own peers, and add what they have."""


class Head(Party):
    """A party that drives others while it is asked."""

    peers: Peers

    @serves
    def add_up(self, request: AddUp) -> Total:
        replies = self.peers.ask(Sleep(0.0))
        return Total(
            self.outbox.release(sum(r.value.tensor for r in replies.values()), "total")  # type: ignore[arg-type]
        )


def test_a_party_that_is_asked_may_drive_others() -> None:
    below: dict[str, Echo] = echoes()
    organisation = Organisation.at(
        "head", Batches({"train": torch.arange(6)}, batch_size=6, epochs=1, seed=0)
    )
    head = Head(organisation)
    head.peers = Peers(
        "head", NAMES, lines(below, "head", admitted=["head"]), organisation.ledger
    )
    above = Remote(
        {
            "head": line_to(
                Endpoint("head", head.handle, admitted=["asker"], allow=head.allow),
                "asker",
            )
        }
    )
    peers, _ = asker(above, ("head",))
    assert torch.equal(peers["head"].ask(AddUp()).value.tensor, torch.full((6, 4), 6.0))
    # the asker itself is no stranger's guest
    with pytest.raises(BoundaryError, match="no party of its federation"):
        asker(lines(below, "asker", admitted=["head"]))[0].ask(Sleep(0.0))


def test_the_class_that_answers_a_request_is_known() -> None:
    assert answered_by(Sleep) is Value
    assert answered_by(roles.Introduce) is roles.Introduction


def test_a_frame_above_the_limit_is_not_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("colonnade.core.wire.MAX_FRAME", 1000)
    peers, outbox = asker(lines(echoes(("ada",)), piece=100), ("ada",))
    with pytest.raises(PartyError, match="A frame may have at most 1000 bytes"):
        peers["ada"].ask(Multiply(outbox.release(torch.ones(6, 400), "by")))
    assert WireError.exit_code == PartyError.exit_code
