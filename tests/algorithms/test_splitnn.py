"""SplitNN is centralized training of the joined model, step for step."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from tests.algorithms.reference import (
    Joined,
    assert_alike,
    centralized,
    columns,
    optimizer_of,
)
from tests.conformance.toy import TASKS, Task, cohorts, federation
from torch import Tensor, nn

from colonnade.algorithms import embedding, splitnn
from colonnade.errors import PartyError

STEPS = 8


class Concatenated(nn.Module):
    """g([h_1 .. h_M])."""

    def __init__(self, head: nn.Module) -> None:
        super().__init__()
        self.head = copy.deepcopy(head)

    def forward(self, h: list[Tensor]) -> Tensor:
        result: Tensor = self.head(torch.cat(h, dim=-1))
        return result


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize(
    "config",
    [
        splitnn.Config(learning_rate=0.1, momentum=0.0),
        splitnn.Config(learning_rate=0.05, momentum=0.9, weight_decay=0.01),
        splitnn.Config(optimizer="adam", learning_rate=0.01),
        splitnn.Config(
            optimizer="adam",
            learning_rate=0.01,
            momentum=0.5,
            weight_decay=0.01,
            head_hidden=6,
        ),
    ],
    ids=["sgd", "momentum and decay", "adam", "adam, deep head"],
)
@pytest.mark.parametrize("stacked", [False, True], ids=["one by one", "stacked"])
def test_it_is_centralized_training_of_the_joined_model(
    task: Task, config: splitnn.Config, stacked: bool
) -> None:
    wrap: Any = (cohorts,) if stacked else ()
    toy = federation(
        splitnn.ALGORITHM,
        *wrap,
        columns=(4, 4, 3),
        task=task,
        dtype=torch.float64,
        config=config,
    )
    model = Joined(toy, Concatenated(toy.driver.model))
    losses = list(
        centralized(toy, model, [optimizer_of(model.parameters(), config)], STEPS)
    )
    assert toy.run(STEPS) == pytest.approx(losses, rel=1e-6)
    toy.states()  # a cohort hands its state back
    assert_alike(Joined(toy, Concatenated(toy.driver.model)), model, 1e-6)
    assert torch.allclose(
        toy.predict(), model(columns(toy, "test[0:60]")), rtol=1e-6, atol=1e-9
    )


def test_the_gradient_a_party_gets_is_that_of_the_mean_loss() -> None:
    toy = federation(splitnn.ALGORITHM, dtype=torch.float64)
    h = {
        k: torch.randn(32, 8, dtype=torch.float64, generator=toy.driver.generator)
        for k in toy.parties
    }
    model = copy.deepcopy(toy.driver.model)
    _, gradients = toy.driver.learn(
        {k: h_k.clone() for k, h_k in h.items()}, "train/0/0"
    )
    leaves = {k: h_k.clone().requires_grad_() for k, h_k in h.items()}
    loss = toy.driver.loss(
        model(torch.cat(list(leaves.values()), dim=-1)), toy.driver.y("train/0/0")
    )
    torch.autograd.backward(loss)
    assert list(gradients) == list(toy.parties)
    for k, leaf in leaves.items():
        assert leaf.grad is not None
        assert torch.allclose(gradients[k], leaf.grad, rtol=1e-12)


def test_embeddings_up_and_gradients_down_are_all_that_crosses() -> None:
    toy = federation(splitnn.ALGORITHM)
    toy.run(2)
    entries = toy.parties["ada"].ledger.entries
    assert [(e.direction, e.message, e.name, e.batch) for e in entries] == [
        (way, message, name, batch)
        for batch in ("train/0/0", "train/0/1")
        for way, message, name in (
            ("out", "embedding.Embedding", "embedding"),
            ("in", "embedding.Descend", "gradient"),
        )
    ]
    assert {e.bytes for e in entries} == {32 * 8 * 4}


@pytest.mark.parametrize("pending", [None, "train/0/1"])
def test_a_gradient_for_a_batch_that_is_not_pending_is_refused(
    pending: str | None,
) -> None:
    toy = federation(splitnn.ALGORITHM)
    if pending:
        toy.peers["ada"].ask(embedding.Embed(pending))
    before = toy.states()["ada"]["model"]["0.weight"]
    gradient = toy.driver.outbox.release(torch.zeros(32, 8), "gradient", "train/0/0")
    with pytest.raises(
        PartyError,
        match=f"a gradient came for batch train/0/0, but {pending} is pending",
    ):
        toy.peers["ada"].ask(embedding.Descend("train/0/0", gradient))
    assert torch.equal(before, toy.states()["ada"]["model"]["0.weight"])


def test_a_gradient_is_used_once() -> None:
    toy = federation(splitnn.ALGORITHM)
    toy.peers["ada"].ask(embedding.Embed("train/0/0"))
    gradient = toy.driver.outbox.release(torch.zeros(32, 8), "gradient", "train/0/0")
    toy.peers["ada"].ask(embedding.Descend("train/0/0", gradient))
    with pytest.raises(PartyError, match="but None is pending"):
        toy.peers["ada"].ask(embedding.Descend("train/0/0", gradient))


def test_a_prediction_in_the_middle_of_a_step_does_not_disturb_it() -> None:
    plain = federation(splitnn.ALGORITHM)
    disturbed = federation(splitnn.ALGORITHM)
    gradient = plain.driver.outbox.release(torch.ones(32, 8), "gradient", "train/0/0")
    for toy in (plain, disturbed):
        toy.peers["ada"].ask(embedding.Embed("train/0/0"))
        if toy is disturbed:
            toy.predict()
        toy.peers["ada"].ask(embedding.Descend("train/0/0", gradient))
    for name, tensor in plain.states()["ada"]["model"].items():
        assert torch.equal(tensor, disturbed.states()["ada"]["model"][name])


@pytest.mark.parametrize("hidden", [0, 6])
def test_the_head_has_the_width_of_all_embeddings_and_its_own_seed(hidden: int) -> None:
    heads = [embedding.head(24, 3, hidden, seed).state_dict() for seed in (1, 1, 2)]
    first = next(iter(heads[0]))
    assert heads[0][first].shape == (hidden or 3, 24)
    assert len(heads[0]) == (4 if hidden else 2)
    assert torch.equal(heads[0][first], heads[1][first])
    assert not torch.equal(heads[0][first], heads[2][first])
