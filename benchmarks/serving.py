"""What a service gains by asking at once for requests that come together: over HTTP,
with many clients."""

from __future__ import annotations

import http.client
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import ExitStack
from pathlib import Path

import numpy as np

from colonnade.benchmark import Result
from colonnade.federation import Federation, Settings

CLIENTS = 16
PARTIES = 14
MAIN = "from colonnade.cli import main; main()"
WAYS = {"together": "5", "alone": "0"}  # milliseconds in which requests are gathered


def run(quick: bool) -> list[Result]:
    requests, turns = (400, 2) if quick else (1000, 3)
    with tempfile.TemporaryDirectory() as folder, ExitStack() as running:
        out = _trained(Path(folder))
        services = {way: _Service(out, window) for way, window in WAYS.items()}
        for service in services.values():
            running.callback(service.stop)
        for service in services.values():
            service.find()
            service.drive(100)
        rounds = [
            {way: service.drive(requests) for way, service in services.items()}
            for _ in range(turns)
        ]
        batches = {way: service.batches() for way, service in services.items()}
    fastest = {
        way: min((one[way] for one in rounds), key=lambda one: one[0]) for way in WAYS
    }
    rate = {way: requests / whole for way, (whole, _) in fastest.items()}
    gain = rate["together"] / rate["alone"]
    results = [
        Result(
            f"predictions over HTTP, {PARTIES} parties, {CLIENTS} clients, asked"
            " together",
            f"{rate['together']:.0f} requests/s",
            f"each alone: {rate['alone']:.0f} requests/s",
            "≥ 1 ×",
            gain >= 1,
            {
                "per_second": rate["together"],
                "ratio": gain,
                **{f"batches_{way}": n for way, n in batches.items()},
            },
        )
    ]
    for way, (_, each) in fastest.items():
        p50, p95 = (float(np.percentile(each, share)) * 1e3 for share in (50, 95))
        what = f"from a request to its answer, asked {way}"
        numbers = {"p50_ms": p50, "p95_ms": p95}
        results.append(
            Result(what, f"p50 {p50:.1f} ms, p95 {p95:.1f} ms", numbers=numbers)
        )
    return results


def _trained(folder: Path) -> Path:
    data = {"dataset": "breast_cancer", "parts": PARTIES, "validation": 0}
    tables = {
        "data": data,
        "algorithm": {"name": "splitnn"},
        "train": {"epochs": 1},
        "federation": {"device": "cpu"},
    }
    Federation.from_settings(Settings.from_mapping(tables)).fit(folder / "run")
    return folder / "run"


class _Service:
    """A process of `colonnade serve` that remembers nothing."""

    def __init__(self, run: Path, window: str) -> None:
        command = [
            sys.executable,
            "-u",
            "-c",
            MAIN,
            "serve",
            str(run),
            "--port",
            "0",
            "--cache",
            "0",
            "--quiet",
        ]
        environment = {**os.environ, "COLUMNS": "200", "OMP_NUM_THREADS": "1"}
        environment.pop("COLONNADE_TOKEN", None)
        self.process = subprocess.Popen(
            [*command, "--window", window],
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )

    def find(self) -> None:
        """Where it listens, as soon as it does."""
        assert self.process.stdout is not None
        self.port = int(self.process.stdout.readline().rpartition(":")[2])

    def drive(self, requests: int) -> tuple[float, list[float]]:
        """So many requests of one row each: how long all took, and each."""
        each: list[float] = []

        def client(number: int) -> None:
            connection = http.client.HTTPConnection("127.0.0.1", self.port)
            for row in range(number, requests, CLIENTS):
                body = json.dumps({"ids": [str(row % 569)]})
                begun = time.perf_counter()
                connection.request(
                    "POST", "/predict", body, {"Content-Type": "application/json"}
                )
                response = connection.getresponse()
                response.read()
                assert response.status == 200
                each.append(time.perf_counter() - begun)
            connection.close()

        clients = [
            threading.Thread(target=client, args=(number,)) for number in range(CLIENTS)
        ]
        begun = time.perf_counter()
        for one in clients:
            one.start()
        for one in clients:
            one.join()
        assert len(each) == requests
        return time.perf_counter() - begun, each

    def batches(self) -> float:
        connection = http.client.HTTPConnection("127.0.0.1", self.port)
        connection.request("GET", "/metrics")
        found = re.search(
            r"\ncolonnade_batches_total (\d+)", connection.getresponse().read().decode()
        )
        connection.close()
        assert found is not None
        return float(found[1])

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(timeout=60)
        assert self.process.stdout is not None
        self.process.stdout.close()
