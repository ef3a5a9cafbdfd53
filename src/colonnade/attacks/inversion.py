"""Model inversion: the columns of a row, from the embedding that its owner released.

DP-Compressed VFL is secure for Model Inversion Attacks (2022), Section 4.4, after
Mahendran and Vedaldi (2015, arXiv:1412.0035). The attacker has the embedding and, which
is a strong assumption, the victim's weights:

    E(x) = ||f(x) - h||^2 + lambda R(x)             Eq. 10 to 12; here over the spread of h, so that lambda has no unit
    mu  <- m mu - eta_t grad E(x);  x <- x + mu     Eq. 13, 14

R is the total variation for pictures, and half the squared length for columns of a
table (they are scaled to mean 0 and deviation 1, which any attacker would guess). One
eta cannot serve every model, so eta_t is Adam's: each entry's momentum is divided by
the running size of its gradient, and the rate falls to 0 as a half cosine. All rows are
solved at once, each by itself.

An attacker knows how a release was made, from its receipt (`Defence`): of entries that
top-k left out it knows only that they are no larger than those it sent; it clips its
own f(x) as the owner did; and it weighs the prior of tables by the variance of the
noise, as the most probable x has it. Binomial noise has the mean N p. A party that
takes part subtracts it, as the algorithm does; the paper's other attacker is not told
it, and takes it for part of the embedding.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from colonnade.attacks.received import Received

Prior = Callable[[Tensor], Tensor]
"""How implausible each row is."""


def total_variation(x: Tensor) -> Tensor:
    """The sum of absolute differences between neighbours, over the number of pixels, of
    each [..., height, width]."""
    down = x.diff(dim=-2).abs().flatten(1).sum(1)
    right = x.diff(dim=-1).abs().flatten(1).sum(1)
    return (down + right) / x[0].numel()


def half_square(x: Tensor) -> Tensor:
    """Half the squared length of each row, over the number of columns: minus the log of
    a standard normal."""
    return x.flatten(1).square().mean(1) / 2


@dataclass(frozen=True)
class Search:
    """How the attack searches for x."""

    prior: Prior
    weight: float  # lambda
    weight_in_noise: float | None = None  # None: from the variance
    steps: int = 600
    rate: float = 0.1
    momentum: float = 0.9
    # pixels have a range that everybody knows
    bounds: tuple[float, float] | None = None


PICTURE = Search(total_variation, 0.1, 0.3)
TABLE = Search(half_square, 0.01)
"""The weights that rebuilt most of MNIST strips, and of tables, among 0.001, 0.01, 0.1
and 0.3."""


@dataclass(frozen=True, eq=False)
class Defence:
    """What a receipt tells about how h was made from f(x)."""

    sent: Tensor | None = None  # which entries travelled at all
    least: Tensor | None = None  # per row the magnitude that no other entry exceeds
    clip: float | None = None
    variance: float = 0.0  # of the noise in one entry
    mean: float = 0.0  # of the noise, already subtracted
    # half a level of quantization: h may be so far from f(x) by rounding alone
    within: float = 0.0


def defence_of(received: Received) -> Defence:
    """The defence by the event and the codec in the receipt, and for binomial noise by
    the grid of the values."""
    event, parameters = received.event.kind, received.event.parameters
    sent, least = _kept(received.values) if received.codec == "top_k" else (None, None)
    if event == "gaussian":
        sigma = parameters["noise_multiplier"] * parameters.get("clip", 1.0)
        return Defence(sent, least, parameters.get("clip"), sigma**2)
    if event == "binomial":
        gaps = torch.unique(received.values.double()).diff()
        step = float(gaps[gaps > gaps.max() * 1e-4].min()) if len(gaps) else 0.0
        trials = parameters["trials"]
        p = parameters["p"]
        return Defence(
            sent, least, None, step**2 * trials * p * (1 - p), step * trials * p
        )
    return Defence(sent, least)


def _kept(values: Tensor) -> tuple[Tensor, Tensor]:
    """Which entries top-k sent, and per row a bound on the others; in a row with fewer
    than k these are zeros."""
    sent = values != 0
    k = sent.sum(1).max()
    least = torch.where(sent, values.abs(), torch.inf).amin(1, keepdim=True)
    return sent, torch.where(sent.sum(1, keepdim=True) < k, 0.0, least)


def invert(
    h: Tensor,
    model: nn.Module,
    shape: tuple[int, ...],
    search: Search,
    known: Defence | None = None,
) -> Tensor:
    """x [rows, *shape] whose embedding is h [rows, width], computed on the device of h."""
    known = known or Defence()
    f = white_box(model).to(h.device)
    h = h.to(next(f.parameters()).dtype).detach()
    x = torch.zeros(len(h), *shape, dtype=h.dtype, device=h.device, requires_grad=True)
    spread = (h - h.mean(0)).square().sum(1).mean().clamp_min(1e-12)
    weight = search.weight
    if known.variance:
        by_variance = 2 * known.variance * math.prod(shape) / float(spread)
        weight = (
            max(weight, by_variance)
            if search.weight_in_noise is None
            else search.weight_in_noise
        )
    optimizer = torch.optim.Adam([x], search.rate, betas=(search.momentum, 0.999))
    for step in range(search.steps):
        optimizer.param_groups[0]["lr"] = (
            search.rate * (1 + math.cos(math.pi * step / search.steps)) / 2
        )
        out = f(x)
        if known.clip is not None:
            out = out * (
                known.clip / out.norm(dim=-1, keepdim=True).clamp_min(1e-12)
            ).clamp_max(1.0)
        miss = torch.nn.functional.softshrink(out - h, known.within)
        if known.sent is not None and known.least is not None:
            miss = torch.where(known.sent, miss, (out.abs() - known.least).relu())
        energy = miss.square().sum(1) / spread + weight * search.prior(x)
        (x.grad,) = torch.autograd.grad(energy.sum(), x)
        optimizer.step()
        if search.bounds is not None:
            with torch.no_grad():
                x.clamp_(*search.bounds)
    return x.detach()


def white_box(model: nn.Module) -> nn.Module:
    """A copy of the victim's model as the attacker is assumed to have it: for use, not
    for training."""
    return copy.deepcopy(model).cpu().eval().requires_grad_(False)
