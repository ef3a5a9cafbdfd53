"""Jacobians are what one backward pass for each output gives."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from colonnade.algorithms.embedding import LogOdds
from colonnade.optim import jacobians
from colonnade.optim.jacobians import jacobian_by_row, jacobian_of, set_gradient
from colonnade.transport.cohort import Stacked


def one_by_one(outputs: torch.Tensor, weights: list[nn.Parameter]) -> torch.Tensor:
    """The Jacobian by one backward pass for each output."""
    lines = []
    for output in outputs.flatten():
        derivatives = torch.autograd.grad(
            output,
            weights,
            retain_graph=True,
            allow_unused=True,
            materialize_grads=True,
        )
        lines.append(torch.cat([derivative.flatten() for derivative in derivatives]))
    return torch.stack(lines)


@pytest.mark.parametrize("at_once", [1, 120, 1 << 21])
def test_a_jacobian_is_one_backward_pass_per_output_through_the_same_pass(
    at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether an output is computed alone, with two others, or with all."""
    monkeypatch.setattr(jacobians, "VALUES_AT_ONCE", at_once)
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(3, 5), nn.BatchNorm1d(5), nn.Dropout(0.5), nn.Linear(5, 2)
    ).double()
    weights = list(model.parameters())
    outputs = model(torch.randn(4, 3, dtype=torch.float64))
    expected = one_by_one(outputs, weights)
    found = jacobian_of(outputs, weights)
    assert torch.allclose(found, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("at_once", [30, 1 << 21])
def test_each_model_of_a_stack_has_its_own_and_an_unused_weight_has_zeros(
    at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jacobians, "VALUES_AT_ONCE", at_once)
    w = nn.Parameter(torch.randn(2, 3, 1))
    unused = nn.Parameter(torch.randn(2, 4))
    x = torch.randn(2, 5, 3)
    found = jacobian_of(x @ w, [w, unused])
    assert found.shape == (2, 5, 3 + 4)
    assert torch.allclose(found[..., :3], x)
    assert not found[..., 3:].any()


def test_coefficients_times_the_jacobian_is_what_backward_leaves() -> None:
    model = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2)).double()
    weights = list(model.parameters())
    coefficients = torch.randn(4, 2, dtype=torch.float64)
    outputs = model(torch.randn(4, 3, dtype=torch.float64))
    set_gradient(coefficients.flatten() @ jacobian_of(outputs, weights), weights)
    expected = torch.autograd.grad(outputs, weights, coefficients)
    for weight, gradient in zip(weights, expected, strict=True):
        assert weight.grad is not None
        assert torch.allclose(weight.grad, gradient, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("stacked", [False, True])
def test_row_by_row_it_is_the_same_where_rows_do_not_depend_on_each_other(
    stacked: bool,
) -> None:
    """Also for a stack of models, for clipped outputs, and with a layer that works in
    place."""
    torch.manual_seed(0)
    models = [
        nn.Sequential(
            nn.Flatten(-2),
            nn.Linear(6, 5),
            nn.ReLU(inplace=True),
            nn.Linear(5, 4, bias=False),
            LogOdds(),
        )
        for _ in range(2)
    ]
    model = (Stacked(models) if stacked else models[0]).double()
    x = torch.randn(*[2] * stacked, 7, 3, 2, dtype=torch.float64)
    weights = list(model.parameters())
    outputs = model(x)
    clipped = outputs / outputs.norm(dim=-1, keepdim=True).clamp(min=1.0)
    for result in (outputs, clipped):
        found = jacobian_by_row(model, x, outputs, result)
        expected = jacobian_of(result, weights)
        assert found is not None
        assert torch.allclose(found, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("mixing", [nn.BatchNorm1d(5), nn.Dropout(0.5), nn.Softmax(0)])
def test_a_model_whose_rows_may_depend_on_each_other_has_none_row_by_row(
    mixing: nn.Module,
) -> None:
    model = nn.Sequential(nn.Linear(3, 5), mixing, nn.Linear(5, 2))
    x = torch.randn(4, 3)
    outputs = model(x)
    assert jacobian_by_row(model, x, outputs, outputs) is None
