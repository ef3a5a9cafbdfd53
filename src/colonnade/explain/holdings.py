"""What-if holdings: the same organisations with one of them noisy, with fewer of them, or with fewer rows.

Each function returns new holdings and leaves the given ones as they are. This works in simulations, where one process
holds everything; between organisations, each would have to change its own columns itself.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Any

import torch
from torch import Generator, Tensor

from colonnade.core.checks import did_you_mean
from colonnade.errors import ConfigError
from colonnade.federation import Federation
from colonnade.rows.holdings import Holdings, LabelledRows


def noised(holdings: Holdings, party: str, rows: Tensor | None, sigma: float, generator: Generator) -> Holdings:
    """Add N(0, sigma^2) to one party's columns, in these rows (None: all). Sigma is in the units that the model
    reads, which for scaled columns is their own deviation."""
    if not sigma >= 0 or sigma == float("inf"):
        raise ConfigError(f"The noise's sigma must be a number that is not negative; found {sigma}.")
    held = holdings.columns[_with_columns(holdings, party)]
    features = held.features.clone()
    chosen = torch.arange(len(features)) if rows is None else rows
    noise = torch.randn(len(chosen), *features.shape[1:], generator=generator).to(features)
    features[chosen.to(features.device)] += sigma * noise
    return replace(holdings, columns={**holdings.columns, party: replace(held, features=features)})


def only(holdings: Holdings, parties: Collection[str]) -> Holdings:
    """The columns of these parties alone, in the order they had. The label owner stays, for its labels. Rows that none
    of these parties holds are no longer trained on or scored."""
    wanted = {_with_columns(holdings, party) for party in parties}
    if not wanted:
        raise ConfigError("At least one party must keep its columns, or there is nothing to learn from.")
    columns = {name: held for name, held in holdings.columns.items() if name in wanted}
    away = {name: mask for name, mask in holdings.away.items() if name in wanted}
    fewer = replace(holdings, columns=columns, away=away)
    if len(away) < len(columns):
        return fewer
    nobody = torch.stack(list(away.values())).all(0)
    return fewer.divided(lambda splits: {name: rows[~nobody[rows]] for name, rows in splits.items()})


def without(holdings: Holdings, party: str) -> Holdings:
    """The columns of all parties except one."""
    _with_columns(holdings, party)
    return only(holdings, [name for name in holdings.columns if name != party])


def at_rows(holdings: Holdings, split: str, rows: Tensor) -> Holdings:
    """These rows alone, as the only split: to evaluate a trained model on, not to train."""
    columns = {name: replace(held, features=held.features[rows]) for name, held in holdings.columns.items()}
    ids, labels = holdings.packed[rows.numpy()], holdings.labelled.labels[rows]
    owners = {holdings.label_owner: LabelledRows(ids, labels, {split: torch.arange(len(rows))})}
    away = {name: mask[rows] for name, mask in holdings.away.items()}
    return replace(holdings, columns=columns, label_owners=owners, packed=ids, away=away)


def _with_columns(holdings: Holdings, party: str) -> str:
    holders = list(holdings.columns)
    if party not in holders:
        hint = did_you_mean(party, holders)
        raise ConfigError(f"{party!r} holds no columns here{hint}; those who do are {', '.join(holders)}.")
    return party


def regions(federation: Federation) -> dict[str, dict[str, Any]]:
    """What each party `holds`, in words and never by its values; for strips and patches, also its `region` [top, left,
    height, width] of a `picture` [height, width]. Patches are those that the parties hold, with the padding that makes
    them equally large."""
    data, held = federation.settings.data, federation.holdings.columns
    shapes = {name: tuple(held[name].features.shape[1:]) for name in federation.owners if name in held}
    columns = 1
    if data.dataset is not None and data.split == "patches":
        columns = data.parts[1] if isinstance(data.parts, tuple) else data.parts
    cut = data.dataset is not None and data.split in ("strips", "patches")
    if not cut or any(len(shape) < 2 for shape in shapes.values()):
        return {name: {"holds": _columns(federation, name, shape)} for name, shape in shapes.items()}
    by_party: dict[str, dict[str, Any]] = {}
    top = left = 0
    for number, (name, shape) in enumerate(shapes.items(), 1):
        height, width = shape[-2:]
        by_party[name] = {"holds": f"{height} × {width} pixels", "region": [top, left, height, width]}
        top, left = (top, left + width) if number % columns else (top + height, 0)
    drawn = [held["region"] for held in by_party.values()]
    picture = [max(region[at] + region[at + 2] for region in drawn) for at in (0, 1)]
    return {name: {**held, "picture": picture} for name, held in by_party.items()}


def _columns(federation: Federation, party: str, shape: tuple[int, ...]) -> str:
    prepared = federation.holdings.columns[party].preprocessor
    if prepared is not None:
        count = len(prepared.columns)
        return f"{count} column{'s' * (count != 1)}"
    return f"{' × '.join(map(str, shape))} values"
