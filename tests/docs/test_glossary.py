"""Every term of the glossary names something that exists."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

GLOSSARY = (Path(__file__).parents[2] / "docs" / "glossary.md").read_text(
    encoding="utf-8"
)
PLACES = re.findall(r"\| `([a-z_.]+)\.([A-Za-z]+)` \|$", GLOSSARY, flags=re.M)


def test_every_line_says_where() -> None:
    lines = [
        line
        for line in GLOSSARY.splitlines()
        if line.startswith("| ") and not line.startswith("| word")
    ]
    assert len(PLACES) == len(lines) > 25


@pytest.mark.parametrize(
    ("module", "name"), PLACES, ids=[".".join(place) for place in PLACES]
)
def test_it_exists(module: str, name: str) -> None:
    pytest.importorskip("nvflare") if module.startswith("flare.") else None
    assert hasattr(importlib.import_module(f"colonnade.{module}"), name)
