"""SECURITY.md names a test for every promise, and the test exists."""

from __future__ import annotations

import pytest
from tests.attack import BROKEN, ROOT, Outcomes, Promise, promises


def test_every_promise_has_its_test() -> None:
    text = (ROOT / "SECURITY.md").read_text(encoding="utf-8")
    assert len(promises()) == text.count("::test_") >= 30, (
        "a line of the table is not in its form"
    )
    missing = [
        one.id
        for one in promises()
        if f"def {one.test}(" not in (ROOT / one.file).read_text(encoding="utf-8")
    ]
    assert not missing


def test_every_adversary_is_played() -> None:
    assert {"relay", "driver", "candidate", "client"} <= {
        one.adversary for one in promises()
    }


@pytest.mark.parametrize(
    ("ends", "told"),
    [
        (["passed", "passed"], "held"),
        (["passed", "failed"], "BROKEN"),
        (["skipped"], "not tried"),
        ([], "not tried"),
    ],
)
def test_a_promise_is_held_only_where_every_case_was_tried_and_withstood(
    ends: list[str], told: str
) -> None:
    found = Outcomes()
    promise = Promise("it holds", "relay", "tests/x.py", "test_x")
    found.ends[promise.id] += ends
    assert found.of(promise) == told
    assert BROKEN == 5
