"""What a federation file means before anything is sent: parties, rows, sizes, rounds,
bytes, time and epsilon.

plan(Settings.from_toml(Path("federation.toml"))).to_json()

Bytes are exact where sizes follow from shapes; `estimates` says where they cannot be.
They are those of all epochs: an early stop or a spent budget makes them fewer. It warns
of what is not protected, what is wasted, and what will not last.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

from torch import Tensor, nn

from colonnade.algorithms import Kind
from colonnade.errors import ConfigError
from colonnade.federation import Federation, Settings
from colonnade.federation.soundness import rare_classes
from colonnade.planning.budgets import End, budget_ends, in_words
from colonnade.planning.budgets import plan as promised
from colonnade.planning.cost import Costs, whole_run
from colonnade.planning.measure import total
from colonnade.privacy import Gaussian
from colonnade.privacy.report import Guarantee
from colonnade.settings.sections import LABELS, is_made_for_budget
from colonnade.transport.faulty import Network

MUCH = 4.0
"""Noise of so many times the clip, on every number of a row, from which on a plan warns
of it."""


def concerns(
    federation: Federation, privacy: Sequence[Guarantee], ends: Sequence[End]
) -> Iterator[str]:
    """What to warn of, each in one or two sentences with the cure."""
    yield from _unprotected(federation, privacy)
    # with a budget, noise reads as if it were for all rows
    if federation.accounts and federation.algorithm.covers:
        yield (
            f"The noise of {_names(list(federation.accounts))}"
            f" {federation.algorithm.covers}."
        )
    yield from (
        in_words(end, federation.algorithm.passes(federation.settings.train.epochs))
        for end in ends
    )
    yield from _much_noise(federation)
    yield from _few_rows(federation)
    yield from _wide_embeddings(federation)
    yield from _small_sums(federation)
    if federation.settings.data.align == "private":
        yield (
            "The common rows are found by private set intersection first. Its bytes are"
            " in these, its time is not: `colonnade align` tells."
        )
        if federation.settings.alignment.helper:
            yield (
                f"The helper '{federation.settings.alignment.helper}' may compare ids:"
                " it learns how many each party has and which blinded ids are equal,"
                " and could test ids if it colludes with a party."
            )


def _unprotected(federation: Federation, privacy: Sequence[Guarantee]) -> Iterator[str]:
    bare = [
        promise
        for promise in privacy
        if all(statement.epsilon is None for statement in promise.statements)
    ]
    bare_columns = [promise.party for promise in bare if promise.protects == "columns"]
    bare_labels = [promise.party for promise in bare if promise.protects == "labels"]
    labelled = [promise.party for promise in privacy if promise.protects == "labels"]
    columns = [name for name in bare_columns if name not in labelled]
    if columns:
        released = [
            release.release
            for promise in privacy
            if promise.party in columns
            for release in promise.releases
        ]
        releases = ", ".join(dict.fromkeys(released))
        rule = (
            '{ mechanism = { name = "gaussian", clip = 1.0, sigma = "auto" } } and a'
            " budget."
        )
        algorithm = federation.algorithm
        if open_ := algorithm.bare(federation.settings.config):
            cure = (
                f"No rule can be put on {', '.join(open_)}: to protect columns take"
                " another algorithm, such as fdml."
            )
        elif algorithm.from_columns:
            cure = f"Its owner can set outbox.{algorithm.from_columns[0]} = {rule}"
        else:
            cure = (
                "No rule can: this algorithm releases nothing of columns with a line"
                " for each row."
            )
        yield (
            f"epsilon is infinite for the columns of {_names(columns)}: no rule adds"
            f" noise to what leaves ({releases}). {cure}"
        )
    own = [name for name in bare_columns if name in labelled]
    _, driven = federation.algorithm.crosses(federation.settings.config)
    if own:
        why = (
            "what a label owner sends follows them"
            if driven
            else "they are added in without noise"
        )
        yield f"epsilon is infinite for the columns of {_names(own)}: {why}."
    if bare_labels and driven:
        yield (
            f"epsilon is infinite for the labels of {_names(bare_labels)}: what is sent"
            " follows them. Randomized response on labels bounds that, where they are"
            " classes."
        )
    if federation.settings.engine.noise == "seeded":
        yield (
            'noise = "seeded" protects nobody: whoever knows the seed can subtract it.'
            " Remove it for real data."
        )


def noise_for_budgets(federation: Federation) -> dict[str, dict[str, float]]:
    """By party and release, what sigma = "auto" became."""
    noise: dict[str, dict[str, float]] = {}
    for name, party in federation.settings.parties.items():
        for release in (release for release in party.outbox if release != LABELS):
            mechanism = federation.organisations[name].outbox.rules[release].mechanism
            if is_made_for_budget({release: party.outbox[release]}) and isinstance(
                mechanism, Gaussian
            ):
                noise.setdefault(name, {})[release] = mechanism.sigma
    return noise


def _much_noise(federation: Federation) -> Iterator[str]:
    """Warn of noise in which little of a row is left."""
    epochs = federation.algorithm.passes(federation.settings.train.epochs)
    for name, sigmas in noise_for_budgets(federation).items():
        for release, sigma in sigmas.items():
            if sigma >= MUCH:
                fewer = (
                    "Train fewer epochs, as --set train.epochs=3, take the algorithm"
                    ' "one_shot", which sends each row once, or raise the budget.'
                )
                yield (
                    f"The noise of '{name}' is {sigma:.3g} times its clip, on every"
                    f" number of {release}: so much fits its budget for {epochs}"
                    f" epoch{'s' if epochs != 1 else ''}, and the model may learn"
                    " nothing from its columns."
                    f" {fewer if epochs > 1 else 'Raise the budget, or leave it out.'}"
                )


def _few_rows(federation: Federation) -> Iterator[str]:
    train = federation.settings.train
    splits = federation.batches.splits
    rows = len(splits.get("train", ()))
    if train.batch_size > rows and federation.algorithm.config.in_batches:
        yield (
            f"[train] batch_size is {train.batch_size:,} and there are {rows:,}"
            " training rows, so an epoch is one step. A smaller one, such as"
            f" {max(rows // 8, 1)}, learns more per epoch."
        )
    for split in ("validation", "test"):
        if split not in splits:
            lost = (
                "the run cannot stop early"
                if split == "validation"
                else "nobody will know how good the model is"
            )
            yield f"[data] {split} is 0, so {lost} on rows it has not seen."
        elif len(splits[split]) < 30:
            yield (
                f"There are {len(splits[split])} {split} rows, on which a score says"
                " little."
            )
    yield from rare_classes(federation.holdings.encoder, federation.label_owners)


def _wide_embeddings(federation: Federation) -> Iterator[str]:
    """Warn of embeddings wider than the columns: they cost more than they can tell, and
    hide nothing."""
    if not federation.algorithm.named(Kind.EMBEDDING):
        return
    sizes = {
        name: (width, columns(federation, name))
        for name, width in federation.widths.items()
    }
    wider = [
        f"'{name}' {width} for {held}"
        for name, (width, held) in sizes.items()
        if width > held
    ]
    if wider:
        yield (
            f"Some send more numbers a row than they have columns: {_first_few(wider)}."
            " A smaller [model] width sends less and shows less."
        )


def _small_sums(federation: Federation) -> Iterator[str]:
    """Warn of sums over few parties: whoever knows one share knows much of the rest."""
    others = [name for name in federation.owners if name not in federation.label_owners]
    if (
        not federation.algorithm.separable(federation.settings.config)
        and len(others) == 2
    ):
        first, second = others
        yield (
            f"Secure aggregation adds up two parties alone: should '{first}' or"
            f" '{second}' tell the label owner what it sent, the other's follows. Of"
            " three parties two would have to."
        )


def _names(names: Sequence[str]) -> str:
    return _first_few([f"'{name}'" for name in names])


def _first_few(words: Sequence[str]) -> str:
    return ", ".join(words[:5]) + (
        f" and {len(words) - 5} more" if len(words) > 5 else ""
    )


@dataclass(frozen=True)
class Seconds:
    """Seconds on this machine; `low` and `high` are the total with the fastest and the
    slowest measured batch."""

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
    # by what it protects, at the end, against who knows the batches; None: infinite
    epsilon: dict[str, float | None]
    sigma: dict[str, float]  # by release: what "auto" became, in units of the clip


@dataclass(frozen=True)
class Plan:
    """Everything that is known before a run."""

    algorithm: str
    task: str
    device: str
    rows: dict[str, int]
    epochs: int
    batch_size: int
    batches: int  # in an epoch, of all label owners
    rounds: int
    parties: tuple[PartyPlan, ...]
    estimates: tuple[str, ...]  # which numbers are estimates, and why
    may_stop_early: bool  # bytes and times are then upper bounds
    seconds: Seconds
    exchanges: int
    network: float | None  # seconds, besides computing
    ends: tuple[End, ...]
    privacy: tuple[Guarantee, ...]
    warnings: tuple[str, ...]

    @property
    def bytes(self) -> dict[str, dict[str, int]]:
        """Bytes by party and way, as in a run's summary."""
        return {
            party.name: {"out": party.sends, "in": party.receives}
            for party in self.parties
        }

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {
            "bytes": self.bytes,
            "seconds": asdict(self.seconds) | {"total": self.seconds.total},
            "privacy": [guarantee.to_json() for guarantee in self.privacy],
        }


def plan(
    settings: Settings,
    *,
    batches: int = 8,
    network: Network | None = None,
    seed: int | None = None,
) -> Plan:
    """Build the federation as a run would, try a few batches in memory, and add
    everything up."""
    if batches < 1:
        raise ConfigError(f"A plan measures at least one batch; found {batches}.")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        federation = Federation.from_settings(settings, seed=seed)
        settings = federation.settings
        sizes = {
            name: parameters(federation, name) for name in federation.organisations
        }
        ends = budget_ends(federation)
        privacy = promised(federation)
        for account in federation.accounts.values():
            account.budget = None
        costs = whole_run(federation, batches)
    raised = dict.fromkeys(
        str(warning.message) for warning in caught if warning.category is UserWarning
    )
    traffic = total(part.traffic for part in costs.parts).by_party(
        federation.organisations
    )
    exchanges = sum(part.exchanges for part in costs.parts)
    epsilons = _epsilons(privacy)
    sigmas = noise_for_budgets(federation)
    algorithm = federation.algorithm
    parties = tuple(
        PartyPlan(
            name,
            tuple(federation.holdings.roles(name)),
            columns(federation, name),
            sizes[name],
            traffic[name]["out"],
            traffic[name]["in"],
            epsilons.get(name, {}),
            sigmas.get(name, {}),
        )
        for name in federation.organisations
    )
    return Plan(
        settings.algorithm,
        federation.holdings.encoder.task,
        str(federation.device),
        {split: len(rows) for split, rows in federation.batches.splits.items()},
        algorithm.passes(settings.train.epochs),
        algorithm.batch_size(
            settings.train.batch_size, len(federation.batches.splits.get("train", ()))
        ),
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
        (*concerns(federation, privacy, ends), *raised),
    )


def _seconds(costs: Costs) -> Seconds:
    training, validation, final = (part.seconds for part in costs.parts)
    middle = median(costs.per_batch) if costs.per_batch else 0.0
    bounds = (
        (min(costs.per_batch) / middle, max(costs.per_batch) / middle)
        if middle
        else (1.0, 1.0)
    )
    low, high = (training * bound + validation + final for bound in bounds)
    return Seconds(middle, training, validation, final, low, high, len(costs.per_batch))


def parameters(federation: Federation, party: str) -> int:
    """How many numbers one organisation's models learn: those of its modules, and heads
    kept as a tensor."""
    count = 0
    for role in federation.organisations[party].roles.values():
        for name, value in vars(role).items():
            if isinstance(value, nn.Module):
                count += sum(weight.numel() for weight in value.parameters())
            elif name == "heads" and isinstance(value, Tensor):
                count += value.numel()
    return count


def columns(federation: Federation, party: str) -> int:
    """How many numbers a row has at one organisation, after preparation."""
    owner = federation.owners.get(party)
    return 0 if owner is None else int(owner.features[0].numel())


def _epsilons(privacy: Sequence[Guarantee]) -> dict[str, dict[str, float | None]]:
    """What each party is promised for its columns and its labels, against who knows the
    batches."""
    epsilons: dict[str, dict[str, float | None]] = {}
    for guarantee in privacy:
        statements = guarantee.statements
        against_batches = [
            promise
            for promise in statements
            if promise.adversary.startswith("who knows the batches")
        ]
        epsilons.setdefault(guarantee.party, {})[guarantee.protects] = (
            against_batches or statements
        )[0].epsilon
    return epsilons
