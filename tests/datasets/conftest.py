"""What the tests of the data sets share: the folder of real data, a cache of their own,
and a small web server."""

from __future__ import annotations

import http.server
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No test reads or writes the user's data folder or cache."""
    monkeypatch.delenv("COLONNADE_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "colonnade" / "datasets"


@pytest.fixture(scope="session")
def real_data(data_folder: Path) -> Path:
    """The folder with the real data sets."""
    return data_folder


@pytest.fixture(scope="session")
def decoded(real_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache into which CIFAR-10 was decoded once, since that takes seconds."""
    from colonnade.datasets.catalogue import load
    from colonnade.datasets.download import cache_folder

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("decoded")))
        load("cifar10", folder=real_data, offline=True)
        return cache_folder()


@dataclass
class Site:
    """A web server on this machine; `pages` maps a path to what it answers."""

    address: str
    pages: dict[str, bytes] = field(default_factory=dict)
    cut_short: set[str] = field(default_factory=set)
    asked: list[str] = field(default_factory=list)


@pytest.fixture
def site() -> Iterator[Site]:
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            place.asked.append(self.path)
            body = place.pages.get(self.path)
            if body is None:
                self.send_error(404)
                return
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(
                body[: len(body) // 2] if self.path in place.cut_short else body
            )

        def log_message(self, *args: object) -> None:
            """Keep the test output quiet."""

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    place = Site(f"http://127.0.0.1:{server.server_address[1]}")
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield place
    server.shutdown()
    thread.join()
    server.server_close()
