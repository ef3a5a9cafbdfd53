"""What an aggregation server does with the weights that come back: FedAvg, FedAdam,
FedYogi, FedDemonAdam.

    t    = weighted mean over label owners of (their weights - W)          `mean`
    m    = b1 m + (1 - b1) t                                               FedDemonAdam: m = b_r m + t
    v    = b2 v + (1 - b2) x^2                                             FedYogi: v = v - (1 - b2) x^2 sign(v - x^2)
    W    = W + rate sqrt(1 - b2^r) / (1 - b1^r)  m / (sqrt(v) + tau)       FedAvg: W = W + rate t

for the rounds r = 1, 2, ...; m and v start at 0 (Mugunthan, Goyal, Kagal: Multi-VFL,
Algorithm 1, ServerAggregation). The listing puts the momentum into v (x = m), Reddi et
al. the mean change (x = t): `second_moment` says which. In a FedDemonAdam of R rounds
b_r = b1 (1 - r/R) / ((1 - b1) + b1 (1 - r/R)) takes b1's place, in the last line too.
Chen et al.'s b1 there is the first one; the listing's line 2 read literally has the
last round's b_r: `demon` says which.

Each is a few settings and two pure functions: no argument is changed, what has to be
remembered is the returned state, a flat dict of tensors that a checkpoint can hold.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Literal, Protocol

import torch
from torch import Tensor

from colonnade.errors import ConfigError
from colonnade.settings.schema import Fraction, Positive, Table, Whole

Weights = Mapping[str, Tensor]
State = dict[str, Tensor]


class ServerOptimizer(Protocol):
    """Weights, and what label owners would change in them on average, to new weights."""

    def init(self, weights: Weights) -> State: ...

    def update(
        self, state: State, weights: Weights, delta: Weights, r: int
    ) -> tuple[dict[str, Tensor], State]:
        """The new weights and the new state after round 1, 2, ..."""


class FedAvg(Table):
    """The mean itself at a rate of 1; it remembers nothing."""

    rate: Positive = 1.0

    def init(self, weights: Weights) -> State:  # noqa: ARG002
        return {}

    def update(
        self,
        state: State,  # noqa: ARG002
        weights: Weights,
        delta: Weights,
        r: int,
    ) -> tuple[dict[str, Tensor], State]:
        _check(weights, delta, r)
        return {
            name: value + self.rate * delta[name] for name, value in weights.items()
        }, {}


class FedAdam(Table):
    """The defaults are the paper's Table 2."""

    rate: Positive = 1e-3
    beta1: Fraction = 0.9
    beta2: Fraction = 0.99
    tau: Positive = 1e-3
    second_moment: Literal["momentum", "delta"] = "momentum"

    def init(self, weights: Weights) -> State:
        return {
            f"{moment}.{name}": torch.zeros_like(value)
            for moment in "mv"
            for name, value in weights.items()
        }

    def momentum(self, r: int) -> tuple[float, float]:  # noqa: ARG002
        """What is kept of m in a round, and what share of the change is added."""
        return self.beta1, 1 - self.beta1

    def second(self, v: Tensor, square: Tensor) -> Tensor:
        """The new second moment."""
        return self.beta2 * v + (1 - self.beta2) * square

    def update(
        self, state: State, weights: Weights, delta: Weights, r: int
    ) -> tuple[dict[str, Tensor], State]:
        _check(weights, delta, r)
        beta1, share = self.momentum(r)
        rate = self.rate * math.sqrt(1 - self.beta2**r) / (1 - beta1**r)
        moved: dict[str, Tensor] = {}
        kept: State = {}
        for name, value in weights.items():
            m = beta1 * state[f"m.{name}"] + share * delta[name]
            v = self.second(
                state[f"v.{name}"],
                (m if self.second_moment == "momentum" else delta[name]).square(),
            )
            moved[name] = value + rate * m / (v.sqrt() + self.tau)
            kept |= {f"m.{name}": m, f"v.{name}": v}
        return moved, kept


class FedYogi(FedAdam):
    """FedAdam with a second moment that shrinks slowly: by at most (1 - b2) x^2 a
    round, however large it is."""

    def second(self, v: Tensor, square: Tensor) -> Tensor:
        return v - (1 - self.beta2) * square * torch.sign(v - square)


class FedDemonAdam(FedAdam):
    """FedAdam whose momentum decays to none at the last of `rounds` rounds, and stays
    at none if there are more."""

    rounds: Whole = 500
    demon: Literal["original", "literal"] = "original"

    def beta(self, r: int) -> float:
        """The momentum of a round: b / (1 - b) is (1 - r/R) times b1 / (1 - b1), or
        times that of the round before."""
        left = max(0.0, 1 - r / self.rounds)
        if self.demon == "literal":
            left = math.prod(max(0.0, 1 - s / self.rounds) for s in range(1, r + 1))
        return self.beta1 * left / ((1 - self.beta1) + self.beta1 * left)

    def momentum(self, r: int) -> tuple[float, float]:
        return self.beta(r), 1.0


SERVER_OPTIMIZERS: dict[str, type[FedAvg] | type[FedAdam]] = {
    "fedavg": FedAvg,
    "fedadam": FedAdam,
    "fedyogi": FedYogi,
    "feddemonadam": FedDemonAdam,
}


def mean(updates: Sequence[Weights], weights: Sequence[float]) -> dict[str, Tensor]:
    """The updates' mean, weighted by numbers such as label owners' rows; equal ones
    make it the paper's plain mean."""
    if not updates or len(updates) != len(weights):
        raise ConfigError(
            f"A mean needs one weight per update, and an update; found {len(weights)}"
            f" and {len(updates)}."
        )
    total = math.fsum(weights)
    if (
        not all(math.isfinite(weight) and weight >= 0 for weight in weights)
        or total <= 0
    ):
        raise ConfigError(
            "A mean's weights must be numbers, 0 or more and not all 0; found"
            f" {list(weights)}."
        )
    names = list(updates[0])
    for number, update in enumerate(updates):
        if update.keys() != updates[0].keys():
            odd = ", ".join(sorted(update.keys() ^ updates[0].keys()))
            raise ConfigError(
                f"Updates of one model name the same tensors; update {number} differs"
                f" in {odd}."
            )
        for name in names:
            _check_tensor(name, update[name], updates[0][name])
    shares = [weight / total for weight in weights]
    sums = [updates[0][name] * shares[0] for name in names]
    for share, update in zip(shares[1:], updates[1:], strict=True):
        torch._foreach_add_(sums, [update[name] for name in names], alpha=share)
    return dict(zip(names, sums, strict=True))


def _check(weights: Weights, delta: Weights, r: int) -> None:
    if r < 1:
        raise ConfigError(f"Rounds of a server optimizer count from 1; found {r}.")
    if weights.keys() != delta.keys():
        odd = ", ".join(sorted(weights.keys() ^ delta.keys()))
        raise ConfigError(
            "A change of weights names the same tensors as the weights; they differ in"
            f" {odd}."
        )
    for name, value in weights.items():
        _check_tensor(name, delta[name], value)


def _check_tensor(name: str, change: Tensor, like: Tensor) -> None:
    if change.shape != like.shape:
        raise ConfigError(
            f"{name} has the shape {tuple(like.shape)}; found a change of"
            f" {tuple(change.shape)}."
        )
    if not change.is_floating_point():
        raise ConfigError(
            f"{name} holds {change.dtype}, which has no mean. Leave counters out of"
            " what is averaged."
        )
