"""Random numbers of models: initial weights and dropout, without a global seed.

PyTorch draws both from a generator of the whole process. With it two runs of the same
seed would differ, and so would a run that was resumed. Here initial weights come from
a seed or generator that the caller passes, and dropout from its party's own generator.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Generator, Tensor, nn
from torch.nn.modules.dropout import _DropoutNd

from colonnade.errors import ConfigError

_initialising = threading.RLock()


@contextmanager
def initialised(seed: int | Generator) -> Iterator[None]:
    """Give modules that are made inside the block the weights of this seed.

    The global generator is forked, so it is afterwards as it was before. Threads wait
    for each other here, because they share that generator.

    Args:
        seed: A seed, or a generator whose state is used and stays as it is.
    """
    start = seed if isinstance(seed, Generator) else Generator().manual_seed(seed)
    with _initialising, torch.random.fork_rng(devices=[]):
        torch.default_generator.set_state(start.get_state())
        yield


class Dropout(nn.Dropout):
    """Dropout as `nn.Dropout` has it, with masks from a generator of its own.

    Args:
        p: The probability with which a number is dropped.
        generator: The generator that masks are drawn from, on the CPU.
    """

    def __init__(self, p: float, generator: Generator) -> None:
        super().__init__(p)
        self.generator = generator

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 - the name PyTorch gave it
        if not self.training or self.p == 0:
            return input
        drawn = torch.rand(input.shape, generator=self.generator)
        if self.p == 1:  # nothing is kept that could be scaled up
            return torch.zeros_like(input)
        keep = drawn.to(input.device) >= self.p
        return input * keep / (1 - self.p)


def seeded(model: nn.Module, generator: Generator, *, owner: str) -> nn.Module:
    """Replace a model's dropout layers by ones that draw from this generator.

    Only `nn.Dropout` can be replaced. Other kinds of dropout are refused.

    Args:
        model: The model. It is changed, unless it is itself a dropout layer.
        generator: The generator of the party that owns the model.
        owner: The party's name, for errors.
    """
    for path, part in list(model.named_modules()):
        if isinstance(part, nn.Dropout):
            replacement = Dropout(part.p, generator)
            if not path:
                return replacement
            parent, _, attribute = path.rpartition(".")
            setattr(model.get_submodule(parent), attribute, replacement)
        elif isinstance(part, _DropoutNd):
            raise ConfigError(
                f"The model of '{owner}' has a {type(part).__name__}, which draws from"
                " PyTorch's global generator, so that a run could not be repeated. Use"
                " nn.Dropout."
            )
    return model
