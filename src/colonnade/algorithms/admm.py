"""What VIMADMM and VIMADMM-J have in common: parties that step towards a target, and a label owner with lambda.

Xie, Chen, Zhang and Li, 2022 (arXiv:2207.10226). For each batch B, with logits o:

    party k:      sends what its model gives for B, and remembers it              Embed -> Embedding
    label owner:  z = argmin l(z; y) - lambda^T z + rho/2 ||o - z||^2             Eq. 6 and 17
                  lambda <- lambda + rho (o - z)                                  Eq. 7 and 18
    party k:      tau steps towards a target formed from what it sent             Eq. 10, 20 and 21
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from colonnade.algorithms.algorithm import Kind, Release
from colonnade.algorithms.embedding import Embed, Embedding
from colonnade.core import Organisation, State, mapped_zeros, roles, serves
from colonnade.optim.descent import Arriving, Captured, Descent, kernels
from colonnade.optim.losses import CrossEntropy, Logistic, Loss, Squared, make_optimizer

Arithmetic = Callable[..., tuple[Tensor, ...]]
RESIDUAL = Release(
    Kind.RESIDUAL,
    of="labels",
    per_row=True,
    tells="per row a vector that follows the label: labels can be guessed from it",
)


class FeatureOwner(roles.FeatureOwner):
    """Holds columns and a model, and remembers what it sent until it is told what to make of it."""

    released_as: str
    optimizer: torch.optim.Optimizer
    _local_steps: Callable[..., None]  # tau of them, in place; each algorithm's own
    _pending: tuple[str, Tensor, Tensor] | None = None

    def __init__(self, organisation: Organisation, features: Tensor, model: nn.Module, config: Any) -> None:
        super().__init__(organisation, features, model, config)
        self.optimizer = make_optimizer(self.model.parameters(), config)

    @cached_property
    def descent(self) -> Descent:
        return Descent(self.model, self.optimizer)

    @cached_property
    def _descend(self) -> Captured:
        return Captured(self._local_steps, self.model)

    @property
    def steps_at_once(self) -> int:
        return int(self.config.local_steps)

    @serves
    def embed(self, request: Embed, asker: str | None) -> Embedding:
        training, x = self.training(request.batch), self.x(request.batch)
        with torch.no_grad():
            h = self.descent.outputs(x) if training else self.model(x)
        sent = self.outbox.release(h, self.released_as, request.batch, to=asker)
        if training:
            self._pending = request.batch, self.outbox.own(sent), x
        return Embedding(sent)

    def sent(self, batch: str) -> tuple[Tensor, Tensor]:
        """What was sent for the pending batch, which is pending no longer, and the columns that it was made of."""
        _, sent, x = self.expect_pending(self._pending, batch, "variables came")
        self._pending = None
        return sent, x

    def load_state(self, state: State) -> None:
        super().load_state(state)
        vars(self).pop("_descend", None)


class LabelOwner(roles.LabelOwner):
    """Holds labels, and the duals lambda (one row per training row)."""

    loss: Loss
    arithmetic: Arithmetic  # of a batch; each algorithm's own
    looks_at_nothing = True  # whether that depends on no value that is computed in it

    def meet(self, introductions: Mapping[str, roles.Introduction]) -> None:
        super().meet(introductions)
        self.duals = mapped_zeros((len(self.labels), self.loss.outputs), device=self.device)
        self._solve = ZUpdate(self.loss, self.config.rho)

    @cached_property
    def _arithmetic(self) -> Arithmetic:
        """A batch's, which a GPU replays where it need not wait for anything."""
        replays = self.looks_at_nothing and kernels(self.device) is not None
        return Captured(self.arithmetic) if replays else self.arithmetic

    def split(self, o: Tensor, duals: Tensor, *y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The new z and lambda of a batch's rows; and the loss before, with how far a z is from its minimum at most."""
        z, worst = self._solve(o, duals, *y)
        return z, duals + self.config.rho * (o - z), torch.stack([self.loss(o, *y).double(), worst])

    def advance(self, batch: str, *tensors: Tensor) -> tuple[Arriving, Tensor, Sequence[Tensor]]:
        """Do a batch's arithmetic, and remember the new lambda; z is found anew from it the next time. Returns what
        `loss_of` reads, r, and more."""
        rows = self.rows(batch)
        counts = self.counts(rows)
        known = self.duals[rows], self.y(batch), *(() if counts is None else (counts,))
        r, self.duals[rows], measures, *more = self._arithmetic(*tensors, *known)
        return Arriving(measures), r, more

    def loss_of(self, measures: Arriving) -> float:
        """A batch's loss; where its z was not found, that is said."""
        loss, worst = measures.read()
        self._solve.judge(worst)
        return loss

    def state(self) -> State:
        return super().state() | {"duals": self.duals}

    def load_state(self, state: State) -> None:
        super().load_state(state)
        if state["duals"].shape == self.duals.shape:
            self.duals.copy_(state["duals"])
        else:  # loaded to predict other rows than it was trained with
            self.duals = state["duals"].to(self.device)


TOLERANCE = 1e-6
LEAST = 1e-9
"""What a row counts whose weight is 0: its step is divided by it."""
MAX_STEPS = 200


class ZUpdate:
    """The z-update of ADMM (Eq. 6 and 17) for one loss and rho, for a whole batch at once:

        z_j = argmin_z  l(z; y_j) - lambda_j^T z + rho/2 ||o_j - z||^2

    It is strictly convex and separable by row. Softmax cross-entropy has the Hessian diag(p) - p p^T + rho I, which
    Sherman-Morrison inverts in O(classes); so Newton's method costs a few element-wise passes per step.

    Newton alone overshoots for small rho. Here the step is t = ln(1 + b)/b with b = max(d) - min(d), the damping of
    Sun and Tran-Dinh (2019) for functions whose third derivative is bounded by the second times the range of the
    direction, as log-sum-exp's is: it decreases the objective at every step without evaluating it, and tends to a full
    Newton step. The work is in float64: at logits of 100, float32 cannot even express a gradient of 1e-6. A GPU takes
    the steps in one kernel, and nobody waits for it.
    """

    def __init__(self, loss: Loss, rho: float) -> None:
        self.loss, self.rho = loss, rho

    def __call__(
        self, logits: Tensor, duals: Tensor, labels: Tensor, rows: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Solve it for every row, to a largest gradient entry of at most 1e-6; and the entry that was reached."""
        o, dual, weights = logits.double(), duals.double(), self.loss.weigh(labels, rows)
        w = None if weights is None else weights.double()[:, None].clamp_min(LEAST)
        worst = o.new_zeros(())
        match self.loss:
            case CrossEntropy():
                z, worst = self._newton(o, dual, torch.nn.functional.one_hot(labels, self.loss.outputs).double(), w)
            case Logistic():
                z, worst = self._newton(o, dual, labels.double()[:, None], w)
            case Squared():
                counts = 1.0 if w is None else w
                z = (counts * labels.double()[:, None] + dual + self.rho * o) / (counts + self.rho)
            case loss:
                raise TypeError(
                    f"{type(loss).__name__} has no z-update; there is one for softmax, logistic and squared."
                )
        return z.to(logits.dtype), worst

    def judge(self, worst: float) -> None:
        """Warn where it was not solved."""
        if not worst <= TOLERANCE:  # or no number
            warnings.warn(
                f"A z-update stopped after {MAX_STEPS} steps at a gradient of {worst:.1e}; rho={self.rho}.",
                stacklevel=4,
            )

    def _newton(self, o: Tensor, dual: Tensor, truth: Tensor, w: Tensor | None) -> tuple[Tensor, Tensor]:
        """Damped Newton on z -> w (l(z) - truth^T z) - dual^T z + rho/2 ||z - o||^2, all rows together."""
        pull = dual + (truth if w is None else truth * w)
        own_kernels = kernels(o.device)
        if own_kernels is not None:
            return own_kernels.newton(o, pull, w, self.rho, TOLERANCE, MAX_STEPS)  # type: ignore[no-any-return]
        z = o
        for _ in range(MAX_STEPS):
            z, gradient = self._newton_step(z, o, pull, w)
            if gradient <= TOLERANCE:
                break
        return z, gradient

    def _newton_step(self, z: Tensor, o: Tensor, pull: Tensor, w: Tensor | None) -> tuple[Tensor, Tensor]:
        """A step, and the largest gradient entry before it; a row that counts w divides gradient and rho by w."""
        step, p = (_softmax_step, z.softmax(-1)) if z.shape[-1] > 1 else (_logistic_step, z.sigmoid())
        gradient = (p if w is None else p * w) - pull + self.rho * (z - o)
        d = step(p, gradient, self.rho) if w is None else step(p, gradient / w, self.rho / w)
        spread = d.amax(-1, keepdim=True).clamp_min(0) - d.amin(-1, keepdim=True).clamp_max(0)
        z = z - d * torch.where(spread > 1e-12, torch.log1p(spread) / spread.clamp_min(1e-12), 1.0)
        return z, gradient.abs().max()


def z_update(loss: Loss, logits: Tensor, duals: Tensor, labels: Tensor, rho: float) -> Tensor:
    """One z-update, not to be repeated."""
    solve = ZUpdate(loss, rho)
    z, worst = solve(logits, duals, labels)
    solve.judge(float(worst))
    return z


def _softmax_step(p: Tensor, gradient: Tensor, rho: float | Tensor) -> Tensor:
    """(diag(p + rho) - p p^T)^-1 gradient; 1 - p^T D^-1 p is written as rho sum p/(p + rho), which never cancels."""
    d = 1 / (p + rho)
    pd = p * d
    share = (pd * gradient).sum(-1, keepdim=True) / (rho * pd.sum(-1, keepdim=True))
    return d * gradient + pd * share


def _logistic_step(p: Tensor, gradient: Tensor, rho: float | Tensor) -> Tensor:
    return gradient / (p * (1 - p) + rho)
