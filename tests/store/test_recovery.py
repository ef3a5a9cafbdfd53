"""A store that has lost entries can go on, and everybody is charged for what is
missing, at the dearest rule."""

from __future__ import annotations

import shutil
import sqlite3
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import numpy as np
import pytest
from tests.store.small import (
    COLUMN,
    GAUSSIAN,
    OWNER,
    PEOPLE,
    copied,
    new_store,
    of,
    put_back,
    reopened,
    spent,
)

from colonnade.errors import StoreError
from colonnade.store import Item, LabelColumn, SiteStore, Witness, Word, recover

DEAREST = Item.of("embedding", "non-private", {})


def lost_some(tmp_path: Path, kept: int, lost: int) -> Witness:
    """A store that was put back as it was after `kept` releases, and before `lost`
    more of person 0, three times each. Returns its witness before that."""
    with new_store(tmp_path / "store") as store:
        for _ in range(kept):
            store.release(of([0]))
    copied(tmp_path / "store", tmp_path / "older")
    with reopened(tmp_path / "store") as store:
        for _ in range(lost):
            store.release(of([0, 0, 0]))
        witness = store.witness()
    put_back(tmp_path / "older", tmp_path / "store")
    return witness


def test_everybody_is_charged_for_what_is_missing(tmp_path: Path) -> None:
    lost_some(tmp_path, kept=4, lost=5)
    with pytest.raises(StoreError, match="older copy"):
        reopened(tmp_path / "store")
    recovery = recover(tmp_path / "store", OWNER, DEAREST)
    assert (recovery.lost, recovery.charged) == (5, 15)
    with reopened(tmp_path / "store") as store:
        assert spent(store) == [4 + 15] + [15] * (len(PEOPLE) - 1)
        assert {way.event for way in store.newcomers()} == {DEAREST.event}
        numbers = store.numbers_of(["somebody new"], COLUMN)
        assert sum(counts[numbers[0]] for counts in store.counts().values()) == 15
        store.verify()


def test_old_witnesses_are_content_after_a_recovery(tmp_path: Path) -> None:
    witness = lost_some(tmp_path, kept=2, lost=3)
    recover(tmp_path / "store", OWNER, DEAREST)
    with reopened(tmp_path / "store") as store:
        store.hear("bank", witness)
        assert store.witness().serial > witness.serial
        store.checkpoint()
    with reopened(tmp_path / "store") as store:
        store.hear("shop", witness)
        store.verify()


def test_a_keeper_goes_on_with_a_recovered_store(tmp_path: Path) -> None:
    witness = lost_some(tmp_path, kept=2, lost=3)
    recover(tmp_path / "store", OWNER, DEAREST)
    bank = SiteStore.create(tmp_path / "bank", "bank")
    with reopened(tmp_path / "store") as store:
        bank.keeper.meet(OWNER, store.public_key, witness)
        bank.keeper.keep(OWNER, store.witness())


def test_a_lost_database_costs_all_that_was_released(tmp_path: Path) -> None:
    with new_store(tmp_path / "store") as store:
        for _ in range(7):
            store.release(of([0]))
        witness = store.witness()
    shutil.rmtree(tmp_path / "store")
    recover(tmp_path / "store", OWNER, DEAREST)
    with reopened(tmp_path / "store") as store:
        assert store.id == witness.store
        store.numbers_of(PEOPLE, COLUMN, Word.FIRST_CONTACT)
        assert spent(store) == [7] * len(PEOPLE)
        store.hear("bank", witness)


def test_a_backup_costs_what_was_written_since(tmp_path: Path) -> None:
    with new_store(tmp_path / "store") as store:
        for _ in range(6):
            store.release(of([0]))
        store.backup(tmp_path / "backup.db")
        assert (tmp_path / "backup.db").stat().st_mode & 0o077 == 0
        for _ in range(2):
            store.release(of([0]))
    shutil.rmtree(tmp_path / "store")
    recovery = recover(
        tmp_path / "store", OWNER, DEAREST, backup=tmp_path / "backup.db"
    )
    assert (recovery.lost, recovery.charged) == (2, 2)
    with reopened(tmp_path / "store") as store:
        assert spent(store) == [8] + [2] * (len(PEOPLE) - 1)


def test_a_damaged_entry_costs_what_comes_after_it(tmp_path: Path) -> None:
    with new_store(tmp_path / "store") as store:
        for _ in range(6):
            store.release(of([0]))
    path = tmp_path / "store" / "state.db"
    data = path.read_bytes()
    with reopened(tmp_path / "store") as store:
        serial = store.release(of([0])).serial
    assert serial == 9
    changed = data.replace(b'"rounds":0', b'"rounds":1', 1)
    assert changed != data
    path.write_bytes(changed)
    with pytest.raises(StoreError, match="damaged"):
        reopened(tmp_path / "store")
    recovery = recover(tmp_path / "store", OWNER, DEAREST)
    assert recovery.kept + recovery.lost == 9
    with reopened(tmp_path / "store") as store:
        assert spent(store)[0] == 7
        assert (recovery.set_aside / "state.db").read_bytes() == changed


def test_a_copy_that_went_on_is_charged_for_the_other_history(tmp_path: Path) -> None:
    """A whole disk was put back, anchor and all, and used; a keeper tells."""
    with new_store(tmp_path / "store") as store:
        store.release(of([0]))
    for name in ("store", "store.anchor"):
        shutil.copytree(tmp_path / name, tmp_path / "saved" / name)
    with reopened(tmp_path / "store") as store:
        store.release(of([0]))
        store.release(of([0]))
        witness = store.witness()
    for name in ("store", "store.anchor"):
        put_back(tmp_path / "saved" / name, tmp_path / name)
    with reopened(tmp_path / "store") as store:
        for _ in range(4):
            store.release(of([1]))
        with pytest.raises(StoreError, match="went on"):
            store.hear("bank", witness)
    recover(tmp_path / "store", OWNER, DEAREST, witnesses=[witness])
    with reopened(tmp_path / "store") as store:
        store.hear("bank", witness)
        assert spent(store)[0] >= 3
        assert spent(store)[1] >= 4


def test_a_lost_anchor_needs_witnesses_or_the_owners_word(tmp_path: Path) -> None:
    with new_store(tmp_path / "store") as store:
        for _ in range(3):
            store.release(of([0]))
        witness = store.witness()
    shutil.rmtree(tmp_path / "store.anchor")
    with pytest.raises(StoreError, match="new_key"):
        recover(tmp_path / "store", OWNER, DEAREST)
    with pytest.raises(StoreError, match="Nobody says"):
        recover(tmp_path / "store", OWNER, DEAREST, new_key=True)
    recover(tmp_path / "store", OWNER, DEAREST, new_key=True, witnesses=[witness])
    with reopened(tmp_path / "store") as store:
        assert spent(store)[:2] == [3, 0]
        store.hear("bank", witness)
        assert store.public_key not in witness.to_text()
        store.release(of([0]))


def test_the_owner_may_say_how_much_is_missing(tmp_path: Path) -> None:
    with new_store(tmp_path / "store") as store:
        store.release(of([0]))
    (tmp_path / "store.anchor" / "mark").unlink()
    recover(tmp_path / "store", OWNER, DEAREST, missing=4)
    with reopened(tmp_path / "store") as store:
        assert spent(store)[:2] == [5, 4]


def test_a_half_damaged_mark_is_not_taken_for_the_newest(tmp_path: Path) -> None:
    with new_store(tmp_path / "store") as store:
        store.release(of([0]))
        store.release(of([0]))
    mark = tmp_path / "store.anchor" / "mark"
    whole = mark.read_bytes()
    for start in (0, 4096):
        mark.write_bytes(whole[:start] + bytes(512) + whole[start + 512 :])
        try:
            with reopened(tmp_path / "store") as store:
                assert spent(store)[0] == 2
        except StoreError:
            with pytest.raises(StoreError, match="Nobody says"):
                recover(tmp_path / "store", OWNER, DEAREST)


def test_a_recovery_is_careful_about_everything_else(tmp_path: Path) -> None:
    lost_some(tmp_path, kept=1, lost=2)
    recover(tmp_path / "store", OWNER, DEAREST)
    now = datetime.now(UTC)
    people = np.array([0, 1])
    with reopened(tmp_path / "store") as store:
        assert store.were_used(people, "train").all()
        assert not store.take("bank", "alignments", 1, most=5).is_given
        later = date.today() + timedelta(days=2)
        assert store.take("bank", "alignments", 1, most=5, day=later).counted == 1
        with pytest.raises(StoreError, match="may have been taken"):
            store.take_order("a", now - timedelta(hours=1), timedelta(days=1))
        column = LabelColumn("patients", "diagnosis")
        rule = {"epsilon": 1.0}

        def draw(again: bool) -> object:
            return store.draw_labels(
                column,
                people,
                people,
                rule,
                lambda places: people[places],
                again_after_a_loss=again,
            )

        with pytest.raises(StoreError, match="may have been drawn before"):
            draw(again=False)
        draw(again=True)


def test_a_recovery_that_is_not_needed_charges_nothing(tmp_path: Path) -> None:
    with new_store(tmp_path / "store") as store:
        store.release(of([0]))
    recovery = recover(tmp_path / "store", OWNER, DEAREST)
    assert (recovery.lost, recovery.charged) == (0, 0)
    with reopened(tmp_path / "store") as store:
        assert spent(store)[:2] == [1, 0]
        assert store.take("bank", "alignments", 1, most=5).is_given
        assert not store.were_used(np.array([0]), "train").any()


def test_a_witness_of_another_store_is_refused(tmp_path: Path) -> None:
    lost_some(tmp_path, kept=1, lost=2)
    other = SiteStore.create(tmp_path / "other", "bank").witness()
    with pytest.raises(StoreError, match="Leave it out"):
        recover(tmp_path / "store", OWNER, DEAREST, witnesses=[other])


def test_a_store_can_be_recovered_twice(tmp_path: Path) -> None:
    lost_some(tmp_path, kept=1, lost=2)
    recover(tmp_path / "store", OWNER, DEAREST)
    shutil.rmtree(tmp_path / "older")
    copied(tmp_path / "store", tmp_path / "older")
    with reopened(tmp_path / "store") as store:
        store.release(of([5]))
        store.release(of([5]))
    put_back(tmp_path / "older", tmp_path / "store")
    recover(tmp_path / "store", OWNER, DEAREST)
    with reopened(tmp_path / "store") as store:
        assert spent(store)[5] == 6 + 2
        store.verify()


def test_an_exhausted_store_charges_everybody_without_end(tmp_path: Path) -> None:
    with new_store(tmp_path / "store") as store:
        store.exhaust("the hospital has closed")
        assert {item.kind for way in store.ways() for item in way} == {"non-private"}
        store.numbers_of(["new"], COLUMN)
        assert store.newcomers()
        assert GAUSSIAN not in store.counts()


def test_a_damaged_header_costs_nothing(tmp_path: Path) -> None:
    """Entries are checked each by itself, so a header that is wrong takes none along."""
    with new_store(tmp_path / "store") as store:
        for _ in range(4):
            store.release(of([0]))
    database = sqlite3.connect(tmp_path / "store" / "state.db")
    database.execute("PRAGMA user_version=65")
    database.close()
    with pytest.raises(StoreError, match=r"format 65.*recover"):
        reopened(tmp_path / "store")
    recovery = recover(tmp_path / "store", OWNER, DEAREST)
    assert (recovery.lost, recovery.charged) == (0, 0)
    with reopened(tmp_path / "store") as store:
        assert spent(store)[:2] == [4, 0]
