"""SECURITY.md names a test for every promise, and the test exists."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PROMISES = re.findall(r"\| `(tests/[\w/]+\.py)::(test_\w+)` \|$", (ROOT / "SECURITY.md").read_text("utf-8"), flags=re.M)


def test_every_promise_has_its_test() -> None:
    assert len(PROMISES) >= 18
    missing = [
        f"{file}::{name}" for file, name in PROMISES if f"def {name}(" not in (ROOT / file).read_text(encoding="utf-8")
    ]
    assert not missing
