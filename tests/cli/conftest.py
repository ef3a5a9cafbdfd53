"""What the tests of the command line share. The toys are too small for torch's own threads, which only wait."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from tests.cli.called import Caller


@pytest.fixture(autouse=True, scope="module")
def one_torch_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Caller:
    """The command line, in this process; widths and colours are those of a plain pipe."""
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("NO_COLOR", "1")
    return Caller(monkeypatch, capfd)
