"""The same person has one count, however a table writes an id; and who is not known
needs the owner's word."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import numpy as np
import pytest
from tests.store.small import COLUMN, OWNER, PEOPLE, new_store, of, reopened, spent

from colonnade.errors import StoreError
from colonnade.store import SiteStore, Word, canonical_id


@pytest.mark.parametrize(
    ("written", "id_"),
    [
        ("1", "1"),
        ("1.0", "1"),
        ("1.", "1"),
        ("001", "1"),
        ("000", "0"),
        (" 17\t", "17"),
        ("1.50", "1.50"),
        ("A001", "A001"),
        ("1-0", "1-0"),
        ("Zoe\u0308", "Zo\u00eb"),
        ("10", "10"),
        ("", ""),
    ],
)
def test_an_id_has_one_text(written: str, id_: str) -> None:
    assert canonical_id(written) == id_
    assert canonical_id(id_) == id_


def test_numbers_stay_over_processes_and_orders(tmp_path: Path) -> None:
    with SiteStore.create(tmp_path / "store", OWNER) as store:
        first = store.numbers_of(["7", "8", "9"], COLUMN, Word.FIRST_CONTACT)
    with reopened(tmp_path / "store") as store:
        again = store.numbers_of(["9.0", "07", "8", "7"], COLUMN)
    assert again.tolist() == [first[2], first[0], first[1], first[0]]


def test_many_people_are_found_again(tmp_path: Path) -> None:
    ids = [f"person {number}" for number in range(10_000)]
    with SiteStore.create(tmp_path / "store", OWNER) as store:
        numbers = store.numbers_of(ids, COLUMN, Word.FIRST_CONTACT)
        assert sorted(numbers.tolist()) == list(range(len(ids)))
        store.checkpoint()
    with reopened(tmp_path / "store") as store:
        assert store.numbers_of(ids[::-1], COLUMN).tolist() == numbers[::-1].tolist()


def test_the_first_contact_needs_the_owners_word(tmp_path: Path) -> None:
    with SiteStore.create(tmp_path / "store", OWNER) as store:
        with pytest.raises(StoreError, match="first contact"):
            store.numbers_of(PEOPLE, COLUMN)
        store.numbers_of(PEOPLE, COLUMN, Word.FIRST_CONTACT)
        assert store.identity is not None
        assert store.identity.column == COLUMN


def test_another_column_of_the_same_people_is_refused(tmp_path: Path) -> None:
    with new_store(tmp_path / "store") as store:
        store.release(of([0]))
        with pytest.raises(StoreError, match="counts people by column 'ssn'"):
            store.numbers_of([f"mail{n}" for n in range(12)], "email")


def test_a_renamed_column_names_the_same_people(tmp_path: Path) -> None:
    with new_store(tmp_path / "store") as store:
        numbers = store.numbers_of(PEOPLE, "social_security", Word.RENAMED)
        assert numbers.tolist() == list(range(len(PEOPLE)))
        assert store.numbers_of(PEOPLE[:2], "social_security").tolist() == [0, 1]
        with pytest.raises(StoreError, match="counts people by column"):
            store.numbers_of(PEOPLE, COLUMN)


def test_the_same_people_under_other_ids_begin_with_the_most_that_anybody_paid(
    tmp_path: Path,
) -> None:
    with new_store(tmp_path / "store") as store:
        for _ in range(5):
            store.release(of([3]))
        numbers = store.numbers_of(["a@x", "b@x"], "email", Word.SAME_PEOPLE)
        later = store.numbers_of(["c@x"], "email")
        for counts in store.counts().values():
            assert counts[numbers].tolist() == [5, 5]
            assert counts[later].tolist() == [5]


def test_going_back_to_the_first_ids_takes_nothing_back(tmp_path: Path) -> None:
    with new_store(tmp_path / "store") as store:
        by_mail = store.numbers_of(["a@x", "b@x"], "email", Word.SAME_PEOPLE)
        for _ in range(5):
            store.release(of([int(by_mail[0])]))
        again = store.numbers_of(PEOPLE, COLUMN, Word.SAME_PEOPLE)
        assert again.tolist() == list(range(len(PEOPLE)))
        assert spent(store) == [5] * len(PEOPLE)


def test_new_people_begin_with_nothing(tmp_path: Path) -> None:
    with new_store(tmp_path / "store") as store:
        store.release(of([3]))
        ids = [f"q{number}" for number in range(12)]
        numbers = store.numbers_of(ids, COLUMN, Word.NEW_PEOPLE)
        assert all(not counts[numbers].any() for counts in store.counts().values())


def test_ids_of_two_columns_are_never_the_same_person(tmp_path: Path) -> None:
    with new_store(tmp_path / "store") as store:
        numbers = store.numbers_of(PEOPLE, "row", Word.NEW_PEOPLE)
        assert not set(numbers.tolist()) & set(range(len(PEOPLE)))


def test_many_unknown_people_need_the_owners_word(tmp_path: Path) -> None:
    with new_store(tmp_path / "store") as store:
        with pytest.raises(StoreError, match="never counted 12"):
            store.numbers_of([f"0{person}" for person in PEOPLE], COLUMN)
        assert len(store.numbers_of(["new1", "new2"], COLUMN)) == 2


def test_the_people_of_the_first_contact_are_nobody_unknown(tmp_path: Path) -> None:
    """The owner named the column when the store was made, and people come later."""
    with SiteStore.create(tmp_path / "store", OWNER) as store:
        store.numbers_of([], COLUMN, Word.FIRST_CONTACT)
        store.numbers_of(PEOPLE, COLUMN)
        assert len(store.numbers_of(["new1", "new2"], COLUMN)) == 2


def test_unknown_people_add_up_though_they_come_one_by_one(tmp_path: Path) -> None:
    with new_store(tmp_path / "store") as store:
        for number in range(10):
            store.numbers_of([f"written anew {number}"], COLUMN)
        with pytest.raises(StoreError, match="never counted 1"):
            store.numbers_of(["written anew 10"], COLUMN)
        store.numbers_of(["one more"], COLUMN, Word.NEW_PEOPLE)
        store.numbers_of(["and another"], COLUMN)


def test_one_row_that_makes_a_column_text_changes_nobody(tmp_path: Path) -> None:
    """A CSV with 001 to 040 is read as 1 to 40, until one row is called A17."""
    with SiteStore.create(tmp_path / "store", OWNER) as store:
        as_numbers = [str(number) for number in range(1, 41)]
        as_text = [f"{number:03}" for number in range(1, 41)] + ["A17"]
        before = store.numbers_of(as_numbers, COLUMN, Word.FIRST_CONTACT)
        after = store.numbers_of(as_text, COLUMN)
        assert after[:40].tolist() == before.tolist()


def test_two_stores_know_people_by_hashes_that_cannot_be_compared(
    tmp_path: Path,
) -> None:
    hashes = []
    for name in ("one", "two"):
        new_store(tmp_path / name).close()
        database = sqlite3.connect(tmp_path / name / "state.db")
        query = "SELECT body FROM entry WHERE kind = 'people'"
        body = database.execute(query).fetchone()[0]
        hashes.append({body[at : at + 8] for at in range(0, len(body), 8)})
    assert len(hashes[0]) == len(hashes[1]) == len(PEOPLE)
    assert not hashes[0] & hashes[1]


def test_everybody_starts_with_nothing(tmp_path: Path) -> None:
    with new_store(tmp_path / "store") as store:
        assert spent(store) == [0] * len(PEOPLE)
        assert store.newcomers() == {}
        assert np.array_equal(store.numbers_of(PEOPLE, COLUMN), np.arange(12))
