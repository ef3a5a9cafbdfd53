"""What stands before the gate: who may hold a connection, and for how long. It needs no token to open one.

    a request, header and body     must be here within `Limits.seconds` of its first byte, or of the connection
    an answer                      is taken within `ANSWER` seconds after that
    one address                    holds at most `Limits.connections`; IPv6 counts by its /64
    all of them                    hold at most as many as the service has room and files for

Where there is no room, the connection that has waited longest for a request makes way: half-open ones are the oldest,
and a client that asks in time is answered. Only where all are at work is the new one turned away. Refusals are JSON,
those of uvicorn's own parser too.
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
"""Seconds from a whole request to the end of its answer: more than a request may wait for the parties."""
EVERY = 0.25
"""Seconds between two looks at what is overdue."""
OTHER_FILES = 192
"""Open files that are not connections."""
LINGER = 64
"""Refused connections that are kept for a second, so that the refusal can be read."""


class Door:
    """All connections of one service."""

    def __init__(self, limits: Limits, most: int) -> None:
        self.limits, self.most = limits, min(most, _files() - OTHER_FILES)
        self.by_address: Counter[str] = Counter()
        self.until: dict[Connection, float] = {}  # when each is given up, in the order in which they began to wait
        self.refused: deque[Connection] = deque()  # told why, and about to be closed
        self._looking = False

    def admit(self, new: Connection) -> Problem | None:
        """Count it in, or say why not."""
        own = self.limits.connections
        if own and self.by_address[new.address] >= own and not self._make_way(new.address):
            rule = f"One address holds at most {own} connections, and all of yours are at work."
            return Problem(429, "too many connections", rule, "Use connections again.", {"Retry-After": "1"})
        if len(self.until) >= self.most and not self._make_way(None):
            rule = f"The service holds at most {self.most} connections, and all are at work."
            return Problem(503, "too many connections", rule, "Ask again later.", {"Retry-After": "1"})
        self.by_address[new.address] += 1
        self.until[new] = new.loop.time() + self.limits.seconds
        if not self._looking:
            self._looking = True
            new.loop.call_later(EVERY, self._look, new.loop)
        return None

    def set(self, one: Connection, seconds: float) -> None:
        """Give it up after so long."""
        if self.until.pop(one, None) is not None:
            self.until[one] = one.loop.time() + seconds

    def leave(self, one: Connection) -> None:
        if self.until.pop(one, None) is not None:
            self.by_address[one.address] -= 1
            if not self.by_address[one.address]:
                del self.by_address[one.address]

    def _make_way(self, address: str | None) -> bool:
        """Close the connection of an address, or of anybody, that has waited longest for a request."""
        for one in self.until:
            if not one.at_work and address in (None, one.address):
                one.give_up()
                return True
        return False

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        now = loop.time()
        for one in [one for one, until in self.until.items() if until <= now]:
            one.give_up()
        self._looking = bool(self.until)
        if self._looking:
            loop.call_later(EVERY, self._look, loop)


class Connection(H11Protocol):
    """One connection; uvicorn makes one of a subclass that has its service's `door`."""

    door: ClassVar[Door]
    address = ""
    asking = False  # a request has begun and is not whole
    at_work = False  # a whole request is not answered yet
    ended = False

    def connection_made(self, transport: Any) -> None:
        peer = transport.get_extra_info("peername")
        self.address = counted(str(peer[0])) if isinstance(peer, tuple) else ""
        problem = self.door.admit(self)
        super().connection_made(transport)
        if problem is not None:
            self._refuse(problem)

    def connection_lost(self, exc: Exception | None) -> None:
        self.door.leave(self)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if not self.ended:
            super().data_received(data)
            self._note(begun=self.conn.their_state is h11.IDLE)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._note(begun=False)

    def _note(self, *, begun: bool) -> None:
        """A deadline runs from the first byte of a request to its last, whatever comes in between. `begun`: some of a
        header is here."""
        their, answered = self.conn.their_state, self.cycle is None or self.cycle.response_complete
        if their not in (h11.IDLE, h11.SEND_BODY) and not answered:
            if not self.at_work:
                self.door.set(self, ANSWER)
            self.asking, self.at_work = False, True
            return
        begun = begun or their is h11.SEND_BODY
        if (begun and not self.asking) or self.at_work:
            self.door.set(self, self.door.limits.seconds)
        self.asking, self.at_work = begun, False

    def give_up(self) -> None:
        """It took too long, or another needs the room."""
        began = self.cycle is not None and self.cycle.response_started
        if not self.asking or (self.conn.their_state is h11.SEND_BODY and began):
            self._end()  # there is nothing to say, or it is said
            return
        rule = f"A request, header and body, must be here within {self.door.limits.seconds:g} seconds."
        self._refuse(Problem(408, "the request did not arrive", rule, "Send it again."))

    def send_400_response(self, msg: str) -> None:  # noqa: ARG002
        """Of uvicorn's parser."""
        rule = "A request is HTTP/1.1 with a header of at most 64 KiB."
        self._refuse(Problem(400, "this is no HTTP request", rule, "See /openapi.json."))

    def _refuse(self, problem: Problem) -> None:
        body = json.dumps(problem.body).encode()
        head = {"content-type": "application/json", "content-length": str(len(body)), "connection": "close"}
        lines = [f"HTTP/1.1 {problem.status} {HTTPStatus(problem.status).phrase}"]
        lines += [f"{name.lower()}: {value}" for name, value in (head | problem.headers).items()]
        self.transport.write("\r\n".join([*lines, "", ""]).encode() + body)
        self.door.refused.append(self)
        while len(self.door.refused) > LINGER:
            self.door.refused.popleft().transport.abort()
        self._end(abort=False)

    def _end(self, *, abort: bool = True) -> None:
        """It does not count any more. What still comes of one that was told why is read and dropped for a moment: to
        close at once would take the answer away from who is still sending."""
        self.ended = True
        self.door.leave(self)
        if abort or not self.transport.can_write_eof():
            self.transport.abort()
        elif not self.transport.is_closing():
            self.transport.write_eof()
            self.loop.call_later(1.0, self.transport.abort)


def counted(host: str) -> str:
    """An address as it is counted: of IPv6, where one caller has many, its /64."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if isinstance(address, ipaddress.IPv6Address):
        return str(address.ipv4_mapped or ipaddress.ip_network((int(address) >> 64 << 64, 64)))
    return str(address)


def _files() -> int:
    """Files that this process may have open."""
    try:
        import resource
    except ImportError:  # no Unix
        return 1 << 10
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 1 << 20 if soft == resource.RLIM_INFINITY else max(soft, OTHER_FILES + 16)
