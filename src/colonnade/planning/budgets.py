"""Which rows of which party run out of budget first, and in which epoch."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import torch

from colonnade.core import NON_PRIVATE, Agreed, Plain
from colonnade.federation import Federation
from colonnade.federation.guarantees import guarantees, planned_releases
from colonnade.privacy import Account
from colonnade.privacy.accounting import Key, costs_nothing, known_batch
from colonnade.privacy.report import Guarantee

PURPOSES = ("train", "validation", "test")
ROOM = 1 + 1e-9
"""A budget times this may be spent, as an account allows for rounding."""


@dataclass(frozen=True)
class End:
    """Where a budget ends: its rows cannot be released as often as a whole run would."""

    party: str
    epsilon: float  # the budget
    # the first that the run cannot finish; for rows that are scored at the end alone,
    # the last
    epoch: int
    purpose: str  # what these rows are for
    rows: int  # how many run out together
    row: str  # the first of them
    times: int  # how often each can be released


def budget_ends(federation: Federation) -> list[End]:
    """The ends of all budgets that do not last for a whole run, one per party, the
    earliest first."""
    budgeted = [
        name
        for name, account in federation.accounts.items()
        if account.budget is not None
    ]
    ends = [
        end
        for name in budgeted
        for purpose in PURPOSES
        if (end := _end(federation, name, purpose)) is not None
    ]
    ends.sort(key=lambda end: (end.epoch, PURPOSES.index(end.purpose)))
    return list({end.party: end for end in reversed(ends)}.values())[::-1]


def _end(federation: Federation, party: str, purpose: str) -> End | None:
    """Find by bisection where a budget ends, since epsilon grows with the epochs; None
    where it lasts."""
    epochs = federation.algorithm.passes(federation.settings.train.epochs)
    most = (epochs or 1) if purpose != "test" else 1

    def after(number: int) -> Account:
        planned = [
            one for one in planned_releases(federation, party) if one[1] == purpose
        ]
        return expected(
            federation,
            party,
            [(batches, split, n * number // most) for batches, split, n in planned],
        )

    def lasts(number: int) -> bool:
        account = after(number)
        return epsilon_of(account) <= account.limit.epsilon * ROOM

    if lasts(most):
        return None
    first = 1 + bisect_left(range(1, most), True, key=lambda number: not lasts(number))
    account = after(first)
    counts = np.sum(list(account.by_row().values()), axis=0)
    worst = np.flatnonzero(counts == counts.max())
    before = np.sum(list(after(first - 1).counts.values()), axis=0)
    row = str(federation.holdings.ids[worst[0]])
    times = int(np.max(before, initial=0))
    epoch = epochs if purpose == "test" or not epochs else first
    return End(party, account.limit.epsilon, epoch, purpose, len(worst), row, times)


def epsilon_of(account: Account) -> float:
    """The epsilon of the row that paid most."""
    worst = 0.0
    for way in account.spent():
        spent: dict[Key, int] = {}
        for (_, key), count in way.items():
            spent[key] = spent.get(key, 0) + count
        worst = max(
            worst, known_batch(spent, account.limit.relation, account.limit.delta)
        )
    return worst


def in_words(end: End, epochs: int) -> str:
    """A budget's end in words."""
    whose = {"train": "training", "validation": "validation", "test": "test"}[
        end.purpose
    ]
    when = (
        f"epoch {end.epoch} of {epochs}"
        if end.purpose != "test" and epochs
        else f"the {end.purpose} at the end"
    )
    often = {0: "not even once", 1: "once"}.get(end.times, f"{end.times} times")
    return (
        f"'{end.party}' has a budget of epsilon {end.epsilon:g}, which ends in {when}:"
        f" {end.rows:,} of its {whose} "
        f"rows, such as {end.row!r}, can be released {often}. "
        f'{"Train for fewer epochs, add" if epochs else "Add"} noise (sigma = "auto"'
        " finds how much), or raise the "
        "budget."
    )


def plan(federation: Federation) -> list[Guarantee]:
    """What a whole run will have spent: every epoch, its validation, and the test at
    the end."""
    accounts = {
        name: expected(federation, name, planned_releases(federation, name))
        for name in federation.accounts
    }
    return guarantees(federation, accounts)


def expected(
    federation: Federation, party: str, planned: Iterable[tuple[Agreed, str, int]]
) -> Account:
    """A party's account after its rows of each split are released as often as planned."""
    algorithm = federation.algorithm
    columns, _ = algorithm.crosses(federation.settings.config)
    sent = (
        columns
        if algorithm.sends is None
        else algorithm.sends(federation.driver, party)
    )
    always = algorithm.from_columns
    trains = algorithm.trains
    own = federation.accounts[party]
    account = Account(party, own.batches, federation.holdings.ids.tolist(), own.budget)
    outbox = federation.organisations[party].outbox
    row = torch.zeros(1, federation.widths[party])
    for batches, split, times in planned:
        account.batches = batches
        for release, event in columns.items() if times else ():
            mechanism = outbox.rule_for(release, split).mechanism
            if release not in sent:
                continue
            if release in always:
                account.expect(
                    release, split, times, mechanism.apply(row, torch.Generator())[1]
                )
            elif (split == "train" or not trains) and not (
                isinstance(mechanism, Plain) and costs_nothing(event)
            ):
                account.expect(release, split, times, NON_PRIVATE)
    return account
