"""What a federation file means before anything is sent: parties, rows, sizes, rounds, bytes, time and epsilon.

plan(Settings.from_toml(Path("federation.toml"))).to_json()

Bytes are exact where sizes follow from shapes; `estimates` says where they cannot be. They are those of all epochs: an
early stop or a spent budget makes them fewer.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

from torch import Tensor, nn

from colonnade.errors import ConfigError
from colonnade.federation import Federation, Settings
from colonnade.planning.budgets import End, budget_ends
from colonnade.planning.budgets import plan as promised
from colonnade.planning.concerns import concerns
from colonnade.planning.cost import Costs, whole_run
from colonnade.planning.traffic import total
from colonnade.privacy.report import Guarantee
from colonnade.transport.distant import Network


@dataclass(frozen=True)
class Seconds:
    """On this machine; `low` and `high` are the whole with the fastest and the slowest batch that was measured."""

    per_batch: float
    training: float
    validation: float
    final: float  # scoring at the end
    low: float
    high: float
    batches: int  # how many were measured

    @property
    def total(self) -> float:
        return self.training + self.validation + self.final


@dataclass(frozen=True)
class PartyPlan:
    """What one organisation brings, sends and gets."""

    name: str
    holds: tuple[str, ...]
    columns: int  # numbers a row after preparation
    parameters: int
    sends: int
    receives: int
    epsilon: dict[
        str, float | None
    ]  # what is protected -> epsilon at the end against who knows the batches; None: none


@dataclass(frozen=True)
class Plan:
    """All of it."""

    algorithm: str
    task: str
    device: str
    rows: dict[str, int]
    epochs: int
    batch_size: int
    batches: int  # in an epoch, of all label owners
    rounds: int
    parties: tuple[PartyPlan, ...]
    estimates: tuple[str, ...]  # which numbers are no more than that, and why
    may_stop_early: bool  # then bytes and times are at most these
    seconds: Seconds
    exchanges: int
    network: float | None  # seconds, besides computing
    ends: tuple[End, ...]
    privacy: tuple[Guarantee, ...]
    warnings: tuple[str, ...]

    @property
    def bytes(self) -> dict[str, dict[str, int]]:
        """As a summary has it."""
        return {party.name: {"out": party.sends, "in": party.receives} for party in self.parties}

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {
            "bytes": self.bytes,
            "seconds": asdict(self.seconds) | {"total": self.seconds.total},
            "privacy": [guarantee.to_json() for guarantee in self.privacy],
        }


def plan(settings: Settings, *, batches: int = 8, network: Network | None = None, seed: int | None = None) -> Plan:
    """Build the federation as a run would, try a few batches in memory, and add everything up."""
    if batches < 1:
        raise ConfigError(f"A plan measures at least one batch; found {batches}.")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        federation = Federation.from_settings(settings, seed=seed)
        settings = federation.settings
        sizes = {name: parameters(federation, name) for name in federation.organisations}
        ends = budget_ends(federation)
        privacy = promised(federation)
        for account in federation.accounts.values():
            account.budget = None
        costs = whole_run(federation, batches)
    said = dict.fromkeys(str(one.message) for one in caught if one.category is UserWarning)
    traffic = total(part.traffic for part in costs.parts).by_party(federation.organisations)
    exchanges = sum(part.exchanges for part in costs.parts)
    told, algorithm = _epsilons(privacy), federation.algorithm
    parties = tuple(
        PartyPlan(
            name, tuple(federation.holdings.roles(name)), columns(federation, name), sizes[name],
            traffic[name]["out"], traffic[name]["in"], told.get(name, {}),
        )
        for name in federation.organisations
    )  # fmt: skip
    return Plan(
        settings.algorithm,
        federation.holdings.encoder.task,
        str(federation.device),
        {split: len(rows) for split, rows in federation.batches.splits.items()},
        algorithm.passes(settings.train.epochs),
        algorithm.batch_size(settings.train.batch_size, len(federation.batches.splits.get("train", ()))),
        costs.per_epoch,
        costs.rounds,
        parties,
        tuple(costs.estimates),
        costs.rounds > 0 and settings.train.early_stop and not algorithm.once,
        _seconds(costs),
        round(exchanges),
        None if network is None else network.seconds(traffic, exchanges),
        tuple(ends),
        tuple(privacy),
        (*concerns(federation, privacy, ends), *said),
    )


def _seconds(costs: Costs) -> Seconds:
    training, validation, final = (part.seconds for part in costs.parts)
    middle = median(costs.per_batch) if costs.per_batch else 0.0
    bounds = (min(costs.per_batch) / middle, max(costs.per_batch) / middle) if middle else (1.0, 1.0)
    low, high = (training * bound + validation + final for bound in bounds)
    return Seconds(middle, training, validation, final, low, high, len(costs.per_batch))


def parameters(federation: Federation, party: str) -> int:
    """Numbers that one organisation's models learn: those of its modules, and heads kept as a tensor."""
    count = 0
    for role in federation.organisations[party].roles.values():
        for name, held in vars(role).items():
            if isinstance(held, nn.Module):
                count += sum(weight.numel() for weight in held.parameters())
            elif name == "heads" and isinstance(held, Tensor):
                count += held.numel()
    return count


def columns(federation: Federation, party: str) -> int:
    """Numbers a row has at one organisation, after preparation."""
    owner = federation.owners.get(party)
    return 0 if owner is None else int(owner.features[0].numel())


def _epsilons(privacy: Sequence[Guarantee]) -> dict[str, dict[str, float | None]]:
    """Of every party what is promised for its columns and its labels, against who knows the batches."""
    found: dict[str, dict[str, float | None]] = {}
    for each in privacy:
        known = [one for one in each.statements if one.adversary.startswith("who knows the batches")]
        found.setdefault(each.party, {})[each.protects] = (known or each.statements)[0].epsilon
    return found
