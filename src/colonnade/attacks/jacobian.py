"""Columns read off a Jacobian: what vFedCCE in plaintext hands to its receiver.

vFedCCE's party 1 sends da/dtheta, the derivative of each row's probabilities a by every parameter. Where its model
begins with a linear layer u = W1 x + b1, with delta = da/du,

    da/dW1 = delta (x) x          da/db1 = delta          so x = (da/dW1) / (da/db1), exactly.

One hidden unit would do. All units and outputs together give the same x, weighted by delta squared, which is also the
least-squares answer when the numbers are rounded or carry noise. It needs to know which entries belong to the first
layer, nothing else: no weights, no labels.
"""

from __future__ import annotations

from torch import Tensor

from colonnade.errors import DataError


def columns_from_jacobian(weight: Tensor, bias: Tensor) -> Tensor:
    """x [rows, inputs] from da/dW1 [rows, outputs, units, inputs] and da/db1 [rows, outputs, units].

    A row whose delta is zero everywhere (all units switched off) shows nothing and comes back as zeros.
    """
    if weight.dim() != 4 or weight.shape[:-1] != bias.shape:
        raise DataError(
            "A Jacobian of a first linear layer is [rows, outputs, units, inputs] for its weight and [rows, outputs, "
            f"units] for its bias; found {list(weight.shape)} and {list(bias.shape)}."
        )
    # Each row is scaled to its largest entry first: squares of tiny derivatives would vanish.
    largest = bias.abs().amax((1, 2), keepdim=True).clamp_min(1e-300 if bias.dtype.itemsize == 8 else 1e-38)
    delta = (bias / largest).double()
    products = (weight / largest[..., None]).double()
    norm = delta.square().sum((1, 2))[:, None]
    return ((delta[..., None] * products).sum((1, 2)) / norm.clamp_min(1e-300)).to(weight.dtype)
