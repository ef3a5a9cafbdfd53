"""How much of its ids an organisation lets others compare with theirs in a day, kept in
its own folder.

Whoever aligns with a party may lie about its own ids, and learns for each whether the
party holds it; a list that differs from yesterday's by one id tells about that id, even
where only a count is revealed. No check of a list can see this. So an allowance bounds
how many times a day a party aligns with each asker and, for predictions, whose lists
may be as short as one id, how many ids it compares.

    5f0c91aa {"day": "2026-03-01", "taken": {"clinic": {"alignments": 3, "ids": 120}}}     a checksum, and today's

The file is on the disk before anything is answered, so a restart changes nothing. Days
are those of UTC and never end early: a clock that is set back counts on.
"""

from __future__ import annotations

import json
import logging
import zlib
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from colonnade.core.files import alone, write_bytes
from colonnade.core.party import Refused
from colonnade.errors import CheckpointError
from colonnade.settings.alignment import AllowanceSettings

log = logging.getLogger("colonnade.party")
ALIGNMENTS = "alignments"
IDS = "ids"
SELECTIONS = "selections"
Taken = dict[str, dict[str, int]]


def today() -> str:
    return datetime.now(UTC).date().isoformat()


class Allowance:
    """One organisation's allowance for everybody, by what its own party.toml says
    (`of`). Processes may share it."""

    def __init__(
        self,
        owner: str,
        path: Path,
        of: AllowanceSettings | None = None,
        *,
        day: Callable[[], str] = today,
    ) -> None:
        self.owner = owner
        self.path = path
        self.settings = of or AllowanceSettings()
        self.day = day

    def align(self, asker: str) -> None:
        """Take one alignment to train off what is left of today's, or refuse."""
        most = self.settings.per_day
        count = self._take(
            asker,
            ALIGNMENTS,
            1,
            most,
            f"aligns with '{asker}' {most} times a day",
            "per_day",
        )
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
        count = self._take(asker, IDS, ids, most, rule, "predicted_per_day")
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
        count = self._take(asker, SELECTIONS, 1, most, rule, "per_day", SELECTIONS)
        log.info(
            "%s: '%s' compares columns to select, %d of %d times today",
            self.owner,
            asker,
            count,
            most,
        )

    def taken(self) -> Taken:
        """What everybody who asked has taken today."""
        return self._read()[1]

    def _take(
        self,
        asker: str,
        kind: str,
        more: int,
        most: int,
        rule: str,
        setting: str,
        table: str = ALIGNMENTS,
    ) -> int:
        with alone(self.path):
            day, taken = self._read()
            counts = {ALIGNMENTS: 0, IDS: 0, kind: 0} | taken.get(asker, {})
            if counts[kind] + more > most:
                log.warning(
                    "%s: refused %d more of '%s': it %s", self.owner, more, asker, rule
                )
                raise Refused(
                    f"it {rule}, had {counts[kind]} today and was asked for {more}"
                    f" more. Its owner may raise {setting} under [{table}] in its"
                    " party.toml; or wait for tomorrow (UTC)"
                )
            counts[kind] += more
            text = json.dumps({"day": day, "taken": taken | {asker: counts}})
            write_bytes(
                self.path, [f"{zlib.crc32(text.encode()):08x} {text}\n".encode()]
            )
            return counts[kind]

    def _read(self) -> tuple[str, Taken]:
        """The day that is counted, and what was taken on it."""
        day = self.day()
        try:
            check, _, text = (
                self.path.read_text(encoding="utf-8").rstrip("\n").partition(" ")
            )
            if check != f"{zlib.crc32(text.encode()):08x}":
                raise ValueError
            content = json.loads(text)
            before = str(content["day"])
            taken = content["taken"]
        except FileNotFoundError:
            return day, {}
        except (ValueError, KeyError, TypeError):
            raise CheckpointError(
                f"{self.path} is damaged, and it has how often '{self.owner}' aligned"
                " with whom today. It aligns with nobody until a copy of it is put"
                " back; who removes it lets everybody begin anew."
            ) from None
        return (before, taken) if before >= day else (day, {})
