"""What happens to files by accident is noticed, or harmless: a store that opens never
says less than what left."""

from __future__ import annotations

import random
import shutil
import sqlite3
from pathlib import Path

import pytest
from tests.store.small import (
    GAUSSIAN,
    OWNER,
    copied,
    new_store,
    of,
    put_back,
    reopened,
    spent,
)

from colonnade.errors import StoreError
from colonnade.store import SiteStore, recover

RELEASES = 9


@pytest.fixture
def killed(tmp_path: Path) -> Path:
    """The folder of a store whose process was killed after releasing person 0 some
    times: what it wrote last is in the -wal file only."""
    store = new_store(tmp_path / "live")
    for _ in range(RELEASES):
        store.release(of([0]))
    shutil.copytree(tmp_path / "live", tmp_path / "store")
    shutil.copytree(tmp_path / "live.anchor", tmp_path / "store.anchor")
    store.close()
    return tmp_path / "store"


def counted(folder: Path) -> int | None:
    """How often person 0 was released, as the store says; None where it refuses, in
    words that name a cure."""
    try:
        with reopened(folder) as store:
            return spent(store)[0]
    except StoreError as error:
        text = str(error)
        assert "recover" in text or "create" in text or "Use the version" in text, text
        return None


def test_a_killed_store_goes_on(killed: Path) -> None:
    assert counted(killed) == RELEASES


def test_a_store_without_its_wal_file_is_refused(killed: Path) -> None:
    (killed / "state.db-wal").unlink()
    assert counted(killed) is None


def test_the_last_entry_is_in_the_second_place_too(killed: Path) -> None:
    """Where the database has lost its newest entry alone, the anchor gives it back."""
    database = sqlite3.connect(killed / "state.db")
    database.execute("DELETE FROM entry WHERE serial = (SELECT max(serial) FROM entry)")
    database.commit()
    database.close()
    assert counted(killed) == RELEASES


def test_two_lost_entries_are_not_made_up(killed: Path) -> None:
    database = sqlite3.connect(killed / "state.db")
    database.execute(
        "DELETE FROM entry WHERE serial > (SELECT max(serial) - 2 FROM entry)"
    )
    database.commit()
    database.close()
    assert counted(killed) is None


@pytest.mark.parametrize("name", ["state.db", "state.db-wal"])
def test_a_file_that_was_cut_is_noticed(
    killed: Path, name: str, tmp_path: Path
) -> None:
    whole = copied(killed, tmp_path / "whole")
    chance = random.Random(name)
    size = (killed / name).stat().st_size
    for length in [0, 1, 100, *(chance.randrange(size) for _ in range(25))]:
        put_back(whole, killed)
        with (killed / name).open("r+b") as file:
            file.truncate(length)
        assert counted(killed) in (None, RELEASES), length


@pytest.mark.parametrize("name", ["state.db", "state.db-wal", "state.db-shm"])
def test_a_flipped_bit_is_noticed_or_harmless(
    killed: Path, name: str, tmp_path: Path
) -> None:
    whole = copied(killed, tmp_path / "whole")
    chance = random.Random(name)
    refused = 0
    for _ in range(40):
        put_back(whole, killed)
        flip(killed / name, chance)
        found = counted(killed)
        assert found in (None, RELEASES)
        refused += found is None
    if name != "state.db-shm":
        assert refused


def test_a_flipped_bit_is_noticed_or_harmless_after_a_checkpoint(
    tmp_path: Path,
) -> None:
    with new_store(tmp_path / "store") as store:
        for _ in range(RELEASES):
            store.release(of([0]))
        store.checkpoint()
    whole = copied(tmp_path / "store", tmp_path / "whole")
    chance = random.Random(3)
    for _ in range(60):
        put_back(whole, tmp_path / "store")
        flip(tmp_path / "store" / "state.db", chance)
        assert counted(tmp_path / "store") in (None, RELEASES)


@pytest.mark.parametrize("name", ["mark", "key.pem"])
def test_a_flipped_bit_in_the_anchor_takes_nothing_back(
    killed: Path, name: str, tmp_path: Path
) -> None:
    anchor = tmp_path / "store.anchor"
    whole = copied(anchor, tmp_path / "whole")
    chance = random.Random(name)
    for _ in range(40):
        put_back(whole, anchor)
        flip(anchor / name, chance, below=5000)
        assert counted(killed) in (None, RELEASES)


@pytest.mark.parametrize("name", ["mark", "key.pem"])
def test_a_missing_file_of_the_anchor_is_refused(
    killed: Path, name: str, tmp_path: Path
) -> None:
    (tmp_path / "store.anchor" / name).unlink()
    assert counted(killed) is None


def test_an_older_copy_is_refused_however_it_came(killed: Path, tmp_path: Path) -> None:
    older = tmp_path / "older"
    with reopened(killed):
        pass
    shutil.copytree(killed, older)
    with reopened(killed) as store:
        for _ in range(3):
            store.release(of([0]))
    put_back(older, killed)
    assert counted(killed) is None


def test_nothing_is_made_by_opening(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="create"):
        SiteStore.open(tmp_path / "store", OWNER)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("lost", ["store", "store/state.db", "store/lock"])
def test_what_is_gone_is_not_made_anew(killed: Path, tmp_path: Path, lost: str) -> None:
    path = tmp_path / lost
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    assert counted(killed) is None
    with pytest.raises(StoreError):
        SiteStore.create(killed, OWNER)
    assert not path.exists()


def test_a_store_is_not_made_over_another(tmp_path: Path) -> None:
    new_store(tmp_path / "store").close()
    with pytest.raises(StoreError, match="one is made once"):
        SiteStore.create(tmp_path / "store", OWNER)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "notes.txt").touch()
    with pytest.raises(StoreError, match="is in use"):
        SiteStore.create(tmp_path / "other", OWNER)


def test_a_store_that_was_never_used_may_be_made_again(tmp_path: Path) -> None:
    """A process that is killed while it makes a store leaves an anchor of nothing."""
    SiteStore.create(tmp_path / "store", OWNER).close()
    shutil.rmtree(tmp_path / "store")
    SiteStore.create(tmp_path / "store", OWNER).close()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["store", "store.anchor"]


def test_another_organisations_store_is_refused(tmp_path: Path) -> None:
    new_store(tmp_path / "store").close()
    with pytest.raises(StoreError, match="has the store of 'clinic'"):
        SiteStore.open(tmp_path / "store", "bank")


def test_the_anchor_of_another_store_is_refused(tmp_path: Path) -> None:
    for name in ("one", "two"):
        new_store(tmp_path / name).close()
    with pytest.raises(StoreError):
        SiteStore.open(tmp_path / "one", OWNER, anchor=tmp_path / "two.anchor")


def test_the_anchor_must_not_lie_in_the_store(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="lost together"):
        SiteStore.create(
            tmp_path / "store", OWNER, anchor=tmp_path / "store" / "anchor"
        )


def test_a_changed_ledger_is_noticed_when_it_is_read(tmp_path: Path) -> None:
    with new_store(tmp_path / "store") as store:
        store.write_lines([{"peer": "bank", "bytes": 7}])
        store.checkpoint()
    database = sqlite3.connect(tmp_path / "store" / "state.db")
    database.execute(
        "UPDATE entry SET text = replace(text, '7', '8') WHERE kind = 'ledger'"
    )
    database.commit()
    database.close()
    with reopened(tmp_path / "store") as store:
        with pytest.raises(StoreError, match="changed"):
            list(store.lines())
        with pytest.raises(StoreError, match="changed"):
            store.verify()


def flip(path: Path, chance: random.Random, below: int | None = None) -> None:
    """Change one bit of a file."""
    data = bytearray(path.read_bytes())
    place = chance.randrange(min(len(data), below or len(data)))
    data[place] ^= 1 << chance.randrange(8)
    path.write_bytes(data)


def test_a_changed_text_of_a_recovery_is_noticed_before_it_is_believed(
    tmp_path: Path,
) -> None:
    new_store(tmp_path / "store").close()
    shutil.rmtree(tmp_path / "store")
    recover(tmp_path / "store", OWNER, GAUSSIAN)
    database = sqlite3.connect(tmp_path / "store" / "state.db")
    for text in ("", "[", "[]", "{}"):
        database.execute("UPDATE entry SET text = ? WHERE kind = 'recovered'", (text,))
        database.commit()
        with pytest.raises(StoreError, match="is damaged"):
            reopened(tmp_path / "store")
