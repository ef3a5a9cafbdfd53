"""Tests are different, fair and enough; importance is a mean."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Generator

from colonnade.errors import ConfigError
from colonnade.selection.group_testing import draw_tests, importance, vf_ps


@settings(max_examples=50)
@given(st.integers(2, 12), st.integers(1, 40), st.integers(0, 99))
def test_tests_are_different_and_everybody_is_in_one(count: int, tests: int, seed: int) -> None:
    names = [f"p{number}" for number in range(count)]
    drawn = draw_tests(names, tests, Generator().manual_seed(seed))
    assert len(drawn) == len(set(drawn)) <= max(2, tests)
    assert {name for group in drawn for name in group} == set(names)
    assert all(group == tuple(name for name in names if name in group) for group in drawn)


def test_with_few_participants_all_groups_are_tested() -> None:
    assert len(draw_tests(["a", "b"], 10, Generator().manual_seed(0))) == 3
    assert len(draw_tests(["a", "b", "c"], 10, Generator().manual_seed(0))) == 7
    assert len(draw_tests(list("abcdefgh"), 10, Generator().manual_seed(0))) == 10


@settings(max_examples=50)
@given(st.integers(3, 9), st.integers(1, 30), st.integers(2, 3), st.integers(0, 99))
def test_groups_may_have_to_be_larger(count: int, tests: int, least: int, seed: int) -> None:
    names = [f"p{number}" for number in range(count)]
    drawn = draw_tests(names, tests, Generator().manual_seed(seed), least=least)
    assert min(map(len, drawn)) >= least
    assert {name for group in drawn for name in group} == set(names)
    assert len(drawn) == len(set(drawn)) <= max(2, tests) + 1


def test_many_participants_are_tested_equally_often() -> None:
    names = [f"p{number}" for number in range(64)]
    drawn = draw_tests(names, 20, Generator().manual_seed(0))
    assert {len(group) for group in drawn} == {32}
    assert set(Counter(name for group in drawn for name in group).values()) == {10}


def test_importance_is_the_mean_of_ones_tests() -> None:
    found = importance(["a", "b"], {("a",): 1.0, ("a", "b"): 2.0, ("b",): 0.5})
    assert found == {"a": 1.5, "b": 1.25}


def test_who_was_forgotten_is_noticed_before_anything_is_sent() -> None:
    with pytest.raises(ConfigError, match="'b' is in none of the 1 test groups"):
        vf_ps(["a", "b"], lambda groups: pytest.fail("asked"), [("a",)])
