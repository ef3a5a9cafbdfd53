"""Where calls of other organisations arrive: who is calling is checked, pieces are put together, failures are told.

`flare` says how calls travel. A desk takes its caller's name from the channel, which authenticated it (`channel`),
never from a frame. Who calls and what is asked are checked by a frame's header; only then is it unpacked, to as many
bytes as the organisation's owner allows.
"""

from __future__ import annotations

import logging
import secrets
import threading
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any

import torch

from colonnade.core import wire
from colonnade.core.failure import failure_of
from colonnade.core.message import Message, Request
from colonnade.core.wire import Envelope
from colonnade.errors import BoundaryError, CheckpointError, ColonnadeError, InputError, PartyError, WireError
from colonnade.transport.remote import ANSWER, GET, HEAD, LONG, PART, PIECE, PUT, RUN, WHOLE, check_size, cut, room_for

log = logging.getLogger("colonnade.party")

Handle = Callable[[Envelope[Any]], Message]
"""What an organisation does with a call whose sender was checked."""
Allow = Callable[[str, type[Request[Any]]], None]
"""Refuses, by BoundaryError, what somebody may not ask."""
OPEN = 8
"""Calls and answers of one sender that may be under way in pieces; all calls together are as long as one may be."""


@dataclass
class Transfers:
    """What one sender has under way in pieces: calls that arrive, and answers that wait to be fetched."""

    arriving: dict[bytes, memoryview] = field(default_factory=dict)
    filled: dict[bytes, int] = field(default_factory=dict)
    waiting: dict[bytes, list[wire.Buffer]] = field(default_factory=dict)

    def put(self, transfer: bytes, start: int, total: int, part: memoryview) -> None:
        """Pieces come in order, from one buffer that is made once."""
        if start == 0 and transfer not in self.arriving:
            check_size(total)
            while len(self.arriving) >= OPEN or sum(map(len, self.arriving.values())) + total > wire.MAX_FRAME:
                self.drop(next(iter(self.arriving)))
            self.arriving[transfer], self.filled[transfer] = room_for(total), 0
        whole = self.arriving.get(transfer)
        if whole is None or len(whole) != total or start != self.filled[transfer] or start + len(part) > total:
            self.drop(transfer)
            raise WireError(f"A piece of {len(part)} bytes at {start} of {total} came out of turn.")
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
            raise WireError("There is no such answer to fetch, or it was given up for newer ones.")
        total = sum(map(len, frame))
        if not 0 <= start < total:
            raise WireError(f"There is no piece at {start} of an answer of {total} bytes.")
        if start + piece >= total:
            del self.waiting[transfer]
        return next(part for _, part in cut(frame, piece, start))


class Endpoint:
    """Where calls to one organisation arrive: it checks who is calling and puts pieces together.

    `admitted` are the parties of the agreed federation, and `allow` knows which of them may ask what. A call unpacks
    to `most` bytes. Whatever is refused is in the organisation's own log, and told to `refused`.
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
        self.owner, self.handle, self.admitted = owner, handle, frozenset(admitted)
        self.allow, self.most = allow, most
        self.device, self.piece, self.refused = device, piece, refused
        self._transfers: dict[str, Transfers] = {name: Transfers() for name in self.admitted}
        self._lock = threading.Lock()

    def __call__(self, caller: str, data: bytes) -> bytes:
        """One call of the line. `caller` is who the line says is calling."""
        if caller not in self.admitted:
            error = BoundaryError(f"'{self.owner}' answers no call of {caller[:80]!r}, no party of its federation.")
            return self._failed(error, caller, None, 0)
        try:
            return self._one(caller, self._transfers[caller], data)
        except WireError as error:
            return self._failed(error, caller, None, 0)
        except Exception as error:  # no memory, no disk: what carries calls would tell the caller all of it
            return ANSWER + wire.encode(Envelope(self.owner, 0, failure_of(error, self.owner, None)))

    def _one(self, caller: str, known: Transfers, data: bytes) -> bytes:
        if len(data) < HEAD.size:
            raise WireError(f"A call has at least {HEAD.size} bytes; this one has {len(data)}.")
        kind, transfer, start, total = HEAD.unpack_from(data)
        rest = memoryview(data)[HEAD.size :]
        with self._lock:
            if kind == PUT:
                known.put(transfer, start, total, rest)
                return ANSWER
            if kind == GET:
                return PART + known.get(transfer, start, self.piece)
            if kind not in (WHOLE, RUN):
                raise WireError(f"A call starts with one of {[WHOLE, PUT, RUN, GET]}; this one with {kind!r}.")
            frame = known.take(transfer) if kind == RUN else memoryview(bytearray(rest))
        answer = self._answer(caller, frame)
        length = sum(map(len, answer))
        if length <= self.piece:
            return ANSWER + b"".join(answer)
        with self._lock:
            return HEAD.pack(LONG, known.keep(answer), 0, length)

    def _answer(self, caller: str, frame: memoryview) -> list[wire.Buffer]:
        incoming = wire.read(frame)
        number, request = incoming.number, None
        try:
            if incoming.sender != caller:
                raise BoundaryError(
                    f"'{self.owner}' got a call that says it is from {incoming.sender[:80]!r}, over the line of "
                    f"'{caller}'. A party calls under its own name."
                )
            if not issubclass(incoming.kind, Request):
                raise BoundaryError(f"'{self.owner}' got {incoming.kind.kind} of '{caller}', which is no request.")
            self.allow(caller, incoming.kind)
            request = incoming.unpack(device=self.device, most=self.most).message
            del incoming, frame
            reply = self.handle(Envelope(caller, number, request))
        except (BoundaryError, WireError) as error:
            self.note(caller, str(error))
            reply = failure_of(error, self.owner, request)
        except Exception as error:
            self._tell(error)
            reply = failure_of(error, self.owner, request)
        return wire.buffers(Envelope(self.owner, number, reply))

    def _tell(self, error: Exception) -> None:
        """What whoever runs this organisation must put right. Its cause is kept nowhere: with it lives what had failed
        to begin, such as a lock."""
        cause = error.__cause__ if isinstance(error, PartyError) else error
        if isinstance(cause, (InputError, CheckpointError)):
            log.error("%s: %s", self.owner, str(cause))

    def _failed(self, error: ColonnadeError, caller: str, request: Message | None, number: int) -> bytes:
        self.note(caller, str(error))
        return ANSWER + wire.encode(Envelope(self.owner, number, failure_of(error, self.owner, request)))

    def note(self, caller: str, why: str) -> None:
        """A call that was refused, in the log and to `refused`."""
        log.warning("%s: refused a call of %.80r: %s", self.owner, caller, why)
        if self.refused is not None:
            try:
                self.refused(caller, why)
            except OSError as error:
                log.error("%s: what it refused cannot be written down: %s", self.owner, error.strerror)
