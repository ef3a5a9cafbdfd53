"""The z-update is the minimum: against SciPy, by its optimality condition, and row by row."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize
from torch import Generator, Tensor
from torch.nn.functional import one_hot

from colonnade.optim import proximal
from colonnade.optim.losses import CrossEntropy, Logistic, Loss, Squared
from colonnade.optim.proximal import z_update

RHOS = [0.01, 0.05, 0.1, 0.5, 1.0, 2.0, 10.0]
SCALES = [0.1, 1.0, 10.0, 100.0]
ROWS = 6


def uniform(rows: int, columns: int, scale: float, seed: int) -> Tensor:
    return (torch.rand(rows, columns, dtype=torch.float64, generator=Generator().manual_seed(seed)) * 2 - 1) * scale


def softmax_case(scale: float, duals: str, classes: int, rows: int = ROWS) -> tuple[Tensor, Tensor, Tensor]:
    """Logits up to `scale`; duals as they occur (softmax(z) - y for some earlier z), random in their box, or 0."""
    o, before = uniform(rows, classes, scale, 1), uniform(rows, classes, scale, 2)
    labels = torch.randint(classes, (rows,), generator=Generator().manual_seed(3))
    y = one_hot(labels, classes).double()
    kinds = {
        "as they occur": before.softmax(-1) - y,
        "from these logits": o.softmax(-1) - y,
        "random": uniform(rows, classes, 1.0, 4),
        "none": torch.zeros_like(o),
    }
    return o, kinds[duals], labels


DUALS = ["as they occur", "from these logits", "random", "none"]


def softmax_objective(z: Any, o: Any, dual: Any, y: Any, rho: float) -> tuple[float, Any]:
    """l(z; y) - dual^T z + rho/2 ||o - z||^2 and its gradient, written down again in NumPy."""
    top = z.max()
    log_sum = top + np.log(np.exp(z - top).sum())
    value = log_sum - y @ z - dual @ z + rho / 2 * ((o - z) ** 2).sum()
    return value, np.exp(z - log_sum) - y - dual + rho * (z - o)


def logistic_objective(z: Any, o: Any, dual: Any, y: Any, rho: float) -> tuple[float, Any]:
    value = np.logaddexp(0, z) - y * z - dual * z + rho / 2 * (o - z) ** 2
    p = np.where(z >= 0, 1 / (1 + np.exp(-np.abs(z))), np.exp(-np.abs(z)) / (1 + np.exp(-np.abs(z))))
    return value.sum(), p - y - dual + rho * (z - o)


def hold_against_scipy(objective: Any, z: Tensor, o: Tensor, duals: Tensor, y: Tensor, rho: float) -> None:
    tight = {"maxiter": 10_000, "maxfun": 100_000, "ftol": 1e-16, "gtol": 1e-10, "maxcor": 20}
    for row in range(len(o)):
        given_ = (o[row].numpy(), duals[row].numpy(), y[row].numpy(), rho)
        found = minimize(objective, given_[0], args=given_, jac=True, method="L-BFGS-B", options=tight)
        value, gradient = objective(z[row].numpy(), *given_)
        assert value <= found.fun + 1e-8
        assert np.abs(gradient).max() <= 1e-6
        theirs = np.linalg.norm(objective(found.x, *given_)[1])
        apart = np.linalg.norm(z[row].numpy() - found.x)
        assert apart <= (np.linalg.norm(gradient) + theirs) / rho + 1e-9  # strong convexity: no further is possible
        assert apart <= 1e-3


@pytest.mark.parametrize("rho", RHOS)
@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("duals", DUALS)
def test_softmax_against_scipy(rho: float, scale: float, duals: str) -> None:
    o, dual, labels = softmax_case(scale, duals, 10)
    z = z_update(CrossEntropy(10), o, dual, labels, rho)
    hold_against_scipy(softmax_objective, z, o, dual, one_hot(labels, 10).double(), rho)


@pytest.mark.parametrize("rho", RHOS)
@pytest.mark.parametrize("scale", SCALES)
def test_logistic_against_scipy(rho: float, scale: float) -> None:
    o = uniform(ROWS, 1, scale, 1)
    labels = torch.tensor([0, 1] * (ROWS // 2))
    for dual in (uniform(ROWS, 1, scale, 2).sigmoid() - labels[:, None], uniform(ROWS, 1, 1.0, 3)):
        z = z_update(Logistic(), o, dual, labels, rho)
        hold_against_scipy(logistic_objective, z, o, dual, labels.double()[:, None], rho)


@pytest.mark.parametrize("rho", RHOS)
def test_squared_is_the_closed_form(rho: float) -> None:
    o, dual = uniform(ROWS, 1, 100.0, 1), uniform(ROWS, 1, 10.0, 2)
    labels = uniform(ROWS, 1, 50.0, 3)[:, 0]
    z = z_update(Squared(), o, dual, labels, rho)
    gradient = (z - labels[:, None]) - dual + rho * (z - o)
    assert float(gradient.abs().max()) <= 1e-10 * 100


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """One entry, the number of Newton steps so far."""
    count = [0]

    def counted(step: Any) -> Any:
        def call(*arguments: Any) -> Tensor:
            count[0] += 1
            result: Tensor = step(*arguments)
            return result

        return call

    for name in ("_softmax_step", "_logistic_step"):
        monkeypatch.setattr(proximal, name, counted(getattr(proximal, name)))
    return iter([count])  # type: ignore[return-value]


def test_newton_needs_few_steps_over_the_whole_grid(steps: Iterator[list[int]]) -> None:
    (count,) = steps
    worst = {}
    for rho in RHOS:
        for scale in SCALES:
            for duals in DUALS:
                for classes in (2, 10, 100):
                    count[0] = 0
                    o, dual, labels = softmax_case(scale, duals, classes, rows=64)
                    z_update(CrossEntropy(classes), o, dual, labels, rho)
                    worst[rho, scale, duals, classes] = count[0]
    hardest = max(worst, key=lambda case: worst[case])
    print(f"worst: {worst[hardest]} steps at {hardest}")
    for rho in (0.01, 0.1, 1.0, 2.0, 10.0):
        for duals in DUALS:
            print(rho, duals, max(n for (r, _, d, _), n in worst.items() if (r, d) == (rho, duals)))
    assert worst[hardest] < 60
