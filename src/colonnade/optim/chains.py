"""Chains: models of linear layers with simple activations, whose gradients are written
out instead of computed by autograd.

Autograd allocates every activation and every gradient anew in each step, and on a CPU
fresh pages cost as much as the arithmetic. A chain's gradients are two products per
layer, written into buffers that are used again, and SGD or Adam moves all parameters as
one vector. A GPU that replays such steps as a graph has half as many kernels to run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from colonnade.optim.buffers import Buffers
from colonnade.optim.written_out import (
    NO_ACTIVATION,
    RELU,
    SIGMOID,
    TANH,
    ChainTensors,
    OptimizerVectors,
)

ACTIVATIONS: dict[type[nn.Module], int] = {
    nn.ReLU: RELU,
    nn.Tanh: TANH,
    nn.Sigmoid: SIGMOID,
}
"""Activations whose slope can be computed from their output."""

STEP = "step"
"""The name under which torch's Adam remembers how many steps a parameter has taken."""

ADAM_EXTRAS = (
    "amsgrad",
    "capturable",
    "differentiable",
    "fused",
    "decoupled_weight_decay",
)
"""Options of torch's Adam that `written_out.adam_step` does not have."""


@runtime_checkable
class Stack(Protocol):
    """Several parties' models that run as one."""

    @property
    def stacked_chain(self) -> nn.Sequential | None:
        """The layers with stacked parameters, where running them one after the other is
        all there is to do."""
        ...


def layers_of(model: nn.Module) -> list[nn.Module] | None:
    """List the layers of a model that only runs its layers one after the other.

    Returns None for any other model, and wherever gradients that are computed layer by
    layer would not be autograd's: where a hook may change what a layer gives, where
    layers share a parameter, or where a parameter is not trained.
    """
    layers = model.stacked_chain if isinstance(model, Stack) else model
    if type(layers) is not nn.Sequential:  # a subclass may have a forward of its own
        return None
    if any(hooks_of(model)):
        return None
    named = layers.named_parameters(remove_duplicate=False)
    parameters = [parameter for _, parameter in named]
    are_shared = len(parameters) != len(set(parameters))
    are_trained = all(parameter.requires_grad for parameter in parameters)
    if are_shared or not are_trained:
        return None
    return [layer for layer in layers if type(layer) is not nn.Identity]


def hooks_of(model: nn.Module) -> list[Any]:
    """The collections of hooks of a model and all of its parts. Most are empty."""
    hooks: list[Any] = []
    for part in model.modules():
        hooks += [part._forward_hooks, part._forward_pre_hooks, part._backward_hooks]
    return hooks


class DenseLayer(NamedTuple):
    """A linear layer and the activation after it."""

    linear: nn.Linear
    activation: int


def dense_layers(layers: Sequence[nn.Module]) -> list[DenseLayer] | None:
    """Read layers as linear ones with at most one activation after each, or return None
    where they are anything else."""
    dense: list[DenseLayer] = []
    for layer in layers:
        if type(layer) is nn.Linear:
            dense.append(DenseLayer(layer, NO_ACTIVATION))
            continue
        activation = ACTIVATIONS.get(type(layer))
        follows_linear = bool(dense) and dense[-1].activation == NO_ACTIVATION
        if activation is None or not follows_linear:
            return None
        dense[-1] = DenseLayer(dense[-1].linear, activation)
    return dense or None


def state_names(optimizer: torch.optim.Optimizer) -> tuple[str, ...] | None:
    """The names under which an optimizer remembers something of each parameter.

    Returns None for an optimizer that does more than `written_out.optimizer_step`.
    """
    if len(optimizer.param_groups) != 1:
        return None
    (group,) = optimizer.param_groups
    if type(optimizer) is torch.optim.SGD:
        return ("momentum_buffer",) if group["momentum"] else ()
    if type(optimizer) is not torch.optim.Adam:
        return None
    if any(group.get(name) for name in ADAM_EXTRAS):
        return None
    return ("exp_avg", "exp_avg_sq", STEP)


class FlatOptimizer:
    """An SGD or Adam whose tensors lie side by side in one vector of each kind: all
    parameters, all gradients, and each of its moments.

    The model's parameters and the optimizer's own state become views of these vectors.
    So nothing is ever copied back, and a checkpoint is the same with and without this
    object.

    Args:
        optimizer: The optimizer. It may have taken steps before.
        names: What `state_names` returned for it.
    """

    def __init__(
        self, optimizer: torch.optim.Optimizer, names: tuple[str, ...]
    ) -> None:
        (self.group,) = optimizer.param_groups
        self.parameters: list[nn.Parameter] = self.group["params"]
        self.optimizer = optimizer
        self.names = names
        self.values = torch.cat([value.detach().flatten() for value in self.parameters])
        self.gradients = torch.zeros_like(self.values)
        self.moments = [torch.zeros_like(self.values) for name in names if name != STEP]
        self.steps_done = 0
        states = [optimizer.state.get(parameter, {}) for parameter in self.parameters]
        has_begun = all(
            state.get(name) is not None for state in states for name in names
        )
        if has_begun:
            self._read_state(states)
        self._step_counts = torch.full((len(self.parameters),), float(self.steps_done))
        self._state_views = self._views_for_state()
        views = self.each(self.values)
        for parameter, view in zip(self.parameters, views, strict=True):
            parameter.data = view
        self._addresses = [parameter.data_ptr() for parameter in self.parameters]
        if has_begun:
            self._give_state()

    def is_current(self) -> bool:
        """Whether the model and the optimizer still use views of these vectors. To load
        a checkpoint, for one, gives an optimizer other tensors."""
        addresses = [parameter.data_ptr() for parameter in self.parameters]
        if addresses != self._addresses:
            return False
        if not self.names or not self.steps_done:
            return not any(self.optimizer.state.values())
        # the state is in the order of the parameters: to look one up hashes a tensor
        pairs = zip(self.optimizer.state.values(), self._state_views, strict=False)
        is_ours = [
            state.get(name) is view
            for state, views in pairs
            for name, view in views.items()
        ]
        return all(is_ours) and len(is_ours) == len(self.names) * len(self.parameters)

    def vectors(self) -> OptimizerVectors:
        """The vectors, with the optimizer's settings as they are now."""
        names = ["lr", "weight_decay", "maximize"]
        if STEP not in self.names:
            names += ["momentum", "dampening", "nesterov"]
        settings = {name: float(self.group[name]) for name in names}
        if STEP in self.names:
            beta1, beta2 = self.group["betas"]
            settings["momentum"] = float(beta1)
            settings["second_momentum"] = float(beta2)
            settings["eps"] = float(self.group["eps"])
        # TorchScript takes no empty list; without momentum nobody reads this vector
        moments = self.moments or [self.values]
        return OptimizerVectors(self.values, self.gradients, moments, settings)

    def record_steps(self, steps: int) -> None:
        """Let the optimizer's state say that these steps were taken."""
        if not self.steps_done:
            self._give_state()
        self.steps_done += steps
        if STEP in self.names:
            self._step_counts.fill_(float(self.steps_done))

    def each(self, vector: Tensor) -> list[Tensor]:
        """Cut a vector into views with the shapes of the parameters."""
        sizes = [parameter.numel() for parameter in self.parameters]
        parts = vector.split(sizes)  # type: ignore[no-untyped-call]
        return [
            part.view_as(parameter)
            for part, parameter in zip(parts, self.parameters, strict=True)
        ]

    def _read_state(self, states: Sequence[Mapping[str, Tensor]]) -> None:
        """Copy what the optimizer remembers from the steps that it took before."""
        for name, moment in zip(self.names, self.moments, strict=False):
            moment.copy_(torch.cat([state[name].flatten() for state in states]))
        if STEP in self.names:
            self.steps_done = int(states[0][STEP])
        elif self.names:
            # SGD does not count, and only its first step differs from the others
            self.steps_done = 1

    def _views_for_state(self) -> list[dict[str, Tensor]]:
        """The optimizer's state for each parameter, as views of the vectors."""
        # the moments come first in the names
        parts = dict(zip(self.names, map(self.each, self.moments), strict=False))
        if STEP in self.names:
            parts[STEP] = list(self._step_counts.unbind())
        states: list[dict[str, Tensor]] = []
        for number in range(len(self.parameters)):
            states.append({name: views[number] for name, views in parts.items()})
        return states

    def _give_state(self) -> None:
        """Put the views into the optimizer, in the order of the parameters."""
        if not self.names:
            return
        state = self.optimizer.state
        for parameter, views in zip(self.parameters, self._state_views, strict=True):
            state[parameter] = state.pop(parameter, {}) | views


class Chain:
    """A model of linear layers whose parameters lie in an optimizer's vectors.

    `Chain.of` makes one where model and optimizer allow it.

    Args:
        model: The model. It is watched for hooks and for parameters that are frozen.
        flat: The vectors of the model's optimizer.
        flattens: The layers that flatten rows before the first linear layer.
        layers: The linear layers with their activations.
    """

    def __init__(
        self,
        model: nn.Module,
        flat: FlatOptimizer,
        flattens: Sequence[nn.Flatten],
        layers: Sequence[DenseLayer],
    ) -> None:
        self.flat = flat
        self._flattens = flattens
        self._model_parameters = list(model.parameters())
        self._hooks = hooks_of(model)
        values = dict(zip(flat.parameters, flat.each(flat.values), strict=True))
        gradients = dict(zip(flat.parameters, flat.each(flat.gradients), strict=True))
        # inputs and room for results are filled in by `tensors_for`
        self._tensors = ChainTensors(flat.values, [], [], [], [], [], [], [])
        for layer in layers:
            parameters = dict(layer.linear.named_parameters())
            weight = parameters["weight"]
            bias = parameters.get("bias")
            self._tensors.weights.append(values[weight])
            self._tensors.weight_gradients.append(gradients[weight])
            self._tensors.biases.append(_as_row(values, bias))
            self._tensors.bias_gradients.append(_as_row(gradients, bias))
            self._tensors.activations.append(layer.activation)

    @classmethod
    def of(cls, model: nn.Module, optimizer: torch.optim.Optimizer) -> Chain | None:
        """Read a model as a chain and lay its optimizer's tensors side by side.

        Returns None, and changes nothing, where a layer or the optimizer is of another
        kind, or the optimizer moves other parameters than those of the layers.
        """
        layers = layers_of(model)
        names = state_names(optimizer)
        if layers is None or names is None:
            return None
        flattens: list[nn.Flatten] = []
        while layers and type(layers[0]) is nn.Flatten:
            flattens.append(layers.pop(0))  # type: ignore[arg-type]
        dense = dense_layers(layers)
        if dense is None:
            return None
        trained = {weight for layer in dense for weight in layer.linear.parameters()}
        (group,) = optimizer.param_groups
        if trained != set(group["params"]):
            return None
        return cls(model, FlatOptimizer(optimizer, names), flattens, dense)

    def is_current(self) -> bool:
        """Whether nobody has since added a hook, frozen a parameter, or replaced a
        tensor of the model or the optimizer."""
        if any(self._hooks) or not self.flat.is_current():
            return False
        return all(parameter.requires_grad for parameter in self._model_parameters)

    def reads(self, x: Tensor) -> bool:
        """Whether x has one line of numbers for each row. Of several lines for a row a
        linear layer would read each by itself."""
        return self._lines(x).dim() == self._tensors.weights[0].dim()

    def tensors_for(
        self, x: Tensor, outputs: Buffers, gradients: Buffers | None
    ) -> ChainTensors:
        """The chain's tensors for these rows.

        Args:
            x: The rows, in the shape that the model takes.
            outputs: Where the layers' outputs are written.
            gradients: Where the gradients by these outputs are written, or None for a
                forward pass alone.
        """
        lines = self._lines(x)
        shapes = [
            (*lines.shape[:-1], weight.shape[-2]) for weight in self._tensors.weights
        ]
        output_room = [outputs.take(shape, lines) for shape in shapes]
        gradient_room: list[Tensor] = []
        if gradients is not None:
            gradient_room = [gradients.take(shape, lines) for shape in shapes]
        return self._tensors._replace(
            inputs=lines, outputs=output_room, output_gradients=gradient_room
        )

    def _lines(self, x: Tensor) -> Tensor:
        """What the first linear layer reads of the rows."""
        for layer in self._flattens:
            x = x.flatten(layer.start_dim, layer.end_dim)
        return x


def _as_row(
    views: Mapping[nn.Parameter, Tensor], bias: nn.Parameter | None
) -> Tensor | None:
    """A layer's bias as a row that is added to all rows, or None without a bias."""
    return None if bias is None else views[bias].unsqueeze(-2)
