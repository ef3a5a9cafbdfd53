"""FDML is centralized training of the composite model sum_k f_k W_k, step for step."""

from __future__ import annotations

import copy

import pytest
import torch
from tests.algorithms.reference import (
    assert_alike,
    centralized,
    columns,
    optimizer_of,
    relative,
    traffic_at_mnist_sizes,
)
from tests.conformance.toy import TASKS, Task, Toy, federation
from torch import Tensor, nn

from colonnade.algorithms import fdml
from colonnade.algorithms.embedding import Embed
from colonnade.transport import InProcess, Recording

STEPS = 8


class Composite(nn.Module):
    """sum_k f_k(x_k) W_k, with every f_k and W_k in one place."""

    def __init__(self, toy: Toy) -> None:
        super().__init__()
        models = [copy.deepcopy(party.model) for party in toy.parties.values()]
        self.parts = nn.ModuleList(model[:-1] for model in models)
        self.W = nn.ParameterList(
            model[-1].weight.detach().T.clone() for model in models
        )

    def forward(self, x: list[Tensor]) -> Tensor:
        logits = [
            part(x_k) @ W_k
            for part, x_k, W_k in zip(self.parts, x, self.W, strict=True)
        ]
        return torch.stack(logits).sum(0)


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize(
    "config",
    [
        fdml.Config(learning_rate=0.1, momentum=0.0, weight_decay=0.0),
        fdml.Config(learning_rate=0.05, momentum=0.9, weight_decay=0.01),
        fdml.Config(
            optimizer="adam", learning_rate=0.01, momentum=0.8, weight_decay=0.01
        ),
    ],
    ids=["sgd", "momentum and decay", "adam"],
)
def test_it_is_centralized_training_of_the_composite_model(
    task: Task, config: fdml.Config
) -> None:
    toy = federation(
        fdml.ALGORITHM, columns=(4, 4, 3), task=task, dtype=torch.float64, config=config
    )
    model = Composite(toy)
    for loss in centralized(
        toy, model, [optimizer_of(model.parameters(), config)], STEPS
    ):
        assert toy.run(1) == pytest.approx([loss], rel=1e-9)
        assert_alike(Composite(toy), model, 1e-9)
    assert torch.allclose(
        toy.predict(), model(columns(toy, "test[0:60]")), rtol=1e-9, atol=1e-12
    )


def test_a_party_has_nothing_but_its_part_and_a_head_without_bias() -> None:
    toy = federation(fdml.ALGORITHM)
    for party in toy.parties.values():
        *_, head = party.model
        assert isinstance(head, nn.Linear)
        assert (head.in_features, head.out_features) == (8, 3)
        assert [name for name, _ in head.named_parameters()] == ["weight"]
    assert toy.driver.state() == {}


def test_the_gradient_is_the_probabilities_minus_the_label() -> None:
    """Over the batch size, the same for all. So it has one negative entry per row, and
    that is the label."""
    toy = federation(
        fdml.ALGORITHM,
        lambda parties: Recording(InProcess(parties)),
        dtype=torch.float64,
    )
    toy.run(2)
    replies = toy.peers.ask(Embed("train/0/2"))
    o = torch.stack([reply.values.tensor for reply in replies.values()]).sum(0)
    toy.run(1)
    y = toy.driver.y("train/0/2")
    for name in toy.parties:
        seen = toy.transport.of(name).tensors("gradient")[-1]
        assert (
            relative(seen, (o.softmax(-1) - nn.functional.one_hot(y, 3)) / 32) <= 1e-12
        )
        assert torch.equal((seen < 0).int().argmax(-1), y)
        assert ((seen < 0).sum(-1) == 1).all()


@pytest.mark.parametrize("task", ["binary", "regression"])
def test_the_gradient_of_one_output_is_the_prediction_minus_the_label(
    task: Task,
) -> None:
    toy = federation(fdml.ALGORITHM, task=task, dtype=torch.float64)
    y = toy.driver.y("train/0/0")[:, None]
    o = {
        k: torch.randn(32, 1, dtype=torch.float64, generator=toy.driver.generator)
        for k in toy.parties
    }
    total = torch.stack(list(o.values())).sum(0)
    _, gradient = toy.driver.learn(o, "train/0/0")
    assert (
        relative(gradient, ((total.sigmoid() if task == "binary" else total) - y) / 32)
        <= 1e-12
    )
    # what came in is left as it was
    assert torch.equal(torch.stack(list(o.values())).sum(0), total)


def test_all_parties_get_the_same_gradient_released_once() -> None:
    toy = federation(fdml.ALGORITHM)
    toy.run(1)
    entries = [e for e in toy.driver.ledger.entries if e.name == "gradient"]
    assert [e.peer for e in entries] == list(toy.parties)
    assert len({e.number for e in entries}) == 1


def test_bytes_per_party_and_round_at_mnist_sizes() -> None:
    assert traffic_at_mnist_sizes(fdml.ALGORITHM, fdml.Config()) == (
        [40_960, 81_920],
        [40_960, 81_920],
    )
