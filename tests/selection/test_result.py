"""Ranking, and what is written down."""

from __future__ import annotations

import json

from colonnade.selection.comparing import Comparison
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


def of_two(difference: float, error: float, *, least: float = 0.0) -> Selection:
    """Of two participants, "b" is kept."""
    return Selection(
        "vf_ps",
        ("b",),
        ("b", "a"),
        {"a": 0.1, "b": 0.2},
        {("a",): 0.1, ("b",): 0.2},
        Cost(),
        {},
        errors={"a": 0.01, "b": 0.01},
        comparisons=(Comparison("a", "b", -difference, error),),
        least_difference=least,
    )


def test_who_is_left_out_is_level_unless_the_difference_is_above_its_error() -> None:
    assert of_two(0.05, 0.06).level == ("a",)
    assert of_two(0.05, 0.04).level == ()
    assert of_two(0.05, 0.04, least=0.1).level == ("a",)


def test_a_tie_says_how_large_a_difference_must_be() -> None:
    tie = of_two(0.05, 0.06)
    words = tie.in_words(tie.against_last["a"])
    assert "b adds 0.050 ± 0.060 nats" in words
    assert "must be above 0.060" in words
    asked = of_two(0.05, 0.04, least=0.1)
    assert "above 0.100 (--least-difference)" in asked.in_words(asked.against_last["a"])
    assert "--least-difference" in asked.on_ties
    assert of_two(0.05, 0.04).on_ties == ""


def test_comparisons_survive_the_way_through_json() -> None:
    found = of_two(0.05, 0.06, least=0.02)
    again = Selection.from_json(json.loads(json.dumps(found.to_json())))
    assert again.comparisons == found.comparisons
    assert again.least_difference == found.least_difference
    assert again.level == found.level
