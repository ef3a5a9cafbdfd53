"""On a CPU a captured loop is the loop itself; on a GPU it gives the same numbers."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from colonnade import models
from colonnade.optim.execution import Captured
from colonnade.transport.cohort import Stacked

DEVICES = [
    "cpu",
    pytest.param(
        "cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
    ),
]


def test_on_a_cpu_it_is_the_function() -> None:
    calls: list[tuple[Tensor, ...]] = []
    captured = Captured(lambda *tensors: calls.append(tensors))
    given = torch.ones(2), torch.zeros(3)
    for _ in range(4):
        captured(*given)
    assert len(calls) == 4
    assert all(seen[0] is given[0] and seen[1] is given[1] for seen in calls)
    captured.forget()
    captured(*given)
    assert len(calls) == 5


def test_a_failure_is_the_function_s_own() -> None:
    def fail(tensor: Tensor) -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        Captured(fail)(torch.ones(1))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("forget", [False, True])
def test_training_captured_is_training(device: str, forget: bool) -> None:
    def train(through_graphs: bool) -> Tensor:
        weight = nn.Parameter(torch.ones(3, 2, device=device))
        optimizer = torch.optim.SGD([weight], 0.1, momentum=0.9)

        def steps(x: Tensor, y: Tensor) -> None:
            for _ in range(3):
                optimizer.zero_grad(set_to_none=True)
                torch.autograd.backward((x @ weight - y).square().mean())
                optimizer.step()

        captured = Captured(steps)
        for number in range(8):
            # the last batch of an epoch is smaller: another graph
            rows = 5 if number % 3 else 4
            x = torch.arange(rows * 3.0, device=device).reshape(rows, 3).sin() + number
            (captured if through_graphs else steps)(x / 10, x[:, :2])
            if forget and number == 5:
                captured.forget()
        return weight.detach().cpu()

    assert torch.allclose(train(True), train(False), rtol=1e-6, atol=0)


@pytest.mark.parametrize("device", DEVICES)
def test_what_a_function_gives_is_given(device: str) -> None:
    captured = Captured(lambda x, y: (x + y, (x * y).sum()))
    for number in range(5):
        x = torch.arange(6.0, device=device) + number
        total, product = captured(x, 2 * x)
        assert torch.equal(total, 3 * x)
        assert float(product) == float((2 * x * x).sum())


def test_convolutions_are_captured_as_a_stack_alone() -> None:
    """Parties' own graphs of convolutions end in an illegal access on a GPU; what is
    replayed is decided before."""
    nets = [
        models.build(
            {"name": "cnn", "channels": [2], "width": 3}, (4, 4), seed=k, owner="x"
        )
        for k in range(2)
    ]
    plain = models.build({"name": "mlp"}, (4,), seed=0, owner="x")
    assert [
        Captured(print, model).replays
        for model in (nets[0], Stacked(nets), plain, None)
    ] == [False, True, True, True]
