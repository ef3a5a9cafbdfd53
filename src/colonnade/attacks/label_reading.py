"""Labels read off what a feature owner receives, by equations and not by statistics.

FDML sends g = dl/do. For softmax cross-entropy g = (softmax(o) - y)/|B|, with y one-hot: every entry is a probability,
except the label's, which is one minus 1. So exactly one entry is negative, and it is the label. For the logistic
loss g = (sigmoid(o) - y)/|B| is negative exactly where y = 1.

VIMADMM and VIMADMM-J send r = z - o - lambda/rho, with the new lambda. The z-update is stationary where

    softmax(z) - y = lambda_old + rho (o - z) = lambda           (Eq. 6, then Eq. 7)

so after every update lambda = softmax(z) - y, which has exactly one negative entry, the label; and z - o is
(lambda_old - lambda)/rho, so that

    rho r = lambda_old - 2 lambda                                 (no o, no z, no head is left in it)

A party knows rho. It keeps an estimate e of every row's lambda and updates it at each visit: e <- (e - rho r)/2. Its
error halves at each visit, whatever it started from, since lambda obeys the same recursion. The duals start at 0; so
a party that listens from the first round is exact from the first round on, and always right (as far as the z-update
is solved and numbers are not rounded to 0). A party that starts to listen later and sees a row once has e = -rho r/2
= p - (p_old + y)/2, where p_old and p are that row's softmax(z) before and now: its smallest entry is the label's
whenever 1 + p_old_y - 2 p_y > p_old_j - 2 p_j for all other classes j; in particular where p = p_old, near convergence.

For a squared loss g = (o - y)/|B| and lambda = z - y: one number that falls with the label, and -g or -e is the guess,
known up to a scale.

Compressed VFL needs no attack: it sends the labels.
"""

from __future__ import annotations

import torch
from torch import Tensor

from colonnade.algorithms import Kind
from colonnade.attacks.received import Guess, Holdings, received, stacked
from colonnade.core import Transcript


def from_targets(transcript: Transcript, holdings: Holdings) -> Guess:
    """Compressed VFL tells every party the labels, or what randomized response made of them."""
    rows, targets = stacked(received(transcript, holdings.batches, holdings.named(Kind.LABELS)))
    return Guess(rows, targets.flatten() if holdings.classes == 0 else targets.flatten().long(), named=True)


def from_logit_gradients(transcript: Transcript, holdings: Holdings) -> Guess:
    """FDML: the negative entry of every row's gradient."""
    rows, gradient = stacked(received(transcript, holdings.batches, holdings.named(Kind.LOGIT_GRADIENT)))
    return Guess(rows, read(gradient, holdings.classes) if len(rows) else rows, named=True)


def from_residuals(transcript: Transcript, holdings: Holdings) -> Guess:
    """VIMADMM and VIMADMM-J: follow every row's lambda, and read its negative entry."""
    rows, duals = follow_duals(transcript, holdings)
    return Guess(rows, read(duals, holdings.classes) if len(rows) else rows, named=True)


def follow_duals(transcript: Transcript, holdings: Holdings) -> tuple[Tensor, Tensor]:
    """The rows of which residuals came, and the estimate e of each one's lambda."""
    found = list(received(transcript, holdings.batches, holdings.named(Kind.RESIDUAL)))
    if not found:
        return torch.empty(0, dtype=torch.int64), torch.empty(0, 0)
    rows = torch.unique(torch.cat([one.rows for one in found]))
    duals = torch.zeros(int(rows.max()) + 1, found[0].values.shape[-1], dtype=found[0].values.dtype)
    for one in found:
        duals[one.rows] = (duals[one.rows] - holdings.config.rho * one.values) / 2
    return rows, duals[rows]


def read(slope: Tensor, classes: int) -> Tensor:
    """The label behind probabilities minus the label: the smallest entry, or with one output the sign.

    In exact arithmetic the smallest is the only negative one. Rounded, it may be 0, and is still the smallest.
    """
    if classes == 0:
        return -slope[:, 0]
    return slope.argmin(-1) if slope.shape[-1] > 1 else (slope[:, 0] < 0).long()
