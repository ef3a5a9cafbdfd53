"""What this installation says about itself: which packages it wants, in which versions, and which are there."""

from __future__ import annotations

import re
from dataclasses import dataclass
from importlib import metadata

NAME = "colonnade"
REQUIREMENT = re.compile(r"([A-Za-z0-9._-]+)\s*([^;]*)(?:;.*extra\s*==\s*['\"]([^'\"]+)['\"])?")
SPECIFIER = re.compile(r"(>=|<=|<|>|==|!=)\s*([0-9][0-9.]*)")


@dataclass(frozen=True)
class Package:
    """One that is wanted: always, or for an extra."""

    name: str
    wanted: str  # such as >=0.6,<0.7
    extra: str = ""

    @property
    def found(self) -> str | None:
        """The installed version."""
        try:
            return metadata.version(self.name)
        except metadata.PackageNotFoundError:
            return None

    @property
    def fits(self) -> bool:
        return self.found is not None and in_range(self.found, self.wanted)


def packages() -> list[Package]:
    """All that the installed distribution names, as pyproject.toml had them when it was built."""
    matches = [REQUIREMENT.match(text) for text in metadata.requires(NAME) or ()]
    return [Package(m[1], m[2].strip(" ()"), m[3] or "") for m in matches if m is not None]


def in_range(version: str, wanted: str) -> bool:
    """Whether numbers such as 2.13.0 lie in a range such as >=2.8,<3; what follows the numbers is not looked at."""
    here = _numbers(version)
    for sign, bound in SPECIFIER.findall(wanted):
        there = _numbers(bound)
        length = max(len(here), len(there))
        a, b = (numbers + (0,) * (length - len(numbers)) for numbers in (here, there))
        holds = {">=": a >= b, "<=": a <= b, "<": a < b, ">": a > b, "==": a == b, "!=": a != b}
        if not holds[sign]:
            return False
    return True


def _numbers(version: str) -> tuple[int, ...]:
    match = re.match(r"\d+(?:\.\d+)*", version)
    return tuple(map(int, match[0].split("."))) if match else ()
