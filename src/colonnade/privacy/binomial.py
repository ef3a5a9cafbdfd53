"""Quantize, then add binomial noise to the levels: Noisy C-VFL (Section 3), after cpSGD
(arXiv:1805.10559).

    i = round((clip(x, low, high) - low) / step)  in 0 .. k-1        step = (high - low) / (k - 1)
    sent: i + Bin(N, p)                           in 0 .. k-1+N      ceil(log2(k + N)) bits
    read: low + step * (sent - N p)

Rounding is to the nearest level: the paper's compression C(h) is not random, and random
rounding would not change the guarantee (mixtures over levels are no further apart than
the levels furthest apart). A row's values may change anywhere in [low, high], so each
of its P coordinates may move by k-1 levels.

What the binomial mechanism costs: cpSGD's theorem, and the exact privacy-loss
distribution.

One coordinate compares X = Bin(N, p) with X + d, where d is at most k-1 levels. The
binomial is log-concave, so the likelihood ratio is monotone, the best test is a
threshold, and the largest d is the worst in both directions. The two directions differ
unless p = 1/2; the larger hockey-stick curve is taken at every epsilon, since an
adversary may mix directions over coordinates and rounds. Coordinates and rounds compose
by convolution.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from types import ModuleType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from colonnade.core.chance import Source, uniform
from colonnade.core.receipt import DpEvent
from colonnade.errors import ConfigError
from colonnade.first_use import stats
from colonnade.privacy.gaussian import rows_of

KIND = "binomial"


@dataclass(frozen=True, slots=True)
class Binomial:
    """k = `levels` levels on [low, high], and N = `trials` coin flips of chance p on
    top of each."""

    levels: int
    trials: int
    p: float = 0.5
    low: float = -1.0
    high: float = 1.0

    def __post_init__(self) -> None:
        for name, value, least in (
            ("levels", self.levels, 2),
            ("trials", self.trials, 0),
        ):
            if not isinstance(value, int) or isinstance(value, bool) or value < least:
                raise ConfigError(
                    f"binomial.{name} must be a whole number, {least} or more; found"
                    f" {value!r}."
                )
        if not isinstance(self.p, float) or not 0 < self.p < 1:
            raise ConfigError(
                f"binomial.p must be a number above 0 and below 1; found {self.p!r}."
            )
        numbers = all(
            isinstance(v, (int, float)) and math.isfinite(v)
            for v in (self.low, self.high)
        )
        if not numbers or not self.low < self.high:
            raise ConfigError(
                f"binomial.low must be below binomial.high; found {self.low!r} and"
                f" {self.high!r}."
            )

    @property
    def step(self) -> float:
        return (self.high - self.low) / (self.levels - 1)

    @property
    def grid(self) -> tuple[float, float, int]:
        """(low, step, count): what is released lies on low + i * step, i in 0 ..
        count-1, so a codec can pack it."""
        return (
            self.low - self.step * self.trials * self.p,
            self.step,
            self.levels + self.trials,
        )

    def apply(self, tensor: Tensor, source: Source) -> tuple[Tensor, DpEvent]:
        low, step, _ = self.grid
        exact = torch.nan_to_num(tensor.detach().double(), nan=self.low)
        level = ((exact.clamp(self.low, self.high) - self.low) / self.step).round()
        drawn = uniform(tensor.shape, source)
        noise = torch.searchsorted(
            _cumulative(self.trials, self.p).to(drawn.device), drawn
        )
        released = (low + step * (level + noise.to(tensor.device))).to(tensor.dtype)
        parameters = {"levels": self.levels, "trials": self.trials, "p": self.p}
        coordinates = rows_of(tensor).shape[1]
        return released, DpEvent(
            KIND,
            {
                k: float(v)
                for k, v in {**parameters, "coordinates": coordinates}.items()
            },
        )


@lru_cache(maxsize=64)
def _cumulative(trials: int, p: float) -> Tensor:
    """P(Bin(N, p) <= i) for i < N. The number of these below a uniform number is
    distributed as Bin(N, p)."""
    i = torch.arange(trials + 1, dtype=torch.float64)
    ways = math.lgamma(trials + 1) - torch.lgamma(i + 1) - torch.lgamma(trials - i + 1)
    chance = (ways + i * math.log(p) + (trials - i) * math.log1p(-p)).exp()
    return (chance.cumsum(0) / chance.sum())[:-1].contiguous()


GRID = 4000
"""Points of the loss grid on either side of 0. Connecting the dots errs only upwards,
by the square of the spacing."""
PROVEN = 1.0
"""cpSGD's first term is the classical Gaussian bound, which holds only up to epsilon =
1. Above it the theorem as printed can fall below the exact value, so it is shown and
not relied upon."""


def cpsgd(levels: int, trials: int, p: float, coordinates: int, delta: float) -> float:
    """Epsilon by Theorem 1 of cpSGD (arXiv:1805.10559) where its condition holds, else
    infinity. n releases of P coordinates are one of nP, with sensitivities Delta_1 =
    nP(k-1), Delta_2 = sqrt(nP)(k-1), Delta_inf = k-1."""
    p = min(p, 1 - p)  # mirrored noise costs the same
    q = 1 - p
    d = coordinates
    log = math.log
    variance = trials * p * q
    most = float(levels - 1)
    if variance < max(23 * log(10 * d / delta), 2 * most):
        return math.inf
    b_p = 2 / 3 * (p**2 + q**2) + (1 - 2 * p)
    c_p = math.sqrt(2) * (3 * p**3 + 3 * q**3 + 2 * p**2 + 2 * q**2)
    d_p = 4 / 3 * (p**2 + q**2)
    l1 = d * most
    l2 = math.sqrt(d) * most
    return (
        l2 * math.sqrt(2 * log(1.25 / delta)) / math.sqrt(variance)
        + (l2 * c_p * math.sqrt(log(10 / delta)) + l1 * b_p)
        / (variance * (1 - delta / 10))
        + (
            2 / 3 * most * log(1.25 / delta)
            + most * d_p * log(20 * d / delta) * log(10 / delta)
        )
        / variance
    )


def curve(
    shift: int, trials: int, p: float, epsilons: NDArray[np.float64]
) -> NDArray[np.float64]:
    """delta(epsilon) of one coordinate moved by `shift` levels: the larger of both
    directions, exactly."""
    x = np.arange(trials + shift + 1)
    unmoved = stats.binom.logpmf(x, trials, p)
    moved = stats.binom.logpmf(x - shift, trials, p)
    return np.maximum(
        _hockey_stick(unmoved, moved, epsilons), _hockey_stick(moved, unmoved, epsilons)
    )


def _hockey_stick(
    upper: NDArray[np.float64],
    lower: NDArray[np.float64],
    epsilons: NDArray[np.float64],
) -> NDArray[np.float64]:
    """sum over x of max(0, P(x) - e^eps Q(x)), from the log masses."""
    possible = np.isfinite(upper)
    upper = upper[possible]
    lower = lower[possible]
    loss = upper - lower  # infinite where Q has no mass
    order = np.argsort(-loss, kind="stable")
    above = np.concatenate([[0.0], np.cumsum(np.exp(upper[order]))])
    below = np.concatenate([[0.0], np.cumsum(np.exp(lower[order]))])
    count = np.searchsorted(-loss[order], -epsilons, side="left")
    return np.asarray(np.maximum(above[count] - np.exp(epsilons) * below[count], 0.0))


@lru_cache(maxsize=256)
def distribution(
    levels: int,
    trials: int,
    p: float,
    coordinates: int,
    spacing: float,
    mass: float,
    pld: ModuleType,
) -> Any:
    """dp-accounting's privacy-loss distribution of all coordinates on a grid of losses,
    never below the truth. Losses that one coordinate exceeds with a chance of at most
    `mass` count as certain. `pld` is the library's part."""
    ends = math.ceil(reach(levels, trials, p, mass) / spacing)
    points = np.arange(-ends, ends + 1)
    deltas = np.minimum.accumulate(
        curve(levels - 1, trials, p, (points * spacing).astype(np.float64))
    )
    pmf = pld.pld_pmf.create_pmf_pessimistic_connect_dots(spacing, points, deltas)
    return pld.privacy_loss_distribution.PrivacyLossDistribution(
        pmf.self_compose(coordinates, mass)
    )


def certain(levels: int, trials: int, p: float) -> float:
    """The chance that one coordinate's outcome is impossible for the other row, and so
    gives it away."""
    shift = levels - 1
    return float(
        max(
            stats.binom.cdf(shift - 1, trials, p),
            stats.binom.sf(trials - shift, trials, p),
        )
    )


@lru_cache(maxsize=256)
def reach(levels: int, trials: int, p: float, mass: float) -> float:
    """A loss above 0 that one coordinate exceeds with a chance of at most `mass`;
    certain outcomes aside."""
    x = np.arange(trials + 1)
    largest = 0.0
    log_mass = stats.binom.logpmf(x, trials, p)
    for shift in (levels - 1, 1 - levels):
        loss = log_mass - stats.binom.logpmf(x - shift, trials, p)
        unsure = np.isfinite(loss)
        loss = loss[unsure]
        chance = np.exp(log_mass[unsure])
        order = np.argsort(-loss, kind="stable")
        likely = loss[order][np.cumsum(chance[order]) > mass]
        largest = max(largest, float(likely[0]) if len(likely) else 0.0)
    return largest
