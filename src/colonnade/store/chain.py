"""An entry of the store's one log, and the hash chain that ties entries together."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import Any

from colonnade.errors import StoreError
from colonnade.store.packing import to_json

CHAIN_BYTES = 32
BODY_DIGEST_BYTES = 16
START = bytes(CHAIN_BYTES)
"""The chain before the first entry."""


@dataclass(frozen=True)
class Entry:
    """One thing that an organisation remembers.

    Args:
        serial: The place in the log, from 1 on.
        kind: What is remembered, such as "release".
        text: The content, as canonical JSON. Empty where it was dropped (`chain`
            still vouches for the entry's place).
        body: Numbers that belong to it, such as the people of a release. None where
            there are none, or where a checkpoint has taken them in.
        digest: The hash of kind and text.
        chain: The hash of the entry before, of the serial and of `digest`.
    """

    serial: int
    kind: str
    text: str
    body: bytes | None
    digest: bytes
    chain: bytes

    @property
    def content(self) -> dict[str, Any]:
        """The content as plain values."""
        content: dict[str, Any] = json.loads(self.text)
        return content

    @property
    def size(self) -> int:
        """The bytes that the entry takes."""
        return len(self.text) + len(self.body or b"")

    def check(self, previous_chain: bytes) -> None:
        """Refuse an entry that is not as it was written, or not after this chain."""
        self.check_text()
        self.check_link(previous_chain)
        self.check_body()

    def check_text(self) -> None:
        """Refuse an entry whose kind or content was changed."""
        if self.digest != _digest(self.kind, self.text):
            raise StoreError(f"entry {self.serial} was changed")

    def check_link(self, previous_chain: bytes) -> None:
        """Refuse an entry that does not follow another one."""
        if self.chain != _link(previous_chain, self.serial, self.digest):
            raise StoreError(f"entry {self.serial} does not follow the one before")

    def check_body(self) -> None:
        """Refuse an entry whose body is not the one that its content names."""
        expected = self.content.get("body")
        found = None if self.body is None else body_digest(self.body)
        if found != expected:
            raise StoreError(f"the body of entry {self.serial} was changed or is gone")


def make_entry(
    previous_chain: bytes,
    serial: int,
    kind: str,
    content: dict[str, Any],
    body: bytes | None,
) -> Entry:
    """Write the entry that follows a chain."""
    named = content if body is None else {**content, "body": body_digest(body)}
    text = to_json(named)
    digest = _digest(kind, text)
    chain = _link(previous_chain, serial, digest)
    return Entry(serial, kind, text, body, digest, chain)


def body_digest(body: bytes) -> str:
    """The digest by which an entry's content names its body."""
    return hashlib.blake2b(body, digest_size=BODY_DIGEST_BYTES).hexdigest()


def _digest(kind: str, text: str) -> bytes:
    said = f"{kind}\0{text}".encode()
    return hashlib.blake2b(said, digest_size=CHAIN_BYTES).digest()


def _link(previous_chain: bytes, serial: int, digest: bytes) -> bytes:
    said = previous_chain + serial.to_bytes(8, "big") + digest
    return hashlib.blake2b(said, digest_size=CHAIN_BYTES).digest()
