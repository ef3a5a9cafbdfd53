"""Every row's derivatives by every weight, and a gradient sums of them put where an
optimizer looks for it."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from colonnade.core.roles import by_row
from colonnade.optim.chains import layers_of

AT_ONCE = 1 << 21
"""Values of a Jacobian that are computed together: what autograd makes of more leaves a
processor's cache between its steps, and 30 million took 350 ms at once and 205 in
pieces."""


def jacobian_of(u: Tensor, weights: Sequence[Tensor]) -> Tensor:
    """du/dtheta, `[..., rows * outputs, weights]`, through the very pass that gave u
    `[..., rows, outputs]`.

    So dropout has the same masks, and rows may depend on each other, as under batch
    normalization. The pass can be gone through again.
    """
    size = u.shape[-2:].numel()
    leading = u.shape[:-2]
    basis = torch.eye(size, dtype=u.dtype, device=u.device).reshape(
        size, *[1] * len(leading), *u.shape[-2:]
    )
    values = sum(weight.numel() for weight in weights)
    jacobian = u.new_empty(*leading, size, values // leading.numel())
    step = max(1, AT_ONCE // values)
    for start in range(0, size, step):
        each = basis[start : start + step]
        each = each.expand(len(each), *u.shape)
        parts = torch.autograd.grad(
            u,
            weights,
            each,
            is_grads_batched=True,
            retain_graph=True,
            allow_unused=True,
        )
        end = 0
        for weight, part in zip(weights, parts, strict=True):
            end, first = end + weight.numel() // leading.numel(), end
            into = jacobian[..., start : start + step, first:end]
            into.copy_(
                torch.zeros(())
                if part is None
                else part.reshape(len(each), *leading, -1).movedim(0, -2)
            )
    return jacobian


def jacobian_by_row(
    model: nn.Module, x: Tensor, outputs: Tensor, u: Tensor
) -> Tensor | None:
    """`jacobian_of` for u, which was made row by row of the model's `outputs` for x;
    None unless the model treats every row by itself, too. Then a row's derivatives by a
    layer's weights are what it was given times du/d(what it gave), and a backward pass
    serves one output of all rows, where `jacobian_of` goes through all rows for each of
    them."""
    layers = layers_of(model) or []
    given = list[Tensor]()
    sums = list[Tensor]()
    while layers and type(layers[0]) is nn.Flatten:
        layer, *layers = layers
        x = layer(x)
    linear = [layer for layer in layers if isinstance(layer, nn.Linear)]
    if not linear or linear[0].weight.dim() != x.dim() or not all(map(by_row, layers)):
        return None
    with torch.enable_grad():
        for layer in layers:
            if isinstance(layer, nn.Linear):
                given.append(x.detach().unsqueeze(-2))
                x = x @ layer.weight.mT
                x = x if layer.bias is None else x + layer.bias.unsqueeze(-2)
                sums.append(x)
            else:
                x = layer(x.clone())  # which may work in place
    values = (
        sum(weight.numel() for layer in linear for weight in layer.parameters())
        // u.shape[:-2].numel()
    )
    jacobian = u.new_empty(*u.shape, values)
    for number in range(u.shape[-1]):
        unit = torch.zeros_like(u)
        end = 0
        unit[..., number] = 1.0
        (by_output,) = (
            (unit,)
            if u is outputs
            else torch.autograd.grad(u, outputs, unit, retain_graph=True)
        )
        slopes = torch.autograd.grad(x, sums, by_output, retain_graph=True)
        for layer, slope, inputs in zip(linear, slopes, given, strict=True):
            start = end
            end = end + slope.shape[-1] * inputs.shape[-1]
            into = jacobian[..., number, start:end].view(*slope.shape, inputs.shape[-1])
            torch.mul(slope.unsqueeze(-1), inputs, out=into)
            if layer.bias is not None:
                start = end
                end = end + slope.shape[-1]
                jacobian[..., number, start:end] = slope
    return jacobian.flatten(-3, -2)


def set_gradient(gradient: Tensor, weights: Sequence[Tensor]) -> None:
    """A gradient `[..., weights]`, in the order of `jacobian_of`, put where an
    optimizer looks for it."""
    leading = gradient.shape[:-1].numel()
    sizes = [weight.numel() // leading for weight in weights]
    for weight, part in zip(weights, torch.split(gradient, sizes, dim=-1), strict=True):
        weight.grad = part.to(weight).reshape(weight.shape)
