"""k-ary randomized response: labels with pure epsilon label-DP.

A label stays with probability e^eps / (e^eps + k - 1) and becomes each other class with 1 / (e^eps + k - 1). It is
drawn once, before training; whatever is computed from the drawn labels costs nothing more, however often it is sent.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from colonnade.core.chance import Source, uniform
from colonnade.core.receipt import DpEvent
from colonnade.errors import ConfigError

KIND = "randomized-response"


@dataclass(frozen=True, slots=True)
class RandomizedResponse:
    """For class numbers 0 .. classes-1; the label owner's federation fills `classes` in."""

    epsilon: float
    classes: int = 2

    def __post_init__(self) -> None:
        number = isinstance(self.epsilon, (int, float)) and not isinstance(self.epsilon, bool)
        if not number or not 0 < self.epsilon <= 100:
            raise ConfigError(f"randomized_response.epsilon must be above 0, at most 100; found {self.epsilon!r}.")
        if not isinstance(self.classes, int) or self.classes < 2:
            raise ConfigError(f"randomized_response.classes must be 2 or more; found {self.classes!r}.")

    @property
    def keep(self) -> float:
        """The chance that a label stays."""
        return 1 / (1 + (self.classes - 1) * math.exp(-self.epsilon))

    def apply(self, tensor: Tensor, source: Source) -> tuple[Tensor, DpEvent]:
        stays = uniform(tensor.shape, source) < self.keep
        other = 1 + (uniform(tensor.shape, source) * (self.classes - 1)).long()
        moved = (tensor + other.to(tensor.device)) % self.classes
        event = DpEvent(KIND, {"epsilon": float(self.epsilon), "classes": float(self.classes)})
        return torch.where(stays.to(tensor.device), tensor, moved), event
