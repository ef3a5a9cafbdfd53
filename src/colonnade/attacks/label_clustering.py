"""Labels guessed from the per-row gradients that split learning sends down (SplitNN, VIMSGD, VAFL).

Behind a linear head W_k the gradient of a row is dl/dh_k = (p - y) W_k^T / |B|: the label owner's head is not known to
the party, but rows of one label point the same way as far as their p agree, and all rows lie in a space of as many
dimensions as there are classes. Two classes with one logit lie on one line, each label on its own side of 0.

Li et al., Label Leakage and Protection in Two-party Split Learning, 2022 (arXiv:2102.08504) guess by the direction and
by the norm of gradients; Liu and Lyu, Clustering Label Inference Attack against Practical Split Learning, 2022
(arXiv:2203.05222) by clustering them. The attacker knows the number of classes. What it finds are groups of rows that
share a label.
"""

from __future__ import annotations

import torch
from torch import Tensor

from colonnade.algorithms import Kind
from colonnade.attacks.received import Guess, Holdings, received, stacked
from colonnade.core import Transcript

RESTARTS = 8


def by_direction(transcript: Transcript, holdings: Holdings, *, seed: int = 0) -> Guess:
    """k-means on the gradients' directions; for numbers as labels, the position along their main direction."""
    rows, gradient = stacked(received(transcript, holdings.batches, holdings.named(Kind.GRADIENT)))
    if not len(rows):
        return Guess(rows, rows, named=False)
    flat = main_directions(gradient.flatten(1).double(), max(holdings.classes, 1))
    if holdings.classes == 0:
        return Guess(rows, flat[:, 0], named=False)
    return Guess(rows, groups(unit(flat), holdings.classes, seed), named=False)


def by_norm(transcript: Transcript, holdings: Holdings, *, seed: int = 0) -> Guess:
    """Two classes: rows of the rarer one are fitted worse, so their gradients are longer."""
    rows, gradient = stacked(received(transcript, holdings.batches, holdings.named(Kind.GRADIENT)))
    if not len(rows):
        return Guess(rows, rows, named=False)
    lengths = gradient.flatten(1).double().norm(dim=1, keepdim=True).clamp_min(1e-300).log()
    return Guess(rows, groups(lengths, 2, seed), named=False)


def main_directions(rows: Tensor, dimensions: int) -> Tensor:
    """The rows in the few dimensions that hold most of them."""
    _, _, directions = torch.linalg.svd(rows, full_matrices=False)
    found: Tensor = rows @ directions[:dimensions].T
    return found


def unit(rows: Tensor) -> Tensor:
    """Each row at length 1; a row of zeros stays."""
    scaled: Tensor = rows / rows.norm(dim=1, keepdim=True).clamp_min(torch.finfo(rows.dtype).tiny)
    return scaled


def groups(points: Tensor, count: int, seed: int) -> Tensor:
    """k-means: the best of a few starts."""
    from sklearn.cluster import KMeans

    count = min(count, len(torch.unique(points, dim=0)))
    found = KMeans(count, n_init=RESTARTS, random_state=seed).fit_predict(points.numpy())
    return torch.from_numpy(found).long()
