from __future__ import annotations

import io
import sys
from typing import Literal

import pytest

from colonnade.datasets.progress import hide, progress, watched


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


def test_who_aligns_sees_how_long_it_will_take_unless_it_is_to_be_quiet(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from tests.alignment.test_training import PRIVATE, overlapping
    from tests.federation.small import federation

    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("XDG_CACHE_HOME", "/nowhere")  # found anew
    for quiet in (False, True):
        terminal = Terminal()
        monkeypatch.setattr(sys, "stderr", terminal)
        try:
            assert hide(quiet) == quiet
            federation(overlapping(), PRIVATE)  # type: ignore[arg-type]
            with watched("thing") as watch:
                watch(1, 4)
        finally:
            hide(False)
        assert ("aligning clinic and lab" in terminal.getvalue()) != quiet
        assert ("25%" in terminal.getvalue()) != quiet
