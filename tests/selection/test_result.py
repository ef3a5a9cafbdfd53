"""Ranking, and what is written down."""

from __future__ import annotations

import json

from colonnade.selection.result import Cost, Selection, ranked


def test_best_first_and_equals_in_the_order_given() -> None:
    assert ranked({"a": 0.1, "b": 0.5, "c": 0.1, "d": -1.0}) == ("b", "a", "c", "d")


def test_it_is_plain_json() -> None:
    found = Selection(
        "vf_ps",
        ("b",),
        ("b", "a"),
        {"a": 0.1, "b": 0.2},
        {("a", "b"): 0.3},
        Cost(1.5, 10),
        {"b": "much"},
    )
    written = json.loads(json.dumps(found.to_json()))
    assert written["groups"] == [{"participants": ["a", "b"], "information": 0.3}]
    assert written["cost"]["bytes"] == 10
    assert "ledgers" not in written
