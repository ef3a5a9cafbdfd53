"""What the members of a cohort know: what they would know alone, and handed back when
it is asked for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch
from tests.conformance.echo import NAMES, Echo, Remember
from tests.conformance.toy import (
    assert_bit_equal,
    cohorts,
    config_for,
    difference,
    federation,
)
from tests.transport.echo_cohort import cohort_of_echoes
from torch import Tensor

from colonnade.algorithms import embedding, splitnn, vimadmm
from colonnade.algorithms.algorithm import AnyAlgorithm
from colonnade.core import DpEvent, Rule, State
from colonnade.core.chance import Source, normal
from colonnade.models import build

# What joining may not change


def both(
    algorithm: AnyAlgorithm = splitnn.ALGORITHM, optimizer: str = "sgd", **more: Any
) -> tuple[Any, Any]:
    """The same federation one by one and stacked, in float64."""
    config = config_for(algorithm, optimizer=optimizer, learning_rate=0.05)
    return tuple(  # type: ignore[return-value]
        federation(algorithm, *wrap, config=config, dtype=torch.float64, **more)
        for wrap in ((), (cohorts,))
    )


def splitnn_step(toy: Any, members: tuple[str, ...], batch: str) -> None:
    """One SplitNN step with some of the parties only, with gradients made up from what
    they sent."""
    if len(members) == 1:
        name = members[0]
        sent = toy.peers[name].ask(embedding.Embed(batch)).values.tensor
        gradient = toy.driver.outbox.release(sent.tanh() / 10, "gradient", batch)
        toy.peers[name].ask(embedding.Descend(batch, gradient))
        return
    replies = toy.peers.ask_each({name: embedding.Embed(batch) for name in members})
    gradients = {
        k: toy.driver.outbox.release(r.values.tensor.tanh() / 10, "gradient", batch)
        for k, r in replies.items()
    }
    toy.peers.ask_each({k: embedding.Descend(batch, g) for k, g in gradients.items()})


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
@pytest.mark.parametrize("members", [("bob",), ("ada", "cyd"), ("cyd", "bob")], ids=str)
def test_some_members_asked_alone_answer_as_they_would_unstacked(
    members: tuple[str, ...], optimizer: str
) -> None:
    """Also when they trained alone and the whole cohort goes on afterwards: Adam's
    counters have come apart then."""
    plain, stacked = both(optimizer=optimizer)
    for toy in (plain, stacked):
        toy.run(2)
        for number in (3, 4):
            splitnn_step(toy, members, f"train/0/{number}")
    assert difference(plain.states(), stacked.states()) <= 1e-12
    assert plain.run(3) == pytest.approx(stacked.run(3), rel=1e-9)
    assert stacked.cohorts()[0].alike is (optimizer == "sgd")
    assert difference(plain.states(), stacked.states()) <= 1e-9
    for name in NAMES:
        assert (
            plain.parties[name].ledger.entries == stacked.parties[name].ledger.entries
        )


def test_a_member_that_trained_before_the_others_did_is_not_forgotten() -> None:
    """Only bob has momentum when all are asked together."""
    plain, stacked = both()
    for toy in (plain, stacked):
        splitnn_step(toy, ("bob",), "train/0/3")
        toy.run(2)
    assert difference(plain.states(), stacked.states()) <= 1e-9


def test_members_that_were_told_different_things_come_together_again() -> None:
    toy = federation(vimadmm.ALGORITHM, cohorts)
    heads = toy.driver.first_heads()
    toy.peers.ask_each({name: heads[name] for name in ("ada", "cyd")})
    toy.predict()
    assert [cohort.alike for cohort in toy.cohorts()] == [False]
    assert [party.head is None for party in toy.parties.values()] == [
        False,
        True,
        False,
    ]
    toy.peers["bob"].ask(heads["bob"])
    toy.predict()
    assert [cohort.alike for cohort in toy.cohorts()] == [True]
    for name, party in toy.parties.items():
        assert torch.equal(party.head, heads[name].head.tensor)


@pytest.mark.parametrize("algorithm", [splitnn.ALGORITHM, vimadmm.ALGORITHM])
def test_adam_stacked_is_adam_one_by_one(algorithm: AnyAlgorithm) -> None:
    plain, stacked = both(algorithm, "adam")
    assert plain.run(6) == pytest.approx(stacked.run(6), rel=1e-9)
    assert difference(plain.states(), stacked.states()) <= 1e-9


@pytest.mark.parametrize("algorithm", [splitnn.ALGORITHM, vimadmm.ALGORITHM])
def test_at_the_papers_widths_float32_stays_close(algorithm: AnyAlgorithm) -> None:
    """56-120-60, 4 members, 10 steps. Measured on the machine this was written on: no
    difference at all; other BLAS libraries may add up batched products in another
    order."""
    mine = {
        n: lambda _, k=k: build("mlp", (56,), seed=k, owner="x")
        for k, n in enumerate(("ada", "bob", "cyd", "dan"))
    }
    plain, stacked = (
        federation(algorithm, *w, columns=(56,) * 4, wrap_model=mine)
        for w in ((), (cohorts,))
    )
    assert plain.run(10) == pytest.approx(stacked.run(10), rel=1e-5)
    assert all(cohort.alike and not cohort.fresh for cohort in stacked.cohorts()), (
        "it did not run stacked"
    )
    assert difference(plain.states(), stacked.states()) <= 1e-5


class Noise:
    """Adds numbers from the owner's generator."""

    def __init__(self, scale: float) -> None:
        self.scale = scale

    def apply(self, tensor: Tensor, source: Source) -> tuple[Tensor, DpEvent]:
        noise = normal(tensor.shape, source).to(tensor.dtype)
        return tensor + self.scale * noise, DpEvent(
            "gaussian", {"noise_multiplier": self.scale}
        )


def test_each_member_keeps_its_own_rules_and_random_numbers() -> None:
    plain, stacked = both()
    for toy in (plain, stacked):
        toy.parties["bob"].outbox.rules["embedding"] = Rule(Noise(0.1))
        toy.parties["cyd"].outbox.rules["test.embedding"] = Rule(Noise(0.2))
        toy.run(3)
        toy.predict()
    assert difference(plain.states(), stacked.states()) <= 1e-9
    for name in NAMES:
        one = plain.parties[name]
        other = stacked.parties[name]
        assert one.ledger.entries == other.ledger.entries
        assert torch.equal(one.generator.get_state(), other.generator.get_state())
    events = {
        n: {e.event for e in p.ledger.entries if e.direction == "out"}
        for n, p in stacked.parties.items()
    }
    assert events == {
        "ada": {"non-private"},
        "bob": {"gaussian"},
        "cyd": {"non-private", "gaussian"},
    }


@pytest.mark.parametrize("wrap", [None, cohorts], ids=["one by one", "stacked"])
def test_a_member_of_the_drivers_own_organisation_crosses_nothing(wrap: Any) -> None:
    rules = {"embedding": Rule(Noise(0.1))}
    toy = federation(
        splitnn.ALGORITHM, *([wrap] if wrap else []), driver="bob", rules=rules
    )
    toy.run(2)
    own = toy.parties["bob"]
    assert own.ledger is toy.driver.ledger
    with_bob = [e for e in own.ledger.entries if e.peer == "bob"]
    assert {e.direction for e in with_bob} == {"own"}
    # inside an organisation no rule applies
    assert {e.event for e in with_bob} == {"non-private"}
    assert {e.direction for e in toy.parties["ada"].ledger.entries} == {"in", "out"}
    assert {
        e.event for e in own.ledger.entries if e.peer == "ada" and e.direction == "in"
    } == {"gaussian"}
    assert (
        own.ledger.total("in")
        == own.ledger.total("in", "ada") + own.ledger.total("in", "cyd")
        > 0
    )


def test_stacked_or_not_an_organisation_with_both_roles_keeps_the_same_books() -> None:
    plain, stacked = both(driver="bob")
    for toy in (plain, stacked):
        toy.run(3)
        toy.predict()
    assert difference(plain.states(), stacked.states()) <= 1e-9
    for name in NAMES:
        assert sorted(plain.parties[name].ledger.entries, key=str) == sorted(
            stacked.parties[name].ledger.entries, key=str
        )


# Handing the state over


def held(parties: Mapping[str, Echo]) -> list[float]:
    return [float(party.held[0, 0]) for party in parties.values()]


def test_members_see_what_the_cohort_did_once_it_settles() -> None:
    parties, peers, outbox, transport = cohort_of_echoes()
    peers.ask(Remember(outbox.release(torch.tensor(1.0), "value")))
    assert held(parties) == [0, 0, 0]
    transport.settle()
    assert held(parties) == [1, 1, 1]
    transport.settle()
    assert held(parties) == [1, 1, 1]


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_settling_and_restacking_change_nothing(optimizer: Any) -> None:
    one, other = (
        federation(
            splitnn.ALGORITHM, cohorts, config=splitnn.Config(optimizer=optimizer)
        )
        for _ in range(2)
    )
    for _ in range(4):
        assert one.run(1) == other.run(1)
        for cohort in other.cohorts():
            before: State = cohort.twin.state()
            cohort.settle()
            cohort.restack()
            assert_bit_equal(before, cohort.twin.state())
    assert_bit_equal(one.states(), other.states())


def test_what_is_loaded_into_the_members_counts_after_restacking() -> None:
    toy, other = (federation(splitnn.ALGORITHM, cohorts, seed=seed) for seed in (0, 1))
    wanted = other.states()["bob"]
    toy.run(1)
    toy.transport.settle()
    toy.parties["bob"].load_state(
        wanted | {"optimizer": toy.parties["bob"].state()["optimizer"]}
    )
    toy.cohorts()[0].restack()
    toy.predict()
    assert_bit_equal(toy.states()["bob"]["model"], wanted["model"])


def test_many_threads_may_ask_members_alone() -> None:
    """Answers as they arrive: the first calls hand the cohort's state back, once."""
    for _ in range(20):
        parties, peers, outbox, transport = cohort_of_echoes()
        one = Remember(outbox.release(torch.tensor(1.0), "value"))
        peers.ask(one)
        left = dict.fromkeys(NAMES, 3)

        def make(
            name: str, left: dict[str, int] = left, one: Remember = one
        ) -> Remember | None:
            left[name] -= 1
            return one if left[name] >= 0 else None

        assert len(list(peers.stream(make))) == 9
        peers.ask(one)
        transport.settle()
        assert held(parties) == [5, 5, 5]


def test_the_members_columns_are_kept_once() -> None:
    parties, _, _, transport = cohort_of_echoes()
    (cohort,) = transport.cohorts
    for k, party in enumerate(parties.values()):
        assert party.features.data_ptr() == cohort.twin.features[k].data_ptr()
        assert float(party.features[0, 0]) == k + 1
