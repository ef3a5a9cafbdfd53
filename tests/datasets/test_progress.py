from __future__ import annotations

import io
import sys
from typing import Literal

import pytest

from colonnade.datasets.progress import progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("unit", "shown"), [("bytes", "5/5 bytes"), ("items", "5/5")])
def test_a_terminal_sees_the_name_and_how_far_it_is(
    unit: Literal["bytes", "items"], shown: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    with progress("thing", 5, unit=unit) as advance:
        advance(2)
        advance(3)
    assert "thing" in terminal.getvalue()
    assert shown in terminal.getvalue()


def test_elsewhere_nothing_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    log = io.StringIO()
    monkeypatch.setattr(sys, "stderr", log)
    with progress("thing", 0, unit="items") as advance:
        advance(1)
    assert log.getvalue() == ""
