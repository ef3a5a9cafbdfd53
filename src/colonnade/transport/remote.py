"""Calls between organisations on different machines: bytes in, bytes out, over any line that says who is calling.

    asker                                      one call of the line                party
    Remote.exchange  --frame-->  whole: frame | put: piece | run | get: piece  -->  Desk
                    <-frame---  frame | how long it is                        <--

The line is sealed from site to site (`channel`) and carried by NVIDIA FLARE (`flare.members`). The channel
tells a desk which site is calling; the name in a frame counts for nothing, and one that differs is refused. A frame
above `PIECE` bytes travels in pieces, straight out of the sender's tensors and into one buffer at the receiver, which
the tensors there go on using: no side ever holds it twice.
"""

from __future__ import annotations

import secrets
import struct
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar, get_args, get_origin

import numpy as np
import torch

from colonnade.core import wire
from colonnade.core.failure import Failure, raised
from colonnade.core.message import Message, Request, batch_of
from colonnade.core.peers import Transport
from colonnade.core.wire import Envelope
from colonnade.errors import BoundaryError, ColonnadeError, NoAnswer, PartyError, WireError

R = TypeVar("R", bound=Message)
Route = Callable[[bytes, float], bytes]
"""One call to one site: bytes there, bytes back within so many seconds, or an exception."""

PIECE = 4 << 20
"""Bytes in one call of the line. FLARE takes bytes up to 10 MB in one go; it stores larger ones away and fetches them
one by one, which takes longer and twice the memory."""
DEADLINE = 600.0
"""Seconds in which a party must have answered, unless settings say otherwise: above its slowest local training."""
HEAD = struct.Struct("<c16sQQ")  # what this is, of which transfer, where it starts, and how long the whole is
WHOLE, PUT, RUN, GET = b"W", b"P", b"R", b"G"
ANSWER, LONG, PART = b"A", b"L", b"D"
NONE = bytes(16)


class Remote:
    """Carries calls to parties elsewhere by their lines, and to this organisation's own roles by `here`."""

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
    ) -> None:
        self.routes, self.here, self.own = dict(lines), here, frozenset(own)
        self.device, self.deadline, self.piece, self.most = device, deadline, piece, most
        self._pool = ThreadPoolExecutor(max(1, len(self.routes)), thread_name_prefix="line")

    def exchange(self, to: str, envelope: Envelope[Request[R]]) -> R:
        if to in self.own and self.here is not None:
            return self.here.exchange(to, envelope)
        return self._ask(to, envelope, wire.buffers(envelope))  # type: ignore[return-value]

    def exchange_each(self, envelopes: Mapping[str, Envelope[Request[R]]]) -> dict[str, R]:
        answers = self._each(envelopes)
        for answer in answers.values():
            if isinstance(answer, BaseException):
                raise answer
        return answers

    def attempt_each(self, envelopes: Mapping[str, Envelope[Request[R]]]) -> dict[str, R | PartyError]:
        """Each answer, or the failure in its place."""
        answers = self._each(envelopes)
        for answer in answers.values():
            if isinstance(answer, BaseException) and not isinstance(answer, PartyError):
                raise answer
        return answers

    def _each(self, envelopes: Mapping[str, Envelope[Request[Any]]]) -> dict[str, Any]:
        """The others work while this organisation answers itself."""
        away = {to: envelope for to, envelope in envelopes.items() if to not in self.own}
        frames = {id(e): wire.buffers(e) for e in {id(e): e for e in away.values()}.values()}  # one question, one frame
        under_way = {to: self._pool.submit(self._ask, to, e, frames[id(e)]) for to, e in away.items()}
        answers: dict[str, Any] = {}
        for to, envelope in envelopes.items():
            if to in self.own:
                try:
                    answers[to] = self.exchange(to, envelope)
                except ColonnadeError as error:
                    answers[to] = error
        for to, call in under_way.items():
            answers[to] = call.exception() or call.result()
        return {to: answers[to] for to in envelopes}

    def _ask(self, to: str, envelope: Envelope[Request[Any]], frame: list[wire.Buffer]) -> Message:
        request, expected = envelope.message, answered_by(type(envelope.message))

        def failed(cause: str) -> PartyError:
            return PartyError(to, request.kind, batch_of(request), cause)

        if to not in self.routes:
            raise failed(f"no such party; there are lines to {sorted(self.routes)}")
        try:
            answer = wire.read(self._send(to, frame))
            if not issubclass(answer.kind, Failure):
                if answer.sender != to or answer.number != envelope.number:
                    raise failed(
                        f"it answered call {answer.number} as {answer.sender[:80]!r}, and was asked call "
                        f"{envelope.number}"
                    )
                if not issubclass(answer.kind, expected):
                    raise failed(f"it answered with {answer.kind.kind}, and {expected.kind} answers this")
            message: Message = answer.unpack(device=self.device, most=self.most).message
        except PartyError:
            raise
        except WireError as error:
            raise failed(f"its answer cannot be read: {error}") from None
        except BoundaryError as error:  # it is not who it must be: asking again would not change that
            raise failed(str(error)) from None
        except Exception as error:  # whatever the line makes of a broken connection, or of a deadline
            raise NoAnswer(
                to, request.kind, batch_of(request), f"no answer ({type(error).__name__}: {error})"
            ) from error
        if isinstance(message, Failure):
            raise raised(message)
        return message

    def _send(self, to: str, frame: list[wire.Buffer]) -> memoryview:
        """A frame there and a frame back, each in one call of the line or in several."""
        line = self.routes[to]
        total = sum(map(len, frame))
        if total <= self.piece:
            reply = line(HEAD.pack(WHOLE, NONE, 0, total) + b"".join(frame), self.deadline)
        else:
            check_size(total)
            transfer = secrets.token_bytes(16)
            for start, part in cut(frame, self.piece):
                taken = line(HEAD.pack(PUT, transfer, start, total) + part, self.deadline)
                if taken != ANSWER:
                    return _content(taken)
            reply = line(HEAD.pack(RUN, transfer, 0, total), self.deadline)
        if reply[:1] != LONG:
            return _content(reply)
        if len(reply) != HEAD.size:
            raise WireError("An answer that is to be fetched does not say how long it is.")
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
                raise WireError(f"A piece of an answer has {len(part) - 1} bytes, and {total - start} are missing.")
            whole[start : start + len(part) - 1] = memoryview(part)[1:]
            start += len(part) - 1
        return whole


def _content(reply: bytes) -> memoryview:
    """A whole answer, in memory of its own."""
    if reply[:1] != ANSWER:
        raise WireError(f"An answer starts with {ANSWER!r} or {LONG!r}; this one with {reply[:8]!r}.")
    return memoryview(bytearray(memoryview(reply)[1:]))


def cut(frame: list[wire.Buffer], size: int, start: int = 0) -> Iterator[tuple[int, bytes]]:
    """A frame from `start` on, in pieces: each with its place, copied out when it is wanted and not before."""
    total = sum(map(len, frame))
    for at in range(start, total, size):
        piece = bytearray(min(size, total - at))
        place = 0
        for buffer in frame:
            low, high = max(place, at), min(place + len(buffer), at + len(piece))
            if low < high:
                piece[low - at : high - at] = memoryview(buffer)[low - place : high - place]
            place += len(buffer)
        yield at, bytes(piece)


def check_size(total: int) -> None:
    if total > wire.MAX_FRAME:
        raise WireError(f"A frame may have at most {wire.MAX_FRAME} bytes; this one says it has {total}.")


def room_for(total: int) -> memoryview:
    """Memory for a frame that is to come; untouched, so that who only announces much takes nothing."""
    check_size(total)
    return np.empty(total, dtype=np.uint8).data


def answered_by(request: type[Request[Any]]) -> type[Message]:
    """The message class that answers a request, as its declaration says."""
    if request not in _ANSWERS:
        bases = [base for kind in request.__mro__ for base in getattr(kind, "__orig_bases__", ())]
        named = [get_args(base)[0] for base in bases if get_origin(base) is Request]
        _ANSWERS[request] = next((kind for kind in named if isinstance(kind, type)), Message)
    return _ANSWERS[request]


_ANSWERS: dict[type[Request[Any]], type[Message]] = {}
