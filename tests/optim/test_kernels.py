"""A GPU's own kernels compute what torch's do; skipped where there is no GPU, or no
Triton to make them."""

from __future__ import annotations

import copy
import importlib.util
from itertools import islice
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor, nn

import colonnade
from colonnade.optim import written_out
from colonnade.optim.buffers import Buffers
from colonnade.optim.descent import Descent
from colonnade.optim.execution import Arriving, gpu_kernels
from colonnade.optim.losses import CrossEntropy, Logistic, Loss, z_update
from colonnade.transport.cohort import Stacked

GPU = torch.device("cuda")
here = torch.cuda.is_available() and importlib.util.find_spec("triton") is not None
on_a_gpu = pytest.mark.skipif(not here, reason="no GPU with Triton here")


@pytest.mark.parametrize(
    ("parties", "rows", "sizes", "activations", "outputs", "sgd"),
    [
        (
            3,
            200,
            (56, 120, 60),
            (nn.ReLU, nn.ReLU),
            10,
            {"momentum": 0.9, "weight_decay": 0.001},
        ),
        (
            2,
            64,
            (5, 7, 9, 4),
            (nn.Tanh, nn.Sigmoid, nn.Identity),
            3,
            {"momentum": 0.9, "nesterov": True},
        ),
        (1, 33, (20, 70), (nn.Identity,), None, {}),
        (
            2,
            300,
            (60, 10),
            (nn.ReLU,),
            None,
            {"momentum": 0.5, "dampening": 0.1, "maximize": True},
        ),
        (20, 1500, (300, 200), (nn.Tanh,), 30, {"momentum": 0.9}),
    ],
)
@on_a_gpu
def test_steps_are_those_of_torchs_kernels(
    parties: int,
    rows: int,
    sizes: tuple[int, ...],
    activations: tuple[type[nn.Module], ...],
    outputs: int | None,
    sgd: dict[str, Any],
) -> None:
    own_kernels = gpu_kernels(GPU)
    assert own_kernels is not None
    torch.manual_seed(0)

    def chain() -> nn.Sequential:
        layers: list[nn.Module] = []
        pairs = zip(sizes, sizes[1:], activations, strict=False)
        for inputs, width, activation in pairs:
            layers += [nn.Linear(inputs, width), activation()]
        return nn.Sequential(*layers)

    start = Stacked([chain() for _ in range(parties)]) if parties > 1 else chain()
    start = start.to(GPU)
    stack = (parties,) if parties > 1 else ()
    x = torch.randn(*stack, rows, sizes[0], device=GPU)
    target = torch.randn(rows, outputs or sizes[-1], device=GPU).expand(*stack, -1, -1)
    head = None
    if outputs is not None:
        head = torch.randn(*stack, sizes[-1], outputs, device=GPU) / 4
    error = torch.empty_like(target).contiguous()
    ends: list[Tensor] = []
    for take_steps in (
        written_out.squared_error_steps,
        own_kernels.squared_error_steps,
    ):
        model = copy.deepcopy(start)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, **sgd)
        found = Descent(model, optimizer).chain_for(x)
        assert found is not None
        tensors = found.tensors_for(x, Buffers(), Buffers())
        vectors = found.flat.vectors()
        with torch.no_grad():
            take_steps(tensors, vectors, 3, 0, target, 2.0 / rows, head, error)
        ends.append(found.flat.values)
    torch.testing.assert_close(*ends, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("rho", [0.01, 0.05, 1.0, 10.0])
@pytest.mark.parametrize(
    "loss",
    [CrossEntropy(10), CrossEntropy(2), CrossEntropy(3, (0.2, 1.0, 5.0)), Logistic()],
)
@on_a_gpu
def test_the_z_update_is_the_same_as_on_a_cpu(loss: Loss, rho: float) -> None:
    draw = torch.Generator().manual_seed(0)
    o, duals = (
        size * torch.randn(100, loss.outputs, generator=draw) for size in (20, 1)
    )
    labels = torch.randint(max(loss.outputs, 2), (100,), generator=draw)
    there = z_update(loss, o.to(GPU), duals.to(GPU), labels.to(GPU), rho)
    torch.testing.assert_close(
        there.cpu(), z_update(loss, o, duals, labels, rho), rtol=1e-6, atol=3e-6 / rho
    )


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=on_a_gpu)])
def test_numbers_come_as_they_were_when_they_were_asked_for(device: str) -> None:
    numbers = torch.tensor([1.5, -2.0], dtype=torch.float64, device=device)
    arriving = Arriving(numbers.clone())
    numbers += 1
    assert arriving.read() == [1.5, -2.0]
    assert arriving.read() == [1.5, -2.0]


@pytest.mark.parametrize("weights", ["equal", "balanced"])
@pytest.mark.parametrize("algorithm", ["vimadmm", "vimadmm_joint"])
@on_a_gpu
def test_training_on_a_gpu_follows_training_on_a_cpu(
    algorithm: str, weights: str
) -> None:
    """Replayed, in few kernels and in parties stacked, six batches in a row; rounding
    alone differs."""
    draw = np.random.default_rng(0)
    columns = draw.normal(size=(400, 30))
    label = (columns[:, ::7].sum(1) + draw.normal(size=400) > 1).astype(int) + (
        columns[:, 3] > 0
    )
    tables = {
        name: pd.DataFrame(
            columns[:, 10 * k : 10 * k + 10], columns=[f"{name}_{i}" for i in range(10)]
        )
        for k, name in enumerate(("bank", "telco", "shop"))
    }
    tables["bank"]["label"] = label
    losses = []
    for device in ("cpu", "cuda"):
        settings: dict[str, dict[str, object]] = {
            "algorithm": {
                "name": algorithm,
                "optimizer": "sgd",
                "learning_rate": 0.05,
                "local_steps": 7,
            },
            "model": {"name": "mlp", "hidden": [24], "width": 12},
            "train": {"batch_size": 64, "epochs": 2, "class_weights": weights},
            "federation": {"device": device, "cohort": "on"},
        }
        frames = {
            name: table.rename_axis("id").reset_index()
            for name, table in tables.items()
        }
        federation = colonnade.Federation.from_frames(
            frames, id="id", label="label", settings=settings
        )
        losses.append([step.loss for step in islice(federation.train(), 6)])
    assert losses[1] == pytest.approx(losses[0], rel=1e-3)
