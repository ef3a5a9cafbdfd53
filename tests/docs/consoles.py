"""The ```console blocks of a page: commands after `$ `, continued after `> `, and the
lines of output that are shown. A ```python block is a program; a ```text block right
after it shows what the program prints.

A shown line must come out, in the order shown: `…` stands for any text, a line of `…`
alone for any lines, a run of one drawing sign (━━━, ███) for any length of it; white
space does not count, and a number must agree within a tenth.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from tests.docs.shell import Shell

PORT = "8080"
"""The port that pages serve at; here a free one takes its place."""
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


@dataclass
class Program:
    """A program, and what is shown of its output."""

    text: str
    shown: list[str]


def programs(page: Path) -> list[Program]:
    """In the order of the page."""
    blocks = re.findall(
        r"^```python\n(.*?)^```\n(?:\n```text\n(.*?)^```)?",
        page.read_text(encoding="utf-8"),
        flags=re.DOTALL | re.MULTILINE,
    )
    return [Program(text, shown.splitlines()) for text, shown in blocks]


def follow(page: Path, shell: Shell, shown: Callable[[str], bool] = bool) -> None:
    """Run every command of a page, and hold what it prints against what is shown.

    Args:
        page: the document.
        shell: where its commands run.
        shown: whether a line that the page shows is to be printed here.
    """
    for command in commands(page):
        line = command.line.replace(PORT, shell.port)
        if line.startswith("curl "):
            if shutil.which("curl") is None:
                continue
            shell.wait_for_port()
        code, output = shell.run(line)
        assert code == 0, f"$ {line}\n{output}"
        expected = [words for words in command.shown if shown(words)]
        lost = missing(expected, output.replace(shell.port, PORT))
        assert lost is None, (
            f"$ {line}\nshows, and did not print:\n{lost}\n\nIt printed:\n{output}"
        )


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
