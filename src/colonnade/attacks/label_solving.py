"""Labels solved from a batch's gradient: what vFedCCE gives to every party in every mode, encrypted or not.

A party ends each round with g = 1/N sum_ij c[i, j] du[i, j]/dtheta, the gradient it steps with. It can compute its own
Jacobian J = du/dtheta, [N (m - 1), weights]; so where it has at least as many weights as coefficients it solves
J^T c = N g for c. These are dloss/du per row, u being log-odds against the first class: with c_0 = -sum_j c_j in front,
the negative entry is the label, since more log-odds of the label mean less loss.

Encryption hides c from those who listen. It cannot hide it from the party that the result is for.
"""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from colonnade.algorithms import Kind
from colonnade.attacks.received import Guess, Holdings, received
from colonnade.core import Transcript
from colonnade.optim.descent import jacobian_of

MOST = 2048  # coefficients: the equations grow with their cube


def from_batch_gradient(transcript: Transcript, holdings: Holdings) -> Guess:
    """The first batch's labels, from the gradient that arrived for it, or that the party decrypted."""
    nothing = Guess(torch.empty(0, dtype=torch.int64), torch.empty(0, dtype=torch.int64), named=True)
    first = next((seen.batch for seen in transcript if (seen.batch or "").startswith("train/")), None)
    found = next(received(transcript, holdings.batches, holdings.named(Kind.BATCH_GRADIENT)), None)
    gradient = holdings.stepped if found is None else found.values
    if first is None or gradient is None or holdings.model is None or holdings.columns is None:
        return nothing
    rows = holdings.batches.rows(first)
    if len(rows) * (holdings.classes - 1) > MOST:
        return nothing
    jacobian = own_jacobian(holdings.model, holdings.columns[rows])
    c = solve(jacobian, len(rows) * gradient.flatten()).reshape(len(rows), -1)
    slopes = torch.cat([-c.sum(1, keepdim=True), c], dim=1)
    return Guess(rows, slopes.argmin(1), named=True)


def own_jacobian(model: nn.Module, x: Tensor) -> Tensor:
    """du/dtheta for rows that do not depend on each other, [rows * outputs, weights], in float64."""
    exact = copy.deepcopy(model).cpu().double().eval()
    weights = [weight for weight in exact.parameters() if weight.requires_grad]
    return jacobian_of(exact(x.double()), weights)


def solve(jacobian: Tensor, gradient: Tensor) -> Tensor:
    """The smallest c with J^T c = gradient, by least squares; directions that rounding drowns are left out."""
    found: Tensor = torch.linalg.lstsq(jacobian.T, gradient.double()[:, None], rcond=1e-5, driver="gelsd").solution[
        :, 0
    ]
    return found
