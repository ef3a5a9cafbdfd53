"""What the tests of the command line share."""

from __future__ import annotations

import pytest
from tests.cli.called import Caller


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Caller:
    """The command line, in this process; widths and colours are those of a plain pipe."""
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("NO_COLOR", "1")
    return Caller(monkeypatch, capfd)
