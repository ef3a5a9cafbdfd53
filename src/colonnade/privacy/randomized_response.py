"""k-ary randomized response: labels with pure epsilon label-DP.

A label stays with probability e^eps / (e^eps + k - 1) and becomes each other class with
1 / (e^eps + k - 1). It is drawn once, before training; whatever is computed from the
drawn labels costs nothing more, however often it is sent.

Label-DP in two stages gives the second a prior, so that more labels stay at the same
epsilon.

Ghazi, Golowich, Kumar, Manurangsi, Zhang, Deep learning with label differential
privacy, NeurIPS 2021 (arXiv:2102.06062), LP-2ST, with the first stage's model at the
label owner, which holds columns of its own:

    1.  a random half of the training rows is drawn by randomized response over all K classes
    2.  a model of these labels and the owner's own columns gives every other row a prior p over classes; a fifth of the
        drawn labels is kept back to tell how far to trust it
    3.  these rows are drawn by RRWithPrior (Algorithm 2): among the k likeliest classes, where k >= 2 makes

            e^eps / (e^eps + k - 1)  sum of the k largest p

        largest, a label stays with e^eps / (e^eps + k - 1) and becomes each other of them with 1 / (e^eps + k - 1);
        one that is not among them becomes each of them alike

With two classes this is randomized response. Every label is drawn once, and only drawn
labels enter a prior: so it is epsilon-DP whatever the priors are.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from colonnade.core.chance import Source, uniform
from colonnade.core.receipt import DpEvent
from colonnade.errors import ConfigError

KIND = "randomized-response"


@dataclass(frozen=True, slots=True)
class RandomizedResponse:
    """For class numbers 0 .. classes-1; the label owner's federation fills `classes`
    in."""

    epsilon: float
    classes: int = 2

    def __post_init__(self) -> None:
        number = isinstance(self.epsilon, (int, float)) and not isinstance(
            self.epsilon, bool
        )
        if not number or not 0 < self.epsilon <= 100:
            raise ConfigError(
                "randomized_response.epsilon must be above 0, at most 100; found"
                f" {self.epsilon!r}."
            )
        if not isinstance(self.classes, int) or self.classes < 2:
            raise ConfigError(
                "randomized_response.classes must be 2 or more; found"
                f" {self.classes!r}."
            )

    @property
    def keep(self) -> float:
        """The chance that a label stays."""
        return 1 / (1 + (self.classes - 1) * math.exp(-self.epsilon))

    def apply(self, tensor: Tensor, source: Source) -> tuple[Tensor, DpEvent]:
        stays = uniform(tensor.shape, source) < self.keep
        other = 1 + (uniform(tensor.shape, source) * (self.classes - 1)).long()
        moved = (tensor + other.to(tensor.device)) % self.classes
        event = DpEvent(
            KIND, {"epsilon": float(self.epsilon), "classes": float(self.classes)}
        )
        return torch.where(stays.to(tensor.device), tensor, moved), event


Learn = Callable[[Tensor, Tensor, Tensor], Tensor]
"""Rows with drawn labels, these labels, and other rows, all by number -> per other row
a probability for each class."""
LEAST = 2
"""The fewest classes that a label is drawn among. The paper's Algorithm 2 also takes
one, and a draw then says nothing about the row: on bank marketing, where nine of ten
answers are no, hardly a yes was left."""
BELIEFS = tuple(n / 10 for n in range(11))
"""The shares of a learned prior that are tried; the likeliest is taken."""


@dataclass(frozen=True, slots=True)
class TwoStage:
    """For class numbers 0 .. classes-1; the label owner's federation fills `classes`
    in."""

    epsilon: float
    classes: int = 2

    def __post_init__(self) -> None:
        RandomizedResponse(self.epsilon, self.classes)  # refuses what makes no sense

    def apply(self, tensor: Tensor, source: Source) -> tuple[Tensor, DpEvent]:
        """Draw without columns: the prior is how often each class was drawn."""
        return self.draw(
            tensor,
            source,
            lambda _, drawn, others: self.frequencies(drawn).expand(len(others), -1),
        )

    def draw(
        self, labels: Tensor, source: Source, learn: Learn
    ) -> tuple[Tensor, DpEvent]:
        """Draw all labels, in both stages."""
        order = uniform((len(labels),), source).argsort().to(labels.device)
        first = order[: len(order) // 2]
        second = order[len(order) // 2 :]
        drawn = labels.clone()
        drawn[first], _ = RandomizedResponse(self.epsilon, self.classes).apply(
            labels[first], source
        )
        if len(first) and len(second) and self.classes > LEAST:
            split = len(first) - len(first) // 5
            fitted = first[:split]
            checked = first[split:]
            prior = self.unmixed(
                learn(fitted, drawn[fitted], torch.cat([checked, second])).to(
                    labels.device
                )
            )
            share = self.believed(prior[: len(checked)], drawn[checked])
            drawn[second] = self.with_prior(
                labels[second], self.mixed(prior[len(checked) :], share), source
            )
        elif len(second):
            drawn[second], _ = RandomizedResponse(self.epsilon, self.classes).apply(
                labels[second], source
            )
        parameters = {
            "epsilon": float(self.epsilon),
            "classes": float(self.classes),
            "stages": 2.0,
        }
        return drawn, DpEvent(KIND, parameters)

    def frequencies(self, drawn: Tensor) -> Tensor:
        return torch.bincount(drawn, minlength=self.classes).double()[None] / max(
            len(drawn), 1
        )

    def unmixed(self, noisy: Tensor) -> Tensor:
        """Probabilities of labels from those of drawn labels: what randomized response
        added is taken off."""
        keep = RandomizedResponse(self.epsilon, self.classes).keep
        other = (1 - keep) / (self.classes - 1)
        own = ((noisy.double() - other) / max(keep - other, 1e-9)).clamp_min(0.0)
        total = own.sum(1, keepdim=True)
        return torch.where(
            total > 0,
            own / total.clamp_min(1e-12),
            torch.full_like(own, 1 / self.classes),
        )

    def believed(self, prior: Tensor, drawn: Tensor) -> float:
        """The share of the learned prior, mixed with equal classes, that makes other
        drawn labels likeliest. A model of few and noisy labels is surer than it should
        be."""
        keep = RandomizedResponse(self.epsilon, self.classes).keep
        other = (1 - keep) / (self.classes - 1)
        best = -math.inf
        share = 0.0
        for tried in BELIEFS if len(drawn) else ():
            chance = other + (keep - other) * self.mixed(prior, tried).gather(
                1, drawn[:, None]
            )
            if (likely := float(chance.log().sum())) > best:
                best = likely
                share = tried
        return share

    def mixed(self, prior: Tensor, share: float) -> Tensor:
        return share * prior + (1 - share) / self.classes

    def with_prior(self, labels: Tensor, prior: Tensor, source: Source) -> Tensor:
        """RRWithPrior, row by row."""
        up_to = self.chances(labels, prior).cumsum(1)
        drawn = uniform((len(labels), 1), source).to(labels.device) * up_to[:, -1:]
        return (drawn > up_to).sum(1).clamp_max(self.classes - 1)

    def chances(self, labels: Tensor, prior: Tensor) -> Tensor:
        """For each row how likely each class is to be drawn; epsilon is a statement
        about these chances."""
        ranked, k = self.chosen(prior)
        places = torch.arange(self.classes, device=labels.device)
        among = places < k[:, None]  # of the ranked classes
        other = 1 / (math.exp(self.epsilon) + k.double() - 1)[:, None]
        own = ranked == labels[:, None]
        inside = torch.where(own, math.exp(self.epsilon) * other, other)
        own_among = (own & among).any(1, keepdim=True)
        by_rank = torch.where(
            among, torch.where(own_among, inside, 1 / k[:, None].double()), 0.0
        )
        return torch.zeros_like(by_rank).scatter(1, ranked, by_rank)

    def chosen(self, prior: Tensor) -> tuple[Tensor, Tensor]:
        """For each row its classes, likeliest first, and among how many of them its
        label is drawn."""
        sorted_, ranked = torch.sort(
            prior.double(), dim=1, descending=True, stable=True
        )
        sizes = torch.arange(
            1, self.classes + 1, device=prior.device, dtype=torch.float64
        )
        worth = sorted_.cumsum(1) / (1 + (sizes - 1) * math.exp(-self.epsilon))
        return ranked, worth[:, LEAST - 1 :].argmax(1) + LEAST
