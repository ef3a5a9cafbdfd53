"""What a model says of columns, each owner's own, in its own folder of a run: weights,
or how much it makes of them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from colonnade.core import roles
from colonnade.errors import ConfigError
from colonnade.rows.holdings import Holdings
from colonnade.runs.layout import COEFFICIENTS, IMPORTANCE, TREES

INTERCEPT = "(intercept)"
MEAN = "(label mean)"
LOG_MEAN = "(mean of the label's logarithm)"
SCALE = "(label scale)"
ROWS = 1000
"""So many rows show how much a model makes of a column."""
Weights = dict[str, list[float]]


def coefficients(
    federation: Any, label_owners: Mapping[str, Any]
) -> dict[str, Weights]:
    """By organisation and prepared column, give a weight per output, and at the label
    owner the intercept. Where labels are numbers, all weights are for labels of mean 0
    and variance 1; which mean and variance these had stands at the label owner, who may
    know it. An algorithm whose models are no weights of columns has none."""
    intercept = federation.algorithm.intercept
    holdings = federation.holdings
    if intercept is None:
        return {}
    weights: dict[str, Weights] = {}
    for name, owner in federation.owners.items():
        (weight,) = owner.model.parameters()
        weights[name] = {
            _named(holdings, name, at): column
            for at, column in enumerate(weight.detach().T.tolist())
        }
    for name, owner in label_owners.items():
        unit = holdings.encoder.unit
        units = {LOG_MEAN if unit.is_log else MEAN: [unit.mean], SCALE: [unit.scale]}
        units = units if holdings.encoder.task == "regression" else {}
        weights[name] = {
            INTERCEPT: intercept(owner).tolist(),
            **units,
            **weights.get(name, {}),
        }
    return weights


def weights_of(federation: Any, party: str) -> Weights:
    """Give a party's own weights in a trained federation."""
    weights = coefficients(federation, federation.label_owners)
    if party not in weights:
        raise ConfigError(
            f"There are no coefficients of {party!r}: its model is none of one weight"
            " per column."
        )
    return weights[party]


def column_importance(federation: Any) -> dict[str, dict[str, float]]:
    """By organisation, give the share of each of its columns in the splits of trees or
    in what its model sends, the largest first. Each owner computes its own for itself
    alone, and nobody is asked or told."""
    algorithm = federation.algorithm
    holdings = federation.holdings
    importance: dict[str, dict[str, float]] = {}
    for name, owner in federation.owners.items():
        prepared = holdings.columns[name].preprocessor
        if algorithm.column_importance is not None:
            shares = {
                _named(holdings, name, at): share
                for at, share in algorithm.column_importance(owner).items()
            }
        elif (
            prepared is not None
            and algorithm.local_model is not None
            and algorithm.nested is None
        ):
            held = torch.arange(len(owner.features))
            held = held[~holdings.away[name]] if name in holdings.away else held
            sample = torch.linspace(0, len(held) - 1, min(ROWS, len(held))).long()
            shares = _shares(owner, prepared.spans, held[sample])
        else:
            continue
        importance[name] = dict(sorted(shares.items(), key=lambda item: -item[1]))
    return importance


def _shares(
    owner: roles.FeatureOwner, spans: Mapping[str, slice], rows: Tensor
) -> dict[str, float]:
    """Tell by column what share of the variance of what the owner's model gives depends
    on it, alone or together with others (Jansen's estimate of Sobol's total effect):
    its values are shuffled between these rows. No label is needed.
    """
    owner.model.eval()
    x = owner.features.index_select(0, rows.to(owner.device))
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0)).to(
        owner.device
    )
    shares = {}
    with torch.no_grad():
        outputs = owner.model(x).flatten(1)
        total = 2 * float(outputs.double().var(0, correction=0).sum())
        for name, span in spans.items():
            shuffled = x.clone()
            shuffled[:, span] = x[order][:, span]
            change = (
                (owner.model(shuffled).flatten(1) - outputs)
                .double()
                .square()
                .sum(1)
                .mean()
            )
            shares[name] = float(change) / total if total else 0.0
    return shares


def importance_of(federation: Any, party: str) -> dict[str, float]:
    """Give the importance of a party's own columns in a trained federation."""
    federation.settle()
    importance = column_importance(federation)
    if party not in importance:
        raise ConfigError(
            f"There is no importance of the columns of {party!r}: it has no model of"
            " named columns here."
        )
    return importance[party]


def trees(
    federation: Any, label_owners: Mapping[str, Any]
) -> dict[str, dict[str, Any]]:
    """Describe each label owner's trees, with column and threshold where a split is its
    own: this is its own file."""
    trees_of = federation.algorithm.trees
    owners = federation.owners
    if trees_of is None:
        return {}
    described: dict[str, dict[str, Any]] = {}
    for name, owner in label_owners.items():
        described[name] = dict(trees_of(owner))
        for tree in described[name]["first"] if name in owners else ():
            own = owners[name].rounds[tree["round"]]
            for node in tree["nodes"]:
                if node["party"] == name:
                    column, threshold = (
                        own[key][node["split"]].item()
                        for key in ("column", "threshold")
                    )
                    node |= {
                        "column": _named(federation.holdings, name, column),
                        "threshold": threshold,
                    }
    return described


def write_own(
    federation: Any, folders: Mapping[str, Path], label_owners: Mapping[str, Any]
) -> None:
    """Write into each organisation's own folder what its model says of its columns, and
    at a label owner its trees."""
    federation.settle()
    for file, by_party in (
        (COEFFICIENTS, coefficients(federation, label_owners)),
        (IMPORTANCE, column_importance(federation)),
        (TREES, trees(federation, label_owners)),
    ):
        for name, own in by_party.items():
            (folders[name] / file).write_text(
                json.dumps(own, indent=2) + "\n", encoding="utf-8"
            )


def _named(holdings: Holdings, party: str, column: int) -> str:
    prepared = holdings.columns[party].preprocessor
    return f"column {column}" if prepared is None else prepared.names[column]
