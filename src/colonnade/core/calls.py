"""Which of a sender's calls a party has answered: each is answered once, and an old one never again.

Numbers grow: a driver starts at its clock and counts on, so a restarted one is above all that it ever sent. As in IPsec
(RFC 4303, 3.4.3) there is a window below the newest number. A number above the newest is new; one in the window that
was not answered is late, and new; whatever else comes is a replay. The newest call has its reply kept, so that a
repeated delivery of it is answered from memory. A call that failed is not noted: it may be tried again.
"""

from __future__ import annotations

from collections import deque

from colonnade.core.message import Message
from colonnade.errors import BoundaryError

WINDOW = 64
"""How far a late call may lie behind the newest one."""


class Calls:
    """The answered calls of one sender."""

    __slots__ = ("newest", "recent", "reply")

    def __init__(self, number: int, reply: Message) -> None:
        self.newest, self.reply = number, reply
        self.recent = deque((number,), 2 * WINDOW)  # while a number is in the window, fewer others can be answered

    def note(self, number: int, reply: Message) -> None:
        """A call was answered."""
        self.recent.append(number)
        if number > self.newest:
            self.newest, self.reply = number, reply

    def repeated(self, number: int, party: str, sender: str) -> Message | None:
        """For a number that is not above the newest: the reply it had, None where it is late but new, or a refusal."""
        if number == self.newest:
            return self.reply
        if number > self.newest - WINDOW and number not in self.recent:
            return None
        raise BoundaryError(
            f"'{party}' refuses a call of {sender[:80]!r} that is older than what it has answered: number {number}, "
            f"and the newest is {self.newest}. It was replayed, or the sender's clock was set back: correct it."
        )
