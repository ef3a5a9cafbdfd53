"""The z-update of ADMM (VIM, Eq. 6 and 17), for a whole batch at once:

    z_j = argmin_z  l(z; y_j) - lambda_j^T z + rho/2 ||o_j - z||^2

It is strictly convex and separable by row. Softmax cross-entropy has the Hessian diag(p) - p p^T + rho I, which
Sherman-Morrison inverts in O(classes); so Newton's method costs a few element-wise passes per step.

Newton alone overshoots for small rho. Here the step is t = ln(1 + b)/b with b = max(d) - min(d), the damping of
Sun and Tran-Dinh (2019) for functions whose third derivative is bounded by the second times the range of the
direction, as log-sum-exp's is: it decreases the objective at every step without evaluating it, and tends to a full
Newton step. The work is in float64: at logits of 100, float32 cannot even express a gradient of 1e-6.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable

import torch
from torch import Tensor

from colonnade.optim.losses import CrossEntropy, Logistic, Loss, Squared

TOLERANCE = 1e-6
MAX_STEPS = 200


def z_update(loss: Loss, logits: Tensor, duals: Tensor, labels: Tensor, rho: float) -> Tensor:
    """Solve the z-update for every row, to a largest gradient entry of at most 1e-6."""
    o, dual = logits.double(), duals.double()
    match loss:
        case CrossEntropy():
            target = torch.nn.functional.one_hot(labels, loss.outputs).double()
            z = _newton(o, dual + target, rho, _softmax_step)
        case Logistic():
            z = _newton(o, dual + labels.double()[:, None], rho, _logistic_step)
        case Squared():
            z = (labels.double()[:, None] + dual + rho * o) / (1 + rho)
        case _:
            raise TypeError(f"{type(loss).__name__} has no z-update; there is one for softmax, logistic and squared.")
    return z.to(logits.dtype)


def _newton(o: Tensor, pull: Tensor, rho: float, step: Callable[[Tensor, Tensor, Tensor, float], Tensor]) -> Tensor:
    """Damped Newton on z -> l(z) - pull^T z + rho/2 ||z - o||^2, all rows together."""
    z = o.clone()
    check = 1 if z.device.type == "cpu" else 4  # on a GPU a look at the gradient costs as much as several steps
    for count in range(MAX_STEPS):
        p = _probabilities(z)
        gradient = p - pull + rho * (z - o)
        if count % check == 0 and float(gradient.abs().max()) <= TOLERANCE:
            break
        d = step(p, gradient, z, rho)
        spread = d.amax(-1, keepdim=True).clamp_min(0) - d.amin(-1, keepdim=True).clamp_max(0)
        z = z - d * torch.where(spread > 1e-12, torch.log1p(spread) / spread.clamp_min(1e-12), 1.0)
    else:
        found = f"at a gradient of {float(gradient.abs().max()):.1e}; rho={rho}."
        warnings.warn(f"A z-update stopped after {MAX_STEPS} steps {found}", stacklevel=3)
    return z


def _probabilities(z: Tensor) -> Tensor:
    return z.softmax(-1) if z.shape[-1] > 1 else z.sigmoid()


def _softmax_step(p: Tensor, gradient: Tensor, z: Tensor, rho: float) -> Tensor:  # noqa: ARG001
    """(diag(p + rho) - p p^T)^-1 gradient; 1 - p^T D^-1 p is written as rho sum p/(p + rho), which never cancels."""
    d = 1 / (p + rho)
    pd = p * d
    share = (pd * gradient).sum(-1, keepdim=True) / (rho * pd.sum(-1, keepdim=True))
    return d * gradient + pd * share


def _logistic_step(p: Tensor, gradient: Tensor, z: Tensor, rho: float) -> Tensor:  # noqa: ARG001
    return gradient / (p * (1 - p) + rho)
