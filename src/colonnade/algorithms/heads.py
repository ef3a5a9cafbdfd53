"""Heads, which make outputs of what the parties send: each is a plain module that takes
a list of it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from colonnade.algorithms import embedding
from colonnade.algorithms.algorithm import HeadInputs

SIDE_BY_SIDE = partial(torch.cat, dim=-1)


class Joining(nn.Module):
    """g of what the parties sent, joined: side by side, unless another way is given."""

    def __init__(
        self, model: nn.Module, join: Callable[[list[Tensor]], Tensor] = SIDE_BY_SIDE
    ) -> None:
        super().__init__()
        self.model = model
        self.join = join

    def forward(self, sent: list[Tensor]) -> Tensor:
        out: Tensor = self.model(self.join(sent))
        return out


class Summed(nn.Module):
    """sum_k o_k: the parties send logits, and there is nothing to learn here."""

    def forward(self, sent: list[Tensor]) -> Tensor:
        return torch.stack(sent).sum(0)


class Shifted(nn.Module):
    """b + sum_k o_k: the label owner adds an intercept."""

    def __init__(self, intercept: Tensor) -> None:
        super().__init__()
        self.intercept = nn.Parameter(intercept)

    def forward(self, sent: list[Tensor]) -> Tensor:
        return torch.stack(sent).sum(0) + self.intercept


class MeanProbability(nn.Module):
    """log of the mean of the parties' probabilities, from their log-odds; the log-odds
    of it for two classes."""

    def __init__(self, outputs: int) -> None:
        super().__init__()
        self.outputs = outputs

    def forward(self, sent: list[Tensor]) -> Tensor:
        logits = nn.functional.pad(torch.stack(sent), (1, 0))
        log_p = logits.log_softmax(-1).logsumexp(0) - math.log(len(sent))
        return log_p if self.outputs > 1 else log_p[..., 1:] - log_p[..., :1]


def concatenating(given: HeadInputs[Any], hidden: int) -> nn.Module:
    """g on the concatenation, with one hidden layer or none."""
    model = embedding.head(sum(given.widths), given.outputs, hidden, seed=0)
    return Joining(loaded(model, given.state["model"]))


def linear(given: HeadInputs[Any]) -> nn.Module:
    """sum_k h_k W_k."""
    weights = {"weight": given.state["heads"].T}
    return Joining(
        loaded(nn.Linear(sum(given.widths), given.outputs, bias=False), weights)
    )


def loaded(model: nn.Module, state: Mapping[str, Tensor]) -> nn.Module:
    """The model with these weights."""
    model.load_state_dict(dict(state))
    return model
