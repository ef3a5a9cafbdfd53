"""A site listens when its own file says so, answers over HTTP with the others' columns, and ends when it is over."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.federation.small import quick
from tests.federation.small_sites import line, lines_of, sites
from tests.federation.test_site_predict import SKIP, trained

from colonnade.errors import BoundaryError, ConfigError
from colonnade.serving.site_service import serve_at
from colonnade.serving.source import Source
from colonnade.settings.party_file import OWN, write_serve

TOKEN = "a-token-of-some-length"


@contextmanager
def serving(base: Path, lines: Any = None) -> Iterator[tuple[httpx.Client, threading.Event, threading.Thread]]:
    every, over = sites(base), threading.Event()
    arguments = (every["clinic"], lines or lines_of("clinic", every), "run", over.is_set)
    thread = threading.Thread(target=serve_at, args=arguments, daemon=True)
    thread.start()
    told, until = base / "clinic" / "runs" / "run" / "serve.json", time.monotonic() + 20
    while not told.exists() and thread.is_alive() and time.monotonic() < until:
        time.sleep(0.02)
    about = json.loads(told.read_text())
    try:
        with httpx.Client(base_url=about["url"], headers={"Authorization": f"Bearer {TOKEN}"}, timeout=20) as client:
            yield client, over, thread
    finally:
        over.set()
        thread.join(20)
        assert not thread.is_alive()
        assert not told.exists()


def allowed(base: Path, **more: Any) -> None:
    (base / "clinic" / "token.txt").write_text(TOKEN)
    write_serve(base / "clinic" / OWN, {"port": 0, "token_file": "token.txt"} | more)


def test_over_http_rows_are_those_of_one_process(tmp_path: Path) -> None:
    trained(tmp_path)
    allowed(tmp_path, limit=3)
    with serving(tmp_path) as (client, _, _):
        for ids in (["P003", "P001"], ["P002"]):
            answer = client.post("/predict", json={"ids": ids}).json()
            here = Source(tmp_path / "here").ask(ids)
            assert [(one["id"], one["prediction"], one["scores"]) for one in answer["predictions"]] == [
                (row.id, row.prediction, row.scores) for row in here
            ]
        refused = client.post("/predict", json={"ids": ["P001", "P999"]})
        assert (refused.status_code, refused.json()["unknown"]) == (404, 1)
        assert client.post("/predict", json={"ids": ["P001"] * 4}).status_code == 413, "its own limit holds"
        assert (
            client.post("/predict", json={"ids": ["P001"]}, headers={"Authorization": "Bearer no"}).status_code == 401
        )
        assert client.get("/health").json() == {
            "status": "ready", "parties": {"clinic": True, "lab": True}, "tables": "current",
        }  # fmt: skip


def test_a_silent_party_is_degraded_or_503_as_agreed(tmp_path: Path) -> None:
    for name, settings in (("skip", SKIP), ("fail", {"federation": SKIP["federation"] | {"on_missing": "fail"}})):
        base, down = tmp_path / name, list[bool]()
        base.mkdir()
        trained(base, quick(**settings))
        allowed(base, cache=0)
        inner = line(sites(base)["lab"], "clinic")

        def sometimes(data: bytes, deadline: float, inner: Any = inner, down: Any = down) -> bytes:
            if down:
                raise ConnectionError("gone")
            return bytes(inner(data, deadline))

        with serving(base, {"lab": sometimes}) as (client, _, _):
            assert client.post("/predict", json={"ids": ["P001"]}).json()["degraded"] == 0
            down.append(True)
            answer = client.post("/predict", json={"ids": ["P001"]})
            if name == "skip":
                assert (answer.status_code, answer.json()["predictions"][0]["missing"]) == (200, ["lab"])
            else:
                assert (answer.status_code, answer.json()["error"]) == (503, "'lab' does not answer")
            down.clear()
            assert client.post("/predict", json={"ids": ["P001"]}).json()["degraded"] == 0


def test_a_request_under_way_is_answered_when_it_is_over(tmp_path: Path) -> None:
    trained(tmp_path)
    allowed(tmp_path)
    held, go = threading.Event(), threading.Event()
    inner = line(sites(tmp_path)["lab"], "clinic")

    def slow(data: bytes, deadline: float) -> bytes:
        if b"Embed" in data:
            held.set()
            go.wait(10)
        return inner(data, deadline)

    with serving(tmp_path, {"lab": slow}) as (client, _, thread):
        found: list[int] = []
        asking = threading.Thread(
            target=lambda: found.append(client.post("/predict", json={"ids": ["P001"]}).status_code)
        )
        asking.start()
        assert held.wait(10)
        (tmp_path / "clinic" / "runs" / "run" / "serve.json").unlink()  # as its owner stops it
        time.sleep(0.5)
        assert thread.is_alive()
        go.set()
        asking.join(10)
        assert found == [200]
        thread.join(10)
        assert not thread.is_alive()


def test_no_job_makes_a_site_listen_that_did_not_ask_for_it(tmp_path: Path) -> None:
    trained(tmp_path)
    every = sites(tmp_path)
    with pytest.raises(ConfigError, match=r"its own party.toml has no \[serve\]: no job opens a port"):
        serve_at(every["clinic"], lines_of("clinic", every), "run", lambda: True)
    with pytest.raises(BoundaryError, match="'lab' does not drive"):
        serve_at(every["lab"], lines_of("lab", every), "run", lambda: True)
    write_serve(tmp_path / "clinic" / OWN, {"host": "0.0.0.0", "port": 0})
    with pytest.raises(ConfigError, match=r'\[serve\] host = "0.0.0.0" can be reached from other machines'):
        serve_at(sites(tmp_path)["clinic"], {}, "run", lambda: True)
