"""Quantize, then add binomial noise to the levels: Noisy C-VFL (Section 3), after cpSGD (arXiv:1805.10559).

    i = round((clip(x, low, high) - low) / step)  in 0 .. k-1        step = (high - low) / (k - 1)
    sent: i + Bin(N, p)                           in 0 .. k-1+N      ceil(log2(k + N)) bits
    read: low + step * (sent - N p)

Rounding is to the nearest level: the paper's compression C(h) is not random, and for a fixed level the guarantee
would not change if it were (a mixture over levels is no further apart than the levels furthest apart). A row's values
may change anywhere in [low, high], so each of its P coordinates may move by k-1 levels.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from colonnade.core.chance import Source, uniform
from colonnade.core.receipt import DpEvent
from colonnade.errors import ConfigError
from colonnade.privacy.gaussian import rows_of

KIND = "binomial"


@dataclass(frozen=True, slots=True)
class Binomial:
    """k = `levels` levels on [low, high], and N = `trials` coin flips of chance p on top of each."""

    levels: int
    trials: int
    p: float = 0.5
    low: float = -1.0
    high: float = 1.0

    def __post_init__(self) -> None:
        for name, value, least in (("levels", self.levels, 2), ("trials", self.trials, 0)):
            if not isinstance(value, int) or isinstance(value, bool) or value < least:
                raise ConfigError(f"binomial.{name} must be a whole number, {least} or more; found {value!r}.")
        if not isinstance(self.p, float) or not 0 < self.p < 1:
            raise ConfigError(f"binomial.p must be a number above 0 and below 1; found {self.p!r}.")
        numbers = all(isinstance(v, (int, float)) and math.isfinite(v) for v in (self.low, self.high))
        if not numbers or not self.low < self.high:
            raise ConfigError(f"binomial.low must be below binomial.high; found {self.low!r} and {self.high!r}.")

    @property
    def step(self) -> float:
        return (self.high - self.low) / (self.levels - 1)

    @property
    def grid(self) -> tuple[float, float, int]:
        """(low, step, count): what is released lies on low + i * step, i in 0 .. count-1, so a codec can pack it."""
        return self.low - self.step * self.trials * self.p, self.step, self.levels + self.trials

    def apply(self, tensor: Tensor, source: Source) -> tuple[Tensor, DpEvent]:
        low, step, _ = self.grid
        exact = torch.nan_to_num(tensor.detach().double(), nan=self.low)
        level = ((exact.clamp(self.low, self.high) - self.low) / self.step).round()
        drawn = uniform(tensor.shape, source)
        noise = torch.searchsorted(_up_to(self.trials, self.p).to(drawn.device), drawn)
        released = (low + step * (level + noise.to(tensor.device))).to(tensor.dtype)
        parameters = {"levels": self.levels, "trials": self.trials, "p": self.p}
        coordinates = rows_of(tensor).shape[1]
        return released, DpEvent(KIND, {k: float(v) for k, v in {**parameters, "coordinates": coordinates}.items()})


@lru_cache(maxsize=64)
def _up_to(trials: int, p: float) -> Tensor:
    """P(Bin(N, p) <= i) for i < N: how many of them lie below a uniform number is such a Bin(N, p)."""
    i = torch.arange(trials + 1, dtype=torch.float64)
    ways = math.lgamma(trials + 1) - torch.lgamma(i + 1) - torch.lgamma(trials - i + 1)
    chance = (ways + i * math.log(p) + (trials - i) * math.log1p(-p)).exp()
    return (chance.cumsum(0) / chance.sum())[:-1].contiguous()
