"""A small store, and what tests do with it."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from colonnade.store import Item, Release, SiteStore, Way, Word

OWNER = "clinic"
COLUMN = "ssn"
PEOPLE = [f"p{number}" for number in range(12)]
GAUSSIAN = Item.of("embedding", "gaussian", {"noise_multiplier": 2.0})
PLAIN = Item.of("embedding", "non-private", {})


class OverLimitError(Exception):
    """A release that costs too much."""


def new_store(folder: Path) -> SiteStore:
    """A store on the disk that knows `PEOPLE`."""
    store = SiteStore.create(folder, OWNER)
    store.numbers_of(PEOPLE, COLUMN, Word.FIRST_CONTACT)
    return store


def reopened(folder: Path) -> SiteStore:
    return SiteStore.open(folder, OWNER)


def of(people: Sequence[int] | None, item: Item = GAUSSIAN) -> Release:
    """A release of people by number; None: of everybody."""
    numbers = None if people is None else np.array(people, dtype=np.int64)
    return Release(item.name, item.kind, item.parameters, numbers)


def at_most(limit: int) -> Callable[[Sequence[Way]], None]:
    """Refuse releases after which somebody was released more often."""

    def affordable(ways: Sequence[Way]) -> None:
        if any(sum(way.values()) > limit for way in ways):
            raise OverLimitError

    return affordable


def spent(store: SiteStore) -> list[int]:
    """How often each of `PEOPLE` was released, by whatever item."""
    totals = np.zeros(len(PEOPLE), dtype=np.int64)
    for counts in store.counts().values():
        totals += counts[: len(PEOPLE)]
    return [int(total) for total in totals]


def copied(folder: Path, to: Path) -> Path:
    """A copy of a store's folder, without its anchor."""
    shutil.copytree(folder, to)
    return to


def put_back(copy: Path, folder: Path) -> None:
    """Replace a store's folder by a copy of it."""
    shutil.rmtree(folder)
    shutil.copytree(copy, folder)
