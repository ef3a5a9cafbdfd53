"""What everything that carries calls must do. A transport joins by a line in
`toy.TRANSPORTS`."""

from __future__ import annotations

import time

import pytest
import torch
from tests.conformance.echo import (
    NAMES,
    Break,
    Echo,
    Multiply,
    Nest,
    Remember,
    Sleep,
    Unserved,
    asker,
    echoes,
)
from tests.conformance.toy import STACKS, TRANSPORTS

from colonnade.core import Peers, Transport, roles
from colonnade.errors import BoundaryError, PartyError

every_transport = pytest.mark.parametrize("transport", TRANSPORTS)
every_single_transport = pytest.mark.parametrize(
    "transport", [t for t in TRANSPORTS if t not in STACKS]
)


def settled(transport: Transport) -> None:
    if hasattr(transport, "settle"):
        transport.settle()


@every_transport
@pytest.mark.parametrize(
    "order", [NAMES, NAMES[::-1], ("cyd", "ada"), ("bob",)], ids=str
)
def test_answers_come_in_the_order_of_the_questions(
    transport: str, order: tuple[str, ...]
) -> None:
    parties = echoes()
    for delay, party in zip((0.02, 0.01, 0.0), parties.values(), strict=True):
        party.delay = delay
    peers, outbox = asker(TRANSPORTS[transport](parties))
    by = outbox.release(torch.tensor(2.0), "by")
    for _ in range(2):
        replies = peers.ask_each({name: Multiply(by, plus=1.0) for name in order})
        assert list(replies) == list(order)
        for name, reply in replies.items():
            assert torch.equal(reply.value.tensor, parties[name].features * 2 + 1)
            assert reply.value.receipt.owner == name
        assert list(peers.ask_each({name: Sleep(0.0) for name in order})) == list(order)


@every_transport
def test_each_gets_its_own_question(transport: str) -> None:
    parties = echoes()
    peers, outbox = asker(TRANSPORTS[transport](parties))
    factors = {
        name: outbox.release(torch.full((6, 4), 10.0**k), "by")
        for k, name in enumerate(NAMES)
    }
    replies = peers.ask_each({name: Multiply(factors[name]) for name in NAMES})
    for k, name in enumerate(NAMES):
        assert torch.equal(
            replies[name].value.tensor, torch.full((6, 4), (k + 1) * 10.0**k)
        )


@every_transport
def test_one_question_to_all_one_to_one_and_one_to_two_agree(transport: str) -> None:
    parties = echoes()
    peers, outbox = asker(TRANSPORTS[transport](parties))
    request = Multiply(outbox.release(torch.tensor(3.0), "by"))
    everybody = peers.ask(request)
    assert torch.equal(
        peers["bob"].ask(request).value.tensor, everybody["bob"].value.tensor
    )
    some = peers.ask_each({"ada": request, "cyd": request})
    assert torch.equal(some["cyd"].value.tensor, everybody["cyd"].value.tensor)
    # two calls each, in and out
    assert [len(parties[name].ledger.entries) for name in NAMES] == [4, 4, 4]


@every_transport
@pytest.mark.parametrize("shared", [True, False], ids=["shared", "each its own"])
def test_released_tensors_in_tuples_and_dicts_arrive(
    transport: str, shared: bool
) -> None:
    parties = echoes()
    peers, outbox = asker(TRANSPORTS[transport](parties))
    made = [
        Nest(
            tuple(outbox.release(torch.full((6, 4), float(n)), "part") for n in (2, 3)),
            {"x": outbox.release(torch.full((6, 4), 10.0), "part")},
        )
        for _ in range(1 if shared else 3)
    ]
    replies = peers.ask_each(
        {name: made[0 if shared else k] for k, name in enumerate(NAMES)}
    )
    for k, name in enumerate(NAMES):
        mine = float(k + 1)
        reply = replies[name]
        assert [part.tensor.tolist() for part in reply.listed] == [
            [[n * mine] * 4] * 6 for n in (2, 3)
        ]
        assert reply.named["x"].tensor.tolist() == [[10 + mine] * 4] * 6
        assert [part.tensor.shape for part in reply.both["two"]] == [(6, 4), (6, 4)]
        assert reply.both["none"] == ()
        assert reply.count == 2
        assert {released.receipt.owner for released in reply.released()} == {name}
        assert len(parties[name].ledger.entries) == 3 + 5
        assert (
            peers.ledger.total("in", name)
            == parties[name].ledger.total("out", "asker")
            == 5 * 6 * 4 * 4
        )
        assert (
            peers.ledger.total("out", name)
            == parties[name].ledger.total("in", "asker")
            == 3 * 6 * 4 * 4
        )


@every_transport
def test_a_reply_cannot_be_changed_from_the_other_side(transport: str) -> None:
    """What a party answers stays its own: writing into the answer does not reach its
    memory."""
    parties = echoes()
    peers, _ = asker(TRANSPORTS[transport](parties))
    for reply in peers.ask_each({name: Sleep(0.0) for name in NAMES}).values():
        reply.value.tensor.zero_()
    assert [float(party.features[0, 0]) for party in parties.values()] == [
        1.0,
        2.0,
        3.0,
    ]


@every_transport
def test_an_unknown_party_is_an_error_that_names_it(transport: str) -> None:
    parties = echoes()
    carrier = TRANSPORTS[transport](parties)
    peers = Peers("asker", ["eve", *NAMES], carrier, asker(carrier)[0].ledger)
    with pytest.raises(
        PartyError,
        match=(
            r"'eve' failed while answering echo.Break at batch train/0/0: no such party"
        ),
    ):
        peers["eve"].ask(Break(0.0))
    with pytest.raises(PartyError, match=r"'eve' .*there are .*'ada', 'bob', 'cyd'"):
        peers.ask_each({"eve": Break(0.0), "bob": Break(0.0)})


@every_single_transport
def test_the_first_failure_is_raised_and_nothing_else_is_lost(transport: str) -> None:
    """bob and ada fail; whoever was asked and did not fail has done what it was asked,
    once."""
    parties = echoes()
    carrier = TRANSPORTS[transport](parties)
    peers, outbox = asker(carrier)
    with pytest.raises(PartyError) as caught:
        peers.ask_each({name: Break(2.5) for name in ("cyd", "bob", "ada")})
    assert (caught.value.party, caught.value.request, caught.value.batch) == (
        "bob",
        "echo.Break",
        "train/0/0",
    )
    assert caught.value.cause == "ArithmeticError: too small"
    assert [float(party.held[0, 0]) for party in parties.values()] == [0.0, 0.0, 1.0]
    replies = peers.ask(Multiply(outbox.release(torch.tensor(1.0), "by")))
    assert [float(reply.value.tensor[0, 0]) for reply in replies.values()] == [
        1.0,
        2.0,
        3.0,
    ]


@every_transport
def test_after_a_failure_in_part_of_the_calls_the_others_have_moved_on(
    transport: str,
) -> None:
    """cyd answers before bob fails; what it did then is still there when all are asked
    together."""
    parties = echoes()
    carrier = TRANSPORTS[transport](parties)
    peers, outbox = asker(carrier)
    peers.ask(Remember(outbox.release(torch.tensor(10.0), "value")))
    with pytest.raises(PartyError, match="'bob'"):
        peers.ask_each({name: Break(2.5) for name in ("cyd", "bob")})
    peers.ask(Remember(outbox.release(torch.tensor(10.0), "value")))
    settled(carrier)
    assert [float(party.held[0, 0]) for party in parties.values()] == [20.0, 20.0, 21.0]


@every_transport
def test_a_request_that_nobody_serves_is_refused(transport: str) -> None:
    peers, _ = asker(TRANSPORTS[transport](echoes()))
    with pytest.raises(BoundaryError, match=r"does not serve echo.Unserved") as caught:
        peers.ask(Unserved())
    assert "echo.Multiply" in str(caught.value)
    with pytest.raises(BoundaryError, match="'bob'"):
        peers["bob"].ask(Unserved())


@every_transport
def test_introductions_are_the_partys_own(transport: str) -> None:
    parties: dict[str, Echo] = echoes()
    peers, _ = asker(TRANSPORTS[transport](parties))
    agreed = parties["ada"].organisation.batches.fingerprint()
    for card in peers.ask(roles.Introduce()).values():
        assert (card.shape[-1], card.rows, card.agreed) == (2, 6, agreed)


@every_transport
def test_answers_that_come_as_they_are_ready(transport: str) -> None:
    peers, _ = asker(TRANSPORTS[transport](echoes()))
    left = dict.fromkeys(NAMES, 3)

    def make(name: str) -> Sleep | None:
        left[name] -= 1
        return Sleep(0.001) if left[name] >= 0 else None

    start = time.perf_counter()
    answered = [name for name, _ in peers.stream(make)]
    assert sorted(answered) == sorted(NAMES * 3)
    assert time.perf_counter() - start < 5
