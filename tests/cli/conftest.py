"""What the tests of the command line share."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.cli.called import Caller
from tests.federation.small import write

from colonnade.cli.console import console, error_console
from colonnade.federation import Federation


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Caller:
    """The command line, in this process; wide, and without colours, as into a plain
    pipe."""
    # a worker of pytest may have been given another width when it started
    for one in (console, error_console):
        monkeypatch.setattr(one, "width", 200)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("NO_COLOR", "1")
    return Caller(monkeypatch, capfd)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with tables and a finished run; tests copy it or leave it as it is."""
    folder = tmp_path_factory.mktemp("finished")
    Federation.from_toml(write(folder)).fit(folder / "run")
    return folder
