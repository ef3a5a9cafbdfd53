"""The arithmetic of a plain chain of layers: forward, backward, and an optimizer's
steps, on tensors alone.

It is written in the part of Python that TorchScript compiles. Compiled, a call needs
neither the interpreter nor its lock until it is over, so parties in threads use every
core: the bare local steps of 14 parties, in 14 threads on 16 cores, took a tenth of the
time of one core, and left in Python a half. Each product and each sum is the same
either way, and so is every bit. On a GPU a graph replays them; where TorchScript is
missing they run as they stand (`descent.run`).
"""

from typing import NamedTuple

import torch
from torch import Tensor

NONE = 0
RELU = 1
TANH = 2
SIGMOID = 3
"""Activations whose slope shows in their output."""


class Layers(NamedTuple):
    """y_i = activation_i(y_{i-1} A_i^T + b_i) with y_{-1} = x, for one chain or a stack
    of them, and room for the gradients by A, b and y."""

    x: Tensor
    A: list[Tensor]
    b: list[Tensor | None]
    activations: list[int]
    y: list[Tensor]
    gA: list[Tensor]  # noqa: N815 - dloss/dA
    gb: list[Tensor | None]
    gy: list[Tensor]


class Moving(NamedTuple):
    """An optimizer's parameters, their gradients, and what it remembers of them, each
    as one vector; and its settings: SGD has one `moments`, Adam has two."""

    values: Tensor
    gradients: Tensor
    moments: list[Tensor]
    settings: dict[str, float]


def product(a: Tensor, b: Tensor, out: Tensor) -> None:
    if a.dim() == 2:
        torch.mm(a, b, out=out)
    else:
        torch.bmm(a, b, out=out)


def plus_product(
    c: Tensor, a: Tensor, b: Tensor, beta: float, alpha: float, out: Tensor
) -> None:
    """beta c + alpha a b."""
    if a.dim() == 2:
        torch.addmm(c, a, b, beta=beta, alpha=alpha, out=out)
    else:
        torch.baddbmm(c, a, b, beta=beta, alpha=alpha, out=out)


def forward(layers: Layers) -> None:
    x = layers.x
    for i in range(len(layers.A)):
        b = layers.b[i]
        y = layers.y[i]
        if b is None:
            product(x, layers.A[i].mT, y)
        else:
            plus_product(b, x, layers.A[i].mT, 1.0, 1.0, y)
        kind = layers.activations[i]
        if kind == 1:  # a compiled function knows no names of a module
            torch.relu_(y)
        elif kind == 2:
            torch.tanh_(y)
        elif kind == 3:
            torch.sigmoid_(y)
        x = y


def times_slope(g: Tensor, y: Tensor, kind: int) -> None:
    """The gradient before an activation, in place, from the one after it and what it
    gave."""
    if kind == 1:
        torch.ops.aten.threshold_backward(g, y, 0.0, grad_input=g)
    elif kind == 2:
        torch.ops.aten.tanh_backward(g, y, grad_input=g)
    elif kind == 3:
        torch.ops.aten.sigmoid_backward(g, y, grad_input=g)


def backward(layers: Layers) -> None:
    """From the gradient of the last y to those of every A and b."""
    for j in range(len(layers.A)):
        i = len(layers.A) - 1 - j
        g = layers.gy[i]
        times_slope(g, layers.y[i], layers.activations[i])
        product(g.mT, layers.y[i - 1] if i > 0 else layers.x, layers.gA[i])
        gb = layers.gb[i]
        if gb is not None:
            torch.sum(g, [-2], True, out=gb)
        if i > 0:
            product(g, layers.A[i], layers.gy[i - 1])


def move(moving: Moving, step: int) -> None:
    """One step of SGD or Adam as torch takes it, the `step`-th since its start."""
    p = moving.values
    g = moving.gradients
    m = moving.moments[0]
    settings = moving.settings
    decay = settings["weight_decay"]
    rate = settings["lr"]
    momentum = settings["momentum"]
    if settings["maximize"] != 0.0:
        g.neg_()
    if decay != 0.0:
        g.add_(p, alpha=decay)
    if len(moving.moments) > 1:  # Adam
        v = moving.moments[1]
        second = settings["second_momentum"]
        m.lerp_(g, 1.0 - momentum)
        v.mul_(second).addcmul_(g, g, value=1.0 - second)
        size = rate / (1.0 - momentum ** float(step))
        spread = (1.0 - second ** float(step)) ** 0.5
        p.addcdiv_(m, (v.sqrt() / spread).add_(settings["eps"]), value=-size)
    elif momentum == 0.0:
        p.add_(g, alpha=-rate)
    else:
        if step == 1:
            m.copy_(g)
        else:
            m.mul_(momentum).add_(g, alpha=1.0 - settings["dampening"])
        if settings["nesterov"] != 0.0:
            g.add_(m, alpha=momentum)
            p.add_(g, alpha=-rate)
        else:
            p.add_(m, alpha=-rate)


def squared_gradients(
    layers: Layers, target: Tensor, scale: float, head: Tensor | None, error: Tensor
) -> None:
    """Of scale/2 ||f(x) W - target||^2 by every A and b, where W is `head`, or no head;
    `error` is room for it."""
    forward(layers)
    y = layers.y[-1]
    g = layers.gy[-1]
    if head is None:
        torch.sub(y, target, out=g)
        g.mul_(scale)
    else:
        plus_product(target, y, head, -scale, scale, error)
        product(error, head.mT, g)
    backward(layers)


def squared_steps(
    layers: Layers,
    moving: Moving,
    steps: int,
    done: int,
    target: Tensor,
    scale: float,
    head: Tensor | None,
    error: Tensor,
) -> None:
    """So many steps on scale/2 ||f(x) W - target||^2, after so many that were done
    before."""
    for number in range(steps):
        squared_gradients(layers, target, scale, head, error)
        move(moving, done + number + 1)


def newton(
    o: Tensor,
    pull: Tensor,
    counts: Tensor | None,
    rho: float,
    tolerance: float,
    most: int,
) -> tuple[Tensor, Tensor]:
    """The steps of `losses.ZUpdate` for all rows, [classes, rows] or [1, rows] of
    log-odds; and the largest entry of a gradient before the last step. A row that
    counts w divides its gradient and rho by w."""
    z = o.clone()
    worst = o.new_zeros([])
    curvature = torch.full([], rho, dtype=o.dtype, device=o.device)
    if counts is not None:
        curvature = rho / counts
    for _ in range(most):
        p = z.softmax(0) if o.size(0) > 1 else z.sigmoid()
        step = (z - o).mul_(rho).sub_(pull).add_(p if counts is None else p * counts)
        worst = step.abs().max()
        if counts is not None:
            step = step / counts
        # (diag(p + rho) - p p^T)^-1 step; 1 - sum p^2/(p + rho) is written so that it
        # never cancels
        if o.size(0) > 1:
            d = p + curvature
            weights = p / d
            share = (weights * step).sum(0) / (curvature * weights.sum(0))
            step = (step / d).addcmul_(weights, share)
        else:
            step = step / (p * (1.0 - p) + curvature)
        spread = step.amax(0).clamp_min_(0.0) - step.amin(0).clamp_max_(0.0)
        damped = torch.where(
            spread > 1e-12, torch.log1p(spread) / spread.clamp_min(1e-12), 1.0
        )
        z = z.addcmul_(step, damped, value=-1.0)
        if float(worst) <= tolerance:
            break
    return z, worst


def step_back(layers: Layers, moving: Moving, done: int, gradient: Tensor) -> None:
    """One step with the gradient by the last y of a forward pass."""
    layers.gy[-1].copy_(gradient)
    backward(layers)
    move(moving, done + 1)
