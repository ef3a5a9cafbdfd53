"""An organisation's seat: its outbox with its owner's rules, where its noise comes from, and its account."""

from __future__ import annotations

from collections.abc import Collection

import torch
from torch import Tensor

from colonnade.core import Batches, DpEvent, Plain, Seat
from colonnade.errors import ConfigError
from colonnade.federation.holdings import Holdings
from colonnade.federation.rules import LABELS, rules_from
from colonnade.federation.settings import PartySettings, Settings
from colonnade.privacy import Account
from colonnade.privacy.accounting import dp_accounting
from colonnade.privacy.secret import secret_generator


def make_seat(
    name: str,
    settings: Settings,
    holdings: Holdings,
    batches: Batches,
    *,
    releases: Collection[str],
    device: torch.device,
) -> Seat:
    """One organisation's, with an empty ledger; whose rules promise something for columns gets an account."""
    party, engine = settings.parties.get(name, PartySettings()), settings.engine
    drives = name == holdings.label_owner
    budget = party.limit(name)
    if budget is not None and (drives or holdings.parties[name].features is None):
        raise ConfigError(
            f"[parties.{name}.budget] can never be kept: a budget is for columns that leave with noise, and what "
            f"'{name}' sends as the label owner follows its labels and its own columns as they are. Remove it; "
            'labels are protected by outbox.labels = { mechanism = { name = "randomized_response", epsilon = 2.0 } }.'
        )
    rules = rules_from(
        party.outbox,
        owner=name,
        releases=releases,
        classes=len(holdings.encoder.classes) if drives else None,
        budget=budget,
        epochs=settings.train.epochs,
    )
    seat = Seat.at(name, batches, seed=engine.seed, rules=rules, device=device)
    if rules and engine.noise == "secret":
        seat.outbox.noise = secret_generator()
    if not drives and any(not isinstance(rule.mechanism, Plain) for rule in rules.values()):
        dp_accounting()  # a missing library is told now, not at the first release
        seat.outbox.meter = Account(name, batches, holdings.ids.tolist(), budget)
    return seat


def accounts_of(seats: dict[str, Seat]) -> dict[str, Account]:
    """Of every party whose rules promise something for its columns."""
    meters = {name: seat.outbox.meter for name, seat in seats.items()}
    return {name: meter for name, meter in meters.items() if isinstance(meter, Account)}


def draw_labels(labels: Tensor, seat: Seat) -> tuple[Tensor, DpEvent | None]:
    """The labels to learn from: where the owner's rule says so, those of the training rows drawn at random."""
    rule, train = seat.outbox.rules.get(LABELS), seat.batches.splits.get("train")
    if rule is None or train is None:
        return labels, None
    drawn = labels.clone()
    drawn[train], event = rule.mechanism.apply(labels[train], seat.outbox.noise)
    return drawn, event
