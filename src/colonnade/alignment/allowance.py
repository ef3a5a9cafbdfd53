"""How much of its ids an organisation lets others compare with theirs in a day, counted
in its own store.

Whoever aligns with a party may lie about its own ids, and learns for each whether the
party holds it; a list that differs from yesterday's by one id tells about that id, even
where only a count is revealed. No check of a list can see this. So an allowance bounds
how many times a day a party aligns with each asker and, for predictions, whose lists
may be as short as one id, how many ids it compares.

What is taken is on the disk before anything is answered, so a restart changes nothing.
Days are those of UTC. What was counted while the clock was ahead counts as today's.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import UTC, date, datetime

from colonnade.core.party import Refused
from colonnade.settings.alignment import AllowanceSettings
from colonnade.store import SiteStore

log = logging.getLogger("colonnade.party")
ALIGNMENTS = "alignments"
IDS = "ids"
SELECTIONS = "selections"


def today() -> date:
    """The day by UTC."""
    return datetime.now(UTC).date()


class Allowance:
    """One organisation's allowance for everybody. Processes may share it.

    Args:
        owner: The organisation.
        store: Opens its store, when something is asked for.
        of: What it allows, by its own party.toml.
        day: Tells which day it is.
    """

    def __init__(
        self,
        owner: str,
        store: Callable[[], SiteStore],
        of: AllowanceSettings | None = None,
        *,
        day: Callable[[], date] = today,
    ) -> None:
        self.owner = owner
        self.settings = of or AllowanceSettings()
        self._store = store
        self._day = day

    def align(self, asker: str) -> None:
        """Take one alignment to train off what is left of today's, or refuse."""
        most = self.settings.per_day
        rule = f"aligns with '{asker}' {most} times a day"
        count = self._take(asker, ALIGNMENTS, 1, most, rule, "[alignments] per_day")
        log.info(
            "%s: '%s' aligns ids to train, %d of %d times today",
            self.owner,
            asker,
            count,
            most,
        )

    def compare(self, asker: str, ids: int) -> None:
        """Take so many ids to predict off what is left of today's, or refuse."""
        most = self.settings.predicted_per_day
        rule = f"compares {most} ids a day with '{asker}' to predict"
        setting = "[alignments] predicted_per_day"
        count = self._take(asker, IDS, ids, most, rule, setting)
        log.info(
            "%s: '%s' aligns %d ids to predict, %d of %d today",
            self.owner,
            asker,
            ids,
            count,
            most,
        )

    def select(self, asker: str, most: int) -> None:
        """Take one selection off what is left of today's, or refuse."""
        rule = f"takes part in {most} selections of '{asker}' a day"
        count = self._take(asker, SELECTIONS, 1, most, rule, "[selections] per_day")
        log.info(
            "%s: '%s' compares columns to select, %d of %d times today",
            self.owner,
            asker,
            count,
            most,
        )

    def taken(self) -> dict[str, dict[str, int]]:
        """What everybody who asked has taken today."""
        return self._store().taken(self._day())

    def _take(
        self, asker: str, kind: str, more: int, most: int, rule: str, setting: str
    ) -> int:
        """Take something off what is left of today's.

        Returns:
            How much the asker has taken today, with this.
        """
        grant = self._store().take(asker, kind, more, most, day=self._day())
        if grant.is_given:
            return grant.counted
        log.warning("%s: refused %d more of '%s': it %s", self.owner, more, asker, rule)
        raise Refused(
            f"it {rule}, had {grant.counted} today and was asked for {more} more. Its"
            f" owner may raise {setting} in its party.toml; or wait for tomorrow (UTC)"
        )
