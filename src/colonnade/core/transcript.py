"""What reached one party, in order: all that an attacker in its place could work with, besides its own holdings.

A transcript is kept outside the parties (see `transport.in_process`), for tests, audits and pictures. It counts bytes
from the encoded tensors themselves, independently of the ledgers.
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
    """One message that arrived, whole, and how many bytes its tensors took."""

    sender: str
    message: Message
    bytes: int

    @property
    def batch(self) -> str | None:
        return batch_of(self.message)


@dataclass
class Transcript:
    """Everything one party received."""

    party: str
    seen: list[Seen] = field(default_factory=list)

    def add(self, sender: str, message: Message) -> None:
        self.seen.append(Seen(sender, message, sum(map(wire_bytes, message.crossing()))))

    def __iter__(self) -> Iterator[Seen]:
        return iter(self.seen)

    def tensors(self, name: str, sender: str | None = None) -> list[Tensor]:
        """The tensors that arrived under a release name, from one peer or from all."""
        return [
            released.tensor
            for seen in self.seen
            if sender in (None, seen.sender)
            for released in seen.message.released()
            if released.receipt.name == name
        ]

    def total(self, sender: str | None = None) -> int:
        """Bytes that arrived from one peer or from all the others; what a party told itself does not count."""
        return sum(s.bytes for s in self.seen if sender in (None, s.sender) and s.sender != self.party)


def wire_bytes(released: Released | Ciphertext) -> int:
    """The length of a tensor as it travels, by encoding it, or of a ciphertext."""
    if isinstance(released, Ciphertext):
        return len(released.encrypted.data)
    return len((released.packed or Identity().encode(released.tensor)).data)
