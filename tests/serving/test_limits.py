"""The gate: a bucket that gives what it says, a token that must be whole, bodies cut
off, logs that name nobody."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Mapping, MutableMapping
from datetime import date
from typing import Any

import pytest

from colonnade.serving.limits import Bucket, Gate, Limits, Metrics, Probing, Quota

TOKEN = "a-token-of-some-length"


async def echo(scope: Any, receive: Any, send: Any) -> None:
    """Answers with the length of the body."""
    if scope["path"] == "/metrics":
        raise ValueError("the cell P0017 cannot be read")
    body = (await receive())["body"]
    scope["rows"] = 3
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": str(len(body)).encode()})


def ask(
    gate: Gate,
    path: str = "/predict",
    parts: tuple[bytes, ...] = (b"{}",),
    *,
    headers: Mapping[str, str] | None = None,
) -> tuple[int, dict[bytes, bytes], bytes]:
    """One request: its status, headers and body."""
    sent: list[MutableMapping[str, Any]] = []
    waiting = iter(parts)

    async def receive() -> MutableMapping[str, Any]:
        part = next(waiting, None)
        if part is None:
            await asyncio.sleep(60)
        left = waiting.__length_hint__()  # type: ignore[attr-defined]
        return {
            "type": "http.request",
            "body": part,
            "more_body": left > 0 or part == b"more",
        }

    async def send(message: MutableMapping[str, Any]) -> None:
        sent.append(message)

    given = [
        (name.lower().encode(), value.encode())
        for name, value in (headers or {}).items()
    ]
    scope = {"type": "http", "method": "POST", "path": path, "headers": given}
    asyncio.run(gate(scope, receive, send))
    return sent[0]["status"], dict(sent[0]["headers"]), sent[1]["body"]


def test_a_bucket_gives_its_rate_and_one_second_at_once() -> None:
    now = [0.0]
    bucket = Bucket(4.0, clock=lambda: now[0])
    assert [bucket.take() for _ in range(4)] == [0] * 4
    assert bucket.take() == pytest.approx(0.25)
    now[0] = 0.25
    assert [bucket.take(), bucket.take()] == [0, pytest.approx(0.25)]
    now[0], given = 100.0, 0
    for _ in range(1000):  # ten seconds of asking a hundred times a second
        given += bucket.take() == 0
        now[0] += 0.01
    assert given == pytest.approx(4 + 4 * 10, abs=1)
    assert [Bucket(0).take() for _ in range(100)] == [0] * 100
    slow = Bucket(0.5, clock=lambda: 0.0)
    assert [slow.take(), slow.take()] == [0, 2.0]


def test_the_token_opens_and_nothing_else_does() -> None:
    gate = Gate(echo, Limits(token=TOKEN), Metrics())
    assert ask(gate, headers={"Authorization": f"Bearer {TOKEN}"})[0] == 200
    assert ask(gate, headers={"Authorization": f"bearer  {TOKEN} "})[0] == 200
    for wrong in (
        "",
        TOKEN,
        f"Basic {TOKEN}",
        f"Bearer {TOKEN[:-1]}",
        f"Bearer {TOKEN}x",
        "Bearer",
        "Bearer \xff",
    ):
        status, headers, body = ask(gate, headers={"Authorization": wrong})
        assert (status, headers[b"www-authenticate"]) == (401, b"Bearer")
        assert set(json.loads(body)) == {"error", "rule", "cure"}
    assert [
        ask(gate, path)[0] for path in ("/health", "/openapi.json", "/", "/anything")
    ] == [200, 200, 401, 401]


def test_too_many_requests_are_told_when_to_come_back() -> None:
    gate = Gate(echo, Limits(rate=0.5), Metrics())
    assert ask(gate)[0] == 200
    status, headers, _ = ask(gate)
    assert status == 429
    assert 1 <= int(headers[b"retry-after"]) <= 3
    assert ask(gate, "/health")[0] == 200  # monitors are not counted


def test_a_body_is_cut_off_whether_it_says_its_length_or_not() -> None:
    gate = Gate(echo, Limits(rows=1), Metrics())
    most = Limits(rows=1).body
    assert ask(gate, parts=(b"x" * most,)) == (200, {}, str(most).encode())
    assert ask(gate, parts=(b"x" * 1000, b"y" * 500)) == (200, {}, b"1500")
    assert ask(gate, parts=(b"x" * (most + 1),))[0] == 413
    assert ask(gate, parts=(b"x" * most, b"y"))[0] == 413
    for length in (str(most + 1), "-1", "many"):
        assert ask(gate, headers={"Content-Length": length})[0] == 413
    assert ask(Gate(echo, Limits(seconds=0.05), Metrics()), parts=(b"more",))[0] == 408


def test_what_fails_is_a_reference_and_what_is_logged_names_nobody(
    caplog: pytest.LogCaptureFixture,
) -> None:
    metrics = Metrics()
    gate = Gate(echo, Limits(), metrics)
    with caplog.at_level(logging.DEBUG):
        status, _, body = ask(gate, "/metrics")
        told = json.loads(body)
        assert (status, set(told)) == (500, {"error", "rule", "cure", "reference"})
        ask(gate, "/P0017")
        ask(gate, "/predict")
    logged = caplog.text
    assert told["reference"] in logged
    assert "ValueError" in logged
    assert "P0017" not in logged + body.decode() + metrics.text()
    assert "POST other 200 3" in logged
    assert 'requests_total{route="other",status="200"} 1' in metrics.text()


def test_ids_that_nobody_holds_are_counted_by_caller_and_day() -> None:
    day = [date(2026, 3, 1)]
    quota = Quota(3, lambda: day[0])

    def asks(caller: str, ids: list[str], lost: set[str] | None) -> None:
        quota.settle(caller, quota.take(caller, ids), lost)

    for number in range(5):
        asks("a", [f"P{number}", f"Q{number}"], set())  # they are found, and free
        asks("a", ["down"], None)  # nobody said
    asks("a", ["x", "P0"], {"x"})
    asks("a", ["x", "y"], {"x", "y"})
    with pytest.raises(Probing, match="1 ids are new here, and 0 more"):
        asks("a", ["z"], set())
    asks("a", ["P3", "Q4"], set())
    for caller in "bcde":
        asks(caller, ["x", "y", "z"], {"x", "y", "z"})
    with pytest.raises(Probing):
        asks("f", ["z"], set())  # all together have had five times as many
    day[0] = date(2026, 3, 2)
    asks("a", ["x", "y", "z"], {"x", "y", "z"})
    assert not Quota(0).take("a", ["x"] * 5000)
