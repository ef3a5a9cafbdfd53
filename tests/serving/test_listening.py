"""Where a service listens: what is refused. The command's own words:
tests/cli/test_serve.py."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from colonnade.errors import ConfigError
from colonnade.serving.listening import check_reach, listen, loopback, token_in, url_of


def test_only_this_machine_is_reached_without_a_token() -> None:
    assert [
        one
        for one in ("127.0.0.1", "::1", "localhost", "0.0.0.0", "10.0.0.1", "host")
        if loopback(one)
    ] == ["127.0.0.1", "::1", "localhost"]
    check_reach("0.0.0.0", "a-token-of-some-length", "x", "y")
    with pytest.raises(ConfigError, match="x can be reached from other machines"):
        check_reach("0.0.0.0", None, "x", "y")


def test_a_token_is_one_long_word(tmp_path: Path) -> None:
    file = tmp_path / "token.txt"
    file.write_text("a-token-of-some-length\n")
    assert token_in(file, "here") == "a-token-of-some-length"
    file.write_bytes(b"\xff\xfe")
    with pytest.raises(
        ConfigError, match=r"here cannot be read \(UnicodeDecodeError\)"
    ):
        token_in(file, "here")


def test_a_place_is_listened_on_once() -> None:
    with listen("127.0.0.1", 0, "here") as held:
        assert url_of(held) == f"http://127.0.0.1:{held.getsockname()[1]}"
        with pytest.raises(ConfigError, match="here cannot be listened on"):
            listen("127.0.0.1", held.getsockname()[1], "here")


def test_an_answer_does_not_wait_for_its_headers_to_be_acknowledged() -> None:
    with (
        listen("127.0.0.1", 0, "here") as held,
        socket.create_connection(held.getsockname()),
    ):
        accepted, _ = held.accept()
        with accepted:
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
