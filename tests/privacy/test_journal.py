"""What is written before a release is read again, whole records only."""

from __future__ import annotations

import fcntl
from pathlib import Path

import numpy as np
import pytest

from colonnade.core import DpEvent
from colonnade.errors import ConfigError
from colonnade.privacy.journal import Journal, Record


def record(name: str, rows: int) -> Record:
    keys = (
        np.arange(rows, dtype=np.int64) * 1_000_003 - 10
    )  # a byte of 10 is a line end: bytes must not be read as text
    return Record(name, DpEvent("gaussian", {"noise_multiplier": 2.5}), rows > 2, keys, np.ones(rows, dtype=np.int64))


def written(path: Path, *sizes: int) -> Journal:
    journal = Journal(path)
    for number, rows in enumerate(sizes):
        journal.append(record(f"x{number}", rows))
    return journal


def told(journal: Journal) -> list[tuple[str, bool, list[int]]]:
    return [(r.name, r.training, r.keys.tolist()) for r in journal.read()]


def test_records_come_back_in_order(tmp_path: Path) -> None:
    sizes = (3, 1, 0, 300)
    journal = written(tmp_path / "journal", *sizes)
    assert told(journal) == [(f"x{n}", rows > 2, record("", rows).keys.tolist()) for n, rows in enumerate(sizes)]
    assert next(iter(journal.read())).event == DpEvent("gaussian", {"noise_multiplier": 2.5})


def test_without_a_file_there_is_nothing(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal")
    assert told(journal) == []
    journal.repair()
    journal.clear()
    assert not (tmp_path / "journal").exists()


@pytest.mark.parametrize("lost", [1, 20, 47, 48, 60])
def test_a_record_cut_short_is_left_out_and_the_next_can_be_read(tmp_path: Path, lost: int) -> None:
    path = tmp_path / "journal"
    journal = written(path, 3, 3)
    path.write_bytes(path.read_bytes()[:-lost])
    assert [name for name, _, _ in told(journal)] == ["x0"]
    journal.repair()
    journal.append(record("after", 4))
    assert [name for name, _, _ in told(journal)] == ["x0", "after"]


def test_clearing_starts_anew(tmp_path: Path) -> None:
    journal = written(tmp_path / "journal", 3)
    journal.clear()
    journal.append(record("new", 1))
    assert [name for name, _, _ in told(journal)] == ["new"]


def test_a_claim_is_shared_in_one_process_and_ends_with_its_last_holder(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal")
    first, second = journal.claim(), Journal(tmp_path / "journal").claim()
    assert first is second
    lock = tmp_path / ".journal.lock"
    with lock.open() as other, pytest.raises(OSError, match="unavailable"):
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    del first, second
    with lock.open() as other:
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
        with pytest.raises(ConfigError, match="counted by one process at a time"):
            journal.claim()


def test_it_says_how_often_it_was_cleared_and_is_read_on_from_anywhere(tmp_path: Path) -> None:
    journal = written(tmp_path / "journal", 3, 2)
    ends = [end for _, end in journal.read_on(0)]
    assert ends[-1] == journal.size
    assert [record.name for record, _ in journal.read_on(ends[0])] == ["x1"]
    assert list(journal.read_on(ends[1])) == []
    assert journal.cleared == 0
    journal.clear()
    assert (journal.cleared, journal.size) == (1, 0)
