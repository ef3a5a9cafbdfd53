"""`colonnade serve --engine flare*`: what it refuses before anything is started."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.cli.called import Caller


def test_where_to_listen_is_no_part_of_a_job(call: Caller, finished: Path) -> None:
    for option, value in (("--host", "0.0.0.0"), ("--port", "1"), ("--limit", "2"), ("--token-file", "t")):
        message = call.fails(2, "serve", finished / "run", "--engine", "flare", option, value)
        assert f"{option} is no part of a job" in message
        assert "[serve]" in message


def test_what_cannot_be_served_is_told(call: Caller, finished: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLONNADE_TOKEN", raising=False)
    run = finished / "run"
    assert "was not trained with --engine flare-sim" in call.fails(2, "serve", run, "--engine", "flare-sim")
    assert "--engine must be one of" in call.fails(2, "serve", run, "--engine", "fast")
    assert "needs --startup-kit DIR" in call.fails(2, "serve", run, "--engine", "flare")
    assert "with FLARE a site has its own" in call.fails(2, "serve", run, "--engine", "flare-sim", "--table=lab=x.csv")
    monkeypatch.setenv("COLONNADE_TOKEN", "a-token-of-some-length")
    assert "Give --token-file FILE" in call.fails(2, "serve", run, "--engine", "flare-sim")
