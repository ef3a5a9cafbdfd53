"""The local models that come with the package, and layers initialised from a seed of one's own.

PyTorch draws initial weights from its global generator. It is forked for the time, so that no global seed is used or
changed. Its dropout draws from there, too: two runs with the same seed would differ, and so would a resumed run. So a
model's `nn.Dropout` layers are replaced by ones that draw from their party's own generator.
"""

from __future__ import annotations

import itertools
import math
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Generator, Tensor, nn
from torch.nn.modules.dropout import _DropoutNd

from colonnade.errors import ConfigError

ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    "relu": nn.ReLU,
    "leaky_relu": nn.LeakyReLU,
    "elu": nn.ELU,
    "tanh": nn.Tanh,
}
POOLS: dict[str, Callable[[int], nn.Module]] = {"average": nn.AvgPool2d, "max": nn.MaxPool2d}


def mlp(
    shape: tuple[int, ...],
    *,
    hidden: Sequence[int] = (120,),
    width: int = 60,
    activation: str = "relu",
    dropout: float = 0.0,
) -> nn.Module:
    """Linear layers, each, the last one too, with an activation ("relu", "leaky_relu", "elu", "tanh") and then
    dropout with that probability, if any; VIM's local model for MNIST is 56-120-60."""
    if activation not in ACTIVATIONS:
        raise ConfigError(f"The model 'mlp' has the activations {', '.join(ACTIVATIONS)}; found {activation!r}.")
    if isinstance(dropout, bool) or not isinstance(dropout, (int, float)) or not 0 <= dropout < 1:
        raise ConfigError(f"The model 'mlp' has a dropout from 0 up to, but not including, 1; found {dropout!r}.")
    sizes = [math.prod(shape), *hidden, width]
    layers: list[nn.Module] = [] if len(shape) == 1 else [nn.Flatten(-len(shape))]
    for inputs, outputs in itertools.pairwise(sizes):
        layers += [nn.Linear(inputs, outputs), ACTIVATIONS[activation]()]
        layers += [nn.Dropout(dropout)] if dropout else []
    return nn.Sequential(*layers)


def linear(shape: tuple[int, ...], *, width: int = 60) -> nn.Module:
    """One linear map."""
    flatten: list[nn.Module] = [] if len(shape) == 1 else [nn.Flatten(-len(shape))]
    return nn.Sequential(*flatten, nn.Linear(math.prod(shape), width))


def identity(shape: tuple[int, ...]) -> nn.Module:
    """The columns as they are, with nothing to learn: with `fdml`, a linear model without an intercept."""
    return nn.Identity() if len(shape) == 1 else nn.Flatten(-len(shape))


def cnn(
    shape: tuple[int, ...],
    *,
    channels: Sequence[int] = (32, 64, 64, 128),
    width: int = 60,
    pool: str = "average",
    ending: str = "none",
) -> nn.Module:
    """3x3 convolutions, each with ReLU and, while the picture is larger than 1, 2x2 pooling, "average" or "max"; then
    a linear map to `width` and, if asked, an activation: after "tanh" the embeddings' range is known beforehand. VIM's
    local model for CIFAR-10 patches has 32-64-64-128 channels."""
    if pool not in POOLS:
        raise ConfigError(f"The model 'cnn' pools by {' or '.join(POOLS)}; found {pool!r}.")
    if ending != "none" and ending not in ACTIVATIONS:
        raise ConfigError(f"The model 'cnn' ends with none, {', '.join(ACTIVATIONS)}; found {ending!r}.")
    if len(shape) not in (2, 3):
        raise ConfigError(f"The model 'cnn' needs rows of [height, width] or [channels, height, width]; found {shape}.")
    depth, *size = shape if len(shape) == 3 else (1, *shape)
    layers: list[nn.Module] = [] if len(shape) == 3 else [nn.Unflatten(-2, (1, shape[0]))]
    for count in channels:
        layers += [nn.Conv2d(depth, count, 3, padding=1), nn.ReLU()]
        if min(size) > 1:
            layers.append(POOLS[pool](2))
            size = [length // 2 for length in size]
        depth = count
    last = [] if ending == "none" else [ACTIVATIONS[ending]()]
    return nn.Sequential(*layers, nn.Flatten(-3), nn.Linear(depth * math.prod(size), width), *last)


def convolution(shape: tuple[int, ...], *, channels: int = 32) -> nn.Module:
    """One 3x3 convolution with ReLU that keeps the picture's size: [height, width] to feature maps [channels, height,
    width]. Multi-VFL's data owners have 32 channels."""
    if len(shape) not in (2, 3):
        raise ConfigError(
            f"The model 'convolution' needs rows of [height, width] or [channels, height, width]; found {shape}."
        )
    layers: list[nn.Module] = [] if len(shape) == 3 else [nn.Unflatten(-2, (1, shape[0]))]
    return nn.Sequential(*layers, nn.Conv2d(shape[0] if len(shape) == 3 else 1, channels, 3, padding=1), nn.ReLU())


_ONE_AT_A_TIME = threading.RLock()  # torch initialises from a generator of the whole process


@contextmanager
def initialised(seed: int | Generator) -> Iterator[None]:
    """Modules made inside have the weights that follow from this seed, or from where this generator stands, whatever
    other threads make meanwhile."""
    start = seed if isinstance(seed, Generator) else Generator().manual_seed(seed)
    with _ONE_AT_A_TIME, torch.random.fork_rng(devices=[]):
        torch.default_generator.set_state(start.get_state())
        yield


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
