"""Same-shaped feature owners answered as one: who may join, how requests are joined and
replies taken apart."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.conformance.echo import NAMES, Break, Multiply, Nest, Sleep
from tests.conformance.toy import cohorts, federation
from tests.transport.echo_cohort import cohort_of_echoes
from tests.transport.one_by_one import only
from torch import Tensor, nn

from colonnade.algorithms import embedding, splitnn, vimadmm
from colonnade.core import Batches, Ledger, Organisation, Peers, Released
from colonnade.core.message import Ping, Pong
from colonnade.core.roles import FeatureOwner, Introduce
from colonnade.core.wire import Envelope
from colonnade.errors import BoundaryError, PartyError
from colonnade.models import build
from colonnade.transport import groups, worth_stacking
from colonnade.transport.cohort import STACKING_PAYS

# Who may join


class Scaled(nn.Module):
    """Its factor is a setting that shows neither in its parameters nor in its repr."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 3)
        self.factor = factor

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
) -> embedding.DescendingFeatureOwner:
    module = model or build(
        {"name": "mlp", "hidden": [5], "width": 3},
        (columns,),
        seed=len(name),
        owner=name,
    )
    features = torch.zeros(8, columns, dtype=dtype)
    return embedding.DescendingFeatureOwner(
        Organisation.at(name, batches(seed), device=device),
        features,
        module.to(dtype),
        config or splitnn.Config(),
    )


def chain(*layers: nn.Module) -> nn.Module:
    return nn.Sequential(*layers)


OTHERS: dict[str, Callable[[], embedding.DescendingFeatureOwner]] = {
    "other columns": lambda: owner("x", columns=5),
    "other width": lambda: owner(
        "x", chain(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 2), nn.ReLU())
    ),
    "other activation": lambda: owner(
        "x", chain(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3), nn.ReLU())
    ),
    "other slope": lambda: owner(
        "x", chain(nn.Linear(4, 5), nn.LeakyReLU(0.3), nn.Linear(5, 3), nn.ReLU())
    ),
    "no bias": lambda: owner(
        "x", chain(nn.Linear(4, 5, bias=False), nn.ReLU(), nn.Linear(5, 3), nn.ReLU())
    ),
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
    parties = {
        name: owner(name, Scaled(factor))
        for name, factor in (("a", 1.0), ("b", 2.0), ("c", 1.0))
    }
    assert [list(group) for group in groups(parties)] == [["a", "c"]]


def test_another_algorithm_makes_a_difference() -> None:
    a = owner("a")
    b = vimadmm.FeatureOwner(
        Organisation.at("b", batches()), torch.zeros(8, 4), a.model, vimadmm.Config()
    )
    assert groups({"a": a, "b": b}) == []


def test_one_alone_is_no_group_and_label_owners_are_never_in_one() -> None:
    leader = splitnn.LabelOwner(
        Organisation.at("l", batches()), torch.zeros(8), None, splitnn.Config()
    )
    assert groups({"a": owner("a"), "l": leader}) == []
    assert groups({}) == []


def test_several_groups_keep_the_order_of_the_parties() -> None:
    parties = {
        name: owner(name, columns=columns)
        for name, columns in (("a", 4), ("x", 5), ("b", 4), ("y", 5), ("z", 6))
    }
    assert [list(group) for group in groups(parties)] == [["a", "b"], ["x", "y"]]


def test_where_every_step_needs_the_interpreter_chains_are_stacked_however_large() -> (
    None
):
    """Anything else while a party has little to do: a convolution's stack is slower
    than one after the other."""
    for model, large in ((None, True), (Scaled(1.0), False)):
        parties = {name: owner(name, model) for name in ("a", "b", "c")}
        mode = parties["a"].model.training
        assert worth_stacking(parties, 1)
        assert worth_stacking(parties, 10_000_000) is large
        assert parties["a"].model.training is mode


@pytest.mark.parametrize("steps", [2, 20])
def test_many_steps_at_once_are_stacked_while_they_are_little_work(steps: int) -> None:
    """It depends on the work of one party, not on how many there are; ten times the
    steps are ten times the work."""
    # operations of a row in 4-5-3
    rows = STACKING_PAYS // (3 * steps * 2 * (4 * 5 + 5 * 3))
    for names in ("ab", "abcdefgh"):
        parties: dict[str, FeatureOwner] = {
            name: vimadmm.FeatureOwner(
                Organisation.at(name, batches()),
                torch.zeros(8, 4),
                owner(name).model,
                vimadmm.Config(local_steps=steps),
            )
            for name in names
        }
        assert worth_stacking(parties, rows)
        assert not worth_stacking(parties, rows + 1)


# How requests are joined and replies taken apart


def test_different_plain_fields_are_a_clear_error() -> None:
    _, peers, outbox, _ = cohort_of_echoes()
    by = outbox.release(torch.tensor(1.0), "by")
    with pytest.raises(
        PartyError, match="were sent different values of plus; run with cohort = 'off'"
    ) as caught:
        peers.ask_each(
            {name: Multiply(by, float(k), "train/0/0") for k, name in enumerate(NAMES)}
        )
    assert (caught.value.party, caught.value.request) == (
        "ada, bob, cyd",
        "echo.Multiply",
    )
    assert caught.value.batch == "train/0/0"
    replies = peers.ask_each({name: Multiply(by, 1.0) for name in NAMES})
    assert [float(reply.value.tensor[0, 0]) for reply in replies.values()] == [
        2.0,
        3.0,
        4.0,
    ]


def test_a_failure_of_all_says_that_they_were_answered_as_one() -> None:
    """Whoever wrote a method for one party alone sees a shape that it does not know."""
    _, peers, outbox, _ = cohort_of_echoes()
    wide = outbox.release(torch.ones(7, 7, 7), "by")
    with pytest.raises(
        PartyError,
        match=(
            r"'ada, bob, cyd' .* as one; cohort = \"off\" under \[federation\] asks"
            r" each"
        ),
    ):
        peers.ask_each(dict.fromkeys(NAMES, Multiply(wide)))


def test_plain_fields_need_be_equal_not_the_same_object() -> None:
    _, peers, outbox, _ = cohort_of_echoes()
    by = outbox.release(torch.tensor(1.0), "by")
    replies = peers.ask_each({name: Multiply(by, float("1.5")) for name in NAMES})
    assert [float(reply.value.tensor[0, 0]) for reply in replies.values()] == [
        2.5,
        3.5,
        4.5,
    ]
    with pytest.raises(PartyError, match="different values of batch"):
        peers.ask_each(
            {
                name: Multiply(by, batch=None if name == "bob" else "train/0/0")
                for name in NAMES
            }
        )


def test_different_names_inside_a_field_are_a_clear_error() -> None:
    _, peers, outbox, _ = cohort_of_echoes()
    x = outbox.release(torch.ones(6, 4), "x")
    with pytest.raises(PartyError, match="different values of named"):
        peers.ask_each({name: Nest((x,), {name: x}) for name in NAMES})
    with pytest.raises(PartyError, match="different values of listed"):
        peers.ask_each({name: Nest((x,) * (k + 1), {}) for k, name in enumerate(NAMES)})


def test_different_requests_are_a_clear_error() -> None:
    _, peers, _, _ = cohort_of_echoes()
    requests: dict[str, Any] = {
        "ada": Sleep(0.0),
        "bob": Introduce(),
        "cyd": Sleep(0.0),
    }
    with pytest.raises(PartyError, match="were sent different requests"):
        peers.ask_each(requests)


def test_a_tensor_that_all_share_is_not_copied_for_each() -> None:
    _, _, outbox, transport = cohort_of_echoes()
    by = outbox.release(torch.full((6, 4), 2.0), "by")
    (cohort,) = transport.cohorts
    joined = cohort._join([Multiply(by, 1.0) for _ in NAMES])
    assert isinstance(joined, Multiply)
    assert joined.by is by
    apart = cohort._join(
        [Multiply(outbox.release(torch.ones(6, 4), "by")) for _ in NAMES]
    )
    assert isinstance(apart, Multiply)
    assert apart.by.tensor.shape == (3, 6, 4)


def test_after_a_failure_the_cohort_answers_again() -> None:
    _, peers, outbox, _ = cohort_of_echoes()
    with pytest.raises(PartyError, match=r"'ada, bob, cyd' .*too small"):
        peers.ask(Break(2.5))
    replies = peers.ask(Multiply(outbox.release(torch.tensor(1.0), "by")))
    assert [float(reply.value.tensor[0, 0]) for reply in replies.values()] == [
        1.0,
        2.0,
        3.0,
    ]


def test_a_request_that_nobody_serves_is_refused() -> None:
    _, peers, _, _ = cohort_of_echoes()
    with pytest.raises(BoundaryError, match=r"does not serve embedding\.Embed"):
        peers.ask(embedding.Embed("train/0/0"))


def test_a_step_begun_as_one_cannot_be_ended_alone_and_says_so() -> None:
    """Between two requests of a step a computation is pending inside; it cannot be
    handed to a member."""
    toy = federation(splitnn.ALGORITHM, cohorts)
    replies = toy.peers.ask(embedding.Embed("train/0/0"))
    gradient: Released = toy.driver.outbox.release(
        replies["bob"].values.tensor, "gradient", "train/0/0"
    )
    with pytest.raises(
        PartyError, match="a gradient came for batch train/0/0, but None is pending"
    ):
        toy.peers["bob"].ask(embedding.Descend("train/0/0", gradient))


def test_a_cohort_member_can_be_asked_by_two_askers() -> None:
    parties, peers, outbox, transport = cohort_of_echoes()
    others = Peers("other", NAMES, transport, Ledger("other"))
    for somebody in (peers, others):
        somebody.ask(Multiply(outbox.release(torch.tensor(1.0), "by")))
    assert {e.peer for e in parties["ada"].ledger.entries} == {"asker", "other"}


# A cohort's calls pass the checks that single ones pass


def test_who_may_not_ask_a_member_may_not_ask_the_cohort() -> None:
    parties, peers, outbox, transport = cohort_of_echoes()
    parties["bob"].serves_for = {"asker"}
    parties["cyd"].reserved = {Multiply: {"asker"}}
    times = Multiply(outbox.release(torch.tensor(1.0), "by"))
    stranger = Peers("stranger", NAMES, transport, Ledger("stranger"))
    for refuses in ("bob", "cyd"):
        with pytest.raises(
            BoundaryError,
            match=f"'{refuses}' does not answer echo.Multiply of 'stranger'",
        ):
            stranger.ask(times)
        parties["bob"].serves_for = None
    assert not any(
        party.ledger.entries or party.outbox.released for party in parties.values()
    )
    assert peers.ask(times).keys() == set(NAMES)


def test_a_cohort_answers_a_repeated_call_from_memory_and_refuses_an_old_one() -> None:
    parties, _, outbox, transport = cohort_of_echoes()
    requests = [Multiply(outbox.release(torch.tensor(by), "by")) for by in (1.0, 2.0)]
    calls: list[Any] = [
        [Envelope("asker", 7 + n, request, name) for name in NAMES]
        for n, request in enumerate(requests)
    ]
    transport.exchange(calls[0])
    replies = transport.exchange(calls[1])
    written = [list(party.ledger.entries) for party in parties.values()]
    repeated = transport.exchange(calls[1])
    assert all(again is reply for again, reply in zip(repeated, replies, strict=True))
    with pytest.raises(
        BoundaryError, match="'ada' refuses a call of 'asker' that is older"
    ):
        transport.exchange(calls[0])
    assert [party.ledger.entries for party in parties.values()] == written


def test_a_call_that_one_member_has_answered_is_repeated_to_it_alone() -> None:
    """Bob was reached before the network failed: he answers as he did, the others for
    the first time."""
    parties, _, outbox, transport = cohort_of_echoes()
    request = Multiply(outbox.release(torch.tensor(1.0), "by"))
    calls = [Envelope("asker", 7, request, name) for name in NAMES]
    first = only(transport, calls[NAMES.index("bob")])
    replies: list[Any] = transport.exchange(calls)
    assert replies[NAMES.index("bob")] is first
    assert [float(reply.value.tensor[0, 0]) for reply in replies] == [
        1.0,
        2.0,
        3.0,
    ]
    assert [party.outbox.released for party in parties.values()] == [1, 1, 1]


def test_a_sign_of_life_of_a_whole_cohort_is_no_call() -> None:
    parties, peers, _, _ = cohort_of_echoes()
    assert set(peers.ask(Ping()).values()) == {Pong()}
    assert not any(party._answered for party in parties.values())
