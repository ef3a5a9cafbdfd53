"""Each check does something, and says what is wrong when it is."""

from __future__ import annotations

import os
import resource
import sys
import time
from pathlib import Path

import pytest

from colonnade.planning import doctor
from colonnade.planning.doctor import Check, Package, Trouble


def fails(check: object) -> Check:
    assert callable(check)
    found = doctor._checked("it", check)
    assert found.state == "failed"
    assert found.cure
    return found


def test_here_all_that_is_required_works_within_seconds() -> None:
    start = time.process_time()
    checks = list(doctor.examine())
    assert time.process_time() - start < 10
    assert doctor.healthy(checks)
    assert {"python", "libraries", "torch on cpu", "federation", "clock", "disk"} <= {check.name for check in checks}
    assert all(check.found for check in checks)
    assert all(check.cure for check in checks if check.state != "ok")


def test_only_what_is_required_makes_it_ill() -> None:
    broken = Check("it", "failed", "no", "do", required=True)
    assert not doctor.healthy([broken])
    assert doctor.healthy([Check("it", "failed", "no", "do", required=False), Check("it", "absent", "no", "do")])


def test_a_cache_that_cannot_be_written_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "new"))
    assert "to be made" in doctor.cache()
    assert not (tmp_path / "new").exists()
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert "cannot be written to" in fails(doctor.cache).found


def test_a_data_folder_that_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLONNADE_DATA", str(tmp_path))
    assert str(tmp_path) in doctor.data()
    monkeypatch.setenv("COLONNADE_DATA", str(tmp_path / "nowhere"))
    assert "no readable folder" in fails(doctor.data).found
    monkeypatch.delenv("COLONNADE_DATA")
    assert "not set" in doctor.data()


def test_too_few_open_files() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (200, hard))
    try:
        assert fails(doctor.open_files).cure == "ulimit -n 4096"
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    doctor.open_files()


def test_limits_on_disk_and_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "LEAST_DISK", 1 << 62)
    monkeypatch.setattr(doctor, "LEAST_MEMORY", 1 << 62)
    assert "free" in fails(doctor.disk).found
    assert "free" in fails(doctor.memory).found


def test_a_clock_before_the_installation(monkeypatch: pytest.MonkeyPatch) -> None:
    doctor.clock()
    monkeypatch.setattr(time, "time", lambda: 1e9)
    assert "before this was installed" in fails(doctor.clock).found


def test_a_command_of_another_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "does not find" in fails(doctor.command).found
    other = tmp_path / "colonnade"
    other.write_text("#!/bin/sh\n")
    other.chmod(0o755)
    if Path(sys.executable).with_name("colonnade").exists():
        assert "another installation" in fails(doctor.command).found


def test_more_threads_than_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(), raising=False)
    assert "OMP_NUM_THREADS" in fails(doctor.processor).cure


def test_an_extra_is_there_absent_old_or_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = [
        Package("no-such-package", ">=1", "none"), Package("torch", ">=99", "old"), Package("torch", ">=1", "broken"),
        Package("torch", ">=1", "here"), Package("torch", ">=1", "half"), Package("no-such-package", "", "half"),
    ]  # fmt: skip
    monkeypatch.setattr(doctor, "packages", lambda: wanted)

    def breaks() -> str:
        raise OSError("its library is gone\nand more")

    (none,), (old,), (half,) = (list(doctor._extra(extra, None)) for extra in ("none", "old", "half"))
    (broken,), (here,) = list(doctor._extra("broken", breaks)), list(doctor._extra("here", lambda: "it works"))
    assert (none.state, none.cure) == ("absent", 'pip install "colonnade[none]"')
    assert (old.state, half.state, broken.state, here.state) == ("failed", "failed", "failed", "ok")
    assert "no-such-package is missing" in half.found
    assert broken.found == "OSError: its library is gone"
    assert here.found.endswith("; it works")
    assert doctor.healthy([none, old, half, broken, here])


def test_old_libraries_are_named_with_what_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "packages", lambda: [Package("torch", ">=99"), Package("numpy", ">=1")])
    with pytest.raises(Trouble, match=r"torch .* \(>=99 is needed\)$"):
        doctor.libraries()
