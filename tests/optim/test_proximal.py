"""The z-update is the minimum: against SciPy, by its optimality condition, and row by
row."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize
from torch import Generator, Tensor
from torch.nn.functional import one_hot

from colonnade.optim import losses
from colonnade.optim.losses import CrossEntropy, Logistic, Loss, Squared, z_update

RHOS = [0.01, 0.05, 0.1, 0.5, 1.0, 2.0, 10.0]
SCALES = [0.1, 1.0, 10.0, 100.0]
ROWS = 6


def uniform(rows: int, columns: int, scale: float, seed: int) -> Tensor:
    """Random numbers between -scale and scale."""
    generator = Generator().manual_seed(seed)
    drawn = torch.rand(rows, columns, dtype=torch.float64, generator=generator)
    return (drawn * 2 - 1) * scale


def softmax_case(
    scale: float, duals: str, classes: int, rows: int = ROWS
) -> tuple[Tensor, Tensor, Tensor]:
    """Logits up to `scale`; duals as they occur (softmax(z) - y for some earlier z),
    random in their box, or 0."""
    o = uniform(rows, classes, scale, 1)
    before = uniform(rows, classes, scale, 2)
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


def softmax_objective(
    z: Any, o: Any, dual: Any, y: Any, rho: float
) -> tuple[float, Any]:
    """l(z; y) - dual^T z + rho/2 ||o - z||^2 and its gradient, written down again in
    NumPy."""
    top = z.max()
    log_sum = top + np.log(np.exp(z - top).sum())
    value = log_sum - y @ z - dual @ z + rho / 2 * ((o - z) ** 2).sum()
    return value, np.exp(z - log_sum) - y - dual + rho * (z - o)


def logistic_objective(
    z: Any, o: Any, dual: Any, y: Any, rho: float
) -> tuple[float, Any]:
    value = np.logaddexp(0, z) - y * z - dual * z + rho / 2 * (o - z) ** 2
    p = np.where(
        z >= 0,
        1 / (1 + np.exp(-np.abs(z))),
        np.exp(-np.abs(z)) / (1 + np.exp(-np.abs(z))),
    )
    return value.sum(), p - y - dual + rho * (z - o)


def hold_against_scipy(
    objective: Any, z: Tensor, o: Tensor, duals: Tensor, y: Tensor, rho: float
) -> None:
    tight: Any = {
        "maxiter": 10_000,
        "maxfun": 100_000,
        "ftol": 1e-16,
        "gtol": 1e-10,
        "maxcor": 20,
    }
    for row in range(len(o)):
        given_ = (o[row].numpy(), duals[row].numpy(), y[row].numpy(), rho)
        found = minimize(
            objective,
            given_[0],
            args=given_,
            jac=True,
            method="L-BFGS-B",
            options=tight,
        )
        value, gradient = objective(z[row].numpy(), *given_)
        assert value <= found.fun + 1e-8
        assert np.abs(gradient).max() <= 1e-6
        theirs = np.linalg.norm(objective(found.x, *given_)[1])
        apart = np.linalg.norm(z[row].numpy() - found.x)
        # strong convexity: no further is possible
        assert apart <= (np.linalg.norm(gradient) + theirs) / rho + 1e-9
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
    for dual in (
        uniform(ROWS, 1, scale, 2).sigmoid() - labels[:, None],
        uniform(ROWS, 1, 1.0, 3),
    ):
        z = z_update(Logistic(), o, dual, labels, rho)
        hold_against_scipy(
            logistic_objective, z, o, dual, labels.double()[:, None], rho
        )


@pytest.mark.parametrize("rho", RHOS)
def test_squared_is_the_closed_form(rho: float) -> None:
    o = uniform(ROWS, 1, 100.0, 1)
    dual = uniform(ROWS, 1, 10.0, 2)
    labels = uniform(ROWS, 1, 50.0, 3)[:, 0]
    z = z_update(Squared(), o, dual, labels, rho)
    gradient = (z - labels[:, None]) - dual + rho * (z - o)
    assert float(gradient.abs().max()) <= 1e-10 * 100


@pytest.mark.filterwarnings("error")  # as it warns where its steps are not enough
@pytest.mark.parametrize(
    ("duals", "most"), [("as they occur", 59), ("none", 59), ("random", 99)]
)
def test_newton_needs_few_steps_over_the_whole_grid(
    monkeypatch: pytest.MonkeyPatch, duals: str, most: int
) -> None:
    """Measured: 44, 43 and 76, all at rho = 0.01; at rho = 1 it is 6. MAX_STEPS is
    never what ends it."""
    monkeypatch.setattr(losses, "MAX_STEPS", most)
    for rho in RHOS:
        for scale in SCALES:
            for classes in (2, 10, 100):
                o, dual, labels = softmax_case(scale, duals, classes, rows=64)
                z_update(CrossEntropy(classes), o, dual, labels, rho)


@pytest.mark.filterwarnings("error")
def test_logistic_needs_few_steps_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(losses, "MAX_STEPS", 59)
    labels = torch.tensor([0, 1] * 32)
    for rho in RHOS:
        for scale in SCALES:
            z_update(
                Logistic(),
                uniform(64, 1, scale, 1),
                uniform(64, 1, 1.0, 2),
                labels,
                rho,
            )


@pytest.mark.filterwarnings("error")
def test_a_minimum_is_recognised(monkeypatch: pytest.MonkeyPatch) -> None:
    """With dual = softmax(o) - y the residual is 0 at z = o: ADMM's fixed point stays
    where it is."""
    monkeypatch.setattr(losses, "MAX_STEPS", 1)
    o, dual, labels = softmax_case(100.0, "from these logits", 10)
    assert torch.equal(z_update(CrossEntropy(10), o, dual, labels, 2.0), o)


@pytest.mark.parametrize("rho", RHOS)
@pytest.mark.parametrize("duals", DUALS)
def test_the_new_dual_is_softmax_minus_label(rho: float, duals: str) -> None:
    """Eq. 7 after Eq. 6: lambda + rho (o - z) = softmax(z) - y, whatever lambda was
    before."""
    o, dual, labels = softmax_case(100.0, duals, 10)
    z = z_update(CrossEntropy(10), o, dual, labels, rho)
    new = dual + rho * (o - z)
    assert float((new - (z.softmax(-1) - one_hot(labels, 10))).abs().max()) <= 1e-6
    # ... so that the label is the one coordinate below 0, which is how it leaks
    if duals != "random":
        assert torch.equal(new.argmin(-1), labels)


CASES: list[tuple[Loss, int]] = [
    (CrossEntropy(10), 10),
    (CrossEntropy(2), 2),
    (Logistic(), 1),
    (Squared(), 1),
]


@given(
    case=st.sampled_from(CASES),
    rho=st.sampled_from(RHOS),
    scale=st.sampled_from(SCALES),
    seed=st.integers(0, 10**6),
    rows=st.integers(1, 5),
)
@settings(max_examples=60)
def test_a_batch_is_its_rows_one_by_one(
    case: tuple[Loss, int], rho: float, scale: float, seed: int, rows: int
) -> None:
    loss, outputs = case
    o = uniform(rows, outputs, scale, seed)
    dual = uniform(rows, outputs, 1.0, seed + 1)
    labels = torch.randint(
        max(outputs, 2), (rows,), generator=Generator().manual_seed(seed)
    )
    whole = z_update(loss, o, dual, labels, rho)
    for row in range(rows):
        one = slice(row, row + 1)
        alone = z_update(loss, o[one], dual[one], labels[one], rho)
        assert (
            float((whole[one] - alone).abs().max()) <= 2e-6 * outputs**0.5 / rho + 1e-9
        )


@given(
    shift=st.floats(-100, 100), rho=st.sampled_from(RHOS), seed=st.integers(0, 10**6)
)
@settings(max_examples=40)
def test_shifted_logits_shift_the_answer(shift: float, rho: float, seed: int) -> None:
    """Softmax does not see a shift of all classes, so neither does the z-update."""
    o = uniform(3, 5, 10.0, seed)
    dual = uniform(3, 5, 1.0, seed + 1)
    labels = torch.tensor([0, 2, 4])
    z, shifted = (
        z_update(CrossEntropy(5), logits, dual, labels, rho)
        for logits in (o, o + shift)
    )
    assert float((shifted - z - shift).abs().max()) <= 2e-6 * 5**0.5 / rho + 1e-9


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("loss", "outputs"), CASES)
def test_the_answer_has_the_type_and_shape_of_the_logits(
    dtype: torch.dtype, loss: Loss, outputs: int
) -> None:
    o = uniform(4, outputs, 10.0, 1).to(dtype)
    z = z_update(loss, o, torch.zeros_like(o), torch.tensor([0, 1, 1, 0]), 0.5)
    assert z.dtype == dtype
    assert z.shape == o.shape
    labels = torch.tensor([0, 1, 1, 0])
    exact = z_update(loss, o.double(), torch.zeros_like(o).double(), labels, 0.5)
    assert torch.equal(z, exact.to(dtype))  # the work is in float64 either way


def test_the_inputs_are_left_alone() -> None:
    o, dual, labels = softmax_case(10.0, "random", 10)
    o_before = o.clone()
    dual_before = dual.clone()
    z_update(CrossEntropy(10), o, dual, labels, 0.1)
    assert torch.equal(o, o_before)
    assert torch.equal(dual, dual_before)


def test_not_a_number_ends() -> None:
    o, dual, labels = softmax_case(10.0, "none", 10)
    o[0, 0] = torch.nan
    with pytest.warns(UserWarning, match="gradient of nan"):
        z = z_update(CrossEntropy(10), o, dual, labels, 1.0)
    assert z.isnan().any()


def test_a_loss_without_a_z_update_is_refused_by_name() -> None:
    class Hinge:
        outputs = 1

        def weigh(self, *_: object) -> None:
            """Every row counts once."""

    hinge: Any = Hinge()
    zeros = torch.zeros(1, 1)
    with pytest.raises(TypeError, match="Hinge has no z-update"):
        z_update(hinge, zeros, zeros, torch.zeros(1), 1.0)


def test_an_unsolved_update_says_so() -> None:
    """Duals that ADMM never makes (its own are softmax minus one-hot) can exhaust the
    steps: not silently."""
    generator = torch.Generator().manual_seed(0)
    o = torch.randn(8, 10, generator=generator)
    duals = 100 * torch.randn(8, 10, generator=generator)
    with pytest.warns(
        UserWarning,
        match=r"z-update stopped after 200 steps at a gradient of .*rho=0.01",
    ):
        z_update(CrossEntropy(10), o, duals, torch.zeros(8, dtype=torch.int64), 0.01)
