"""The arithmetic of chains of linear layers, written out: forward, backward, and an
optimizer's steps.

The functions here use only what TorchScript compiles, and they work on tensors alone.
A compiled call needs neither the interpreter nor its lock until it is over, so parties
in threads use every core: 14 parties in 14 threads on 16 cores took their bare local
steps in a tenth of the time of one core, compiled, and in a half, interpreted. Both
ways do the same products and sums in the same order, so every bit is the same. On a
GPU a graph replays these functions. `execution.call_compiled` chooses the way.

TorchScript sees no constant of a module. So functions below write an activation as its
number, with its name in a comment.
"""

from typing import NamedTuple

import torch
from torch import Tensor

NO_ACTIVATION = 0
RELU = 1
TANH = 2
SIGMOID = 3
"""Activations, by the numbers that `ChainTensors.activations` holds. The slope of each
can be computed from its output alone."""


class ChainTensors(NamedTuple):
    """The tensors of a chain of linear layers, or of a stack of such chains.

    Layer i computes y_i = activation_i(y_{i-1} A_i^T + b_i), where y_{-1} are the
    inputs. The gradients of the loss by A, b and y are written into tensors that stand
    ready for them.
    """

    inputs: Tensor
    weights: list[Tensor]  # A_i
    biases: list[Tensor | None]  # b_i
    activations: list[int]
    outputs: list[Tensor]  # y_i
    weight_gradients: list[Tensor]
    bias_gradients: list[Tensor | None]
    output_gradients: list[Tensor]


class OptimizerVectors(NamedTuple):
    """What an optimizer works on: all parameters as one vector, their gradients as
    another, and its moments. SGD has one vector of moments, Adam has two.

    `settings` holds the optimizer's numbers by the names that torch gives them, but for
    Adam's two `betas`, which are "momentum" and "second_momentum".
    """

    parameters: Tensor
    gradients: Tensor
    moments: list[Tensor]
    settings: dict[str, float]


def product(a: Tensor, b: Tensor, out: Tensor) -> None:
    """Write a b into `out`, for matrices or for stacks of matrices."""
    if a.dim() == 2:
        torch.mm(a, b, out=out)
    else:
        torch.bmm(a, b, out=out)


def add_product(
    c: Tensor, a: Tensor, b: Tensor, beta: float, alpha: float, out: Tensor
) -> None:
    """Write beta c + alpha a b into `out`."""
    if a.dim() == 2:
        torch.addmm(c, a, b, beta=beta, alpha=alpha, out=out)
    else:
        torch.baddbmm(c, a, b, beta=beta, alpha=alpha, out=out)


def apply_activation(y: Tensor, activation: int) -> None:
    """Apply an activation in place."""
    if activation == 1:  # RELU
        torch.relu_(y)
    elif activation == 2:  # TANH
        torch.tanh_(y)
    elif activation == 3:  # SIGMOID
        torch.sigmoid_(y)


def multiply_by_slope(gradient: Tensor, y: Tensor, activation: int) -> None:
    """Turn the gradient by an activation's output y into the gradient by its input, in
    place."""
    if activation == 1:  # RELU
        torch.ops.aten.threshold_backward(gradient, y, 0.0, grad_input=gradient)
    elif activation == 2:  # TANH
        torch.ops.aten.tanh_backward(gradient, y, grad_input=gradient)
    elif activation == 3:  # SIGMOID
        torch.ops.aten.sigmoid_backward(gradient, y, grad_input=gradient)


def forward(chain: ChainTensors) -> None:
    """Compute the outputs of all layers."""
    x = chain.inputs
    for i in range(len(chain.weights)):
        y = chain.outputs[i]
        bias = chain.biases[i]
        if bias is None:
            product(x, chain.weights[i].mT, y)
        else:
            add_product(bias, x, chain.weights[i].mT, 1.0, 1.0, y)
        apply_activation(y, chain.activations[i])
        x = y


def backward(chain: ChainTensors) -> None:
    """Compute the gradients by every weight and bias from the gradient by the last
    output, which must stand in `output_gradients[-1]`."""
    last = len(chain.weights) - 1
    for distance in range(last + 1):
        i = last - distance
        gradient = chain.output_gradients[i]
        multiply_by_slope(gradient, chain.outputs[i], chain.activations[i])
        layer_inputs = chain.outputs[i - 1] if i > 0 else chain.inputs
        product(gradient.mT, layer_inputs, chain.weight_gradients[i])
        bias_gradient = chain.bias_gradients[i]
        if bias_gradient is not None:
            torch.sum(gradient, [-2], True, out=bias_gradient)
        if i > 0:
            product(gradient, chain.weights[i], chain.output_gradients[i - 1])


def optimizer_step(vectors: OptimizerVectors, step: int) -> None:
    """Take one step of SGD or Adam, in the order in which torch computes it.

    Args:
        vectors: The optimizer's vectors. The gradients are overwritten.
        step: The number of this step since the optimizer's start, from 1.
    """
    gradients = vectors.gradients
    settings = vectors.settings
    if settings["maximize"] != 0.0:
        gradients.neg_()
    if settings["weight_decay"] != 0.0:
        gradients.add_(vectors.parameters, alpha=settings["weight_decay"])
    if len(vectors.moments) > 1:
        adam_step(vectors, step)
    else:
        sgd_step(vectors, step)


def adam_step(vectors: OptimizerVectors, step: int) -> None:
    """Move the parameters as Adam does, after weight decay was added to the
    gradients."""
    gradients = vectors.gradients
    first_moment = vectors.moments[0]
    second_moment = vectors.moments[1]
    beta1 = vectors.settings["momentum"]
    beta2 = vectors.settings["second_momentum"]
    first_moment.lerp_(gradients, 1.0 - beta1)
    second_moment.mul_(beta2).addcmul_(gradients, gradients, value=1.0 - beta2)
    # both moments start at 0, and these corrections undo that bias
    step_size = vectors.settings["lr"] / (1.0 - beta1 ** float(step))
    correction = (1.0 - beta2 ** float(step)) ** 0.5
    denominator = (second_moment.sqrt() / correction).add_(vectors.settings["eps"])
    vectors.parameters.addcdiv_(first_moment, denominator, value=-step_size)


def sgd_step(vectors: OptimizerVectors, step: int) -> None:
    """Move the parameters as SGD does, after weight decay was added to the
    gradients."""
    gradients = vectors.gradients
    settings = vectors.settings
    momentum = settings["momentum"]
    rate = settings["lr"]
    if momentum == 0.0:
        vectors.parameters.add_(gradients, alpha=-rate)
        return
    velocity = vectors.moments[0]
    if step == 1:
        velocity.copy_(gradients)
    else:
        velocity.mul_(momentum).add_(gradients, alpha=1.0 - settings["dampening"])
    if settings["nesterov"] != 0.0:
        gradients.add_(velocity, alpha=momentum)
        vectors.parameters.add_(gradients, alpha=-rate)
    else:
        vectors.parameters.add_(velocity, alpha=-rate)


def squared_error_gradients(
    chain: ChainTensors,
    target: Tensor,
    scale: float,
    head: Tensor | None,
    error: Tensor,
) -> None:
    """Compute the gradients of scale/2 ||f(x) W - target||^2 by every weight and bias.

    Args:
        chain: The model f with its inputs x, and tensors for the gradients.
        target: What f(x) W should be.
        scale: The factor of the loss.
        head: The matrix W, or None for f(x) itself.
        error: Room for scale (f(x) W - target). It is not used without a head.
    """
    forward(chain)
    y = chain.outputs[-1]
    gradient = chain.output_gradients[-1]
    if head is None:
        torch.sub(y, target, out=gradient)
        gradient.mul_(scale)
    else:
        add_product(target, y, head, -scale, scale, error)
        product(error, head.mT, gradient)
    backward(chain)


def squared_error_steps(
    chain: ChainTensors,
    vectors: OptimizerVectors,
    steps: int,
    steps_done: int,
    target: Tensor,
    scale: float,
    head: Tensor | None,
    error: Tensor,
) -> None:
    """Take optimizer steps on scale/2 ||f(x) W - target||^2.

    Args:
        chain: The model f with its inputs x, and tensors for the gradients.
        vectors: The optimizer's vectors. The chain's weights, biases and their
            gradients are views of these.
        steps: The number of steps to take.
        steps_done: The number of steps that the optimizer took before.
        target: What f(x) W should be.
        scale: The factor of the loss.
        head: The matrix W, or None for f(x) itself.
        error: Room for scale (f(x) W - target). It is not used without a head.
    """
    for number in range(steps):
        squared_error_gradients(chain, target, scale, head, error)
        optimizer_step(vectors, steps_done + number + 1)


def gradient_step(
    chain: ChainTensors, vectors: OptimizerVectors, steps_done: int, gradient: Tensor
) -> None:
    """Take one optimizer step after a forward pass, with the gradient by its last
    output."""
    chain.output_gradients[-1].copy_(gradient)
    backward(chain)
    optimizer_step(vectors, steps_done + 1)


def newton_direction(
    gradient: Tensor, probabilities: Tensor, curvature: Tensor
) -> Tensor:
    """Compute H^-1 gradient for every row, by the Hessian H of the z-update.

    Softmax has H = diag(p) - p p^T + curvature I, which the formula of Sherman and
    Morrison inverts in O(classes). Its denominator 1 - sum p^2 / (p + curvature) is
    written as curvature sum p / (p + curvature), which never cancels. With one output
    the Hessian is the number p (1 - p) + curvature.

    Args:
        gradient: The objective's gradient, [classes, rows].
        probabilities: The model's p, [classes, rows].
        curvature: What the penalty adds to the Hessian: rho, or rho / w for each row.
    """
    if gradient.size(0) == 1:
        return gradient / (probabilities * (1.0 - probabilities) + curvature)
    diagonal = probabilities + curvature
    weights = probabilities / diagonal
    share = (weights * gradient).sum(0) / (curvature * weights.sum(0))
    return (gradient / diagonal).addcmul_(weights, share)


def newton_damping(direction: Tensor) -> Tensor:
    """Compute the share ln(1 + b) / b of a Newton step that surely decreases the
    objective, where b is the range of the row's direction, 0 included."""
    spread = direction.amax(0).clamp_min_(0.0) - direction.amin(0).clamp_max_(0.0)
    damping = torch.log1p(spread) / spread.clamp_min(1e-12)
    return torch.where(spread > 1e-12, damping, 1.0)  # its limit, where b is 0


def newton(
    o: Tensor,
    pull: Tensor,
    counts: Tensor | None,
    rho: float,
    tolerance: float,
    most_steps: int,
) -> tuple[Tensor, Tensor]:
    """Minimise w l(z) - pull^T z + rho/2 ||z - o||^2 for every row by damped Newton
    steps, where l is the log-sum-exp of z (see `losses.ZUpdate`).

    Args:
        o: The outputs that z stays near, [classes, rows], or [1, rows] of log-odds.
        pull: The linear term, in the same shape.
        counts: How much each row counts, w. The Hessian of a row that counts w is w
            times that of a row with rho / w, so its step is divided by w.
        rho: The weight of the penalty.
        tolerance: The largest entry of a gradient with which the steps end.
        most_steps: The number of steps after which they end in any case.

    Returns:
        The minimum of each row, and the largest entry of any row's gradient before the
        last step.
    """
    z = o.clone()
    largest = o.new_zeros([])
    curvature = torch.full([], rho, dtype=o.dtype, device=o.device)
    if counts is not None:
        curvature = rho / counts
    for _ in range(most_steps):
        p = z.softmax(0) if o.size(0) > 1 else z.sigmoid()
        gradient = (z - o).mul_(rho).sub_(pull)
        gradient.add_(p if counts is None else p * counts)
        largest = gradient.abs().max()
        if counts is not None:
            gradient = gradient / counts
        direction = newton_direction(gradient, p, curvature)
        z = z.addcmul_(direction, newton_damping(direction), value=-1.0)
        if float(largest) <= tolerance:
            break
    return z, largest
