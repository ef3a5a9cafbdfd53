"""What is written before a release is read again; a record cut short counts as far as
it goes, other damage is told."""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path

import numpy as np
import pytest

from colonnade.core import DpEvent
from colonnade.errors import CheckpointError, ConfigError, InputError
from colonnade.privacy.counts import Record
from colonnade.privacy.journal import FRAME, Journal


def record(name: str, rows: int) -> Record:
    keys = (
        np.arange(rows, dtype=np.int64) * 1_000_003 - 10
    )  # a byte of 10 is a line end: bytes must not be read as text
    return Record(
        name,
        DpEvent("gaussian", {"noise_multiplier": 2.5}),
        rows % 3,
        keys,
        np.full(rows, 2, np.int64),
    )


def written(path: Path, *sizes: int) -> Journal:
    journal = Journal(path)
    journal.replace([])
    for number, rows in enumerate(sizes):
        journal.append(record(f"x{number}", rows))
    return journal


def told(journal: Journal) -> list[tuple[str, int, list[int], list[int]]]:
    return [
        (r.name, r.rounds, r.keys.tolist(), r.times.tolist()) for r, _ in journal.read()
    ]


def expected(*sizes: int) -> list[tuple[str, int, list[int], list[int]]]:
    return [
        (f"x{n}", rows % 3, record("", rows).keys.tolist(), [2] * rows)
        for n, rows in enumerate(sizes)
    ]


SIZES = (3, 1, 0, 300)


def test_records_come_back_in_order(tmp_path: Path) -> None:
    journal = written(tmp_path / "journal", *SIZES)
    assert told(journal) == expected(*SIZES)
    assert next(iter(journal.read()))[0].event == DpEvent(
        "gaussian", {"noise_multiplier": 2.5}
    )
    ends = [end for _, end in journal.read()]
    assert ends[-1] == journal.extent().size == (tmp_path / "journal").stat().st_size
    assert [record.name for record, _ in journal.read(ends[1])] == ["x2", "x3"]
    assert list(journal.read(ends[3])) == []


def test_without_a_file_there_is_nothing_and_nothing_can_be_added(
    tmp_path: Path,
) -> None:
    journal = Journal(tmp_path / "journal")
    assert told(journal) == []
    assert journal.extent() == ("", 0, 0)
    with pytest.raises(CheckpointError, match="journal is gone"):
        journal.append(record("x", 1))


def test_what_does_not_begin_as_a_journal_is_refused(tmp_path: Path) -> None:
    # an empty one held something once
    for found in (b'{"name": "x", "rows": 1}\n' + bytes(16), b"", b"\n"):
        (tmp_path / "journal").write_bytes(found)
        with pytest.raises(
            CheckpointError, match="is damaged: it does not begin as a journal does"
        ):
            told(Journal(tmp_path / "journal"))


def test_cut_short_anywhere_the_last_record_counts_as_far_as_it_can_be_read(
    tmp_path: Path,
) -> None:
    path = tmp_path / "journal"
    journal = written(path, 3, 2)
    whole = path.read_bytes()
    first = next(end for _, end in journal.read())
    counted = []
    for size in range(first, len(whole)):
        path.write_bytes(whole[:size])
        found = list(journal.read())
        assert told(journal)[0] == expected(3)[0]
        torn = None
        if len(found) == 2:
            torn, end = found[1]
            assert (torn.name, end) == ("x1", first)
            assert torn.keys.tolist() == record("", 2).keys.tolist()[: len(torn.keys)]
            assert torn.times.tolist() == [1] * len(torn.keys)
        counted.append(0 if torn is None else len(torn.keys))
        journal.mend(first, torn)
        journal.append(record("after", 4))
        names = [name for name, _, _, _ in told(journal)]
        assert names == ["x0", *(["x1"] if torn is not None else []), "after"]
    assert counted == sorted(counted)
    assert set(counted) == {0, 1, 2}


def test_a_longer_file_that_was_never_written_is_no_damage(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    journal = written(path, 3)
    size = path.stat().st_size
    for zeros in (1, 12, 5000):
        path.write_bytes(path.read_bytes()[:size] + bytes(zeros))
        assert told(journal) == expected(3)


@pytest.mark.parametrize(
    "bits", [1, pytest.param(3, marks=pytest.mark.long)], ids=["a bit", "three bits"]
)
def test_any_other_damage_is_told_and_never_fewer_releases(
    tmp_path: Path, bits: int
) -> None:
    """One after the other, at every place."""
    path = tmp_path / "journal"
    journal = written(path, 3, 0, 2)
    whole = path.read_bytes()
    for place in range(len(whole)):
        for number in range(place, place + bits):
            path.write_bytes(
                whole[:place]
                + bytes([whole[place] ^ (1, 8, 128)[number % 3]])
                + whole[place + 1 :]
            )
            with pytest.raises((CheckpointError, ConfigError)):
                told(journal)


def test_a_wrong_length_hides_nothing_that_follows(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    journal = written(path, 3, 2)
    data = bytearray(path.read_bytes())
    start = journal.extent().first
    length, check = FRAME.unpack_from(data, start)
    FRAME.pack_into(data, start, length + 100_000, check)
    path.write_bytes(data)
    with pytest.raises(
        CheckpointError, match="a record has another length than it says"
    ):
        told(journal)


def test_written_anew_it_has_another_number_and_only_what_it_was_given(
    tmp_path: Path,
) -> None:
    journal = written(tmp_path / "journal", 3)
    before = journal.extent().version
    journal.replace([record("x0", 5)])
    assert journal.extent().version not in ("", before)
    assert told(journal) == expected(5)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["journal"]


def test_other_ids_are_not_counted_with_these(tmp_path: Path) -> None:
    written(tmp_path / "journal", 3)
    with pytest.raises(
        ConfigError,
        match=r"counts what rows paid by exact ids, and .* ids is 'normalised' now",
    ):
        Journal(tmp_path / "journal", ids="normalised").extent()


def test_what_cannot_be_written_whole_leaves_no_trace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = written(tmp_path / "journal", 3)
    write = os.write

    def full(file: int, data: bytes) -> int:
        if len(data) > 40:
            return write(file, data[:40])
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as disk:
        disk.setattr(os, "write", full)
        with pytest.raises(
            InputError, match="cannot be written: No space left on device"
        ):
            journal.append(record("lost", 3))
    journal.append(record("x1", 2))
    assert told(journal) == expected(3, 2)


def test_a_record_is_on_the_disk_before_its_release_leaves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[int] = []
    monkeypatch.setattr(
        os, "fdatasync", lambda file: synced.append(os.fstat(file).st_size)
    )
    path = tmp_path / "journal"
    each = written(path)
    for rows in (1, 2, 3):
        each.append(record("x", rows))
        assert synced[-1] == path.stat().st_size
    seldom = Journal(path, sync_every=1000.0)
    for rows in (1, 2, 3):
        seldom.append(record("x", rows))
    assert len(synced) == 4, "the first, and none within the time that may pass"


def test_a_claim_is_shared_in_one_process_and_ends_with_its_last_holder(
    tmp_path: Path,
) -> None:
    journal = Journal(tmp_path / "journal")
    first = journal.claim()
    second = Journal(tmp_path / "journal").claim()
    assert first is second
    lock = tmp_path / ".journal.lock"
    with lock.open() as other, pytest.raises(OSError, match="unavailable"):
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    del first, second
    with lock.open() as other:
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
        with pytest.raises(ConfigError, match="counted by one process at a time"):
            journal.claim()
