"""The derivatives of every row's outputs by every weight, and gradients made of these
put where an optimizer looks for them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn

from colonnade.core.roles import by_row
from colonnade.optim.chains import layers_of

VALUES_AT_ONCE = 1 << 21
"""The values of a Jacobian that autograd computes together. More leave a processor's
cache between autograd's steps: 30 million took 350 ms at once, and 205 ms in pieces."""


def jacobian_of(outputs: Tensor, weights: Sequence[Tensor]) -> Tensor:
    """Differentiate outputs by weights, through the pass that computed the outputs.

    Because that pass itself is used, dropout has the same masks, and rows may depend on
    each other, as they do under batch normalization. The pass can be used again.

    Args:
        outputs: The outputs, [..., rows, outputs]. A leading axis counts the models of
            a stack.
        weights: The weights, each with the same leading axis.

    Returns:
        The Jacobian, [..., rows * outputs, weights], with the weights' entries one
        after the other. It is 0 for a weight that no output depends on.
    """
    stack = outputs.shape[:-2]
    count = outputs.shape[-2:].numel()  # of outputs of all rows
    places = _places(weights, stack.numel())
    jacobian = outputs.new_empty(*stack, count, places[-1])
    unit_vectors = _unit_vectors(outputs)
    values = sum(weight.numel() for weight in weights)
    at_once = max(1, VALUES_AT_ONCE // values)
    for start in range(0, count, at_once):
        part = unit_vectors[start : start + at_once]
        lines = jacobian[..., start : start + at_once, :]
        derivatives = _derivatives(outputs, weights, part)
        for derivative, (begin, end) in zip(derivatives, pairwise(places), strict=True):
            if derivative is None:
                lines[..., begin:end] = 0.0
            else:
                # [lines, stack, shape of weight] to [stack, lines, entries of weight]
                by_line = derivative.reshape(len(part), *stack, -1).movedim(0, -2)
                lines[..., begin:end] = by_line
    return jacobian


def jacobian_by_row(
    model: nn.Module, x: Tensor, outputs: Tensor, result: Tensor
) -> Tensor | None:
    """Compute `jacobian_of` for a model that treats every row by itself.

    For such a model the derivatives of a row by a layer's weights are the layer's
    inputs for this row times the derivative by the layer's outputs. So one backward
    pass serves the same output of all rows, where `jacobian_of` goes through all rows
    for each of their outputs.

    Args:
        model: The model.
        x: The rows, [..., rows, features].
        outputs: The model's outputs for these rows.
        result: What was computed from the outputs, row by row, such as clipped outputs,
            or the outputs themselves: [..., rows, results].

    Returns:
        The Jacobian of `result`, or None where rows of the model may depend on each
        other, or the model is no sequence of layers.
    """
    layers = layers_of(model) or []
    while layers and type(layers[0]) is nn.Flatten:
        x = layers.pop(0)(x)
    linear = [layer for layer in layers if isinstance(layer, nn.Linear)]
    if not linear or not all(map(by_row, layers)):
        return None
    has_one_line_per_row = linear[0].weight.dim() == x.dim()
    if not has_one_line_per_row:
        return None
    layer_inputs, layer_outputs, last = _pass_through(layers, x)
    weights = [weight for layer in linear for weight in layer.parameters()]
    size = _places(weights, result.shape[:-2].numel())[-1]
    jacobian = result.new_empty(*result.shape, size)
    for number in range(result.shape[-1]):
        # 1 at this output of every row: no other row's output depends on a row's inputs
        direction = torch.zeros_like(result)
        direction[..., number] = 1.0
        if result is not outputs:
            (direction,) = torch.autograd.grad(
                result, outputs, direction, retain_graph=True
            )
        slopes = torch.autograd.grad(last, layer_outputs, direction, retain_graph=True)
        _fill_by_row(jacobian[..., number, :], linear, layer_inputs, slopes)
    return jacobian.flatten(-3, -2)


def set_gradient(gradient: Tensor, weights: Sequence[Tensor]) -> None:
    """Put a gradient where an optimizer looks for it.

    Args:
        gradient: The gradient [..., weights], in the order of `jacobian_of`.
        weights: The weights that the optimizer moves.
    """
    places = _places(weights, gradient.shape[:-1].numel())
    for weight, (begin, end) in zip(weights, pairwise(places), strict=True):
        part = gradient[..., begin:end]
        weight.grad = part.to(weight).reshape(weight.shape)


def _places(weights: Sequence[Tensor], models: int) -> list[int]:
    """Where each weight's entries begin in a line of the Jacobian of one model, and
    where the last one's end."""
    places = [0]
    for weight in weights:
        places.append(places[-1] + weight.numel() // models)
    return places


def _derivatives(
    outputs: Tensor, weights: Sequence[Tensor], directions: Tensor
) -> Sequence[Tensor | None]:
    """Go back through a pass once for each direction, all at once. The derivative by a
    weight has a leading axis for the directions, and is None for an unused weight."""
    return torch.autograd.grad(
        outputs,
        weights,
        directions.expand(len(directions), *outputs.shape),
        is_grads_batched=True,
        retain_graph=True,
        allow_unused=True,
    )


def _unit_vectors(outputs: Tensor) -> Tensor:
    """A gradient for each output of each row, which is 1 there and 0 elsewhere. The
    models of a stack share it."""
    rows_and_outputs = outputs.shape[-2:]
    count = rows_and_outputs.numel()
    stack_of_ones = [1] * (outputs.dim() - 2)
    basis = torch.eye(count, dtype=outputs.dtype, device=outputs.device)
    return basis.reshape(count, *stack_of_ones, *rows_and_outputs)


def _pass_through(
    layers: Sequence[nn.Module], x: Tensor
) -> tuple[list[Tensor], list[Tensor], Tensor]:
    """Pass rows through layers, so that derivatives by the outputs of each linear layer
    can be taken.

    A stacked layer has a matrix for each model, so products are computed here.

    Returns:
        The inputs of every linear layer, its outputs, and the outputs of the last layer
        of any kind.
    """
    inputs: list[Tensor] = []
    outputs: list[Tensor] = []
    with torch.enable_grad():
        for layer in layers:
            if not isinstance(layer, nn.Linear):
                x = layer(x.clone())  # a copy, because a layer may work in place
                continue
            inputs.append(x.detach())
            x = x @ layer.weight.mT
            if layer.bias is not None:
                x = x + layer.bias.unsqueeze(-2)
            outputs.append(x)
    return inputs, outputs, x


def _fill_by_row(
    lines: Tensor,
    linear: Sequence[nn.Linear],
    layer_inputs: Sequence[Tensor],
    slopes: Sequence[Tensor],
) -> None:
    """Write the derivatives of one output of each row by all weights.

    Args:
        lines: Where they are written, [..., rows, weights].
        linear: The linear layers.
        layer_inputs: The inputs of each, [..., rows, inputs].
        slopes: The derivatives by the outputs of each, [..., rows, layer's outputs].
    """
    end = 0
    for layer, inputs, slope in zip(linear, layer_inputs, slopes, strict=True):
        begin = end
        end = begin + slope.shape[-1] * inputs.shape[-1]
        by_weight = lines[..., begin:end].view(*slope.shape, inputs.shape[-1])
        torch.mul(slope.unsqueeze(-1), inputs.unsqueeze(-2), out=by_weight)
        if layer.bias is not None:
            begin = end
            end = begin + slope.shape[-1]
            lines[..., begin:end] = slope
