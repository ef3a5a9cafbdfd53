"""Calls between organisations on different machines: bytes in, bytes out, over any line
that says who is calling.

    asker                                      one call of the line                party
    Remote.exchange  --frame-->  whole: frame | put: piece | run | get: piece  -->  Endpoint
                    <-frame---  frame | how long it is                        <--

The line is sealed from site to site (`channel`) and carried by NVIDIA FLARE
(`flare.members`). The channel tells an endpoint which site is calling; the name in a
frame counts for nothing, and one that differs is refused. Who calls and what is asked
are checked by a frame's header; only then is it unpacked, to as many bytes as the
organisation's owner allows. A frame may bring calls that were held back ahead of
another one; the answer is that of the last, or of the first that failed. A frame above
`PIECE` bytes travels in pieces, straight out of the sender's tensors and into one
buffer at the receiver, which the tensors there go on using: no side ever holds it
twice.
"""

from __future__ import annotations

import logging
import secrets
import struct
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from colonnade.core import wire
from colonnade.core.failure import Failure, failure_of, raised
from colonnade.core.message import Done, Message, Request, answered_by, batch_of
from colonnade.core.peers import Answer, Transport, by_receiver
from colonnade.core.wire import Envelope
from colonnade.errors import (
    BoundaryError,
    CheckpointError,
    ColonnadeError,
    InputError,
    NoAnswer,
    PartyError,
    WireError,
)

Call = Envelope[Any]
Route = Callable[[bytes, float], bytes]
"""One call to one site: bytes there, bytes back within so many seconds, or an
exception."""

PIECE = 4 << 20
"""Bytes in one call of the line. FLARE takes bytes up to 10 MB in one go; it stores
larger ones away and fetches them one by one, which takes longer and twice the memory.
"""
DEADLINE = 600.0
"""Seconds in which a party must have answered, unless settings say otherwise: above its
slowest local training."""
# what this is, of which transfer, where it starts, and how long the whole is
HEAD = struct.Struct("<c16sQQ")
WHOLE = b"W"
PUT = b"P"
RUN = b"R"
GET = b"G"
ANSWER = b"A"
LONG = b"L"
PART = b"D"
NONE = bytes(16)


class Remote:
    """Carries calls to parties elsewhere by their lines, and to this organisation's own
    roles by `here`."""

    def __init__(
        self,
        lines: Mapping[str, Route],
        *,
        here: Transport | None = None,
        own: Collection[str] = (),
        device: torch.device | str = "cpu",
        deadline: float = DEADLINE,
        piece: int = PIECE,
        most: int = wire.UNPACKED,
        # whether what is answered by Done may wait for the next call
        # (`transport.holding`)
        joins: bool = False,
    ) -> None:
        self.routes = dict(lines)
        self.here = here
        self.own = frozenset(own)
        self.joins = joins
        self.device = device
        self.deadline = deadline
        self.piece = piece
        self.most = most
        self._pool = ThreadPoolExecutor(
            max(1, len(self.routes)), thread_name_prefix="line"
        )

    def exchange(self, calls: Sequence[Call]) -> list[Answer]:
        """Make calls. The others work while this organisation answers itself."""
        groups = by_receiver(calls)
        under_way = {
            to: self._pool.submit(self._ask, to, group)
            for to, group in groups.items()
            if not self._is_here(to)
        }
        outcomes: dict[str, list[Answer] | BaseException] = {}
        for to, group in groups.items():
            if self._is_here(to):
                try:
                    outcomes[to] = self._here(group)
                except ColonnadeError as error:
                    outcomes[to] = error
        for to, call in under_way.items():
            outcomes[to] = call.exception() or call.result()
        answers: dict[str, Iterator[Answer]] = {}
        for to in groups:
            outcome = outcomes[to]
            if isinstance(outcome, PartyError):
                outcome = [outcome] * len(groups[to])
            if isinstance(outcome, BaseException):
                raise outcome
            answers[to] = iter(outcome)
        return [next(answers[call.receiver]) for call in calls]

    def _is_here(self, to: str) -> bool:
        return to in self.own and self.here is not None

    def _here(self, calls: Sequence[Call]) -> list[Answer]:
        assert self.here is not None
        return self.here.exchange(calls)

    def _ask(self, to: str, calls: Sequence[Call]) -> list[Answer]:
        """Send one party its calls in one frame. Its answer is the reply to the last;
        those before it are answered by Done, or the whole frame fails."""
        request = calls[-1].message
        expected = answered_by(type(request))

        def failed(cause: str) -> PartyError:
            return PartyError(to, request.kind, batch_of(request), cause)

        if to not in self.routes:
            raise failed(f"no such party; there are lines to {sorted(self.routes)}")
        try:
            frame = wire.buffers(*calls)
            answer = wire.read(self._send(to, frame, self.deadline * len(calls)))
            if not issubclass(answer.kind, Failure):
                if answer.sender != to or answer.number != calls[-1].number:
                    raise failed(
                        f"it answered call {answer.number} as {answer.sender[:80]!r},"
                        f" and was asked call {calls[-1].number}"
                    )
                if not issubclass(answer.kind, expected):
                    raise failed(
                        f"it answered with {answer.kind.kind}, and {expected.kind}"
                        " answers this"
                    )
            message: Message = answer.unpack(device=self.device, most=self.most).message
        except PartyError:
            raise
        except WireError as error:
            raise failed(f"its answer cannot be read: {error}") from None
        # it is not who it must be: asking again would not change that
        except BoundaryError as error:
            raise failed(str(error)) from None
        # whatever the line makes of a broken connection, or of a deadline
        except Exception as error:
            raise NoAnswer(
                to,
                request.kind,
                batch_of(request),
                f"no answer ({type(error).__name__}: {error})",
            ) from error
        if isinstance(message, Failure):
            raise raised(message)
        return [*(Done() for _ in calls[:-1]), message]

    def _send(self, to: str, frame: list[wire.Buffer], deadline: float) -> memoryview:
        """A frame there and a frame back, each in one call of the line or in several."""
        line = self.routes[to]
        total = sum(map(len, frame))
        if total <= self.piece:
            reply = line(b"".join([HEAD.pack(WHOLE, NONE, 0, total), *frame]), deadline)
        else:
            check_size(total)
            transfer = secrets.token_bytes(16)
            for start, part in cut(frame, self.piece):
                taken = line(HEAD.pack(PUT, transfer, start, total) + part, deadline)
                if taken != ANSWER:
                    return _content(taken)
            reply = line(HEAD.pack(RUN, transfer, 0, total), deadline)
        if reply[:1] != LONG:
            return _content(reply)
        if len(reply) != HEAD.size:
            raise WireError(
                "An answer that is to be fetched does not say how long it is."
            )
        _, transfer, _, total = HEAD.unpack(reply)
        return self._fetch(line, transfer, total)

    def _fetch(self, line: Route, transfer: bytes, total: int) -> memoryview:
        whole = room_for(total)
        start = 0
        while start < total:
            part = line(HEAD.pack(GET, transfer, start, total), self.deadline)
            if part[:1] != PART:
                return _content(part)
            if not 0 < len(part) - 1 <= total - start:
                raise WireError(
                    f"A piece of an answer has {len(part) - 1} bytes, and"
                    f" {total - start} are missing."
                )
            whole[start : start + len(part) - 1] = memoryview(part)[1:]
            start += len(part) - 1
        return whole


def _content(reply: bytes) -> memoryview:
    """A whole answer, in memory of its own."""
    if reply[:1] != ANSWER:
        raise WireError(
            f"An answer starts with {ANSWER!r} or {LONG!r}; this one with"
            f" {reply[:8]!r}."
        )
    return memoryview(bytearray(memoryview(reply)[1:]))


def cut(
    frame: list[wire.Buffer], size: int, start: int = 0
) -> Iterator[tuple[int, bytes]]:
    """A frame from `start` on, in pieces: each with its place, copied out when it is
    wanted and not before."""
    total = sum(map(len, frame))
    for at in range(start, total, size):
        piece = bytearray(min(size, total - at))
        place = 0
        for buffer in frame:
            low = max(place, at)
            high = min(place + len(buffer), at + len(piece))
            if low < high:
                piece[low - at : high - at] = memoryview(buffer)[
                    low - place : high - place
                ]
            place += len(buffer)
        yield at, bytes(piece)


def check_size(total: int) -> None:
    if total > wire.MAX_FRAME:
        raise WireError(
            f"A frame may have at most {wire.MAX_FRAME} bytes; this one says it has"
            f" {total}. Send less at once."
        )


def room_for(total: int) -> memoryview:
    """Memory for a frame that is to come; untouched, so that who only announces much
    takes nothing."""
    check_size(total)
    return np.empty(total, dtype=np.uint8).data


log = logging.getLogger("colonnade.party")

Handle = Callable[[Envelope[Any]], Message]
"""What an organisation does with a call whose sender was checked."""
Allow = Callable[[str, type[Request[Any]]], None]
"""Refuses, by BoundaryError, what somebody may not ask."""
OPEN = 8
"""Calls and answers of one sender that may be under way in pieces; all calls together
are as long as one may be."""


@dataclass
class Transfers:
    """What one sender has under way in pieces: calls that arrive, and answers that wait
    to be fetched."""

    arriving: dict[bytes, memoryview] = field(default_factory=dict)
    filled: dict[bytes, int] = field(default_factory=dict)
    waiting: dict[bytes, list[wire.Buffer]] = field(default_factory=dict)

    def put(self, transfer: bytes, start: int, total: int, part: memoryview) -> None:
        """Pieces come in order, from one buffer that is made once."""
        if start == 0 and transfer not in self.arriving:
            check_size(total)
            while (
                len(self.arriving) >= OPEN
                or sum(map(len, self.arriving.values())) + total > wire.MAX_FRAME
            ):
                self.drop(next(iter(self.arriving)))
            self.arriving[transfer], self.filled[transfer] = room_for(total), 0
        whole = self.arriving.get(transfer)
        if (
            whole is None
            or len(whole) != total
            or start != self.filled[transfer]
            or start + len(part) > total
        ):
            self.drop(transfer)
            raise WireError(
                f"A piece of {len(part)} bytes at {start} of {total} came out of turn."
            )
        whole[start : start + len(part)] = part
        self.filled[transfer] += len(part)

    def take(self, transfer: bytes) -> memoryview:
        whole = self.arriving.get(transfer)
        filled = self.filled.get(transfer)
        self.drop(transfer)
        if whole is None or filled != len(whole):
            raise WireError("A call in pieces was to be answered before all had come.")
        return whole

    def drop(self, transfer: bytes) -> None:
        self.arriving.pop(transfer, None)
        self.filled.pop(transfer, None)

    def keep(self, frame: list[wire.Buffer]) -> bytes:
        """An answer to be fetched; the oldest of too many is given up."""
        transfer = secrets.token_bytes(16)
        if len(self.waiting) >= OPEN:
            del self.waiting[next(iter(self.waiting))]
        self.waiting[transfer] = frame
        return transfer

    def get(self, transfer: bytes, start: int, piece: int) -> bytes:
        frame = self.waiting.get(transfer)
        if frame is None:
            raise WireError(
                "There is no such answer to fetch, or it was given up for newer ones."
            )
        total = sum(map(len, frame))
        if not 0 <= start < total:
            raise WireError(
                f"There is no piece at {start} of an answer of {total} bytes."
            )
        if start + piece >= total:
            del self.waiting[transfer]
        return next(part for _, part in cut(frame, piece, start))


class Endpoint:
    """Where calls to one organisation arrive: it checks who is calling and puts pieces
    together.

    `admitted` are the parties of the agreed federation, and `allow` knows which of them
    may ask what. A call unpacks to `most` bytes. Whatever is refused is in the
    organisation's own log, and told to `refused`.
    """

    def __init__(
        self,
        owner: str,
        handle: Handle,
        *,
        admitted: Collection[str],
        allow: Allow,
        most: int = wire.UNPACKED,
        device: torch.device | str = "cpu",
        piece: int = PIECE,
        refused: Callable[[str, str], None] | None = None,
    ) -> None:
        self.owner = owner
        self.handle = handle
        self.admitted = frozenset(admitted)
        self.allow = allow
        self.most = most
        self.device = device
        self.piece = piece
        self.refused = refused
        self._transfers: dict[str, Transfers] = {
            name: Transfers() for name in self.admitted
        }
        self._lock = threading.Lock()

    def __call__(self, caller: str, data: bytes) -> bytes:
        """One call of the line. `caller` is who the line says is calling."""
        if caller not in self.admitted:
            error = BoundaryError(
                f"'{self.owner}' answers no call of {caller[:80]!r}, no party of its"
                " federation."
            )
            return self._failed(error, caller, None, 0)
        try:
            return self._one(caller, self._transfers[caller], data)
        except WireError as error:
            return self._failed(error, caller, None, 0)
        # no memory, no disk: what carries calls would tell the caller all of it
        except Exception as error:
            return ANSWER + wire.encode(
                Envelope(self.owner, 0, failure_of(error, self.owner, None), caller)
            )

    def _one(self, caller: str, known: Transfers, data: bytes) -> bytes:
        if len(data) < HEAD.size:
            raise WireError(
                f"A call has at least {HEAD.size} bytes; this one has {len(data)}."
            )
        kind, transfer, start, total = HEAD.unpack_from(data)
        rest = memoryview(data)[HEAD.size :]
        with self._lock:
            if kind == PUT:
                known.put(transfer, start, total, rest)
                return ANSWER
            if kind == GET:
                return PART + known.get(transfer, start, self.piece)
            if kind not in (WHOLE, RUN):
                raise WireError(
                    f"A call starts with one of {[WHOLE, PUT, RUN, GET]}; this one with"
                    f" {kind!r}."
                )
            frame = known.take(transfer) if kind == RUN else memoryview(bytearray(rest))
        answer = self._answer(caller, frame)
        length = sum(map(len, answer))
        if length <= self.piece:
            return b"".join([ANSWER, *answer])
        with self._lock:
            return HEAD.pack(LONG, known.keep(answer), 0, length)

    def _answer(self, caller: str, frame: memoryview) -> list[wire.Buffer]:
        calls = wire.calls(frame)
        number = calls[-1].number
        request = None
        try:
            for incoming in calls:
                self._check(caller, incoming)
            for incoming in calls[:-1]:
                self._check_needs_no_reply(caller, incoming)
            # one after the other, as if each had come alone; the first failure ends it
            for incoming in calls:
                request = None
                request = incoming.unpack(device=self.device, most=self.most).message
                reply = self.handle(
                    Envelope(caller, incoming.number, request, self.owner)
                )
        except (BoundaryError, WireError) as error:
            self.note(caller, str(error))
            reply = failure_of(error, self.owner, request)
        except Exception as error:
            self._tell(error)
            reply = failure_of(error, self.owner, request)
        return wire.buffers(Envelope(self.owner, number, reply, caller))

    def _check(self, caller: str, incoming: wire.Incoming) -> None:
        """Refuse what a header says already may not be asked."""
        if incoming.sender != caller:
            raise BoundaryError(
                f"'{self.owner}' got a call that says it is from"
                f" {incoming.sender[:80]!r}, over the line of '{caller}'. A party calls"
                " under its own name."
            )
        if not issubclass(incoming.kind, Request):
            raise BoundaryError(
                f"'{self.owner}' got {incoming.kind.kind} of '{caller}', which is no"
                " request."
            )
        if incoming.receiver != self.owner:
            raise BoundaryError(
                f"'{self.owner}' got a call of '{caller}' that is for"
                f" {incoming.receiver[:80]!r}. A call says whom it is for."
            )
        self.allow(caller, incoming.kind)

    def _check_needs_no_reply(self, caller: str, incoming: wire.Incoming) -> None:
        """Refuse a call that travels ahead of another one and has a reply to give."""
        kind = incoming.kind
        if not issubclass(kind, Request) or answered_by(kind) is not Done:
            raise BoundaryError(
                f"'{caller}' held {kind.kind} back; only what is answered by"
                " Done may wait."
            )

    def _tell(self, error: Exception) -> None:
        """What whoever runs this organisation must put right. Its cause is kept
        nowhere: with it lives what had failed to begin, such as a lock."""
        cause = error.__cause__ if isinstance(error, PartyError) else error
        if isinstance(cause, (InputError, CheckpointError)):
            log.error("%s: %s", self.owner, str(cause))

    def _failed(
        self, error: ColonnadeError, caller: str, request: Message | None, number: int
    ) -> bytes:
        self.note(caller, str(error))
        return ANSWER + wire.encode(
            Envelope(self.owner, number, failure_of(error, self.owner, request), caller)
        )

    def refuse(self, error: ColonnadeError, caller: str) -> bytes:
        """The answer to a call that is refused before it is read."""
        return self._failed(error, caller, None, 0)

    def note(self, caller: str, why: str) -> None:
        """A call that was refused, in the log and to `refused`."""
        log.warning("%s: refused a call of %.80r: %s", self.owner, caller, why)
        if self.refused is not None:
            try:
                self.refused(caller, why)
            except OSError as error:
                log.error(
                    "%s: what it refused cannot be written down: %s",
                    self.owner,
                    error.strerror,
                )
