"""Local models by short name or import path. Any `nn.Module` that maps rows to `[rows,
width]` will do.

model = "mlp"
model = { name = "mlp", hidden = [120], width = 60 }
model = { name = "my_package.nets:Tower", depth = 3 }      # called with depth=3, and shape=... if it takes it

Whoever names an import path chooses code that runs here, and somebody else may have
written the federation file or the run directory. So nothing is imported that the owner
did not list: `--allow-model` on the command line, `allow_models` in its own party.toml
or in Python.

PyTorch draws initial weights from its global generator, which is forked meanwhile, so
that no global seed is used or changed. PyTorch's dropout draws from it, too: two runs
with the same seed would differ, and so would a resumed run. So a model's `nn.Dropout`
layers are replaced by ones that draw from their party's own generator.
"""

from __future__ import annotations

import importlib
import inspect
import itertools
import math
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Generator, Tensor, nn
from torch.nn.modules.dropout import _DropoutNd

from colonnade.errors import ColonnadeError, ConfigError, did_you_mean

__all__ = [
    "HEADS",
    "MAPS",
    "MODELS",
    "build",
    "build_head",
    "cnn",
    "convolution",
    "identity",
    "initialised",
    "linear",
    "mlp",
    "seeded",
]

Shape = tuple[int, ...]
Makers = dict[str, Callable[..., nn.Module]]
Described = str | Mapping[str, Any]
"""A model's name alone, or with its settings."""
ACTIVATIONS: Makers = {
    "relu": nn.ReLU,
    "leaky_relu": nn.LeakyReLU,
    "elu": nn.ELU,
    "tanh": nn.Tanh,
}
POOLS: Makers = {"average": nn.AvgPool2d, "max": nn.MaxPool2d}


def mlp(
    shape: Shape,
    *,
    hidden: Sequence[int] = (120,),
    width: int = 60,
    activation: str = "relu",
    dropout: float = 0.0,
    ending: str = "same",
) -> nn.Module:
    """Linear layers, each with an activation ("relu", "leaky_relu", "elu", "tanh") and
    then dropout with that probability, if any; the last one too, unless `ending` is
    "none". VIM's local model for MNIST is 56-120-60."""
    if activation not in ACTIVATIONS:
        raise ConfigError(
            f"The model 'mlp' has the activations {', '.join(ACTIVATIONS)}; found"
            f" {activation!r}."
        )
    if (
        isinstance(dropout, bool)
        or not isinstance(dropout, (int, float))
        or not 0 <= dropout < 1
    ):
        raise ConfigError(
            "The model 'mlp' has a dropout from 0 up to, but not including, 1; found"
            f" {dropout!r}."
        )
    if ending not in ("same", "none"):
        raise ConfigError(
            "The model 'mlp' ends like its other layers, same, or with none; found"
            f" {ending!r}."
        )
    sizes = [math.prod(shape), *hidden, width]
    layers = _flat(shape)
    for inputs, outputs in itertools.pairwise(sizes):
        layers += [nn.Linear(inputs, outputs), ACTIVATIONS[activation]()]
        layers += [nn.Dropout(dropout)] if dropout else []
    return nn.Sequential(
        *(layers if ending == "same" else layers[: -2 if dropout else -1])
    )


def linear(shape: Shape, *, width: int = 60) -> nn.Module:
    """One linear map."""
    return nn.Sequential(*_flat(shape), nn.Linear(math.prod(shape), width))


def identity(shape: Shape) -> nn.Module:
    """The columns as they are, with nothing to learn: with `fdml`, a linear model
    without an intercept."""
    return nn.Identity() if len(shape) == 1 else nn.Flatten(-len(shape))


def cnn(
    shape: Shape,
    *,
    channels: Sequence[int] = (32, 64, 64, 128),
    width: int = 60,
    pool: str = "average",
    ending: str = "none",
) -> nn.Module:
    """3x3 convolutions, each with ReLU and, while the picture is larger than 1, 2x2
    pooling, "average" or "max"; then a linear map to `width` and, if asked, an
    activation: after "tanh" the embeddings' range is known beforehand. VIM's local
    model for CIFAR-10 patches has 32-64-64-128 channels."""
    if pool not in POOLS:
        raise ConfigError(
            f"The model 'cnn' pools by {' or '.join(POOLS)}; found {pool!r}."
        )
    if ending != "none" and ending not in ACTIVATIONS:
        raise ConfigError(
            f"The model 'cnn' ends with none, {', '.join(ACTIVATIONS)}; found"
            f" {ending!r}."
        )
    layers, (depth, *size) = _pictures("cnn", shape)
    for count in channels:
        layers += [nn.Conv2d(depth, count, 3, padding=1), nn.ReLU()]
        if min(size) > 1:
            layers.append(POOLS[pool](2))
            size = [length // 2 for length in size]
        depth = count
    last = [] if ending == "none" else [ACTIVATIONS[ending]()]
    return nn.Sequential(
        *layers, nn.Flatten(-3), nn.Linear(depth * math.prod(size), width), *last
    )


def convolution(shape: Shape, *, channels: int = 32) -> nn.Module:
    """One 3x3 convolution with ReLU that keeps the picture's size: [height, width] to
    feature maps [channels, height, width]. Multi-VFL's data owners have 32 channels."""
    layers, (depth, *_) = _pictures("convolution", shape)
    return nn.Sequential(*layers, nn.Conv2d(depth, channels, 3, padding=1), nn.ReLU())


def _pictures(model: str, shape: Shape) -> tuple[list[nn.Module], Shape]:
    """What gives a picture its axis of channels, if it has none, and its shape then."""
    if len(shape) not in (2, 3):
        raise ConfigError(
            f"The model '{model}' needs rows of [height, width] or [channels, height,"
            f" width]; found {shape}."
        )
    return (
        ([], shape)
        if len(shape) == 3
        else ([nn.Unflatten(-2, (1, shape[0]))], (1, *shape))
    )


# torch initialises from a generator of the whole process
_INITIALISING = threading.RLock()


@contextmanager
def initialised(seed: int | Generator) -> Iterator[None]:
    """Modules made inside have the weights of this seed or generator state, whatever
    other threads make meanwhile."""
    start = seed if isinstance(seed, Generator) else Generator().manual_seed(seed)
    with _INITIALISING, torch.random.fork_rng(devices=[]):
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
        keep = (
            torch.rand(input.shape, generator=self.generator).to(input.device) >= self.p
        )
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
                f"The model of '{owner}' has a {type(part).__name__}, which draws from"
                " PyTorch's global generator, so that a run could not be repeated. Use"
                " nn.Dropout."
            )
    return model


def linear_head(shape: Shape, outputs: int) -> nn.Module:
    """One linear map."""
    return linear(shape, width=outputs)


def mlp_head(shape: Shape, outputs: int, *, hidden: Sequence[int] = (64,)) -> nn.Module:
    """Linear layers with ReLU between them, none after the last."""
    return mlp(shape, hidden=hidden, width=outputs, ending="none")


def cnn_head(
    shape: Shape, outputs: int, *, channels: int = 32, hidden: int = 128, pool: int = 2
) -> nn.Module:
    """One 3x3 convolution, ReLU, max pooling (1: none), and two linear layers:
    Multi-VFL's label owner."""
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
    layers += [nn.MaxPool2d(pool)] if pool > 1 else []
    inputs = channels * (height // pool) * (width // pool)
    return nn.Sequential(
        *layers,
        nn.Flatten(-3),
        nn.Linear(inputs, hidden),
        nn.ReLU(),
        nn.Linear(hidden, outputs),
    )


def _flat(shape: Shape) -> list[nn.Module]:
    return [] if len(shape) == 1 else [nn.Flatten(-len(shape))]


MODELS: Makers = {"mlp": mlp, "cnn": cnn, "linear": linear, "identity": identity}
MAPS: Makers = {"convolution": convolution}
"""Models whose outputs are feature maps, for algorithms that join these."""
HEADS: Makers = {"linear": linear_head, "mlp": mlp_head, "cnn": cnn_head}
"""Models of label owners, where an algorithm leaves the choice to them."""
SEVERAL = "a list of whole numbers, 1 or more each"
SIZES = {"int": "a whole number, 1 or more", "Sequence[int]": SEVERAL}
"""The rules for sizes, by the types that the models above give theirs."""


def build(
    spec: Described,
    shape: Shape,
    *,
    seed: int | Generator,
    owner: str,
    allow: Collection[str] = (),
) -> nn.Module:
    """Make a party's model for rows of this shape, initialised from its own seed;
    `allow` lists import paths."""
    return _build(MODELS | MAPS, spec, {"shape": shape}, seed, owner, allow)


def build_head(
    spec: Described,
    shape: Shape,
    outputs: int,
    *,
    seed: int | Generator,
    owner: str,
    allow: Collection[str] = (),
) -> nn.Module:
    """Make a label owner's model, from what data owners send for a row, joined to this
    shape, to `outputs` outputs."""
    return _build(HEADS, spec, {"shape": shape, "outputs": outputs}, seed, owner, allow)


def _build(
    known: Makers,
    spec: Described,
    given: Mapping[str, Any],
    seed: int | Generator,
    owner: str,
    allow: Collection[str],
) -> nn.Module:
    settings: dict[str, Any] = {"name": spec} if isinstance(spec, str) else dict(spec)
    name = str(settings.pop("name", "mlp"))
    whose = f"The {'label ' if known is HEADS else ''}model {name!r} of '{owner}'"
    factory = known.get(name) or _imported(name, owner, known, allow)
    with initialised(seed):
        try:
            takes = inspect.signature(factory).parameters
            names = [key for key in takes if key not in given]
            _check(settings, takes, names, whose, ours=name in known)
            model = factory(
                **settings,
                **{key: value for key, value in given.items() if key in takes},
            )
        except ColonnadeError:
            raise
        # a model that ends the program would end it as if all were well
        except (Exception, SystemExit) as error:
            reason = (
                str(error)
                if isinstance(error, TypeError)
                else f"{type(error).__name__}: {error}"
            )
            raise ConfigError(f"{whose} cannot be made: {reason}.") from None
    if not isinstance(model, nn.Module):
        raise ConfigError(
            f"{whose} is a {type(model).__name__}, not a torch.nn.Module."
        )
    return model


def _check(
    settings: Mapping[str, Any],
    takes: Mapping[str, Any],
    names: list[str],
    whose: str,
    *,
    ours: bool,
) -> None:
    """Raise for a setting that a model does not take; of our own models, also for a
    size that is none."""
    anything = any(
        parameter.kind is parameter.VAR_KEYWORD for parameter in takes.values()
    )
    for key, value in settings.items():
        if key not in names and not anything:
            hint = did_you_mean(key, names)
            known = ", ".join(names) or "none"
            raise ConfigError(
                f"{whose} has no setting {key!r}{hint}. It knows: {known}."
            )
        rule = SIZES.get(takes[key].annotation) if ours else None
        sizes = value if rule == SEVERAL else [value]
        if rule and not (
            isinstance(sizes, (list, tuple))
            and all(type(size) is int and size > 0 for size in sizes)
        ):
            raise ConfigError(f"{whose}: {key} must be {rule}; found {value!r}.")


def _dotted(name: str) -> str:
    """An import path is written with a colon before the last name, or with a dot."""
    return name.replace(":", ".")


def _imported(
    name: str, owner: str, known: Mapping[str, Any], allow: Collection[str]
) -> Callable[..., nn.Module]:
    """The class, or the function that makes a model. Importing runs code, so only what
    is allowed is imported."""
    module, _, attribute = _dotted(name).rpartition(".")
    if not module:
        hint = did_you_mean(name, list(known))
        raise ConfigError(
            f"The model of '{owner}' is {name!r}{hint}. Use one of {', '.join(known)},"
            ' or an import path like "my_package.nets:Tower".'
        )
    if _dotted(name) not in map(_dotted, allow):
        raise ConfigError(
            f"The model {name!r} of '{owner}' is code from outside Colonnade, and who"
            " wrote the file that names it may "
            "be somebody else. If you know the code and want it to run here, allow it:"
            " on the command line by\n"
            f"    --allow-model {name}\n"
            f'at a site by allow_models = ["{name}"] in your own party.toml, in Python'
            f' by allow_models=["{name}"].'
        )
    try:
        factory: Callable[..., nn.Module] = getattr(
            importlib.import_module(module), attribute
        )
    # whatever a module does when it is imported
    except (Exception, SystemExit) as error:
        raise ConfigError(
            f"The model {name!r} of '{owner}' cannot be imported: {error}."
        ) from None
    if not callable(factory):
        raise ConfigError(
            f"The model {name!r} of '{owner}' is a {type(factory).__name__}, which"
            " cannot be called."
        )
    if isinstance(factory, type) and not issubclass(factory, nn.Module):
        raise ConfigError(
            f"The model {name!r} of '{owner}' is a class, and no subclass of"
            " torch.nn.Module."
        )
    return factory
