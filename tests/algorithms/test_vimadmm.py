"""VIMADMM against a plain reading of the paper: Algorithm 1 and Equations 6 to 10,
without the package's shortcuts."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from tests.algorithms.reference import (
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

from colonnade.algorithms import vimadmm
from colonnade.algorithms.embedding import Embed
from colonnade.errors import Diverged, PartyError
from colonnade.transport import InProcess, Recording

CONFIG = vimadmm.Config(local_steps=4, learning_rate=0.03, weight_decay=0.01)


# The paper, written down again


class Paper:
    """All parties' variables in one place, each equation as printed, but the heads in
    Eq. 9 are the round's old ones unless the settings ask for the printed ones, and
    losses are means over the batch."""

    def __init__(self, toy: Toy, task: Task) -> None:
        self.toy = toy
        self.task = task
        self.config = toy.driver.config
        parties = toy.parties.values()
        self.models = [copy.deepcopy(party.model) for party in parties]
        self.optimizers = [
            torch.optim.SGD(
                model.parameters(),
                lr=self.config.learning_rate,
                momentum=self.config.momentum,
                weight_decay=self.config.weight_decay,
            )
            for model in self.models
        ]
        self.W = [
            W.clone()
            for W in torch.split(toy.driver.heads, list(toy.driver.widths.values()))
        ]
        self.z = torch.zeros_like(toy.driver.z)
        self.dual = torch.zeros_like(toy.driver.duals)

    def round(self, batch: str) -> None:
        rho = self.config.rho
        beta = self.config.weight_decay
        rows = self.toy.batches.rows(batch)
        b = len(rows)
        y = self.toy.driver.labels[rows]
        x = [party.features[rows] for party in self.toy.parties.values()]
        h = [model(x_k).detach() for model, x_k in zip(self.models, x, strict=True)]
        o = [h_k @ W_k for h_k, W_k in zip(h, self.W, strict=True)]
        total = torch.stack(o).sum(0)
        z = z_by_lbfgs(self.task, total, self.dual[rows], y, rho)  # Eq. 6
        dual = self.dual[rows] + rho * (total - z)  # Eq. 7
        self.z[rows], self.dual[rows] = z, dual
        old = self.W
        # Eq. 8
        self.W = [self.head(k, h, self.W, z, dual, beta, rho) for k in range(len(h))]
        heads = self.W if self.config.residual_heads == "new" else old
        for k, (model, optimizer) in enumerate(
            zip(self.models, self.optimizers, strict=True)
        ):
            s_k = z - torch.stack(
                [h[i] @ heads[i] for i in range(len(h)) if i != k]
                or [torch.zeros_like(z)]
            ).sum(0)
            # Eq. 10; the optimizer's weight decay is beta R(theta)
            for _ in range(self.config.local_steps):
                logits = model(x[k]) @ self.W[k]
                objective = (
                    (dual * logits).sum() + rho / 2 * (s_k - logits).square().sum()
                ) / b
                optimizer.zero_grad()
                torch.autograd.backward(objective)
                optimizer.step()

    def head(
        self,
        k: int,
        h: list[Tensor],
        W: list[Tensor],
        z: Tensor,
        dual: Tensor,
        beta: float,
        rho: float,
    ) -> Tensor:
        W_k = W[k].clone().requires_grad_()
        torch.autograd.backward(head_objective(k, W_k, h, W, z, dual, beta, rho))
        assert W_k.grad is not None
        step: Tensor = self.config.head_learning_rate * W_k.grad
        return W_k.detach() - step


def head_objective(
    k: int,
    W_k: Tensor,
    h: list[Tensor],
    W: list[Tensor],
    z: Tensor,
    dual: Tensor,
    beta: float,
    rho: float,
) -> Tensor:
    """Eq. 8, as a mean over the batch, with R(W) = ||W||^2 / 2."""
    others = torch.stack(
        [h[i] @ W[i] for i in range(len(h)) if i != k] or [torch.zeros_like(z)]
    ).sum(0)
    logits = h[k] @ W_k
    fit = (dual * logits).sum() + rho / 2 * (others + logits - z).square().sum()
    return beta / 2 * W_k.square().sum() + fit / len(z)


@pytest.mark.parametrize(
    ("task", "momentum", "heads"),
    [
        ("classes", 0.0, "old"),
        ("classes", 0.9, "old"),
        ("binary", 0.9, "old"),
        ("regression", 0.9, "old"),
        ("classes", 0.9, "new"),
    ],
)
def test_it_computes_what_the_paper_says(
    task: Task, momentum: float, heads: Any
) -> None:
    """6 rounds, into the second epoch, so that rows meet their z and lambda again in
    another batch."""
    config = vimadmm.Config(
        local_steps=4,
        learning_rate=0.03,
        weight_decay=0.01,
        momentum=momentum,
        rho=1.5,
        residual_heads=heads,
    )
    toys = [
        with_z(
            federation(
                vimadmm.ALGORITHM, w, task=task, dtype=torch.float64, config=config
            )
        )
        for w in (sequential, cohorts)
    ]
    paper = Paper(toys[0], task)
    for step in range(6):
        paper.round("train/{}/{}".format(*divmod(step, toys[0].batches.per_epoch)))
    for toy in toys:
        toy.run(6)
        toy.states()  # a cohort hands its state back
        assert relative(toy.driver.heads, torch.cat(paper.W)) <= 1e-5
        assert relative(toy.driver.z, paper.z) <= 1e-5
        assert relative(toy.driver.duals, paper.dual) <= 1e-5
        for party, model in zip(toy.parties.values(), paper.models, strict=True):
            for mine, theirs in zip(
                party.model.parameters(), model.parameters(), strict=True
            ):
                assert relative(mine, theirs) <= 1e-5


# The laws behind the shortcuts


def updated(
    task: Task = "classes",
    config: vimadmm.Config = CONFIG,
    columns: tuple[int, ...] = (4, 4, 3),
) -> Any:
    """A label owner some rounds in, and one more update with its inputs: driver, h, old
    heads and duals, r, rows."""
    toy = with_z(
        federation(
            vimadmm.ALGORITHM,
            task=task,
            dtype=torch.float64,
            config=config,
            columns=columns,
        )
    )
    toy.run(6)
    driver = toy.driver
    batch = "train/1/1"
    replies = toy.peers.ask(Embed(batch))
    h = {k: reply.values.tensor for k, reply in replies.items()}
    W = dict(
        zip(
            h,
            torch.split(driver.heads.clone(), list(driver.widths.values())),
            strict=True,
        )
    )
    rows = driver.rows(batch)
    before = driver.duals[rows].clone()
    _, residual = driver.update(h, batch)
    return driver, h, W, before, residual, rows


@pytest.mark.parametrize("task", TASKS)
def test_lambda_is_the_gradient_of_the_loss_at_z(task: Task) -> None:
    """For softmax: softmax(z) - y. So lambda has one negative entry per row, and it is
    the label."""
    driver, _, _, _, _, rows = updated(task)
    z = driver.z[rows]
    duals = driver.duals[rows]
    y = driver.labels[rows]
    if task == "classes":
        expected = z.softmax(-1) - torch.nn.functional.one_hot(y, 3)
        assert torch.equal((duals < 0).int().argmax(-1), y)
        assert ((duals < 0).sum(-1) == 1).all()
    elif task == "binary":
        expected = z.sigmoid() - y[:, None]
    else:
        expected = z - y[:, None]
    assert torch.allclose(duals, expected, rtol=0, atol=2e-6)


@pytest.mark.parametrize("task", TASKS)
def test_one_matrix_for_all_replaces_lambda_and_s(task: Task) -> None:
    """r + o_k = s_k - lambda/rho, for every k."""
    driver, h, W, _, r, rows = updated(task)
    z = driver.z[rows]
    duals = driver.duals[rows]
    rho = driver.config.rho
    for k in h:
        s_k = z - torch.stack([h[i] @ W[i] for i in h if i != k]).sum(0)
        assert torch.allclose(
            r + h[k] @ W[k], s_k - duals / rho, rtol=1e-12, atol=1e-12
        )


def test_the_local_objective_differs_from_eq_10_by_a_constant() -> None:
    """Completing the square: lambda^T f + rho/2 |s - f|^2 = rho/2 |s - lambda/rho -
    f|^2 + constant."""
    driver, h, W, _, r, rows = updated()
    z = driver.z[rows]
    duals = driver.duals[rows]
    rho = driver.config.rho
    k = next(iter(h))
    s_k = z - torch.stack([h[i] @ W[i] for i in h if i != k]).sum(0)
    gaps = []
    for seed in range(3):
        f = torch.randn(
            z.shape, dtype=z.dtype, generator=torch.Generator().manual_seed(seed)
        )
        printed = (duals * f).sum() + rho / 2 * (s_k - f).square().sum()
        ours = rho / 2 * (r + h[k] @ W[k] - f).square().sum()
        gaps.append(float(printed - ours))
    assert gaps == pytest.approx([gaps[0]] * 3, rel=1e-9)


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize(
    "columns", [(4, 4, 3), (6,)], ids=["three parties", "one party"]
)
def test_the_exact_head_minimises_eq_8(task: Task, columns: tuple[int, ...]) -> None:
    """Up to the ridge of a millionth of the mean diagonal, which keeps a dead unit from
    making it singular."""
    config = vimadmm.Config(
        local_steps=4, learning_rate=0.03, weight_decay=0.01, head_update="exact"
    )
    driver, h, old, _, _, rows = updated(task, config, columns)
    parts = list(h.values())
    W = list(old.values())
    z = driver.z[rows]
    duals = driver.duals[rows]
    beta = config.weight_decay
    rho = config.rho
    for k, W_k in enumerate(torch.split(driver.heads, list(driver.widths.values()))):
        leaf = W_k.clone().requires_grad_()
        torch.autograd.backward(head_objective(k, leaf, parts, W, z, duals, beta, rho))
        assert leaf.grad is not None
        gram = rho * parts[k].T @ parts[k]
        ridge = 1e-6 * gram.trace() / len(gram)
        assert torch.allclose(leaf.grad, -ridge / len(z) * W_k, rtol=1e-6, atol=1e-12)
        assert float(leaf.grad.abs().max()) <= 1e-5
        others = sum(
            (parts[i] @ W[i] for i in range(len(W)) if i != k), torch.zeros_like(z)
        )
        full = gram + len(z) * beta * torch.eye(len(W_k), dtype=W_k.dtype)
        normal = torch.linalg.solve(full, parts[k].T @ (rho * (z - others) - duals))
        assert relative(W_k, normal) <= 1e-4


def test_the_sgd_head_lowers_eq_8_and_the_exact_one_lowers_it_more() -> None:
    values = {}
    for update in ("sgd", "exact"):
        config = vimadmm.Config(local_steps=4, learning_rate=0.03, weight_decay=0.01)
        driver, h, old, _, _, rows = updated("classes", config)
        parts = list(h.values())
        W = list(old.values())
        z = driver.z[rows]
        duals = driver.duals[rows]
        if update == "exact":
            object.__setattr__(
                driver, "config", vimadmm.Config(weight_decay=0.01, head_update="exact")
            )
            driver.heads = torch.cat(W)
            H = torch.cat(parts, dim=-1)
            driver.heads = driver._next_heads(
                H, driver.heads, H @ driver.heads, z, duals
            )
        new = torch.split(driver.heads, list(driver.widths.values()))
        values["old"] = float(
            head_objective(0, W[0], parts, W, z, duals, 0.01, config.rho)
        )
        values[update] = float(
            head_objective(0, new[0], parts, W, z, duals, 0.01, config.rho)
        )
    assert values["exact"] < values["sgd"] < values["old"]


@pytest.mark.parametrize("weight_decay", [0.0, 0.01])
@pytest.mark.parametrize("dead", [1, 8], ids=["one dead unit", "all units dead"])
def test_the_exact_head_survives_dead_units(weight_decay: float, dead: int) -> None:
    """ReLUs that no row of a batch switches on; their part of the head has no use and
    must not become infinite."""
    config = vimadmm.Config(head_update="exact", weight_decay=weight_decay)
    toy = federation(vimadmm.ALGORITHM, config=config)
    h = {k: torch.rand(32, 8, generator=toy.driver.generator) for k in toy.parties}
    h["bob"][:, :dead] = 0
    toy.driver.update(h, "train/0/0")
    assert torch.isfinite(toy.driver.heads).all()
    assert float(toy.driver.heads[8 : 8 + dead].abs().max()) == 0


def test_where_exact_heads_are_large_scaled_local_steps_learn() -> None:
    """Small embeddings make large exact heads. On Eq. 10 as it is local steps then jump
    to and fro and learn little; divided by what the heads have grown, they learn."""
    losses = {
        update: (
            federation(
                vimadmm.ALGORITHM,
                config=vimadmm.Config(
                    head_update=update, local_steps=20, learning_rate=0.3
                ),
            ).run(12)
        )
        for update in ("exact", "exact_scaled")
    }
    assert losses["exact_scaled"][-1] < losses["exact"][0] / 2 < losses["exact"][-1]


def test_embeddings_that_are_no_numbers_are_told_as_what_they_are() -> None:
    toy = federation(vimadmm.ALGORITHM, config=vimadmm.Config(head_update="exact"))
    h = {k: torch.full((32, 8), 1e30) for k in toy.parties}
    with pytest.raises(Diverged, match='"sgd", the default'):
        toy.driver.update(h, "train/0/0")


def test_one_party_with_one_local_step_moves_as_worked_out_by_hand() -> None:
    """With f(x) = x A^T + c, squared loss, zero duals, M = 1: every quantity of the
    first round in closed form."""
    eta = 0.1
    rho = 2.0
    beta = 0.01
    head_rate = 0.05
    config = vimadmm.Config(
        rho=rho,
        local_steps=1,
        learning_rate=eta,
        momentum=0.0,
        weight_decay=beta,
        head_learning_rate=head_rate,
    )
    linear: Any = {"ada": lambda _: nn.Linear(6, 3)}
    toy = federation(
        vimadmm.ALGORITHM,
        columns=(6,),
        task="regression",
        dtype=torch.float64,
        config=config,
        wrap_model=linear,
    )
    party = toy.parties["ada"]
    driver = with_z(toy).driver
    A, c, W = (
        t.detach().clone() for t in (party.model.weight, party.model.bias, driver.heads)
    )
    rows = toy.batches.rows("train/0/0")
    x = party.features[rows]
    y = driver.labels[rows][:, None]
    b = len(rows)
    toy.run(1)

    h = x @ A.T + c
    o = h @ W
    z = (y + rho * o) / (1 + rho)
    dual = rho * (o - z)
    W_new = W - head_rate * (h.T @ (dual + rho * (o - z)) / b + beta * W)
    error = h @ W_new - (z - dual / rho)
    gradient = rho * error @ W_new.T / b
    assert torch.allclose(driver.z[rows], z, rtol=1e-12)
    assert torch.allclose(driver.duals[rows], dual, rtol=1e-9, atol=1e-12)
    assert torch.allclose(driver.heads, W_new, rtol=1e-9)
    assert torch.allclose(
        party.model.weight, A - eta * (gradient.T @ x + beta * A), rtol=1e-9
    )
    assert torch.allclose(
        party.model.bias, c - eta * (gradient.sum(0) + beta * c), rtol=1e-9
    )


def test_lambda_follows_the_row_and_only_the_batchs_rows_change() -> None:
    toy = federation(vimadmm.ALGORITHM)
    toy.run(1)
    touched = toy.batches.rows("train/0/0")
    untouched = torch.ones(len(toy.driver.duals), dtype=torch.bool)
    untouched[touched] = False
    assert (toy.driver.duals[untouched] == 0).all()
    assert (toy.driver.duals[touched] != 0).any(-1).all()


# What crosses


def test_bytes_per_client_and_round_at_mnist_sizes() -> None:
    """245,760 bytes up and 43,360 down, and a first head of 2,400."""
    up, down = traffic_at_mnist_sizes(vimadmm.ALGORITHM, vimadmm.Config(local_steps=1))
    assert up == [245_760, 2 * 245_760]
    assert down == [43_360 + 2_400, 2 * 43_360 + 2_400]


def test_all_parties_get_the_same_residual_released_once() -> None:
    toy = federation(vimadmm.ALGORITHM, lambda parties: Recording(InProcess(parties)))
    toy.run(1)
    entries = [e for e in toy.driver.ledger.entries if e.name == "residual"]
    assert [e.peer for e in entries] == list(toy.parties)
    assert len({e.number for e in entries}) == 1
    seen = [toy.transport.of(name).tensors("residual")[0] for name in toy.parties]
    assert all(torch.equal(tensor, seen[0]) for tensor in seen)


def test_the_party_goes_on_with_the_head_it_was_told() -> None:
    toy = federation(vimadmm.ALGORITHM)
    toy.run(3)
    heads = torch.split(toy.driver.heads, list(toy.driver.widths.values()))
    for party, W_k in zip(toy.parties.values(), heads, strict=True):
        assert torch.equal(party.head, W_k)


def test_first_heads_are_spread_like_a_linear_layers() -> None:
    toy = federation(vimadmm.ALGORITHM)
    for W_k in torch.split(toy.driver.heads, list(toy.driver.widths.values())):
        assert float(W_k.abs().max()) <= 8**-0.5
        assert float(W_k.std()) > 0.1


@pytest.mark.parametrize("pending", [None, "train/0/1"])
def test_variables_for_a_batch_that_is_not_pending_are_refused(
    pending: str | None,
) -> None:
    toy = federation(vimadmm.ALGORITHM)
    toy.peers.ask_each(toy.driver.first_heads())
    if pending:
        toy.peers["ada"].ask(Embed(pending))
    variables = toy.driver.variables_for(torch.zeros(32, 3), "train/0/0")["ada"]
    with pytest.raises(
        PartyError,
        match=f"variables came for batch train/0/0, but {pending} is pending",
    ):
        toy.peers["ada"].ask(variables)


def test_a_prediction_in_the_middle_of_a_round_does_not_disturb_it() -> None:
    plain = federation(vimadmm.ALGORITHM)
    disturbed = federation(vimadmm.ALGORITHM)
    for toy in (plain, disturbed):
        toy.peers.ask_each(toy.driver.first_heads())
        toy.peers.ask(Embed("train/0/0"))
        if toy is disturbed:
            toy.predict()
        toy.peers.ask_each(toy.driver.variables_for(torch.ones(32, 3), "train/0/0"))
    assert_bit_equal(plain.states(), disturbed.states())


def test_improving_before_any_head_is_an_error_not_a_guess() -> None:
    toy = federation(vimadmm.ALGORITHM)
    toy.peers["ada"].ask(Embed("train/0/0"))
    with pytest.raises(PartyError, match="'ada'"):
        toy.peers["ada"].ask(
            toy.driver.variables_for(torch.zeros(32, 3), "train/0/0")["ada"]
        )


def test_heads_are_told_once_at_the_start_and_not_after_a_restart() -> None:
    toy = federation(vimadmm.ALGORITHM)
    toy.run(2)
    toy.run(2)
    adopted = [
        e for e in toy.parties["ada"].ledger.entries if e.message == "vimadmm.Adopt"
    ]
    assert len(adopted) == 1


@pytest.mark.parametrize("seed", range(3))
def test_eq_9_as_printed_diverges_where_the_rounds_old_heads_converge(
    seed: int,
) -> None:
    losses = {}
    for heads in ("old", "new"):
        config = vimadmm.Config(
            learning_rate=0.1, head_learning_rate=0.1, residual_heads=heads
        )
        toy = federation(
            vimadmm.ALGORITHM,
            columns=(4, 4, 4, 4),
            seed=seed,
            dtype=torch.float64,
            config=config,
        )
        losses[heads] = toy.run(15)
    assert losses["old"][-1] < 0.6 * losses["old"][0]
    assert max(losses["new"]) > 2 * losses["new"][0]
    assert not losses["new"][-1] < 0.9 * losses["new"][0]
