"""Frames that bring several calls, from a driver that lies and a relay that repeats: no
more than the calls alone."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from tests.conformance.echo import Echo, Remember, Sleep, asker, echoes
from tests.transport.lines import lines
from tests.transport.test_endpoint import desk, failure, whole
from torch import Generator

from colonnade.core import (
    Batches,
    Done,
    DpEvent,
    Envelope,
    Organisation,
    Outbox,
    Request,
    roles,
    serves,
    wire,
)
from colonnade.core.peers import Answer
from colonnade.errors import BudgetExhausted, NoAnswer, PartyError
from colonnade.transport.holding import LARGEST_FRAME, Holding
from colonnade.transport.remote import ANSWER


def remember(value: float, rows: int = 6) -> Remember:
    return Remember(
        Outbox("asker", Generator()).release(torch.full((rows, 4), value), "value")
    )


def call(number: int, message: Request[Any]) -> Envelope[Any]:
    return Envelope("asker", number, message, "ada")


def frame(*numbers: int, value: float = 1.0) -> bytes:
    """All but the last are held back; the last one tells something."""
    *ahead, last = numbers
    held = [call(number, remember(value)) for number in ahead]
    return whole(*held, call(last, Sleep(0.0)))


def number(party: Echo) -> float:
    return float(party.held[0, 0])


def told(reply: bytes) -> Any:
    assert reply[:1] == ANSWER
    return wire.decode(reply[1:]).message


class Counting:
    """A budget of so many releases."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.charged = 0

    def charge(self, name: str, batch: str | None, size: int, event: DpEvent) -> None:
        if self.charged >= self.most:
            raise BudgetExhausted(f"it will not release {name!r}")
        self.charged += 1

    def state(self) -> dict[str, Any]:
        return {}

    def load_state(self, state: dict[str, Any]) -> None: ...


def test_a_small_call_cannot_keep_a_long_frame_in_memory() -> None:
    """Tensors go on using the memory they came in, so that one of them that is kept
    keeps what came beside it."""
    point, ada, refused = desk()
    many = (LARGEST_FRAME // 16) // 2
    large = [call(n, remember(1.0, many)) for n in range(2, 7)]
    joined = whole(call(1, remember(1.0)), *large, call(9, Sleep(0.0)))
    assert failure(point("asker", joined)).error == "WireError"
    assert (number(ada), ada.ledger.entries, len(refused)) == (0, [], 1)


def test_as_much_as_a_driver_lets_wait_is_taken() -> None:
    ada = echoes(("ada",))["ada"]
    transport = Holding(lines({"ada": ada}))
    peers, _ = asker(transport, ("ada",))
    for _ in range(wire.AHEAD):
        peers.ask(remember(1.0, LARGEST_FRAME // 16 // wire.AHEAD))
    # it was read, and does not fit what ada holds
    with pytest.raises(PartyError, match="RuntimeError"):
        peers.settle()


def test_a_delayed_frame_that_comes_after_newer_ones_does_nothing() -> None:
    point, ada, refused = desk()
    for numbers in ((1, 2), (3, 4), (5, 6)):
        assert told(point("asker", frame(*numbers)))
    assert (
        "older than what it has answered" in failure(point("asker", frame(1, 2))).cause
    )
    assert (number(ada), len(ada.threads), len(refused)) == (3, 3, 1)


def test_other_contents_under_numbers_that_were_used_are_not_looked_at() -> None:
    point, ada, _ = desk()
    first = point("asker", frame(1, 2, 3))
    assert point("asker", frame(1, 2, 3, value=100.0)) == first
    assert number(ada) == 2
    entries = len(ada.ledger.entries)
    # what had told something says Done now, and no more
    told(point("asker", whole(call(2, remember(100.0)))))
    assert (number(ada), len(ada.ledger.entries)) == (2, entries)


@pytest.mark.parametrize("numbers", [(5, 5, 5), (5, 4, 6), (5, 6, 6)])
def test_numbers_that_repeat_or_fall_in_a_frame_are_done_once_each(
    numbers: tuple[int, ...],
) -> None:
    point, ada, _ = desk()
    for _ in range(3):
        reply = told(point("asker", frame(*numbers)))
    *ahead, last = numbers
    assert number(ada) == len({*ahead})
    assert len(ada.threads) == (last not in ahead)
    assert isinstance(reply, Done) == (last in ahead)


def test_the_same_frame_over_two_lines_at_once_is_done_once() -> None:
    point, ada, refused = desk()
    replies: list[bytes] = []
    calls = [
        threading.Thread(target=lambda: replies.append(point("asker", frame(1, 2, 3))))
        for _ in range(8)
    ]
    for call in calls:
        call.start()
    for call in calls:
        call.join()
    assert len(set(replies)) == 1
    assert (number(ada), len(ada.threads), refused) == (2, 1, [])


def test_a_frame_that_comes_again_is_charged_once_and_a_refused_call_releases_nothing() -> (
    None
):
    point, ada, _ = desk()
    meter = ada.outbox.meter = Counting(1)
    for _ in range(3):
        assert told(point("asker", frame(1, 2))).value.tensor.shape == (6, 4)
    assert (meter.charged, number(ada)) == (1, 1)
    for _ in range(3):
        assert failure(point("asker", frame(3, 4))).error == "BudgetExhausted"
    assert (meter.charged, number(ada), ada.outbox.released) == (1, 2, 1)


class Spent:
    """Of three parties one says that its budget is spent, while the frame to another
    was lost."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner
        self.lost = False

    def exchange(self, calls: Sequence[Envelope[Any]]) -> list[Answer]:
        if self.lost:
            answers: list[Answer] = self.inner.exchange(calls)
            return answers
        self.lost = True
        self.inner.exchange([one for one in calls if one.receiver == "ada"])
        raise BudgetExhausted("'bob' will not release")


def test_who_says_that_its_budget_is_spent_when_all_is_settled_loses_nobodys_update() -> (
    None
):
    """A driver that hears it saves everybody, as if all updates were done."""
    parties = echoes()
    transport = Holding(Spent(lines(parties)))
    peers, _ = asker(transport)
    peers.ask(remember(1.0))
    with pytest.raises(BudgetExhausted):
        peers.settle()
    peers.settle()  # before anybody is saved
    assert [number(party) for party in parties.values()] == [1, 1, 1]


class Round(Request[Done]):
    """Ask all with columns to remember something, and then find that a budget is spent."""


class Nested(roles.LabelOwner):
    @serves
    def round(self, request: Round) -> Done:
        self.peers.ask(remember(1.0))
        raise BudgetExhausted("'north' will not release its weights")


def test_a_nested_driver_whose_budget_is_spent_leaves_nothing_for_after_the_others_are_saved() -> (
    None
):
    """Whoever drives it has those with columns saved next, by another line."""
    parties = echoes()
    organisation = Organisation.at(
        "north", Batches({"train": torch.arange(6)}, batch_size=6, epochs=1, seed=0)
    )
    north = Nested(organisation, torch.zeros(6), None, None)
    north.peers = asker(Holding(lines(parties)))[0]
    with pytest.raises(BudgetExhausted, match="weights"):
        north.handle(Envelope("server", 1, Round()))
    assert [number(party) for party in parties.values()] == [1, 1, 1]


def test_no_answer_leaves_nothing_to_be_sent_later() -> None:
    """The run ends there: what waited may have been done, and is not done once more by
    whoever drives next."""

    class Dead(Spent):
        def exchange(self, calls: Sequence[Envelope[Any]]) -> list[Answer]:
            return [NoAnswer("bob", "echo.Sleep", None, "gone") for _ in calls]

    transport = Holding(Dead(lines(echoes())))
    peers, _ = asker(transport)
    peers.ask(remember(1.0))
    with pytest.raises(NoAnswer):
        peers.ask(Sleep(0.0))
    assert not transport.held
