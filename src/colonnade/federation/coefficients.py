"""What a model says of columns, each owner's own, in its own folder of a run: weights, or how much trees use them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from colonnade.algorithms.algorithm import AnyAlgorithm
from colonnade.errors import ConfigError
from colonnade.rows.holdings import Holdings
from colonnade.runs.layout import COEFFICIENTS, IMPORTANCE, TREES

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


def column_importance(
    algorithm: AnyAlgorithm, holdings: Holdings, owners: Mapping[str, Any]
) -> dict[str, dict[str, float]]:
    """By organisation the share of each of its prepared columns, the largest first, for itself alone."""
    if algorithm.column_importance is None:
        return {}
    found: dict[str, dict[str, float]] = {}
    for name, owner in owners.items():
        shares = sorted(algorithm.column_importance(owner).items(), key=lambda one: -one[1])
        found[name] = {_named(holdings, name, column): share for column, share in shares}
    return found


def trees(
    algorithm: AnyAlgorithm, holdings: Holdings, owners: Mapping[str, Any], label_owners: Mapping[str, Any]
) -> dict[str, dict[str, Any]]:
    """What a label owner says of its trees. Where a split is its own, its column and threshold stand there: this is
    its own file."""
    if algorithm.trees is None:
        return {}
    found: dict[str, dict[str, Any]] = {}
    for name, owner in label_owners.items():
        found[name] = dict(algorithm.trees(owner))
        for tree in found[name]["first"] if name in owners else ():
            own = owners[name].rounds[tree["round"]]
            for node in tree["nodes"]:
                if node["party"] == name:
                    column, threshold = (own[key][node["split"]].item() for key in ("column", "threshold"))
                    node |= {"column": _named(holdings, name, column), "threshold": threshold}
    return found


def write_own(federation: Any, folders: Mapping[str, Path], label_owners: Mapping[str, Any]) -> None:
    """Into each organisation's own folder what its model says of its columns, and at a label owner its trees."""
    algorithm, holdings, owners = federation.algorithm, federation.holdings, federation.owners
    write(folders, coefficients(algorithm, holdings, owners, label_owners), COEFFICIENTS)
    write(folders, column_importance(algorithm, holdings, owners), IMPORTANCE)
    write(folders, trees(algorithm, holdings, owners, label_owners), TREES)


def _named(holdings: Holdings, party: str, column: int) -> str:
    prepared = holdings.columns[party].preprocessor
    return f"column {column}" if prepared is None else prepared.names[column]


def write(folders: Mapping[str, Path], found: Mapping[str, Mapping[str, Any]], file: str) -> None:
    """Into each organisation's own folder, its own alone."""
    for name, told in found.items():
        (folders[name] / file).write_text(json.dumps(told, indent=2) + "\n", encoding="utf-8")
