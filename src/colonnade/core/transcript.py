"""A transcript: everything that reached one party, in order.

It is all that an attacker in this party's place could work with, besides the party's own
holdings. A transcript is kept outside the parties (see `transport.in_process`), for
tests, audits and pictures. It counts bytes from the encoded tensors themselves,
independently of the ledgers.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from torch import Tensor

from colonnade.core.cipher import Ciphertext
from colonnade.core.message import Message, batch_of
from colonnade.core.release import Identity, Released


@dataclass(frozen=True, slots=True)
class Seen:
    """A message that arrived, and how many bytes its tensors took on the wire."""

    sender: str
    message: Message
    bytes: int

    @property
    def batch(self) -> str | None:
        return batch_of(self.message)


@dataclass
class Transcript:
    """The messages that one party received."""

    party: str
    seen: list[Seen] = field(default_factory=list)

    def add(self, sender: str, message: Message) -> None:
        """Append a message that arrived from a sender."""
        size = sum(map(wire_bytes, message.crossing()))
        self.seen.append(Seen(sender, message, size))

    def __iter__(self) -> Iterator[Seen]:
        return iter(self.seen)

    def tensors(self, name: str, sender: str | None = None) -> list[Tensor]:
        """The tensors that arrived under a release name.

        Args:
            name: The release name, such as "embedding".
            sender: The party they came from. By default any.
        """
        found: list[Tensor] = []
        for seen in self._from(sender):
            released = seen.message.released()
            found += [one.tensor for one in released if one.receipt.name == name]
        return found

    def total(self, sender: str | None = None) -> int:
        """The bytes that arrived from one party, or from all others.

        What a party told itself does not count.
        """
        others = (seen for seen in self._from(sender) if seen.sender != self.party)
        return sum(seen.bytes for seen in others)

    def _from(self, sender: str | None) -> Iterator[Seen]:
        for seen in self.seen:
            if sender is None or seen.sender == sender:
                yield seen


def wire_bytes(value: Released | Ciphertext) -> int:
    """The length of a tensor or ciphertext as it travels, by encoding it."""
    if isinstance(value, Ciphertext):
        return len(value.encrypted.data)
    packed = value.packed or Identity().encode(value.tensor)
    return len(packed.data)
