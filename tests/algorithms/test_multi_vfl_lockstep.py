"""Label owners in lockstep do what they do alone: the same numbers, releases, ledgers and refusals."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from tests.algorithms.several import Reference, Several, made

from colonnade.algorithms import multi_vfl
from colonnade.algorithms.multi_vfl_lockstep import Lockstep
from colonnade.core import Peers, Rule, Seat
from colonnade.core.wire import Envelope
from colonnade.errors import BudgetExhausted, PartyError
from colonnade.privacy import Account, Budget
from colonnade.privacy.gaussian import Gaussian
from colonnade.transport import Fault, Faulty

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU"))]
ALIKE = {"abel": 43, "bea": 43, "carl": 43, "dora": 24}
"""Three of one size, whose last batch is shorter, and one of another."""


def carrier(toy: Several) -> Lockstep:
    transport = toy.server.peers.transport
    assert isinstance(transport, Lockstep)
    return transport


def stacked(toy: Several) -> list[tuple[str, ...]]:
    return list(carrier(toy)._stacks)


def close(one: Any, other: Any, rtol: float) -> None:
    if isinstance(one, torch.Tensor):
        torch.testing.assert_close(one, other, rtol=rtol, atol=rtol)
    elif isinstance(one, dict):
        assert one.keys() == other.keys()
        for key in one:
            close(one[key], other[key], rtol)
    else:
        assert one == other


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
@pytest.mark.parametrize(("dtype", "rtol"), [(torch.float64, 1e-9), (torch.float32, 1e-5)], ids=["float64", "float32"])
def test_stacked_is_one_by_one(device: str, optimizer: str, dtype: torch.dtype, rtol: float) -> None:
    config = multi_vfl.Config(optimizer=optimizer, learning_rate=0.02, local_epochs=2)
    given: dict[str, Any] = {"config": config, "rows": ALIKE, "dtype": dtype, "device": device}
    alone, together = made(stack="off", **given), made(stack="on", **given)
    assert together.run() == pytest.approx(alone.run(), rel=10 * rtol)
    assert stacked(alone) == []
    assert stacked(together) == [("abel", "bea", "carl")]
    for name, state in alone.states().items():
        close(state, together.states()[name], 10 * rtol)
    close(alone.predict("bea", model="own"), together.predict("bea", model="own"), 10 * rtol)


def test_ledgers_and_receipts_are_the_same() -> None:
    alone, together = made(rows=ALIKE), made(rows=ALIKE, stack="on")
    for toy in (alone, together):
        toy.run(2)
    for name, party in alone.everyone().items():
        other = together.everyone()[name]
        assert party.ledger.total("in") == other.ledger.total("in")
        assert party.outbox.released == other.outbox.released

        def told(ledger: Any) -> list[Any]:
            """The order of label owners differs; what passed between two parties does not."""
            return sorted(
                (e.peer, e.batch or "", e.name, e.direction, e.bytes, e.shape, e.event) for e in ledger.entries
            )

        assert told(party.ledger) == told(other.ledger)
    numbers = [(e.peer, e.number) for e in together.data_owners["heart"].ledger.entries if e.direction == "out"]
    assert len({number for _, number in numbers}) == len(numbers)


def test_an_owner_s_rule_applies_in_lockstep_too() -> None:
    rules = {"heart": {"embedding": Rule(Gaussian(sigma=0.0, clip=0.3))}}
    alone, together, plain = (
        made(rows=ALIKE, rules=rules), made(rows=ALIKE, rules=rules, stack="on"), made(rows=ALIKE, stack="on"),
    )  # fmt: skip
    losses = alone.run()
    assert together.run() == pytest.approx(losses, rel=1e-9)
    assert plain.run() != pytest.approx(losses, rel=1e-6)
    assert stacked(together)


def test_a_budget_that_is_spent_ends_the_round() -> None:
    rules = {"heart": {"embedding": Rule(Gaussian(sigma=4.0, clip=1.0))}}
    toy = made(rows=ALIKE, rules=rules, stack="on", rounds=100)
    heart = toy.data_owners["heart"]
    heart.outbox.meter = Account("heart", heart.agreed, map(str, range(200)), Budget(epsilon=4.0))
    with pytest.raises(BudgetExhausted, match="'heart' will not release"):
        toy.run()
    assert 0 < toy.server.round < 100


def test_a_stack_is_made_anew_when_others_take_part() -> None:
    toy = made(rows=ALIKE, stack="on", rounds=4)
    reference = Reference(toy)
    everybody = list(ALIKE)
    for number, present in enumerate((everybody, ["abel", "carl", "dora"], ["bea", "dora"], everybody)):
        reference.round(number, present)
        peers = Peers("server", present, carrier(toy), toy.server.ledger)
        next(multi_vfl.train(toy.server, peers, toy.rounds))
        reference.assert_equal(toy)
        assert stacked(toy) in ([], [tuple(k for k in present if k != "dora")], [("abel", "carl")])


def test_a_data_owner_that_fails_fails_all_and_is_named() -> None:
    toy = made(rows=ALIKE, stack="on")
    toy.run(1)
    toy.data_owners["lung"].features = toy.data_owners["lung"].features[:, :2]
    with pytest.raises(PartyError, match=r"'lung' failed while answering multi_vfl_data_owner.Embed at batch \w+:"):
        toy.run()
    assert toy.server.round == 1


def test_who_is_listened_to_or_goes_through_bytes_is_not_stacked() -> None:
    plain = made(rows=ALIKE)
    listened = made(rows=ALIKE, stack="on", lower=lambda _, inner: Faulty(inner, []))
    assert listened.run() == plain.run()
    assert stacked(listened) == []


def test_auto_stacks_while_a_batch_is_little_work_on_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    small = made(rows=ALIKE, stack="auto")
    small.run(1)
    assert stacked(small)
    monkeypatch.setattr("colonnade.algorithms.multi_vfl_lockstep.STACKING_PAYS", 10)
    large = made(rows=ALIKE, stack="auto")
    large.run(1)
    assert not stacked(large)


def test_one_organisation_may_hold_labels_and_columns() -> None:
    """What stays inside is written down once, as `own`, whichever way it is computed."""
    found = []
    for stack in ("off", "on"):
        toy = made(columns={"abel": 4, "lung": 3}, rows=ALIKE, stack=stack, rounds=1)
        shared = Seat.at("abel", toy.label_owners["abel"].batches)
        for party in (toy.label_owners["abel"], toy.data_owners["abel"]):
            party.seat, party.outbox, party.ledger = shared, shared.outbox, shared.ledger
        toy.label_owners["abel"].peers.ledger = shared.ledger
        toy.run()
        entries = [e for e in shared.ledger.entries if e.peer == "abel"]
        assert {e.direction for e in entries} == {"own"}
        found.append(sorted((e.name, str(e.batch), e.bytes) for e in entries))
    assert found[0] == found[1]
    assert len(found[0]) == 2 * 6


def test_failures_of_single_label_owners_are_answers() -> None:
    toy = made(rows=ALIKE, stack="on")
    transport = carrier(toy)
    wrong = multi_vfl.TrainRound(3)
    found = transport.attempt_each({k: Envelope("server", 10**6, wrong) for k in ("abel", "bea")})
    assert all(isinstance(answer, PartyError) for answer in found.values())
    with pytest.raises(PartyError, match="round 3 begins, and 0 are adopted here"):
        transport.exchange_each({"abel": Envelope("server", 10**6, wrong)})
    with pytest.raises(PartyError, match="no such party"):
        transport.exchange("eve", Envelope("server", 1, wrong))


def test_faults_are_still_possible_above() -> None:
    toy = made(rows=ALIKE, stack="on", upper=lambda inner: Faulty(inner, [Fault("drop", "bea", at=3)]))
    reference = Reference(toy)
    toy.run(1)
    reference.round(0, ["abel", "carl", "dora"])
    reference.assert_equal(toy)
    assert dataclasses.asdict(toy.said[0])["dropped"].keys() == {"bea"}
