"""Labels, allowances, orders, runs and refusals: all that is remembered besides
counts."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import numpy as np
import pytest
from tests.store.small import OWNER, new_store, reopened

from colonnade.errors import StoreError
from colonnade.store import Grant, LabelColumn, SiteStore, check_name
from colonnade.store.places import IntArray

DIAGNOSIS = LabelColumn("patients", "diagnosis")
SMOKER = LabelColumn("patients", "smoker")
RULE: dict[str, str | float] = {"mechanism": "randomized_response", "epsilon": 1.0}
TODAY = date(2026, 3, 1)
DAY = timedelta(days=1)


@pytest.fixture
def store(tmp_path: Path) -> SiteStore:
    return new_store(tmp_path / "store")


class Drawer:
    """Draws classes at random, and notes of whom."""

    def __init__(self, seed: int) -> None:
        self.asked: list[int] = []
        self._chance = np.random.default_rng(seed)

    def __call__(self, places: IntArray) -> IntArray:
        self.asked += places.tolist()
        return self._chance.integers(0, 5, len(places))


def test_a_label_is_drawn_once_over_all_runs(tmp_path: Path) -> None:
    people = np.array([3, 1, 2, 1])
    actual = np.array([0, 1, 2, 1])
    first, second = Drawer(1), Drawer(2)
    with new_store(tmp_path / "store") as store:
        drawn = store.draw_labels(DIAGNOSIS, people, actual, RULE, first)
    assert first.asked == [0, 1, 2]
    assert drawn.classes[1] == drawn.classes[3]
    with reopened(tmp_path / "store") as store:
        again = store.draw_labels(
            DIAGNOSIS, np.array([5, 3, 2]), np.array([4, 0, 2]), RULE, second
        )
    assert second.asked == [0]
    assert again.classes[1:].tolist() == [drawn.classes[0], drawn.classes[2]]
    assert not again.is_corrected.any()


def test_each_column_has_its_own_labels(store: SiteStore) -> None:
    """A second task with the same classes does not learn the first task's labels."""
    people = np.arange(12)
    first, second = Drawer(1), Drawer(2)
    one = store.draw_labels(DIAGNOSIS, people, people % 2, RULE, first)
    two = store.draw_labels(SMOKER, people, people % 2, RULE, second)
    assert second.asked == people.tolist()
    assert one.classes.tolist() != two.classes.tolist()


def test_another_rule_for_the_same_labels_is_refused(store: SiteStore) -> None:
    people = np.arange(3)
    store.draw_labels(DIAGNOSIS, people, people, RULE, Drawer(1))
    with pytest.raises(StoreError, match="Keep the rule"):
        store.draw_labels(
            DIAGNOSIS, people, people, {**RULE, "epsilon": 2.0}, Drawer(1)
        )
    store.draw_labels(SMOKER, people, people, {**RULE, "epsilon": 2.0}, Drawer(1))


def test_a_label_that_was_corrected_is_told(
    store: SiteStore, caplog: pytest.LogCaptureFixture
) -> None:
    people = np.arange(3)
    drawn = store.draw_labels(DIAGNOSIS, people, np.array([0, 1, 0]), RULE, Drawer(1))
    assert not drawn.is_corrected.any()
    again = store.draw_labels(DIAGNOSIS, people, np.array([0, 0, 0]), RULE, Drawer(2))
    assert again.is_corrected.tolist() == [False, True, False]
    assert again.classes.tolist() == drawn.classes.tolist()
    assert "1 labels of 'diagnosis'" in caplog.text


def test_an_allowance_ends_with_the_day(store: SiteStore) -> None:
    for counted in (1, 2, 3):
        grant = store.take("bank", "alignments", 1, most=3, day=TODAY)
        assert grant == Grant(counted, is_given=True)
    refused = store.take("bank", "alignments", 1, most=3, day=TODAY)
    assert refused == Grant(3, is_given=False)
    assert store.take("bank", "ids", 100, most=100, day=TODAY).is_given
    assert store.take("shop", "alignments", 1, most=3, day=TODAY).is_given
    tomorrow = store.take("bank", "alignments", 1, most=3, day=TODAY + DAY)
    assert tomorrow == Grant(1, is_given=True)
    assert store.taken(TODAY + DAY) == {"bank": {"alignments": 1}}


def test_allowances_outlive_the_process(tmp_path: Path) -> None:
    with new_store(tmp_path / "store") as store:
        store.take("bank", "alignments", 3, most=3, day=TODAY)
    with reopened(tmp_path / "store") as store:
        refused = store.take("bank", "alignments", 1, most=3, day=TODAY)
        assert refused == Grant(3, is_given=False)


def test_a_clock_in_the_future_closes_nothing_and_gives_nothing(
    store: SiteStore, caplog: pytest.LogCaptureFixture
) -> None:
    """The clock says 2038 for a moment, and is set back."""
    future = date(2038, 1, 19)
    store.take("bank", "alignments", 2, most=3, day=TODAY)
    store.take("bank", "alignments", 3, most=3, day=future)
    refused = store.take("bank", "alignments", 1, most=3, day=TODAY)
    assert refused == Grant(3, is_given=False)
    assert "Set the clock" in caplog.text
    assert store.take("shop", "alignments", 1, most=3, day=TODAY).is_given
    tomorrow = store.take("bank", "alignments", 1, most=3, day=TODAY + DAY)
    assert tomorrow == Grant(1, is_given=True)


def test_an_order_counts_once(tmp_path: Path) -> None:
    now = datetime(2026, 3, 1, 12, tzinfo=UTC)
    with new_store(tmp_path / "store") as store:
        store.take_order("a", now, DAY, now=now)
        store.checkpoint()
    with reopened(tmp_path / "store") as store:
        with pytest.raises(StoreError, match="brought again"):
            store.take_order("a", now, DAY, now=now + DAY)
        store.take_order("b", now, DAY, now=now)


def test_an_order_is_good_for_a_time(store: SiteStore) -> None:
    now = datetime(2026, 3, 1, 12, tzinfo=UTC)
    for moment in (now - 2 * DAY, now + 2 * DAY):
        with pytest.raises(StoreError, match="Set the clocks"):
            store.take_order("a", moment, DAY, now=now)


def test_no_clock_makes_an_order_good_twice(store: SiteStore) -> None:
    """Numbers are not forgotten by what the clock says in between."""
    now = datetime(2026, 3, 1, 12, tzinfo=UTC)
    store.take_order("a", now, DAY, now=now)
    store.take_order("b", now + 300 * DAY, DAY, now=now + 300 * DAY)
    with pytest.raises(StoreError, match="brought again"):
        store.take_order("a", now, DAY, now=now)


def test_numbers_of_many_orders_are_forgotten_with_their_age(
    store: SiteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("colonnade.store.allowances.ORDERS_KEPT", 2)
    now = datetime(2026, 3, 1, 12, tzinfo=UTC)
    for minute in range(3):
        store.take_order(f"{minute}", now + timedelta(minutes=minute), DAY, now=now)
    with pytest.raises(StoreError, match="may have been taken"):
        store.take_order("0", now, DAY, now=now)
    store.take_order("later", now + timedelta(minutes=1, seconds=1), DAY, now=now)


def test_runs_are_remembered_in_their_order(tmp_path: Path) -> None:
    with new_store(tmp_path / "store") as store:
        store.note_run("spring", {"settings": "ab12", "state": "training"})
        store.note_run("autumn", {"settings": "cd34"})
        store.note_run("spring", {"state": "finished"})
        store.checkpoint()
    with reopened(tmp_path / "store") as store:
        assert store.run_names() == ["spring", "autumn"]
        assert store.run("spring") == {"settings": "ab12", "state": "finished"}
        assert store.run("winter") is None


@pytest.mark.parametrize(
    "name",
    [
        *("CON", "nul", "Aux.txt", "com1", "LPT9"),
        *("..", ".", "", "a/b", "a\\b", "-x"),
        *("a\n", "a\x00", "a ", "x" * 101, "ends.", "caf\u00e9"),
    ],
)
def test_names_that_are_no_files_everywhere_are_refused(
    store: SiteStore, name: str
) -> None:
    with pytest.raises(StoreError, match="Choose another name"):
        store.note_run(name, {})
    assert store.run_names() == []


@pytest.mark.parametrize("name", ["run-1", "2026.03.01_a", "console", "nullable", "a"])
def test_other_names_are_taken(name: str) -> None:
    check_name(name, OWNER)


def test_two_runs_that_differ_by_case_are_refused(store: SiteStore) -> None:
    store.note_run("Spring", {})
    with pytest.raises(StoreError, match="same folder"):
        store.note_run("spring", {})


def test_the_newest_refusals_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("colonnade.store.log.REFUSALS_KEPT", 5)
    with new_store(tmp_path / "store") as store:
        for number in range(12):
            store.note_refusal("mallory", f"{number} " + "x" * 10_000)
        store.checkpoint()
        store.note_refusal("mallory", "last")
        assert [line["why"].split()[0] for line in store.refusals()] == [
            *("7", "8", "9", "10", "11"),
            "last",
        ]
        store.verify()
    with reopened(tmp_path / "store") as store:
        assert len(list(store.refusals())) == 6


def test_uses_add_up_over_runs(tmp_path: Path) -> None:
    with new_store(tmp_path / "store") as store:
        store.use(np.array([0, 1, 1]), "train")
        store.use(np.array([1, 2]), "test")
        serial = store.witness().serial
        store.use(np.array([2, 1]), "test")
        assert store.witness().serial == serial
    with reopened(tmp_path / "store") as store:
        people = np.array([0, 1, 2, 3])
        assert store.were_used(people, "train").tolist() == [1, 1, 0, 0]
        assert store.were_used(people, "test").tolist() == [0, 1, 1, 0]
        with pytest.raises(StoreError, match="is no side"):
            store.use(people, "traning")
