"""On which sides (training, validation, test) each person's row was ever used, by which
an owner's rules are chosen."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from colonnade.errors import StoreError
from colonnade.store.places import IntArray

SIDES = ("train", "validation", "test")
ALL_SIDES = 2 ** len(SIDES) - 1


class Uses:
    """The sides of everybody, as bits."""

    def __init__(self) -> None:
        self._bits = np.empty(0, dtype=np.int64)
        self._of_newcomers = 0

    def widen(self, people: int) -> None:
        """Make room for new people."""
        new = np.full(people - len(self._bits), self._of_newcomers, dtype=np.int64)
        self._bits = np.concatenate([self._bits, new])

    def add(self, side: str, numbers: IntArray) -> None:
        """Write down that people were used on a side."""
        self._bits[numbers] |= _bit(side)

    def lacking(self, side: str, numbers: IntArray) -> IntArray:
        """The people who were not yet used on a side."""
        lacking: IntArray = numbers[self._bits[numbers] & _bit(side) == 0]
        return lacking

    def were_used_on(self, side: str, numbers: IntArray) -> NDArray[np.bool_]:
        """Whether each of these people was ever used on a side."""
        were_used: NDArray[np.bool_] = (self._bits[numbers] & _bit(side)) != 0
        return were_used

    def forget_nothing(self) -> None:
        """Take everybody as used on all sides, also newcomers: what they were used for
        is not known any more."""
        self._bits[:] = ALL_SIDES
        self._of_newcomers = ALL_SIDES

    def plain(self) -> dict[str, Any]:
        """What a checkpoint keeps, but for arrays."""
        return {"newcomers": self._of_newcomers}

    def arrays(self) -> dict[str, IntArray]:
        """The arrays that a checkpoint keeps."""
        return {"uses": self._bits}

    def load(self, plain: dict[str, Any], arrays: dict[str, IntArray]) -> None:
        """Go on from a checkpoint."""
        self._of_newcomers = int(plain["newcomers"])
        self._bits = arrays["uses"]


def _bit(side: str) -> int:
    if side not in SIDES:
        raise StoreError(f"{side!r} is no side. It is one of {', '.join(SIDES)}.")
    return 1 << SIDES.index(side)
