"""VIMSGD against a plain reading of the paper: Algorithm 2 and Equations 12 to 16, by
autograd."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from tests.algorithms.reference import (
    assert_alike,
    batch_name,
    columns,
    mean_loss,
    optimizer_of,
    relative,
    traffic_at_mnist_sizes,
)
from tests.conformance.toy import TASKS, Task, Toy, federation
from torch import Tensor, nn

from colonnade.algorithms import vimsgd

STEPS = 8


def gradient(value: Tensor, leaf: Tensor) -> Tensor:
    (found,) = torch.autograd.grad(value, leaf, retain_graph=True)
    return found


class Paper:
    """All parties' variables in one place, each equation as printed; losses are means
    over the batch, and R(W) is
    ||W||^2 / 2."""

    def __init__(self, toy: Toy) -> None:
        self.toy = toy
        self.config = toy.driver.config
        self.models = [copy.deepcopy(party.model) for party in toy.parties.values()]
        self.optimizers = [
            optimizer_of(model.parameters(), self.config) for model in self.models
        ]
        self.W = [
            W_k.clone()
            for W_k in torch.split(toy.driver.heads, list(toy.driver.widths.values()))
        ]
        self.of_heads = [optimizer_of([W_k], self.config) for W_k in self.W]

    def round(self, batch: str) -> float:
        eta = self.config.learning_rate
        beta = self.config.weight_decay
        x = columns(self.toy, batch)
        h = [model(x_k) for model, x_k in zip(self.models, x, strict=True)]
        sent = [h_k.detach().requires_grad_() for h_k in h]
        W = [W_k.clone().requires_grad_() for W_k in self.W]
        before = self.loss(sent, W, batch)
        objectives = [before + beta / 2 * W_k.square().sum() for W_k in W]  # Eq. 13
        if self.config.optimizer == "sgd":
            self.W = [
                (W_k - eta * gradient(objective, W_k)).detach()
                for W_k, objective in zip(W, objectives, strict=True)
            ]  # Eq. 12
        else:  # whose weight decay is beta R(W)
            for mine, W_k, optimizer in zip(self.W, W, self.of_heads, strict=True):
                mine.grad = gradient(before, W_k)
                optimizer.step()
        after = self.loss(
            sent, self.W if self.config.gradient_heads == "new" else W, batch
        )
        for h_k, sent_k, optimizer in zip(h, sent, self.optimizers, strict=True):
            optimizer.zero_grad()
            torch.autograd.backward(h_k, gradient(after, sent_k))  # Eq. 14 and 16
            optimizer.step()  # Eq. 15; the optimizer's weight decay is beta R(theta)
        return before.item()

    def loss(self, h: list[Tensor], W: list[Tensor], batch: str) -> Tensor:
        logits = torch.stack([h_k @ W_k for h_k, W_k in zip(h, W, strict=True)]).sum(0)
        return mean_loss(self.toy, logits, batch)


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize(
    "config",
    [
        vimsgd.Config(learning_rate=0.1, momentum=0.0, weight_decay=0.0),
        vimsgd.Config(learning_rate=0.05, momentum=0.9, weight_decay=0.01),
        vimsgd.Config(
            learning_rate=0.05, momentum=0.9, weight_decay=0.01, gradient_heads="new"
        ),
        vimsgd.Config(
            optimizer="adam", learning_rate=0.01, momentum=0.8, weight_decay=0.01
        ),
    ],
    ids=["sgd", "momentum and decay", "new heads", "adam"],
)
@pytest.mark.parametrize(
    "widths", [(4, 4, 3), (6,)], ids=["three parties", "one party"]
)
def test_it_computes_what_the_paper_says(
    task: Task, config: vimsgd.Config, widths: tuple[int, ...]
) -> None:
    toy = federation(
        vimsgd.ALGORITHM, columns=widths, task=task, dtype=torch.float64, config=config
    )
    paper = Paper(toy)
    for step in range(STEPS):
        loss = paper.round(batch_name(toy, step))
        assert toy.run(1) == pytest.approx([loss], rel=1e-9)
        assert relative(toy.driver.heads, torch.cat(paper.W)) <= 1e-9
        for party, model in zip(toy.parties.values(), paper.models, strict=True):
            assert_alike(party.model, model, 1e-9)
    h = [
        model(x_k)
        for model, x_k in zip(paper.models, columns(toy, "test[0:60]"), strict=True)
    ]
    expected = torch.stack(
        [h_k @ W_k for h_k, W_k in zip(h, paper.W, strict=True)]
    ).sum(0)
    assert torch.allclose(toy.predict(), expected, rtol=1e-9, atol=1e-12)


def test_parties_of_different_widths_have_heads_of_their_own() -> None:
    wider = {
        "bob": lambda model: nn.Sequential(model, nn.Linear(8, 5, dtype=torch.float64))
    }
    toy = federation(vimsgd.ALGORITHM, dtype=torch.float64, wrap_model=wider)
    paper = Paper(toy)
    assert [tuple(W_k.shape) for W_k in paper.W] == [(8, 3), (5, 3), (8, 3)]
    for step in range(3):
        paper.round(batch_name(toy, step))
    toy.run(3)
    assert relative(toy.driver.heads, torch.cat(paper.W)) <= 1e-9


@pytest.mark.parametrize(("chosen", "other"), [("old", "new"), ("new", "old")])
def test_the_gradients_for_the_parties_are_taken_at_the_chosen_heads(
    chosen: Any, other: str
) -> None:
    """The old ones as centralized training would, or the new ones as Eq. 14."""
    toy = federation(
        vimsgd.ALGORITHM,
        dtype=torch.float64,
        config=vimsgd.Config(gradient_heads=chosen),
    )
    old = toy.driver.heads.clone()
    h = {
        k: torch.rand(32, 8, dtype=torch.float64, generator=toy.driver.generator)
        for k in toy.parties
    }
    H = torch.cat(list(h.values()), dim=-1)
    y = nn.functional.one_hot(toy.driver.y("train/0/0"), 3)
    _, gradients = toy.driver.learn(h, "train/0/0")
    new = toy.driver.heads
    assert list(gradients) == list(toy.parties)
    at = {
        name: ((H @ W).softmax(-1) - y) / 32 @ W.T
        for name, W in (("old", old), ("new", new))
    }
    found = torch.cat(list(gradients.values()), dim=-1)
    assert relative(found, at[chosen]) <= 1e-12
    assert relative(found, at[other]) > 1e-3


def test_a_batchs_gradient_has_fewer_directions_than_classes() -> None:
    """Three classes, and softmax's slopes add up to zero: rank 2 of 8."""
    toy = federation(vimsgd.ALGORITHM, dtype=torch.float64)
    h = {
        k: torch.rand(32, 8, dtype=torch.float64, generator=toy.driver.generator)
        for k in toy.parties
    }
    _, gradients = toy.driver.learn(h, "train/0/0")
    assert all(
        int(torch.linalg.matrix_rank(g, rtol=1e-9)) == 2 for g in gradients.values()
    )


def test_bytes_per_party_and_round_at_mnist_sizes() -> None:
    assert traffic_at_mnist_sizes(vimsgd.ALGORITHM, vimsgd.Config()) == (
        [245_760, 491_520],
        [245_760, 491_520],
    )
