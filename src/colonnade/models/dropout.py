"""Dropout that draws from its party's own generator.

PyTorch's draws from the global one: two runs with the same seed would differ, and so would a resumed run. A model's
`nn.Dropout` layers are replaced when its party is seated.
"""

from __future__ import annotations

import torch
from torch import Generator, Tensor, nn
from torch.nn.modules.dropout import _DropoutNd

from colonnade.errors import ConfigError


class Dropout(nn.Dropout):
    """As `nn.Dropout`, with a generator of its own."""

    def __init__(self, p: float, generator: Generator) -> None:
        super().__init__(p)
        self.generator = generator

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 - the name PyTorch gave it
        if not self.training or self.p == 0:
            return input
        keep = torch.rand(input.shape, generator=self.generator).to(input.device) >= self.p
        return input * keep / (1 - self.p) if self.p < 1 else torch.zeros_like(input)


def seeded(model: nn.Module, generator: Generator, *, owner: str) -> nn.Module:
    """The model with its dropout layers drawing from this generator."""
    for name, part in list(model.named_modules()):
        if isinstance(part, nn.Dropout):
            fresh = Dropout(part.p, generator)
            if not name:
                return fresh
            parent, _, attribute = name.rpartition(".")
            setattr(model.get_submodule(parent), attribute, fresh)
        elif isinstance(part, _DropoutNd):
            raise ConfigError(
                f"The model of '{owner}' has a {type(part).__name__}, which draws from PyTorch's global generator, so "
                "that a run could not be repeated. Use nn.Dropout."
            )
    return model
