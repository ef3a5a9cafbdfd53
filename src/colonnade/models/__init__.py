"""Local models by short name or import path. Any `nn.Module` that maps rows to `[rows, width]` will do.

model = "mlp"
model = { name = "mlp", hidden = [120], width = 60 }
model = { name = "my_package.nets:Tower", depth = 3 }      # called with depth=3, and shape=... if it takes it
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Mapping
from typing import Any

from torch import nn

from colonnade.core.checks import did_you_mean
from colonnade.errors import ConfigError
from colonnade.models.dropout import seeded
from colonnade.models.heads import cnn_head, linear_head, mlp_head
from colonnade.models.initialise import initialised
from colonnade.models.networks import cnn, convolution, linear, mlp

__all__ = [
    "HEADS",
    "MAPS",
    "MODELS",
    "build",
    "build_head",
    "cnn",
    "convolution",
    "initialised",
    "linear",
    "mlp",
    "seeded",
]

MODELS: dict[str, Callable[..., nn.Module]] = {"mlp": mlp, "cnn": cnn, "linear": linear}
MAPS: dict[str, Callable[..., nn.Module]] = {"convolution": convolution}
"""Models whose outputs are feature maps: for algorithms that join those."""
HEADS: dict[str, Callable[..., nn.Module]] = {"linear": linear_head, "mlp": mlp_head, "cnn": cnn_head}
"""Models of label owners, where an algorithm leaves the choice to them."""


def build(spec: str | Mapping[str, Any], shape: tuple[int, ...], *, seed: int, owner: str) -> nn.Module:
    """Make one party's model for rows of this shape, initialised from its own seed."""
    return _made(MODELS | MAPS, spec, {"shape": shape}, seed, owner)


def build_head(
    spec: str | Mapping[str, Any], shape: tuple[int, ...], outputs: int, *, seed: int, owner: str
) -> nn.Module:
    """Make a label owner's model, from what data owners send for a row, joined to this shape, to so many outputs."""
    return _made(HEADS, spec, {"shape": shape, "outputs": outputs}, seed, owner)


def _made(
    known: Mapping[str, Callable[..., nn.Module]],
    spec: str | Mapping[str, Any],
    given: Mapping[str, Any],
    seed: int,
    owner: str,
) -> nn.Module:
    settings: dict[str, Any] = {"name": spec} if isinstance(spec, str) else dict(spec)
    name = str(settings.pop("name", "mlp"))
    factory = known.get(name) or _imported(name, owner, known)
    settings |= {key: value for key, value in given.items() if key in inspect.signature(factory).parameters}
    with initialised(seed):
        try:
            model = factory(**settings)
        except TypeError as error:
            raise ConfigError(f"The model {name!r} of '{owner}' cannot be made: {error}.") from None
    if not isinstance(model, nn.Module):
        raise ConfigError(f"The model {name!r} of '{owner}' is a {type(model).__name__}, not a torch.nn.Module.")
    return model


def _imported(name: str, owner: str, known: Mapping[str, Any]) -> Callable[..., nn.Module]:
    module, _, attribute = name.replace(":", ".").rpartition(".")
    if not module:
        hint = did_you_mean(name, list(known))
        raise ConfigError(
            f"The model of '{owner}' is {name!r}{hint}. Use one of {', '.join(known)}, or an import path like "
            '"my_package.nets:Tower".'
        )
    try:
        factory: Callable[..., nn.Module] = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, TypeError) as error:  # TypeError: a relative path
        raise ConfigError(f"The model {name!r} of '{owner}' cannot be imported: {error}.") from None
    if not callable(factory):
        raise ConfigError(f"The model {name!r} of '{owner}' is a {type(factory).__name__}, which cannot be called.")
    return factory
