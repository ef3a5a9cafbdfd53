"""A site listens when its own file says so, answers over HTTP with the others' columns,
and ends when it is over."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.federation.small import quick
from tests.federation.small_sites import SKIP, sites, taken_at, trained

from colonnade.errors import BoundaryError, ConfigError, NoAnswer
from colonnade.serving import site_service
from colonnade.serving.site_service import serve_at
from colonnade.serving.source import Source
from colonnade.settings.party_file import OWN, write_table
from colonnade.transport.remote import Route

TOKEN = "a-token-of-some-length"


@contextmanager
def serving(
    base: Path,
    around: Callable[[Route], Route] = lambda line: line,
    serve: Callable[..., None] = serve_at,
) -> Iterator[tuple[httpx.Client, threading.Thread]]:
    clinic = sites(base)["clinic"]
    over = threading.Event()
    clinic.routes["lab"] = around(clinic.routes["lab"])
    arguments = (clinic, "run", over.is_set)
    thread = threading.Thread(target=serve, args=arguments, daemon=True)
    thread.start()
    told = base / "clinic" / "runs" / "run" / "serve.json"
    until = time.monotonic() + 20
    while not told.exists() and thread.is_alive() and time.monotonic() < until:
        time.sleep(0.02)
    about = json.loads(told.read_text())
    try:
        with httpx.Client(
            base_url=about["url"],
            headers={"Authorization": f"Bearer {TOKEN}"},
            timeout=20,
        ) as client:
            yield client, thread
    finally:
        over.set()
        thread.join(20)
        assert not thread.is_alive()
        assert not told.exists()


def allowed(base: Path, **more: Any) -> None:
    (base / "clinic" / "token.txt").write_text(TOKEN)
    write_table(
        base / "clinic" / OWN, "serve", {"port": 0, "token_file": "token.txt"} | more
    )


def test_over_http_rows_are_those_of_one_process(tmp_path: Path) -> None:
    trained(tmp_path)
    allowed(tmp_path, limit=3)
    with serving(tmp_path) as (client, _):
        for ids in (["P003", "P001"], ["P002"]):
            answer = client.post("/predict", json={"ids": ids}).json()
            here = Source(tmp_path / "here").ask(ids)
            assert [
                (one["id"], one["prediction"], one["scores"])
                for one in answer["predictions"]
            ] == [(row.id, row.prediction, row.scores) for row in here]
        refused = client.post("/predict", json={"ids": ["P001", "P999"]})
        assert (refused.status_code, refused.json()["unknown"]) == (404, 1)
        assert client.post("/predict", json={"ids": ["P001"] * 4}).status_code == 413, (
            "its own limit holds"
        )
        assert (
            client.post(
                "/predict",
                json={"ids": ["P001"]},
                headers={"Authorization": "Bearer no"},
            ).status_code
            == 401
        )
        assert client.get("/health").json() == {
            "status": "ready",
            "parties": {"clinic": True, "lab": True},
            "tables": "current",
        }


def test_a_silent_party_is_degraded_or_503_as_agreed(tmp_path: Path) -> None:
    for name, settings in (
        ("skip", SKIP),
        ("fail", {"federation": SKIP["federation"] | {"on_missing": "fail"}}),
    ):
        base = tmp_path / name
        down = list[bool]()
        base.mkdir()
        trained(base, quick(**settings))
        allowed(base, cache=0)

        def sometimes(inner: Route, down: list[bool] = down) -> Route:
            def line(data: bytes, deadline: float) -> bytes:
                if down:
                    raise ConnectionError("gone")
                return inner(data, deadline)

            return line

        with serving(base, sometimes) as (client, _):
            assert (
                client.post("/predict", json={"ids": ["P001"]}).json()["degraded"] == 0
            )
            down.append(True)
            answer = client.post("/predict", json={"ids": ["P001"]})
            if name == "skip":
                assert (
                    answer.status_code,
                    answer.json()["predictions"][0]["missing"],
                ) == (200, ["lab"])
            else:
                assert (answer.status_code, answer.json()["error"]) == (
                    503,
                    "'lab' does not answer",
                )
            down.clear()
            assert (
                client.post("/predict", json={"ids": ["P001"]}).json()["degraded"] == 0
            )


def test_one_callers_odd_id_fails_nobody_else_in_its_batch(tmp_path: Path) -> None:
    """An id of nothing but spaces, as Python has them, failed everybody who was asked
    for with it."""
    trained(tmp_path, quick(data={"align": "private"}, **SKIP))
    allowed(tmp_path, cache=0, window=300)
    with serving(tmp_path) as (client, _), ThreadPoolExecutor(4) as pool:
        good = pool.submit(client.post, "/predict", json={"ids": ["P001"]})
        bad = [
            pool.submit(client.post, "/predict", json={"ids": [odd]})
            for odd in (" ", "\u0085", "\x1f")
        ]
        assert good.result().status_code == 200
        assert [one.result().status_code for one in bad] == [422] * 3


def test_made_up_ids_do_not_use_up_the_day_for_others(tmp_path: Path) -> None:
    """One request with 999 of them had used up the allowance of the day, and everybody
    was refused until midnight."""
    trained(tmp_path, quick(data={"align": "private"}, **SKIP))
    allowed(tmp_path, cache=0, unknown=20)
    with serving(tmp_path) as (client, _):
        assert (
            client.post("/predict", json={"ids": ["P001", "P002"]}).status_code == 200
        )
        for ids in ([f"X{n}" for n in range(999)], [f"Y{n}" for n in range(21)]):
            refused = client.post("/predict", json={"ids": ids})
            assert refused.status_code == 429
            assert "Retry-After" in refused.headers
        told = [
            client.post(
                "/predict", json={"ids": [f"{n}-{m}" for m in range(8)]}
            ).status_code
            for n in range(4)
        ]
        assert told == [
            404,
            404,
            429,
            429,
        ], "each id that nobody holds counts, whatever it is"
        assert (
            client.post(
                "/predict", json={"ids": [f"P00{n}" for n in range(3, 7)]}
            ).status_code
            == 200
        )
        assert (
            client.post(
                "/predict", json={"ids": [f"P00{n}" for n in range(1, 10)]}
            ).status_code
            == 200
        )
    assert taken_at(tmp_path, "lab")["clinic"]["ids"] < 40


@pytest.mark.parametrize("on_missing", ["fail", "skip"])
def test_a_service_whose_party_is_gone_ends_and_says_whose_site_to_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, on_missing: str
) -> None:
    """A site that was killed does not come back into a job: its service answered 503
    for ever."""
    monkeypatch.setattr(site_service, "BEAT", 0.05)
    monkeypatch.setattr(site_service, "GONE", 0.4)
    trained(
        tmp_path,
        settings=quick(federation=SKIP["federation"] | {"on_missing": on_missing}),
    )
    allowed(tmp_path)
    down = threading.Event()
    ended = list[NoAnswer]()

    def around(inner: Route) -> Route:
        def line(data: bytes, deadline: float) -> bytes:
            if down.is_set():
                raise TimeoutError
            return inner(data, deadline)

        return line

    def serve(*arguments: Any) -> None:
        try:
            serve_at(*arguments)
        except NoAnswer as error:
            ended.append(error)

    with serving(tmp_path, around, serve) as (client, thread):
        time.sleep(0.6)
        assert client.post("/predict", json={"ids": ["P001"]}).status_code == 200
        down.set()
        thread.join(3 if on_missing == "fail" else 1)
        assert thread.is_alive() == (on_missing == "skip"), (
            "who may be missing is not waited for"
        )
    assert [str(one).count("start it again when that site is up") for one in ended] == [
        1
    ] * (on_missing == "fail")
    assert all(one.party == "lab" and one.exit_code == 3 for one in ended)


def test_a_request_under_way_is_answered_when_it_is_over(tmp_path: Path) -> None:
    trained(tmp_path)
    allowed(tmp_path)
    held = threading.Event()
    go = threading.Event()

    def slow(inner: Route) -> Route:
        def line(data: bytes, deadline: float) -> bytes:
            if b"Embed" in data:
                held.set()
                go.wait(10)
            return inner(data, deadline)

        return line

    with serving(tmp_path, slow) as (client, thread):
        found: list[int] = []
        asking = threading.Thread(
            target=lambda: found.append(
                client.post("/predict", json={"ids": ["P001"]}).status_code
            )
        )
        asking.start()
        assert held.wait(10)
        # as its owner stops it
        (tmp_path / "clinic" / "runs" / "run" / "serve.json").unlink()
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
    with pytest.raises(
        ConfigError, match=r"its own party.toml has no \[serve\]: no job opens a port"
    ):
        serve_at(every["clinic"], "run", lambda: True)
    with pytest.raises(BoundaryError, match="'lab' does not predict"):
        serve_at(every["lab"], "run", lambda: True)
    write_table(tmp_path / "clinic" / OWN, "serve", {"host": "0.0.0.0", "port": 0})
    with pytest.raises(
        ConfigError,
        match=r'\[serve\] host = "0.0.0.0" can be reached from other machines',
    ):
        serve_at(sites(tmp_path)["clinic"], "run", lambda: True)
