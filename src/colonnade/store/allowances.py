"""What others were allowed today, orders that were taken, and the index of runs."""

from __future__ import annotations

from datetime import datetime
from typing import Any

ORDERS_KEPT = 10_000
"""Numbers of orders that are remembered. An organisation takes some a day."""

Taken = dict[str, dict[str, int]]
"""By asker, and by what is allowed: how much was taken."""


class Allowances:
    """What each asker took of its daily allowances, on one day of UTC.

    A clock that is wrong for a while neither gives a new allowance when it is set back
    nor takes allowances away until the day that it had shown: what was counted on a day
    in the future counts as today's.
    """

    def __init__(self) -> None:
        self.day = ""
        self._taken: Taken = {}
        self.is_used_up = False

    def taken(self, day: str) -> Taken:
        """What everybody took on a day, as far as it is counted: nothing on a day that
        is after the one that is counted, and all that is counted on one before it."""
        return {} if day > self.day else self._taken

    def add(self, day: str, asker: str, kind: str, more: int) -> None:
        """Count what an asker takes."""
        if day > self.day:
            self._taken = {}
            self.is_used_up = False
        self.day = day
        of_asker = self._taken.setdefault(asker, {})
        of_asker[kind] = of_asker.get(kind, 0) + more

    def use_up(self, day: str) -> None:
        """Take all allowances of a day as used, since it is not known what was."""
        self.day = day
        self.is_used_up = True

    def plain(self) -> dict[str, Any]:
        """What a checkpoint keeps."""
        return {"day": self.day, "taken": self._taken, "is_used_up": self.is_used_up}

    def load(self, plain: dict[str, Any]) -> None:
        """Go on from a checkpoint."""
        self.day = plain["day"]
        self._taken = plain["taken"]
        self.is_used_up = plain["is_used_up"]


class Orders:
    """The orders that were taken, each of which counts once."""

    def __init__(self) -> None:
        self._taken: dict[str, str] = {}
        self.refused_until = ""

    def was_taken(self, number: str) -> bool:
        """Whether an order with this number was taken."""
        return number in self._taken

    def add(self, number: str, written: str) -> None:
        """Write an order down as taken.

        Where many were taken, the one that was written first is forgotten, and with
        it all orders that are as old are refused. Their age alone would not do: a
        clock that was wrong for a while would let them be brought again.

        Args:
            number: By which the order is known.
            written: When the order was written, as `time_text` has it.
        """
        self._taken[number] = written
        if len(self._taken) > ORDERS_KEPT:
            oldest = min(self._taken, key=self._taken.__getitem__)
            self.refused_until = max(self.refused_until, self._taken.pop(oldest))

    def plain(self) -> dict[str, Any]:
        """What a checkpoint keeps."""
        return {"taken": self._taken, "refused_until": self.refused_until}

    def load(self, plain: dict[str, Any]) -> None:
        """Go on from a checkpoint."""
        self._taken = plain["taken"]
        self.refused_until = plain["refused_until"]


class Runs:
    """The index of runs: what is known of each, by name."""

    def __init__(self) -> None:
        self._runs: dict[str, dict[str, Any]] = {}

    def names(self) -> list[str]:
        """The names of all runs, the oldest first."""
        return list(self._runs)

    def get(self, name: str) -> dict[str, Any] | None:
        """What is known of a run. None where there is none of this name."""
        return self._runs.get(name)

    def same_but_for_case(self, name: str) -> str | None:
        """A run of another name whose folder would be the same on some systems."""
        for known in self._runs:
            if known != name and known.lower() == name.lower():
                return known
        return None

    def add(self, name: str, about: dict[str, Any]) -> None:
        """Write down what changed about a run."""
        self._runs[name] = {**self._runs.get(name, {}), **about}

    def plain(self) -> dict[str, Any]:
        """What a checkpoint keeps."""
        return {"runs": list(self._runs.items())}

    def load(self, plain: dict[str, Any]) -> None:
        """Go on from a checkpoint."""
        self._runs = dict(plain["runs"])


def time_text(when: datetime) -> str:
    """A time in UTC as text that sorts as times do."""
    return when.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
