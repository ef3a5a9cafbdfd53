"""M equal modules as one, with parameters stacked on a leading axis: one kernel where there were M."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.modules.conv import _ConvNd
from torch.nn.modules.dropout import _DropoutNd

from colonnade.core.party import State
from colonnade.transport.computing import at_once

ELEMENTWISE = (nn.ReLU, nn.ELU, nn.GELU, nn.Tanh, nn.Sigmoid, nn.SiLU, nn.LeakyReLU, nn.Identity)


class Stacked(nn.Module):
    """`[M, rows, ...] -> [M, rows, width]`, the k-th slice through the k-th module.

    Its state dict has the modules' own names, each tensor with the M in front. A plain chain of linear layers and
    element-wise activations runs as batched matrix products; everything else through `vmap`, or `abreast` each slice
    through a module of its own, on a GPU on a stream of its own.
    """

    def __init__(self, modules: Sequence[nn.Module], *, abreast: bool = False) -> None:
        super().__init__()
        self.abreast = abreast
        self.one = copy.deepcopy(modules[0])
        for path, submodule in self.one.named_modules():
            for name in list(submodule._parameters):
                twins = [module.get_submodule(path)._parameters[name] for module in modules]
                if twins[0] is not None:
                    stacked = torch.stack([twin.detach() for twin in twins if twin is not None])
                    submodule._parameters[name] = nn.Parameter(stacked, requires_grad=twins[0].requires_grad)
        self._base = [copy.deepcopy(modules[0]).to("meta")]  # in a list: not a submodule
        self._chain = is_chain(modules[0])

    @property
    def stacked_chain(self) -> nn.Sequential | None:
        """The layers, with stacked parameters, where running them one after the other is all there is to do."""
        return self.one if self._chain and isinstance(self.one, nn.Sequential) else None

    def forward(self, x: Tensor) -> Tensor:
        if self.stacked_chain is not None:
            for layer in self.stacked_chain:
                x = _stacked_linear(layer, x) if isinstance(layer, nn.Linear) else layer(x)
            return x
        base = self._base[0].train(self.training)
        if self.abreast:
            each = zip(*(parameter.unbind() for parameter in self.one.parameters()), strict=True)
            names = [name for name, _ in self.one.named_parameters()]
            own = [dict(zip(names, parameters, strict=True)) for parameters in each]
            tasks = [partial(functional_call, base, mine, (rows,)) for mine, rows in zip(own, x, strict=True)]
            return torch.stack(at_once(tasks, x.device))
        call = torch.vmap(lambda parameters, rows: functional_call(base, parameters, (rows,)))
        return call(dict(self.one.named_parameters()), x)  # type: ignore[no-any-return]

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        return self.one.state_dict(*args, **kwargs)

    def load_state_dict(self, state_dict: Any, *args: Any, **kwargs: Any) -> Any:
        return self.one.load_state_dict(state_dict, *args, **kwargs)


def why_not_stackable(module: nn.Module) -> str | None:
    """Why a module cannot be stacked, or None: stacked runs must equal the runs one by one."""
    if next(module.buffers(), None) is not None:
        return "its model keeps buffers (batch statistics)"
    if any(isinstance(part, _DropoutNd) for part in module.modules()):
        return "its model draws random numbers (dropout)"
    if len(list(module.named_parameters(remove_duplicate=False))) != len(list(module.parameters())):
        return "its model uses a parameter in two places"
    if any(parameter.dim() == 0 for parameter in module.parameters()):
        return "its model has a parameter that is a single number"
    return None


def share_memory(whole: nn.Module, modules: Sequence[nn.Module]) -> None:
    """Make the modules' parameters views of those of their stack: what is done to one of both is done to the other."""
    for stacked, *parts in zip(whole.parameters(), *(module.parameters() for module in modules), strict=True):
        for index, part in enumerate(parts):
            part.data = stacked.data[index]


def better_abreast(module: nn.Module) -> bool:
    """Whether it has convolutions of several channels and is on a GPU. Stacked they become grouped ones, and an H200
    takes four times as long for those as for the same convolutions side by side (5 of 32 channels on 28 x 28: 3.0
    against 0.8 ms a step)."""
    on_gpu = any(parameter.device.type == "cuda" for parameter in module.parameters())
    return on_gpu and any(isinstance(part, _ConvNd) and part.in_channels > 1 for part in module.modules())


def alike(states: Sequence[Any]) -> bool:
    """Whether M states can be one: the same names and shapes, and equal values where `stack` keeps only the first."""
    first = states[0]
    if any(type(state) is not type(first) for state in states):
        return False
    if isinstance(first, Tensor):
        return all(s.shape == first.shape and (s.dim() > 0 or torch.equal(s, first)) for s in states)
    if isinstance(first, dict):
        same = all(state.keys() == first.keys() for state in states)
        return same and all(alike([state[key] for state in states]) for key in first)
    if isinstance(first, list):
        same = all(len(state) == len(first) for state in states)
        return same and all(alike([state[index] for state in states]) for index in range(len(first)))
    return all(state == first for state in states)


def stack(states: Sequence[Any]) -> Any:
    """One state from M: tensors stacked, everything else from the first (step counters are equal by construction)."""
    first = states[0]
    if isinstance(first, Tensor):
        return torch.stack(list(states)) if first.dim() else first
    if isinstance(first, dict):
        return {key: stack([state[key] for state in states]) for key in first}
    if isinstance(first, list):
        return [stack([state[index] for state in states]) for index in range(len(first))]
    return first


def slice_(state: Any, index: int) -> Any:
    """The index-th of M states that were stacked."""
    if isinstance(state, Tensor):
        return state[index].clone() if state.dim() else state.clone()
    if isinstance(state, dict):
        return {key: slice_(value, index) for key, value in state.items()}
    if isinstance(state, list):
        return [slice_(value, index) for value in state]
    return state


def unstack(state: State, count: int) -> list[State]:
    """The M states in a stacked one."""
    return [slice_(state, index) for index in range(count)]


def is_chain(module: nn.Module) -> bool:
    """Whether the layers can be run here, one after the other: none of their own making, and none watched by hooks."""
    layers = list(module) if type(module) is nn.Sequential else []
    hooked = any(part._forward_hooks or part._forward_pre_hooks for part in module.modules())
    known = (
        type(layer) in (nn.Linear, *ELEMENTWISE) or (type(layer) is nn.Flatten and layer.start_dim < 0)
        for layer in layers
    )
    return bool(layers) and not hooked and all(known)


def _stacked_linear(layer: nn.Linear, x: Tensor) -> Tensor:
    bias: Tensor | None = layer.bias
    if x.dim() > 3:
        return _stacked_linear(layer, x.flatten(1, -2)).reshape(*x.shape[:-1], -1)
    return torch.bmm(x, layer.weight.mT) if bias is None else torch.baddbmm(bias[:, None], x, layer.weight.mT)
