"""A lock is held by one process and freed with it, however it ends."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from colonnade.core.files import hold
from colonnade.errors import ConfigError

HOLDING = "import sys, time; from pathlib import Path; from colonnade.core.files import hold; "
HOLDING += "held = hold(Path(sys.argv[1]), 'taken'); print('held', flush=True); time.sleep(60)"


def test_another_process_keeps_it_until_it_is_killed(tmp_path: Path) -> None:
    other = subprocess.Popen([sys.executable, "-c", HOLDING, tmp_path / ".lock"], stdout=subprocess.PIPE)
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
        with hold(tmp_path / ".lock", "taken"), pytest.raises(ConfigError, match="taken"):
            hold(tmp_path / ".lock", "taken")


def test_without_locks_nobody_is_kept_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fcntl", None)  # as on Windows
    with hold(tmp_path / ".lock", "taken"), hold(tmp_path / ".lock", "taken"):
        pass
