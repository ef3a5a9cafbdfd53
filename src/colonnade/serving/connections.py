"""Before the gate: who may hold a connection, and for how long. It needs no token to
open one.

    a request, header and body     must be here within `Limits.seconds` of its first byte, or of the connection
    an answer                      must be taken within `ANSWER` seconds after that
    one address                    holds at most `Limits.connections`; IPv6 counts by its /64
    all of them                    hold at most as many as the service has room and files for

Where there is no room, the connection that has waited longest for a request makes way:
half-open ones are the oldest, and a client that asks in time is answered. Only where
all are at work is the new one turned away. Refusals are JSON, those of uvicorn's own
parser too.
"""

from __future__ import annotations

import asyncio
import ipaddress
import json
from collections import Counter, deque
from http import HTTPStatus
from typing import Any, ClassVar

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from colonnade.serving.limits import Limits, Problem

ANSWER = 60.0
"""Seconds from a whole request to the end of its answer: more than a request may wait
for the parties."""
EVERY = 0.25
"""Seconds between two checks for overdue connections."""
OTHER_FILES = 192
"""Open files that are not connections."""
LINGER = 64
"""Refused connections that are kept for a second, so that the refusal can be read."""


class OpenConnections:
    """All connections of one service."""

    def __init__(self, limits: Limits, most: int) -> None:
        self.limits = limits
        self.most = min(most, _files() - OTHER_FILES)
        self.by_address: Counter[str] = Counter()
        # when each is given up, in the order in which they began to wait
        self.until: dict[Connection, float] = {}
        # a refusal was sent, and they are about to be closed
        self.refused: deque[Connection] = deque()
        self._scheduled = False

    def admit(self, new: Connection) -> Problem | None:
        """Count a new connection in, or say why not."""
        own = self.limits.connections
        if (
            own
            and self.by_address[new.address] >= own
            and not self._make_way(new.address)
        ):
            rule = (
                f"One address holds at most {own} connections, and all of yours are at"
                " work."
            )
            return Problem(
                429,
                "too many connections",
                rule,
                "Use connections again.",
                {"Retry-After": "1"},
            )
        if len(self.until) >= self.most and not self._make_way(None):
            rule = (
                f"The service holds at most {self.most} connections, and all are at"
                " work."
            )
            return Problem(
                503,
                "too many connections",
                rule,
                "Ask again later.",
                {"Retry-After": "1"},
            )
        self.by_address[new.address] += 1
        self.until[new] = new.loop.time() + self.limits.seconds
        if not self._scheduled:
            self._scheduled = True
            new.loop.call_later(EVERY, self._give_up_overdue, new.loop)
        return None

    def set(self, connection: Connection, seconds: float) -> None:
        """Give a connection up after so many seconds from now."""
        if self.until.pop(connection, None) is not None:
            self.until[connection] = connection.loop.time() + seconds

    def leave(self, connection: Connection) -> None:
        if self.until.pop(connection, None) is not None:
            self.by_address[connection.address] -= 1
            if not self.by_address[connection.address]:
                del self.by_address[connection.address]

    def _make_way(self, address: str | None) -> bool:
        """Close the connection of an address, or of anybody, that has waited longest
        for a request."""
        for connection in self.until:
            if not connection.at_work and address in (None, connection.address):
                connection.give_up()
                return True
        return False

    def _give_up_overdue(self, loop: asyncio.AbstractEventLoop) -> None:
        now = loop.time()
        for connection in [
            connection for connection, until in self.until.items() if until <= now
        ]:
            connection.give_up()
        self._scheduled = bool(self.until)
        if self._scheduled:
            loop.call_later(EVERY, self._give_up_overdue, loop)


class Connection(H11Protocol):
    """One connection. Uvicorn makes them of a subclass that has its service's
    `open_connections`."""

    open_connections: ClassVar[OpenConnections]
    address = ""
    asking = False  # a request has begun and is not whole
    at_work = False  # a whole request is not answered yet
    ended = False

    def connection_made(self, transport: Any) -> None:
        peer = transport.get_extra_info("peername")
        self.address = address_group(str(peer[0])) if isinstance(peer, tuple) else ""
        problem = self.open_connections.admit(self)
        super().connection_made(transport)
        if problem is not None:
            self._refuse(problem)

    def connection_lost(self, exc: Exception | None) -> None:
        self.open_connections.leave(self)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if not self.ended:
            super().data_received(data)
            self._note_progress(begun=self.conn.their_state is h11.IDLE)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._note_progress(begun=False)

    def _note_progress(self, *, begun: bool) -> None:
        """Set the deadline, which runs from the first byte of a request to its last,
        whatever comes in between. `begun`: part of a header is here."""
        state = self.conn.their_state
        answered = self.cycle is None or self.cycle.response_complete
        if state not in (h11.IDLE, h11.SEND_BODY) and not answered:
            if not self.at_work:
                self.open_connections.set(self, ANSWER)
            self.asking = False
            self.at_work = True
            return
        begun = begun or state is h11.SEND_BODY
        if (begun and not self.asking) or self.at_work:
            self.open_connections.set(self, self.open_connections.limits.seconds)
        self.asking = begun
        self.at_work = False

    def give_up(self) -> None:
        """Close the connection: it took too long, or another needs the room."""
        began = self.cycle is not None and self.cycle.response_started
        if not self.asking or (self.conn.their_state is h11.SEND_BODY and began):
            self._end()  # there is nothing to answer, or the answer has begun
            return
        rule = (
            "A request, header and body, must be here within"
            f" {self.open_connections.limits.seconds:g} seconds."
        )
        self._refuse(Problem(408, "the request did not arrive", rule, "Send it again."))

    def send_400_response(self, msg: str) -> None:  # noqa: ARG002
        """Answer what uvicorn's parser refuses, with our own text."""
        rule = "A request is HTTP/1.1 with a header of at most 64 KiB."
        self._refuse(
            Problem(400, "this is no HTTP request", rule, "See /openapi.json.")
        )

    def _refuse(self, problem: Problem) -> None:
        body = json.dumps(problem.body).encode()
        head = {
            "content-type": "application/json",
            "content-length": str(len(body)),
            "connection": "close",
        }
        lines = [f"HTTP/1.1 {problem.status} {HTTPStatus(problem.status).phrase}"]
        lines += [
            f"{name.lower()}: {value}"
            for name, value in (head | problem.headers).items()
        ]
        self.transport.write("\r\n".join([*lines, "", ""]).encode() + body)
        self.open_connections.refused.append(self)
        while len(self.open_connections.refused) > LINGER:
            self.open_connections.refused.popleft().transport.abort()
        self._end(abort=False)

    def _end(self, *, abort: bool = True) -> None:
        """Stop counting the connection, and close it. After a refusal, what still
        arrives is read and dropped for a second: to close at once would take the answer
        away from a caller that is still sending."""
        self.ended = True
        self.open_connections.leave(self)
        if abort or not self.transport.can_write_eof():
            self.transport.abort()
        elif not self.transport.is_closing():
            self.transport.write_eof()
            self.loop.call_later(1.0, self.transport.abort)


def address_group(host: str) -> str:
    """What counts as one address: of IPv6, where one caller has many, the /64."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if isinstance(address, ipaddress.IPv6Address):
        return str(
            address.ipv4_mapped or ipaddress.ip_network((int(address) >> 64 << 64, 64))
        )
    return str(address)


def _files() -> int:
    """How many files this process may have open."""
    try:
        import resource
    except ImportError:  # no Unix
        return 1 << 10
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 1 << 20 if soft == resource.RLIM_INFINITY else max(soft, OTHER_FILES + 16)
