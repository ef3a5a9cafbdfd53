"""Losses, each a mean over rows, and the z-update by which ADMM makes a loss small.

Rows may count differently. Class weights say how much a row counts by its class, and
`rows` says how many rows of another table it stands for; the two are multiplied. What
is decided for a row, and the scores of its classes, do not depend on either.
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
    one_hot,
)

from colonnade.core.unit import AS_IT_IS, Unit
from colonnade.optim.execution import call_compiled, gpu_kernels
from colonnade.optim.written_out import newton


class Loss(Protocol):
    """A loss that compares each row's outputs with the row's label."""

    @property
    def outputs(self) -> int:
        """The number of outputs that the loss reads of each row."""
        ...

    @property
    def weights(self) -> tuple[float, ...]:
        """How much rows of each class count, or nothing where all count alike."""
        ...

    def __call__(
        self, outputs: Tensor, labels: Tensor, rows: Tensor | None = None
    ) -> Tensor:
        """The mean loss.

        Args:
            outputs: The model's outputs, [rows, outputs].
            labels: The class number or the value of each row.
            rows: How many times each row counts. By default once.
        """
        ...

    def weigh(self, labels: Tensor, rows: Tensor | None = None) -> Tensor | None:
        """How much each row counts, in float64, or None where all count alike."""
        ...

    def decide(self, outputs: Tensor) -> Tensor:
        """The predicted class number or value of each row."""
        ...

    def scores(self, outputs: Tensor) -> Tensor:
        """The probability of each class for each row, or the predicted value."""
        ...


FEW_CLASSES = 16
"""With fewer classes, torch's cross-entropy takes up to eight times as long on a CPU
where each row's outputs lie side by side, so they are transposed there. On a GPU it
adds up the losses of transposed outputs in an order that changes from run to run."""


@dataclass(frozen=True)
class CrossEntropy:
    """Multi-class classification: softmax over one logit per class."""

    outputs: int
    weights: tuple[float, ...] = ()  # by class number

    def __call__(
        self, outputs: Tensor, labels: Tensor, rows: Tensor | None = None
    ) -> Tensor:
        is_cpu_batch = outputs.dim() == 2 and outputs.device.type == "cpu"
        if is_cpu_batch and self.outputs < FEW_CLASSES:
            # as one row of a picture: classes first, then pixels
            outputs = outputs.T[None]
            labels = labels[None]
        weights = self.weigh(labels, rows)
        if weights is None:
            return cross_entropy(outputs, labels)
        by_row = cross_entropy(outputs, labels, reduction="none")
        return (weights.to(outputs.dtype) * by_row).mean()

    def weigh(self, labels: Tensor, rows: Tensor | None = None) -> Tensor | None:
        return _row_weights(self.weights, labels, rows)

    def decide(self, outputs: Tensor) -> Tensor:
        return outputs.argmax(-1)

    def scores(self, outputs: Tensor) -> Tensor:
        return outputs.softmax(-1)


@dataclass(frozen=True)
class Logistic:
    """Binary classification with one logit. Labels are 0 and 1."""

    outputs: int = 1
    weights: tuple[float, ...] = ()  # of class 0 and of class 1

    def __call__(
        self, outputs: Tensor, labels: Tensor, rows: Tensor | None = None
    ) -> Tensor:
        weights = self.weigh(labels, rows)
        if weights is not None:
            weights = weights.to(outputs.dtype)
        truth = labels.to(outputs.dtype)
        return binary_cross_entropy_with_logits(outputs[..., 0], truth, weight=weights)

    def weigh(self, labels: Tensor, rows: Tensor | None = None) -> Tensor | None:
        return _row_weights(self.weights, labels, rows)

    def decide(self, outputs: Tensor) -> Tensor:
        return (outputs[..., 0] > 0).long()

    def scores(self, outputs: Tensor) -> Tensor:
        p = outputs[..., 0].sigmoid()
        return torch.stack([1 - p, p], dim=-1)


@dataclass(frozen=True)
class Squared:
    """Regression: half the squared difference of one output and the label.

    Models are trained on labels without a unit. `unit` is the way back to their owner's
    own unit, in which predictions are scored.
    """

    outputs: int = 1
    weights: tuple[float, ...] = ()  # a number has no class
    unit: Unit = AS_IT_IS

    def __call__(
        self, outputs: Tensor, labels: Tensor, rows: Tensor | None = None
    ) -> Tensor:
        values = outputs[..., 0]
        truth = labels.to(outputs.dtype)
        if rows is None:
            return 0.5 * mse_loss(values, truth)
        by_row = rows.to(outputs.dtype) * (values - truth).square()
        return 0.5 * by_row.mean()

    def weigh(
        self,
        labels: Tensor,  # noqa: ARG002
        rows: Tensor | None = None,
    ) -> Tensor | None:
        return rows

    def decide(self, outputs: Tensor) -> Tensor:
        return outputs[..., 0]

    def scores(self, outputs: Tensor) -> Tensor:
        return outputs


def balanced(labels: Tensor, classes: int) -> tuple[float, ...]:
    """Class weights with which all classes count alike, and a row of `labels` counts 1
    on average, as in scikit-learn. A class without a row counts as if it had one."""
    counts = torch.bincount(labels.long().cpu(), minlength=classes)
    counts = counts.double().clamp_min(1)
    return tuple((len(labels) / (classes * counts)).tolist())


def unweighted(loss: Loss) -> Loss:
    """The same loss with all classes counted alike."""
    match loss:
        case CrossEntropy():
            return CrossEntropy(loss.outputs)
        case Logistic():
            return Logistic()
        case Squared():
            return loss  # it has no classes
    raise TypeError(
        f"{type(loss).__name__} cannot be made without class weights. Use softmax,"
        " logistic or squared loss."
    )


def _row_weights(
    class_weights: tuple[float, ...], labels: Tensor, rows: Tensor | None
) -> Tensor | None:
    """How much each row counts: its class's weight times its number in `rows`."""
    if not class_weights:
        return rows
    weights = _tensor_on(labels.device, class_weights)[labels.long()]
    return weights if rows is None else weights * rows


@cache
def _tensor_on(device: torch.device, numbers: tuple[float, ...]) -> Tensor:
    """The numbers as a tensor that is made once: nothing can be sent to a GPU while its
    work is captured as a graph."""
    return torch.tensor(numbers, dtype=torch.float64, device=device)


TOLERANCE = 1e-6
"""The largest entry of a gradient with which a z-update is solved."""
MAX_STEPS = 200
"""Newton steps of a z-update. ADMM's own problems need at most 76."""
LEAST_WEIGHT = 1e-9
"""A row with weight 0 counts this much in a z-update, which divides by the weight."""


class ZUpdate:
    """The z-update of ADMM (Eq. 6 and 17), for all rows of a batch at once:

        z_j = argmin_z  l(z; y_j) - lambda_j^T z + rho/2 ||o_j - z||^2

    Each row is a strictly convex problem of its own. Squared loss has a closed form.
    For softmax and logistic loss Newton's method costs a few element-wise passes per
    step, because the Hessian diag(p) - p p^T + rho I can be inverted in O(classes).

    Newton's full step overshoots for small rho. Here it is multiplied by ln(1 + b) / b
    with b = max(d) - min(d) for the direction d. This is the damping of Sun and
    Tran-Dinh (2019) for functions whose third derivative is bounded by the second times
    the range of the direction, as that of log-sum-exp is. Every such step decreases the
    objective, which need not be evaluated, and steps become full ones near the minimum.

    The work is in float64: at logits of 100, float32 cannot express a gradient of 1e-6.

    Args:
        loss: The loss l.
        rho: The weight of the penalty.
    """

    def __init__(self, loss: Loss, rho: float) -> None:
        self.loss = loss
        self.rho = rho

    def __call__(
        self, logits: Tensor, duals: Tensor, labels: Tensor, rows: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Solve the update for every row.

        Args:
            logits: The outputs o, [rows, outputs].
            duals: The lambdas, in the same shape.
            labels: The label of each row.
            rows: How many times each row counts. By default once.

        Returns:
            The z of every row, in the type of the logits, and the largest entry of any
            row's gradient. Pass that number to `warn_unless_solved`; on a GPU to read
            it here would wait for everything.
        """
        o = logits.double()
        dual = duals.double()
        weights = self._weights(labels, rows)
        match self.loss:
            case CrossEntropy():
                truth = one_hot(labels, self.loss.outputs).double()
                z, largest = self._newton(o, dual, truth, weights)
            case Logistic():
                truth = labels.double()[:, None]
                z, largest = self._newton(o, dual, truth, weights)
            case Squared():
                z = self._closed_form(o, dual, labels.double()[:, None], weights)
                largest = o.new_zeros(())
            case loss:
                raise TypeError(
                    f"{type(loss).__name__} has no z-update. Softmax, logistic and"
                    " squared loss have one."
                )
        return z.to(logits.dtype), largest

    def warn_unless_solved(self, largest_gradient: float) -> None:
        """Warn if an update's largest gradient entry is above the tolerance, or is not
        a number."""
        if not largest_gradient <= TOLERANCE:
            warnings.warn(
                f"A z-update stopped after {MAX_STEPS} steps at a gradient of"
                f" {largest_gradient:.1e}; rho={self.rho}.",
                stacklevel=4,
            )

    def _weights(self, labels: Tensor, rows: Tensor | None) -> Tensor | None:
        """How much each row counts, [rows, 1], or None where all count alike."""
        weights = self.loss.weigh(labels, rows)
        if weights is None:
            return None
        return weights.double()[:, None].clamp_min(LEAST_WEIGHT)

    def _closed_form(
        self, o: Tensor, dual: Tensor, truth: Tensor, weights: Tensor | None
    ) -> Tensor:
        """The minimum of w/2 (z - truth)^2 - dual z + rho/2 (z - o)^2 for every row."""
        counts = 1.0 if weights is None else weights
        return (counts * truth + dual + self.rho * o) / (counts + self.rho)

    def _newton(
        self, o: Tensor, dual: Tensor, truth: Tensor, weights: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Minimise w (l(z) - truth^T z) - dual^T z + rho/2 ||z - o||^2 for every row,
        where l(z) is the loss without its linear term."""
        pull = dual + (truth if weights is None else truth * weights)
        own_kernels = gpu_kernels(o.device)
        if own_kernels is not None:
            return own_kernels.newton(  # type: ignore[no-any-return]
                o, pull, weights, self.rho, TOLERANCE, MAX_STEPS
            )
        z, largest = call_compiled(
            newton,
            o.T.contiguous(),  # a CPU is faster where it adds up whole lines
            pull.T.contiguous(),
            None if weights is None else weights[:, 0],
            self.rho,
            TOLERANCE,
            MAX_STEPS,
            device=o.device,
        )
        return z.T.contiguous(), largest


def z_update(
    loss: Loss, logits: Tensor, duals: Tensor, labels: Tensor, rho: float
) -> Tensor:
    """Solve one z-update, and warn if that did not succeed. See `ZUpdate`."""
    update = ZUpdate(loss, rho)
    z, largest_gradient = update(logits, duals, labels)
    update.warn_unless_solved(float(largest_gradient))
    return z
