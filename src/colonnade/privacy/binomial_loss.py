"""What the binomial mechanism costs: cpSGD's theorem, and the exact privacy-loss distribution.

One coordinate compares X = Bin(N, p) with X + d, where d is at most k-1 levels. The binomial is log-concave, so the
likelihood ratio is monotone, the best test is a threshold, and the largest d is the worst one in both directions. Of
the two directions (they differ unless p = 1/2) the larger hockey-stick curve is taken at every epsilon: an adversary
may mix directions over coordinates and rounds. Coordinates and rounds compose by convolution.
"""

from __future__ import annotations

import math
from functools import lru_cache
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

GRID = 4000
"""Points of the loss grid on either side of 0. Connecting the dots errs upwards only, with the spacing's square."""
PROVEN = 1.0
"""cpSGD's first term is the classical Gaussian bound, which holds up to epsilon = 1 alone. Above it the theorem as
printed can fall below the exact value, so it is shown and not relied upon."""


def cpsgd(levels: int, trials: int, p: float, coordinates: int, delta: float) -> float:
    """Epsilon by Theorem 1 of cpSGD (arXiv:1805.10559) where its condition holds, else infinity.

    `coordinates` counts over all releases: n releases of P coordinates are one of nP with sensitivities
    Delta_1 = nP(k-1), Delta_2 = sqrt(nP)(k-1), Delta_inf = k-1.
    """
    p = min(p, 1 - p)  # mirrored noise costs the same
    q, d, log = 1 - p, coordinates, math.log
    variance, most = trials * p * q, float(levels - 1)
    if variance < max(23 * log(10 * d / delta), 2 * most):
        return math.inf
    b_p = 2 / 3 * (p**2 + q**2) + (1 - 2 * p)
    c_p = math.sqrt(2) * (3 * p**3 + 3 * q**3 + 2 * p**2 + 2 * q**2)
    d_p = 4 / 3 * (p**2 + q**2)
    l1, l2 = d * most, math.sqrt(d) * most
    return (
        l2 * math.sqrt(2 * log(1.25 / delta)) / math.sqrt(variance)
        + (l2 * c_p * math.sqrt(log(10 / delta)) + l1 * b_p) / (variance * (1 - delta / 10))
        + (2 / 3 * most * log(1.25 / delta) + most * d_p * log(20 * d / delta) * log(10 / delta)) / variance
    )


def curve(shift: int, trials: int, p: float, epsilons: NDArray[np.float64]) -> NDArray[np.float64]:
    """delta(epsilon) of one coordinate moved by `shift` levels: the larger of both directions, exactly."""
    from scipy.stats import binom

    x = np.arange(trials + shift + 1)
    mine, moved = binom.logpmf(x, trials, p), binom.logpmf(x - shift, trials, p)
    return np.maximum(_hockey_stick(mine, moved, epsilons), _hockey_stick(moved, mine, epsilons))


def _hockey_stick(
    upper: NDArray[np.float64], lower: NDArray[np.float64], epsilons: NDArray[np.float64]
) -> NDArray[np.float64]:
    """sum over x of max(0, P(x) - e^eps Q(x)), from the log masses."""
    held = np.isfinite(upper)
    upper, lower = upper[held], lower[held]
    loss = upper - lower  # infinite where Q has no mass
    order = np.argsort(-loss, kind="stable")
    above = np.concatenate([[0.0], np.cumsum(np.exp(upper[order]))])
    below = np.concatenate([[0.0], np.cumsum(np.exp(lower[order]))])
    count = np.searchsorted(-loss[order], -epsilons, side="left")
    return np.asarray(np.maximum(above[count] - np.exp(epsilons) * below[count], 0.0))


@lru_cache(maxsize=256)
def distribution(
    levels: int, trials: int, p: float, coordinates: int, spacing: float, mass: float, pld: ModuleType
) -> Any:
    """dp-accounting's privacy-loss distribution of so many coordinates on a grid of losses, never below the truth.

    Losses that one coordinate exceeds with a chance of at most `mass` count as certain. `pld` is the library's part.
    """
    ends = math.ceil(reach(levels, trials, p, mass) / spacing)
    at = np.arange(-ends, ends + 1)
    deltas = np.minimum.accumulate(curve(levels - 1, trials, p, (at * spacing).astype(np.float64)))
    one = pld.pld_pmf.create_pmf_pessimistic_connect_dots(spacing, at, deltas)
    return pld.privacy_loss_distribution.PrivacyLossDistribution(one.self_compose(coordinates, mass))


def certain(levels: int, trials: int, p: float) -> float:
    """The chance that one coordinate's outcome is impossible for the other row, and so gives it away."""
    from scipy.stats import binom

    shift = levels - 1
    return float(max(binom.cdf(shift - 1, trials, p), binom.sf(trials - shift, trials, p)))


@lru_cache(maxsize=256)
def reach(levels: int, trials: int, p: float, mass: float) -> float:
    """A loss that one coordinate exceeds with a chance of at most `mass`, in either direction, apart from outcomes
    that give the row away for sure; 0 when all do."""
    from scipy.stats import binom

    x, found = np.arange(trials + 1), 0.0
    log_mass = binom.logpmf(x, trials, p)
    for shift in (levels - 1, 1 - levels):
        loss = log_mass - binom.logpmf(x - shift, trials, p)
        unsure = np.isfinite(loss)
        loss, chance = loss[unsure], np.exp(log_mass[unsure])
        order = np.argsort(-loss, kind="stable")
        likely = loss[order][np.cumsum(chance[order]) > mass]
        found = max(found, float(likely[0]) if len(likely) else 0.0)
    return found
