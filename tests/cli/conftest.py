"""What the tests of the command line share."""

from __future__ import annotations

import pytest
from tests.cli.called import Caller

from colonnade.cli.console import console, error_console


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Caller:
    """The command line, in this process; wide, and without colours, as into a plain pipe."""
    for one in (console, error_console):  # a worker of pytest may have been given another width when it started
        monkeypatch.setattr(one, "width", 200)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("NO_COLOR", "1")
    return Caller(monkeypatch, capfd)
