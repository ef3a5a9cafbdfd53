"""The losses a label owner can train with. Each is a mean over rows and says how many outputs it reads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy, mse_loss


class Loss(Protocol):
    """`outputs` numbers per row against that row's label."""

    @property
    def outputs(self) -> int: ...

    def __call__(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """The mean over the rows."""
        ...

    def decide(self, outputs: Tensor) -> Tensor:
        """Per row the class number, or the value."""
        ...

    def scores(self, outputs: Tensor) -> Tensor:
        """Per row and class a probability, or the value."""
        ...


@dataclass(frozen=True)
class CrossEntropy:
    """Multi-class classification: softmax over one logit per class."""

    outputs: int

    def __call__(self, outputs: Tensor, labels: Tensor) -> Tensor:
        return cross_entropy(outputs, labels)

    def decide(self, outputs: Tensor) -> Tensor:
        return outputs.argmax(-1)

    def scores(self, outputs: Tensor) -> Tensor:
        return outputs.softmax(-1)


@dataclass(frozen=True)
class Logistic:
    """Binary classification with one logit; labels are 0 and 1."""

    outputs: int = 1

    def __call__(self, outputs: Tensor, labels: Tensor) -> Tensor:
        return binary_cross_entropy_with_logits(outputs[..., 0], labels.to(outputs.dtype))

    def decide(self, outputs: Tensor) -> Tensor:
        return (outputs[..., 0] > 0).long()

    def scores(self, outputs: Tensor) -> Tensor:
        p = outputs[..., 0].sigmoid()
        return torch.stack([1 - p, p], dim=-1)


@dataclass(frozen=True)
class Squared:
    """Regression: half the squared difference."""

    outputs: int = 1

    def __call__(self, outputs: Tensor, labels: Tensor) -> Tensor:
        return 0.5 * mse_loss(outputs[..., 0], labels.to(outputs.dtype))

    def decide(self, outputs: Tensor) -> Tensor:
        return outputs[..., 0]

    def scores(self, outputs: Tensor) -> Tensor:
        return outputs
