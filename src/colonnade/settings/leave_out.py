"""A federation file without some of its parties: every other line, comments too, stays as its author wrote it."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Collection
from typing import Any

from colonnade.core.checks import did_you_mean
from colonnade.errors import ConfigError

HEADER = re.compile(r"^\s*\[(?P<path>[^\[\]]+)\]\s*(#.*)?$")


def leave_out(text: str, parties: Collection[str]) -> str:
    """Drop the tables [parties.NAME] and [parties.NAME.*] of these parties, with the comments directly above them.

    A file that writes parties in another way, as inline tables or dotted keys, is refused rather than guessed at.
    """
    before = tomllib.loads(text)
    wanted = {**before, "parties": {name: t for name, t in before.get("parties", {}).items() if name not in parties}}
    for name in parties:
        if name not in before.get("parties", {}):
            hint = did_you_mean(name, list(before.get("parties", {})))
            raise ConfigError(f"The federation file has no party {name!r}{hint}.")
    kept: list[str] = []
    dropping = False
    for line in text.splitlines(keepends=True):
        if (header := HEADER.match(line)) is not None:
            dropping = _party(header["path"]) in parties
            while dropping and kept and kept[-1].lstrip().startswith("#"):  # they belong to what they stand above
                kept.pop()
        if not dropping:
            kept.append(line)
    made = "".join(kept)
    if _tables(made) != wanted:
        left = ", ".join(map(repr, parties))
        raise ConfigError(
            f"The federation file cannot be rewritten without {left}: only parties that are tables of their own, as in "
            "[parties.NAME], can be left out. Remove them by hand."
        )
    return made


def _tables(text: str) -> dict[str, Any] | None:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError:  # lines were dropped from inside a text
        return None


def _party(path: str) -> str | None:
    """The party that a header such as `parties.lab.outbox` belongs to; names hold no dots or quotes inside."""
    steps = [step.strip().strip("\"'") for step in path.split(".")]
    return steps[1] if len(steps) > 1 and steps[0] == "parties" else None
