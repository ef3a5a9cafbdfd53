"""What leaves without noise is written down, so that a budget that comes later knows of
it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from colonnade.core import NON_PRIVATE, Batches, DpEvent
from colonnade.core.receipt import PUBLIC
from colonnade.errors import BudgetExhausted
from colonnade.privacy import Account, Budget
from colonnade.privacy.plain_count import PlainCount
from colonnade.store import SiteStore, Word

IDS = np.array([f"P{number}" for number in range(10)])
NOISE = DpEvent("gaussian", {"noise_multiplier": 4.0, "clip": 1.0})


def batches() -> Batches:
    rows = torch.arange(10)
    splits = {"train": rows[:6], "test": rows[6:]}
    return Batches(splits, batch_size=3, epochs=2, seed=0)


@pytest.fixture
def store(tmp_path: Path) -> SiteStore:
    made = SiteStore.create(tmp_path / "store", "lab")
    made.numbers_of([], "patient", Word.FIRST_CONTACT)
    return made


def counting(store: SiteStore) -> PlainCount:
    meter = PlainCount(batches(), lambda: IDS)
    meter.keep(store, "patient")
    return meter


def account(store: SiteStore) -> Account:
    mine = Account("lab", batches(), IDS.tolist(), Budget(epsilon=8.0))
    mine.keep(store, "patient")
    return mine


def test_a_budget_that_comes_later_knows_whose_rows_left(store: SiteStore) -> None:
    before = account(store)
    before.charge("embedding", "train/0/0", 3, NOISE)
    without = counting(store)
    for batch in ("train/0/0", "train/0/1"):
        assert without.charge("embedding", batch, 3, NON_PRIVATE) is None
    after = account(store)
    with pytest.raises(BudgetExhausted, match="infinite"):
        after.charge("embedding", "train/1/0", 3, NOISE)
    after.charge("embedding", "test[0:4]", 4, NOISE)


def test_each_row_is_written_down_once(store: SiteStore) -> None:
    for _ in range(2):  # also by another process
        meter = counting(store)
        for epoch in range(2):
            for batch in range(2):
                meter.charge("embedding", f"train/{epoch}/{batch}", 3, NON_PRIVATE)
    (counts,) = store.counts().values()
    assert counts.tolist() == [1] * 6 + [0] * 4
    assert store.witness().charges == 2


def test_what_has_no_line_for_each_row_is_written_down_for_all(
    store: SiteStore,
) -> None:
    meter = counting(store)
    meter.charge("sum", None, 1, NON_PRIVATE)
    meter.charge("key", None, 1, PUBLIC)
    (counts,) = store.counts().values()
    assert counts.tolist() == [1] * 10
