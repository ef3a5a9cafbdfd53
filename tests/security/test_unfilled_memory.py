"""What a task fills after the outbox returned leaves nobody before: not by a second
delivery, a failure or a detour."""

from __future__ import annotations

import threading
import time
from functools import partial
from typing import Any

import pytest
import torch
from tests.conformance.echo import Echo, Sleep, Value, asker, echoes
from torch import Tensor

from colonnade.core import Peers, Request, serves
from colonnade.core.release import TASKS
from colonnade.errors import PartyError
from colonnade.transport import InProcess, Retrying
from colonnade.transport.cohort import Cohort, Cohorts

STALE = 666.0
"""What stands in memory that nobody has filled yet."""


class Compute(Request[Value]):
    """A number that a party computes after it has answered."""

    number: float
    seconds: float = 0.0
    fails: str = ""


class Masked(Request[Value]):
    """A tensor that a party goes on using once it is released."""


class ComputeEach(Request[Value]):
    """Two of them under one name."""


class AskBelow(Request[Value]):
    """What those below computed."""


class Late(Echo):
    stackable = True
    below: Peers | None = None

    @serves
    def compute(self, request: Compute) -> Value:
        values = torch.full_like(self.features, STALE)
        time.sleep(self.delay)

        def task() -> None:
            time.sleep(request.seconds)
            if self.name == request.fails:
                raise ArithmeticError("it cannot")
            values.fill_(request.number)

        TASKS.leave(task, fills=values)
        return Value(self.outbox.release(values, "value"))

    @serves
    def masked(self, request: Masked) -> Value:
        TASKS.leave(lambda: time.sleep(0.01))  # a step of its model
        hidden = torch.ones(2, 3)
        released = self.outbox.release(hidden, "value")
        hidden.fill_(STALE)  # as where a mask is taken off again
        return Value(released)

    @serves
    def compute_each(self, request: ComputeEach) -> Value:
        values = torch.full((4, 3), STALE)
        TASKS.leave(lambda: values.fill_(1.0))
        return Value(self.outbox.release_blocks(values, [2, 2], "value", None)[0])

    @serves
    def ask_below(self, request: AskBelow) -> Value:
        assert self.below is not None
        replies = self.below.ask(Compute(1.0))
        return Value(
            self.outbox.release(
                sum(reply.value.tensor for reply in replies.values()),  # type: ignore[arg-type]
                "value",
            )
        )


def late() -> dict[str, Late]:
    return {
        name: Late(one.organisation, one.features, one.model)
        for name, one in echoes().items()
    }


def at_once(parties: Any, **more: Any) -> InProcess:
    """Its parties leave their tasks to threads from the second time on."""
    transport = InProcess(parties, parallel="always", **more)
    transport.workers = 2
    return transport


@pytest.fixture(autouse=True)
def stale_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fresh memory has what somebody left there."""
    empty_like = torch.empty_like

    def stale(tensor: Tensor, **how: Any) -> Tensor:
        return empty_like(tensor, **how).fill_(STALE)

    monkeypatch.setattr(torch, "empty_like", stale)


def test_a_call_that_comes_again_while_a_task_runs_waits_for_it() -> None:
    parties = late()
    transport = at_once(parties)
    asker(transport)[0].ask(Compute(1.0))
    peers, _ = asker(Retrying(transport, deadline=0.2, retries=5, pause=0.0))
    replies = peers.ask(Compute(2.0, seconds=0.5))
    assert [float(reply.value.tensor[0, 0]) for reply in replies.values()] == [2.0] * 3
    assert [party.outbox.released for party in parties.values()] == [2] * 3


@pytest.mark.parametrize("through_bytes", [False, True])
def test_a_reply_whose_task_failed_is_given_to_nobody(through_bytes: bool) -> None:
    parties = late()
    transport = at_once(parties, through_bytes=through_bytes)
    asker(transport)[0].ask(Compute(1.0))
    peers, _ = asker(Retrying(transport, retries=0, pause=0.0))
    replies, failures = peers.attempt(dict.fromkeys(parties, Compute(2.0, fails="bob")))
    assert {
        name: float(reply.value.tensor[0, 0]) for name, reply in replies.items()
    } == {"ada": 2.0, "cyd": 2.0}
    assert list(failures) == ["bob"]
    assert "ArithmeticError" in str(failures["bob"])
    written = [
        entry for entry in parties["bob"].ledger.entries if entry.direction == "out"
    ]
    assert len(written) == 1  # what did not leave is not written down as if it had
    with pytest.raises(PartyError, match="'bob'"):
        asker(transport)[0].ask(Compute(2.0, fails="bob"))


def test_nobody_is_answered_while_what_a_party_left_is_done() -> None:
    parties = late()
    peers, _ = asker(at_once(parties))
    peers.ask(Compute(1.0))
    call = threading.Thread(target=lambda: peers.ask(Compute(2.0, seconds=0.3)))
    call.start()
    time.sleep(0.1)
    begun = time.perf_counter()
    with parties["ada"].undisturbed():
        waited = time.perf_counter() - begun
    call.join()
    assert waited > 0.1


def test_what_is_left_is_done_though_others_wait_for_the_same_parties() -> None:
    parties = late()
    peers, _ = asker(at_once(parties))
    peers.ask(Compute(1.0))
    for party in parties.values():
        party.delay = 0.1
    calls = [
        threading.Thread(target=partial(peers.ask, one), daemon=True)
        for one in (Compute(2.0), Sleep(0.0))
    ]
    for call in calls:
        call.start()
        time.sleep(0.05)
    for call in calls:
        call.join(10.0)
    assert not any(call.is_alive() for call in calls)


def test_what_was_released_does_not_follow_what_its_owner_does_next() -> None:
    peers, _ = asker(at_once(late()))
    for _ in range(2):
        replies = peers.ask(Masked())
        assert [float(reply.value.tensor[0, 0]) for reply in replies.values()] == [
            1.0
        ] * 3


def test_several_that_are_released_at_once_are_computed_before() -> None:
    peers, _ = asker(at_once(late()))
    for _ in range(2):
        replies = peers.ask(ComputeEach())
        assert [float(reply.value.tensor[0, 0]) for reply in replies.values()] == [
            1.0
        ] * 3


def test_a_cohort_that_a_party_asks_in_turn_has_computed_when_it_answers() -> None:
    parties = late()
    for party in parties.values():
        members = late()
        party.below = asker(Cohorts(InProcess(members), [Cohort(members)]))[0]
    peers, _ = asker(at_once(parties))
    for _ in range(2):
        replies = peers.ask(AskBelow())
        assert [float(reply.value.tensor[0, 0]) for reply in replies.values()] == [
            3.0
        ] * 3
