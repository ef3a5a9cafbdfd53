"""How often rows were released: each is there once, whatever order they come in and
however often they are named."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
import torch

from colonnade.core import DpEvent
from colonnade.privacy.accounting import key_of
from colonnade.privacy.counts import Counts, Record, keys_of

EVENTS = [
    DpEvent("gaussian", {"noise_multiplier": float(sigma), "clip": 1.0})
    for sigma in (4, 6)
]


def random_records(seed: int, number: int = 30) -> list[Record]:
    random = np.random.default_rng(seed)
    records = []
    for _ in range(number):
        # some of them several times
        keys = random.integers(-20, 20, size=random.integers(0, 12)).astype(np.int64)
        times = random.integers(1, 4, size=len(keys)).astype(np.int64)
        name = str(random.choice(["a", "b"]))
        event = EVENTS[int(random.integers(2))]
        records.append(Record(name, event, int(random.integers(3)), keys, times))
    return records


def by_hand(records: list[Record]) -> Counter[tuple[str, float, int]]:
    found: Counter[tuple[str, float, int]] = Counter()
    for record in records:
        for key, times in zip(record.keys.tolist(), record.times.tolist(), strict=True):
            found[record.name, record.event.parameters["noise_multiplier"], key] += (
                times
            )
    return found


def added(records: list[Record]) -> Counts:
    table = Counts()
    for record in records:
        table.add_record(record)
    return table


def told(table: Counts) -> Counter[tuple[str, float, int]]:
    return by_hand(list(table.records()))


def test_records_add_up_and_what_adds_up_is_written_as_records() -> None:
    for seed in range(20):
        records = random_records(seed)
        table = added(records)
        assert told(table) == by_hand(records)
        assert np.array_equal(table.keys, np.unique(table.keys))
        assert sum(table.rounds.values()) == sum(record.rounds for record in records)
        assert told(added(list(table.records()))) == told(table)
        assert told(Counts.from_state(table.state())) == told(table)


def test_a_state_with_its_rows_in_any_order_is_read() -> None:
    table = added(random_records(0))
    state = table.state()
    order = torch.randperm(len(table.keys))
    mixed = state | {"keys": state["keys"][order], "counts": state["counts"][:, order]}
    assert told(Counts.from_state(mixed)) == told(table)


def test_the_larger_of_two_counts_stands_row_by_row() -> None:
    for seed in range(20):
        one = added(random_records(seed, 6))
        other = added(random_records(seed + 100, 6))
        mine = told(one)
        theirs = told(other)
        more = one.raise_to(other)
        assert told(one) == mine | theirs  # the union of two Counters is their maximum
        assert more or mine == mine | theirs
        assert not one.raise_to(other)


def test_a_row_that_is_given_twice_is_there_once() -> None:
    table = Counts(keys_of(["x", "y", "x"]))
    assert len(table.keys) == 2
    assert len(set(table.find(keys_of(["x", "y", "x"])).tolist())) == 2
    assert table.ways() == []
    table.add(("a", key_of(EVENTS[0])), table.find(keys_of(["x"])), np.array([2]), 1)
    assert table.ways() == [{("a", key_of(EVENTS[0])): 2}]


def test_records_of_rows_that_are_known_do_not_sort_all_rows_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A journal of n rows has n / batch size records: to sort all rows for each would
    take rows x rows."""
    event = EVENTS[0]
    some = np.array([7, 3])
    apart = Counts()
    known = Counts()
    apart.add_record(Record("embedding", event, 0, some, np.ones(2, dtype=np.int64)))
    apart.widen(np.arange(10))
    known.widen(np.arange(10))
    monkeypatch.setattr(np, "union1d", pytest.fail)
    known.add_record(Record("embedding", event, 0, some, np.ones(2, dtype=np.int64)))
    assert (
        next(iter(known.records())).keys.tolist()
        == next(iter(apart.records())).keys.tolist()
        == [3, 7]
    )
