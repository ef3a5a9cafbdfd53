"""A federation file without some of its parties: every other line, comments too, stays as its author wrote it."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Collection
from typing import Any

from colonnade.core.checks import did_you_mean
from colonnade.errors import ConfigError

HEADER = re.compile(r"^\s*(\[(?P<path>[^\[\]]+)\]|\[\[(?P<listed>[^\[\]]+)\]\])\s*(#.*)?$")
NAME = re.compile(r"^\s*name\s*=\s*(\"(?P<basic>[^\"\\]*)\"|'(?P<literal>[^']*)')\s*(#.*)?$")
LIST = "data_owners"


def leave_out(text: str, parties: Collection[str]) -> str:
    """Drop the tables [parties.NAME] and [parties.NAME.*] of these parties, or where several hold labels, their
    [[data_owners]] with the tables below, and the comments directly above them.

    A file that writes parties in another way, as inline tables or dotted keys, is refused rather than guessed at.
    """
    before = tomllib.loads(text)
    held = before.get(LIST)
    listed = [str(one.get("name")) for one in held if isinstance(one, dict)] if isinstance(held, list) else []
    there = [*before.get("parties", {}), *listed]
    for name in parties:
        if name not in there:
            raise ConfigError(f"The federation file has no party {name!r}{did_you_mean(name, there)}.")
    wanted = dict(before)
    if "parties" in before or not listed:
        wanted["parties"] = {name: t for name, t in before.get("parties", {}).items() if name not in parties}
    if listed:
        left = [one for one in before[LIST] if one.get("name") not in parties]
        wanted = {key: left if key == LIST else value for key, value in wanted.items() if key != LIST or left}
    kept: list[str] = []
    dropping, owner = False, ""
    lines = text.splitlines(keepends=True)
    for number, line in enumerate(lines):
        if (header := HEADER.match(line)) is not None:
            if (header["listed"] or "").strip() == LIST:
                owner = _named(lines[number + 1 :])
            inside = (header["listed"] or header["path"]).strip().split(".")[0].strip() == LIST
            dropping = (owner if inside else _party(header["path"] or "")) in parties
            while dropping and kept and kept[-1].lstrip().startswith("#"):  # they belong to what they stand above
                kept.pop()
        if not dropping:
            kept.append(line)
    made = "".join(kept)
    if _tables(made) != wanted:
        out = ", ".join(map(repr, sorted(parties)))
        raise ConfigError(
            f"The federation file cannot be rewritten without {out}: only parties that are tables of their own, as in "
            "[parties.NAME] or [[data_owners]], can be left out. Remove them by hand."
        )
    return made


def _named(lines: list[str]) -> str:
    """Whose table it is that begins with these lines."""
    for line in lines:
        if HEADER.match(line) is not None:
            break
        if (found := NAME.match(line)) is not None:
            return str(found["basic"] or found["literal"])
    return ""


def _tables(text: str) -> dict[str, Any] | None:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError:  # lines were dropped from inside a text
        return None


def _party(path: str) -> str | None:
    """The party that a header such as `parties.lab.outbox` belongs to; names hold no dots or quotes inside."""
    steps = [step.strip().strip("\"'") for step in path.split(".")]
    return steps[1] if len(steps) > 1 and steps[0] == "parties" else None
