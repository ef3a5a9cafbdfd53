"""A release is counted before it leaves, for everybody in it, and refused where one of
them cannot afford it."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import numpy as np
import pytest
from tests.store.small import (
    COLUMN,
    GAUSSIAN,
    OWNER,
    PEOPLE,
    PLAIN,
    OverLimitError,
    at_most,
    new_store,
    of,
    reopened,
    spent,
)

from colonnade.errors import StoreError
from colonnade.store import Release, SiteStore, Way, Word


def test_counts_outlive_the_process_that_made_them(tmp_path: Path) -> None:
    with new_store(tmp_path / "store") as store:
        store.release(of([0, 1]))
        store.release(of([1, 2], PLAIN))
        before = store.counts()
    with reopened(tmp_path / "store") as store:
        after = store.counts()
    assert after.keys() == before.keys()
    assert [after[GAUSSIAN][n] for n in range(4)] == [1, 1, 0, 0]
    assert [after[PLAIN][n] for n in range(4)] == [0, 1, 1, 0]


def test_a_release_that_is_refused_is_not_counted(tmp_path: Path) -> None:
    with new_store(tmp_path / "store") as store:
        store.release(of([0]), at_most(1))
        serial = store.witness().serial
        with pytest.raises(OverLimitError):
            store.release(of([0, 1]), at_most(1))
        assert store.witness().serial == serial
        assert spent(store)[:2] == [1, 0]


def test_who_is_in_a_release_twice_is_charged_twice(tmp_path: Path) -> None:
    with new_store(tmp_path / "store") as store:
        with pytest.raises(OverLimitError):
            store.release(of([3] * 1000), at_most(999))
        store.release(of([3] * 1000), at_most(1000))
        assert spent(store)[3] == 1000


def test_check_says_what_release_would_and_counts_nothing(tmp_path: Path) -> None:
    with new_store(tmp_path / "store") as store:
        store.check(of([0]), at_most(1))
        store.release(of([0]), at_most(1))
        with pytest.raises(OverLimitError):
            store.check(of([0]), at_most(1))
        assert spent(store)[0] == 1


def test_a_release_of_everybody_touches_everybody(tmp_path: Path) -> None:
    with new_store(tmp_path / "store") as store:
        store.release(of(None))
        assert spent(store) == [1] * len(PEOPLE)


def test_counting_goes_on_where_no_limit_is_set(tmp_path: Path) -> None:
    """A budget that was off for a while does not forget: 5 releases with a limit, 5
    without, and the 11th with it again is refused."""
    with new_store(tmp_path / "store") as store:
        for _ in range(5):
            store.release(of([0]), at_most(10))
        for _ in range(5):
            store.release(of([0]))
        with pytest.raises(OverLimitError):
            store.release(of([0]), at_most(10))


def test_affordable_sees_each_way_in_which_people_were_released(tmp_path: Path) -> None:
    seen: list[Way] = []
    with new_store(tmp_path / "store") as store:
        store.release(of([0], PLAIN))
        store.release(of([0, 1, 2]), lambda ways: seen.extend(ways))
    assert {frozenset(way.items()) for way in seen} == {
        frozenset({(GAUSSIAN, 1), (PLAIN, 1)}),
        frozenset({(GAUSSIAN, 1)}),
    }


def test_people_whom_the_store_does_not_know_are_refused(tmp_path: Path) -> None:
    with new_store(tmp_path / "store") as store:
        for people in ([len(PEOPLE)], [-1]):
            with pytest.raises(StoreError, match="does not know"):
                store.release(of(people))


def test_the_ledger_line_and_the_count_are_one_entry(tmp_path: Path) -> None:
    line = {"peer": "bank", "bytes": 4096}
    people = np.array([0, 1])
    release = Release("embedding", "gaussian", {}, people, line=line)
    with new_store(tmp_path / "store") as store:
        receipt = store.release(release)
        store.write_lines([{"peer": "bank", "bytes": 7}])
    with reopened(tmp_path / "store") as store:
        lines = list(store.lines())
    assert lines == [{**line, "serial": receipt.serial}, {"peer": "bank", "bytes": 7}]


def test_numbers_that_no_reader_of_json_knows_are_refused(tmp_path: Path) -> None:
    with new_store(tmp_path / "store") as store:
        with pytest.raises(ValueError, match="JSON"):
            store.release(Release("x", "gaussian", {"noise": float("nan")}, None))
        assert spent(store) == [0] * len(PEOPLE)


@pytest.mark.parametrize("is_forced", [True, False])
def test_a_checkpoint_changes_nothing_that_is_known(
    tmp_path: Path, is_forced: bool
) -> None:
    new_store(tmp_path / "store").close()
    with SiteStore.open(tmp_path / "store", OWNER, is_forced=is_forced) as store:
        for number in range(20):
            store.release(of([number % 12, 5], GAUSSIAN if number % 3 else PLAIN))
        store.use(np.array([1, 2]), "train")
        store.take("bank", "alignments", 2, most=5)
        before = [store.ways(), spent(store), store.taken(), list(store.lines())]
        store.checkpoint()
        store.release(of([7]))
    with reopened(tmp_path / "store") as store:
        totals = spent(store)
        totals[7] -= 1
        assert totals == before[1]
        assert store.taken() == before[2]
        assert list(store.lines())[:-1] == before[3]
        assert store.were_used(np.array([0, 1, 2]), "train").tolist() == [0, 1, 1]
        store.verify()


def test_a_checkpoint_makes_the_bodies_before_it_dispensable(tmp_path: Path) -> None:
    with new_store(tmp_path / "store") as store:
        for _ in range(10):
            store.release(of([1, 5]))
        store.checkpoint()
    rows = sqlite3.connect(tmp_path / "store" / "state.db").execute(
        "SELECT count(body) FROM entry WHERE kind = 'release'"
    )
    assert rows.fetchone() == (0,)
    with reopened(tmp_path / "store") as store:
        assert spent(store)[5] == 10


def test_a_store_in_memory_counts_and_says_that_it_forgets(
    caplog: pytest.LogCaptureFixture,
) -> None:
    store = SiteStore.in_memory(OWNER)
    numbers = store.numbers_of(PEOPLE, COLUMN, Word.FIRST_CONTACT)
    assert store.forgets
    for _ in range(2):
        store.release(of(numbers[:1].tolist()), at_most(2))
    with pytest.raises(OverLimitError):
        store.release(of(numbers[:1].tolist()), at_most(2))
    assert caplog.text.count("forgotten when this process ends") == 1
    with pytest.raises(StoreError, match="in memory"):
        _ = store.keeper


def test_files_are_their_owners_alone(tmp_path: Path) -> None:
    store = new_store(tmp_path / "store")
    store.release(of([0]))
    files = [*tmp_path.rglob("*"), tmp_path / "store", tmp_path / "store.anchor"]
    assert {oct(path.stat().st_mode & 0o077) for path in files} == {"0o0"}
    assert any(path.name == "state.db-wal" for path in files)
    store.close()
