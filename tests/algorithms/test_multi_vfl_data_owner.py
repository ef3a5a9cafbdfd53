"""A data owner answers label owners alone, each with its own copy and batches, and rounds come in order."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.algorithms.several import Several, made
from torch import nn

from colonnade.algorithms import multi_vfl
from colonnade.core import Peers
from colonnade.errors import BoundaryError, ConfigError, PartyError


def ask(toy: Several, sender: str, request: Any, to: str = "heart") -> Any:
    peers = Peers(sender, list(toy.data_owners), toy.label_owners["abel"].peers.transport, toy.server.ledger)
    return peers[to].ask(request)


def test_a_data_owner_answers_the_federation_s_label_owners_alone() -> None:
    toy = made()
    for sender in ("server", "stranger", "lung"):
        with pytest.raises(BoundaryError, match=f"'heart' does not answer .* of '{sender}'"):
            ask(toy, sender, multi_vfl.Embed("abel:test[0:5]"))


def test_a_label_owner_gets_its_own_batches_alone() -> None:
    toy = made()
    with pytest.raises(PartyError, match="the batch bea:test\\[0:5\\] is not one of 'abel'"):
        ask(toy, "abel", multi_vfl.Embed("bea:test[0:5]"))
    with pytest.raises(PartyError, match="No agreed batch is called 'abel:test\\[0:99\\]'"):
        ask(toy, "abel", multi_vfl.Embed("abel:test[0:99]"))
    with pytest.raises(PartyError, match="came before a round was opened"):
        ask(toy, "abel", multi_vfl.Embed("abel:train/0/0"))


def test_a_gradient_for_another_batch_is_refused() -> None:
    toy = made()
    ask(toy, "abel", multi_vfl.Open(0))
    ask(toy, "abel", multi_vfl.Embed("abel:train/0/0"))
    ask(toy, "bea", multi_vfl.Open(0))
    gradient = toy.label_owners["abel"].outbox.release(torch.zeros(8, 4, dtype=torch.float64), "gradient")
    with pytest.raises(PartyError, match="for batch abel:train/0/1, but abel:train/0/0 is pending"):
        ask(toy, "abel", multi_vfl.Descend("abel:train/0/1", gradient))
    with pytest.raises(PartyError, match="for batch abel:train/0/0, but None is pending"):
        ask(toy, "bea", multi_vfl.Descend("abel:train/0/0", gradient))
    narrow = toy.label_owners["abel"].outbox.release(torch.zeros(8, 3, dtype=torch.float64), "gradient")
    with pytest.raises(PartyError, match=r"a gradient of shape \[8, 3\] came for rows of \[4\]"):
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
    gradient = toy.label_owners["abel"].outbox.release(torch.ones(8, 4, dtype=torch.float64), "gradient")
    ask(toy, "abel", multi_vfl.Descend("abel:train/0/0", gradient))
    weights = {k: next(copy.model.parameters()) for k, copy in heart.copies.items()}
    assert not torch.equal(weights["abel"], weights["bea"])
    assert torch.equal(weights["bea"], next(heart.model.parameters()))
    assert heart.copies["bea"].pending == "bea:train/0/0"


def test_it_introduces_itself_to_each_by_what_they_share() -> None:
    toy = made()
    cards = {k: ask(toy, k, multi_vfl.Introduce()) for k in ("abel", "bea")}
    assert cards["abel"].shape == (4,)
    assert (cards["abel"].rows, cards["bea"].rows) == (60, 76)
    assert cards["abel"].agreed != cards["bea"].agreed


def test_statistics_that_cannot_be_averaged_are_refused() -> None:
    toy = made()
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    heart, abel = toy.data_owners["heart"], toy.label_owners["abel"]
    with pytest.raises(ConfigError, match=r"'heart' .*Use GroupNorm or LayerNorm instead of BatchNorm"):
        multi_vfl.DataOwner(heart.seat, heart.features.float(), model, heart.config, heart.agreed)
    abel.build = lambda _: model
    cards = abel.peers.ask(multi_vfl.Introduce())
    with pytest.raises(ConfigError, match=r"'abel' .*Use GroupNorm or LayerNorm instead of BatchNorm"):
        abel.meet(cards)
