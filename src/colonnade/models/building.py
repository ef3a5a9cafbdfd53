"""Models made from the descriptions in settings files.

    model = "mlp"
    model = { name = "mlp", hidden = [120], width = 60 }
    model = { name = "my_package.nets:Tower", depth = 3 }

The third form is called with depth=3, and with shape=... if it takes a shape.

Whoever names an import path chooses code that runs here, and somebody else may have
written the federation file or the run directory. So nothing is imported that the owner
did not list: `--allow-model` on the command line, `allow_models` in the owner's own
party.toml or in Python.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

from torch import Generator, nn

from colonnade.errors import ColonnadeError, ConfigError, did_you_mean
from colonnade.models.networks import (
    Shape,
    cnn,
    cnn_head,
    convolution,
    identity,
    linear,
    linear_head,
    mlp,
    mlp_head,
)
from colonnade.models.randomness import initialised

Factory = Callable[..., nn.Module]
Description = str | Mapping[str, Any]
"""A model's name alone, or with its settings."""

MODELS: dict[str, Factory] = {
    "mlp": mlp,
    "cnn": cnn,
    "linear": linear,
    "identity": identity,
}
"""Models of feature owners."""
MAPS: dict[str, Factory] = {"convolution": convolution}
"""Models whose outputs are feature maps, for algorithms that join these."""
HEADS: dict[str, Factory] = {"linear": linear_head, "mlp": mlp_head, "cnn": cnn_head}
"""Models of label owners, where an algorithm leaves the choice to them."""

DEFAULT_MODEL = "mlp"
"""The model of a description that has settings but no name."""

SIZE = "a whole number, 1 or more"
SIZES = "a list of whole numbers, 1 or more each"
SIZE_RULES = {"int": SIZE, "Sequence[int]": SIZES}
"""The rule for a setting of Colonnade's own models, by its annotation."""


def build(
    spec: Description,
    shape: Shape,
    *,
    seed: int | Generator,
    owner: str,
    allow: Collection[str] = (),
) -> nn.Module:
    """Make a feature owner's model.

    Args:
        spec: The model's name, or its name and settings.
        shape: The shape of the owner's rows.
        seed: The seed of the initial weights, or a generator in the state to use.
        owner: The party whose model this is, for errors.
        allow: The import paths that the owner allows.
    """
    arguments = {"shape": shape}
    return _build(spec, arguments, "model", MODELS | MAPS, seed, owner, allow)


def build_head(
    spec: Description,
    shape: Shape,
    outputs: int,
    *,
    seed: int | Generator,
    owner: str,
    allow: Collection[str] = (),
) -> nn.Module:
    """Make a label owner's model, which reads what data owners send.

    Args:
        spec: The model's name, or its name and settings.
        shape: The shape of what all data owners send for a row, joined.
        outputs: The number of outputs that the loss reads.
        seed: The seed of the initial weights, or a generator in the state to use.
        owner: The party whose model this is, for errors.
        allow: The import paths that the owner allows.
    """
    arguments = {"shape": shape, "outputs": outputs}
    return _build(spec, arguments, "label model", HEADS, seed, owner, allow)


def _build(
    spec: Description,
    arguments: Mapping[str, Any],
    kind: str,
    known: Mapping[str, Factory],
    seed: int | Generator,
    owner: str,
    allow: Collection[str],
) -> nn.Module:
    """Make a model by its description.

    Args:
        spec: The description.
        arguments: What the model is told beside its settings, as far as it asks for it.
        kind: "model" or "label model", for errors.
        known: The models that have a short name.
        seed: See `build`, as for the remaining arguments.
        owner: The owner.
        allow: The import paths that the owner allows.
    """
    settings = {"name": spec} if isinstance(spec, str) else dict(spec)
    name = str(settings.pop("name", DEFAULT_MODEL))
    whose = f"The {kind} {name!r} of '{owner}'"
    if name in known:
        factory = known[name]
    else:
        factory = _imported(name, owner, known, allow)
    with initialised(seed):
        try:
            parameters = inspect.signature(factory).parameters
            _check_names(settings, parameters, arguments, whose)
            if name in known:
                _check_sizes(settings, parameters, whose)
            taken = {
                key: value for key, value in arguments.items() if key in parameters
            }
            model: Any = factory(**settings, **taken)
        except ColonnadeError:
            raise
        except TypeError as error:
            raise ConfigError(f"{whose} cannot be made: {error}.") from None
        except (Exception, SystemExit) as error:  # code of others may even end Python
            reason = f"{type(error).__name__}: {error}"
            raise ConfigError(f"{whose} cannot be made: {reason}.") from None
    if not isinstance(model, nn.Module):
        kind_of_result = type(model).__name__
        raise ConfigError(f"{whose} is a {kind_of_result}, not a torch.nn.Module.")
    return model


def _check_names(
    settings: Mapping[str, Any],
    parameters: Mapping[str, inspect.Parameter],
    arguments: Mapping[str, Any],
    whose: str,
) -> None:
    """Refuse a setting that a model does not take, or that is not for users to set."""
    kinds = [parameter.kind for parameter in parameters.values()]
    if inspect.Parameter.VAR_KEYWORD in kinds:
        return
    names = [name for name in parameters if name not in arguments]
    for setting in settings:
        if setting not in names:
            hint = did_you_mean(setting, names)
            known = ", ".join(names) or "none"
            raise ConfigError(
                f"{whose} has no setting {setting!r}{hint}. It knows: {known}."
            )


def _check_sizes(
    settings: Mapping[str, Any],
    parameters: Mapping[str, inspect.Parameter],
    whose: str,
) -> None:
    """Refuse a size of one of Colonnade's own models that is not a whole number."""
    for setting, value in settings.items():
        rule = SIZE_RULES.get(parameters[setting].annotation)
        if rule is None:
            continue
        is_right = _is_list_of_sizes(value) if rule == SIZES else _is_size(value)
        if not is_right:
            raise ConfigError(f"{whose}: {setting} must be {rule}; found {value!r}.")


def _is_size(value: object) -> bool:
    return type(value) is int and value > 0  # True is an int, too


def _is_list_of_sizes(value: object) -> bool:
    return isinstance(value, (list, tuple)) and all(map(_is_size, value))


def _module_and_attribute(path: str) -> tuple[str, str]:
    """Split an import path, which has a colon or a dot before its last name. The module
    is empty where there is neither."""
    module, _, attribute = path.replace(":", ".").rpartition(".")
    return module, attribute


def _imported(
    name: str, owner: str, known: Iterable[str], allow: Collection[str]
) -> Factory:
    """Import the class, or the function that makes a model. To import runs code, so
    only what the owner allows is imported."""
    path = _module_and_attribute(name)
    module, attribute = path
    if not module:
        hint = did_you_mean(name, list(known))
        raise ConfigError(
            f"The model of '{owner}' is {name!r}{hint}. Use one of {', '.join(known)},"
            ' or an import path like "my_package.nets:Tower".'
        )
    if path not in map(_module_and_attribute, allow):
        raise ConfigError(
            f"The model {name!r} of '{owner}' is code from outside Colonnade, and"
            " somebody else may have written the file that names it. If you know the"
            " code and want it to run here, allow it: on the command line by\n"
            f"    --allow-model {name}\n"
            f'at a site by allow_models = ["{name}"] in your own party.toml, in Python'
            f' by allow_models=["{name}"].'
        )
    try:
        factory: Factory = getattr(importlib.import_module(module), attribute)
    except (Exception, SystemExit) as error:  # whatever a module does when imported
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
