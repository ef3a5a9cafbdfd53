"""VF-PS by group testing (Jiang et al., Section 3.3): a participant is worth what the groups it is in know on average.

    A, [T, m], who is in which test;  U(S) = I(X_S; Y);  importance of i = mean of U over the tests with i

The paper draws tests at random. But larger groups know more, whoever is in them, so a mean over groups of different
sizes ranks participants by the sizes of their groups: with four or five participants the best then came first in two of
three draws. Here all tests are halves of one size, (m + 1) // 2: all such groups where there are no more than T, and
otherwise T different ones, drawn from the participants tested least so far. Where smaller groups would show somebody's
own distances, all have `least` participants. A caller's own groups may differ in size; each is then compared only with
those of its size.

With all halves the ranking is right wherever information adds up. With T of them a participant's mean also depends on
whom it was drawn with: somebody far ahead of all others is first with 2m tests, not always with the paper's 10 (of 16,
in 68 % of draws), and participants nearly alike may change places. So T is 10 or 2m, whichever is more, unless given.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Generator

from colonnade.errors import ConfigError

Group = tuple[str, ...]
Information = Callable[[Sequence[Group]], dict[Group, float]]


def draw_tests(participants: Sequence[str], tests: int, generator: Generator, *, least: int = 1) -> list[Group]:
    """Draw so many groups of one size, with everybody in one; 0: as many as the participants ask for."""
    count = len(participants)
    size = min(count, max(least, (count + 1) // 2))
    tests = max(tests or max(10, 2 * count), math.ceil(count / size))
    if math.comb(count, size) <= tests:
        return list(itertools.combinations(participants, size))
    groups, tested, fair = dict[Group, None](), Counter[int](), True
    while len(groups) < tests:
        order = torch.randperm(count, generator=generator).tolist()
        if fair:
            order.sort(key=lambda number: tested[number])
        chosen = sorted(order[:size])
        group = tuple(participants[number] for number in chosen)
        fair = group not in groups  # those tested least may be a group that was drawn already: then any is taken
        if fair:
            groups[group] = None
            tested.update(chosen)
    return list(groups)


def importance(participants: Sequence[str], information: Mapping[Group, float]) -> dict[str, float]:
    """The mean over the tests that each participant is in. Where tests differ in size, it is the mean of all tests plus
    the mean of how far each is above or below the mean of its size."""
    sizes: dict[int, list[float]] = {}
    for group, value in information.items():
        sizes.setdefault(len(group), []).append(value)
    usual = {size: sum(values) / len(values) for size, values in sizes.items()}
    overall = sum(information.values()) / max(1, len(information))
    scores = {}
    for name in participants:
        differences = [value - usual[len(group)] for group, value in information.items() if name in group]
        if not differences:
            raise ConfigError(f"'{name}' is in none of the {len(information)} test groups. Put everybody into one.")
        scores[name] = overall + sum(differences) / len(differences)
    return scores


def vf_ps(participants: Sequence[str], information: Information, groups: Sequence[Group]) -> dict[str, float]:
    """Scores of all participants, from one batch of tests."""
    importance(participants, dict.fromkeys(groups, 0.0))  # raises before anything is sent where one is in no group
    return importance(participants, information(groups))
