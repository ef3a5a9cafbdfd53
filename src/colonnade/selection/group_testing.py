"""VF-PS by group testing (Jiang et al., Section 3.3): a participant is worth what the groups it is in know on average.

    A, [T, m], who is in which test;  U(S) = I(X_S; Y);  importance of i = mean of U over the tests with i

The paper draws tests at random. Here a draw is a random halving of all participants, both halves of which are tests, as
long as there are new ones: so that everybody is tested equally often, in groups of equal size, and with each other part
of the time. Other groups follow where halves run out, until there are T or there are no more. Where smaller groups
would show somebody's own distances, all have `least` participants or more.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Generator

from colonnade.errors import ConfigError

Group = tuple[str, ...]
Information = Callable[[Sequence[Group]], dict[Group, float]]
PATIENCE = 50
"""Draws in a row that bring nothing new before halves are taken to have run out."""


def draw_tests(participants: Sequence[str], tests: int, generator: Generator, *, least: int = 1) -> list[Group]:
    """Different groups, in which everybody occurs."""
    count, found = len(participants), dict[Group, None]()
    tests = max(2, min(tests, sum(math.comb(count, size) for size in range(least, count + 1))))
    for halves in (True, False):
        idle = 0
        while len(found) < tests and idle < PATIENCE:
            order = torch.randperm(count, generator=generator).tolist()
            size = count // 2 if halves else int(torch.randint(least, count + 1, (), generator=generator))
            before = len(found)
            for chosen in (order[:size], order[size:]) if halves else (order[:size],):
                if len(found) < tests and len(chosen) >= least:
                    found[tuple(participants[at] for at in sorted(chosen))] = None
            idle = idle + 1 if len(found) == before else 0
    missed = len(set().union(*found)) < count
    return [*found, tuple(participants)] if missed else list(found)


def importance(participants: Sequence[str], information: Mapping[Group, float]) -> dict[str, float]:
    """The mean over the tests that each participant is in."""
    found = {}
    for name in participants:
        mine = [value for group, value in information.items() if name in group]
        if not mine:
            raise ConfigError(f"'{name}' is in none of the {len(information)} test groups. Put everybody into one.")
        found[name] = sum(mine) / len(mine)
    return found


def vf_ps(participants: Sequence[str], information: Information, groups: Sequence[Group]) -> dict[str, float]:
    """Scores of all participants, from one batch of tests."""
    importance(participants, dict.fromkeys(groups, 0.0))  # who was forgotten is noticed before anything is sent
    return importance(participants, information(groups))
