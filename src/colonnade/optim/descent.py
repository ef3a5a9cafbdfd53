"""Steps of a model on a squared error or on a gradient that it is told, with a plain
chain's gradients written out.

Autograd allocates every activation and every gradient anew in each step, and on a CPU
fresh pages cost as much as the arithmetic. Where a model is linear layers with simple
activations, its gradients are two products per layer; here they are formed in buffers
that are used again (`written_out`), and SGD or Adam moves all parameters as one vector.
The model and its optimizer have views of these vectors: a checkpoint does not know
which way it was. A GPU that replays the steps as a graph has half as many kernels to
run. Every other model or optimizer goes through autograd.

Computations with fixed shapes are one CUDA graph (`Captured`), which the GPU replays
without waiting for Python; on a CPU they simply run.
"""

from __future__ import annotations

import gc
import importlib.util
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from types import ModuleType
from typing import Any, Protocol, TypeVar, runtime_checkable

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

from colonnade.optim.written_out import (
    NONE,
    RELU,
    SIGMOID,
    TANH,
    Layers,
    Moving,
    forward,
    squared_steps,
    step_back,
)

T = TypeVar("T")
ACTIVATIONS: dict[type[nn.Module], int] = {
    nn.ReLU: RELU,
    nn.Tanh: TANH,
    nn.Sigmoid: SIGMOID,
}
"""Those whose slope shows in their output."""


class Descent:
    """A model and its optimizer, to be moved by gradients of a squared error or by
    gradients that come from elsewhere.

    For one party's `[rows, features]` or, where the model is a stack, a cohort's `[M,
    rows, features]`."""

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self.model = model
        self.optimizer = optimizer
        self.room = Buffers()  # for what a pass keeps until its gradient comes
        self._plain: tuple[Flat, Chain] | None = None

    def towards(
        self,
        steps: int,
        x: Tensor,
        target: Tensor,
        *,
        rho: float,
        head: Tensor | None = None,
        last_first: bool = False,
    ) -> None:
        """So many steps of the optimizer on rho/2 ||f(x) W - target||^2 / rows, where W
        is `head`, or no head. With `last_first` a step moves the model's last
        parameter, and then the others by their gradient at where it is now."""
        plain = None if last_first else self.plain(x)
        if plain is not None:
            flat, chain, x = plain
            SCRATCH.begin()
            self._written_out_steps(
                steps, flat, chain.over(x, SCRATCH, SCRATCH), target, rho, head
            )
            return
        moved: list[Tensor] = [
            parameter
            for group in self.optimizer.param_groups
            for parameter in group["params"]
        ]
        turns = [moved[:-1], moved[-1:]] if last_first else [[]]
        for _ in range(steps):
            for resting in turns:
                outputs = self.model(x)
                error = (outputs if head is None else outputs @ head) - target
                self.optimizer.zero_grad(set_to_none=True)
                torch.autograd.backward(
                    rho / 2 * error.square().sum() / error.shape[-2]
                )
                for parameter in resting:
                    parameter.grad = None
                self.optimizer.step()

    def _written_out_steps(
        self,
        steps: int,
        flat: Flat,
        layers: Layers,
        target: Tensor,
        rho: float,
        head: Tensor | None,
    ) -> None:
        """Take the steps of `towards` by gradients that are written out."""
        x = layers.x
        goal = target
        error = target
        if head is not None and x.is_cuda:
            error = SCRATCH.take(tuple(target.shape), target)
        elif head is not None:
            # With a class's numbers side by side, the product takes a third of the time.
            transposed = tuple(target.mT.shape)
            goal = SCRATCH.take(transposed, target).mT
            error = SCRATCH.take(transposed, target).mT
            goal.copy_(target)
        scale = rho / layers.y[-1].shape[-2]
        own_kernels = kernels(x.device)
        function = squared_steps if own_kernels is None else own_kernels.squared_steps
        moving = flat.moving()
        with torch.no_grad():
            run(
                function,
                layers,
                moving,
                steps,
                flat.done,
                goal,
                scale,
                head,
                error,
                device=x.device,
            )
        flat.moved(steps)

    def outputs(self, x: Tensor) -> Tensor:
        """The model's outputs, to be released before the next pass: those of a plain
        chain stand in a buffer that is used again."""
        plain = self.plain(x)
        if plain is None or x.device.type != "cpu":
            with torch.no_grad():
                return (self.model if plain is None else plain[1].replayed)(x)  # type: ignore[no-any-return]
        self.room.begin()
        _, chain, x = plain
        layers = chain.over(x, self.room, None)
        forward_pass(layers)
        return layers.y[-1]

    def over(self, x: Tensor) -> Pass:
        """A pass to learn from. What an earlier one kept is overwritten."""
        # on a GPU fresh memory costs nothing
        plain = self.plain(x) if x.device.type == "cpu" else None
        if plain is not None:
            return WrittenOut(*plain, self.room)
        with torch.enable_grad():
            return Pass(self.optimizer, self.model(x))

    def plain(self, x: Tensor) -> tuple[Flat, Chain, Tensor] | None:
        """The optimizer's vectors, the model's layers in them, and what these layers
        read of the rows, where all are written out; None for any other."""
        if self._plain is None or not (
            self._plain[0].stands() and self._plain[1].stands()
        ):
            self._plain = None
            layers = layers_of(self.model)
            kept = kept_by(self.optimizer)
            if layers is not None and kept is not None:
                flat = Flat(self.optimizer, kept)
                chain = Chain.of(self.model, layers, flat)
                self._plain = None if chain is None else (flat, chain)
        if self._plain is None:
            return None
        flat, chain = self._plain
        x = chain.flat(x)
        # rows, one line each, or a stack
        return (flat, chain, x) if x.dim() == chain.layers.A[0].dim() else None


@runtime_checkable
class Stack(Protocol):
    """Models that run as one, and say themselves which layers these are."""

    @property
    def stacked_chain(self) -> nn.Sequential | None: ...


def layers_of(model: nn.Module) -> list[nn.Module] | None:
    """The layers of a model that does nothing but run them one after the other, and
    trains every parameter, each in one place; None for any other."""
    layers = model.stacked_chain if isinstance(model, Stack) else model
    if type(layers) is not nn.Sequential:
        return None
    parameters = [
        parameter for _, parameter in layers.named_parameters(remove_duplicate=False)
    ]
    plain = len(parameters) == len(set(parameters)) and all(
        parameter.requires_grad for parameter in parameters
    )
    plain = plain and not any(any(hooks_of(part)) for part in model.modules())
    return (
        [layer for layer in layers if type(layer) is not nn.Identity] if plain else None
    )


def hooks_of(part: nn.Module) -> list[Any]:
    """Who listens to a part of a model."""
    return [part._forward_hooks, part._forward_pre_hooks, part._backward_hooks]


def kept_by(optimizer: torch.optim.Optimizer) -> tuple[str, ...] | None:
    """What an optimizer remembers of a parameter, by name; None where it does more than
    `written_out.move`."""
    if len(optimizer.param_groups) != 1:
        return None
    (group,) = optimizer.param_groups
    if type(optimizer) is torch.optim.SGD:
        return ("momentum_buffer",) if group["momentum"] else ()
    more = (
        "amsgrad",
        "capturable",
        "differentiable",
        "fused",
        "decoupled_weight_decay",
    )
    plain = type(optimizer) is torch.optim.Adam and not any(
        group.get(name) for name in more
    )
    return ("exp_avg", "exp_avg_sq", "step") if plain else None


class Flat:
    """The parameters of an SGD or Adam, their gradients and what it remembers, each as
    one vector. The parameters and the optimizer's own tensors are views of these from
    then on, so there is nothing to copy back."""

    def __init__(self, optimizer: torch.optim.Optimizer, kept: tuple[str, ...]) -> None:
        (self.group,) = optimizer.param_groups
        self.parameters: list[nn.Parameter] = self.group["params"]
        self.optimizer = optimizer
        self.kept = kept
        states = [optimizer.state.get(parameter, {}) for parameter in self.parameters]
        begun = all(state.get(name) is not None for state in states for name in kept)
        self.values = torch.cat(
            [parameter.detach().flatten() for parameter in self.parameters]
        )
        self.gradients = torch.zeros_like(self.values)
        self.moments = [
            (
                torch.cat([state[name].flatten() for state in states])
                if begun
                else torch.zeros_like(self.values)
            )
            for name in kept[:2]
        ]
        self.done = (
            0
            if not (begun and kept)
            else int(states[0]["step"])
            if "step" in kept
            else 1
        )
        self.steps = torch.full((len(self.parameters),), float(self.done))
        shown = [
            *(self.each(moment) for moment in self.moments),
            list(self.steps.unbind()),
        ][: len(kept)]
        self._shown = [
            dict(zip(kept, views, strict=True)) for views in zip(*shown, strict=True)
        ]
        for parameter, value in zip(
            self.parameters, self.each(self.values), strict=True
        ):
            parameter.data = value
        self._at = [parameter.data_ptr() for parameter in self.parameters]
        if begun:
            self._show()

    def _show(self) -> None:
        for parameter, views in zip(
            self.parameters if self.kept else (), self._shown, strict=True
        ):
            # in their order
            self.optimizer.state[parameter] = (
                self.optimizer.state.pop(parameter, {}) | views
            )

    def stands(self) -> bool:
        """Whether nobody has given the model or the optimizer other tensors since."""
        if [parameter.data_ptr() for parameter in self.parameters] != self._at:
            return False
        if not (self.done and self.kept):
            return not any(self.optimizer.state.values())
        # asked one by one, tensors are hashed
        states = zip(self.optimizer.state.values(), self._shown, strict=False)
        kept = [
            state.get(name) is view
            for state, views in states
            for name, view in views.items()
        ]
        return len(kept) == len(self.kept) * len(self.parameters) and all(kept)

    def moving(self) -> Moving:
        """What moves the parameters in the next steps, with the optimizer's settings as
        they are now."""
        group = self.group
        settings = {
            name: float(group[name]) for name in ("lr", "weight_decay", "maximize")
        }
        if "step" in self.kept:
            first, second = group["betas"]
            settings |= {
                "momentum": float(first),
                "second_momentum": float(second),
                "eps": float(group["eps"]),
            }
        else:
            settings |= {
                name: float(group[name])
                for name in ("momentum", "dampening", "nesterov")
            }
        return Moving(
            self.values, self.gradients, self.moments or [self.values], settings
        )

    def moved(self, steps: int) -> None:
        """Tell the optimizer that so many steps were done."""
        if not self.done:
            self._show()
        self.done += steps
        if "step" in self.kept:
            self.steps.fill_(float(self.done))

    def each(self, vector: Tensor) -> list[Tensor]:
        parts = vector.split([parameter.numel() for parameter in self.parameters])  # type: ignore[no-untyped-call]
        return [
            part.view_as(parameter)
            for part, parameter in zip(parts, self.parameters, strict=True)
        ]


class Buffers:
    """Room that is used again: on a CPU, fresh pages cost as much as the arithmetic,
    and giving pages back makes every core wait."""

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
        at = self.taken
        self.taken = self.taken + 1
        if (
            at < len(self.buffers)
            and self.buffers[at].shape == shape
            and self.buffers[at].dtype == like.dtype
        ):
            return self.buffers[at]
        fresh = like.new_empty(shape)
        if fresh.nbytes <= self.KEPT:
            self.buffers[at : at + 1] = [fresh]
        return fresh


class Scratch(Buffers, threading.local):
    """Buffers of every thread for the time of a call."""


SCRATCH = Scratch()


class Chain:
    """The layers of a model in an optimizer's vectors."""

    def __init__(
        self, model: nn.Module, flattens: Sequence[nn.Flatten], layers: Layers
    ) -> None:
        self.parameters = list(model.parameters())
        self._hooks = [hooks for part in model.modules() for hooks in hooks_of(part)]
        self.flattens = flattens
        self.layers = layers
        self.replayed = Captured(model)

    @classmethod
    def of(
        cls, model: nn.Module, parts: Sequence[nn.Module], flat: Flat
    ) -> Chain | None:
        """None where a layer is of another kind, or the optimizer moves other
        parameters than theirs."""
        begins = next(
            (
                number
                for number, layer in enumerate(parts)
                if type(layer) is not nn.Flatten
            ),
            len(parts),
        )
        flattens = [layer for layer in parts[:begins] if isinstance(layer, nn.Flatten)]
        parts = parts[begins:]
        views = dict(
            zip(
                flat.parameters,
                zip(flat.each(flat.values), flat.each(flat.gradients), strict=True),
                strict=True,
            )
        )
        if {
            parameter for layer in parts for parameter in layer.parameters()
        } != views.keys():
            return None
        layers = Layers(flat.values, [], [], [], [], [], [], [])
        for layer in parts:
            if type(layer) is nn.Linear:
                weights = dict(layer.named_parameters())
                bias = weights.get("bias")
                A, gA = views[weights["weight"]]
                b, gb = (
                    (None, None)
                    if bias is None
                    else (part.unsqueeze(-2) for part in views[bias])
                )
                layers.A.append(A)
                layers.gA.append(gA)
                layers.b.append(b)
                layers.gb.append(gb)
                layers.activations.append(NONE)
            elif (
                type(layer) in ACTIVATIONS
                and layers.A
                and layers.activations[-1] == NONE
            ):
                layers.activations[-1] = ACTIVATIONS[type(layer)]
            else:
                return None
        return cls(model, flattens, layers) if layers.A else None

    def stands(self) -> bool:
        """Whether it still does nothing but run its layers, and trains all of them."""
        return not any(self._hooks) and all(
            parameter.requires_grad for parameter in self.parameters
        )

    def flat(self, x: Tensor) -> Tensor:
        """What the first of its layers with weights reads of some rows."""
        for layer in self.flattens:
            x = x.flatten(layer.start_dim, layer.end_dim)
        return x

    def over(self, x: Tensor, outputs: Buffers, gradients: Buffers | None) -> Layers:
        """With these rows, and room for what each layer gives, and where it is to
        learn, for the gradients by that."""
        shapes = [(*x.shape[:-1], A.shape[-2]) for A in self.layers.A]
        y, gy = (
            [] if room is None else [room.take(shape, x) for shape in shapes]
            for room in (outputs, gradients)
        )
        return self.layers._replace(x=x, y=y, gy=gy)


class Pass:
    """A model's pass over a batch, and the step that follows when a gradient comes;
    here by autograd."""

    def __init__(self, optimizer: torch.optim.Optimizer, outputs: Tensor) -> None:
        self.optimizer = optimizer
        self.outputs = outputs

    def step(self, made: Tensor, gradient: Tensor) -> None:
        """One step of the optimizer with the gradient by something that was made of the
        outputs."""
        self.optimizer.zero_grad(set_to_none=True)
        torch.autograd.backward(made, gradient)
        self.optimizer.step()


class WrittenOut(Pass):
    """The pass of a plain chain, in buffers."""

    def __init__(self, flat: Flat, chain: Chain, x: Tensor, room: Buffers) -> None:
        room.begin()
        self.flat = flat
        self.layers = chain.over(x, room, None)
        self._versions = [parameter._version for parameter in flat.parameters]
        forward_pass(self.layers)
        super().__init__(flat.optimizer, self.layers.y[-1].detach().requires_grad_())

    def step(self, made: Tensor, gradient: Tensor) -> None:
        flat = self.flat
        if (
            not flat.stands()
            or [parameter._version for parameter in flat.parameters] != self._versions
        ):
            raise RuntimeError(
                "a parameter was changed between a pass and its gradient"
            )
        if made is not self.outputs:
            (gradient,) = torch.autograd.grad(made, self.outputs, gradient)
        SCRATCH.begin()
        room = [SCRATCH.take(tuple(y.shape), y) for y in self.layers.y]
        layers = self.layers._replace(gy=room)
        with torch.no_grad():
            run(
                step_back,
                layers,
                flat.moving(),
                flat.done,
                gradient,
                device=gradient.device,
            )
        flat.moved(1)


def forward_pass(layers: Layers) -> None:
    with torch.no_grad():
        run(forward, layers, device=layers.x.device)


def kernels(device: torch.device) -> ModuleType | None:
    """On a GPU, kernels that do in one what torch does in several; None where there is
    no Triton to make them."""
    return _kernels() if device.type == "cuda" else None


@cache
def _kernels() -> ModuleType | None:
    if importlib.util.find_spec("triton") is None:
        return None
    from colonnade.optim import kernels as module

    trial = torch.ones(1, 1, dtype=torch.float64, device="cuda")
    try:
        module.newton(trial, trial, None, 1.0, 1.0, 1)
    except Exception as error:  # as its compiler may say that it needs one of C
        warnings.warn(
            f"Triton is here and does not work, so steps take longer: {error}",
            stacklevel=2,
        )
        return None
    return module


class Arriving:
    """Numbers that a GPU may still be computing. They are on their way here, so that
    whoever reads them waits for them alone, and not for what the GPU was given to do
    meanwhile."""

    def __init__(self, numbers: Tensor) -> None:
        self._numbers = numbers
        self._here = None
        if numbers.is_cuda:
            self._numbers = torch.empty_like(
                numbers, device="cpu", pin_memory=True
            ).copy_(numbers, non_blocking=True)
            self._here = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._here.record()

    def read(self) -> list[float]:
        if self._here is not None:
            self._here.synchronize()
        return list(self._numbers.tolist())


_COMPILED: dict[Any, Any] = {}
_LOCK = threading.Lock()


def run(function: Callable[..., T], *given: Any, device: torch.device) -> T:
    """Call a function of `written_out`: compiled on a CPU, and elsewhere as it stands."""
    if device.type != "cpu":
        return function(*given)
    call = _COMPILED.get(function)
    if call is None:
        with _LOCK:  # parties in threads come here at once
            call = _COMPILED[function] = _COMPILED.get(function) or compiled(function)
    return call(*given)  # type: ignore[no-any-return]


def compiled(function: Callable[..., T]) -> Callable[..., T]:
    """The function without the interpreter, or itself where this torch or this Python
    cannot compile it."""
    with warnings.catch_warnings():
        # deprecated, but nothing else in torch does this without a compiler
        warnings.simplefilter("ignore")
        try:
            script: Callable[..., T] = torch.jit.script(function)
        # no compiler in this torch, not for this Python, or no source
        except (RuntimeError, AttributeError, OSError):
            return function
        return script


class Captured:
    """Wraps `steps(*tensors)`, which changes parameters in place, or gives new tensors,
    or both.

    Per set of shapes, the first call runs as it is, which also warms up what a capture
    needs (optimizer state, library handles); the second is captured and replayed; later
    ones copy their inputs in and replay. The optimizer's settings are part of a graph,
    so `steps` must not depend on values that change from call to call other than its
    arguments. What a replay gives is overwritten by the next.

    Steps of a model with convolutions that is not a stack are not captured: parties'
    graphs of such steps read each other's memory (an H200, torch 2.11), where one graph
    of a stack and steps without a graph are right.
    """

    def __init__(
        self, steps: Callable[..., Any], model: nn.Module | None = None
    ) -> None:
        self.steps = steps
        parts = () if model is None or isinstance(model, Stack) else model.modules()
        self.replays = not any(isinstance(part, _ConvNd) for part in parts)
        self._graphs: dict[
            tuple[Any, ...], tuple[Any, tuple[Tensor, ...], Any] | None
        ] = {}

    def __call__(self, *tensors: Tensor) -> Any:
        if tensors[0].device.type != "cuda" or not self.replays:
            return self.steps(*tensors)
        key = tuple((tuple(t.shape), t.dtype) for t in tensors)
        if key not in self._graphs:
            self._graphs[key] = None
            side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                outputs = self.steps(*tensors)
            torch.cuda.current_stream().wait_stream(side)
            return outputs
        captured = self._graphs[key]
        if captured is None:
            inputs = tuple(t.clone() for t in tensors)
            graph = torch.cuda.CUDAGraph()
            with _no_collection(), torch.cuda.graph(graph):
                outputs = self.steps(*inputs)
            captured = self._graphs[key] = graph, inputs, outputs
        graph, inputs, outputs = captured
        for kept, given in zip(inputs, tensors, strict=True):
            kept.copy_(given)
        graph.replay()
        return outputs

    def forget(self) -> None:
        """Drop the graphs: parameters or optimizer state were replaced by other
        tensors."""
        self._graphs.clear()


@contextmanager
def _no_collection() -> Iterator[None]:
    """Freeing an older graph breaks one that is being captured; Python's collector must
    do it before, or later."""
    gc.collect()
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
