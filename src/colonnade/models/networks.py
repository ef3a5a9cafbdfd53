"""The networks that a party can choose by a short name.

Each function takes the shape of a row and returns a model that maps rows of this shape
to `[rows, width]`, or to feature maps.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Collection, Sequence

from torch import nn

from colonnade.errors import ConfigError

Shape = tuple[int, ...]

ACTIVATIONS: dict[str, type[nn.Module]] = {
    "relu": nn.ReLU,
    "leaky_relu": nn.LeakyReLU,
    "elu": nn.ELU,
    "tanh": nn.Tanh,
}
POOLS: dict[str, Callable[[int], nn.Module]] = {
    "average": nn.AvgPool2d,
    "max": nn.MaxPool2d,
}
MLP_ENDINGS = ("same", "none")


def mlp(
    shape: Shape,
    *,
    hidden: Sequence[int] = (120,),
    width: int = 60,
    activation: str = "relu",
    dropout: float = 0.0,
    ending: str = "same",
) -> nn.Module:
    """Linear layers with activations between them. VIM's local model for MNIST is
    56-120-60.

    Args:
        shape: The shape of a row, which is flattened.
        hidden: The widths of the hidden layers.
        width: The number of outputs.
        activation: "relu", "leaky_relu", "elu" or "tanh".
        dropout: The probability of dropout after each activation.
        ending: "same" for an activation and dropout after the last layer too, "none"
            for neither.
    """
    _expect_one_of("mlp", "activation", activation, ACTIVATIONS)
    _expect_one_of("mlp", "ending", ending, MLP_ENDINGS)
    _expect_dropout("mlp", dropout)
    layers = _flatten(shape)
    sizes = [math.prod(shape), *hidden, width]
    for inputs, outputs in itertools.pairwise(sizes):
        layers += [nn.Linear(inputs, outputs), ACTIVATIONS[activation]()]
        if dropout:
            layers.append(nn.Dropout(dropout))
    if ending == "none":
        layers_after_linear = 2 if dropout else 1
        layers = layers[:-layers_after_linear]
    return nn.Sequential(*layers)


def linear(shape: Shape, *, width: int = 60) -> nn.Module:
    """One linear map of the flattened row to `width` outputs."""
    return nn.Sequential(*_flatten(shape), nn.Linear(math.prod(shape), width))


def identity(shape: Shape) -> nn.Module:
    """The columns as they are, flattened, with nothing to learn. The algorithm `fdml`
    makes a linear model without an intercept of it."""
    return nn.Identity() if len(shape) == 1 else nn.Flatten(-len(shape))


def cnn(
    shape: Shape,
    *,
    channels: Sequence[int] = (32, 64, 64, 128),
    width: int = 60,
    pool: str = "average",
    ending: str = "none",
) -> nn.Module:
    """3x3 convolutions with ReLU and 2x2 pooling, and then a linear map. The defaults
    are VIM's local model for CIFAR-10 patches.

    Args:
        shape: The shape of a row, [height, width] or [channels, height, width].
        channels: The number of channels after each convolution. Pooling ends when the
            picture is one pixel high or wide.
        width: The number of outputs.
        pool: "average" or "max".
        ending: The activation after the linear map, or "none". After "tanh" the range
            of embeddings is known beforehand.
    """
    _expect_one_of("cnn", "pool", pool, POOLS)
    _expect_one_of("cnn", "ending", ending, ["none", *ACTIVATIONS])
    layers = _add_channel_axis("cnn", shape)
    depth, height, breadth = _picture_shape(shape)
    for count in channels:
        layers += [nn.Conv2d(depth, count, 3, padding=1), nn.ReLU()]
        if min(height, breadth) > 1:
            layers.append(POOLS[pool](2))
            height //= 2
            breadth //= 2
        depth = count
    layers += [nn.Flatten(-3), nn.Linear(depth * height * breadth, width)]
    if ending != "none":
        layers.append(ACTIVATIONS[ending]())
    return nn.Sequential(*layers)


def convolution(shape: Shape, *, channels: int = 32) -> nn.Module:
    """One 3x3 convolution with ReLU, from a picture to feature maps of its size. The
    data owners of Multi-VFL have 32 channels.

    Args:
        shape: The shape of a row, [height, width] or [channels, height, width].
        channels: The number of feature maps.
    """
    layers = _add_channel_axis("convolution", shape)
    depth, _, _ = _picture_shape(shape)
    layers += [nn.Conv2d(depth, channels, 3, padding=1), nn.ReLU()]
    return nn.Sequential(*layers)


def linear_head(shape: Shape, outputs: int) -> nn.Module:
    """A label owner's linear map."""
    return linear(shape, width=outputs)


def mlp_head(shape: Shape, outputs: int, *, hidden: Sequence[int] = (64,)) -> nn.Module:
    """A label owner's linear layers with ReLU between them, and none after the last.

    Args:
        shape: The shape of what data owners send for a row, joined.
        outputs: The number of outputs that the loss reads.
        hidden: The widths of the hidden layers.
    """
    return mlp(shape, hidden=hidden, width=outputs, ending="none")


def cnn_head(
    shape: Shape, outputs: int, *, channels: int = 32, hidden: int = 128, pool: int = 2
) -> nn.Module:
    """Multi-VFL's label owner: a 3x3 convolution with ReLU, max pooling, and two linear
    layers with ReLU between them.

    Args:
        shape: The shape of the joined feature maps, [channels, height, width].
        outputs: The number of outputs that the loss reads.
        channels: The number of channels after the convolution.
        hidden: The width of the first linear layer.
        pool: The side of the squares that are pooled, or 1 for no pooling.
    """
    if len(shape) != 3:
        raise ConfigError(
            "The label model 'cnn' needs feature maps [channels, height, width]; found"
            f" {shape}."
        )
    depth, height, width = shape
    if pool > min(height, width):
        raise ConfigError(
            f"The label model 'cnn' pools {height} x {width} by 1 to"
            f" {min(height, width)}; found {pool}."
        )
    layers: list[nn.Module] = [nn.Conv2d(depth, channels, 3, padding=1), nn.ReLU()]
    if pool > 1:
        layers.append(nn.MaxPool2d(pool))
    inputs = channels * (height // pool) * (width // pool)
    layers += [nn.Flatten(-3), nn.Linear(inputs, hidden)]
    layers += [nn.ReLU(), nn.Linear(hidden, outputs)]
    return nn.Sequential(*layers)


def _flatten(shape: Shape) -> list[nn.Module]:
    """The layer that flattens rows, where they have more than one axis."""
    return [] if len(shape) == 1 else [nn.Flatten(-len(shape))]


def _add_channel_axis(model: str, shape: Shape) -> list[nn.Module]:
    """The layer that gives pictures an axis of channels, where they have none."""
    if len(shape) not in (2, 3):
        raise ConfigError(
            f"The model '{model}' needs rows of [height, width] or [channels, height,"
            f" width]; found {shape}."
        )
    if len(shape) == 3:
        return []
    height = shape[0]
    return [nn.Unflatten(-2, (1, height))]


def _picture_shape(shape: Shape) -> tuple[int, int, int]:
    """The channels, height and width of a picture that may have no axis of channels."""
    channels = shape[0] if len(shape) == 3 else 1
    return channels, shape[-2], shape[-1]


def _expect_one_of(
    model: str, setting: str, value: str, choices: Collection[str]
) -> None:
    """Refuse a value that is not among a setting's choices."""
    if value not in choices:
        raise ConfigError(
            f"The model '{model}': {setting} must be one of {', '.join(choices)}; found"
            f" {value!r}."
        )


def _expect_dropout(model: str, dropout: float) -> None:
    """Refuse a dropout that is no probability below 1."""
    is_number = isinstance(dropout, (int, float)) and not isinstance(dropout, bool)
    if not is_number or not 0 <= dropout < 1:
        raise ConfigError(
            f"The model '{model}': dropout must be a number from 0 up to, but not"
            f" including, 1; found {dropout!r}."
        )
