"""How a label owner makes outputs of what the parties send: each as a plain module that takes their list."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from colonnade.algorithms import splitnn
from colonnade.algorithms.multi_vfl import joined
from colonnade.algorithms.vafl import Average
from colonnade.errors import ConfigError
from colonnade.federation import Settings
from colonnade.models import build_head

Shapes = Mapping[str, tuple[int, ...]]
"""What each party sends for a row, in the order in which the label owner takes it."""


class Concatenated(nn.Module):
    """g([h_1 .. h_M])."""

    def __init__(self, model: nn.Module, axis: int = -1) -> None:
        super().__init__()
        self.model, self.axis = model, axis

    def forward(self, sent: list[Tensor]) -> Tensor:
        out: Tensor = self.model(torch.cat(sent, dim=self.axis))
        return out


class Stacked(nn.Module):
    """g(h_1, .., h_M), where all have one width."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, sent: list[Tensor]) -> Tensor:
        out: Tensor = self.model(torch.stack(sent))
        return out


class Summed(nn.Module):
    """sum_k o_k: the parties send logits, and there is nothing to learn here."""

    def forward(self, sent: list[Tensor]) -> Tensor:
        return torch.stack(sent).sum(0)


class MeanProbability(nn.Module):
    """log of the mean of the parties' probabilities, from their log-odds; the log-odds of it for two classes."""

    def __init__(self, outputs: int) -> None:
        super().__init__()
        self.outputs = outputs

    def forward(self, sent: list[Tensor]) -> Tensor:
        logits = nn.functional.pad(torch.stack(sent), (1, 0))
        log_p = logits.log_softmax(-1).logsumexp(0) - math.log(len(sent))
        return log_p if self.outputs > 1 else log_p[..., 1:] - log_p[..., :1]


@dataclass(frozen=True)
class Told:
    """What a head is made of: a label owner's state in a checkpoint, and what was agreed."""

    state: Mapping[str, Any]
    settings: Settings
    shapes: Shapes
    outputs: int
    owner: str

    @property
    def widths(self) -> list[int]:
        return [shape[-1] for shape in self.shapes.values()]


def concatenating(told: Told) -> nn.Module:
    hidden = told.settings.config.head_hidden
    return Concatenated(_loaded(splitnn.head(sum(told.widths), told.outputs, hidden, seed=0), told.state["model"]))


def averaging(told: Told) -> nn.Module:
    return Stacked(_loaded(Average(len(told.widths), told.widths[0], told.outputs), told.state["model"]))


def linear(told: Told) -> nn.Module:
    """sum_k h_k W_k."""
    weights = {"weight": told.state["heads"].T}
    return Concatenated(_loaded(nn.Linear(sum(told.widths), told.outputs, bias=False), weights))


def aggregated(told: Told) -> nn.Module:
    spec, shape = told.settings.label_model or "mlp", joined(told.shapes, told.settings.config)
    model = build_head(spec, shape, told.outputs, seed=0, owner=told.owner, allow=told.settings.allow_models)
    return Concatenated(_loaded(model, told.state["model"]), told.settings.config.axis)


HEADS: dict[str, Callable[[Told], nn.Module]] = {
    "splitnn": concatenating,
    "compressed_vfl": concatenating,
    "vafl": averaging,
    "vimsgd": linear,
    "vimadmm": linear,
    "fdml": lambda _: Summed(),
    "vimadmm_joint": lambda _: Summed(),
    "vfedcce": lambda told: MeanProbability(told.outputs),
    "multi_vfl": aggregated,
}


def check_exportable(algorithm: str) -> None:
    """Raise where there is no model to hand out."""
    if algorithm == "knn":
        raise ConfigError(
            "A run of 'knn' has no model to export: it compares new rows with training rows, which stay with their "
            "owners. Predict with `colonnade predict`, or train another algorithm."
        )
    if algorithm not in HEADS:
        raise ConfigError(f"Runs of {algorithm!r} cannot be exported; those of {', '.join(HEADS)} can.")


def _loaded(model: nn.Module, state: Mapping[str, Tensor]) -> nn.Module:
    model.load_state_dict(dict(state))
    return model
