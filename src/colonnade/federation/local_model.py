"""A party's own model: as its owner wants it or else as agreed, the same in one process and at a site."""

from __future__ import annotations

import copy
from collections.abc import Iterable

import torch
from torch import Generator, Tensor, nn

from colonnade import models
from colonnade.algorithms import complete, find
from colonnade.algorithms.algorithm import AnyAlgorithm
from colonnade.core import Seat
from colonnade.core.party import seed_for
from colonnade.errors import ConfigError
from colonnade.settings.federation_file import PartySettings, Settings
from colonnade.settings.owners import SERVER

ROWS = 4


def local_model(
    settings: Settings, seat: Seat, features: Tensor, algorithm: AnyAlgorithm, outputs: int = 0
) -> nn.Module:
    """With the head that the algorithm may want, for so many `outputs`."""
    name, seed = seat.name, settings.engine.seed
    spec = settings.parties.get(name, PartySettings()).model or settings.model or "mlp"
    start, allow = seat.start(seed_for(seed, name, "model")), settings.allow_models
    model = models.build(spec, tuple(features.shape[1:]), seed=start, owner=name, allow=allow)
    model = complete(algorithm, model, features[:1], outputs, seed=seat.start(seed_for(seed, name, "head")))
    model = models.seeded(model, seat.generator, owner=name)
    if seat.outbox.meter is not None and mixes_rows(model, features, seat.generator):
        raise ConfigError(
            f"The model of '{name}' lets the rows of a batch change each other, as BatchNorm does. So the noise "
            "for a row does not cover what it shows through the others, and no epsilon would be true. Use GroupNorm "
            "or LayerNorm, or remove the noise."
        )
    return model


def models_told(settings: Settings, names: Iterable[str]) -> dict[str, str]:
    """For a summary: of each of these organisations that has a model to train, where its initial weights came from."""
    if not find(settings.algorithm).trains:
        return {}
    return {name: settings.models_of(name) for name in names if name != SERVER}


def mixes_rows(model: nn.Module, features: Tensor, generator: Generator) -> bool:
    """Whether, in training, what comes out for a row depends on the others: one is changed, and the rest looked at.
    Dropout draws the same for both, and goes on as if nothing had been drawn."""
    chosen = features[torch.linspace(0, len(features) - 1, ROWS + 1).long()]
    before, found = generator.get_state(), []
    for first in chosen[:2]:
        generator.set_state(before)
        trial = copy.deepcopy(model, {id(generator): generator}).train()
        with torch.no_grad():
            found.append(trial(torch.cat([first[None], chosen[2:]]))[1:])
    generator.set_state(before)
    one, other = found
    return not torch.allclose(one, other, rtol=1e-4, atol=1e-6, equal_nan=True)
