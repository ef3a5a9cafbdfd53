"""An organisation's seat: its outbox with its owner's rules, where its noise comes from, and its account."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from colonnade.algorithms import find
from colonnade.core import Agreed, Batches, DpEvent, Plain, Rule, Seat
from colonnade.core.chance import Secret
from colonnade.errors import ConfigError
from colonnade.privacy import Account, Budget
from colonnade.privacy.accounting import dp_accounting
from colonnade.rows.holdings import Holdings
from colonnade.rows.shares import Shares
from colonnade.settings.federation_file import PartySettings, Settings
from colonnade.settings.owners import LabelOwnerSettings, place_of
from colonnade.settings.rules import LABELS, rules_from


def make_seat(
    name: str,
    settings: Settings,
    holdings: Holdings,
    batches: Batches,
    *,
    device: torch.device,
) -> Seat:
    """One organisation's. Its ledger begins with what crossed while rows were agreed on; whose rules promise something
    for columns gets an account."""
    party = settings.parties.get(name, PartySettings())
    drives = name == holdings.label_owner
    budget = party.limit(name)
    if budget is not None and (drives or holdings.parties[name].features is None):
        raise _useless_budget(name, "parties")
    algorithm = find(settings.algorithm)
    rules = rules_from(
        party.outbox,
        owner=name,
        releases=algorithm.releases,
        from_columns=algorithm.from_columns,
        classes=len(holdings.encoder.classes) if drives else None,
        budget=budget,
        epochs=algorithm.passes(settings.train.epochs),
    )
    ids = None if drives else holdings.ids
    seat = _seat(name, rules, batches, settings, device, ids, budget)
    seat.ledger.carry(holdings.aligned.get(name, ()))
    return seat


def make_seats(
    settings: Settings, shares: Shares, agreed: Agreed, *, epochs: int, device: torch.device
) -> dict[str, Seat]:
    """Those of several label owners, the data owners, and the party without data. An organisation with labels and
    columns has one; data owners count a row once per release, whichever label owners know it."""
    algorithm = find(settings.algorithm)
    columns = algorithm.from_columns
    driven = [name for name in algorithm.releases if name not in columns]
    seats = {}
    for name in shares.names:
        own = settings.parties.get(name, PartySettings()), settings.label_owners.get(name, LabelOwnerSettings())
        features, labels = name in shares.data_owners, name in shares.label_owners
        section = "data_owners" if features else "label_owners"
        budget = own[0].limit(name, section)
        if budget is not None and labels:
            raise _useless_budget(name, section)
        rules = rules_from(
            _joined(name, own[0].outbox, own[1].outbox),
            owner=name,
            releases=[*(columns if features else ()), *(driven if labels else ())] or driven,
            from_columns=columns,
            classes=len(shares.encoder.classes) if labels else None,
            budget=budget,
            epochs=epochs,
            known_to=shares.known_to,
            section=section,
        )
        ids = shares.ids if features and not labels else None
        seats[name] = _seat(name, rules, agreed, settings, device, ids, budget)
        seats[name].ledger.carry(shares.aligned.get(name, ()))
    return seats


def _seat(
    name: str,
    rules: dict[str, Rule],
    batches: Batches | Agreed,
    settings: Settings,
    device: torch.device,
    ids: NDArray[np.str_] | None,
    budget: Budget | None,
) -> Seat:
    """With an account where rules promise something for the columns of these rows."""
    engine, algorithm = settings.engine, find(settings.algorithm)
    secret = settings.models_of(name) == "secret"
    seat = Seat.at(name, batches, seed=engine.seed, secret=secret, rules=rules, device=device)
    if rules and engine.noise == "secret":
        seat.outbox.noise = Secret()
    if ids is not None and any(not isinstance(rule.mechanism, Plain) for rule in rules.values()):
        dp_accounting()  # a missing library is told now, not at the first release
        seat.outbox.meter = Account(name, batches, ids.tolist(), budget, per_row=algorithm.per_row)
    return seat


def _joined(name: str, columns: Mapping[str, Any], labels: Mapping[str, Any]) -> dict[str, Any]:
    """An organisation's rules from both of its tables."""
    for rule in set(columns) & set(labels):
        raise ConfigError(
            f"'{name}' has one outbox, and a rule for {rule!r} in both of its tables: [[data_owners]] and "
            "[[label_owners]]. Keep one."
        )
    return {**columns, **labels}


def _useless_budget(name: str, section: str) -> ConfigError:
    return ConfigError(
        f"{place_of(section, name, 'budget')} can never be kept: a budget is for columns that leave with noise, and "
        f"what '{name}' sends as the label owner follows its labels and its own columns as they are. Remove it; "
        'labels are protected by outbox.labels = { mechanism = { name = "randomized_response", epsilon = 2.0 } }.'
    )


def accounts_of(seats: Mapping[str, Seat]) -> dict[str, Account]:
    """Of every party whose rules promise something for its columns."""
    meters = {name: seat.outbox.meter for name, seat in seats.items()}
    return {name: meter for name, meter in meters.items() if isinstance(meter, Account)}


def draw_labels(labels: Tensor, seat: Seat, train: Tensor | None = None) -> tuple[Tensor, DpEvent | None]:
    """The labels to learn from: where the owner's rule says so, those of the training rows drawn at random."""
    rule, train = seat.outbox.rules.get(LABELS), seat.batches.splits.get("train") if train is None else train
    if rule is None or train is None:
        return labels, None
    drawn = labels.clone()
    drawn[train], event = rule.mechanism.apply(labels[train], seat.outbox.noise)
    return drawn, event
