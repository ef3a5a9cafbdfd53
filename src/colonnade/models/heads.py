"""Label owners' models: from joined embeddings, or joined feature maps, to one output per class."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

from torch import nn

from colonnade.errors import ConfigError


def linear_head(shape: tuple[int, ...], outputs: int) -> nn.Module:
    """One linear map."""
    return nn.Sequential(*_flat(shape), nn.Linear(math.prod(shape), outputs))


def mlp_head(shape: tuple[int, ...], outputs: int, *, hidden: Sequence[int] = (64,)) -> nn.Module:
    """Linear layers with ReLU between them, none after the last."""
    sizes = [math.prod(shape), *hidden]
    layers: list[nn.Module] = _flat(shape)
    for inputs, width in itertools.pairwise(sizes):
        layers += [nn.Linear(inputs, width), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(sizes[-1], outputs))


def cnn_head(
    shape: tuple[int, ...], outputs: int, *, channels: int = 32, hidden: int = 128, pool: int = 2
) -> nn.Module:
    """One 3x3 convolution, ReLU, max pooling (1: none), and two linear layers: Multi-VFL's label owner."""
    if len(shape) != 3:
        raise ConfigError(f"The label model 'cnn' needs feature maps [channels, height, width]; found {shape}.")
    depth, height, width = shape
    if not 1 <= pool <= min(height, width):
        raise ConfigError(f"The label model 'cnn' pools {height} x {width} by 1 to {min(height, width)}; found {pool}.")
    layers: list[nn.Module] = [nn.Conv2d(depth, channels, 3, padding=1), nn.ReLU()]
    layers += [nn.MaxPool2d(pool)] if pool > 1 else []
    inputs = channels * (height // pool) * (width // pool)
    return nn.Sequential(*layers, nn.Flatten(-3), nn.Linear(inputs, hidden), nn.ReLU(), nn.Linear(hidden, outputs))


def _flat(shape: tuple[int, ...]) -> list[nn.Module]:
    return [] if len(shape) == 1 else [nn.Flatten(-len(shape))]
