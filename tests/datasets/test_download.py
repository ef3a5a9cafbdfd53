from __future__ import annotations

import hashlib
import io
import os
import sys
from pathlib import Path

import pytest
from tests.datasets.conftest import Site

from colonnade.datasets.download import cache_folder, fetch, written_whole
from colonnade.errors import DataError

BODY = bytes(range(256)) * 4000


def test_a_file_is_fetched_whole(site: Site, tmp_path: Path) -> None:
    site.pages["/a.bin"] = BODY
    path = fetch(
        f"{site.address}/a.bin",
        tmp_path / "deep" / "a.bin",
        md5=hashlib.md5(BODY).hexdigest(),
    )
    assert path.read_bytes() == BODY
    assert [entry.name for entry in path.parent.iterdir()] == ["a.bin"]


def test_a_wrong_checksum_leaves_nothing_behind(site: Site, tmp_path: Path) -> None:
    site.pages["/a.bin"] = BODY
    with pytest.raises(
        DataError,
        match=r"/a\.bin has MD5 [0-9a-f]{32}, and 00 was expected, so it was not kept",
    ):
        fetch(f"{site.address}/a.bin", tmp_path / "a.bin", md5="00")
    assert list(tmp_path.iterdir()) == []


def test_a_broken_connection_leaves_nothing_behind(site: Site, tmp_path: Path) -> None:
    site.pages["/a.bin"] = BODY
    site.cut_short.add("/a.bin")
    with pytest.raises(
        DataError,
        match=(
            r"could not be downloaded \(the connection ended after 512000 of 1024000"
            r" bytes\)"
        ),
    ):
        fetch(f"{site.address}/a.bin", tmp_path / "a.bin")
    assert list(tmp_path.iterdir()) == []


def test_an_older_file_survives_a_failed_download(site: Site, tmp_path: Path) -> None:
    (tmp_path / "a.bin").write_text("older")
    with pytest.raises(
        DataError, match=r"/a\.bin could not be downloaded \(Not Found\)"
    ) as caught:
        fetch(f"{site.address}/a.bin", tmp_path / "a.bin")
    assert caught.value.__suppress_context__
    assert (tmp_path / "a.bin").read_text() == "older"


def test_nobody_answering_is_one_clear_error(tmp_path: Path) -> None:
    with pytest.raises(
        DataError,
        match=r"http://127\.0\.0\.1:9/a could not be downloaded \(.*refused\)",
    ):
        fetch("http://127.0.0.1:9/a", tmp_path / "a", timeout=2)


def test_only_web_addresses_are_fetched(tmp_path: Path) -> None:
    with pytest.raises(
        DataError, match="file:///etc/hosts is no http or https address"
    ):
        fetch("file:///etc/hosts", tmp_path / "a")


def test_an_interrupted_write_leaves_nothing_behind(tmp_path: Path) -> None:
    def interrupted() -> None:
        with written_whole(tmp_path / "a") as stream:
            stream.write(b"half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert list(tmp_path.iterdir()) == []


def test_a_terminal_sees_a_bar(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    site.pages["/bar.bin"] = BODY
    fetch(f"{site.address}/bar.bin", tmp_path / "bar.bin")
    assert "bar.bin" in terminal.getvalue()


def test_the_cache_lies_in_the_home_folder_unless_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "colonnade" / "datasets"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_folder() == Path.home() / ".cache" / "colonnade" / "datasets"


def test_two_who_write_one_file_do_not_meet_and_a_link_that_was_laid_there_is_not_followed(
    tmp_path: Path,
) -> None:
    precious = tmp_path / "precious"
    path = tmp_path / "a"
    precious.write_bytes(b"precious")
    (tmp_path / f".a.{os.getpid()}.tmp").symlink_to(precious)
    with written_whole(path) as first, written_whole(path) as second:
        first.write(b"first")
        second.write(b"second")
    assert path.read_bytes() == b"first"
    assert precious.read_bytes() == b"precious"
