"""Steps of a model towards a target, or by a gradient that comes from another party.

Where the model is a chain (see `chains`), its gradients are written out, in buffers
that are used again. Every other model or optimizer goes through autograd. The model and
its optimizer end up the same either way.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from colonnade.optim.buffers import SCRATCH, Buffers
from colonnade.optim.chains import Chain
from colonnade.optim.execution import Captured, call_compiled, gpu_kernels
from colonnade.optim.written_out import (
    ChainTensors,
    forward,
    gradient_step,
    squared_error_steps,
)


class Descent:
    """A model with its optimizer, which takes steps that a caller describes.

    The model is one party's, for rows `[rows, features]`, or a stack of M parties'
    models, for rows `[M, rows, features]`.
    """

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self.model = model
        self.optimizer = optimizer
        self._pass_buffers = Buffers()  # a pass's outputs, until its gradient comes
        self._chain: Chain | None = None
        self._replayed_model = Captured(model)

    def towards(
        self,
        steps: int,
        x: Tensor,
        target: Tensor,
        *,
        rho: float,
        head: Tensor | None = None,
    ) -> None:
        """Take steps on rho/2 ||f(x) W - target||^2 / rows.

        Args:
            steps: The number of the optimizer's steps.
            x: The rows.
            target: What f(x) W should be.
            rho: The factor of the loss.
            head: The matrix W, or None for f(x) itself.
        """
        chain = self.chain_for(x)
        if chain is not None:
            self._written_out_steps(steps, chain, x, target, rho, head)
            return
        for _ in range(steps):
            self._set_gradients(x, target, rho, head)
            self.optimizer.step()

    def towards_last_first(
        self, steps: int, x: Tensor, target: Tensor, *, rho: float
    ) -> None:
        """Take steps on rho/2 ||f(x) - target||^2 / rows, each in two halves: the first
        moves the model's last parameter, and the second all others, by their gradients
        at the last parameter's new place.

        Args:
            steps: The number of steps.
            x: The rows.
            target: What f(x) should be.
            rho: The factor of the loss.
        """
        parameters: list[Tensor] = []
        for group in self.optimizer.param_groups:
            parameters += group["params"]
        for _ in range(steps):
            self._set_gradients(x, target, rho, None)
            _drop_gradients(parameters[:-1])
            self.optimizer.step()
            self._set_gradients(x, target, rho, None)
            _drop_gradients(parameters[-1:])
            self.optimizer.step()

    def outputs(self, x: Tensor) -> Tensor:
        """The model's outputs, without gradients. The next pass over a batch overwrites
        them, so they have to be released or copied before."""
        chain = self.chain_for(x)
        if chain is None:
            with torch.no_grad():
                return self.model(x)  # type: ignore[no-any-return]
        if x.device.type != "cpu":
            with torch.no_grad():
                return self._replayed_model(x)  # type: ignore[no-any-return]
        self._pass_buffers.begin()
        tensors = chain.tensors_for(x, self._pass_buffers, None)
        _forward(tensors)
        return tensors.outputs[-1]

    def over(self, x: Tensor) -> Pass:
        """Pass over a batch, for a step when its gradient comes. The next pass
        overwrites what this one remembers."""
        # a chain saves fresh memory, which costs nothing on a GPU
        chain = self.chain_for(x) if x.device.type == "cpu" else None
        if chain is not None:
            return ChainPass(chain, x, self._pass_buffers)
        with torch.enable_grad():
            return Pass(self.optimizer, self.model(x))

    def chain_for(self, x: Tensor) -> Chain | None:
        """The model as a chain, or None where autograd has to serve: for any other
        model or optimizer, and for rows of several lines each."""
        if self._chain is None or not self._chain.is_current():
            self._chain = Chain.of(self.model, self.optimizer)
            # graphs read the tensors that the model had before
            self._replayed_model.forget()
        if self._chain is None or not self._chain.reads(x):
            return None
        return self._chain

    def _set_gradients(
        self, x: Tensor, target: Tensor, rho: float, head: Tensor | None
    ) -> None:
        """Compute the gradients of rho/2 ||f(x) W - target||^2 / rows by autograd."""
        outputs = self.model(x)
        error = (outputs if head is None else outputs @ head) - target
        self.optimizer.zero_grad(set_to_none=True)
        torch.autograd.backward(rho / 2 * error.square().sum() / error.shape[-2])

    def _written_out_steps(
        self,
        steps: int,
        chain: Chain,
        x: Tensor,
        target: Tensor,
        rho: float,
        head: Tensor | None,
    ) -> None:
        """Take the steps of `towards` with gradients that are written out."""
        SCRATCH.begin()
        tensors = chain.tensors_for(x, SCRATCH, SCRATCH)
        error = target  # nobody writes there without a head
        if head is not None and x.is_cuda:
            error = SCRATCH.take(tuple(target.shape), target)
        elif head is not None:
            # a product takes a third of the time with a class's numbers side by side
            error = _side_by_side(target)
            target = _side_by_side(target).copy_(target)
        own_kernels = gpu_kernels(x.device)
        take_steps = (
            squared_error_steps
            if own_kernels is None
            else own_kernels.squared_error_steps
        )
        rows = tensors.outputs[-1].shape[-2]
        with torch.no_grad():
            call_compiled(
                take_steps,
                tensors,
                chain.flat.vectors(),
                steps,
                chain.flat.steps_done,
                target,
                rho / rows,
                head,
                error,
                device=x.device,
            )
        chain.flat.record_steps(steps)


class Pass:
    """A model's pass over a batch, by autograd, and the step that follows it when a
    gradient comes."""

    def __init__(self, optimizer: torch.optim.Optimizer, outputs: Tensor) -> None:
        self.optimizer = optimizer
        self.outputs = outputs

    def step(self, result: Tensor, gradient: Tensor) -> None:
        """Take one optimizer step.

        Args:
            result: What was computed from the outputs, such as clipped outputs, or the
                outputs themselves.
            gradient: The gradient by this result.
        """
        self.optimizer.zero_grad(set_to_none=True)
        torch.autograd.backward(result, gradient)
        self.optimizer.step()


class ChainPass(Pass):
    """A chain's pass over a batch, in buffers, with its gradients written out.

    Autograd sees the outputs as a leaf: it goes back from a result to the outputs, and
    the written-out gradients go back from there.
    """

    def __init__(self, chain: Chain, x: Tensor, buffers: Buffers) -> None:
        buffers.begin()
        self._chain = chain
        self._tensors = chain.tensors_for(x, buffers, None)
        self._versions = self._parameter_versions()
        _forward(self._tensors)
        outputs = self._tensors.outputs[-1].detach().requires_grad_()
        super().__init__(chain.flat.optimizer, outputs)

    def step(self, result: Tensor, gradient: Tensor) -> None:
        flat = self._chain.flat
        if not flat.is_current() or self._parameter_versions() != self._versions:
            raise RuntimeError(
                "a parameter was changed between a pass and its gradient"
            )
        if result is not self.outputs:
            (gradient,) = torch.autograd.grad(result, self.outputs, gradient)
        SCRATCH.begin()
        room = [SCRATCH.take(tuple(y.shape), y) for y in self._tensors.outputs]
        tensors = self._tensors._replace(output_gradients=room)
        with torch.no_grad():
            call_compiled(
                gradient_step,
                tensors,
                flat.vectors(),
                flat.steps_done,
                gradient,
                device=gradient.device,
            )
        flat.record_steps(1)

    def _parameter_versions(self) -> list[int]:
        """Torch's counters of in-place changes, one for each parameter."""
        return [parameter._version for parameter in self._chain.flat.parameters]


def _forward(tensors: ChainTensors) -> None:
    with torch.no_grad():
        call_compiled(forward, tensors, device=tensors.inputs.device)


def _side_by_side(like: Tensor) -> Tensor:
    """Room for a tensor of this shape whose columns, not rows, lie in one piece."""
    return SCRATCH.take(tuple(like.mT.shape), like).mT


def _drop_gradients(parameters: Sequence[Tensor]) -> None:
    """Drop gradients, so that the optimizer's next step leaves these parameters."""
    for parameter in parameters:
        parameter.grad = None
