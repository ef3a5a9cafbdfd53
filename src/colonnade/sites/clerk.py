"""Who answers at every site what is not about data: whether it is there, what it agreed to, where its runs are."""

from __future__ import annotations

import re
from collections.abc import Collection
from pathlib import Path

from colonnade.core import Party, Seat, roles, serves
from colonnade.settings.party_file import Own

RUN = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")
MOST_OUTPUTS = 1 << 20
"""Of a model: whoever asks says how many, and a party makes that much room."""


class Clerk(Party):
    """Of one organisation; asked by some others alone."""

    aside = (roles.Ping,)

    def __init__(self, seat: Seat, own: Own, askers: Collection[str]) -> None:
        super().__init__(seat)
        self.own, self.serves_for = own, frozenset(askers)

    @serves
    def ping(self, request: roles.Ping) -> roles.Pong:  # noqa: ARG002
        return roles.Pong()

    def check_agreed(self, agreed: str) -> None:
        """To the same agreed file, or not at all."""
        mine = self.own.agreed
        self.expect(agreed == mine, f"it agreed to {mine}, and was asked to join {agreed[:64]!r}")

    def folder(self, run: str) -> Path:
        """This organisation's, of a run."""
        self.expect(RUN.fullmatch(run) is not None, "a run's name has letters, digits, '-', '_' and '.'")
        return self.own.runs / run
