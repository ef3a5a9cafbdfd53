"""Peers: answers in party order, numbered calls, and ledgers that agree on both sides."""

from __future__ import annotations

import itertools
import random
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import torch

from colonnade.core import (
    Batches,
    Envelope,
    Ledger,
    Message,
    Organisation,
    Party,
    Peers,
    Released,
    Request,
    serves,
)
from colonnade.core.peers import Answer
from colonnade.errors import NoAnswer, PartyError
from colonnade.transport.in_process import InProcess

NAMES = ["zoo", "bank", "shop"]


class Echo(Message):
    who: str
    values: Released


class Say(Request[Echo]):
    values: Released
    break_: bool = False
    wait: float = 0.0


class Speaker(Party):
    heard = 0

    @serves
    def say(self, request: Say) -> Echo:
        if request.break_:
            raise ValueError("it broke")
        time.sleep(request.wait)
        self.heard += 1
        values = request.values.tensor
        return Echo(self.name, self.outbox.release(torch.cat([values, values]), "echo"))


class Noting:
    """A transport that notes the envelopes it carries."""

    def __init__(self, inner: InProcess) -> None:
        self.inner = inner
        self.seen = list[tuple[str, int]]()

    def exchange(self, calls: Sequence[Envelope[Any]]) -> list[Answer]:
        self.seen += [(call.receiver, call.number) for call in calls]
        return self.inner.exchange(calls)


class Table:
    """A driver and three speakers around one transport."""

    def __init__(self, through_bytes: bool = False) -> None:
        batches = Batches({"train": torch.arange(4)}, batch_size=2, epochs=1, seed=0)
        self.speakers = {
            name: Speaker(Organisation.at(name, batches)) for name in NAMES
        }
        self.organisation = Organisation.at("driver", batches)
        self.transport = Noting(
            InProcess(self.speakers, through_bytes=through_bytes, parallel="never")
        )
        self.peers = Peers("driver", NAMES, self.transport, self.organisation.ledger)

    def say(self, size: int = 3, **how: float) -> Say:
        return Say(self.organisation.outbox.release(torch.ones(size), "words"), **how)  # type: ignore[arg-type]


@pytest.fixture(params=[False, True], ids=["by reference", "through bytes"])
def table(request: pytest.FixtureRequest) -> Table:
    return Table(request.param)


def agree(table: Table) -> None:
    """What the driver wrote down about a peer is what the peer wrote down about the
    driver."""
    mine: Ledger = table.organisation.ledger
    for name, speaker in table.speakers.items():
        assert mine.total("out", name) == speaker.ledger.total("in", "driver")
        assert mine.total("in", name) == speaker.ledger.total("out", "driver")
        about = [entry for entry in mine.entries if entry.peer == name]
        swapped = [
            e._replace(direction="out" if e.direction == "in" else "in", peer="driver")
            for e in about
        ]
        assert swapped == speaker.ledger.entries


def test_peers_keep_the_agreed_order() -> None:
    peers = Table().peers
    assert list(peers) == NAMES
    assert len(peers) == 3
    assert peers["bank"].name == "bank"
    with pytest.raises(KeyError):
        peers["nobody"]


def test_ask_puts_one_question_to_all_and_answers_in_party_order(table: Table) -> None:
    replies = table.peers.ask(table.say())
    assert [(name, reply.who) for name, reply in replies.items()] == [
        (name, name) for name in NAMES
    ]
    agree(table)


def test_ask_each_answers_in_the_order_of_the_questions(table: Table) -> None:
    replies = table.peers.ask_each({"shop": table.say(1), "zoo": table.say(2)})
    assert [(name, len(reply.values.tensor)) for name, reply in replies.items()] == [
        ("shop", 2),
        ("zoo", 4),
    ]
    assert table.speakers["bank"].heard == 0
    agree(table)


def test_one_peer_can_be_asked_alone(table: Table) -> None:
    assert (
        table.peers["bank"].ask(table.say()).who
        == table.peers.ask_one("bank", table.say()).who
        == "bank"
    )
    assert [speaker.heard for speaker in table.speakers.values()] == [0, 2, 0]
    agree(table)


def test_the_bytes_in_the_ledgers_are_the_tensors_bytes(table: Table) -> None:
    table.peers.ask(table.say(5))
    assert table.organisation.ledger.total("out") == 3 * 5 * 4
    assert table.organisation.ledger.total("in") == 3 * 10 * 4


def test_no_peer_gets_the_same_call_number_twice() -> None:
    table = Table()
    table.peers.ask(table.say())
    table.peers.ask_each({name: table.say() for name in NAMES})
    table.peers.ask_one("zoo", table.say())
    list(table.peers.stream(lambda name: table.say(), ["zoo", "bank", "zoo"]))
    assert max(Counter(table.transport.seen).values()) == 1
    for name in NAMES:
        numbers = [number for to, number in table.transport.seen if to == name]
        assert numbers == sorted(numbers)


def test_asking_fails_with_the_party_s_name(table: Table) -> None:
    with pytest.raises(PartyError) as caught:
        table.peers.ask_each({"zoo": table.say(), "bank": table.say(break_=True)})
    assert caught.value.party == "bank"


def turns(seed: int, count: int = 20) -> Iterator[str]:
    generator = random.Random(seed)
    return (generator.choice(NAMES) for _ in range(count))


def test_a_stream_with_seeded_turns_reproduces(table: Table) -> None:
    def run(seed: int) -> list[str]:
        return [
            name
            for name, reply in table.peers.stream(lambda name: table.say(), turns(seed))
            if reply.who == name
        ]

    assert run(1) == run(1) == list(turns(1))
    assert run(1) != run(2)
    agree(table)


def test_a_turn_without_a_question_is_skipped() -> None:
    table = Table()
    answers = table.peers.stream(
        lambda name: None if name == "zoo" else table.say(),
        ["zoo", "bank", "zoo", "shop"],
    )
    assert [name for name, _ in answers] == ["bank", "shop"]


def test_a_turn_is_made_only_after_the_answer_before_it_was_used() -> None:
    table = Table()
    used: list[str] = []

    def make(name: str) -> Say:
        assert table.speakers["zoo"].heard + table.speakers["bank"].heard == len(used)
        return table.say()

    for name, _ in table.peers.stream(make, ["zoo", "bank", "zoo"]):
        used.append(name)
    assert used == ["zoo", "bank", "zoo"]


def test_a_stream_without_turns_ends_and_delivers_every_answer(table: Table) -> None:
    left = {"zoo": 4, "bank": 0, "shop": 7}
    wanted = dict(left)

    def make(name: str) -> Say | None:
        if not left[name]:
            return None
        left[name] -= 1
        return table.say(wait=0.001)

    answers = Counter(
        name for name, reply in table.peers.stream(make) if reply.who == name
    )
    assert answers == Counter(wanted)
    assert {name: speaker.heard for name, speaker in table.speakers.items()} == wanted
    assert table.organisation.ledger.total("in") == 11 * 24
    for name, speaker in table.speakers.items():
        assert speaker.ledger.total("in") == table.organisation.ledger.total(
            "out", name
        )


def test_a_slow_party_does_not_hold_the_others_up() -> None:
    table = Table()
    left = {"zoo": 1, "bank": 3, "shop": 0}

    def make(name: str) -> Say | None:
        left[name] -= 1
        return (
            table.say(wait=0.3 if name == "zoo" else 0.0) if left[name] >= 0 else None
        )

    assert [name for name, _ in table.peers.stream(make)] == [
        "bank",
        "bank",
        "bank",
        "zoo",
    ]


def test_a_stream_passes_a_failure_on() -> None:
    table = Table()
    answers = table.peers.stream(
        lambda name: table.say(break_=name == "shop", wait=0.01)
    )
    with pytest.raises(
        PartyError,
        match=r"'shop' failed while answering test_peers.Say: ValueError: it broke",
    ):
        list(itertools.islice(answers, 100))
    assert table.speakers["shop"].heard == 0


@pytest.mark.parametrize("fails", [True, False], ids=["one fails", "no longer wanted"])
def test_a_stream_that_ends_early_leaves_nobody_computing(fails: bool) -> None:
    table = Table()
    answers = table.peers.stream(
        lambda name: table.say(
            break_=fails and name == "shop", wait=0.2 if name == "zoo" else 0.0
        ),
        None,
    )
    if fails:
        with pytest.raises(PartyError, match="it broke"):
            list(answers)
    else:
        assert next(answers)[0] != "zoo"
        del answers
    assert table.speakers["zoo"].heard == 1
    agree(table)


def test_a_stream_whose_second_question_cannot_be_made_waits_for_the_first() -> None:
    table = Table()

    def make(name: str) -> Say:
        if name == "bank":
            raise ZeroDivisionError
        return table.say(wait=0.1)

    with pytest.raises(ZeroDivisionError):
        next(table.peers.stream(make))
    assert table.speakers["zoo"].heard == 1


def test_a_stream_of_nothing_ends() -> None:
    assert list(Table().peers.stream(lambda name: None)) == []


def test_a_second_driver_of_the_same_name_is_not_given_an_old_reply() -> None:
    table = Table()
    values = table.organisation.outbox.release(torch.ones(1), "values")
    again = Peers("driver", NAMES, table.transport, table.organisation.ledger)
    for peers in (table.peers, again):
        peers.ask_one("bank", Say(values))
    assert table.speakers["bank"].heard == 2


def test_between_two_roles_of_one_organisation_an_entry_is_written_once() -> None:
    batches = Batches({"train": torch.arange(4)}, batch_size=2, epochs=1, seed=0)
    organisation = Organisation.at("bank", batches)
    peers = Peers(
        "bank",
        ["bank"],
        InProcess({"bank": Speaker(organisation)}),
        organisation.ledger,
    )
    peers.ask(Say(organisation.outbox.release(torch.ones(2), "values")))
    assert [(entry.direction, entry.name) for entry in organisation.ledger.entries] == [
        ("own", "values"),
        ("own", "echo"),
    ]
    assert organisation.ledger.total("own") == 3 * 2 * 4


def test_an_attempt_gives_failures_beside_answers() -> None:
    table = Table()
    requests = {name: table.say(break_=name == "bank") for name in NAMES}
    replies, failures = table.peers.attempt(requests)
    assert [(name, reply.who) for name, reply in replies.items()] == [
        ("zoo", "zoo"),
        ("shop", "shop"),
    ]
    assert list(failures) == ["bank"]
    assert "it broke" in str(failures["bank"])
    directions = Counter(
        (entry.direction, entry.peer) for entry in table.organisation.ledger.entries
    )
    assert directions == {("out", name): 1 for name in NAMES} | {
        ("in", "zoo"): 1,
        ("in", "shop"): 1,
    }
    assert table.peers.attempt({}) == ({}, {})


def test_an_attempt_raises_what_is_no_failure_of_a_party_when_all_are_done() -> None:
    table = Table()

    def exchange(calls: Sequence[Envelope[Any]]) -> list[Answer]:
        table.transport.inner.exchange(calls[1:])
        raise ZeroDivisionError

    table.transport.exchange = exchange  # type: ignore[method-assign]
    with pytest.raises(ZeroDivisionError):
        table.peers.attempt({name: table.say(wait=0.05) for name in NAMES})
    assert table.speakers["shop"].heard == 1
    written = {(one.direction, one.peer) for one in table.organisation.ledger.entries}
    assert written == {("out", name) for name in NAMES}, (
        "what was sent is written down however it ended"
    )


def test_who_answers_a_heartbeat_with_a_failure_is_there() -> None:
    table = Table()

    def exchange(calls: Sequence[Envelope[Any]]) -> list[Answer]:
        kinds = {"zoo": NoAnswer, "bank": PartyError, "shop": PartyError}
        return [kinds[c.receiver](c.receiver, "Ping", None, "busy") for c in calls]

    table.transport.exchange = exchange  # type: ignore[method-assign]
    beats = table.peers.heartbeat()
    assert {name for name, beat in beats.items() if beat is None} == {"zoo"}
