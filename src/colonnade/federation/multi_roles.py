"""What each organisation builds where several hold labels: the same in one process and at sites of their own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from colonnade import models
from colonnade.algorithms import find
from colonnade.algorithms.algorithm import Nested
from colonnade.core import Batches, DpEvent, Seat
from colonnade.core.party import seed_for
from colonnade.federation.local_model import local_model
from colonnade.federation.seats import draw_labels
from colonnade.optim.losses import Loss
from colonnade.settings.federation_file import Settings


def nested_of(settings: Settings) -> Nested[Any, Any, Any]:
    """How the algorithm drives several label owners."""
    nested = find(settings.algorithm).nested
    assert nested is not None, f"{settings.algorithm} has one label owner"
    return nested


def epochs_of(settings: Settings) -> int:
    """How often a whole run goes through a label owner's rows."""
    epochs: int = settings.train.epochs * settings.config.local_epochs
    return epochs


def batches_for(settings: Settings, owner: str, splits: Mapping[str, Tensor]) -> Batches:
    """Of one label owner's rows."""
    train = settings.train
    return Batches(
        splits,
        batch_size=train.batch_size,
        epochs=epochs_of(settings),
        seed=settings.engine.seed,
        reshuffle=train.reshuffle,
        owner=owner,
    )


def data_owner(settings: Settings, seat: Seat, features: Tensor, agreed: Any) -> Any:
    """Columns and their model."""
    algorithm = find(settings.algorithm)
    model = local_model(settings, seat, features, algorithm)
    return algorithm.feature_owner(seat, features, model, settings.config, agreed)


def label_owner(
    settings: Settings, seat: Seat, labels: Tensor, loss: Loss, batches: Batches
) -> tuple[Any, DpEvent | None]:
    """Labels, and how they were drawn where its owner's rule says so."""
    name = seat.name
    given, event = draw_labels(labels, seat, batches.splits.get("train"))
    spec = settings.label_model or "mlp"
    start = seat.start(seed_for(settings.engine.seed, name, "head"))

    def build(shape: tuple[int, ...]) -> torch.nn.Module:
        return models.build_head(spec, shape, loss.outputs, seed=start, owner=name, allow=settings.allow_models)

    return find(settings.algorithm).label_owner(seat, given, loss, settings.config, batches, build), event
