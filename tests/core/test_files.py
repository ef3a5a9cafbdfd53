"""Whatever ends a block, a file or folder is whole and on the disk, or it is as it was
before; a lock is held by one process and freed with it, however it ends."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from colonnade.core import files
from colonnade.core.files import (
    hold,
    replaced,
    replaced_folder,
    write_bytes,
    write_text,
)
from colonnade.errors import ConfigError, InputError


@pytest.mark.parametrize(
    "crash", [ValueError(), KeyboardInterrupt(), OSError("of somebody else")]
)
def test_whatever_ends_a_block_leaves_what_was_there_and_nothing_else(
    tmp_path: Path, crash: BaseException
) -> None:
    write_text(tmp_path / "file", "old")
    (tmp_path / "folder").mkdir()

    def file() -> None:
        with replaced(tmp_path / "file") as fresh:
            fresh.write_text("half")
            raise crash

    def folder() -> None:
        with replaced_folder(tmp_path / "folder") as fresh:
            (fresh / "half").write_text("half")
            raise crash

    for write in (file, folder):
        with pytest.raises(type(crash)) as found:
            write()
        assert found.value is crash, "whose error it is must not be guessed"
    assert (tmp_path / "file").read_text() == "old"
    assert sorted(one.name for one in tmp_path.rglob("*")) == ["file", "folder"]


def test_a_full_disk_is_told_with_the_path_of_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Path) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(files, "sync", full)
    with pytest.raises(
        OSError, match=r"No space left on device: '.*/federation\.toml'"
    ):
        write_text(tmp_path / "federation.toml", "text")


def test_what_is_renamed_was_forced_onto_the_disk_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The laws of a power cut: bytes before their name, and the name before who relies
    on it goes on."""
    done: list[str] = []
    sync = files.sync
    rename = Path.rename
    replace = Path.replace

    def noted(*paths: Path) -> None:
        done.extend(
            f"sync {path.name.replace(str(os.getpid()), 'PID')}" for path in paths
        )
        sync(*paths)

    def moved(path: Path, target: Path) -> Path:
        done.append(f"name {target.name}")
        return (rename if path.is_dir() else replace)(path, target)

    monkeypatch.setattr(files, "sync", noted)
    monkeypatch.setattr(Path, "rename", moved)
    monkeypatch.setattr(Path, "replace", moved)
    (tmp_path / "tensors").write_text("1")
    # what the mark vouches for is there before the mark
    write_text(tmp_path / "mark", "1", tmp_path / "tensors")
    assert done == [
        "sync .mark.PID.tmp",
        "sync tensors",
        "name mark",
        f"sync {tmp_path.name}",
    ]
    done.clear()
    with replaced_folder(tmp_path / "state") as fresh:
        (fresh / "role").mkdir()
        (fresh / "role" / "tensors").write_text("1")
    assert set(done[:3]) == {"sync tensors", "sync role", "sync .state.PID.tmp"}
    assert done[3:] == ["name state", f"sync {tmp_path.name}"]


def test_what_cannot_be_written_is_told_by_its_own_name_and_reason(
    tmp_path: Path,
) -> None:
    with pytest.raises(
        InputError, match="journal cannot be written: No such file or directory"
    ):
        write_bytes(tmp_path / "missing" / "journal", [b"1"])


HOLDING = (
    "import sys, time; from pathlib import Path; from colonnade.core.files import"
    " hold; "
)
HOLDING += (
    "held = hold(Path(sys.argv[1]), 'taken'); print('held', flush=True); time.sleep(60)"
)


def test_another_process_keeps_it_until_it_is_killed(tmp_path: Path) -> None:
    other = subprocess.Popen(
        [sys.executable, "-c", HOLDING, tmp_path / ".lock"], stdout=subprocess.PIPE
    )
    try:
        assert other.stdout is not None
        assert other.stdout.readline() == b"held\n"
        with pytest.raises(ConfigError, match="whose it is"):
            hold(tmp_path / ".lock", "whose it is")
    finally:
        other.kill()
        other.communicate()
    with hold(tmp_path / ".lock", "whose it is"):
        pass


def test_it_can_be_taken_again_when_it_was_let_go(tmp_path: Path) -> None:
    for _ in range(2):
        with (
            hold(tmp_path / ".lock", "taken"),
            pytest.raises(ConfigError, match="taken"),
        ):
            hold(tmp_path / ".lock", "taken")


def test_without_locks_nobody_is_kept_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "fcntl", None)  # as on Windows
    with hold(tmp_path / ".lock", "taken"), hold(tmp_path / ".lock", "taken"):
        pass
