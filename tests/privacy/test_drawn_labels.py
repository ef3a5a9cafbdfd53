"""A label is drawn once: what the store says is used again, and only rows that it lacks
are drawn."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from colonnade.core.receipt import DpEvent
from colonnade.errors import InputError, StoreError
from colonnade.privacy.drawn_labels import DrawnLabels
from colonnade.store import SiteStore, Word

RULE: dict[str, str | float] = {"mechanism": "RandomizedResponse", "epsilon": 1.0}
EVENT = DpEvent("randomized-response", {"epsilon": 1.0})


class Drawing:
    """Counts which rows it was asked for; each draw is another number."""

    def __init__(self) -> None:
        self.asked: list[list[int]] = []

    def __call__(self, rows: torch.Tensor) -> tuple[torch.Tensor, DpEvent]:
        if len(rows):
            self.asked.append(rows.tolist())
        return rows + 100 * len(self.asked), EVENT


@pytest.fixture
def store(tmp_path: Path) -> SiteStore:
    made = SiteStore.create(tmp_path / "store", "clinic")
    made.numbers_of([], "patient", Word.FIRST_CONTACT)
    return made


def labels_of(store: SiteStore, label: str = "diagnosis") -> DrawnLabels:
    return DrawnLabels(lambda: store, label, "patient", Word.NEW_PEOPLE)


def actual(ids: np.ndarray) -> torch.Tensor:
    return torch.zeros(len(ids), dtype=torch.int64)


def drawn(
    store: SiteStore, names: str, draw: Drawing, label: str = "diagnosis"
) -> list[int]:
    ids = np.array(names.split())
    found, event = labels_of(store, label).once(ids, actual(ids), RULE, draw)
    assert event == EVENT
    return found.tolist()


def test_only_rows_that_were_never_drawn_are_drawn_in_whatever_order_they_come(
    store: SiteStore,
) -> None:
    draw = Drawing()
    assert drawn(store, "c a b", draw) == [100, 101, 102]
    assert drawn(store, "b x a c y", draw) == [102, 201, 101, 100, 204]
    assert drawn(store, "y b", draw) == [204, 102]
    assert draw.asked == [[0, 1, 2], [1, 4]]


def test_another_task_does_not_learn_the_first_tasks_labels(store: SiteStore) -> None:
    """Two columns with the same classes: what was drawn of the one says nothing about
    the other."""
    draw = Drawing()
    assert drawn(store, "a b", draw, "diagnosis") == [100, 101]
    assert drawn(store, "a b", draw, "smoker") == [200, 201]
    assert drawn(store, "a b", draw, "diagnosis") == [100, 101]


def test_a_draw_that_fails_keeps_nothing(store: SiteStore) -> None:
    def fails(rows: torch.Tensor) -> tuple[torch.Tensor, DpEvent]:
        if len(rows):
            raise InputError(f"{len(rows)}")
        return rows, EVENT

    ids = np.array(["a"])
    with pytest.raises(InputError):
        labels_of(store).once(ids, actual(ids), RULE, fails)
    assert drawn(store, "a", Drawing()) == [100]


def test_another_rule_is_refused(store: SiteStore) -> None:
    draw = Drawing()
    drawn(store, "a b", draw)
    ids = np.array(["a", "b"])
    with pytest.raises(StoreError, match="A second draw shows them once more"):
        labels_of(store).once(ids, actual(ids), {**RULE, "epsilon": 2.0}, draw)
    assert len(draw.asked) == 1


def test_a_label_that_was_corrected_since_is_told(
    store: SiteStore, caplog: pytest.LogCaptureFixture
) -> None:
    drawn(store, "a b", Drawing())
    assert "were changed since" not in caplog.text
    ids = np.array(["a", "b"])
    labels_of(store).once(ids, torch.tensor([0, 1]), RULE, Drawing())
    assert "1 labels of 'diagnosis'" in caplog.text
