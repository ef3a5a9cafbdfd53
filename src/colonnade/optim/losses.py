"""What algorithms train with by their settings: a loss, an optimizer, and linear heads of the parties as one matrix.

Each loss is a mean over rows and says how many outputs it reads.

With class weights a row counts as often as its class weighs, and beside it as often as `rows` says; what is decided and
scored for a row stays as it is.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Protocol

import torch
from torch import Generator, Tensor
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy, mse_loss

from colonnade.errors import ConfigError
from colonnade.optim.descent import Buffers


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
    weights = _on(labels.device, by_class)[labels.long()]
    return weights if rows is None else weights * rows


@cache
def _on(device: torch.device, numbers: tuple[float, ...]) -> Tensor:
    """Once for all batches: nothing can be sent to a GPU while what it computes is captured."""
    return torch.tensor(numbers, dtype=torch.float64, device=device)


def uniform_heads(widths: Iterable[int], outputs: int, generator: Generator) -> Tensor:
    """Each block uniform in +-1/sqrt(width), as a linear layer starts."""
    blocks = (torch.rand(width, outputs, generator=generator) * 2 - 1 for width in widths)
    return torch.cat([block / len(block) ** 0.5 for block in blocks])


def blocks(stacked: Tensor, widths: Iterable[int]) -> tuple[Tensor, ...]:
    """The rows that belong to each party."""
    return torch.split(stacked, list(widths))


def beside(h: Mapping[str, Tensor], widths: Mapping[str, int], room: Buffers | None = None) -> Tensor:
    """The embeddings side by side, [rows, all widths], in a buffer where there is room for one. A party that is not in
    `h` has zeros there, so that its term h_k W_k is left out of the sum."""
    like = next(iter(h.values()))
    if len(h) < len(widths):
        h = {k: h[k] if k in h else like.new_zeros(*like.shape[:-1], width) for k, width in widths.items()}
    if room is None:
        return torch.cat(list(h.values()), dim=-1)
    room.begin()
    out = room.take((*like.shape[:-1], sum(widths.values())), like)
    return torch.cat(list(h.values()), dim=-1, out=out)


def norms(stacked: Tensor, widths: Mapping[str, int]) -> dict[str, float]:
    """The Frobenius norm of each party's block."""
    parts = blocks(stacked.detach(), widths.values())
    return {party: float(block.norm()) for party, block in zip(widths, parts, strict=True)}


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


def _without_compiler() -> None:
    """Torch puts what makes, saves and loads an optimizer out of its compiler's reach (`torch._disable_dynamo`), and
    imports that one for it: as long as importing torch itself, where nobody compiles."""
    for name in ("add_param_group", "zero_grad", "state_dict", "load_state_dict"):
        plain = inspect.unwrap(vars(torch.optim.Optimizer)[name])
        vars(plain).setdefault("__dynamo_disable", plain)


def make_optimizer(parameters: Iterable[Tensor], settings: Settings) -> torch.optim.Optimizer:
    """SGD with momentum, or Adam with `momentum` as its first decay rate; both act element by element, so that a
    cohort's stacked parameters move exactly as the members' own would."""
    rate, momentum, decay = settings.learning_rate, settings.momentum, settings.weight_decay
    tensors = list(parameters)
    if not tensors:
        raise ConfigError("A local model has no parameters, so there is nothing to train. Give it at least one layer.")
    _without_compiler()
    if settings.optimizer == "adam":
        on_gpu = tensors[0].device.type == "cuda"
        return torch.optim.Adam(tensors, rate, betas=(momentum, 0.999), weight_decay=decay, capturable=on_gpu)
    return torch.optim.SGD(tensors, rate, momentum=momentum, weight_decay=decay)
