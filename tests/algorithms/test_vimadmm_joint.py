"""VIMADMM-J against a plain reading of the paper: Algorithm 3 and Equations 17 to 21,
without any shortcuts."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from tests.algorithms.reference import (
    batch_name,
    columns,
    relative,
    traffic_at_mnist_sizes,
    with_z,
    z_by_lbfgs,
)
from tests.conformance.toy import (
    TASKS,
    Task,
    Toy,
    assert_bit_equal,
    cohorts,
    federation,
    sequential,
)
from torch import Tensor, nn

from colonnade.algorithms import fdml, vimadmm_joint
from colonnade.algorithms.embedding import Embed
from colonnade.errors import PartyError
from colonnade.transport import InProcess, Recording

CONFIG = vimadmm_joint.Config(
    local_steps=4, learning_rate=0.03, weight_decay=0.01, rho=1.5
)


# The paper, written down again


class Paper:
    """All parties' variables in one place, each equation as printed; losses are means
    over the batch, and beta R is the optimizers' weight decay. A local step moves W_k
    and theta_k together, as the package does, or W_k first and then theta_k with the
    new W_k, as printed."""

    def __init__(self, toy: Toy, task: Task, *, together: bool = True) -> None:
        self.toy = toy
        self.task = task
        self.config = toy.driver.config
        self.together = together
        models = [copy.deepcopy(party.model) for party in toy.parties.values()]
        self.f: list[nn.Module] = [model[:-1] for model in models]
        self.W = [
            model[-1].weight.detach().T.clone().requires_grad_() for model in models
        ]
        self.theta_sgd = [self.sgd(list(f_k.parameters())) for f_k in self.f]
        self.W_sgd = [self.sgd([W_k]) for W_k in self.W]
        self.z = torch.zeros_like(toy.driver.z)
        self.dual = torch.zeros_like(toy.driver.duals)

    def sgd(self, parameters: list[Tensor]) -> torch.optim.SGD:
        config = self.config
        return torch.optim.SGD(
            parameters,
            lr=config.learning_rate,
            momentum=config.momentum,
            weight_decay=config.weight_decay,
        )

    def round(self, batch: str) -> None:
        rho = self.config.rho
        rows = self.toy.batches.rows(batch)
        x = columns(self.toy, batch)
        o = [
            (f_k(x_k) @ W_k).detach()
            for f_k, x_k, W_k in zip(self.f, x, self.W, strict=True)
        ]
        total = torch.stack(o).sum(0)
        # Eq. 17
        z = z_by_lbfgs(
            self.task, total, self.dual[rows], self.toy.driver.labels[rows], rho
        )
        dual = self.dual[rows] + rho * (total - z)  # Eq. 18
        self.z[rows], self.dual[rows] = z, dual
        for k in range(len(o)):
            # Eq. 19
            s_k = z - sum((o[i] for i in range(len(o)) if i != k), torch.zeros_like(z))
            for _ in range(self.config.local_steps):
                self.differentiate(k, x[k], dual, s_k)
                self.W_sgd[k].step()  # Eq. 20
                if not self.together:
                    self.differentiate(k, x[k], dual, s_k)
                self.theta_sgd[k].step()  # Eq. 21

    def differentiate(self, k: int, x: Tensor, dual: Tensor, s_k: Tensor) -> None:
        """The gradients of Eq. 20 and 21, which have one objective."""
        logits = self.f[k](x) @ self.W[k]
        objective = (
            (dual * logits).sum() + self.config.rho / 2 * (s_k - logits).square().sum()
        ) / len(x)
        self.f[k].zero_grad()
        self.W[k].grad = None
        torch.autograd.backward(objective)


@pytest.mark.parametrize(
    ("task", "momentum", "order"),
    [
        ("classes", 0.0, "together"),
        ("classes", 0.9, "together"),
        ("binary", 0.9, "together"),
        ("regression", 0.9, "together"),
        ("classes", 0.9, "head_first"),
        ("regression", 0.0, "head_first"),
    ],
)
@pytest.mark.parametrize("transport", [sequential, cohorts])
def test_it_computes_what_the_paper_says(
    task: Task, momentum: float, order: Any, transport: Any
) -> None:
    """6 rounds, into the second epoch, so that rows meet their z and lambda again in
    another batch."""
    config = vimadmm_joint.Config(
        local_steps=4,
        learning_rate=0.03,
        weight_decay=0.01,
        momentum=momentum,
        rho=1.5,
        local_order=order,
    )
    toy = federation(
        vimadmm_joint.ALGORITHM,
        transport,
        columns=(4, 4, 3),
        task=task,
        dtype=torch.float64,
        config=config,
    )
    paper = Paper(with_z(toy), task, together=order == "together")
    for step in range(6):
        paper.round(batch_name(toy, step))
        toy.run(1)
        toy.states()  # a cohort hands its state back
        assert relative(toy.driver.z, paper.z) <= 1e-5
        assert relative(toy.driver.duals, paper.dual) <= 1e-5
        for party, f_k, W_k in zip(toy.parties.values(), paper.f, paper.W, strict=True):
            *theta, head = party.model.parameters()
            assert relative(head, W_k.T) <= 1e-5
            for mine, theirs in zip(theta, f_k.parameters(), strict=True):
                assert relative(mine, theirs) <= 1e-5


def test_the_order_as_printed_differs_in_second_order_only() -> None:
    """A step 10 times smaller brings theta_k 100 times nearer to where the printed
    order takes it; W_k is the same."""
    gaps = []
    for rate in (1e-2, 1e-3):
        config = vimadmm_joint.Config(
            local_steps=1, learning_rate=rate, momentum=0.0, rho=1.5
        )
        toy = federation(
            vimadmm_joint.ALGORITHM,
            task="regression",
            dtype=torch.float64,
            config=config,
        )
        paper = Paper(with_z(toy), "regression", together=False)
        paper.round(batch_name(toy, 0))
        toy.run(1)
        party = toy.parties["ada"]
        f_k = paper.f[0]
        W_k = paper.W[0]
        *theta, head = party.model.parameters()
        assert relative(head, W_k.T) <= 1e-9
        gaps.append(
            max(
                relative(mine, theirs)
                for mine, theirs in zip(theta, f_k.parameters(), strict=True)
            )
        )
    assert gaps[0] == pytest.approx(100 * gaps[1], rel=0.05)
    assert gaps[0] > 1e-6


def test_one_party_with_one_local_step_moves_as_worked_out_by_hand() -> None:
    """With f(x) = x A^T, squared loss, zero duals, M = 1: every quantity of the first
    round in closed form."""
    eta = 0.1
    rho = 2.0
    beta = 0.01
    config = vimadmm_joint.Config(
        rho=rho, local_steps=1, learning_rate=eta, momentum=0.0, weight_decay=beta
    )
    linear: Any = {
        "ada": lambda _: nn.Sequential(
            nn.Linear(6, 3, bias=False), nn.Linear(3, 1, bias=False)
        )
    }
    toy = federation(
        vimadmm_joint.ALGORITHM,
        columns=(6,),
        task="regression",
        dtype=torch.float64,
        config=config,
        wrap_model=linear,
    )
    party = toy.parties["ada"]
    driver = with_z(toy).driver
    A, W = (layer.weight.detach().clone() for layer in party.model)
    rows = toy.batches.rows("train/0/0")
    x = party.features[rows]
    y = driver.labels[rows][:, None]
    b = len(rows)
    toy.run(1)

    h = x @ A.T
    o = h @ W.T
    z = (y + rho * o) / (1 + rho)
    dual = rho * (o - z)
    target = z - dual / rho
    W_new = W - eta * (rho * (o - target).T @ h / b + beta * W)
    A_new = A - eta * (rho * ((o - target) @ W).T @ x / b + beta * A)
    assert torch.allclose(driver.z[rows], z, rtol=1e-12)
    assert torch.allclose(driver.duals[rows], dual, rtol=1e-9, atol=1e-12)
    assert torch.allclose(party.model[1].weight, W_new, rtol=1e-9)
    assert torch.allclose(party.model[0].weight, A_new, rtol=1e-9)


# The laws behind the shortcuts


def updated(task: Task = "classes") -> Any:
    """A label owner some rounds in, and one more update with its inputs: driver, o, r,
    rows."""
    toy = with_z(
        federation(
            vimadmm_joint.ALGORITHM,
            task=task,
            dtype=torch.float64,
            config=CONFIG,
            columns=(4, 4, 3),
        )
    )
    toy.run(6)
    replies = toy.peers.ask(Embed("train/1/1"))
    o = {k: reply.values.tensor for k, reply in replies.items()}
    _, residual = toy.driver.update(torch.stack(list(o.values())).sum(0), "train/1/1")
    return toy.driver, o, residual, toy.driver.rows("train/1/1")


@pytest.mark.parametrize("task", TASKS)
def test_lambda_is_the_gradient_of_the_loss_at_z(task: Task) -> None:
    """For softmax: softmax(z) - y. So lambda has one negative entry per row, and it is
    the label."""
    driver, _, _, rows = updated(task)
    z = driver.z[rows]
    duals = driver.duals[rows]
    y = driver.labels[rows]
    if task == "classes":
        expected = z.softmax(-1) - nn.functional.one_hot(y, 3)
        assert torch.equal((duals < 0).int().argmax(-1), y)
        assert ((duals < 0).sum(-1) == 1).all()
    else:
        expected = (z.sigmoid() if task == "binary" else z) - y[:, None]
    assert torch.allclose(duals, expected, rtol=0, atol=2e-6)


@pytest.mark.parametrize("task", TASKS)
def test_one_matrix_for_all_replaces_lambda_and_s(task: Task) -> None:
    """r + o_k = s_k - lambda/rho, for every k."""
    driver, o, r, rows = updated(task)
    z = driver.z[rows]
    duals = driver.duals[rows]
    rho = driver.config.rho
    for k in o:
        s_k = z - torch.stack([o[i] for i in o if i != k]).sum(0)
        assert torch.allclose(r + o[k], s_k - duals / rho, rtol=1e-12, atol=1e-12)


def test_lambda_follows_the_row_and_only_the_batchs_rows_change() -> None:
    toy = federation(vimadmm_joint.ALGORITHM)
    toy.run(1)
    touched = toy.batches.rows("train/0/0")
    untouched = torch.ones(len(toy.driver.duals), dtype=torch.bool)
    untouched[touched] = False
    assert (toy.driver.duals[untouched] == 0).all()
    assert (toy.driver.duals[touched] != 0).any(-1).all()


# Models of any kind


class Spare(nn.Module):
    """A model with a parameter that it never uses."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.spare = nn.Parameter(torch.ones(2))
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.model(x)
        return result


def frozen(model: nn.Module, layers: int) -> nn.Module:
    for parameter in list(model.parameters())[: 2 * layers]:
        parameter.requires_grad_(False)
    return model


@pytest.mark.parametrize("transport", [sequential, cohorts])
@pytest.mark.parametrize("layers", [1, 2], ids=["first layer", "all but the head"])
def test_a_frozen_layer_stays_and_the_others_learn(transport: Any, layers: int) -> None:
    names = ("ada", "bob", "cyd")
    toy = federation(
        vimadmm_joint.ALGORITHM,
        transport,
        wrap_model={name: lambda m: frozen(m, layers) for name in names},
    )
    before = toy.states()["ada"]["model"]
    toy.run(2)
    after = toy.states()["ada"]["model"]
    changed = [not torch.equal(after[name], before[name]) for name in before]
    assert changed == [False] * 2 * layers + [True] * (len(before) - 2 * layers)


@pytest.mark.parametrize("transport", [sequential, cohorts])
def test_a_parameter_without_use_does_no_harm(transport: Any) -> None:
    plain = federation(vimadmm_joint.ALGORITHM, transport)
    spare = federation(
        vimadmm_joint.ALGORITHM,
        transport,
        wrap_model=dict.fromkeys(("ada", "bob", "cyd"), Spare),
    )
    assert plain.run(3) == spare.run(3)


# What crosses


def test_bytes_per_party_and_round_at_mnist_sizes() -> None:
    config = vimadmm_joint.Config(local_steps=1)
    assert traffic_at_mnist_sizes(vimadmm_joint.ALGORITHM, config) == (
        [40_960, 81_920],
        [40_960, 81_920],
    )


def test_all_parties_get_the_same_residual_released_once() -> None:
    toy = federation(
        vimadmm_joint.ALGORITHM, lambda parties: Recording(InProcess(parties))
    )
    toy.run(1)
    entries = [e for e in toy.driver.ledger.entries if e.name == "residual"]
    assert [e.peer for e in entries] == list(toy.parties)
    assert len({e.number for e in entries}) == 1
    seen = [toy.transport.of(name).tensors("residual")[0] for name in toy.parties]
    assert all(torch.equal(tensor, seen[0]) for tensor in seen)


@pytest.mark.parametrize("pending", [None, "train/0/1"])
def test_variables_for_a_batch_that_is_not_pending_are_refused(
    pending: str | None,
) -> None:
    toy = federation(vimadmm_joint.ALGORITHM)
    if pending:
        toy.peers["ada"].ask(Embed(pending))
    before = toy.states()["ada"]
    residual = toy.driver.outbox.release(torch.zeros(32, 3), "residual", "train/0/0")
    with pytest.raises(
        PartyError,
        match=f"variables came for batch train/0/0, but {pending} is pending",
    ):
        toy.peers["ada"].ask(vimadmm_joint.Improve("train/0/0", residual))
    assert_bit_equal(before, toy.states()["ada"])


def test_a_prediction_in_the_middle_of_a_round_does_not_disturb_it() -> None:
    plain = federation(vimadmm_joint.ALGORITHM)
    disturbed = federation(vimadmm_joint.ALGORITHM)
    for toy in (plain, disturbed):
        toy.peers.ask(Embed("train/0/0"))
        if toy is disturbed:
            toy.predict()
        residual = toy.driver.outbox.release(torch.ones(32, 3), "residual", "train/0/0")
        toy.peers.ask(vimadmm_joint.Improve("train/0/0", residual))
    assert_bit_equal(plain.states(), disturbed.states())


def test_it_starts_from_the_same_models_as_fdml_so_that_a_comparison_is_fair() -> None:
    joint = federation(vimadmm_joint.ALGORITHM)
    other = federation(fdml.ALGORITHM)
    for name, party in joint.parties.items():
        assert_bit_equal(
            party.model.state_dict(), other.parties[name].model.state_dict()
        )
    assert torch.equal(joint.predict(), other.predict())


@pytest.mark.parametrize("seed", range(2))
def test_the_order_as_printed_diverges_where_steps_together_converge(seed: int) -> None:
    losses = {}
    for order in ("together", "head_first"):
        config = vimadmm_joint.Config(learning_rate=0.15, local_order=order)
        toy = federation(
            vimadmm_joint.ALGORITHM,
            columns=(4, 4, 4, 4),
            seed=seed,
            dtype=torch.float64,
            config=config,
        )
        losses[order] = toy.run(15)
    assert losses["together"][-1] < 0.6 * losses["together"][0]
    # no number, or no less than it began with
    assert not losses["head_first"][-1] < 0.9 * losses["head_first"][0]
