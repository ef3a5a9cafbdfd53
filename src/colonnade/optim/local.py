"""The optimizer of a party's own model, from an algorithm's settings."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

import torch
from torch import Tensor

from colonnade.errors import ConfigError


class Settings(Protocol):
    """What an algorithm's Config says about local optimization."""

    @property
    def optimizer(self) -> str: ...
    @property
    def learning_rate(self) -> float: ...
    @property
    def momentum(self) -> float: ...
    @property
    def weight_decay(self) -> float: ...


def make_optimizer(parameters: Iterable[Tensor], settings: Settings) -> torch.optim.Optimizer:
    """SGD with momentum, or Adam with `momentum` as its first decay rate; both act element by element, so that a
    cohort's stacked parameters move exactly as the members' own would."""
    rate, momentum, decay = settings.learning_rate, settings.momentum, settings.weight_decay
    tensors = list(parameters)
    if not tensors:
        raise ConfigError("A local model has no parameters, so there is nothing to train. Give it at least one layer.")
    if settings.optimizer == "adam":
        on_gpu = bool(tensors) and tensors[0].device.type == "cuda"
        return torch.optim.Adam(tensors, rate, betas=(momentum, 0.999), weight_decay=decay, capturable=on_gpu)
    return torch.optim.SGD(tensors, rate, momentum=momentum, weight_decay=decay)
