"""An attacker without a token, with real sockets: half-open connections, slow requests,
bytes that are no HTTP.

The honest client asks from another address of this machine, and is answered in time.
"""

from __future__ import annotations

import http.client
import json
import resource
import socket
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.federation.small import frames

from colonnade.serving.batcher import Batcher
from colonnade.serving.connections import Connection, OpenConnections, address_group
from colonnade.serving.limits import Limits
from colonnade.serving.listening import listen
from colonnade.serving.service import serve_until
from colonnade.serving.source import Source

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs 127.0.0.2")
IDS = sorted(frames()["lab"]["patient"])
TOKEN = "a-token-of-some-length"
HONEST = "127.0.0.2"
HALF = b"POST /predict HTTP/1.1\r\nHost: x\r\n"
BODY = json.dumps({"ids": IDS[:1]}).encode()


@contextmanager
def running(folder: Path, **limits: Any) -> Iterator[tuple[str, int]]:
    over = threading.Event()
    listener = listen("127.0.0.1", 0, "here")
    address = listener.getsockname()
    batcher = Batcher(Source(folder / "run"), window=0)
    serving = threading.Thread(
        target=serve_until,
        args=(batcher, Limits(token=TOKEN, **limits), listener, over.is_set),
        kwargs={"grace": 1},
    )
    serving.start()
    try:
        yield address
    finally:
        over.set()
        serving.join()
        listener.close()


def honest(address: tuple[str, int]) -> int:
    """The status of a prediction that is asked for from another address."""
    client = http.client.HTTPConnection(
        *address, timeout=20, source_address=(HONEST, 0)
    )
    client.request(
        "POST",
        "/predict",
        BODY,
        {"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json"},
    )
    status = client.getresponse().status
    client.close()
    return status


@pytest.mark.parametrize(
    ("proxy", "said", "believed"),
    [
        (False, "203.0.113.7", "127.0.0.1"),
        (True, "203.0.113.7", "203.0.113.7"),
        (True, "198.51.100.1, 203.0.113.7", "203.0.113.7"),
    ],
)
def test_nobody_asks_in_the_name_of_another_address(
    finished: Path,
    monkeypatch: pytest.MonkeyPatch,
    proxy: bool,
    said: str,
    believed: str,
) -> None:
    """Else one caller uses up a private service's day for everybody. A proxy's own line
    is the last one."""
    callers: list[str] = []
    ask = Batcher.ask

    def noted(self: Batcher, ids: Sequence[str], caller: str = "") -> Any:
        callers.append(caller)
        return ask(self, ids, caller)

    monkeypatch.setattr(Batcher, "ask", noted)
    with running(finished, proxy=proxy) as address:
        client = http.client.HTTPConnection(*address, timeout=20)
        headers = {
            "Authorization": f"Bearer {TOKEN}",
            "Content-Type": "application/json",
            "X-Forwarded-For": said,
        }
        client.request("POST", "/predict", BODY, headers)
        assert client.getresponse().status == 200
        client.close()
    assert callers == [believed]


def answer_of(raw: socket.socket) -> tuple[int, dict[str, Any]]:
    """The status and the JSON that a connection got before it was closed."""
    raw.settimeout(20)
    data = b""
    while part := raw.recv(4096):
        data += part
    head, _, body = data.partition(b"\r\n\r\n")
    assert b"content-type: application/json" in head.lower(), data
    return int(head.split()[1]), json.loads(body)


def ended(raw: socket.socket) -> bool:
    """Whether the other end has closed it, without a word."""
    try:
        return raw.recv(10) == b""
    except ConnectionResetError:
        return True


def refuses(raw: socket.socket, data: bytes) -> bool:
    """Whether nothing can be sent any more."""
    try:
        raw.sendall(data)
    except OSError:
        return True
    return False


@pytest.fixture
def many() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 8192 if hard == resource.RLIM_INFINITY else min(hard, 8192)
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.usefixtures("many")
def test_half_open_connections_keep_nobody_from_being_answered(finished: Path) -> None:
    """1,300 of them had the service answer 503 to everybody, for as long as they
    stayed."""
    opened: list[socket.socket] = []
    with running(finished, seconds=30.0) as address:
        assert honest(address) == 200
        for number in range(1300):
            one = socket.create_connection(address, timeout=20)
            one.sendall((b"", HALF, HALF + b"Content-Length: 9\r\n\r\n{")[number % 3])
            opened.append(one)
            if number % 100 == 99:
                begun = time.monotonic()
                assert honest(address) == 200, number
                assert time.monotonic() - begun < 5
        for one in opened:
            one.close()
        assert honest(address) == 200


def test_when_all_room_is_taken_who_waits_longest_makes_way(
    finished: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From however many addresses: here one has all of them."""
    made: list[OpenConnections] = []
    before = OpenConnections.__init__

    def small(self: OpenConnections, limits: Limits, most: int) -> None:
        before(self, limits, 20)
        made.append(self)

    monkeypatch.setattr(OpenConnections, "__init__", small)
    with running(finished, seconds=30.0, connections=0) as address:
        opened = [socket.create_connection(address, timeout=20) for _ in range(30)]
        for one in opened[10:]:
            one.sendall(HALF)
        assert honest(address) == 200
        for one in opened[:10]:
            one.settimeout(20)
            assert ended(one)
        assert len(made[0].until) <= 20
        for one in opened:
            one.close()


@pytest.mark.parametrize("what", ["nothing", "header", "body"])
def test_a_request_has_one_deadline_however_its_bytes_come(
    finished: Path, what: str
) -> None:
    parts = {
        "nothing": [],
        "header": [HALF, b"a: b\r\n"],
        "body": [HALF + b"Content-Length: 900\r\n\r\n", b"{"],
    }[what]
    if what == "body":
        parts[0] = parts[0].replace(
            b"Host", f"Authorization: Bearer {TOKEN}\r\nHost".encode()
        )
    with running(finished, seconds=1.0) as address:
        begun = time.monotonic()
        with socket.create_connection(address, timeout=20) as raw:
            for part in parts[:1]:
                raw.sendall(part)
            end = begun + 20
            raw.settimeout(0.1)
            data = b""
            while time.monotonic() < end:
                try:
                    for part in parts[1:]:
                        raw.sendall(part)
                    got = raw.recv(4096)
                    data += got
                    if not got:
                        break
                except TimeoutError:
                    continue
                except OSError:
                    break
            assert time.monotonic() - begun < 5, "each byte had extended it"
        if what != "nothing":
            assert data.startswith(b"HTTP/1.1 408 "), data
            assert b'"rule"' in data


def test_who_was_refused_does_not_stay_by_sending_on(finished: Path) -> None:
    """Without a token a request is answered 401 before its body is read, and the body
    must still end in time."""
    with (
        running(finished, seconds=1.0) as address,
        socket.create_connection(address, timeout=20) as raw,
    ):
        raw.sendall(HALF + b"Content-Length: 900\r\n\r\n")
        assert raw.recv(4096).startswith(b"HTTP/1.1 401 ")
        begun = time.monotonic()
        while time.monotonic() - begun < 20 and not refuses(raw, b" "):
            time.sleep(0.05)
        assert time.monotonic() - begun < 5


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"nonsense\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: x\r\na b: c\r\n\r\n", 400),
        (b"\x16\x03\x01\x02\x00\x01\x00", 400),
        (b"GET / HTTP/1.1\r\nHost: x\r\nA: " + b"x" * 100_000, 400),
        (b"GET /health HTTP/1.1\r\nHost: x\r\nContent-Length: x\r\n\r\n", 400),
        (b"GET /nowhere HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", 401),
    ],
)
def test_every_error_is_json(finished: Path, sent: bytes, status: int) -> None:
    with (
        running(finished, seconds=1.0) as address,
        socket.create_connection(address, timeout=20) as raw,
    ):
        raw.sendall(sent)
        found, told = answer_of(raw)
    assert found == status
    assert set(told) == {"error", "rule", "cure"}


def test_an_address_that_holds_all_it_may_is_told_so_in_json(
    finished: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where all its connections are at work; a half-open one of it would make way."""
    monkeypatch.setattr(Connection, "at_work", True)
    with running(finished, seconds=1.0, connections=2) as address:
        opened = [socket.create_connection(address, timeout=20) for _ in range(3)]
        status, told = answer_of(opened[2])
        assert status == 429
        assert told["rule"].startswith("One address holds at most 2 connections")
        monkeypatch.setattr(Connection, "at_work", False)
        assert honest(address) == 200
        for one in opened:
            one.close()


@pytest.mark.parametrize(
    ("host", "told"),
    [
        ("127.0.0.1", "127.0.0.1"),
        ("::ffff:10.0.0.1", "10.0.0.1"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("2001:db8:1:2::1", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("somewhere", "somewhere"),
    ],
)
def test_addresses_are_counted_by_who_has_them(host: str, told: str) -> None:
    assert address_group(host) == told
