"""Pins have a date, cover what the package needs, and are told when they are old."""

from __future__ import annotations

import datetime
import re
import tomllib
from pathlib import Path

import pytest
from tests import pins

ROOT = Path(__file__).parents[1]


def test_everything_that_the_package_needs_is_pinned() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))[
        "project"
    ]
    wanted = [
        *project["dependencies"],
        *(one for some in project["optional-dependencies"].values() for one in some),
    ]
    names = {re.split(r"[\[<>=!~; ]", one)[0].lower() for one in wanted} - {"colonnade"}
    assert names <= {
        name.lower()
        for name, _ in pins.PIN.findall(pins.FILE.read_text(encoding="utf-8"))
    }


@pytest.mark.parametrize(
    ("days", "old"),
    [(0, False), (pins.MOST, False), (pins.MOST + 1, True), (1000, True)],
)
def test_pins_are_told_when_they_are_old(days: int, old: bool) -> None:
    text = pins.FILE.read_text(encoding="utf-8")
    told = pins.too_old(text, pins.pinned_on(text) + datetime.timedelta(days=days))
    assert (told is not None) == old
    assert told is None or f"{days} days old" in told


def test_a_file_without_a_date_is_told() -> None:
    with pytest.raises(ValueError, match="must say since when"):
        pins.pinned_on("torch==2.13.0\n")
