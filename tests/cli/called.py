"""The command line called in this process: what it printed, and the exit code that
`main` gives."""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass

import pytest

from colonnade.cli import main


@dataclass
class Called:
    code: int
    out: str
    err: str


class Caller:
    """`call("run", "federation.toml")`."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
    ) -> None:
        self.monkeypatch = monkeypatch
        self.capfd = capfd

    def __call__(self, *arguments: object) -> Called:
        self.monkeypatch.setattr(sys, "argv", ["colonnade", *map(str, arguments)])
        self.capfd.readouterr()
        with pytest.raises(SystemExit) as stopped:
            main()
        out, err = self.capfd.readouterr()
        code = stopped.value.code
        return Called(
            code if isinstance(code, int) else 0 if code is None else 1, out, err
        )

    def fails(self, code: int, *arguments: object) -> str:
        """Call what must fail: the message, which is one, on standard error, without a
        traceback."""
        called = self(*arguments)
        assert called.code == code, called
        assert called.out == ""
        assert "Traceback" not in called.err
        assert (
            len(
                re.findall(r"^(?:\w+Error|BudgetExhausted): ", called.err, re.MULTILINE)
            )
            == 1
        )
        return called.err
