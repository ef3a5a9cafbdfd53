"""VAFL is training of the joined model g(sum_k alpha_k f_k), step for step: momentum at
the parties alone."""

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
    relative,
    traffic_at_mnist_sizes,
)
from tests.conformance.toy import TASKS, Task, Toy, federation
from torch import Tensor, nn

from colonnade.algorithms import vafl
from colonnade.errors import ConfigError

STEPS = 8


class Weighted(nn.Module):
    """g(sum_k alpha_k h_k), and alpha is 1/M at first."""

    def __init__(self, linear: nn.Linear, parties: int) -> None:
        super().__init__()
        self.alpha = nn.ParameterList(
            torch.tensor(1 / parties, dtype=torch.float64) for _ in range(parties)
        )
        self.weight = copy.deepcopy(linear.weight)
        self.bias = copy.deepcopy(linear.bias)

    def forward(self, h: list[Tensor]) -> Tensor:
        mean = torch.stack(
            [alpha * h_k for alpha, h_k in zip(self.alpha, h, strict=True)]
        ).sum(0)
        return mean @ self.weight.T + self.bias


def joined(toy: Toy) -> tuple[Joined, Weighted]:
    head = Weighted(toy.driver.model.linear, len(toy.parties))
    return Joined(toy, head), head


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize(
    "config",
    [
        vafl.Config(learning_rate=0.1, momentum=0.0, weight_decay=0.0),
        vafl.Config(learning_rate=0.05, momentum=0.9, weight_decay=0.01),
        vafl.Config(
            optimizer="adam", learning_rate=0.01, momentum=0.8, weight_decay=0.01
        ),
        vafl.Config(learning_rate=0.05, weight_decay=0.01, average_rate=0.2),
    ],
    ids=["sgd", "momentum and decay", "adam", "alpha's own rate"],
)
@pytest.mark.parametrize(
    "widths", [(4, 4, 3), (6,)], ids=["three parties", "one party"]
)
def test_it_is_training_of_the_joined_model(
    task: Task, config: vafl.Config, widths: tuple[int, ...]
) -> None:
    toy = federation(
        vafl.ALGORITHM, columns=widths, task=task, dtype=torch.float64, config=config
    )
    model, head = joined(toy)
    at_the_parties = optimizer_of(model.parts.parameters(), config)
    # as in the authors' code
    own = (
        {"lr": config.average_rate, "weight_decay": 0.0} if config.average_rate else {}
    )
    groups: list[dict[str, Any]] = [
        {"params": [head.weight, head.bias]},
        {"params": list(head.alpha), **own},
    ]
    rates: dict[str, Any] = {
        "lr": config.learning_rate,
        "weight_decay": config.weight_decay,
    }
    if config.optimizer == "adam":
        at_the_label_owner: Any = torch.optim.Adam(
            groups, betas=(config.momentum, 0.999), **rates
        )
    else:
        at_the_label_owner = torch.optim.SGD(groups, **rates)
    for loss in centralized(toy, model, [at_the_parties, at_the_label_owner], STEPS):
        assert toy.run(1) == pytest.approx([loss], rel=1e-9)
        for party, part in zip(toy.parties.values(), model.parts, strict=True):
            assert_alike(party.model, part, 1e-9)
        assert relative(toy.driver.model.alpha, torch.stack(list(head.alpha))) <= 1e-9
        assert relative(toy.driver.model.linear.weight, head.weight) <= 1e-9
        assert relative(toy.driver.model.linear.bias, head.bias) <= 1e-9
    assert torch.allclose(
        toy.predict(), model(columns(toy, "test[0:60]")), rtol=1e-9, atol=1e-12
    )


@pytest.mark.parametrize("widths", [(4,), (4, 3), (4, 4, 3, 2)])
def test_the_weights_start_equal_and_are_learned(widths: tuple[int, ...]) -> None:
    toy = federation(vafl.ALGORITHM, columns=widths)
    assert toy.driver.model.alpha.tolist() == pytest.approx(
        [1 / len(widths)] * len(widths)
    )
    toy.run(1)
    assert (toy.driver.model.alpha != 1 / len(widths)).all()


def test_a_partys_gradient_is_its_weight_times_that_of_the_average() -> None:
    toy = federation(vafl.ALGORITHM, dtype=torch.float64)
    toy.run(3)
    head = copy.deepcopy(toy.driver.model)
    h = {
        k: torch.randn(32, 8, dtype=torch.float64, generator=toy.driver.generator)
        for k in toy.parties
    }
    average = sum(
        (a * h_k for a, h_k in zip(head.alpha, h.values(), strict=True)),
        torch.zeros(32, 8),
    )
    logits = (average @ head.linear.weight.T + head.linear.bias).detach()
    slope = (
        logits.softmax(-1) - nn.functional.one_hot(toy.driver.y("train/0/3"), 3)
    ) / 32
    _, gradients = toy.driver.learn(h, "train/0/3")
    for alpha, gradient in zip(head.alpha, gradients.values(), strict=True):
        assert relative(gradient, alpha * slope @ head.linear.weight) <= 1e-9


def test_embeddings_of_different_widths_are_refused_before_anything_is_sent() -> None:
    wider = {"bob": lambda model: nn.Sequential(model, nn.Linear(8, 5))}
    with pytest.raises(ConfigError) as caught:
        federation(vafl.ALGORITHM, wrap_model=wider)
    assert (
        str(caught.value)
        == "VAFL averages embeddings, so all must have the same width; found 'ada' 8,"
        " 'bob' 5, 'cyd' 8."
    )


def test_the_first_head_has_a_seed_of_its_own() -> None:
    one, same, other = (
        federation(vafl.ALGORITHM, seed=seed).driver.model.linear.weight
        for seed in (0, 0, 1)
    )
    assert torch.equal(one, same)
    assert not torch.equal(one, other)


def test_bytes_per_party_and_round_at_mnist_sizes() -> None:
    assert traffic_at_mnist_sizes(vafl.ALGORITHM, vafl.Config()) == (
        [245_760, 491_520],
        [245_760, 491_520],
    )
