"""All subsets of the wanted size, and the best of them: what any other selection can at most come up to.

By the joint mutual information this solves the paper's Equation 1. The paper compares with the subset whose model is
best in the end; a function that trains and scores one takes the place of the mutual information for that.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

from colonnade.errors import ConfigError
from colonnade.selection.group_testing import Group, Information

MOST = 5000
"""Subsets to try."""


def brute_force(participants: Sequence[str], keep: int, information: Information) -> tuple[dict[str, float], Group]:
    """The best subset, and for each participant the value of the best subset that it is in."""
    count = math.comb(len(participants), keep)
    if count > MOST:
        raise ConfigError(
            f"brute_force would try {count} subsets of {keep} out of {len(participants)} participants, and tries at "
            f'most {MOST}. Use method = "vf_ps".'
        )
    found = information(list(itertools.combinations(participants, keep)))
    best = max(found, key=lambda group: found[group])
    return {name: max(value for group, value in found.items() if name in group) for name in participants}, best
