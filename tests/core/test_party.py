"""A party answers what its class serves, once per call, and its failures say where."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import Tensor

from colonnade.core import (
    Batches,
    Done,
    DpEvent,
    Envelope,
    Message,
    Organisation,
    Party,
    Released,
    Request,
    Rule,
    serves,
)
from colonnade.core.batches import seed_for
from colonnade.core.chance import Source
from colonnade.core.peers import NUMBERS
from colonnade.errors import BoundaryError, BudgetExhausted, PartyError


class Number(Message):
    value: int


class Values(Message):
    values: Released


class Count(Request[Number]):
    pass


class Double(Request[Values]):
    values: Released


class Fail(Request[Done]):
    batch: str
    how: str


class Unserved(Request[Done]):
    batch: str


class Look(Request[Number]):
    batch: str


class Name(Message):
    value: str


class Whose(Request[Name]):
    pass


class Counter(Party):
    calls = 0

    @serves
    def count(self, request: Count) -> Number:
        # long enough for a second thread to come in, were there no lock
        time.sleep(0.002)
        self.calls += 1
        return Number(self.calls)

    @serves
    def double(self, request: Double, asker: str | None) -> Values:
        return Values(
            self.outbox.release(request.values.tensor * 2, "double", to=asker)
        )

    @serves
    def fail(self, request: Fail) -> Done:
        self.expect(request.how != "refuse", "it does not fit")
        raise FAILURES[request.how]

    @serves
    def look(self, request: Look) -> Number:
        return Number(len(self.rows(request.batch)))

    def unserved(self, request: Unserved) -> Done:
        return Done()


class Host(Party):
    @serves
    def whoever(self, request: Whose, asker: str | None) -> Name:
        return Name(str(asker))


class Child(Counter):
    @serves
    def more(self, request: Unserved) -> Done:
        return Done()


FAILURES: dict[str, Exception] = {
    "value": ValueError("no such thing"),
    "party": PartyError("shop", "test_party.Count", None, "it broke"),
    "boundary": BoundaryError("not over here"),
    "budget": BudgetExhausted("all spent"),
}


def batches() -> Batches:
    return Batches({"train": torch.arange(10)}, batch_size=4, epochs=2, seed=0)


def party(name: str = "bank") -> Counter:
    return Counter(Organisation.at(name, batches()))


class Negate:
    """A mechanism that shows: what it touched has the other sign."""

    def apply(self, tensor: Tensor, source: Source) -> tuple[Tensor, DpEvent]:
        return -tensor, DpEvent("negated")


def test_it_answers_what_it_serves() -> None:
    assert party().handle(Envelope("shop", 1, Count())) == Number(1)


def test_it_refuses_what_it_does_not_serve_and_says_what_it_serves() -> None:
    counter = party()
    with pytest.raises(BoundaryError) as caught:
        counter.handle(Envelope("shop", 1, Unserved("train/0/0")))
    assert (
        str(caught.value) == "'bank' (tests.core.test_party.Counter) does not serve"
        " test_party.Unserved.\n    It serves: test_party.Count, test_party.Double,"
        " test_party.Fail, test_party.Look."
    )


def test_a_subclass_serves_more_and_its_base_no_more_than_before() -> None:
    assert (
        Child(Organisation.at("bank", batches())).handle(
            Envelope("shop", 1, Unserved("a"))
        )
        == Done()
    )
    assert Unserved in Child.served()
    assert Unserved not in Counter.served()
    assert Counter.served().items() <= Child.served().items()


def test_a_failure_names_party_request_and_batch_and_keeps_its_cause() -> None:
    with pytest.raises(PartyError) as caught:
        party().handle(Envelope("shop", 1, Fail("train/1/2", "value")))
    error = caught.value
    assert (error.party, error.request, error.batch) == (
        "bank",
        "test_party.Fail",
        "train/1/2",
    )
    assert (
        str(error)
        == "'bank' failed while answering test_party.Fail at batch train/1/2:"
        " ValueError: no such thing"
    )
    assert error.__cause__ is FAILURES["value"]


def test_a_refusal_gives_its_reason_only() -> None:
    with pytest.raises(PartyError, match=r"at batch train/0/0: it does not fit$"):
        party().handle(Envelope("shop", 1, Fail("train/0/0", "refuse")))


@pytest.mark.parametrize("how", ["party", "boundary", "budget"])
def test_what_already_says_where_passes_unchanged(how: str) -> None:
    with pytest.raises(type(FAILURES[how])) as caught:
        party().handle(Envelope("shop", 1, Fail("train/0/0", how)))
    assert caught.value is FAILURES[how]


def test_a_batch_nobody_agreed_on_is_the_party_s_failure() -> None:
    assert party().handle(Envelope("shop", 1, Look("train/0/2"))) == Number(2)
    with pytest.raises(
        PartyError, match="at batch train/0/3: WireError: No agreed batch"
    ):
        party().handle(Envelope("shop", 1, Look("train/0/3")))


def test_a_call_delivered_twice_is_answered_once() -> None:
    counter = party()
    first = counter.handle(Envelope("shop", 7, Count()))
    assert counter.handle(Envelope("shop", 7, Count())) is first
    assert counter.calls == 1
    assert counter.handle(Envelope("shop", 8, Count())) == Number(2)


def test_the_same_number_from_another_sender_is_another_call() -> None:
    counter = party()
    assert counter.handle(Envelope("shop", 7, Count())) == Number(1)
    assert counter.handle(Envelope("clinic", 7, Count())) == Number(2)
    assert counter.handle(Envelope("shop", 7, Count())) == Number(1)


def test_a_repeated_call_is_not_in_the_ledger_twice_nor_released_twice() -> None:
    counter = party()
    values = Organisation.at("shop", batches()).outbox.release(torch.ones(3), "values")
    replies = [counter.handle(Envelope("shop", 1, Double(values))) for _ in range(3)]
    assert replies[0] is replies[1] is replies[2]
    assert counter.ledger.total("in") == counter.ledger.total("out") == 12
    assert counter.outbox.released == 1


def test_a_failed_call_may_be_tried_again() -> None:
    counter = party()
    for _ in range(2):
        with pytest.raises(PartyError, match="ValueError"):
            counter.handle(Envelope("shop", 1, Fail("train/0/0", "value")))
    assert counter.handle(Envelope("shop", 1, Count())) == Number(1)


def test_two_deliveries_at_the_same_time_are_still_one_call() -> None:
    counter = party()
    threads = [
        threading.Thread(target=counter.handle, args=(Envelope("shop", 1, Count()),))
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert counter.calls == 1


def test_the_ledger_has_what_came_and_what_went() -> None:
    counter = party()
    values = Organisation.at("shop", batches()).outbox.release(
        torch.ones(2, 3), "values"
    )
    counter.handle(Envelope("shop", 1, Double(values)))
    came, went = counter.ledger.entries
    assert (came.direction, came.peer, came.name, came.owner, came.bytes) == (
        "in",
        "shop",
        "values",
        "shop",
        24,
    )
    assert (went.direction, went.peer, went.name, went.owner, went.bytes) == (
        "out",
        "shop",
        "double",
        "bank",
        24,
    )
    assert (came.message, went.message) == ("test_party.Double", "test_party.Values")


def test_a_call_inside_the_organisation_crosses_nothing() -> None:
    counter = party()
    values = counter.outbox.release(torch.ones(2, 3), "values")
    counter.handle(Envelope("bank", 1, Double(values)))
    assert counter.ledger.total("own") == 48
    assert counter.ledger.total("in") == counter.ledger.total("out") == 0


@pytest.mark.parametrize(("sender", "sign"), [("shop", -1), ("bank", 1)])
def test_the_owner_s_rule_holds_for_whoever_is_not_the_owner(
    sender: str, sign: int
) -> None:
    counter = Counter(
        Organisation.at("bank", batches(), rules={"double": Rule(Negate())})
    )
    values = Organisation.at("shop", batches()).outbox.release(torch.ones(2), "values")
    reply = counter.handle(Envelope(sender, 1, Double(values)))
    assert reply.values.tensor.tolist() == [sign * 2] * 2


def test_a_seat_s_random_numbers_depend_on_seed_and_name() -> None:
    def draw(name: str, seed: int) -> float:
        return torch.rand(
            1, generator=Organisation.at(name, batches(), seed=seed).generator
        ).item()

    assert draw("bank", 0) == draw("bank", 0)
    assert len({draw(name, seed) for name in ("bank", "shop") for seed in (0, 1)}) == 4


def test_every_use_of_a_seed_has_its_own_stream() -> None:
    uses = [(), ("a",), ("b",), ("a", "b"), ("b", "a")]
    seeds = {seed_for(seed, *words) for seed in range(5) for words in uses}
    assert len(seeds) == 25
    assert all(0 <= seed < 2**63 for seed in seeds)


def test_a_seat_continues_where_it_stood() -> None:
    organisation = Organisation.at("bank", batches())
    organisation.outbox.release(torch.rand(2, generator=organisation.generator), "a")
    state = organisation.state()
    expected = torch.rand(3, generator=organisation.generator)
    other = Organisation.at("bank", batches(), seed=99)
    other.load_state(state)
    assert torch.equal(torch.rand(3, generator=other.generator), expected)
    assert other.outbox.release(torch.zeros(1), "a").receipt.number == 2
    assert party().state() == {}
    party().load_state({})


def test_parties_of_a_new_class_may_be_asked_at_once_in_threads() -> None:
    """What a class serves is looked up once, by whoever comes first; nobody may see it
    half done."""
    for _ in range(20):
        kind: Any = type(
            "Fresh", (Counter,), {f"method_{number}": None for number in range(500)}
        )
        with ThreadPoolExecutor(8) as pool:
            served = [pool.submit(kind.served) for _ in range(8)]
        assert all(found.result() == dict(Counter.served()) for found in served)


def test_an_older_call_is_refused_and_noted_and_changes_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    counter = party()
    for number in (5, 6, 7):
        counter.handle(Envelope("shop", number, Count()))
    for number in (5, 6):
        with pytest.raises(
            BoundaryError,
            match=f"older than what it has answered: number {number}, and the newest",
        ):
            counter.handle(Envelope("shop", number, Count()))
    assert counter.calls == 3
    assert [record.getMessage() for record in caplog.records] == [
        "bank: refused a replayed test_party.Count of 'shop'"
    ] * 2
    assert counter.handle(Envelope("shop", 8, Count())) == Number(4)


def test_calls_that_overtook_each_other_are_both_answered() -> None:
    counter = party()
    assert [
        counter.handle(Envelope("shop", number, Count())).value for number in (5, 7, 6)
    ] == [1, 2, 3]


def test_a_restarted_driver_is_above_what_it_sent() -> None:
    code = "from colonnade.core.peers import NUMBERS; print(next(NUMBERS))"
    before = next(NUMBERS)
    assert (
        int(
            subprocess.run(
                [sys.executable, "-c", code], capture_output=True, check=True
            ).stdout
        )
        > before
    )


def test_only_those_agreed_on_are_answered(caplog: pytest.LogCaptureFixture) -> None:
    counter = party()
    counter.serves_for = {"shop"}
    assert counter.handle(Envelope("shop", 1, Count())) == Number(1)
    for stranger in ("clinic", "Shop", "bank", ""):
        with pytest.raises(
            BoundaryError,
            match=f"does not answer test_party.Count of '{stranger}': this is for shop",
        ):
            counter.handle(Envelope(stranger, 2, Count()))
    assert counter.calls == 1
    assert set(counter._answered) == {"shop"}
    assert (
        "bank: refused test_party.Count of 'clinic': this is for shop to ask"
        in caplog.text
    )


def test_a_request_may_be_reserved_for_some() -> None:
    counter = party()
    counter.serves_for = {"shop", "clinic"}
    counter.reserved = {Look: {"clinic"}}
    assert counter.handle(Envelope("clinic", 1, Look("train/0/0"))) == Number(4)
    assert counter.handle(Envelope("shop", 1, Count())) == Number(1)
    with pytest.raises(BoundaryError, match="this is for clinic to ask"):
        counter.handle(Envelope("shop", 2, Look("train/0/0")))


def test_it_is_told_who_asks() -> None:
    bank = Host(Organisation.at("bank", batches()))
    assert [
        bank.handle(Envelope(name, 1, Whose())).value for name in ("shop", "zoo")
    ] == ["shop", "zoo"]
    assert bank.answer(Whose()).value == "None", "nobody else asked"
