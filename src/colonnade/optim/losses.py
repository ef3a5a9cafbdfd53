"""The losses a label owner can train with. Each is a mean over rows and says how many outputs it reads.

With class weights a row counts as often as its class weighs, and beside it as often as `rows` says; what is decided and
scored for a row stays as it is.
"""

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

    @property
    def weights(self) -> tuple[float, ...]:
        """By class how much its rows count; empty where all count alike."""
        ...

    def __call__(self, outputs: Tensor, labels: Tensor, rows: Tensor | None = None) -> Tensor:
        """The mean over the rows."""
        ...

    def weigh(self, labels: Tensor, rows: Tensor | None = None) -> Tensor | None:
        """How much each row counts, in float64; None where all count alike."""
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
    weights: tuple[float, ...] = ()  # by class number

    def __call__(self, outputs: Tensor, labels: Tensor, rows: Tensor | None = None) -> Tensor:
        if (weights := self.weigh(labels, rows)) is None:
            return cross_entropy(outputs, labels)
        return (weights.to(outputs.dtype) * cross_entropy(outputs, labels, reduction="none")).mean()

    def weigh(self, labels: Tensor, rows: Tensor | None = None) -> Tensor | None:
        return _weights(self.weights, labels, rows)

    def decide(self, outputs: Tensor) -> Tensor:
        return outputs.argmax(-1)

    def scores(self, outputs: Tensor) -> Tensor:
        return outputs.softmax(-1)


@dataclass(frozen=True)
class Logistic:
    """Binary classification with one logit; labels are 0 and 1."""

    outputs: int = 1
    weights: tuple[float, ...] = ()  # of class 0 and of class 1

    def __call__(self, outputs: Tensor, labels: Tensor, rows: Tensor | None = None) -> Tensor:
        weights = self.weigh(labels, rows)
        weights = None if weights is None else weights.to(outputs.dtype)
        return binary_cross_entropy_with_logits(outputs[..., 0], labels.to(outputs.dtype), weight=weights)

    def weigh(self, labels: Tensor, rows: Tensor | None = None) -> Tensor | None:
        return _weights(self.weights, labels, rows)

    def decide(self, outputs: Tensor) -> Tensor:
        return (outputs[..., 0] > 0).long()

    def scores(self, outputs: Tensor) -> Tensor:
        p = outputs[..., 0].sigmoid()
        return torch.stack([1 - p, p], dim=-1)


@dataclass(frozen=True)
class Squared:
    """Regression: half the squared difference."""

    outputs: int = 1
    weights: tuple[float, ...] = ()  # a number has no class

    def __call__(self, outputs: Tensor, labels: Tensor, rows: Tensor | None = None) -> Tensor:
        if rows is None:
            return 0.5 * mse_loss(outputs[..., 0], labels.to(outputs.dtype))
        return 0.5 * (rows.to(outputs.dtype) * (outputs[..., 0] - labels.to(outputs.dtype)).square()).mean()

    def weigh(self, labels: Tensor, rows: Tensor | None = None) -> Tensor | None:  # noqa: ARG002
        return rows

    def decide(self, outputs: Tensor) -> Tensor:
        return outputs[..., 0]

    def scores(self, outputs: Tensor) -> Tensor:
        return outputs


def balanced(labels: Tensor, classes: int) -> tuple[float, ...]:
    """By class the weight that makes all classes count alike and a row of these 1 on average, as in scikit-learn; a
    class without a row counts as if it had one."""
    counts = torch.bincount(labels.long().cpu(), minlength=classes).double().clamp_min(1)
    return tuple((len(labels) / (classes * counts)).tolist())


def unweighted(loss: Loss) -> Loss:
    """The same, with all classes alike."""
    if isinstance(loss, CrossEntropy):
        return CrossEntropy(loss.outputs)
    return Logistic() if isinstance(loss, Logistic) else Squared()


def _weights(by_class: tuple[float, ...], labels: Tensor, rows: Tensor | None) -> Tensor | None:
    if not by_class:
        return rows
    weights = torch.tensor(by_class, dtype=torch.float64, device=labels.device)[labels.long()]
    return weights if rows is None else weights * rows
