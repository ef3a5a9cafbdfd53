"""Bytes by party and direction, as ledgers count them, sorted by what they were for."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping

from colonnade.core import Ledger
from colonnade.encryption import SCHEMES

TRAINING = re.compile(r"(?:(.+):)?train/(\d+)/(\d+)")
"""A training batch's name: whose it is where there are several label owners, its epoch, its number."""


class Traffic(Counter[tuple[str, str]]):
    """(party, "out" or "in") -> bytes. Traffic can be added up, and taken so many times."""

    def __mul__(self, times: int) -> Traffic:
        return Traffic({key: count * times for key, count in self.items()})

    def scaled(self, share: float) -> Traffic:
        """An estimate for so much more, or less."""
        return Traffic({key: round(count * share) for key, count in self.items()})

    def by_party(self, names: Iterable[str]) -> dict[str, dict[str, int]]:
        """As a summary has it."""
        return {name: {way: self[name, way] for way in ("out", "in")} for name in names}


def total(parts: Iterable[Traffic]) -> Traffic:
    found = Traffic()
    for part in parts:
        found.update(part)
    return found


def taken(ledgers: Mapping[str, Ledger]) -> dict[str | None, Traffic]:
    """What was written since this was last asked, by batch name; None: what was about no batch."""
    found: dict[str | None, Traffic] = {}
    for party, book in ledgers.items():
        for entry in book.entries:
            if entry.direction != "own":
                found.setdefault(entry.batch, Traffic())[party, entry.direction] += entry.bytes
        book.entries.clear()
    return found


def encrypted(ledgers: Mapping[str, Ledger]) -> bool:
    """Whether any of what was written since it was last taken is a ciphertext: their sizes vary a little."""
    hiding = SCHEMES.keys() - {"plain"}
    return any(entry.codec in hiding for book in ledgers.values() for entry in book.entries)
