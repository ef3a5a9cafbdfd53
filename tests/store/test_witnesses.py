"""Others keep how far a store has come, and an older copy is known by it even where
everything of its owner's was put back."""

from __future__ import annotations

import json
import shutil
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from tests.store.small import OWNER, new_store, of, reopened

from colonnade.errors import StoreError
from colonnade.store import Keeper, SiteStore, Witness


@pytest.fixture
def store(tmp_path: Path) -> SiteStore:
    return new_store(tmp_path / "store")


@pytest.fixture
def keeper(tmp_path: Path, store: SiteStore) -> Keeper:
    """A bank that has met the clinic's store."""
    bank = SiteStore.create(tmp_path / "bank", "bank")
    bank.keeper.meet(OWNER, store.public_key, store.witness())
    return bank.keeper


def all_put_back(tmp_path: Path) -> SiteStore:
    """The store as it was when `saved` was made, with its anchor: a whole disk was put
    back, so nothing at home shows that it is older."""
    for name in ("store", "store.anchor"):
        shutil.rmtree(tmp_path / name)
        shutil.copytree(tmp_path / "saved" / name, tmp_path / name)
    return reopened(tmp_path / "store")


def save_all(tmp_path: Path) -> None:
    for name in ("store", "store.anchor"):
        shutil.copytree(tmp_path / name, tmp_path / "saved" / name)


def test_a_keeper_gives_back_what_it_keeps(store: SiteStore, keeper: Keeper) -> None:
    witness = store.release(of([0])).witness
    keeper.keep(OWNER, witness)
    assert keeper.witness_of(OWNER) == witness
    store.hear("bank", keeper.witness_of(OWNER))


def test_a_keeper_shows_a_disk_that_was_put_back(
    store: SiteStore, keeper: Keeper, tmp_path: Path
) -> None:
    save_all(tmp_path)
    for _ in range(3):
        keeper.keep(OWNER, store.release(of([0])).witness)
    older = all_put_back(tmp_path)
    with pytest.raises(StoreError, match="is an older copy"):
        older.hear("bank", keeper.witness_of(OWNER))


def test_a_keeper_shows_a_copy_that_went_on(
    store: SiteStore, keeper: Keeper, tmp_path: Path
) -> None:
    save_all(tmp_path)
    keeper.keep(OWNER, store.release(of([0])).witness)
    older = all_put_back(tmp_path)
    for _ in range(5):
        older.release(of([1]))
    with pytest.raises(StoreError, match="older copy that went on"):
        older.hear("bank", keeper.witness_of(OWNER))


def test_a_keeper_takes_no_witness_of_an_older_copy(
    store: SiteStore, keeper: Keeper, tmp_path: Path
) -> None:
    save_all(tmp_path)
    keeper.keep(OWNER, store.release(of([0])).witness)
    keeper.keep(OWNER, store.release(of([0])).witness)
    kept = keeper.witness_of(OWNER)
    older = all_put_back(tmp_path)
    for _ in range(2):
        with pytest.raises(StoreError, match="another history"):
            keeper.keep(OWNER, older.release(of([1])).witness)
    assert keeper.witness_of(OWNER) == kept


def test_the_same_witness_may_come_again(store: SiteStore, keeper: Keeper) -> None:
    witness = store.release(of([0])).witness
    keeper.keep(OWNER, witness)
    keeper.keep(OWNER, witness)
    assert keeper.witness_of(OWNER) == witness


def test_answers_that_overlap_may_come_in_another_order(
    store: SiteStore, keeper: Keeper
) -> None:
    """Ten calls are made at once; what they bring is no older than what was kept when
    they were made."""
    since = keeper.witness_of(OWNER)
    witnesses = [store.release(of([0])).witness for _ in range(10)]
    threads = [
        threading.Thread(target=keeper.advance, args=(OWNER, witness, since))
        for witness in reversed(witnesses)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert keeper.witness_of(OWNER) == witnesses[-1]
    keeper.advance(OWNER, witnesses[3], since)
    with pytest.raises(StoreError, match="another history"):
        keeper.advance(OWNER, witnesses[3], witnesses[4])
    assert keeper.witness_of(OWNER) == witnesses[-1]


def test_only_the_owner_can_make_a_witness(
    store: SiteStore, keeper: Keeper, tmp_path: Path
) -> None:
    witness = store.witness()
    other = SiteStore.create(tmp_path / "other", "shop").witness()
    forged = [
        replace(witness, serial=10**6),
        replace(witness, charges=10**6),
        replace(witness, chain=other.chain),
        replace(other, store=witness.store),
    ]
    for one in forged:
        with pytest.raises(StoreError, match="not signed by its key"):
            keeper.keep(OWNER, one)
        with pytest.raises(StoreError, match="did not sign"):
            store.hear("shop", one)
    store.release(of([0]))


def test_no_witness_is_unknown_and_not_fine(store: SiteStore) -> None:
    with pytest.raises(StoreError, match="first contact"):
        store.hear("bank", None)
    store.hear("bank", None, is_first_contact=True)
    store.hear("bank", None, is_first_contact=True)  # it may not have kept any yet
    store.hear("bank", store.witness())
    with pytest.raises(StoreError, match="had a"):
        store.hear("bank", None, is_first_contact=True)
    store.hear("bank", store.witness())


def test_a_store_that_was_begun_anew_is_not_the_one_that_was_met(
    store: SiteStore, keeper: Keeper, tmp_path: Path
) -> None:
    store.close()
    anew = SiteStore.create(tmp_path / "anew", OWNER)
    with pytest.raises(StoreError, match="is not the one"):
        keeper.keep(OWNER, anew.witness())
    with pytest.raises(StoreError, match="is not the one"):
        keeper.meet(OWNER, anew.public_key, anew.witness())
    keeper.forget(OWNER)
    assert keeper.witness_of(OWNER) is None
    keeper.meet(OWNER, anew.public_key, anew.witness())
    assert keeper.witness_of(OWNER) == anew.witness()


def test_who_was_not_met_is_not_kept(store: SiteStore, tmp_path: Path) -> None:
    with SiteStore.create(tmp_path / "bank", "bank") as bank:
        with pytest.raises(StoreError, match="Meet it first"):
            bank.keeper.keep(OWNER, store.witness())
        assert bank.keeper.witness_of(OWNER) is None


def test_a_witness_survives_its_journey(store: SiteStore) -> None:
    witness = store.witness()
    assert Witness.from_text(witness.to_text()) == witness


@pytest.mark.parametrize(
    "change",
    [
        {"serial": -1},
        {"serial": 2**70},
        {"serial": 1.0},
        {"serial": True},
        {"serial": "1"},
        {"charges": None},
        {"store": "xyz"},
        {"store": ["a"]},
        {"chain": "00"},
        {"chain": "AB" * 32},
        {"signature": "\ud800"},
        {"signature": ""},
    ],
)
def test_what_is_no_witness_is_refused(store: SiteStore, change: object) -> None:
    assert isinstance(change, dict)
    fields = json.loads(store.witness().to_text())
    with pytest.raises(StoreError, match="is none"):
        Witness.from_text(json.dumps({**fields, **change}))


@pytest.mark.parametrize(
    "text", ["", "null", "[]", "{}", "[" * 300, "Infinity", "x" * 10**6, "{" * 511]
)
def test_what_is_no_json_of_a_witness_is_refused(text: str) -> None:
    with pytest.raises(StoreError, match="is none"):
        Witness.from_text(text)


@pytest.mark.parametrize("name", ["../bank", "CON", "a/b", "", "nul.txt", "x" * 101])
def test_a_keeper_takes_no_name_that_is_a_path(
    store: SiteStore, keeper: Keeper, name: str
) -> None:
    with pytest.raises(StoreError, match="Choose another name"):
        keeper.meet(name, store.public_key, store.witness())


def test_a_damaged_witness_at_a_keeper_is_noticed(
    store: SiteStore, keeper: Keeper
) -> None:
    keeper.keep(OWNER, store.release(of([0])).witness)
    path = keeper.folder / f"{OWNER}.witness"
    path.write_bytes(bytes(path.stat().st_size))
    with pytest.raises(StoreError, match="damaged"):
        keeper.witness_of(OWNER)
