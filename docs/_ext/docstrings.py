"""Docstrings here are plain text: `code` in single backticks, listings indented. Sphinx
reads reStructuredText."""

from __future__ import annotations

import re


def to_rst(lines: list[str]) -> list[str]:
    """The same words: code marked as Sphinx wants it, listings as literal blocks, every
    other sign as it is."""
    made: list[str] = []
    if not any(map(str.strip, lines)):
        return made
    for paragraph in re.split(r"\n(?:[ \t]*\n)+", "\n".join(lines).strip("\n")):
        part = paragraph.split("\n")
        if all(line.startswith((" ", "\t")) for line in part if line.strip()):
            made += ["::", "", *("    " + line for line in part), ""]
        elif any(line.startswith(("- ", "* ")) for line in part) or part[0].startswith(
            ".. "
        ):
            made += [*(_inline(line) for line in part), ""]
        else:
            made += _with_listing(part)
    return made


def _with_listing(part: list[str]) -> list[str]:
    """A paragraph; from its first indented line on it is a listing."""
    cut = next((n for n, line in enumerate(part) if line.startswith("  ")), len(part))
    made = [*(_inline(line) for line in part[:cut]), ""]
    return (
        made
        if cut == len(part)
        else [*made, "::", "", *("    " + line for line in part[cut:]), ""]
    )


def _inline(line: str) -> str:
    pieces = re.split(r"(`+[^`]+`+)", line)
    return "".join(
        f"``{one.strip('`')}``" if one.startswith("`") else _escaped(one)
        for one in pieces
    )


def _escaped(text: str) -> str:
    bullet = re.match(r"\s*[-*] ", text)
    start = bullet.end() if bullet else 0
    return text[:start] + re.sub(
        r"([*|\\`])|(?<=\w)(_)(?!\w)", lambda found: "\\" + found.group(0), text[start:]
    )
