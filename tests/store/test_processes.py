"""Several processes, threads and forks of one organisation count together."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from tests.store.small import (
    COLUMN,
    OverLimitError,
    at_most,
    new_store,
    of,
    reopened,
    spent,
)

from colonnade.errors import StoreError

RELEASE_UNTIL_REFUSED = """
import sys
from pathlib import Path
from tests.store.small import *
done = 0
with reopened(Path(sys.argv[1])) as store:
    try:
        while True:
            store.release(of([0]), at_most(40))
            done += 1
    except OverLimitError:
        print(done)
"""


def test_four_processes_spend_one_budget_once(tmp_path: Path) -> None:
    new_store(tmp_path / "store").close()
    command = [sys.executable, "-c", RELEASE_UNTIL_REFUSED, str(tmp_path / "store")]
    workers = [
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(4)
    ]
    done = [int(worker.communicate()[0]) for worker in workers]
    assert sum(done) == 40
    with reopened(tmp_path / "store") as store:
        assert spent(store)[0] == 40
        store.verify()


def test_two_stores_of_one_folder_see_what_the_other_wrote(tmp_path: Path) -> None:
    """As a service and a training run do. Each may add people and write checkpoints."""
    with new_store(tmp_path / "store") as first, reopened(tmp_path / "store") as second:
        for number in range(6):
            store = first if number % 2 else second
            store.release(of([0]))
        numbers = first.numbers_of(["new"], COLUMN)
        assert second.numbers_of(["new"], COLUMN).tolist() == numbers.tolist()
        second.release(of([12]))
        first.checkpoint()
        second.release(of([0]))
        second.checkpoint()
        with pytest.raises(OverLimitError):
            first.release(of([0]), at_most(7))
        assert spent(first) == spent(second)


def test_threads_count_together(tmp_path: Path) -> None:
    with new_store(tmp_path / "store") as store:
        threads = [
            threading.Thread(target=lambda: [store.release(of([0])) for _ in range(5)])
            for _ in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert spent(store)[0] == 20


def test_a_fork_must_open_the_store_anew(tmp_path: Path) -> None:
    with new_store(tmp_path / "store") as store:
        child = os.fork()
        if not child:
            status = 1
            try:
                store.release(of([0]))
            except StoreError as error:
                status = 0 if "fork" in str(error) else 2
            os._exit(status)
        assert os.waitpid(child, 0)[1] == 0
        store.release(of([0]))
        assert spent(store)[0] == 1


def test_reading_the_file_in_the_same_process_loses_no_lock(tmp_path: Path) -> None:
    """A checksum of state.db drops SQLite's own locks. The store has its own."""
    command = [sys.executable, "-c", RELEASE_UNTIL_REFUSED, str(tmp_path / "store")]
    with new_store(tmp_path / "store") as store:
        for number in range(10):
            store.release(of([0]), at_most(40))
            for name in ("state.db", "state.db-wal", "state.db-shm"):
                (tmp_path / "store" / name).read_bytes()
            if number == 4:
                output = subprocess.run(command, capture_output=True, text=True)
                assert output.stdout.strip() == "35"
                break
        with pytest.raises((OverLimitError, StoreError)):
            store.release(of([0]), at_most(40))
    with reopened(tmp_path / "store") as store:
        assert spent(store)[0] == 40


@pytest.mark.parametrize(
    "name", ["state.db", "state.db-wal", "state.db-shm", "lock", ""]
)
def test_a_file_that_is_moved_while_in_use_stops_the_store(
    tmp_path: Path, name: str
) -> None:
    store = new_store(tmp_path / "store")
    store.release(of([0]))
    path = tmp_path / "store" / name
    path.rename(tmp_path / "moved")
    with pytest.raises(StoreError, match=r"Open the store again|cannot be used"):
        store.release(of([0]))


def test_a_folder_that_is_put_back_while_in_use_stops_the_store(tmp_path: Path) -> None:
    store = new_store(tmp_path / "store")
    shutil.copytree(tmp_path / "store", tmp_path / "older")
    for _ in range(2):
        store.release(of([0]))
    shutil.rmtree(tmp_path / "store")
    shutil.copytree(tmp_path / "older", tmp_path / "store")
    with pytest.raises(StoreError, match="Open the store again"):
        store.release(of([0]))
    store.close()
    with pytest.raises(StoreError):
        reopened(tmp_path / "store")


def test_who_writes_past_the_lock_is_noticed(tmp_path: Path) -> None:
    with new_store(tmp_path / "store") as store:
        store.release(of([0]))
        other = sqlite3.connect(tmp_path / "store" / "state.db")
        other.execute("DELETE FROM entry WHERE serial = 3")
        other.commit()
        other.close()
        with pytest.raises(StoreError, match="put back while it was in use"):
            store.release(of([0]))


def test_a_place_without_locks_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a network drive whose locks are granted to everybody."""
    new_store(tmp_path / "store").close()
    monkeypatch.setattr("colonnade.store.locking._try_lock", lambda _: True)
    with pytest.raises(StoreError, match="keep nobody out"):
        reopened(tmp_path / "store")


def test_a_place_that_refuses_locks_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_locks(_: int) -> bool:
        raise OSError(37, "No locks available")

    new_store(tmp_path / "store").close()
    monkeypatch.setattr("colonnade.store.locking._try_lock", no_locks)
    with pytest.raises(StoreError, match="cannot be locked"):
        reopened(tmp_path / "store")
