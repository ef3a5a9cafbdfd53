"""The steps of an aggregation server: FedAvg, FedAdam, FedYogi and FedDemonAdam.

    t = weighted mean over label owners of (their weights - W)       `mean`

                    m after round r        v after round r
    FedAdam         b1 m + (1 - b1) t      b2 v + (1 - b2) x^2
    FedYogi         b1 m + (1 - b1) t      v - (1 - b2) x^2 sign(v - x^2)
    FedDemonAdam    b_r m + t              b2 v + (1 - b2) x^2

    W = W + rate sqrt(1 - b2^r) / (1 - b1^r)  m / (sqrt(v) + tau)    all three
    W = W + rate t                                                   FedAvg

for the rounds r = 1, 2, ...; m and v start at 0 (Mugunthan, Goyal, Kagal: Multi-VFL,
Algorithm 1, ServerAggregation). In a FedDemonAdam of R rounds
b_r = b1 (1 - r/R) / ((1 - b1) + b1 (1 - r/R)) takes the place of b1, in the last line
too.

Two places can be read in two ways, and each has a setting:

    second_moment    Multi-VFL's listing puts the momentum into v ("momentum": x = m),
                     Reddi et al. the mean change ("delta": x = t).
    demon            The b1 in b_r is the first one in Chen et al. ("original"). Line 2
                     of the listing, read literally, has the last round's b_r
                     ("literal").

Each optimizer is a few settings and two pure functions. No argument is changed. What
has to be remembered is returned as the state, a flat dict of tensors that a checkpoint
can hold.
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
    """A rule that makes new weights from the mean change that label owners propose."""

    def init(self, weights: Weights) -> State:
        """The state before the first round."""
        ...

    def update(
        self, state: State, weights: Weights, delta: Weights, r: int
    ) -> tuple[dict[str, Tensor], State]:
        """The new weights and the new state after a round.

        Args:
            state: What `init` or the round before returned.
            weights: The weights before the round.
            delta: What label owners would change in them, on average.
            r: The round's number, from 1.
        """
        ...


class FedAvg(Table):
    """Add the mean change to the weights, times a rate. Nothing is remembered."""

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
        _check_change(weights, delta, r)
        moved = {
            name: weight + self.rate * delta[name] for name, weight in weights.items()
        }
        return moved, {}


class FedAdam(Table):
    """Adam on the server, with the mean change in the place of a negative gradient. The
    defaults are those of the paper's Table 2."""

    rate: Positive = 1e-3
    beta1: Fraction = 0.9
    beta2: Fraction = 0.99
    tau: Positive = 1e-3
    second_moment: Literal["momentum", "delta"] = "momentum"

    def init(self, weights: Weights) -> State:
        first = {f"m.{name}": torch.zeros_like(w) for name, w in weights.items()}
        second = {f"v.{name}": torch.zeros_like(w) for name, w in weights.items()}
        return first | second

    def momentum(self, r: int) -> float:  # noqa: ARG002
        """The momentum of a round: b1, in every round."""
        return self.beta1

    def new_first(self, m: Tensor, delta: Tensor, r: int) -> Tensor:
        """The first moment after a round."""
        momentum = self.momentum(r)
        return momentum * m + (1 - momentum) * delta

    def new_second(self, v: Tensor, square: Tensor) -> Tensor:
        """The second moment after a round, from x^2."""
        return self.beta2 * v + (1 - self.beta2) * square

    def update(
        self, state: State, weights: Weights, delta: Weights, r: int
    ) -> tuple[dict[str, Tensor], State]:
        _check_change(weights, delta, r)
        # both moments start at 0, and these corrections undo that bias
        correction = math.sqrt(1 - self.beta2**r) / (1 - self.momentum(r) ** r)
        rate = self.rate * correction
        moved: dict[str, Tensor] = {}
        new_state: State = {}
        for name, weight in weights.items():
            m = self.new_first(state[f"m.{name}"], delta[name], r)
            x = m if self.second_moment == "momentum" else delta[name]
            v = self.new_second(state[f"v.{name}"], x.square())
            moved[name] = weight + rate * m / (v.sqrt() + self.tau)
            new_state[f"m.{name}"] = m
            new_state[f"v.{name}"] = v
        return moved, new_state


class FedYogi(FedAdam):
    """FedAdam whose second moment changes slowly: by at most (1 - b2) x^2 a round,
    however large it is."""

    def new_second(self, v: Tensor, square: Tensor) -> Tensor:
        return v - (1 - self.beta2) * square * torch.sign(v - square)


class FedDemonAdam(FedAdam):
    """FedAdam whose momentum decays to 0 at the last of `rounds` rounds. If there are
    more rounds, the momentum stays at 0."""

    rounds: Whole = 500
    demon: Literal["original", "literal"] = "original"

    def momentum(self, r: int) -> float:
        """The momentum b_r of a round.

        Its odds b_r / (1 - b_r) are (1 - r/R) times the odds of b1 ("original"), or
        times the odds of the round before ("literal"), so that in round r all factors
        so far are multiplied.
        """
        if self.demon == "literal":
            factor = math.prod(self._share_left(number) for number in range(1, r + 1))
        else:
            factor = self._share_left(r)
        return self.beta1 * factor / ((1 - self.beta1) + self.beta1 * factor)

    def new_first(self, m: Tensor, delta: Tensor, r: int) -> Tensor:
        """The first moment after a round, to which the change is added whole."""
        return self.momentum(r) * m + delta

    def _share_left(self, r: int) -> float:
        """The share of all rounds that is left after round r, 1 - r/R."""
        return max(0.0, 1 - r / self.rounds)


SERVER_OPTIMIZERS: dict[str, type[FedAvg] | type[FedAdam]] = {
    "fedavg": FedAvg,
    "fedadam": FedAdam,
    "fedyogi": FedYogi,
    "feddemonadam": FedDemonAdam,
}


def mean(updates: Sequence[Weights], weights: Sequence[float]) -> dict[str, Tensor]:
    """The weighted mean of updates of one model.

    Args:
        updates: The tensors that each label owner sent, by name.
        weights: How much each update counts, such as its owner's number of rows. Equal
            numbers make this the paper's plain mean.
    """
    _check_mean_weights(weights, len(updates))
    first = updates[0]
    for number, update in enumerate(updates):
        _check_same_names(first, update, f"update {number}")
        for name, tensor in update.items():
            _check_tensor(name, tensor, first[name])
    total = math.fsum(weights)
    shares = [weight / total for weight in weights]
    names = list(first)
    sums = [first[name] * shares[0] for name in names]
    for share, update in zip(shares[1:], updates[1:], strict=True):
        torch._foreach_add_(sums, [update[name] for name in names], alpha=share)
    return dict(zip(names, sums, strict=True))


def _check_mean_weights(weights: Sequence[float], updates: int) -> None:
    """Refuse weights that make no mean of this many updates."""
    if not updates or updates != len(weights):
        raise ConfigError(
            "A mean needs at least one update, and one weight for each; found"
            f" {len(weights)} weights for {updates} updates."
        )
    are_possible = all(math.isfinite(weight) and weight >= 0 for weight in weights)
    if not are_possible or math.fsum(weights) <= 0:
        raise ConfigError(
            "A mean's weights must be numbers, 0 or more and not all 0; found"
            f" {list(weights)}."
        )


def _check_change(weights: Weights, delta: Weights, r: int) -> None:
    """Refuse a change that does not fit the weights, and a round before the first."""
    if r < 1:
        raise ConfigError(f"Rounds of a server optimizer count from 1; found {r}.")
    _check_same_names(weights, delta, "the change of weights")
    for name, weight in weights.items():
        _check_tensor(name, delta[name], weight)


def _check_same_names(expected: Weights, found: Weights, whose: str) -> None:
    """Refuse tensors that are not those of the same model."""
    odd = expected.keys() ^ found.keys()
    if odd:
        raise ConfigError(
            "Weights and updates of one model must name the same tensors; for"
            f" {whose} the names differ in {', '.join(sorted(odd))}."
        )


def _check_tensor(name: str, change: Tensor, like: Tensor) -> None:
    """Refuse a tensor that cannot be added to one of another shape, or has no mean."""
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
