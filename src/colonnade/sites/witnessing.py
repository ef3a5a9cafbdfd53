"""What two sites tell each other of their stores, with every call and every answer.

An older copy of a whole disk shows nothing at home: store and anchor are equally old.
Only others can tell. So each call and each answer begins with a line:

    witness    how far the sender's store has come, signed
    key        by which the witness is checked
    kept       the newest witness that the sender keeps of the receiver's store

The line travels inside the sealed channel, so the key is certified as the sender's own.
Whoever gets an answer keeps its witness before the answer is used. An answer whose
witness is older than what was kept when the call was made comes from an older copy, and
is refused. (Answers of calls that overlap may come in another order than they were
made; that alone is no sign of anything.)

Whoever hears of a newer witness of its own store has an older copy, and does not go on:
its owner recovers the store.
"""

from __future__ import annotations

import json
import logging
import struct
from collections.abc import Callable
from dataclasses import dataclass

from colonnade.core import wire
from colonnade.core.failure import Failure
from colonnade.errors import BoundaryError, StoreError, WireError
from colonnade.runs.stores import has_site_store
from colonnade.settings.party_file import SiteConfig
from colonnade.store import SiteStore, Witness
from colonnade.transport.remote import ANSWER, Endpoint, Route

log = logging.getLogger("colonnade.party")

LENGTH = struct.Struct("<H")
LONGEST = 4096
"""Bytes of a line: two witnesses and a key."""

EMPTY = ""
"""Stands for a witness or key that there is none of."""


@dataclass(frozen=True)
class Statement:
    """What a site tells another one of stores.

    Args:
        witness: Of the sender's store. None where the sender has no store.
        key: Checks the witness.
        kept: What the sender keeps of the receiver's store. None where it keeps
            nothing.
    """

    witness: Witness | None = None
    key: str = EMPTY
    kept: Witness | None = None

    def pack(self) -> bytes:
        """Write the line that begins a call or an answer."""
        fields = [_text(self.witness), self.key, _text(self.kept)]
        line = json.dumps(fields).encode()
        return LENGTH.pack(len(line)) + line


def unpack(data: bytes) -> tuple[Statement, bytes]:
    """The statement that begins a call or an answer, and the rest."""
    try:
        (length,) = LENGTH.unpack_from(data)
        line = data[LENGTH.size : LENGTH.size + length]
        if length > LONGEST or len(line) != length:
            raise ValueError("its length is wrong")
        witness, key, kept = json.loads(line)
        if not all(isinstance(field, str) for field in (witness, key, kept)):
            raise ValueError("its fields are no texts")
        statement = Statement(_read(witness), key, _read(kept))
    except (struct.error, ValueError, TypeError, RecursionError, StoreError) as error:
        raise BoundaryError(
            "A call or an answer does not begin with what its sender says of stores"
            f" ({type(error).__name__})."
        ) from None
    return statement, data[LENGTH.size + length :]


class Witnessing:
    """Says, keeps and compares how far stores have come, for one site.

    Args:
        own: The site's settings.
        store: Opens its store.
    """

    def __init__(self, own: SiteConfig, store: Callable[[], SiteStore]) -> None:
        self._own = own
        self._store = store
        self._heard: set[str] = set()

    def check_own_store(self) -> None:
        """Refuse to call anybody where this site's own store cannot be used."""
        if self._has_store:
            self._store()

    def line(self, peer: str, route: Route) -> Route:
        """A line to a peer, over which statements travel with calls and answers."""
        return route if isinstance(route, Line) else Line(self, peer, route)

    def call(self, peer: str, route: Route, data: bytes, deadline: float) -> bytes:
        """Call a peer over its line, and take what it says of stores."""
        since = self._kept_of(peer)
        reply = route(self._statement_for(peer).pack() + data, deadline)
        statement, rest = unpack(reply)
        is_refusal = statement == Statement() and _is_failure(rest)
        if not is_refusal:
            self._take(peer, statement, since)
        return rest

    def around(self, endpoint: Endpoint) -> WitnessedEndpoint:
        """Where calls arrive that come over such lines."""
        return WitnessedEndpoint(self, endpoint)

    def answer(self, caller: str, data: bytes, endpoint: Endpoint) -> bytes:
        """Answer a call that came over such a line."""
        try:
            statement, rest = unpack(data)
            self._take(caller, statement, since=None)
        except BoundaryError as error:
            # Whoever has lost its witnesses must not be given one of a store that may
            # be an older copy.
            return Statement().pack() + endpoint.refuse(error, caller)
        reply = endpoint(caller, rest)
        return self._statement_for(caller).pack() + reply

    @property
    def _has_store(self) -> bool:
        return has_site_store(self._own.runs, self._own.anchor)

    def _statement_for(self, peer: str) -> Statement:
        if not self._has_store:
            return Statement()
        store = self._store()
        return Statement(
            store.witness(), store.public_key, store.keeper.witness_of(peer)
        )

    def _kept_of(self, peer: str) -> Witness | None:
        return self._store().keeper.witness_of(peer) if self._has_store else None

    def _take(self, peer: str, statement: Statement, since: Witness | None) -> None:
        """Keep a peer's witness, and hear what the peer keeps of this site's store.

        Args:
            peer: Who said it.
            statement: What it said.
            since: The peer's witness that was kept when the peer was called; None where
                the peer calls.
        """
        if not self._has_store:
            return
        try:
            store = self._store()
            self._keep(store, peer, statement, since)
            self._hear(store, peer, statement.kept)
        except StoreError as error:
            log.error("%s", error)
            raise BoundaryError(str(error)) from None

    def _keep(
        self, store: SiteStore, peer: str, said: Statement, since: Witness | None
    ) -> None:
        keeper = store.keeper
        is_known = keeper.known_store(peer) is not None
        if said.witness is None and is_known:
            raise StoreError(
                f"'{peer}' says nothing of its store, and did before. It is not known"
                f" whether that is an older copy. '{peer}' has to put its store right."
            )
        if said.witness is None:
            return
        if not is_known:
            keeper.meet(peer, said.key, said.witness)
        keeper.advance(peer, said.witness, since)

    def _hear(self, store: SiteStore, peer: str, kept: Witness | None) -> None:
        """Hear what a peer keeps of this store, until it has shown a witness once in
        this process.

        A peer that keeps nothing is met for the first time. That is believed where
        nothing was released yet, so that nothing can have been lost, and where another
        peer has vouched for the store; else the owner must say so.
        """
        if peer in self._heard:
            return
        is_first = (
            store.witness().charges == 0
            or bool(self._heard)
            or self._own.store.new_peers
        )
        store.hear(peer, kept, is_first_contact=is_first)
        if kept is not None:
            self._heard.add(peer)


@dataclass(frozen=True)
class WitnessedEndpoint:
    """An endpoint at which statements travel with calls and answers."""

    witnessing: Witnessing
    endpoint: Endpoint

    def __call__(self, caller: str, data: bytes) -> bytes:
        """Answer one call of a line. `caller` is who the line says is calling."""
        return self.witnessing.answer(caller, data, self.endpoint)

    def note(self, caller: str, why: str) -> None:
        """Write down a call that was refused before it came here."""
        self.endpoint.note(caller, why)


@dataclass(frozen=True)
class Line:
    """A line to a peer that statements travel over."""

    witnessing: Witnessing
    peer: str
    route: Route

    def __call__(self, data: bytes, deadline: float) -> bytes:
        return self.witnessing.call(self.peer, self.route, data, deadline)


def _is_failure(answer: bytes) -> bool:
    """Whether an answer brings nothing but why there is none."""
    try:
        is_whole = answer[: len(ANSWER)] == ANSWER
        incoming = wire.read(memoryview(answer)[len(ANSWER) :])
    except WireError:
        return False
    return is_whole and issubclass(incoming.kind, Failure)


def _text(witness: Witness | None) -> str:
    return EMPTY if witness is None else witness.to_text()


def _read(text: str) -> Witness | None:
    return None if text == EMPTY else Witness.from_text(text)
