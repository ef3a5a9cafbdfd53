"""Steps on a squared error, with the gradients of a plain chain of layers written out.

Autograd allocates every activation and every gradient anew in each step, and on a CPU fresh pages cost as much as the
arithmetic. Where a model is linear layers with simple activations, its gradients are two products per layer; here they
are formed in buffers that all steps of a call share, and SGD moves all parameters as one vector. Afterwards the model
and its optimizer are as after the plain loop: a checkpoint does not know which it was. A GPU that replays the steps as
a graph has half as many kernels to run. Every other model or optimizer goes through autograd.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.sgd import sgd

Activation = tuple[Callable[[Tensor], Tensor], Any, tuple[float, ...]]
ACTIVATIONS: dict[type[nn.Module], Activation] = {
    nn.ReLU: (torch.relu_, torch.ops.aten.threshold_backward.grad_input, (0.0,)),
    nn.Tanh: (torch.tanh_, torch.ops.aten.tanh_backward.grad_input, ()),
    nn.Sigmoid: (torch.sigmoid_, torch.ops.aten.sigmoid_backward.grad_input, ()),
}
"""Those whose slope shows in their output: in place, and back in place from the gradient and the output."""


def descend(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    steps: int,
    x: Tensor,
    target: Tensor,
    *,
    rho: float,
    head: Tensor | None = None,
    last_first: bool = False,
) -> None:
    """So many steps of the optimizer on rho/2 ||f(x) W - target||^2 / rows, where W is `head`, or no head. With
    `last_first` a step moves the model's last parameter, and then the others by their gradient at where it is now.

    For one party's `[rows, features]` or, where the model is a stack, a cohort's `[M, rows, features]`."""
    layers = None if last_first else chain(model)
    SCRATCH.begin()
    if layers is not None and type(optimizer) is torch.optim.SGD:
        flat = Flat(optimizer)
        links = linked(layers, x, flat)
        if links is not None:
            with torch.no_grad():
                for _ in range(steps):
                    form_gradients(links, target, rho, head)
                    flat.step()
                flat.write_back()
            return
    moved: list[Tensor] = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    turns = [moved[:-1], moved[-1:]] if last_first else [[]]
    for _ in range(steps):
        for resting in turns:
            outputs = model(x)
            error = (outputs if head is None else outputs @ head) - target
            optimizer.zero_grad(set_to_none=True)
            torch.autograd.backward(rho / 2 * error.square().sum() / error.shape[-2])
            for parameter in resting:
                parameter.grad = None
            optimizer.step()


def chain(model: nn.Module) -> list[nn.Module] | None:
    """The layers of a model that does nothing but run them one after the other, and trains every parameter, each in
    one place; None for any other. A stack of models says so itself (`stacked_chain`)."""
    layers = getattr(model, "stacked_chain", model)
    if type(layers) is not nn.Sequential:
        return None
    parameters = [parameter for _, parameter in layers.named_parameters(remove_duplicate=False)]
    plain = len(parameters) == len(set(parameters)) and all(parameter.requires_grad for parameter in parameters)
    hooked = any(part._forward_hooks or part._forward_pre_hooks or part._backward_hooks for part in model.modules())
    return [layer for layer in layers if type(layer) is not nn.Identity] if plain and not hooked else None


class Flat:
    """An SGD's parameters, their gradients and momenta, each as one vector for as long as a call takes."""

    def __init__(self, optimizer: torch.optim.SGD) -> None:
        (group,) = optimizer.param_groups
        self.parameters: list[nn.Parameter] = group["params"]
        self.optimizer = optimizer
        self.values = torch.cat([parameter.detach().flatten() for parameter in self.parameters])
        self.gradients = torch.zeros_like(self.values)
        momenta = [optimizer.state.get(parameter, {}).get("momentum_buffer") for parameter in self.parameters]
        known = [momentum.flatten() for momentum in momenta if momentum is not None]
        self.momenta = [torch.cat(known) if len(known) == len(momenta) else None]  # none before the first step
        self.settings: dict[str, Any] = {name: bool(group[name]) for name in ("nesterov", "maximize", "foreach")}
        self.settings |= {name: group[name] for name in ("weight_decay", "momentum", "lr", "dampening")}
        rows = zip(self._each(self.values), self._each(self.gradients), strict=True)
        self.views = dict(zip(self.parameters, rows, strict=True))

    def step(self) -> None:
        sgd([self.values], [self.gradients], self.momenta, fused=False, **self.settings)

    def write_back(self) -> None:
        """Parameters and momenta to where they came from."""
        for parameter, value in zip(self.parameters, self._each(self.values), strict=True):
            parameter.copy_(value)
        if self.momenta[0] is not None:
            for parameter, momentum in zip(self.parameters, self._each(self.momenta[0]), strict=True):
                state = self.optimizer.state[parameter]
                if state.get("momentum_buffer") is None:
                    state["momentum_buffer"] = momentum.clone()
                else:  # in place: a graph knows this tensor
                    state["momentum_buffer"].copy_(momentum)

    def _each(self, vector: Tensor) -> Iterator[Tensor]:
        parts = vector.split([parameter.numel() for parameter in self.parameters])  # type: ignore[no-untyped-call]
        return (part.view_as(parameter) for part, parameter in zip(parts, self.parameters, strict=True))


class Scratch(threading.local):
    """Buffers that a thread uses again in its next call: on a CPU, fresh pages cost as much as the arithmetic, and
    giving pages back makes every core wait."""

    KEPT = 1 << 24  # bytes of a buffer, at most

    def __init__(self) -> None:
        self.buffers: list[Tensor] = []
        self.begin()

    def begin(self) -> None:
        """From here on, whatever was taken before may be overwritten."""
        self.taken = 0

    def take(self, shape: tuple[int, ...], like: Tensor) -> Tensor:
        """A buffer that nobody else has taken since `begin`."""
        if like.device.type != "cpu":
            return like.new_empty(shape)
        at, self.taken = self.taken, self.taken + 1
        if at < len(self.buffers) and self.buffers[at].shape == shape and self.buffers[at].dtype == like.dtype:
            return self.buffers[at]
        fresh = like.new_empty(shape)
        if fresh.nbytes <= self.KEPT:
            self.buffers[at : at + 1] = [fresh]
        return fresh


SCRATCH = Scratch()


class Link:
    """y = activation(x A^T + b), one of a chain or a stack of them, with the buffers it and its gradients need."""

    def __init__(self, layer: nn.Linear, x: Tensor, flat: Flat) -> None:
        self.x = x
        self.A, self.gA = flat.views[layer.weight]
        bias: nn.Parameter | None = layer.bias
        self.b: Tensor | None = None
        self.gb: Tensor | None = None
        if bias is not None:
            self.b, self.gb = (part.unsqueeze(-2) for part in flat.views[bias])
        shape = (*x.shape[:-1], self.A.shape[-2])
        self.y, self.gy = SCRATCH.take(shape, x), SCRATCH.take(shape, x)
        self.activation: Activation | None = None
        self._error: Tensor | None = None

    def error(self, target: Tensor) -> Tensor:
        """A buffer of the target's shape."""
        if self._error is None:
            self._error = SCRATCH.take(tuple(target.shape), target)
        return self._error

    def forward(self) -> None:
        if self.b is None:
            _product(self.x, self.A.mT, self.y)
        else:
            _plus_product(self.b, self.x, self.A.mT, 1, 1, self.y)
        if self.activation is not None:
            self.activation[0](self.y)

    def backward(self, gx: Tensor | None) -> None:
        """From the gradient of y to those of A and b and, where there is a place for it, of x."""
        if self.activation is not None:
            _, back, settings = self.activation
            back(self.gy, self.y, *settings, grad_input=self.gy)
        _product(self.gy.mT, self.x, self.gA)
        if self.gb is not None:
            torch.sum(self.gy, -2, keepdim=True, out=self.gb)
        if gx is not None:
            _product(self.gy, self.A, gx)


def linked(layers: list[nn.Module], x: Tensor, flat: Flat) -> list[Link] | None:
    """The layers as links, or None where one is of another kind or the optimizer moves other parameters than theirs."""
    while layers and type(layers[0]) is nn.Flatten:
        x = layers.pop(0)(x)
    if {parameter for layer in layers for parameter in layer.parameters()} != flat.views.keys():
        return None
    links: list[Link] = []
    for layer in layers:
        if type(layer) is nn.Linear and x.dim() == layer.weight.dim():
            links.append(Link(layer, x, flat))
            x = links[-1].y
        elif type(layer) in ACTIVATIONS and links and links[-1].activation is None:
            links[-1].activation = ACTIVATIONS[type(layer)]
        else:
            return None
    return links or None


def form_gradients(links: list[Link], target: Tensor, rho: float, head: Tensor | None) -> None:
    """Of rho/2 ||f(x) W - target||^2 / rows, for every link's A and b."""
    for link in links:
        link.forward()
    y, g = links[-1].y, links[-1].gy
    scale = rho / y.shape[-2]
    if head is None:
        torch.sub(y, target, out=g).mul_(scale)
    else:
        error = _plus_product(target, y, head, -scale, scale, links[-1].error(target))
        _product(error, head.mT, g)
    for number in reversed(range(len(links))):
        links[number].backward(links[number - 1].gy if number else None)


def _product(a: Tensor, b: Tensor, out: Tensor) -> Tensor:
    return torch.mm(a, b, out=out) if a.dim() == 2 else torch.bmm(a, b, out=out)


def _plus_product(c: Tensor, a: Tensor, b: Tensor, beta: float, alpha: float, out: Tensor) -> Tensor:
    """beta c + alpha a b."""
    add = torch.addmm if a.dim() == 2 else torch.baddbmm
    return add(c, a, b, beta=beta, alpha=alpha, out=out)
