"""Losses are means over rows, equal to PyTorch's, and their decisions follow their
scores."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Generator, Tensor
from torch.nn import functional

from colonnade.optim import losses
from colonnade.optim.losses import CrossEntropy, Logistic, Loss, Squared


def case(
    loss: Loss, rows: int, seed: int = 0, scale: float = 5.0
) -> tuple[Tensor, Tensor]:
    generator = Generator().manual_seed(seed)
    outputs = (
        torch.randn(rows, loss.outputs, generator=generator, dtype=torch.float64)
        * scale
    )
    if isinstance(loss, Squared):
        return outputs, torch.randn(rows, generator=generator, dtype=torch.float64)
    return outputs, torch.randint(max(2, loss.outputs), (rows,), generator=generator)


LOSSES: list[Loss] = [CrossEntropy(2), CrossEntropy(7), Logistic(), Squared()]


def test_cross_entropy_is_pytorch_s() -> None:
    outputs, labels = case(CrossEntropy(7), 20)
    assert torch.equal(
        CrossEntropy(7)(outputs, labels), functional.cross_entropy(outputs, labels)
    )


@pytest.mark.parametrize(("device", "dims"), [("cpu", 3), ("meta", 2)])
@pytest.mark.parametrize("weights", [(), (1.0, 2.0, 3.0)])
def test_only_a_cpu_has_a_class_s_numbers_side_by_side(
    device: str, dims: int, weights: tuple[float, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The meta device stands for a GPU, whose sum would change from run to run."""
    dimensions: list[int] = []

    def cross_entropy(outputs: Tensor, *arguments: Any, **options: Any) -> Tensor:
        dimensions.append(outputs.dim())
        return functional.cross_entropy(outputs, *arguments, **options)

    monkeypatch.setattr(losses, "cross_entropy", cross_entropy)
    outputs = torch.zeros(5, 3, device=device)
    labels = torch.zeros(5, dtype=torch.long, device=device)
    CrossEntropy(3, weights)(outputs, labels)
    assert dimensions == [dims]


def test_logistic_is_pytorch_s_on_one_logit() -> None:
    outputs, labels = case(Logistic(), 20)
    expected = functional.binary_cross_entropy_with_logits(
        outputs[:, 0], labels.double()
    )
    assert torch.equal(Logistic()(outputs, labels), expected)


def test_logistic_is_the_two_class_softmax_with_one_logit_at_zero() -> None:
    outputs, labels = case(Logistic(), 20)
    two = torch.cat([torch.zeros_like(outputs), outputs], dim=-1)
    assert torch.allclose(Logistic()(outputs, labels), CrossEntropy(2)(two, labels))
    assert torch.allclose(Logistic().scores(outputs), CrossEntropy(2).scores(two))
    assert torch.equal(Logistic().decide(outputs), CrossEntropy(2).decide(two))


def test_squared_is_half_of_pytorch_s() -> None:
    outputs, labels = case(Squared(), 20)
    assert torch.allclose(
        Squared()(outputs, labels), functional.mse_loss(outputs[:, 0], labels) / 2
    )


@pytest.mark.parametrize("loss", LOSSES, ids=repr)
def test_a_loss_is_the_mean_over_the_rows(loss: Loss) -> None:
    outputs, labels = case(loss, 12)
    alone = torch.stack(
        [loss(outputs[i : i + 1], labels[i : i + 1]) for i in range(12)]
    )
    assert torch.allclose(loss(outputs, labels), alone.mean())


GRADIENTS = {
    CrossEntropy(7): lambda o, y: o.softmax(-1) - functional.one_hot(y, 7),
    Logistic(): lambda o, y: o.sigmoid() - y[:, None],
    Squared(): lambda o, y: o - y[:, None],
}


@pytest.mark.parametrize("loss", GRADIENTS, ids=repr)
def test_the_gradient_is_what_the_z_update_takes_it_to_be(loss: Loss) -> None:
    outputs, labels = case(loss, 12)
    outputs.requires_grad_()
    (gradient,) = torch.autograd.grad(loss(outputs, labels), outputs)
    assert torch.allclose(gradient * 12, GRADIENTS[loss](outputs, labels))


@given(index=st.integers(0, 2), rows=st.integers(1, 20), seed=st.integers(0, 10**6))
@settings(max_examples=60)
def test_the_decision_is_the_class_with_the_highest_score(
    index: int, rows: int, seed: int
) -> None:
    loss = LOSSES[index]
    outputs, _ = case(loss, rows, seed)
    scores = loss.scores(outputs)
    assert scores.shape == (rows, max(2, loss.outputs))
    assert torch.allclose(scores.sum(-1), torch.ones(rows, dtype=torch.float64))
    assert bool((scores >= 0).all())
    assert torch.equal(loss.decide(outputs), scores.argmax(-1))
    assert loss.decide(outputs).dtype == torch.int64


def test_the_value_of_a_regression_is_the_output() -> None:
    outputs, _ = case(Squared(), 5)
    assert torch.equal(Squared().decide(outputs), outputs[:, 0])
    assert torch.equal(Squared().scores(outputs), outputs)


def test_a_tie_is_decided_the_same_way_by_both() -> None:
    assert (
        Logistic().decide(torch.zeros(1, 1)).item()
        == Logistic().scores(torch.zeros(1, 1)).argmax(-1).item()
        == 0
    )


@pytest.mark.parametrize("loss", LOSSES, ids=repr)
def test_extreme_outputs_give_finite_losses(loss: Loss) -> None:
    outputs, labels = case(loss, 6, scale=1e4)
    assert torch.isfinite(loss(outputs, labels))
    assert torch.isfinite(loss.scores(outputs)).all()


@pytest.mark.parametrize("loss", [Logistic(), Squared()], ids=repr)
@pytest.mark.parametrize(
    "dtype", [torch.int64, torch.float32, torch.float64, torch.bool]
)
def test_labels_may_be_of_any_type(loss: Loss, dtype: torch.dtype) -> None:
    outputs = torch.randn(4, 1)
    labels = torch.tensor([0, 1, 1, 0])
    assert torch.equal(loss(outputs, labels.to(dtype)), loss(outputs, labels))
