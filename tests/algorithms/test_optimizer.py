"""The optimizer of local steps has the settings it was given, and treats stacked
parameters as separate ones."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from colonnade.algorithms import splitnn, vimadmm
from colonnade.algorithms.embedding import make_optimizer
from colonnade.errors import ConfigError


@dataclass(frozen=True)
class Settings:
    optimizer: str = "sgd"
    learning_rate: float = 0.05
    momentum: float = 0.9
    weight_decay: float = 0.01


def test_sgd_has_the_given_settings() -> None:
    weight = torch.ones(2, requires_grad=True)
    optimizer = make_optimizer([weight], Settings("sgd", 0.3, 0.7, 0.02))
    assert type(optimizer) is torch.optim.SGD
    (group,) = optimizer.param_groups
    assert (group["lr"], group["momentum"], group["weight_decay"]) == (0.3, 0.7, 0.02)
    assert not group["nesterov"]
    assert group["params"][0] is weight


def test_adam_takes_momentum_as_its_first_decay_rate() -> None:
    optimizer = make_optimizer(
        [torch.ones(2, requires_grad=True)], Settings("adam", 0.3, 0.7, 0.02)
    )
    assert type(optimizer) is torch.optim.Adam
    (group,) = optimizer.param_groups
    assert (group["lr"], group["betas"], group["weight_decay"]) == (
        0.3,
        (0.7, 0.999),
        0.02,
    )
    assert not group["amsgrad"]


def test_parameters_may_be_an_iterator() -> None:
    layer = torch.nn.Linear(2, 3)
    assert (
        len(make_optimizer(layer.parameters(), Settings()).param_groups[0]["params"])
        == 2
    )


@pytest.mark.parametrize(
    "config",
    [splitnn.Config(), vimadmm.Config(), splitnn.Config(optimizer="adam")],
    ids=repr,
)
def test_an_algorithm_s_config_will_do(config: splitnn.Config | vimadmm.Config) -> None:
    (group,) = make_optimizer([torch.ones(2, requires_grad=True)], config).param_groups
    assert group["lr"] == config.learning_rate
    assert group["weight_decay"] == config.weight_decay


def test_the_first_sgd_step_is_the_textbook_s() -> None:
    weight = torch.tensor([1.0, -2.0], dtype=torch.float64, requires_grad=True)
    optimizer = make_optimizer([weight], Settings())
    velocity = torch.zeros(2, dtype=torch.float64)
    expected = weight.detach().clone()
    for gradient in (
        torch.tensor([3.0, 4.0]).double(),
        torch.tensor([-1.0, 2.0]).double(),
    ):
        weight.grad = gradient
        optimizer.step()
        velocity = 0.9 * velocity + gradient + 0.01 * expected
        expected = expected - 0.05 * velocity
        assert torch.allclose(weight, expected)


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("decay", [0.0, 0.01])
def test_stacked_parameters_move_exactly_like_separate_ones(
    optimizer: str, momentum: float, decay: float
) -> None:
    settings = Settings(optimizer, 0.05, momentum, decay)
    start = torch.randn(4, 3, 2, generator=torch.Generator().manual_seed(0))
    targets = torch.randn(4, 3, 2, generator=torch.Generator().manual_seed(1))

    def descend(weight: Tensor, target: Tensor) -> Tensor:
        weight = weight.clone().requires_grad_()
        steps = make_optimizer([weight], settings)
        for _ in range(10):
            steps.zero_grad()
            torch.autograd.backward((weight - target).square().sum())
            steps.step()
        return weight.detach()

    together = descend(start, targets)
    apart = torch.stack(
        [descend(weight, target) for weight, target in zip(start, targets, strict=True)]
    )
    assert torch.equal(together, apart)
    assert not torch.equal(together, start)


def test_nothing_to_train_is_said_plainly() -> None:
    with pytest.raises(
        ConfigError,
        match="A local model has no parameters, so there is nothing to train",
    ):
        make_optimizer([], Settings())
