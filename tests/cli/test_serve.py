"""`colonnade serve`: what it refuses before anything is loaded. That it serves:
tests/serving/test_under_load.py."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
from tests.cli.called import Caller

TOKEN = "a-token-of-some-length"


def test_other_machines_need_a_token(
    call: Caller, finished: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COLONNADE_TOKEN", raising=False)
    for host in ("0.0.0.0", "::", "192.0.2.7", "example.org"):
        message = call.fails(
            2, "serve", finished / "run", "--host", host, "--port", "0"
        )
        assert (
            f"--host {host} can be reached from other machines, and there is no token"
            in message
        )


def test_a_token_is_long_enough_and_one_word(
    call: Caller, finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "token.txt"
    for wrong in ("", "short", f"{TOKEN} {TOKEN}", f"{TOKEN}ü"):
        file.write_text(wrong)
        message = call.fails(2, "serve", finished / "run", "--token-file", file)
        assert "must hold one word of at least 16 ASCII characters" in message
        assert TOKEN not in message
    assert "cannot be read (FileNotFoundError)" in call.fails(
        2, "serve", finished / "run", "--token-file", "none"
    )
    monkeypatch.setenv("COLONNADE_TOKEN", "short")
    assert "COLONNADE_TOKEN must hold" in call.fails(2, "serve", finished / "run")


def test_what_cannot_be_served_is_one_message(
    call: Caller, finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COLONNADE_TOKEN", raising=False)
    assert "is not a run directory" in call.fails(2, "serve", tmp_path)
    assert "'lab' is no label owner here" in call.fails(
        2, "serve", finished / "run", "--as", "lab"
    )
    with socket.create_server(("127.0.0.1", 0)) as taken:
        message = call.fails(
            2, "serve", finished / "run", "--port", taken.getsockname()[1]
        )
        assert "cannot be listened on: " in message
    message = call.fails(
        2,
        "serve",
        finished / "run",
        "--port",
        "0",
        "--table",
        f"lab={tmp_path / 'none.csv'}",
    )
    assert "there is no such file" in message
