"""Same-shaped feature owners answered as one: who may join, what joining may not change, and coming apart."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

import pytest
import torch
from tests.conformance.echo import NAMES, Break, Echo, Multiply, Nest, Remember, Sleep, asker, echoes
from tests.conformance.toy import assert_bit_equal, cohorts, config_for, difference, federation
from torch import Tensor, nn

from colonnade.algorithms import splitnn, vimadmm
from colonnade.core import Batches, DpEvent, Ledger, Outbox, Peers, Released, Rule, Seat, State
from colonnade.core.roles import Introduce
from colonnade.errors import BoundaryError, PartyError
from colonnade.models import build
from colonnade.transport import Cohort, Cohorts, InProcess, groups, worth_stacking
from colonnade.transport.cohort import STACKING_PAYS

# Who may join


class Scaled(nn.Module):
    """Its factor is a setting that shows neither in its parameters nor in its repr."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.linear, self.factor = nn.Linear(4, 3), factor

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.linear(x) * self.factor
        return result


def batches(seed: int = 0) -> Batches:
    return Batches({"train": torch.arange(8)}, batch_size=4, epochs=1, seed=seed)


def owner(
    name: str,
    model: nn.Module | None = None,
    *,
    columns: int = 4,
    config: splitnn.Config | None = None,
    dtype: torch.dtype = torch.float32,
    device: str = "cpu",
    seed: int = 0,
) -> splitnn.FeatureOwner:
    module = model or build({"name": "mlp", "hidden": [5], "width": 3}, (columns,), seed=len(name), owner=name)
    features = torch.zeros(8, columns, dtype=dtype)
    return splitnn.FeatureOwner(
        Seat.at(name, batches(seed), device=device), features, module.to(dtype), config or splitnn.Config()
    )


def chain(*layers: nn.Module) -> nn.Module:
    return nn.Sequential(*layers)


OTHERS: dict[str, Callable[[], splitnn.FeatureOwner]] = {
    "other columns": lambda: owner("x", columns=5),
    "other width": lambda: owner("x", chain(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 2), nn.ReLU())),
    "other activation": lambda: owner("x", chain(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3), nn.ReLU())),
    "other slope": lambda: owner("x", chain(nn.Linear(4, 5), nn.LeakyReLU(0.3), nn.Linear(5, 3), nn.ReLU())),
    "no bias": lambda: owner("x", chain(nn.Linear(4, 5, bias=False), nn.ReLU(), nn.Linear(5, 3), nn.ReLU())),
    "other settings": lambda: owner("x", config=splitnn.Config(learning_rate=0.2)),
    "other precision": lambda: owner("x", dtype=torch.float64),
    "other device": lambda: owner("x", device="meta"),
    "other rows": lambda: owner("x", seed=1),
    "dropout": lambda: owner("x", chain(nn.Linear(4, 3), nn.Dropout(0.5))),
    "batch statistics": lambda: owner("x", chain(nn.Linear(4, 3), nn.BatchNorm1d(3))),
}


@pytest.mark.parametrize("kind", OTHERS)
def test_who_is_different_does_not_join(kind: str) -> None:
    parties = {"a": owner("a"), "x": OTHERS[kind](), "bb": owner("bb")}
    assert [list(group) for group in groups(parties)] == [["a", "bb"]]


@pytest.mark.parametrize("kind", ["dropout", "batch statistics"])
def test_who_cannot_be_stacked_does_not_join_its_equals(kind: str) -> None:
    assert groups({"x": OTHERS[kind](), "y": OTHERS[kind]()}) == []


def test_a_frozen_layer_makes_a_difference() -> None:
    frozen = chain(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3), nn.ReLU())
    next(frozen.parameters()).requires_grad_(False)
    assert groups({"a": owner("a"), "x": owner("x", frozen)}) == []


def test_a_setting_of_a_module_of_ones_own_makes_a_difference() -> None:
    parties = {name: owner(name, Scaled(factor)) for name, factor in (("a", 1.0), ("b", 2.0), ("c", 1.0))}
    assert [list(group) for group in groups(parties)] == [["a", "c"]]


def test_another_algorithm_makes_a_difference() -> None:
    a = owner("a")
    b = vimadmm.FeatureOwner(Seat.at("b", batches()), torch.zeros(8, 4), a.model, vimadmm.Config())
    assert groups({"a": a, "b": b}) == []


def test_one_alone_is_no_group_and_label_owners_are_never_in_one() -> None:
    leader = splitnn.LabelOwner(Seat.at("l", batches()), torch.zeros(8), None, splitnn.Config())
    assert groups({"a": owner("a"), "l": leader}) == []
    assert groups({}) == []


def test_several_groups_keep_the_order_of_the_parties() -> None:
    parties = {
        name: owner(name, columns=columns) for name, columns in (("a", 4), ("x", 5), ("b", 4), ("y", 5), ("z", 6))
    }
    assert [list(group) for group in groups(parties)] == [["a", "b"], ["x", "y"]]


@pytest.mark.parametrize(("rows", "worth"), [(1, True), (1_000, True), (10_000_000, False)])
def test_stacking_is_worth_it_while_a_party_has_little_to_do(rows: int, worth: bool) -> None:
    parties = {name: owner(name) for name in ("a", "b", "c")}
    mode = parties["a"].model.training
    assert worth_stacking(parties, rows) is worth
    assert parties["a"].model.training is mode


def test_the_more_parties_the_sooner_stacking_is_worth_it() -> None:
    parties = {name: owner(name) for name in "abcdefgh"}
    flops = 2 * (4 * 5 + 5 * 3)
    rows = 4 * STACKING_PAYS // flops
    assert worth_stacking(parties, rows)
    assert not worth_stacking({name: parties[name] for name in "abc"}, rows)


# What joining may not change


def both(algorithm: ModuleType = splitnn, optimizer: str = "sgd", **more: Any) -> tuple[Any, Any]:
    """The same federation one by one and stacked, in float64."""
    config = config_for(algorithm, optimizer=optimizer, learning_rate=0.05)
    return tuple(  # type: ignore[return-value]
        federation(algorithm, *wrap, config=config, dtype=torch.float64, **more) for wrap in ((), (cohorts,))
    )


def splitnn_step(toy: Any, members: tuple[str, ...], batch: str) -> None:
    """One SplitNN step with some of the parties only, with gradients made up from what they sent."""
    if len(members) == 1:
        name = members[0]
        sent = toy.peers[name].ask(splitnn.Embed(batch)).values.tensor
        gradient = toy.driver.outbox.release(sent.tanh() / 10, "gradient", batch)
        toy.peers[name].ask(splitnn.Descend(batch, gradient))
        return
    replies = toy.peers.ask_each({name: splitnn.Embed(batch) for name in members})
    gradients = {
        k: toy.driver.outbox.release(r.values.tensor.tanh() / 10, "gradient", batch) for k, r in replies.items()
    }
    toy.peers.ask_each({k: splitnn.Descend(batch, g) for k, g in gradients.items()})


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
@pytest.mark.parametrize("members", [("bob",), ("ada", "cyd"), ("cyd", "bob")], ids=str)
def test_some_members_asked_alone_answer_as_they_would_unstacked(members: tuple[str, ...], optimizer: str) -> None:
    """Also when they trained alone and the whole cohort goes on afterwards: Adam's counters have come apart then."""
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
        assert plain.parties[name].ledger.entries == stacked.parties[name].ledger.entries


def test_a_member_that_trained_before_the_others_did_is_not_forgotten() -> None:
    """Only bob has momentum when all are asked together."""
    plain, stacked = both()
    for toy in (plain, stacked):
        splitnn_step(toy, ("bob",), "train/0/3")
        toy.run(2)
    assert difference(plain.states(), stacked.states()) <= 1e-9


def test_members_that_were_told_different_things_come_together_again() -> None:
    toy = federation(vimadmm, cohorts)
    heads = toy.driver.first_heads()
    toy.peers.ask_each({name: heads[name] for name in ("ada", "cyd")})
    toy.predict()
    assert [cohort.alike for cohort in toy.cohorts()] == [False]
    assert [party.head is None for party in toy.parties.values()] == [False, True, False]
    toy.peers["bob"].ask(heads["bob"])
    toy.predict()
    assert [cohort.alike for cohort in toy.cohorts()] == [True]
    for name, party in toy.parties.items():
        assert torch.equal(party.head, heads[name].head.tensor)


@pytest.mark.parametrize("algorithm", [splitnn, vimadmm])
def test_adam_stacked_is_adam_one_by_one(algorithm: ModuleType) -> None:
    plain, stacked = both(algorithm, "adam")
    assert plain.run(6) == pytest.approx(stacked.run(6), rel=1e-9)
    assert difference(plain.states(), stacked.states()) <= 1e-9


@pytest.mark.parametrize("algorithm", [splitnn, vimadmm])
def test_at_the_papers_widths_float32_stays_close(algorithm: ModuleType) -> None:
    """56-120-60, 4 members, 10 steps. Measured on the machine this was written on: no difference at all; other BLAS
    libraries may add up batched products in another order."""
    mine = {
        n: (lambda _, k=k: build("mlp", (56,), seed=k, owner="x")) for k, n in enumerate(("ada", "bob", "cyd", "dan"))
    }
    plain, stacked = (federation(algorithm, *w, columns=(56,) * 4, wrap_model=mine) for w in ((), (cohorts,)))
    assert plain.run(10) == pytest.approx(stacked.run(10), rel=1e-5)
    assert all(cohort.alike and not cohort.fresh for cohort in stacked.cohorts()), "it did not run stacked"
    assert difference(plain.states(), stacked.states()) <= 1e-5


class Noise:
    """Adds numbers from the owner's generator."""

    def __init__(self, scale: float) -> None:
        self.scale = scale

    def apply(self, tensor: Tensor, generator: torch.Generator) -> tuple[Tensor, DpEvent]:
        noise = torch.randn(tensor.shape, generator=generator, dtype=tensor.dtype)
        return tensor + self.scale * noise, DpEvent("gaussian", {"noise_multiplier": self.scale})


def test_each_member_keeps_its_own_rules_and_random_numbers() -> None:
    plain, stacked = both()
    for toy in (plain, stacked):
        toy.parties["bob"].outbox.rules["embedding"] = Rule(Noise(0.1))
        toy.parties["cyd"].outbox.rules["test.embedding"] = Rule(Noise(0.2))
        toy.run(3)
        toy.predict()
    assert difference(plain.states(), stacked.states()) <= 1e-9
    for name in NAMES:
        one, other = plain.parties[name], stacked.parties[name]
        assert one.ledger.entries == other.ledger.entries
        assert torch.equal(one.generator.get_state(), other.generator.get_state())
    events = {n: {e.event for e in p.ledger.entries if e.direction == "out"} for n, p in stacked.parties.items()}
    assert events == {"ada": {"non-private"}, "bob": {"gaussian"}, "cyd": {"non-private", "gaussian"}}


@pytest.mark.parametrize("wrap", [None, cohorts], ids=["one by one", "stacked"])
def test_a_member_of_the_drivers_own_organisation_crosses_nothing(wrap: Any) -> None:
    rules = {"embedding": Rule(Noise(0.1))}
    toy = federation(splitnn, *([wrap] if wrap else []), driver="bob", rules=rules)
    toy.run(2)
    own = toy.parties["bob"]
    assert own.ledger is toy.driver.ledger
    with_bob = [e for e in own.ledger.entries if e.peer == "bob"]
    assert {e.direction for e in with_bob} == {"own"}
    assert {e.event for e in with_bob} == {"non-private"}  # inside an organisation no rule applies
    assert {e.direction for e in toy.parties["ada"].ledger.entries} == {"in", "out"}
    assert {e.event for e in own.ledger.entries if e.peer == "ada" and e.direction == "in"} == {"gaussian"}
    assert own.ledger.total("in") == own.ledger.total("in", "ada") + own.ledger.total("in", "cyd") > 0


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


# How requests are joined and replies taken apart


def cohort_of_echoes() -> tuple[dict[str, Echo], Peers, Outbox, Cohorts]:
    parties = echoes()
    (group,) = groups(parties)
    transport = Cohorts(InProcess(parties), [Cohort(group)])
    return parties, *asker(transport), transport


def test_different_plain_fields_are_a_clear_error() -> None:
    _, peers, outbox, _ = cohort_of_echoes()
    by = outbox.release(torch.tensor(1.0), "by")
    with pytest.raises(PartyError, match="were sent different values of plus; run with cohort = 'off'") as caught:
        peers.ask_each({name: Multiply(by, float(k), "train/0/0") for k, name in enumerate(NAMES)})
    assert (caught.value.party, caught.value.request) == ("ada, bob, cyd", "echo.Multiply")
    assert caught.value.batch == "train/0/0"
    replies = peers.ask_each({name: Multiply(by, 1.0) for name in NAMES})
    assert [float(reply.value.tensor[0, 0]) for reply in replies.values()] == [2.0, 3.0, 4.0]


def test_plain_fields_need_be_equal_not_the_same_object() -> None:
    _, peers, outbox, _ = cohort_of_echoes()
    by = outbox.release(torch.tensor(1.0), "by")
    replies = peers.ask_each({name: Multiply(by, float("1.5")) for name in NAMES})
    assert [float(reply.value.tensor[0, 0]) for reply in replies.values()] == [2.5, 3.5, 4.5]
    with pytest.raises(PartyError, match="different values of batch"):
        peers.ask_each({name: Multiply(by, batch=None if name == "bob" else "train/0/0") for name in NAMES})


def test_different_names_inside_a_field_are_a_clear_error() -> None:
    _, peers, outbox, _ = cohort_of_echoes()
    x = outbox.release(torch.ones(6, 4), "x")
    with pytest.raises(PartyError, match="different values of named"):
        peers.ask_each({name: Nest((x,), {name: x}) for name in NAMES})
    with pytest.raises(PartyError, match="different values of listed"):
        peers.ask_each({name: Nest((x,) * (k + 1), {}) for k, name in enumerate(NAMES)})


def test_different_requests_are_a_clear_error() -> None:
    _, peers, _, _ = cohort_of_echoes()
    requests: dict[str, Any] = {"ada": Sleep(0.0), "bob": Introduce(), "cyd": Sleep(0.0)}
    with pytest.raises(PartyError, match="were sent different requests"):
        peers.ask_each(requests)


def test_a_tensor_that_all_share_is_not_copied_for_each() -> None:
    _, _, outbox, transport = cohort_of_echoes()
    by = outbox.release(torch.full((6, 4), 2.0), "by")
    (cohort,) = transport.cohorts
    joined = cohort._join([Multiply(by, 1.0) for _ in NAMES])
    assert isinstance(joined, Multiply)
    assert joined.by is by
    apart = cohort._join([Multiply(outbox.release(torch.ones(6, 4), "by")) for _ in NAMES])
    assert isinstance(apart, Multiply)
    assert apart.by.tensor.shape == (3, 6, 4)


def test_after_a_failure_the_cohort_answers_again() -> None:
    parties, peers, outbox, _ = cohort_of_echoes()
    with pytest.raises(PartyError, match=r"'ada, bob, cyd' .*too small"):
        peers.ask(Break(2.5))
    assert [party.outbox._recipient for party in parties.values()] == [None] * 3
    replies = peers.ask(Multiply(outbox.release(torch.tensor(1.0), "by")))
    assert [float(reply.value.tensor[0, 0]) for reply in replies.values()] == [1.0, 2.0, 3.0]


def test_a_request_that_nobody_serves_is_refused() -> None:
    _, peers, _, _ = cohort_of_echoes()
    with pytest.raises(BoundaryError, match=r"does not serve splitnn\.Embed"):
        peers.ask(splitnn.Embed("train/0/0"))


def test_a_step_begun_as_one_cannot_be_ended_alone_and_says_so() -> None:
    """Between two requests of a step a computation is pending inside; it cannot be handed to a member."""
    toy = federation(splitnn, cohorts)
    replies = toy.peers.ask(splitnn.Embed("train/0/0"))
    gradient: Released = toy.driver.outbox.release(replies["bob"].values.tensor, "gradient", "train/0/0")
    with pytest.raises(PartyError, match="a gradient came for batch train/0/0, but None is pending"):
        toy.peers["bob"].ask(splitnn.Descend("train/0/0", gradient))


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
def test_settling_and_restacking_change_nothing(optimizer: str) -> None:
    one, other = (federation(splitnn, cohorts, config=splitnn.Config(optimizer=optimizer)) for _ in range(2))
    for _ in range(4):
        assert one.run(1) == other.run(1)
        for cohort in other.cohorts():
            before: State = cohort.twin.state()
            cohort.settle()
            cohort.restack()
            assert_bit_equal(before, cohort.twin.state())
    assert_bit_equal(one.states(), other.states())


def test_what_is_loaded_into_the_members_counts_after_restacking() -> None:
    toy, other = (federation(splitnn, cohorts, seed=seed) for seed in (0, 1))
    wanted = other.states()["bob"]
    toy.run(1)
    toy.transport.settle()
    toy.parties["bob"].load_state(wanted | {"optimizer": toy.parties["bob"].state()["optimizer"]})
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

        def make(name: str, left: dict[str, int] = left, one: Remember = one) -> Remember | None:
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


def test_a_cohort_member_can_be_asked_by_two_askers() -> None:
    parties, peers, outbox, transport = cohort_of_echoes()
    others = Peers("other", NAMES, transport, Ledger("other"))
    for somebody in (peers, others):
        somebody.ask(Multiply(outbox.release(torch.tensor(1.0), "by")))
    assert {e.peer for e in parties["ada"].ledger.entries} == {"asker", "other"}
