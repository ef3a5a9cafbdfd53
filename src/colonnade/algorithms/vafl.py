"""VAFL: a learned weighted average of the parties' embeddings, and a linear model on it.

Chen, Jin, Sun and Yin, VAFL: a Method of Vertical Asynchronous Federated Learning, 2020 (arXiv:2007.06081), in rounds,
as the VIM paper (arXiv:2207.10226) compares with it.

    for each batch B:
        party k:      h_k = f_k(x_k[B])                                          Embed   -> Embedding
        label owner:  loss = l(g(sum_k alpha_k h_k), y[B]); step g and alpha     (alpha starts at 1/M)
        party k:      step f_k with dloss/dh_k                                   Descend -> Done

What crosses: embeddings up, their gradients down, in SplitNN's own messages. What a party learns: as in SplitNN,
gradients reveal labels to a party that looks; embeddings reveal features to whoever knows f_k.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from colonnade.algorithms import splitnn
from colonnade.algorithms.splitnn import REVEALS, FeatureOwner, predict, train
from colonnade.core import roles
from colonnade.core.checks import fraction, not_negative, one_of, positive
from colonnade.core.party import seed_for
from colonnade.errors import ConfigError
from colonnade.models import initialised

__all__ = ["REVEALS", "Average", "Config", "FeatureOwner", "LabelOwner", "predict", "train"]


@dataclass(frozen=True)
class Config:
    """Table 2's settings for MNIST are the defaults."""

    optimizer: str = one_of("sgd", "adam", default="sgd")
    learning_rate: float = positive(default=0.3)  # of the parties and of the label owner
    momentum: float = fraction(default=0.9)  # of the parties; the label owner's step has none
    weight_decay: float = not_negative(default=0.001)


class Average(nn.Module):
    """g(sum_k alpha_k h_k): `[M, rows, width] -> [rows, outputs]`."""

    def __init__(self, parties: int, width: int, outputs: int) -> None:
        super().__init__()
        self.alpha = nn.Parameter(torch.full((parties,), 1 / parties))
        self.linear = nn.Linear(width, outputs)

    def forward(self, h: Tensor) -> Tensor:
        out: Tensor = self.linear(torch.einsum("k,krw->rw", self.alpha, h))
        return out


class LabelOwner(splitnn.LabelOwner):
    """Holds labels, alpha and g; drives."""

    config: Config  # type: ignore[assignment]

    def meet(self, cards: Mapping[str, roles.Card]) -> None:
        roles.LabelOwner.meet(self, cards)
        if len(set(self.widths.values())) > 1:
            widths = ", ".join(f"'{party}' {width}" for party, width in self.widths.items())
            raise ConfigError(f"VAFL averages embeddings, so all must have the same width; found {widths}.")
        with initialised(seed_for(self.generator.initial_seed(), "head")):
            width = next(iter(self.widths.values()))
            self.model = Average(len(self.widths), width, self.loss.outputs).to(self.device)
        rate, decay = self.config.learning_rate, self.config.weight_decay
        self.optimizer = torch.optim.SGD(self.model.parameters(), rate, weight_decay=decay)

    def outputs(self, h: Mapping[str, Tensor]) -> Tensor:
        return self.model(torch.stack(list(h.values())))  # type: ignore[no-any-return]
