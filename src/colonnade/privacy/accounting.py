"""Epsilon of what mechanisms did, by dp-accounting. There is one function per
adversary; each names the neighbouring relation.

    replace-one      the values of one row change arbitrarily; a clipped row moves by up to 2C, a level by up to k-1
    add-or-remove    one row is there or not (as if clipped to nothing); a clipped row moves by up to C. Binomial noise
                     has no row that is nothing, so it is charged as under replace-one.

An unknown event, and a non-private one, costs infinity. What is encrypted or under a
mask costs nothing, nor does a public key: whoever can read it accounts for it when it
does.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from colonnade.core.cipher import NOT_ENCRYPTED
from colonnade.core.receipt import PUBLIC, DpEvent
from colonnade.privacy import binomial, gaussian, randomized_response

Key = tuple[str, tuple[tuple[str, float], ...]]
"""A DpEvent that can be looked up: its kind and its sorted parameters."""


def key_of(event: DpEvent) -> Key:
    return event.kind, tuple(sorted(event.parameters.items()))


def event_of(key: Key) -> DpEvent:
    return DpEvent(key[0], dict(key[1]))


@lru_cache(maxsize=1)
def dp_accounting() -> Any:
    """The accounting library with the parts that are used here, imported when needed."""
    for part in (
        "pld.pld_pmf",
        "pld.pld_privacy_accountant",
        "pld.privacy_loss_distribution",
        "rdp",
    ):
        importlib.import_module(f"dp_accounting.{part}")
    return importlib.import_module("dp_accounting")


def moves(relation: str) -> float:
    """By how many clipping norms C a row can move."""
    return 2.0 if relation == "replace-one" else 1.0


def is_private(event: DpEvent) -> bool:
    """Whether some finite epsilon could come of it."""
    if event.kind == gaussian.KIND:
        return event.parameters.get("noise_multiplier", 0.0) > 0
    return event.kind in (binomial.KIND, randomized_response.KIND) or costs_nothing(
        event
    )


def costs_nothing(event: DpEvent) -> bool:
    """Whether it is a public key, or readable only by a key's holder or a mask's maker;
    not so "plain" encryption."""
    hidden = event.kind.startswith(
        ("encrypted (", "blinded (")
    ) and not event.kind.endswith(f"({NOT_ENCRYPTED})")
    return event == PUBLIC or hidden


def known_batch(spent: Mapping[Key, int], relation: str, delta: float) -> float:
    """Epsilon of one row against whoever knows when it was released: exact composition
    over its appearances."""
    paid = tuple(
        sorted(
            (key, n)
            for key, n in spent.items()
            if n and not costs_nothing(event_of(key))
        )
    )
    return _known_batch(paid, moves(relation), delta)


@lru_cache(maxsize=4096)
def _known_batch(
    spent: tuple[tuple[Key, int], ...], norms: float, delta: float
) -> float:
    if not spent:
        return 0.0
    if not all(
        is_private(event_of(key)) and key[0] != randomized_response.KIND
        for key, _ in spent
    ):
        return math.inf
    gaussians = [
        (dict(key[1])["noise_multiplier"], n)
        for key, n in spent
        if key[0] == gaussian.KIND
    ]
    mu = norms * math.sqrt(sum(n / sigma**2 for sigma, n in gaussians))
    binomials = [(key, n) for key, n in spent if key[0] == binomial.KIND]
    if not binomials:
        return gaussian_epsilon(mu, delta)
    exact = binomial_pld(tuple(binomials), mu, delta)
    if len(binomials) == 1 and not mu:
        theorem = binomial_cpsgd(*binomials[0], delta)
        return min(exact, theorem) if theorem <= binomial.PROVEN else exact
    return exact


def gaussian_epsilon(mu: float, delta: float) -> float:
    """The epsilon of a Gaussian whose mean moves by mu standard deviations."""
    return float(dp_accounting().get_epsilon_gaussian(1 / mu, delta)) if mu else 0.0


def binomial_pld(spent: Sequence[tuple[Key, int]], mu: float, delta: float) -> float:
    """The epsilon of binomial noise, exact up to a discretization that errs upwards;
    `mu` is the Gaussians' share."""
    d = dp_accounting()
    parts = [
        (*_sizes(key), int(dict(key[1])["coordinates"]) * times) for key, times in spent
    ]
    mass = 1e-5 * delta / sum(part[3] for part in parts)
    if (
        1 - math.prod((1 - binomial.certain(*part[:3])) ** part[3] for part in parts)
        >= delta
    ):
        return math.inf
    reaches = [binomial.reach(*part[:3], mass) for part in parts]
    spacing = max(reaches) / binomial.GRID
    composed: Any = d.pld.privacy_loss_distribution.identity(spacing)
    for part in parts:
        composed = composed.compose(binomial.distribution(*part, spacing, mass, d.pld))
    if mu:
        gauss = d.pld.privacy_loss_distribution.from_gaussian_mechanism
        composed = composed.compose(
            gauss(1 / mu, value_discretization_interval=spacing)
        )
    return float(composed.get_epsilon_for_delta(delta))


def _sizes(key: Key) -> tuple[int, int, float]:
    parameters = dict(key[1])
    return int(parameters["levels"]), int(parameters["trials"]), parameters["p"]


def binomial_cpsgd(key: Key, times: int, delta: float) -> float:
    """The epsilon of binomial noise by cpSGD's theorem, over all releases at once."""
    return binomial.cpsgd(*_sizes(key), int(dict(key[1])["coordinates"]) * times, delta)


@lru_cache(maxsize=256)
def hidden_rdp(sigma: float, rows: int, batch: int, rounds: int, delta: float) -> float:
    """The epsilon of secret batches drawn without replacement, as in VIM's Theorem 1,
    by Renyi DP under replace-one; `sigma` is in units of the sensitivity, the paper's
    C, or 2C as replace-one has it. The library's bound is tighter than the theorem's
    Eq. 11, which is Wang et al.'s general one (`theorem_1`)."""
    d = dp_accounting()
    accountant = d.rdp.RdpAccountant(
        neighboring_relation=d.NeighboringRelation.REPLACE_ONE
    )
    event = d.SampledWithoutReplacementDpEvent(
        rows, min(batch, rows), d.GaussianDpEvent(sigma)
    )
    return float(accountant.compose(event, rounds).get_epsilon(delta))


def theorem_1(sigma: float, rows: int, batch: int, rounds: int, delta: float) -> float:
    """VIM's Eq. 11 as printed, over the orders 2 to 256, with its conversion (Theorem
    2)."""
    share = batch / rows
    log = math.log
    best = math.inf
    for order in range(2, 257):
        second = order * (order - 1) / 2
        terms = [
            0.0,
            2 * log(share)
            + log(second)
            + log(min(4 * math.expm1(1 / sigma**2), 2 * math.exp(1 / sigma**2))),
        ]
        for j in range(3, order + 1):
            ways = (
                math.lgamma(order + 1) - math.lgamma(j + 1) - math.lgamma(order - j + 1)
            )
            terms.append(j * log(share) + ways + (j - 1) * j / (2 * sigma**2) + log(2))
        most = max(terms)
        per_round = (most + log(sum(math.exp(term - most) for term in terms))) / (
            order - 1
        )
        best = min(
            best,
            rounds * per_round
            + log((order - 1) / order)
            - (log(delta) + log(order)) / (order - 1),
        )
    return best


@lru_cache(maxsize=256)
def hidden_poisson_rdp(
    sigma: float, rows: int, batch: int, rounds: int, delta: float
) -> float:
    """Secret Poisson-sampled batches under add-or-remove, by Renyi DP: as VIM's own
    epsilons were computed (Opacus)."""
    d = dp_accounting()
    accountant = d.rdp.RdpAccountant()
    event = d.PoissonSampledDpEvent(min(batch / rows, 1.0), d.GaussianDpEvent(sigma))
    return float(accountant.compose(event, rounds).get_epsilon(delta))


@lru_cache(maxsize=256)
def hidden_pld(sigma: float, rows: int, batch: int, rounds: int, delta: float) -> float:
    """Secret Poisson-sampled batches under add-or-remove, by privacy-loss
    distributions."""
    d = dp_accounting()
    accountant = d.pld.pld_privacy_accountant.PLDAccountant()
    event = d.PoissonSampledDpEvent(min(batch / rows, 1.0), d.GaussianDpEvent(sigma))
    return float(accountant.compose(event, rounds).get_epsilon(delta))


def poisson_epsilon(variation: float, share: float, rounds: int, delta: float) -> float:
    """The epsilon, under add-or-remove, of Gaussian noise on Poisson-sampled batches
    that lets a row be told from none with this total variation over all rounds. Sigma
    is found by halving, by the distributions of `hidden_pld`."""
    if variation <= 0:
        return 0.0
    low = 0.2
    high = 500.0
    epsilon = 0.0  # sigma: too little noise for this variation, and too much
    for _ in range(12):
        sigma = math.sqrt(low * high)
        composed = (
            dp_accounting().pld.privacy_loss_distribution.from_gaussian_mechanism(
                sigma,
                value_discretization_interval=max(1e-4, 0.1 / rounds),
                sampling_prob=share,
            )
        )
        composed = composed.self_compose(rounds)
        reached = float(composed.get_delta_for_epsilon(0.0))
        low, high = (sigma, high) if reached > variation else (low, sigma)
        epsilon = (
            float(composed.get_epsilon_for_delta(delta))
            if reached <= variation
            else epsilon
        )
    return epsilon
