"""The people of an organisation's tables, each with one number for good.

A person is known by the hash of an id. The owner says which column of its table names
people (`[table] person`), and the store remembers it: the same people under another
column's ids would begin with nothing spent.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from colonnade.store.identifiers import canonical_id
from colonnade.store.places import IntArray

UNKNOWN = -1
"""Stands for the number of a person who has none yet."""

DIGEST_BYTES = 8
MOST_RECENT = 4096
"""People who are kept aside before all are sorted again."""


@dataclass(frozen=True)
class Identity:
    """The column that says who somebody is.

    Args:
        column: Its name in the owner's table.
        first_name: The name that it had when its ids were first hashed: a column that
            was renamed still names the same people.
    """

    column: str
    first_name: str


class People:
    """Everybody who was ever counted.

    Args:
        secret: Goes into every hash, so that hashes of two stores cannot be compared.
    """

    def __init__(self, secret: str) -> None:
        self._secret = secret
        self.identity: Identity | None = None
        self.unconfirmed = 0
        self._digests = np.empty(0, dtype=np.int64)
        self._order = np.empty(0, dtype=np.int64)
        self._sorted = np.empty(0, dtype=np.int64)
        self._recent: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self._digests)

    def digests(self, ids: Iterable[str], identity: Identity) -> IntArray:
        """The hash of each id."""
        key = hashlib.blake2b(
            f"{self._secret}\0{identity.first_name}".encode(), digest_size=32
        ).digest()
        texts = map(canonical_id, ids)
        hashes = (
            hashlib.blake2b(text.encode(), key=key, digest_size=DIGEST_BYTES).digest()
            for text in texts
        )
        return np.frombuffer(b"".join(hashes), dtype="<i8").astype(np.int64)

    def find(self, digests: IntArray) -> IntArray:
        """The number of each person, or `UNKNOWN`."""
        numbers = np.full(len(digests), UNKNOWN, dtype=np.int64)
        if len(self._sorted):
            places = np.searchsorted(self._sorted, digests)
            places = np.minimum(places, len(self._sorted) - 1)
            is_known = self._sorted[places] == digests
            numbers[is_known] = self._order[places[is_known]]
        if self._recent:
            for place in np.flatnonzero(numbers == UNKNOWN):
                digest = int(digests[place])
                numbers[place] = self._recent.get(digest, UNKNOWN)
        return numbers

    def unknown_among(self, digests: IntArray) -> IntArray:
        """The hashes of those who have no number, each once, in the order given."""
        unknown = digests[self.find(digests) == UNKNOWN]
        _, first = np.unique(unknown, return_index=True)
        result: IntArray = unknown[np.sort(first)]
        return result

    def add(self, digests: IntArray, *, is_confirmed: bool) -> None:
        """Give the next numbers to new people.

        Args:
            digests: The hashes of their ids, each once.
            is_confirmed: Whether the owner said that they are new. The others are
                counted together, since a table whose ids were written anew shows as
                many new people.
        """
        start = len(self._digests)
        is_first = start == 0  # the first contact was the owner's word for all of them
        self.unconfirmed = (
            0 if is_confirmed or is_first else self.unconfirmed + len(digests)
        )
        self._digests = np.concatenate([self._digests, digests])
        if len(self._recent) + len(digests) > MOST_RECENT:
            self._sort()
            return
        for place, digest in enumerate(digests.tolist()):
            self._recent[digest] = start + place

    def plain(self) -> dict[str, Any]:
        """What a checkpoint keeps, but for arrays."""
        identity = self.identity
        return {
            "unconfirmed": self.unconfirmed,
            "column": identity and identity.column,
            "first_name": identity and identity.first_name,
        }

    def arrays(self) -> dict[str, IntArray]:
        """The arrays that a checkpoint keeps."""
        return {"people": self._digests}

    def load(self, plain: dict[str, Any], arrays: dict[str, IntArray]) -> None:
        """Go on from a checkpoint."""
        self.unconfirmed = int(plain["unconfirmed"])
        if plain["column"] is not None:
            self.identity = Identity(str(plain["column"]), str(plain["first_name"]))
        self._digests = arrays["people"]
        self._sort()

    def _sort(self) -> None:
        self._order = np.argsort(self._digests, kind="stable").astype(np.int64)
        self._sorted = self._digests[self._order]
        self._recent = {}
