"""How often rows were released: each is there once, whatever order they come in and
however often they are named."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import torch

from colonnade.core import DpEvent
from colonnade.privacy.accounting import key_of
from colonnade.privacy.counts import Counts, Item, different, keys_of

EVENTS = [
    DpEvent("gaussian", {"noise_multiplier": float(sigma), "clip": 1.0})
    for sigma in (4, 6)
]


def random_releases(seed: int, number: int = 30) -> list[tuple[str, DpEvent, Any]]:
    """Releases by name and event, with the keys of their rows."""
    random = np.random.default_rng(seed)
    return [
        (
            str(random.choice(["a", "b"])),
            EVENTS[int(random.integers(2))],
            np.unique(random.integers(-20, 20, size=random.integers(0, 12))),
        )
        for _ in range(number)
    ]


def by_hand(releases: list[tuple[str, DpEvent, Any]]) -> Counter[tuple[Item, int]]:
    found: Counter[tuple[Item, int]] = Counter()
    for name, event, keys in releases:
        found.update(((name, key_of(event)), key) for key in keys.tolist())
    return found


def added(releases: list[tuple[str, DpEvent, Any]]) -> Counts:
    table = Counts(np.arange(-20, 20))
    for name, event, keys in releases:
        places = table.find(keys)
        table.add((name, key_of(event)), places, np.ones_like(places), 1)
    return table


def told(table: Counts) -> Counter[tuple[Item, int]]:
    found: Counter[tuple[Item, int]] = Counter()
    for item, counts in table.counts.items():
        for key, times in zip(table.keys.tolist(), counts.tolist(), strict=True):
            if times:
                found[item, key] = times
    return found


def test_releases_add_up() -> None:
    for seed in range(20):
        releases = random_releases(seed)
        table = added(releases)
        assert told(table) == by_hand(releases)
        assert sum(table.rounds.values()) == len(releases)
        assert told(Counts.from_state(table.state())) == told(table)


def test_what_one_more_release_makes_of_its_rows_is_told_before() -> None:
    for seed in range(20):
        releases = random_releases(seed)
        table = added(releases[:-1])
        name, event, keys = releases[-1]
        places = table.find(keys)
        item = (name, key_of(event))
        said = table.ways_after(item, places, np.ones_like(places))
        table.add(item, places, np.ones_like(places), 0)
        rows = different([counts[places] for counts in table.counts.values()])
        if len(table.counts) > 1 and len(places):
            assert {tuple(way[item] for item in table.counts) for way in said} == {
                tuple(row) for row in rows.tolist()
            }


def test_a_state_with_its_rows_in_any_order_is_read() -> None:
    table = added(random_releases(0))
    state = table.state()
    order = torch.randperm(len(table.keys))
    mixed = state | {"keys": state["keys"][order], "counts": state["counts"][:, order]}
    assert told(Counts.from_state(mixed)) == told(table)


def test_new_rows_change_nothing_for_the_others() -> None:
    table = added(random_releases(0))
    before = told(table)
    table.widen(np.array([100, -100, 5]))
    assert told(table) == before
    assert len(table.keys) == 42


def test_a_row_that_is_given_twice_is_there_once() -> None:
    table = Counts(keys_of(["x", "y", "x"]))
    assert len(table.keys) == 2
    assert len(set(table.find(keys_of(["x", "y", "x"])).tolist())) == 2
    assert table.ways() == []
    table.add(("a", key_of(EVENTS[0])), table.find(keys_of(["x"])), np.array([2]), 1)
    assert table.ways() == [{("a", key_of(EVENTS[0])): 2}]
