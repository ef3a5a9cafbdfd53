"""Lower bounds on epsilon from one run with planted rows, by how many of their secret
bits were guessed.

Each of m canaries is released with one of two values, chosen by a fair coin that only
the auditor knows; the adversary sees the release and guesses the coins. Three bounds,
each below the true epsilon with probability 1 - p at least:

    steinke        Steinke, Nasr, Jagielski (2023, arXiv:2305.08846), Theorem 5.2: of r guesses v are right. Under
                   (epsilon, delta)-DP that is no likelier than Bin(r, e^eps / (1 + e^eps)) >= v, plus a share of delta.
    f_dp           Mahloujifar, Melis, Chaudhuri (ICML 2025, arXiv:2410.22235): the same for a trade-off curve, here
                   that of a Gaussian whose mean moves by mu deviations. Like Steinke's, it assumes nothing about how
                   rows depend on each other.
    independent    For mechanisms that draw noise for every row by itself, which is part of what is claimed: guesses
                   are then independent, each right with probability (1 + TV) / 2 at most, where TV is the total
                   variation between what leaves of the two values. Exact (Clopper and Pearson), and the tightest:
                   it is Xiang et al.'s (2025, arXiv:2509.08704) with a guess on every canary.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from colonnade.first_use import special, stats

CONFIDENCE = 0.95
MOST = 60.0
"""No canaries show an epsilon, or a mu, above this."""
HALVINGS = 40


@dataclass(frozen=True)
class Guesses:
    """How many canaries there were, on how many an adversary made a guess, and how many
    guesses were right."""

    canaries: int
    made: int
    right: int


def steinke(guesses: Guesses, delta: float, p: float) -> float:
    """The largest epsilon that is refuted: as many right guesses are less likely than p
    under it."""
    return _largest(lambda epsilon: _likelihood(guesses, epsilon, delta) < p)


def _likelihood(guesses: Guesses, epsilon: float, delta: float) -> float:
    """An upper bound on the chance of as many right guesses under (epsilon, delta)-DP."""
    made = guesses.made
    right = guesses.right
    chance = 1 / (1 + math.exp(-epsilon))
    tail = float(stats.binom.sf(right - 1, made, chance))
    if not delta or not right:
        return min(tail, 1.0)
    # P[v > Bin >= v - i], i = 1 .. v
    fewer = np.cumsum(stats.binom.pmf(np.arange(right - 1, -1, -1), made, chance))
    alpha = float(np.max(fewer / np.arange(1, right + 1)))
    return min(tail + 2 * guesses.canaries * delta * alpha, 1.0)


def f_dp(guesses: Guesses, p: float) -> float:
    """The largest mu that is refuted, where there is a guess on every canary."""
    if guesses.made != guesses.canaries:
        raise ValueError("this bound is for a guess on every canary")
    return _largest(lambda mu: _refuted(guesses.canaries, guesses.right, mu, p))


def _refuted(canaries: int, right: int, mu: float, p: float) -> bool:
    """Whether `right` of so many coins, guessed with probability p or more, contradicts
    a trade-off curve: r and h are the shares of right and wrong guesses on runs with i
    or more right ones, f ties each h to the r above it, and together they must not
    exceed 1."""
    r = p * right / canaries
    h = p * (canaries - right) / canaries
    for i in range(right - 1, -1, -1):
        above = max(h, float(special.ndtr(special.ndtri(r) - mu)))
        r = r + i / (canaries - i) * (above - h)
        h = above
        if r + h > 1:
            return True
    return False


def independent(guesses: Guesses, p: float) -> float:
    """The least total variation that is not refuted, where guesses are independent."""
    if not guesses.right:
        return 0.0
    accuracy = float(stats.beta.ppf(p, guesses.right, guesses.made - guesses.right + 1))
    return max(2 * accuracy - 1, 0.0)


def mu_of(variation: float) -> float:
    """By how many deviations the mean of a Gaussian with this total variation moves."""
    return min(2 * float(special.ndtri((1 + variation) / 2)), MOST)


def _largest(refuted: Callable[[float], bool]) -> float:
    """The largest refuted value, by halving; a value below a refuted one is refuted,
    too."""
    low = 0.0
    high = 1.0
    if not refuted(0.0):
        return 0.0
    while refuted(high) and high < MOST:
        low = high
        high = 2 * high
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if refuted(middle) else (low, middle)
        if high - low < 1e-3:
            break
    return low
