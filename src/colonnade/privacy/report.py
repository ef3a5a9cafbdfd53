"""What is guaranteed against whom: one statement per (adversary, neighbouring relation,
accountant).

Statements about columns and about labels are never added up. An epsilon of None is "no
guarantee".
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from colonnade.core.receipt import PUBLIC, DpEvent
from colonnade.privacy import accounting, binomial, gaussian, randomized_response
from colonnade.privacy.accounting import (
    Key,
    costs_nothing,
    event_of,
    is_private,
    known_batch,
)
from colonnade.privacy.budget import Account
from colonnade.privacy.counts import Item, by_event

HIDDEN = "who does not know the batches"
READER = "the label owner"
KNOWN = f"who knows the batches: {READER}"
THROUGH = f"{READER}, also through the local model"
OWN = (
    "the row's own releases, with the local model and the scaling learned from training"
    " rows taken as given"
)
AGAIN = "of this run; every new run draws the labels again and adds its epsilon"
TRAINING = "training alone"
NO_MORE = "no more than to who knows the batches"
FIXED = (
    "every row is in one batch of each epoch, so it gains nothing that batches are"
    ' unknown; drawn anew it would (sampling = "poisson")'
)


@dataclass(frozen=True)
class Statement:
    """One (epsilon, delta)."""

    adversary: str
    relation: str
    accountant: str
    epsilon: float | None
    delta: float
    note: str = ""


@dataclass(frozen=True)
class Release:
    """One kind of release: how it was made, and how often one row was in it at most."""

    release: str
    mechanism: str
    appearances: int | None


@dataclass(frozen=True)
class Guarantee:
    """One organisation's columns, or its labels."""

    party: str
    protects: str
    releases: tuple[Release, ...]
    statements: tuple[Statement, ...]
    budget: dict[str, Any] | None = None
    notes: tuple[str, ...] = field(default=())

    def to_json(self) -> dict[str, Any]:
        """The form that a summary keeps."""
        return {
            key: list(value) if isinstance(value, tuple) else value
            for key, value in asdict(self).items()
        }


def nothing(
    party: str, protects: str, releases: Mapping[str, DpEvent], why: str = ""
) -> Guarantee:
    """No guarantee at all; the releases still say what is encrypted or public."""
    described = tuple(
        Release(name, describe(event), None) for name, event in releases.items()
    )
    return Guarantee(
        party, protects, described, (Statement("anybody", "any", "-", None, 0.0, why),)
    )


def for_labels(
    party: str, event: DpEvent, releases: Iterable[str], owners: int = 1
) -> Guarantee:
    """Label-DP of labels that were drawn once, by each of several `owners`; what is
    sent follows from the draw."""
    epsilon = event.parameters["epsilon"]
    note = "label-DP of the training rows, pure; says nothing about columns"
    if owners > 1:
        note = (
            f"{note}; each label owner draws by itself, so it is up to n x epsilon for"
            f" a row that n label owners know, here up to {owners}"
        )
    statement = Statement(
        "anybody", "one row's label replaced", "randomized response", epsilon, 0.0, note
    )
    drawn = Release("labels", describe(event), 1)
    notes = (f"covers {', '.join(releases) or 'predictions'}", AGAIN)
    return Guarantee(party, "labels", (drawn,), (statement,), notes=notes)


def for_columns(
    party: str, account: Account, *, seeded: bool = False, reader: str = READER
) -> Guarantee:
    """All statements that follow from an account, against whoever gets the releases."""
    limit = account.limit
    items = [item for item in account.counts if not costs_nothing(event_of(item[1]))]
    released = {item: account.released(item)[0] for item in account.counts}
    releases = tuple(
        Release(name, describe(event_of(key)), most)
        for (name, key), most in released.items()
    )
    delta = limit.delta
    paid = [by_event(spent) for spent in account.spent()]
    statements: list[Statement] = []
    training = [item for item in items if account.rounds[item]]
    if len(training) == 1 and _is_gaussian(training[0][1]) and account.rows:
        item = training[0]
        statements += _hidden(
            item[1], account, account.rounds[item], account.released(item)[0], delta
        )
    for relation in dict.fromkeys([limit.relation, "replace-one", "add-or-remove"]):
        statements += _known(paid, relation, delta)
    if training:
        statements.append(_through_the_model(account, items, delta))
    budget = None
    if account.budget is not None:
        epsilon = max(
            (known_batch(spent, limit.relation, delta) for spent in paid), default=0.0
        )
        budget = {
            "epsilon": limit.epsilon,
            "delta": delta,
            "relation": limit.relation,
            "spent": _finite(epsilon),
        }
    notes = (
        (
            "the noise comes from the agreed seed, which everybody knows: an"
            " experiment, no protection"
        ),
    )
    named = tuple(
        replace(statement, adversary=statement.adversary.replace(READER, reader))
        for statement in statements
    )
    return Guarantee(party, "columns", releases, named, budget, notes if seeded else ())


def _hidden(
    key: Key, account: Account, rounds: int, appearances: int, delta: float
) -> list[Statement]:
    """Statements against somebody who does not know which batches a row was in:
    amplified where batches were drawn at random. A statement about a removed row always
    comes with one about a replaced row, which tells more."""
    sigma = dict(key[1])["noise_multiplier"]
    rows = account.rows
    batch = account.batch_size
    if account.sampling == "poisson":
        replaced = known_batch({key: appearances}, "replace-one", delta)
        drawn = sigma, rows, batch, rounds, delta
        pld = accounting.hidden_pld(*drawn)
        rdp = accounting.hidden_poisson_rdp(*drawn)
        return [
            Statement(
                HIDDEN, "add-or-remove", "PLD, Poisson batches", pld, delta, TRAINING
            ),
            Statement(
                HIDDEN,
                "add-or-remove",
                "RDP, Poisson batches",
                rdp,
                delta,
                f"as VIM computes its own; {TRAINING}",
            ),
            Statement(
                HIDDEN,
                "replace-one",
                "no amplification",
                replaced,
                delta,
                f"{NO_MORE}; {TRAINING}",
            ),
        ]
    if account.sampling == "without_replacement":
        how = "RDP, batches without replacement"
        once, twice = (
            accounting.hidden_rdp(sigma / moved, rows, batch, rounds, delta)
            for moved in (1, 2)
        )
        printed = f"VIM's Theorem 1, by a tighter bound than its Eq. 11; {TRAINING}"
        return [
            Statement(HIDDEN, "replace-one, sensitivity C", how, once, delta, printed),
            Statement(
                HIDDEN,
                "replace-one",
                how,
                twice,
                delta,
                f"the same with sensitivity 2C; {TRAINING}",
            ),
        ]
    note = f"{FIXED}; {TRAINING}"
    statements = []
    for relation in dict.fromkeys([account.limit.relation, "replace-one"]):
        epsilon = known_batch({key: appearances}, relation, delta)
        statements.append(
            Statement(HIDDEN, relation, "no amplification", epsilon, delta, note)
        )
    return statements


def _known(paid: list[dict[Key, int]], relation: str, delta: float) -> list[Statement]:
    """Statements over a row's own appearances, on which a budget is enforced."""
    worst = max(paid, key=lambda spent: known_batch(spent, relation, delta), default={})
    epsilon = known_batch(worst, relation, delta)
    used = [
        (key, n) for key, n in worst.items() if n and not costs_nothing(event_of(key))
    ]
    if any(key[0] == binomial.KIND for key, _ in used) and all(
        is_private(event_of(key)) for key, _ in used
    ):
        if relation != "replace-one":
            return []
        exact = accounting.binomial_pld(used, 0.0, delta) if len(used) == 1 else epsilon
        statements = [
            Statement(
                KNOWN,
                relation,
                "exact privacy-loss distribution",
                _finite(exact),
                delta,
                OWN,
            )
        ]
        if len(used) == 1:
            theorem = accounting.binomial_cpsgd(*used[0], delta)
            note = _note_on(theorem)
            statements.append(
                Statement(
                    KNOWN, relation, "cpSGD's theorem", _finite(theorem), delta, note
                )
            )
        return statements
    return [
        Statement(
            KNOWN, relation, "exact Gaussian composition", _finite(epsilon), delta, OWN
        )
    ]


def _note_on(theorem: float) -> str:
    if math.isinf(theorem):
        return "its condition on N p (1 - p) does not hold"
    return (
        OWN
        if theorem <= binomial.PROVEN
        else "above 1, where its Gaussian term is not proven: not relied upon"
    )


def _through_the_model(account: Account, items: list[Item], delta: float) -> Statement:
    """A statement for a training row that also moves the local model, and so every
    later release, each by up to 2C."""
    note = (
        "a training row moves the local model, and with it all rows released later; no"
        " proof in the papers covers it"
    )
    relation = "replace-one"
    if not all(_is_gaussian(item[1]) for item in items):
        return Statement(THROUGH, relation, "-", None, delta, note)
    total = sum(
        account.released(item)[1] / dict(item[1][1])["noise_multiplier"] ** 2
        for item in items
    )
    epsilon = accounting.gaussian_epsilon(
        accounting.moves(relation) * math.sqrt(total), delta
    )
    return Statement(
        THROUGH,
        relation,
        "Gaussian composition over all rows",
        _finite(epsilon),
        delta,
        note,
    )


def _is_gaussian(key: Key) -> bool:
    return key[0] == gaussian.KIND and is_private(event_of(key))


def _finite(epsilon: float) -> float | None:
    return None if math.isinf(epsilon) else epsilon


def describe(event: DpEvent) -> str:
    """A mechanism in words."""
    values = {key: f"{value:g}" for key, value in event.parameters.items()}
    match event.kind:
        case gaussian.KIND if is_private(event):
            return (
                f"gaussian, clip {values.get('clip', '?')}, sigma"
                f" {values['noise_multiplier']}"
            )
        case binomial.KIND:
            return (
                f"binomial, {values['levels']} levels, Bin({values['trials']},"
                f" {values['p']}), {values['coordinates']} values a row"
            )
        case randomized_response.KIND:
            return (
                f"randomized response over {values['classes']}"
                f" classes{', in two stages' * ('stages' in values)}"
            )
        case "summed (secure aggregation)":
            return "masked: only the sum over all parties can be read"
        case kind if kind.startswith("summed ("):
            return (
                f"encrypted{kind.removeprefix('summed')}: the key holder can read the"
                " sum over the other parties"
            )
    if event == PUBLIC:
        return "public: nothing about data"
    if costs_nothing(event):
        reader = (
            "the key holder"
            if event.kind.startswith("encrypted")
            else "the mask's maker"
        )
        return f"{event.kind}: readable by {reader} only"
    return "plain"
