"""`colonnade serve` as its own process, driven by a real client: nothing is lost,
nobody is named, it stops."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from tests.federation.small import frames, write

from colonnade.federation import Federation, load

REQUESTS = 300
CLIENTS = 12
CANARY = "CANARY-7f3a"
MAIN = "from colonnade.cli import main; main()"
TOKEN = "a-token-of-some-length"


class Running:
    """The process, and where it listens."""

    def __init__(self, folder: Path, *options: str) -> None:
        self.run = folder / "run"
        self.log = (folder / "service.log").open("w+")
        environment = {
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "COLUMNS": "200",
            "COLONNADE_TOKEN": TOKEN,
        }
        self.process = subprocess.Popen(
            [
                sys.executable,
                "-u",
                "-c",
                MAIN,
                "serve",
                str(self.run),
                "--port",
                "0",
                *options,
            ],
            stdout=subprocess.PIPE,
            stderr=self.log,
            text=True,
            env=environment,
        )
        assert self.process.stdout is not None
        self.said = self.process.stdout.readline()
        assert " at http://" in self.said, self.logged()
        self.url = self.said.split()[-1]
        self.address = ("127.0.0.1", int(self.url.rpartition(":")[2]))

    def client(self) -> httpx.Client:
        return httpx.Client(
            base_url=self.url, timeout=30, headers={"Authorization": f"Bearer {TOKEN}"}
        )

    def logged(self) -> str:
        self.log.flush()
        self.log.seek(0)
        return self.log.read()

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()
        self.log.close()


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """One for all of these tests, as a process takes its time to start; its ids can be
    told from everything else."""
    folder = tmp_path_factory.mktemp("served")
    given = frames()
    for frame in given.values():
        frame["patient"] = CANARY + frame["patient"]
    Federation.from_toml(write(folder, given)).fit(folder / "run")
    running = Running(folder, "--cache", "0", "--limit", "8", "--rate", "100000")
    yield running
    running.end()


IDS = [f"{CANARY}{one}" for one in sorted(frames()["lab"]["patient"])]


@pytest.mark.long
def test_hundreds_of_requests_are_all_answered_and_right(
    service: Running, record_property: Callable[[str, object], None]
) -> None:
    expected = load(service.run, ids=IDS).predict(IDS)
    right = dict(zip(IDS, expected.scores.tolist(), strict=True))
    random = np.random.default_rng(0)
    wanted = [
        [str(one) for one in random.choice(IDS, size=random.integers(1, 6))]
        for _ in range(REQUESTS)
    ]
    local = threading.local()
    seconds = []

    def ask(some: list[str]) -> list[dict[str, Any]]:
        if not hasattr(local, "client"):
            local.client = service.client()
        begun = time.perf_counter()
        response = local.client.post("/predict", json={"ids": some})
        seconds.append(time.perf_counter() - begun)
        assert response.status_code == 200
        rows: list[dict[str, Any]] = response.json()["predictions"]
        return rows

    begun = time.perf_counter()
    with ThreadPoolExecutor(CLIENTS) as pool:
        answers = list(pool.map(ask, wanted))
    whole = time.perf_counter() - begun
    for some, rows in zip(wanted, answers, strict=True):
        assert [row["id"] for row in rows] == some
        scores = [list(row["scores"].values()) for row in rows]
        np.testing.assert_allclose(scores, [right[one] for one in some], rtol=1e-5)
    text = service.client().get("/metrics").text
    assert (
        f'colonnade_requests_total{{route="/predict",status="200"}} {REQUESTS}' in text
    )
    batches = int(float(text.split("\ncolonnade_batches_total ")[1].split()[0]))
    assert batches < REQUESTS / 2  # the parties were asked for many at once
    p50, p95 = (float(np.percentile(seconds, share)) * 1e3 for share in (50, 95))
    print(
        f"\n{REQUESTS} requests by {CLIENTS} clients: {REQUESTS / whole:.0f}/s in"
        f" {batches} batches;",
        end=" ",
    )
    print(f"p50 {p50:.1f} ms, p95 {p95:.1f} ms")
    for name, value in (
        ("p50_ms", p50),
        ("p95_ms", p95),
        ("per_second", REQUESTS / whole),
    ):
        record_property(name, round(value, 1))


def test_no_id_is_ever_logged_or_counted_by_name(service: Running) -> None:
    one = IDS[0]
    other = f"{CANARY}-unknown"
    after = service.run / "parties" / "lab" / "ledger-after.jsonl"
    with service.client() as client:
        before = len(after.read_text().splitlines()) if after.exists() else 0
        assert client.post("/predict", json={"ids": [one]}).status_code == 200
        assert client.post("/predict", json={"ids": [one, other]}).status_code == 404
        assert client.post("/predict", json={"ids": [one] * 9}).status_code == 413
        assert client.post("/predict", json={"ids": [one], one: 1}).status_code == 422
        assert (
            client.post("/predict", content=f'{{"ids": ["{one}'.encode()).status_code
            == 422
        )
        assert client.post(f"/{one}", params={"id": one}).status_code == 404
        assert (
            client.get(
                "/predict", params={"id": one}, headers={"User-Agent": one}
            ).status_code
            == 405
        )
        assert client.request(one, "/predict").status_code == 405
        assert (
            client.post(
                "/predict", json={"ids": [one]}, headers={"Authorization": one}
            ).status_code
            == 401
        )
        shown = (
            client.get("/metrics").text
            + client.get("/").text
            + client.get("/health").text
        )
    with socket.create_connection(service.address) as raw:  # no HTTP at all
        raw.sendall(f"{one} {one}\r\n\r\n".encode())
        assert b"400" in raw.recv(100)
    logged = service.logged()
    for line in (
        "POST /predict 200 1",
        "POST /predict 404 2",
        "POST other 404",
        "other /predict 405",
    ):
        assert line in logged
    entries = [json.loads(line) for line in after.read_text().splitlines()]
    assert CANARY not in logged + shown + service.said + json.dumps(entries)
    # one row crossed, once: the other requests were refused
    (entry,) = entries[before:]
    assert (entry["direction"], entry["shape"][0], entry["peer"]) == (
        "out",
        1,
        "clinic",
    )


def test_it_finishes_what_is_under_way_and_stops_with_code_0(service: Running) -> None:
    body = json.dumps({"ids": IDS[:1]}).encode()
    head = (
        "POST /predict HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer"
        f" {TOKEN}\r\nContent-Type: application/json\r\n"
    )
    with socket.create_connection(service.address) as raw:
        raw.settimeout(30)
        raw.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body[:5])
        time.sleep(0.5)
        service.process.send_signal(signal.SIGTERM)
        time.sleep(0.5)
        raw.sendall(body[5:])
        assert raw.recv(100).startswith(b"HTTP/1.1 200 ")
    assert service.process.wait(timeout=30) == 0
    with pytest.raises(httpx.ConnectError):
        service.client().get("/health")
    assert "Traceback" not in service.logged()
