"""The disk is full, or will not write, or a process is killed at some moment: nothing
leaves that is not written down, and the store goes on afterwards."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.store.small import new_store, of, reopened, spent

from colonnade.errors import StoreError

RELEASE_FOR_EVER = """
import sys
from pathlib import Path
from tests.store.small import of, reopened
with reopened(Path(sys.argv[1])) as store:
    while True:
        store.release(of([0]))
        print("left", flush=True)
"""
KILLS = 3
MANY_KILLS = 1000


def test_a_full_disk_stops_releases_and_counts_what_left(tmp_path: Path) -> None:
    """The file may not grow any more, as on a disk without space."""
    new_store(tmp_path / "store").close()
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        status = 1
        try:
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            largest = 400_000
            resource.setrlimit(resource.RLIMIT_FSIZE, (largest, largest))
            with reopened(tmp_path / "store") as store:
                while True:
                    store.release(of([0] * 5000 + list(range(12))))
                    os.write(writing, b"x")
        except StoreError as error:
            status = 0 if "Make room" in str(error) else 2
        finally:
            os._exit(status)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        left = len(pipe.read())
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert left
    with reopened(tmp_path / "store") as store:
        counted = spent(store)[1]
        assert left <= counted <= left + 1
        store.release(of([0]))


@pytest.mark.parametrize("what", ["force", "write_at"])
def test_a_second_place_that_fails_stops_releases(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    def fails(*_: object) -> None:
        raise OSError(5, "Input/output error")

    with new_store(tmp_path / "store") as store:
        store.release(of([0]))
        with monkeypatch.context() as broken:
            broken.setattr(f"colonnade.store.marks.{what}", fails)
            for _ in range(2):
                with pytest.raises(StoreError, match="Make room"):
                    store.release(of([0]))
        store.release(of([0]))
        assert 2 <= spent(store)[0] <= 4
    with reopened(tmp_path / "store") as store:
        assert 2 <= spent(store)[0] <= 4
        store.verify()


@pytest.mark.skipif(os.geteuid() == 0, reason="the superuser writes everywhere")
def test_a_folder_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    new_store(tmp_path / "store").close()
    for path in [*(tmp_path / "store").iterdir(), tmp_path / "store"]:
        path.chmod(0o500)
    with pytest.raises(StoreError, match=r"writable|cannot be opened"):
        reopened(tmp_path / "store")


def test_a_refusal_in_the_middle_leaves_nothing_behind(tmp_path: Path) -> None:
    def affordable(_: object) -> None:
        raise KeyboardInterrupt

    with new_store(tmp_path / "store") as store:
        with pytest.raises(KeyboardInterrupt):
            store.release(of([0]), affordable)
        store.release(of([0]))
        assert spent(store)[0] == 1


def kill_and_count(tmp_path: Path, kills: int) -> None:
    """Kill a releasing process again and again; what it said that left is counted."""
    new_store(tmp_path / "store").close()
    command = [sys.executable, "-c", RELEASE_FOR_EVER, str(tmp_path / "store")]
    left = 0
    for number in range(kills):
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep((number % 7) * 0.004)
        process.send_signal(signal.SIGKILL)
        left += 1 + process.communicate()[0].count("left")
        with reopened(tmp_path / "store") as store:
            counted = spent(store)[0]
        assert left <= counted <= left + number + 1


def test_a_killed_process_has_counted_what_left(tmp_path: Path) -> None:
    kill_and_count(tmp_path, KILLS)


@pytest.mark.long
def test_a_thousand_killed_processes_have_counted_what_left(tmp_path: Path) -> None:
    kill_and_count(tmp_path, MANY_KILLS)
