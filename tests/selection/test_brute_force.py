"""The best of all subsets, by trying them."""

from __future__ import annotations

import itertools

import pytest

from colonnade.errors import ConfigError
from colonnade.selection.methods import brute_force


def test_it_is_the_best_subset() -> None:
    subsets: list[tuple[str, ...]] = list(itertools.combinations("abcd", 2))
    worth = {group: (7 * number) % 10 / 10 for number, group in enumerate(subsets)}
    scores, best = brute_force("abcd", 2, lambda groups: {group: worth[group] for group in groups})
    assert worth[best] == max(worth.values())
    assert scores == {name: max(value for group, value in worth.items() if name in group) for name in "abcd"}


def test_too_many_subsets_are_refused() -> None:
    with pytest.raises(ConfigError, match="would try 1832624140942590534 subsets of 32 out of 64"):
        brute_force([str(number) for number in range(64)], 32, lambda groups: pytest.fail("asked"))
