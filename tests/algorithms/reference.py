"""What the papers' equations are checked with: training in one place, SciPy's z-update,
traffic at MNIST's sizes."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import minimize
from tests.conformance.toy import Task, Toy
from torch import Tensor, nn

from colonnade.algorithms.algorithm import AnyAlgorithm
from colonnade.core import Batches, Organisation, Peers, roles
from colonnade.models import build
from colonnade.optim.losses import CrossEntropy
from colonnade.transport import InProcess, Recording

Array = NDArray[np.float64]


# Training in one place


class Joined(nn.Module):
    """The whole model in one place: join([f_1(x_1) .. f_M(x_M)])."""

    def __init__(self, toy: Toy, join: nn.Module) -> None:
        super().__init__()
        self.parts = nn.ModuleList(
            copy.deepcopy([party.model for party in toy.parties.values()])
        )
        self.join = join

    def forward(self, x: list[Tensor]) -> Tensor:
        result: Tensor = self.join(
            [part(x_k) for part, x_k in zip(self.parts, x, strict=True)]
        )
        return result


def columns(toy: Toy, batch: str) -> list[Tensor]:
    """Everybody's columns of a batch."""
    rows = toy.batches.rows(batch)
    return [party.features[rows] for party in toy.parties.values()]


def batch_name(toy: Toy, step: int) -> str:
    return "train/{}/{}".format(*divmod(step, toy.batches.per_epoch))


def mean_loss(toy: Toy, outputs: Tensor, batch: str) -> Tensor:
    """The loss, written down again."""
    labels: Tensor = toy.driver.labels[toy.batches.rows(batch)]
    if toy.driver.loss.outputs > 1:
        return -outputs.log_softmax(-1)[torch.arange(len(labels)), labels].mean()
    if labels.is_floating_point():
        return (outputs[:, 0] - labels).square().mean() / 2
    signs = 2 * labels.to(outputs.dtype) - 1
    return torch.nn.functional.softplus(-signs * outputs[:, 0]).mean()


def optimizer_of(parameters: Iterable[Tensor], config: Any) -> torch.optim.Optimizer:
    rate = config.learning_rate
    momentum = config.momentum
    decay = config.weight_decay
    if config.optimizer == "adam":
        return torch.optim.Adam(
            parameters, lr=rate, betas=(momentum, 0.999), weight_decay=decay
        )
    return torch.optim.SGD(parameters, lr=rate, momentum=momentum, weight_decay=decay)


def centralized(
    toy: Toy, model: nn.Module, optimizers: list[torch.optim.Optimizer], steps: int
) -> Iterator[float]:
    """What anybody with all the columns would write; gives the loss after each step."""
    for step in range(steps):
        batch = batch_name(toy, step)
        loss = mean_loss(toy, model(columns(toy, batch)), batch)
        model.zero_grad()
        torch.autograd.backward(loss)
        for optimizer in optimizers:
            optimizer.step()
        yield loss.item()


def relative(mine: Tensor, theirs: Tensor) -> float:
    return float((mine - theirs).detach().norm() / theirs.detach().norm())


def assert_alike(mine: nn.Module, theirs: nn.Module, tolerance: float) -> None:
    """Every parameter is the other's, up to rounding."""
    for (name, one), other in zip(
        mine.named_parameters(), theirs.parameters(), strict=True
    ):
        assert one.shape == other.shape, name
        assert relative(one, other) <= tolerance, name


# ADMM's z, by SciPy


def loss_and_gradient(task: Task, z: Array, y: float) -> tuple[float, Array]:
    """l(z; y) of one row."""
    if task == "classes":
        shifted = z - z.max()
        log_p = shifted - np.log(np.exp(shifted).sum())
        gradient = np.exp(log_p)
        gradient[int(y)] -= 1
        return -float(log_p[int(y)]), gradient
    if task == "binary":
        return float(np.logaddexp(0.0, z[0]) - y * z[0]), 1 / (1 + np.exp(-z)) - y
    return float((z[0] - y) ** 2 / 2), z - y


def z_by_lbfgs(task: Task, o: Tensor, dual: Tensor, y: Tensor, rho: float) -> Tensor:
    """Eq. 6 and 17, row by row."""

    def solve(o: Array, dual: Array, y: float) -> Array:
        def objective(z: Array) -> tuple[float, Array]:
            loss, gradient = loss_and_gradient(task, z, y)
            return loss - dual @ z + rho / 2 * (
                (o - z) ** 2
            ).sum(), gradient - dual - rho * (o - z)

        found = minimize(
            objective,
            o,
            jac=True,
            method="L-BFGS-B",
            options={"ftol": 1e-15, "gtol": 1e-9},
        )
        return np.asarray(found.x)

    rows = zip(o.numpy(), dual.numpy(), y.tolist(), strict=True)
    return torch.from_numpy(np.stack([solve(*row) for row in rows]))


# What crosses


def traffic_at_mnist_sizes(
    algorithm: AnyAlgorithm, config: Any
) -> tuple[list[int], list[int]]:
    """Bytes up and down of one of two parties, after one and after two rounds: b =
    1024, 60 wide, 10 classes, float32; counted alike by both ledgers and by what was
    recorded on the way."""
    batches = Batches({"train": torch.arange(2048)}, batch_size=1024, epochs=1, seed=0)
    features = torch.rand(2048, 56, generator=torch.Generator().manual_seed(0))
    parties: dict[str, Any] = {}
    for seed, name in enumerate(("ada", "bob")):
        model = algorithm.complete(
            build("mlp", (56,), seed=seed, owner=name), features[:1], 10, seed=seed
        )
        parties[name] = algorithm.feature_owner(
            Organisation.at(name, batches), features, model, config
        )
    driver = algorithm.label_owner(
        Organisation.at("server", batches),
        torch.arange(2048) % 10,
        CrossEntropy(10),
        config,
    )
    recording = Recording(InProcess(parties))
    driver.peers = Peers("server", parties, recording, driver.ledger)
    driver.meet(driver.peers.ask(roles.Introduce()))
    up = []
    down = []
    for _ in algorithm.steps(driver, driver.peers, batches):
        up.append(recording.of("server").total("ada"))
        down.append(recording.of("ada").total("server"))
        for name, party in parties.items():
            assert (
                party.ledger.total("out") == driver.ledger.total("in", name) == up[-1]
            )
            assert (
                party.ledger.total("in") == driver.ledger.total("out", name) == down[-1]
            )
    return up, down


def with_z(toy: Toy) -> Toy:
    """ADMM's label owner, with the last z of every row beside its duals: it has no use
    for them itself."""
    driver, split, advance = toy.driver, toy.driver.split, toy.driver.advance
    driver.z = torch.zeros_like(driver.duals)
    found: list[Tensor] = []

    def kept(*tensors: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        z, duals, told = split(*tensors)
        found.append(z)
        return z, duals, told

    def noted(batch: str, *given: Any) -> Any:
        made = advance(batch, *given)
        driver.z[driver.rows(batch)] = found.pop()
        return made

    driver.split = kept
    driver.advance = noted
    return toy
