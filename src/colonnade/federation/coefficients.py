"""What a column weighs, where a model is one weight per column: each owner's own, in its own folder of a run."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from colonnade.algorithms.algorithm import AnyAlgorithm
from colonnade.errors import ConfigError
from colonnade.rows.holdings import Holdings

INTERCEPT = "(intercept)"
Weights = dict[str, list[float]]


def coefficients(
    algorithm: AnyAlgorithm, holdings: Holdings, owners: Mapping[str, Any], label_owners: Mapping[str, Any]
) -> dict[str, Weights]:
    """By organisation and prepared column a weight per output, and the intercept at the label owner. Of an algorithm
    whose models are no weights of columns, nothing."""
    if algorithm.intercept is None:
        return {}
    found: dict[str, Weights] = {}
    for name, owner in owners.items():
        prepared, (weight,) = holdings.columns[name].preprocessor, owner.model.parameters()
        names = [f"column {at}" for at in range(weight.shape[1])] if prepared is None else prepared.names
        found[name] = dict(zip(names, weight.detach().T.tolist(), strict=True))
    for name, owner in label_owners.items():
        found[name] = {INTERCEPT: algorithm.intercept(owner).tolist(), **found.get(name, {})}
    return found


def weights_of(federation: Any, party: str) -> Weights:
    """A party's own, of a trained federation."""
    trained = federation.algorithm, federation.holdings, federation.owners, federation.label_owners
    found = coefficients(*trained)
    if party not in found:
        raise ConfigError(f"There are no coefficients of {party!r}: its model is none of one weight per column.")
    return found[party]


def write(folders: Mapping[str, Path], found: Mapping[str, Weights], file: str) -> None:
    """Into each organisation's own folder, its own alone."""
    for name, weights in found.items():
        (folders[name] / file).write_text(json.dumps(weights, indent=2) + "\n", encoding="utf-8")
