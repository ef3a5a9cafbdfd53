"""How each output of a forward pass changes with every weight, and a gradient of all weights as one vector."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def jacobian_of(u: Tensor, weights: Sequence[Tensor]) -> Tensor:
    """du/dtheta, `[..., rows * outputs, weights]`, through the very pass that gave u `[..., rows, outputs]`.

    So dropout has the same masks, and rows may depend on each other, as under batch normalization. The pass can be
    gone through again.
    """
    size = u.shape[-2:].numel()
    basis = torch.eye(size, dtype=u.dtype, device=u.device).reshape(size, *[1] * (u.dim() - 2), *u.shape[-2:])
    each = basis.expand(size, *u.shape)
    parts = torch.autograd.grad(u, weights, each, is_grads_batched=True, retain_graph=True, allow_unused=True)
    found = [w.new_zeros(size, *w.shape) if part is None else part for w, part in zip(weights, parts, strict=True)]
    return torch.cat([part.reshape(size, *u.shape[:-2], -1).movedim(0, -2) for part in found], dim=-1)


def set_gradient(gradient: Tensor, weights: Sequence[Tensor]) -> None:
    """A gradient `[..., weights]`, in the order of `jacobian_of`, put where an optimizer looks for it."""
    leading = gradient.shape[:-1].numel()
    sizes = [weight.numel() // leading for weight in weights]
    for weight, part in zip(weights, torch.split(gradient, sizes, dim=-1), strict=True):
        weight.grad = part.to(weight).reshape(weight.shape)
