"""Local models by short name or import path. Any `nn.Module` that maps rows to `[rows, width]` will do.

model = "mlp"
model = { name = "mlp", hidden = [120], width = 60 }
model = { name = "my_package.nets:Tower", depth = 3 }      # called with depth=3, and shape=... if it takes it

Whoever names an import path chooses code that runs here, and a federation file or a run directory may be somebody
else's. So nothing is imported that the owner did not list: `--allow-model` on the command line, `allow_models` in its
own party.toml or in Python.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Collection, Mapping
from typing import Any

from torch import Generator, nn

from colonnade.core.checks import did_you_mean
from colonnade.errors import ColonnadeError, ConfigError
from colonnade.models.heads import cnn_head, linear_head, mlp_head
from colonnade.models.networks import cnn, convolution, identity, initialised, linear, mlp, seeded

__all__ = [
    "HEADS",
    "MAPS",
    "MODELS",
    "build",
    "build_head",
    "cnn",
    "convolution",
    "identity",
    "import_path",
    "initialised",
    "linear",
    "mlp",
    "seeded",
]

MODELS: dict[str, Callable[..., nn.Module]] = {"mlp": mlp, "cnn": cnn, "linear": linear, "identity": identity}
MAPS: dict[str, Callable[..., nn.Module]] = {"convolution": convolution}
"""Models whose outputs are feature maps: for algorithms that join those."""
HEADS: dict[str, Callable[..., nn.Module]] = {"linear": linear_head, "mlp": mlp_head, "cnn": cnn_head}
"""Models of label owners, where an algorithm leaves the choice to them."""


def build(
    spec: str | Mapping[str, Any],
    shape: tuple[int, ...],
    *,
    seed: int | Generator,
    owner: str,
    allow: Collection[str] = (),
) -> nn.Module:
    """Make one party's model for rows of this shape, initialised from its own seed or generator; `allow` lists import
    paths."""
    return _made(MODELS | MAPS, spec, {"shape": shape}, seed, owner, allow)


def build_head(
    spec: str | Mapping[str, Any],
    shape: tuple[int, ...],
    outputs: int,
    *,
    seed: int | Generator,
    owner: str,
    allow: Collection[str] = (),
) -> nn.Module:
    """Make a label owner's model, from what data owners send for a row, joined to this shape, to so many outputs."""
    return _made(HEADS, spec, {"shape": shape, "outputs": outputs}, seed, owner, allow)


def import_path(spec: Any) -> str | None:
    """The import path that a description names; None where it names none, or a model of Colonnade's own."""
    name = spec.get("name") if isinstance(spec, Mapping) else spec
    return name if isinstance(name, str) and _dotted(name).rpartition(".")[0] else None


def _made(
    known: Mapping[str, Callable[..., nn.Module]],
    spec: str | Mapping[str, Any],
    given: Mapping[str, Any],
    seed: int | Generator,
    owner: str,
    allow: Collection[str],
) -> nn.Module:
    settings: dict[str, Any] = {"name": spec} if isinstance(spec, str) else dict(spec)
    name = str(settings.pop("name", "mlp"))
    factory = known.get(name) or _imported(name, owner, known, allow)
    with initialised(seed):
        try:
            settings |= {key: value for key, value in given.items() if key in inspect.signature(factory).parameters}
            model = factory(**settings)
        except ColonnadeError:
            raise
        except (Exception, SystemExit) as error:  # a model that ends the program would end it as if all were well
            told = str(error) if isinstance(error, TypeError) else f"{type(error).__name__}: {error}"
            raise ConfigError(f"The model {name!r} of '{owner}' cannot be made: {told}.") from None
    if not isinstance(model, nn.Module):
        raise ConfigError(f"The model {name!r} of '{owner}' is a {type(model).__name__}, not a torch.nn.Module.")
    return model


def _dotted(name: str) -> str:
    """An import path is written with a colon before the last name, or with a dot."""
    return name.replace(":", ".")


def _imported(name: str, owner: str, known: Mapping[str, Any], allow: Collection[str]) -> Callable[..., nn.Module]:
    """The class, or the function that makes a model. An import already runs code, so what is not allowed is not
    imported."""
    module, _, attribute = _dotted(name).rpartition(".")
    if not module:
        hint = did_you_mean(name, list(known))
        raise ConfigError(
            f"The model of '{owner}' is {name!r}{hint}. Use one of {', '.join(known)}, or an import path like "
            '"my_package.nets:Tower".'
        )
    if _dotted(name) not in map(_dotted, allow):
        raise ConfigError(
            f"The model {name!r} of '{owner}' is code from outside Colonnade, and who wrote the file that names it may "
            "be somebody else. If you know the code and want it to run here, allow it: on the command line by\n"
            f"    --allow-model {name}\n"
            f'at a site by allow_models = ["{name}"] in your own party.toml, in Python by allow_models=["{name}"].'
        )
    try:
        factory: Callable[..., nn.Module] = getattr(importlib.import_module(module), attribute)
    except (Exception, SystemExit) as error:  # whatever a module does when it is imported
        raise ConfigError(f"The model {name!r} of '{owner}' cannot be imported: {error}.") from None
    if not callable(factory):
        raise ConfigError(f"The model {name!r} of '{owner}' is a {type(factory).__name__}, which cannot be called.")
    if isinstance(factory, type) and not issubclass(factory, nn.Module):
        raise ConfigError(f"The model {name!r} of '{owner}' is a class, and no subclass of torch.nn.Module.")
    return factory
