"""The ```console blocks of a page: commands after `$ `, continued after `> `, and the
lines of output that are shown.

A shown line must come out, in the order shown: `…` stands for any text, a line of `…`
alone for any lines, a run of one drawing sign (━━━, ███) for any length of it; white
space does not count, and a number must agree within a tenth.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

NUMBER = r"\d[\d,]*(?:\.\d+)?(?:[eE][-+]?\d+)?"


@dataclass
class Command:
    """What is typed, and what is shown of its output."""

    line: str
    shown: list[str] = field(default_factory=list)


def commands(page: Path) -> list[Command]:
    """In the order of the page."""
    found: list[Command] = []
    for block in re.findall(
        r"^```console\n(.*?)^```",
        page.read_text(encoding="utf-8"),
        flags=re.DOTALL | re.MULTILINE,
    ):
        for line in block.splitlines():
            if line.startswith("$ "):
                found.append(Command(line[2:]))
            elif line.startswith("> ") or line == ">":
                found[-1].line += "\n" + line[2:]
            elif line.strip():
                found[-1].shown.append(line)
    return found


def missing(shown: list[str], output: str) -> str | None:
    """The first shown line that did not come out, or None."""
    lines = output.splitlines()
    at = 0
    for want in shown:
        if want.strip() == "…":
            continue
        place = next((n for n in range(at, len(lines)) if agrees(want, lines[n])), None)
        if place is None:
            return want
        at = place + 1
    return None


def agrees(want: str, line: str) -> bool:
    """Whether a line of output is the one shown."""
    parts = [
        one.group(0)
        for one in re.finditer(rf"{NUMBER}|…|\s+|([━─█═])\1*|.", want.strip())
    ]
    found = re.fullmatch("".join(map(_pattern, parts)), line.strip())
    if found is None:
        return False
    numbers = [_number(part) for part in parts if re.fullmatch(NUMBER, part)]
    return all(
        abs(said - came) <= 0.1 * max(abs(said), abs(came))
        for said, came in zip(numbers, map(_number, found.groups()), strict=True)
    )


def _pattern(part: str) -> str:
    if part == "…":
        return ".*?"
    if part.isspace():
        return r"\s+"
    if part[0] in "━─█═":
        return f"{part[0]}+"
    return f"({NUMBER})" if re.fullmatch(NUMBER, part) else re.escape(part)


def _number(text: str) -> float:
    return float(text.replace(",", ""))
