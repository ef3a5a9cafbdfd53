"""The owner's own acts on the store of its site: to make it, to copy it, to go on after
a loss, and to end all releases.

Nothing here is asked of others, and nobody but the owner can do it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from pathlib import Path

import torch

from colonnade.algorithms import find
from colonnade.core.receipt import NON_PRIVATE, DpEvent
from colonnade.core.roles import FeatureOwner, Introduce
from colonnade.errors import StoreError
from colonnade.privacy.accounting import key_of, known_batch
from colonnade.runs.run_directory import column_of_people
from colonnade.runs.stores import (
    make_site_store,
    open_site_store,
    peek_site_store,
    recover_site_store,
)
from colonnade.settings.party_file import SiteConfig
from colonnade.settings.sections import DELTA, PURPOSES
from colonnade.sites.driving import rehearse
from colonnade.store import Item, Recovery, Witness, Word


def make_store(own: SiteConfig) -> str:
    """Make the store of an organisation's site.

    Returns:
        The column by which it counts people from now on.
    """
    column = column_of_people(own.settings, own.name)
    make_site_store(own.name, own.runs, column, own.anchor)
    return column


def back_up(own: SiteConfig, path: Path) -> Witness:
    """Write a copy of the store's database as a new file."""
    with open_site_store(own.name, own.runs, own.anchor) as store:
        return store.backup(path)


def exhaust(own: SiteConfig, why: str) -> None:
    """Release none of its rows any more that a budget covers."""
    with open_site_store(own.name, own.runs, own.anchor) as store:
        store.exhaust(why)


def recover_store(
    own: SiteConfig,
    *,
    backup: Path | None = None,
    witnesses: Sequence[Witness] = (),
    missing: int | None = None,
    new_key: bool = False,
    trust_unsigned: bool = False,
) -> tuple[Recovery, DpEvent]:
    """Let the store go on after a loss, everybody charged for what is missing.

    Returns:
        What was found and done, and the event that each missing release is counted as:
        the dearest of those that its rules make and that its store knows.
    """
    event = dearest([*_events_of_rules(own), *_events_known(own)])
    item = Item.of("", event.kind, event.parameters)
    recovery = recover_site_store(
        own.name,
        own.runs,
        item,
        anchor=own.anchor,
        backup=backup,
        witnesses=witnesses,
        missing=missing,
        new_key=new_key,
        trust_unsigned=trust_unsigned,
    )
    with open_site_store(own.name, own.runs, own.anchor) as store:
        if store.identity is None:  # nothing was left that says who is counted
            column = column_of_people(own.settings, own.name)
            store.numbers_of([], column, Word.FIRST_CONTACT)
    return recovery, event


def dearest(events: Iterable[DpEvent]) -> DpEvent:
    """The event of which one costs a person the largest epsilon. Where nothing is known
    it is one without any promise."""
    costs = {
        key_of(event): (known_batch({key_of(event): 1}, "replace-one", DELTA), event)
        for event in events
    }
    if not costs:
        return NON_PRIVATE
    return max(costs.values(), key=lambda priced: priced[0])[1]


def _events_of_rules(own: SiteConfig) -> list[DpEvent]:
    """What its rules make of a row of columns, for each release and purpose."""
    rehearsed = rehearse(own)
    if rehearsed is None:
        return []
    _, organisation = rehearsed
    columns = organisation.roles.get("features")
    if not isinstance(columns, FeatureOwner):
        return []
    row = torch.zeros(1, math.prod(columns.introduce(Introduce()).shape))
    return [
        organisation.outbox.rule_for(name, purpose).mechanism.apply(
            row, torch.Generator()
        )[1]
        for name in find(own.settings.algorithm).from_columns
        for purpose in PURPOSES
    ]


def _events_known(own: SiteConfig) -> list[DpEvent]:
    """What its rows were released with, as far as its store can still be read."""
    try:
        store = peek_site_store(own.name, own.runs)
    except StoreError:
        return []
    if store is None:
        return []
    return [DpEvent(item.kind, item.parameters) for way in store.ways() for item in way]
