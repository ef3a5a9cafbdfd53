"""The gate in front of the service: who may ask, how often, how much; and what is
logged and counted of that.

    401   the token is missing or wrong           413   too many rows, or too long a body
    408   the request does not arrive in time     429   too many requests: Retry-After says when
    500   something of ours failed: a reference, which the log has too

A log line has the route, the status, the rows and the time. Ids travel in the body
alone, and a path that is no route of ours is logged as "other", so no id is ever in it,
at any level. Numbers, statuses and party names are counted in Prometheus' text format.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import secrets
import threading
import time
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import (
    Awaitable,
    Callable,
    Collection,
    Iterable,
    Mapping,
    MutableMapping,
    Sequence,
)
from dataclasses import dataclass
from datetime import date
from typing import Any

from colonnade.alignment.allowance import today
from colonnade.errors import ColonnadeError

BOUNDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""Upper bounds of the histogram's buckets, in seconds."""

COUNTERS = {
    "requests": "Requests by route and status",
    "rows": "Rows answered, by where from: the parties, or memory",
    "rows_unknown": (
        "Rows asked for that cannot be predicted: somebody probing shows here"
    ),
    "batches": "Times that the parties were asked",
    "party_missing": "Rows that were answered without a party",
}
GAUGES = {
    "party_up": "Whether a party answers",
    "budget_left_epsilon": (
        "What the row that paid most may still pay, by the party that counts it"
    ),
    "waiting": "Requests that wait for an answer",
}
Labels = tuple[tuple[str, str], ...]


class Metrics:
    """Counters and one histogram; gauges are given when the text is made."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: dict[tuple[str, Labels], float] = defaultdict(float)
        self._buckets = [0] * (len(BOUNDS) + 1)
        self._seconds = 0.0

    def count(self, name: str, by: float = 1, **labels: str) -> None:
        with self._lock:
            self._counts[name, tuple(labels.items())] += by

    def add_answer(self, seconds: float) -> None:
        """Count a request for predictions that was answered."""
        with self._lock:
            self._buckets[bisect_left(BOUNDS, seconds)] += 1
            self._seconds += seconds

    def total(self, name: str) -> float:
        """A counter over all its labels."""
        with self._lock:
            return sum(
                value for (counter, _), value in self._counts.items() if counter == name
            )

    def text(
        self,
        gauges: Mapping[str, Sequence[tuple[Mapping[str, str], float]]] | None = None,
    ) -> str:
        """All metrics as text."""
        with self._lock:
            counts = dict(self._counts)
            buckets = list(self._buckets)
            seconds = self._seconds
        lines = []
        for name, description in COUNTERS.items():
            lines += _heading(f"{name}_total", description, "counter")
            own = [
                (labels, value)
                for (counter, labels), value in counts.items()
                if counter == name
            ]
            lines += [_line(f"{name}_total", labels, value) for labels, value in own]
        for name, values in (gauges or {}).items():
            lines += _heading(name, GAUGES[name], "gauge")
            lines += [
                _line(name, tuple(labels.items()), value) for labels, value in values
            ]
        lines += _heading(
            "predict_seconds", "From a request to its answer", "histogram"
        )
        below = 0
        for bound, number in zip((*map(str, BOUNDS), "+Inf"), buckets, strict=True):
            below += number
            lines.append(_line("predict_seconds_bucket", (("le", bound),), below))
        lines += [
            _line("predict_seconds_sum", (), seconds),
            _line("predict_seconds_count", (), below),
        ]
        return "\n".join(lines) + "\n"


def _heading(name: str, description: str, kind: str) -> list[str]:
    return [
        f"# HELP colonnade_{name} {description}.",
        f"# TYPE colonnade_{name} {kind}",
    ]


def _line(name: str, labels: Labels, value: float) -> str:
    inside = ",".join(f'{key}="{_escaped(text)}"' for key, text in labels)
    number = f"{value:.0f}" if value == int(value) else f"{value:.9g}"
    return (
        f"colonnade_{name}{{{inside}}} {number}"
        if inside
        else f"colonnade_{name} {number}"
    )


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


log = logging.getLogger("colonnade.serving")

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

ROUTES = ("/", "/predict", "/health", "/metrics", "/openapi.json")
METHODS = ("GET", "POST", "HEAD", "OPTIONS")
# without a token; then /health says no more than that it is alive
OPEN = ("/health", "/openapi.json")
ID_BYTES = 1024
"""Bytes that an id may take in a body, on average; an id has at most 256 characters."""

ALL = 5
"""All callers together may ask for so many times the unknown ids that one caller may.
"""
MOST_FOUND = 100_000
"""Ids that are remembered to have been found."""


@dataclass(frozen=True)
class Limits:
    """What one service takes."""

    rows: int = 1000  # of one request
    rate: float = 0.0  # requests per second, of all callers together; 0: any
    token: str | None = None
    seconds: float = 10.0  # in which a whole request, header and body, must be here
    connections: int = 256  # of one address; 0: any
    # whether a proxy on this machine says whose address a request is from
    proxy: bool = False

    @property
    def body(self) -> int:
        """The most bytes of a request's body."""
        return 1024 + ID_BYTES * self.rows


class Problem(Exception):  # noqa: N818 - the word of RFC 9457
    """An answer that is an error: what it is, the rule, and the cure."""

    def __init__(
        self,
        status: int,
        error: str,
        rule: str,
        cure: str,
        headers: Mapping[str, str] | None = None,
        **extra: Any,
    ) -> None:
        self.status = status
        self.headers = dict(headers or {})
        self.body = {"error": error, "rule": rule, "cure": cure, **extra}
        super().__init__(error)


class Bucket:
    """A token bucket: `rate` a second, and as many at once as one second has, but at
    least one."""

    def __init__(
        self, rate: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.rate = rate
        self.clock = clock
        self.size = max(rate, 1.0)
        self.left = self.size
        self.at = clock()

    def take(self) -> float:
        """Take a token and give 0, or give the seconds to wait for one."""
        if not self.rate:
            return 0.0
        now = self.clock()
        self.left = min(self.size, self.left + (now - self.at) * self.rate)
        self.at = now
        if self.left < 1:
            return (1 - self.left) / self.rate
        self.left -= 1
        return 0.0


class Probing(ColonnadeError):  # noqa: N818 - the name of the condition
    """A caller has asked for as many ids that nobody holds as it may in a day."""


class Quota:
    """How many ids that nobody holds each caller may ask for in a day, and all together
    `ALL` times as many; 0: any."""

    def __init__(self, most: int, day: Callable[[], date] = today) -> None:
        self.most = most
        self.day = day
        self._at: date | None = None
        self._lock = threading.Lock()
        self._taken: Counter[str] = Counter()
        self._found: dict[str, None] = {}  # ids that were found once, the oldest first

    def take(self, caller: str, ids: Iterable[str]) -> frozenset[str]:
        """Count the ids of a request that were never found, or refuse it."""
        if not self.most:
            return frozenset()
        with self._lock:
            day = self.day()
            if self._at != day:
                self._at = day
                self._taken.clear()
            unseen = frozenset(id_ for id_ in ids if id_ not in self._found)
            remaining = min(
                self.most - self._taken[caller], ALL * self.most - self._taken.total()
            )
            if len(unseen) > remaining:
                raise Probing(
                    f"{len(unseen)} ids are new here, and {max(remaining, 0)} more may"
                    " be unknown today."
                )
            self._taken[caller] += len(unseen)
            return unseen

    def settle(
        self, caller: str, unseen: Iterable[str], lost: Collection[str] | None
    ) -> None:
        """Stop counting ids that are not lost. Where `lost` is None it is not known
        which are, and none counts."""
        with self._lock:
            known = [id_ for id_ in unseen if lost is None or id_ not in lost]
            self._taken[caller] = max(self._taken[caller] - len(known), 0)
            if lost is not None:
                self._found |= dict.fromkeys(known)
            while len(self._found) > MOST_FOUND:
                del self._found[next(iter(self._found))]


class Gate:
    """ASGI middleware. In requests that it lets through, scope["trusted"] says whether
    the token was right."""

    def __init__(self, app: App, limits: Limits, metrics: Metrics) -> None:
        self.app = app
        self.limits = limits
        self.metrics = metrics
        self.bucket = Bucket(limits.rate)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        start = time.perf_counter()
        status = 0
        reference = secrets.token_hex(4)
        scope["reference"] = reference
        route = scope["path"] if scope["path"] in ROUTES else "other"
        # a caller may send any word
        method = scope["method"] if scope["method"] in METHODS else "other"

        async def sending(message: MutableMapping[str, Any]) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            self._check(scope, route)
            await self.app(scope, await self._read(receive), sending)
        except Exception as error:
            if not isinstance(error, Problem):
                log.error("reference %s: %s", reference, type(error).__name__)
            if not status:
                from starlette.responses import JSONResponse

                problem = error if isinstance(error, Problem) else internal(reference)
                await JSONResponse(problem.body, problem.status, problem.headers)(
                    scope, receive, sending
                )
        seconds = time.perf_counter() - start
        self.metrics.count("requests", route=route, status=str(status))
        if route == "/predict" and status == 200:
            self.metrics.add_answer(seconds)
        rows = scope.get("rows")
        log.info(
            "%s %s %d %s %.1f ms",
            method,
            route,
            status,
            "" if rows is None else rows,
            seconds * 1e3,
        )

    def _check(self, scope: Scope, route: str) -> None:
        headers = {name.lower(): value for name, value in scope["headers"]}
        scope["trusted"] = self._trusted(headers.get(b"authorization", b""))
        if not scope["trusted"] and route not in OPEN:
            rule = "This service answers those who have its token."
            cure = "Send the header Authorization: Bearer TOKEN."
            raise Problem(
                401,
                "no token, or a wrong one",
                rule,
                cure,
                {"WWW-Authenticate": "Bearer"},
            )
        if route != "/predict":
            return
        length = headers.get(b"content-length", b"0")
        if not length.isdigit() or int(length) > self.limits.body:
            raise self._too_long()
        if wait := self.bucket.take():
            rule = (
                f"This service takes {self.limits.rate:g} requests a second, of all"
                " callers together."
            )
            cure = "Ask for more rows at once, or wait as long as Retry-After says."
            raise Problem(
                429,
                "too many requests",
                rule,
                cure,
                {"Retry-After": str(int(wait) + 1)},
            )

    def _trusted(self, header: bytes) -> bool:
        if self.limits.token is None:
            return True
        kind, _, token = header.partition(b" ")
        return kind.lower() == b"bearer" and hmac.compare_digest(
            token.strip(), self.limits.token.encode()
        )

    async def _read(self, receive: Receive) -> Receive:
        """Read the whole body, which must be short enough and come in time; gives a
        `receive` that replays it."""
        body = bytearray()
        more = True
        rule = f"The body must be here within {self.limits.seconds:g} seconds."
        late = Problem(408, "the body did not arrive", rule, "Send it again.")
        try:
            async with asyncio.timeout(self.limits.seconds):
                while more:
                    message = await receive()
                    # cut short: what came must not be read as a whole body
                    if message["type"] == "http.disconnect":
                        raise late
                    body += message.get("body", b"")
                    more = message.get("more_body", False)
                    if len(body) > self.limits.body:
                        raise self._too_long()
        except TimeoutError:
            raise late from None
        messages = iter(
            [{"type": "http.request", "body": bytes(body), "more_body": False}]
        )

        async def reading() -> MutableMapping[str, Any]:
            return next(messages, None) or await receive()

        return reading

    def _too_long(self) -> Problem:
        rule = (
            f"A request has at most {self.limits.rows} rows and {self.limits.body}"
            " bytes."
        )
        return Problem(413, "the body is too long", rule, "Ask in several requests.")


def internal(reference: str) -> Problem:
    rule = "The service's log has the kind of error, under this reference."
    return Problem(
        500,
        "something of ours failed",
        rule,
        "Tell whoever runs the service.",
        reference=reference,
    )
