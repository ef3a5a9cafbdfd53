"""Tests are different, fair, of one size and enough; importance is a mean over tests that are alike."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from math import comb
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Generator

from colonnade.errors import ConfigError
from colonnade.selection.methods import Group, draw_tests, importance, vf_ps


@settings(max_examples=50)
@given(st.integers(2, 12), st.integers(0, 40), st.integers(1, 3), st.integers(0, 99))
def test_tests_are_different_alike_and_everybody_is_in_one(count: int, tests: int, least: int, seed: int) -> None:
    names = [f"p{number}" for number in range(count)]
    drawn = draw_tests(names, tests, Generator().manual_seed(seed), least=least)
    assert len(drawn) == len(set(drawn)) <= max(2, tests or max(10, 2 * count))
    assert {len(group) for group in drawn} == {min(count, max(least, (count + 1) // 2))}
    assert {name for group in drawn for name in group} == set(names)
    assert all(group == tuple(name for name in names if name in group) for group in drawn)


def test_with_few_participants_all_halves_are_tested() -> None:
    assert [len(draw_tests(list("abcdefgh")[:m], 0, Generator().manual_seed(0))) for m in (2, 3, 4, 5, 8)] == [
        2,
        3,
        6,
        10,
        16,
    ]


def test_many_participants_are_tested_equally_often() -> None:
    names = [f"p{number}" for number in range(64)]
    drawn = draw_tests(names, 20, Generator().manual_seed(0))
    assert {len(group) for group in drawn} == {32}
    assert set(Counter(name for group in drawn for name in group).values()) == {10}


@pytest.mark.parametrize("count", range(2, 17))
def test_with_exact_information_the_best_comes_first(count: int) -> None:
    """Participants know independent things, so that what a group knows is the sum. Groups of several sizes averaged
    together, as they were drawn once, put the best of four first in two of three draws."""
    names = [f"p{number}" for number in range(count)]
    for seed in range(25):
        random = Random(seed)
        groups = draw_tests(names, 0, Generator().manual_seed(seed))
        knows = {name: 0.3 * random.random() for name in names}
        best = random.choice(names)
        for ahead in (1.0, 0.31) if len(groups) == comb(count, (count + 1) // 2) else (1.0,):
            scores = vf_ps(names, partial(exact, knows=knows | {best: ahead}), groups)
            assert max(names, key=scores.__getitem__) == best


@pytest.mark.parametrize("count", range(2, 7))
def test_all_halves_rank_everybody_as_exact_information_does(count: int) -> None:
    names = [f"p{number}" for number in range(count)]
    for seed in range(10):
        random = Random(seed)
        knows = {name: random.random() for name in names}
        groups = draw_tests(names, 20, Generator().manual_seed(seed))
        scores = vf_ps(names, partial(exact, knows=knows), groups)
        assert sorted(names, key=scores.__getitem__) == sorted(names, key=knows.__getitem__)


def test_groups_of_different_sizes_are_compared_within_their_size() -> None:
    """Knowing nothing, "c" is in large groups alone, which know more than the small ones that "a" is in."""
    knows = {"a": 0.5, "b": 0.4, "c": 0.0, "d": 0.3}
    groups = [("a",), ("b",), ("d",), ("a", "b", "d"), ("a", "b", "c"), ("b", "c", "d"), ("a", "c", "d")]
    scores = importance(list(knows), exact(groups, knows))
    assert sorted(knows, key=scores.__getitem__) == sorted(knows, key=knows.__getitem__)


def test_of_groups_of_one_size_importance_is_the_mean() -> None:
    found = importance(["a", "b", "c"], {("a", "b"): 2.0, ("a", "c"): 1.0, ("b", "c"): 0.5})
    assert found == pytest.approx({"a": 1.5, "b": 1.25, "c": 0.75})


def exact(groups: Sequence[Group], knows: Mapping[str, float]) -> dict[Group, float]:
    return {group: sum(knows[name] for name in group) for group in groups}


def test_who_was_forgotten_is_noticed_before_anything_is_sent() -> None:
    with pytest.raises(ConfigError, match="'b' is in none of the 1 test groups"):
        vf_ps(["a", "b"], lambda groups: pytest.fail("asked"), [("a",)])
