"""Sealed lines between two named sites: whoever carries the calls can stop them, and
neither read nor make one.

    caller A                                                              answerer B
    HELLO    A, B, run, x                                            ->   y, and signs all of it
             checks B's certificate and signature                    <-   WELCOME  y, certificate of B, signature of B
    FINISH   certificate of A, signature of A                        ->   checks them
             A knows that B has the keys                             <-   ANSWER   number 0, sealed
    CALL     number n, a call of the line, sealed                    ->   opens it, each number once
             opens it, as the answer to call n and to no other       <-   ANSWER   number n, sealed

x and y are X25519 keys that are made for one channel and forgotten with it. Both sign
both of them, both names and the run, as in ISO/IEC 9798-3 and TLS 1.3, by the keys of
the sites' certificates (`identity`). HKDF-SHA256 of the shared secret and of everything
that was said gives one key for calls and one for answers; AES-256-GCM seals with the
number as nonce, which is used once: a call is numbered by its sender, and answered
once. So a call or an answer can be opened by its receiver alone, in its direction, run
and place, and only if nobody changed it; one that was recorded is worth nothing to a
site that started anew. What is left to whoever carries calls: who calls whom, when, and
how long it is; to delay, and to stop.

Calls may overtake each other, since several may be under way: a number is taken once,
and not where it is `WINDOW` older than the newest (RFC 4303, 3.4.3). The order of what
changes a party is kept by the numbers in frames (`core.party`).
"""

from __future__ import annotations

import hashlib
import itertools
import struct
import threading
from collections.abc import Collection
from dataclasses import dataclass
from typing import Protocol

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.x25519 import (
    X25519PrivateKey,
    X25519PublicKey,
)
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from colonnade.errors import BoundaryError, WireError
from colonnade.transport.identity import Identity
from colonnade.transport.remote import Route

LABEL = b"Colonnade channel 2"
BY_CALLER = LABEL + b", caller"
BY_ANSWERER = LABEL + b", answerer"
HELLO = b"H"
WELCOME = b"W"
FINISH = b"F"
CALL = b"C"
ANSWER = b"A"
REFUSED = b"N"
# CALL or ANSWER, of which channel, and the call's number
HEAD = struct.Struct(">c16sQ")
LENGTH = struct.Struct(">I")
LONGEST = 1 << 16
"""Bytes of a message that opens a channel: certificates have a few thousand."""
WINDOW = 1024
OPENING = 8
"""Channels that one name may have half open."""
PATIENCE = 60.0
"""Seconds in which the other side must answer who it is, which takes it a moment."""


class Keys:
    """What both ends of one channel have. A call's number is never sealed twice with a
    key: the caller counts, and the answerer answers each once."""

    def __init__(self, peer: str, secret: bytes, said: bytes) -> None:
        self.peer = peer
        self.said = hashlib.sha256(said).digest()
        keys = HKDF(hashes.SHA256(), 64, salt=self.said, info=LABEL).derive(secret)
        self.name = self.said[:16]
        self._by = {CALL: AESGCM(keys[:32]), ANSWER: AESGCM(keys[32:])}
        self.numbers = itertools.count(1)
        self._newest = 0
        self._taken = set[int]()
        self._lock = threading.Lock()

    def seal(self, kind: bytes, number: int, data: bytes) -> bytes:
        head = HEAD.pack(kind, self.name, number)
        return head + self._by[kind].encrypt(
            number.to_bytes(12), data, head + self.said
        )

    def open(self, kind: bytes, data: bytes) -> tuple[int, bytes]:
        """A number and what was sealed with it."""
        head = data[: HEAD.size]
        found, _, number = HEAD.unpack(head)
        try:
            if found != kind:
                raise InvalidTag
            return number, self._by[kind].decrypt(
                number.to_bytes(12), memoryview(data)[HEAD.size :], head + self.said
            )
        except InvalidTag:
            raise WireError(
                f"What came sealed in the name of {self.peer!r} was not sealed by it"
                " for this."
            ) from None

    def take(self, number: int) -> None:
        """A call's number, which its sender proved to have chosen; only once."""
        with self._lock:
            if number in self._taken or number <= self._newest - WINDOW:
                raise WireError(
                    f"Call {number} of {self.peer!r} came again: the newest is"
                    f" {self._newest}."
                )
            self._taken.add(number)
            self._newest = max(self._newest, number)
            if len(self._taken) > 2 * WINDOW:
                self._taken = {
                    one for one in self._taken if one > self._newest - WINDOW
                }


class Desk(Protocol):
    """Where the calls of one organisation's peers are answered."""

    def __call__(self, caller: str, data: bytes) -> bytes:
        """Answer one call of a peer."""
        ...

    def note(self, caller: str, why: str) -> None:
        """Write down a call that was refused."""
        ...


@dataclass(frozen=True)
class Opening:
    """What an answerer remembers of a channel that is half open."""

    caller: str
    said: bytes
    secret: bytes


class Channel:
    """One site's end of its sealed lines to all peers, in one run: `line` calls, and
    `answer` takes calls."""

    def __init__(self, identity: Identity, peers: Collection[str], run: str) -> None:
        self.identity = identity
        self.run = run
        self.peers = frozenset(peers) - {identity.name}
        self._calling: dict[str, Keys] = {}
        self._one_opens = {peer: threading.Lock() for peer in self.peers}
        self._answering: dict[str, Keys] = {}
        self._openings: dict[bytes, Opening] = {}
        self._lock = threading.Lock()

    def line(self, to: str, carry: Route) -> Route:
        """A line to a peer that carries sealed calls over one that anybody may read and
        write."""
        if to not in self.peers:
            raise BoundaryError(
                f"'{self.identity.name}' has no line to {to[:80]!r}, no party of its"
                " federation."
            )

        def line(data: bytes, deadline: float) -> bytes:
            keys = self._keys(to, carry, min(deadline, PATIENCE))
            number = next(keys.numbers)
            reply = carry(keys.seal(CALL, number, data), deadline)
            if reply == REFUSED:
                with self._one_opens[to]:
                    if self._calling.get(to) is keys:
                        del self._calling[to]
                raise ConnectionError(
                    f"{to!r} or who carries its calls has given up the channel; the"
                    " next is opened"
                )
            return _answer_to(number, keys, reply)

        return line

    def answer(self, data: bytes, endpoint: Desk, said: str = "") -> bytes:
        """One call of the line, whoever sent it: nothing is done but what a peer
        sealed. `said` is who it is by the word of who carried it, and counts for
        nothing but the log."""
        try:
            kind = data[:1]
            if kind == HELLO:
                return self._welcome(data)
            if kind == FINISH:
                return self._finish(data)
            keys, number, call = self._opened(data)
        except (BoundaryError, WireError) as error:
            endpoint.note(said, str(error))
            return REFUSED
        return keys.seal(ANSWER, number, endpoint(keys.peer, call))

    def _keys(self, to: str, carry: Route, deadline: float) -> Keys:
        """Those of the open channel, or of one that is opened now; one thread opens,
        the others wait for it."""
        with self._one_opens[to]:
            if to not in self._calling:
                self._calling[to] = self._open(to, carry, deadline)
            return self._calling[to]

    def _open(self, to: str, carry: Route, deadline: float) -> Keys:
        identity = self.identity
        secret = X25519PrivateKey.generate()
        mine = secret.public_key().public_bytes_raw()
        reply = carry(
            HELLO + _pack(identity.name.encode(), to.encode(), self.run.encode(), mine),
            deadline,
        )
        if reply == REFUSED:
            raise BoundaryError(
                f"{to!r} opened no channel to '{identity.name}': its own"
                " runs/refused.jsonl says why. If nothing is there, who carries its"
                " calls refused in its place."
            )
        theirs, certificate, signature = _unpack(WELCOME, reply, 3)
        hello = _said(identity.name, to, self.run, mine, theirs)
        identity.verify(
            to, certificate, BY_ANSWERER, hello + _pack(certificate), signature
        )
        said = hello + _pack(certificate, identity.certificate)
        keys = Keys(to, _shared(secret, theirs), said)
        proof = _pack(
            _name_of(hello), identity.certificate, identity.sign(BY_CALLER, said)
        )
        if _answer_to(0, keys, carry(FINISH + proof, deadline)):
            raise WireError(f"{to!r} opened a channel with an answer to nothing.")
        return keys

    def _welcome(self, data: bytes) -> bytes:
        caller, to, run, theirs = _unpack(HELLO, data, 4)
        name = caller.decode(errors="replace")
        identity = self.identity
        if name not in self.peers:
            raise BoundaryError(
                f"'{identity.name}' answers no call of {name[:80]!r}, no party of its"
                " federation."
            )
        if (to, run) != (identity.name.encode(), self.run.encode()):
            raise BoundaryError(
                f"A channel was to be opened to {to[:80]!r} in the run {run[:80]!r};"
                f" this is '{identity.name}' in {self.run!r}."
            )
        secret = X25519PrivateKey.generate()
        mine = secret.public_key().public_bytes_raw()
        hello = _said(name, identity.name, self.run, theirs, mine)
        said = hello + _pack(identity.certificate)
        with self._lock:
            half = [
                one for one, opening in self._openings.items() if opening.caller == name
            ]
            for one in half[: max(0, len(half) + 1 - OPENING)]:
                del self._openings[one]
            self._openings[_name_of(hello)] = Opening(
                name, said, _shared(secret, theirs)
            )
        return WELCOME + _pack(
            mine, identity.certificate, identity.sign(BY_ANSWERER, said)
        )

    def _finish(self, data: bytes) -> bytes:
        one, certificate, signature = _unpack(FINISH, data, 3)
        with self._lock:
            opening = self._openings.pop(one, None)
        if opening is None:
            raise WireError(
                "A channel was to be finished that was not begun, or given up for newer"
                " ones."
            )
        said = opening.said + _pack(certificate)
        self.identity.verify(opening.caller, certificate, BY_CALLER, said, signature)
        keys = Keys(opening.caller, opening.secret, said)
        keys.take(0)
        with self._lock:
            # one at a time: what was sealed for an older one is refused
            self._answering[opening.caller] = keys
        return keys.seal(ANSWER, 0, b"")

    def _opened(self, data: bytes) -> tuple[Keys, int, bytes]:
        if len(data) < HEAD.size or data[:1] != CALL:
            raise WireError(
                f"A call between sites comes sealed; {len(data)} bytes came that are"
                " not."
            )
        _, name, _ = HEAD.unpack_from(data)
        with self._lock:
            keys = next(
                (one for one in self._answering.values() if one.name == name), None
            )
        if keys is None:
            raise WireError(
                "A call came over a channel that is not open here, or not any more."
            )
        number, call = keys.open(CALL, data)
        keys.take(number)
        return keys, number, call


def _answer_to(number: int, keys: Keys, reply: bytes) -> bytes:
    if len(reply) < HEAD.size or reply[:1] != ANSWER:
        raise WireError(
            f"An answer of {keys.peer!r} comes sealed; {len(reply)} bytes came that are"
            " not."
        )
    found, answer = keys.open(ANSWER, reply)
    if found != number:
        raise WireError(
            f"{keys.peer!r} was asked call {number}, and the answer to call {found}"
            " came."
        )
    return answer


def _said(caller: str, answerer: str, run: str, x: bytes, y: bytes) -> bytes:
    """What both sides sign, besides their certificates: lengths come first, so that it
    reads in one way only."""
    return _pack(LABEL, caller.encode(), answerer.encode(), run.encode(), x, y)


def _name_of(hello: bytes) -> bytes:
    return hashlib.sha256(hello).digest()[:16]


def _shared(own: X25519PrivateKey, theirs: bytes) -> bytes:
    try:
        return own.exchange(X25519PublicKey.from_public_bytes(theirs))
    except ValueError:  # not 32 bytes, or a point of small order
        raise WireError(f"{len(theirs)} bytes came as a key, and are none.") from None


def _pack(*fields: bytes) -> bytes:
    return b"".join(LENGTH.pack(len(field)) + field for field in fields)


def _unpack(kind: bytes, data: bytes, count: int) -> list[bytes]:
    """The fields of a message that opens a channel, or WireError."""
    fields = list[bytes]()
    place = 1
    if data[:1] == kind and len(data) <= LONGEST:
        while place + LENGTH.size <= len(data):
            (length,) = LENGTH.unpack_from(data, place)
            place += LENGTH.size + length
            fields.append(data[place - length : place])
    if len(fields) != count or place != len(data):
        raise WireError(
            f"{len(data)} bytes came to open a channel, and do not say what {kind!r}"
            " has to say."
        )
    return fields
