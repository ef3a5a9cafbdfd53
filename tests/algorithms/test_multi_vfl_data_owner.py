"""A data owner answers label owners alone, each with its own copy and batches, and
rounds come in order; a copy's round begins from given weights, with nothing remembered.
"""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from tests.algorithms.several import Several, made
from torch import nn
from torch.nn.functional import cross_entropy

from colonnade.algorithms import multi_vfl
from colonnade.algorithms.embedding import make_optimizer
from colonnade.algorithms.multi_vfl_data_owner import (
    Copy,
    flat,
    load,
    refuse_unaveraged,
    take,
)
from colonnade.core import Peers, roles
from colonnade.errors import BoundaryError, ConfigError, PartyError
from colonnade.models import build, seeded
from colonnade.transport.cohort import Stacked


def ask(toy: Several, sender: str, request: Any, to: str = "heart") -> Any:
    peers = Peers(
        sender,
        list(toy.data_owners),
        toy.label_owners["abel"].peers.transport,
        toy.server.ledger,
    )
    return peers[to].ask(request)


def test_a_data_owner_answers_the_federation_s_label_owners_alone() -> None:
    toy = made()
    for sender in ("server", "stranger", "lung"):
        with pytest.raises(
            BoundaryError, match=f"'heart' does not answer .* of '{sender}'"
        ):
            ask(toy, sender, multi_vfl.Embed("abel:test[0:5]"))


def test_a_label_owner_gets_its_own_batches_alone() -> None:
    toy = made()
    with pytest.raises(
        PartyError, match="the batch bea:test\\[0:5\\] is not one of 'abel'"
    ):
        ask(toy, "abel", multi_vfl.Embed("bea:test[0:5]"))
    with pytest.raises(
        PartyError, match="No agreed batch is called 'abel:test\\[0:99\\]'"
    ):
        ask(toy, "abel", multi_vfl.Embed("abel:test[0:99]"))
    with pytest.raises(PartyError, match="came before a round was opened"):
        ask(toy, "abel", multi_vfl.Embed("abel:train/0/0"))


def test_a_gradient_for_another_batch_is_refused() -> None:
    toy = made()
    ask(toy, "abel", multi_vfl.Open(0))
    ask(toy, "abel", multi_vfl.Embed("abel:train/0/0"))
    ask(toy, "bea", multi_vfl.Open(0))
    gradient = toy.label_owners["abel"].outbox.release(
        torch.zeros(8, 4, dtype=torch.float64), "gradient"
    )
    with pytest.raises(
        PartyError, match="for batch abel:train/0/1, but abel:train/0/0 is pending"
    ):
        ask(toy, "abel", multi_vfl.Descend("abel:train/0/1", gradient))
    with pytest.raises(
        PartyError, match="for batch abel:train/0/0, but None is pending"
    ):
        ask(toy, "bea", multi_vfl.Descend("abel:train/0/0", gradient))
    narrow = toy.label_owners["abel"].outbox.release(
        torch.zeros(8, 3, dtype=torch.float64), "gradient"
    )
    with pytest.raises(
        PartyError, match=r"a gradient of shape \[8, 3\] came for one of \[8, 4\]"
    ):
        ask(toy, "abel", multi_vfl.Descend("abel:train/0/0", narrow))
    ask(toy, "abel", multi_vfl.Descend("abel:train/0/0", gradient))


def test_rounds_come_in_order_and_everybody_says_the_same() -> None:
    toy = made()
    for request, why in (
        (multi_vfl.Open(1), "round 1 was opened, and 0 are averaged"),
        (multi_vfl.Average(2, ("abel",)), "round 2 is over, and 0 here"),
        (multi_vfl.Average(1, ("abel", "eve")), "'eve'"),
        (multi_vfl.Average(1, ()), "nobody"),
    ):
        with pytest.raises(PartyError, match=why):
            ask(toy, "abel", request)
    ask(toy, "abel", multi_vfl.Average(1, ("abel", "bea")))
    ask(toy, "carl", multi_vfl.Average(1, ("abel", "bea")))
    with pytest.raises(PartyError, match="others say"):
        ask(toy, "carl", multi_vfl.Average(1, ("abel",)))


def test_copies_are_kept_apart() -> None:
    toy = made()
    heart = toy.data_owners["heart"]
    for k in ("abel", "bea"):
        ask(toy, k, multi_vfl.Open(0))
        ask(toy, k, multi_vfl.Embed(f"{k}:train/0/0"))
    gradient = toy.label_owners["abel"].outbox.release(
        torch.ones(8, 4, dtype=torch.float64), "gradient"
    )
    ask(toy, "abel", multi_vfl.Descend("abel:train/0/0", gradient))
    weights = {k: next(mine.model.parameters()) for k, mine in heart.copies.items()}
    assert not torch.equal(weights["abel"], weights["bea"])
    assert torch.equal(weights["bea"], next(heart.model.parameters()))
    assert heart.copies["bea"].pending == "bea:train/0/0"


def test_it_introduces_itself_to_each_by_what_they_share() -> None:
    toy = made()
    cards = {k: ask(toy, k, roles.Introduce()) for k in ("abel", "bea")}
    assert cards["abel"].shape == (4,)
    assert (cards["abel"].rows, cards["bea"].rows) == (60, 76)
    assert cards["abel"].agreed != cards["bea"].agreed


def test_statistics_that_cannot_be_averaged_are_refused() -> None:
    toy = made()
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    heart = toy.data_owners["heart"]
    abel = toy.label_owners["abel"]
    with pytest.raises(
        ConfigError, match=r"'heart' .*Use GroupNorm or LayerNorm instead of BatchNorm"
    ):
        multi_vfl.DataOwner(
            heart.organisation,
            heart.features.float(),
            model,
            heart.config,
            heart.agreed,
        )
    abel.build = lambda _: model
    cards = abel.peers.ask(roles.Introduce())
    with pytest.raises(
        ConfigError, match=r"'abel' .*Use GroupNorm or LayerNorm instead of BatchNorm"
    ):
        abel.meet(cards)


# A copy


def model(seed: int = 0) -> nn.Module:
    return build(
        {"name": "mlp", "hidden": [3], "width": 2}, (4,), seed=seed, owner="x"
    ).double()


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_a_round_remembers_nothing_of_the_one_before(optimizer: Any) -> None:
    """Bit for bit what a fresh optimizer does."""
    config = multi_vfl.Config(optimizer=optimizer, learning_rate=0.1, weight_decay=0.01)
    source = model()
    x = torch.randn(6, 4).double()
    y = torch.tensor([0, 1, 0, 1, 1, 0])
    used = Copy(source, config)
    for _ in range(2):
        used.restart(source)
        fresh = copy.deepcopy(source)
        steps = make_optimizer(fresh.parameters(), config)
        for _ in range(3):
            used.learn([x], y, cross_entropy, -1)
            steps.zero_grad()
            torch.autograd.backward(cross_entropy(fresh(x), y))
            steps.step()
    for a, b in zip(used.model.parameters(), fresh.parameters(), strict=True):
        assert torch.equal(a, b)


def test_a_copy_is_its_own_and_shares_the_party_s_generator() -> None:
    generator = torch.Generator().manual_seed(0)
    source = seeded(
        nn.Sequential(nn.Linear(4, 2), nn.Dropout(0.5)), generator, owner="x"
    )
    one = Copy(source, multi_vfl.Config(), generator)
    assert one.model is not source
    assert vars(one.model.get_submodule("1"))["generator"] is generator
    before = flat(source)
    one.restart(source)
    one.embed(torch.ones(3, 4), "a:train/0/0", lambda h: h)
    one.descend(torch.ones(3, 2))
    assert torch.equal(flat(source), before)
    assert not torch.equal(flat(one.model), before)


def test_what_is_pending_ends_with_the_round() -> None:
    one = Copy(model(), multi_vfl.Config())
    assert not one.open
    one.restart(model())
    one.embed(torch.ones(2, 4).double(), "a:train/0/0", lambda h: h)
    assert (one.open, one.pending, one.shape) == (True, "a:train/0/0", (2, 2))
    one.stop()
    assert (one.open, one.pending) == (False, None)


def test_one_vector_and_back() -> None:
    one = model(0)
    other = model(1)
    vector = flat(one)
    assert vector.shape == (4 * 3 + 3 + 3 * 2 + 2,)
    load(other, vector)
    assert all(map(torch.equal, one.parameters(), other.parameters()))
    assert torch.equal(flat(Stacked([one, other]), one), torch.stack([vector, vector]))
    other.get_parameter("0.weight").data.add_(1)
    assert torch.equal(flat(one), vector)
    with pytest.raises(
        ConfigError,
        match=(
            "Weights for 23 parameters were expected; found a tensor of shape \\[22\\]"
        ),
    ):
        load(one, vector[1:])


@pytest.mark.parametrize(
    ("bad", "rule"),
    [
        (nn.BatchNorm1d(3), "GroupNorm"),
        (nn.ReLU(), "found no parameters"),
        (
            nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2).double()),
            "one floating-point type; found torch",
        ),
    ],
    ids=["statistics", "nothing", "two types"],
)
def test_what_cannot_be_averaged_is_refused(bad: nn.Module, rule: str) -> None:
    refuse_unaveraged(model(), "heart")
    with pytest.raises(ConfigError, match=rf"'heart' .*{rule}"):
        refuse_unaveraged(bad, "heart")


def test_rows_of_a_table_keep_the_axes_of_their_numbers() -> None:
    table = torch.arange(12.0).view(4, 3)
    assert torch.equal(take(table, torch.tensor([2, 0])), table[[2, 0]])
    assert torch.equal(
        take(table, torch.tensor([[2], [0]])), torch.stack([table[[2]], table[[0]]])
    )
