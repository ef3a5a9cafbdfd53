"""Losses, each a mean over rows that says how many outputs it reads; and the z-update
by which ADMM makes one small.

With class weights a row counts as often as its class weighs, and beside it as often as
`rows` says; what is decided and scored for a row stays as it is.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from functools import cache
from typing import Protocol

import torch
from torch import Tensor
from torch.nn.functional import (
    binary_cross_entropy_with_logits,
    cross_entropy,
    mse_loss,
)

from colonnade.core.unit import AS_IT_IS, Unit
from colonnade.optim.execution import call_compiled, gpu_kernels
from colonnade.optim.written_out import newton


class Loss(Protocol):
    """`outputs` numbers per row against that row's label."""

    @property
    def outputs(self) -> int: ...

    @property
    def weights(self) -> tuple[float, ...]:
        """By class how much its rows count; empty where all count alike."""
        ...

    def __call__(
        self, outputs: Tensor, labels: Tensor, rows: Tensor | None = None
    ) -> Tensor:
        """The mean over the rows."""
        ...

    def weigh(self, labels: Tensor, rows: Tensor | None = None) -> Tensor | None:
        """How much each row counts, in float64; None where all count alike."""
        ...

    def decide(self, outputs: Tensor) -> Tensor:
        """Per row the class number, or the value."""
        ...

    def scores(self, outputs: Tensor) -> Tensor:
        """Per row and class a probability, or the value."""
        ...


FEW = 16
"""Classes up to which torch on a CPU takes up to eight times as long where a row's
outputs lie side by side. On a GPU it adds up the losses of what lies otherwise in
whatever order they come."""


@dataclass(frozen=True)
class CrossEntropy:
    """Multi-class classification: softmax over one logit per class."""

    outputs: int
    weights: tuple[float, ...] = ()  # by class number

    def __call__(
        self, outputs: Tensor, labels: Tensor, rows: Tensor | None = None
    ) -> Tensor:
        if outputs.dim() == 2 and self.outputs < FEW and outputs.device.type == "cpu":
            outputs = outputs.T[None]
            labels = labels[None]
        if (weights := self.weigh(labels, rows)) is None:
            return cross_entropy(outputs, labels)
        return (
            weights.to(outputs.dtype) * cross_entropy(outputs, labels, reduction="none")
        ).mean()

    def weigh(self, labels: Tensor, rows: Tensor | None = None) -> Tensor | None:
        return _weights(self.weights, labels, rows)

    def decide(self, outputs: Tensor) -> Tensor:
        return outputs.argmax(-1)

    def scores(self, outputs: Tensor) -> Tensor:
        return outputs.softmax(-1)


@dataclass(frozen=True)
class Logistic:
    """Binary classification with one logit; labels are 0 and 1."""

    outputs: int = 1
    weights: tuple[float, ...] = ()  # of class 0 and of class 1

    def __call__(
        self, outputs: Tensor, labels: Tensor, rows: Tensor | None = None
    ) -> Tensor:
        weights = self.weigh(labels, rows)
        weights = None if weights is None else weights.to(outputs.dtype)
        return binary_cross_entropy_with_logits(
            outputs[..., 0], labels.to(outputs.dtype), weight=weights
        )

    def weigh(self, labels: Tensor, rows: Tensor | None = None) -> Tensor | None:
        return _weights(self.weights, labels, rows)

    def decide(self, outputs: Tensor) -> Tensor:
        return (outputs[..., 0] > 0).long()

    def scores(self, outputs: Tensor) -> Tensor:
        p = outputs[..., 0].sigmoid()
        return torch.stack([1 - p, p], dim=-1)


@dataclass(frozen=True)
class Squared:
    """Regression: half the squared difference. `unit` gives labels and predictions
    their own unit again, in which they are scored."""

    outputs: int = 1
    weights: tuple[float, ...] = ()  # a number has no class
    unit: Unit = AS_IT_IS

    def __call__(
        self, outputs: Tensor, labels: Tensor, rows: Tensor | None = None
    ) -> Tensor:
        if rows is None:
            return 0.5 * mse_loss(outputs[..., 0], labels.to(outputs.dtype))
        return (
            0.5
            * (
                rows.to(outputs.dtype)
                * (outputs[..., 0] - labels.to(outputs.dtype)).square()
            ).mean()
        )

    def weigh(self, labels: Tensor, rows: Tensor | None = None) -> Tensor | None:  # noqa: ARG002
        return rows

    def decide(self, outputs: Tensor) -> Tensor:
        return outputs[..., 0]

    def scores(self, outputs: Tensor) -> Tensor:
        return outputs


def balanced(labels: Tensor, classes: int) -> tuple[float, ...]:
    """By class the weight that makes all classes count alike and a row of these 1 on
    average, as in scikit-learn; a class without a row counts as if it had one."""
    counts = (
        torch.bincount(labels.long().cpu(), minlength=classes).double().clamp_min(1)
    )
    return tuple((len(labels) / (classes * counts)).tolist())


def unweighted(loss: Loss) -> Loss:
    """The same, with all classes alike."""
    if isinstance(loss, CrossEntropy):
        return CrossEntropy(loss.outputs)
    return Logistic() if isinstance(loss, Logistic) else Squared()


def _weights(
    by_class: tuple[float, ...], labels: Tensor, rows: Tensor | None
) -> Tensor | None:
    if not by_class:
        return rows
    weights = _on(labels.device, by_class)[labels.long()]
    return weights if rows is None else weights * rows


@cache
def _on(device: torch.device, numbers: tuple[float, ...]) -> Tensor:
    """Once for all batches: nothing can be sent to a GPU while what it computes is
    captured."""
    return torch.tensor(numbers, dtype=torch.float64, device=device)


TOLERANCE = 1e-6
LEAST = 1e-9
"""What a row counts whose weight is 0: its step is divided by it."""
MAX_STEPS = 200


class ZUpdate:
    """The z-update of ADMM (Eq. 6 and 17) for one loss and rho, for a whole batch at
    once:

        z_j = argmin_z  l(z; y_j) - lambda_j^T z + rho/2 ||o_j - z||^2

    It is strictly convex and separable by row. Softmax cross-entropy has the Hessian
    diag(p) - p p^T + rho I, which Sherman-Morrison inverts in O(classes); so Newton's
    method costs a few element-wise passes per step.

    Newton alone overshoots for small rho. Here the step is t = ln(1 + b)/b with b =
    max(d) - min(d), the damping of Sun and Tran-Dinh (2019) for functions whose third
    derivative is bounded by the second times the range of the direction, as
    log-sum-exp's is: it decreases the objective at every step without evaluating it,
    and tends to a full Newton step. The work is in float64: at logits of 100, float32
    cannot even express a gradient of 1e-6. A GPU takes the steps in one kernel, and
    nobody waits for it.
    """

    def __init__(self, loss: Loss, rho: float) -> None:
        self.loss = loss
        self.rho = rho

    def __call__(
        self, logits: Tensor, duals: Tensor, labels: Tensor, rows: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Solve it for every row, to a largest gradient entry of at most 1e-6; and the
        entry that was reached."""
        o = logits.double()
        dual = duals.double()
        weights = self.loss.weigh(labels, rows)
        w = None if weights is None else weights.double()[:, None].clamp_min(LEAST)
        worst = o.new_zeros(())
        match self.loss:
            case CrossEntropy():
                z, worst = self._newton(
                    o,
                    dual,
                    torch.nn.functional.one_hot(labels, self.loss.outputs).double(),
                    w,
                )
            case Logistic():
                z, worst = self._newton(o, dual, labels.double()[:, None], w)
            case Squared():
                counts = 1.0 if w is None else w
                z = (counts * labels.double()[:, None] + dual + self.rho * o) / (
                    counts + self.rho
                )
            case loss:
                raise TypeError(
                    f"{type(loss).__name__} has no z-update; there is one for softmax,"
                    " logistic and squared."
                )
        return z.to(logits.dtype), worst

    def judge(self, worst: float) -> None:
        """Warn where it was not solved."""
        if not worst <= TOLERANCE:  # or no number
            warnings.warn(
                f"A z-update stopped after {MAX_STEPS} steps at a gradient of"
                f" {worst:.1e}; rho={self.rho}.",
                stacklevel=4,
            )

    def _newton(
        self, o: Tensor, dual: Tensor, truth: Tensor, w: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Damped Newton on z -> w (l(z) - truth^T z) - dual^T z + rho/2 ||z - o||^2,
        all rows together."""
        pull = dual + (truth if w is None else truth * w)
        own_kernels = gpu_kernels(o.device)
        if own_kernels is not None:
            return own_kernels.newton(o, pull, w, self.rho, TOLERANCE, MAX_STEPS)  # type: ignore[no-any-return]
        by_row = None if w is None else w[:, 0]
        # a CPU is faster where it adds up whole lines
        lines = o.T.contiguous(), pull.T.contiguous()
        z, worst = call_compiled(
            newton, *lines, by_row, self.rho, TOLERANCE, MAX_STEPS, device=o.device
        )
        return z.T.contiguous(), worst


def z_update(
    loss: Loss, logits: Tensor, duals: Tensor, labels: Tensor, rho: float
) -> Tensor:
    """One z-update, not to be repeated."""
    solve = ZUpdate(loss, rho)
    z, worst = solve(logits, duals, labels)
    solve.judge(float(worst))
    return z
