"""vFedCCE: gradients are those of the joined model, in every mode; what each mode must
keep is in `test_vfedcce_privacy.py`. The conformance battery runs in plaintext mode;
here are its main parts in the others."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.conformance.test_algorithm_checkpoints import load, save
from tests.conformance.toy import (
    TRANSPORTS,
    Task,
    Toy,
    assert_bit_equal,
    difference,
    federation,
    sequential,
)
from torch import Generator, Tensor, nn

from colonnade.algorithms import vfedcce
from colonnade.algorithms.embedding import Descend
from colonnade.encryption import make_keys
from colonnade.errors import BoundaryError, ConfigError, PartyError
from colonnade.models.randomness import Dropout
from colonnade.transport import Fault, Faulty, Recording

pytestmark = pytest.mark.filterwarnings(
    "ignore:vfedcce in plaintext", 'ignore:The encryption scheme "plain"'
)

ENCRYPTED = ("encrypted-coefficients", "encrypted-jacobian")
every_mode = pytest.mark.parametrize("mode", ["plaintext", *ENCRYPTED])
encrypted_modes = pytest.mark.parametrize("mode", ENCRYPTED)


def made(mode: Any, scheme: Any = "plain", **settings: Any) -> Toy:
    config = vfedcce.Config(
        mode=mode, scheme=scheme, optimizer="sgd", learning_rate=0.05
    )
    return federation(vfedcce.ALGORITHM, **({"config": config} | settings))


def joined_loss(models: list[nn.Module], x: list[Tensor], y: Tensor) -> Tensor:
    """-mean log of the mean of the parties' probabilities, with their logits, as the
    paper writes it."""
    probabilities = []
    for model, x_k in zip(models, x, strict=True):
        u = model(x_k)
        probabilities.append(
            torch.cat([torch.zeros_like(u[:, :1]), u], dim=1).softmax(-1)
        )
    p = torch.stack(probabilities).mean(0)
    return -p[torch.arange(len(y)), y].log().mean()


def joined_gradients(toy: Toy) -> dict[str, Tensor]:
    """By autograd on the joined model, at the first batch."""
    rows = toy.batches.rows("train/0/0")
    models = [copy.deepcopy(party.model).train() for party in toy.parties.values()]
    loss = joined_loss(
        models,
        [party.features[rows] for party in toy.parties.values()],
        toy.driver.labels[rows],
    )
    torch.autograd.backward(loss)
    return dict(zip(toy.parties, map(gradient, models), strict=True))


def gradient(model: nn.Module) -> Tensor:
    return torch.cat(
        [
            weight.grad.flatten()
            for weight in model.parameters()
            if weight.grad is not None
        ]
    )


def jacobian(model: nn.Module, x: Tensor) -> Tensor:
    """du/dtheta of a model with one output, row by row."""
    weights = list(model.parameters())
    rows = (torch.autograd.grad(u, weights, retain_graph=True) for u in model(x)[:, 0])
    return torch.stack([torch.cat([part.flatten() for part in row]) for row in rows])


def relative(one: Tensor, other: Tensor) -> float:
    return float((one - other).norm() / other.norm())


@every_mode
@pytest.mark.parametrize("task", ["binary", "classes"])
@pytest.mark.parametrize(
    "columns", [(5,), (4, 3), (2, 3, 2, 3)], ids=["1 party", "2 parties", "4 parties"]
)
@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float64, 1e-10)], ids=str
)
def test_gradients_are_autograds_on_the_joined_model(
    mode: str,
    task: Task,
    columns: tuple[int, ...],
    dtype: torch.dtype,
    tolerance: float,
) -> None:
    toy = made(mode, task=task, columns=columns, dtype=dtype)
    expected = joined_gradients(toy)
    toy.run(1)
    for name, party in toy.parties.items():
        assert relative(gradient(party.model), expected[name]) <= tolerance


@pytest.mark.parametrize("task", ["binary", "classes"])
def test_the_loss_is_the_cross_entropy_of_the_mean_and_predictions_are_its_logarithm(
    task: Task,
) -> None:
    toy = made("plaintext", task=task, dtype=torch.float64)
    rows = toy.batches.rows("train/0/0")
    models = [copy.deepcopy(party.model) for party in toy.parties.values()]
    x = [party.features[rows] for party in toy.parties.values()]
    expected = joined_loss(models, x, toy.driver.labels[rows]).item()
    scores = toy.driver.loss.scores(toy.predict("test"))
    assert torch.allclose(scores.sum(-1), torch.ones(len(scores), dtype=torch.float64))
    assert toy.run(1)[0] == pytest.approx(expected, rel=1e-12)


def test_the_papers_equation_1_is_the_number_of_parties_times_the_gradient() -> None:
    toy = made("plaintext", dtype=torch.float64, columns=(4, 3))
    rows = toy.batches.rows("train/0/0")
    m = 3
    models = [copy.deepcopy(party.model) for party in toy.parties.values()]
    y = torch.nn.functional.one_hot(toy.driver.labels[rows], m)
    a = []
    for model, party in zip(models, toy.parties.values(), strict=True):
        u = model(party.features[rows])
        a.append(torch.cat([torch.zeros_like(u[:, :1]), u], dim=1).softmax(-1))
    c = (y / (torch.stack(a).mean(0))).detach()
    torch.autograd.backward(-(c * a[0]).sum() / len(rows))
    printed = gradient(models[0])
    assert relative(printed, 2 * joined_gradients(toy)["ada"]) <= 1e-12


class Normed(nn.Module):
    """A model whose rows depend on each other."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.norm = nn.BatchNorm1d(4)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.model(self.norm(x))
        return result


def dropped(model: nn.Module) -> nn.Module:
    return nn.Sequential(Dropout(0.5, Generator().manual_seed(7)), model)


@every_mode
@pytest.mark.parametrize(
    "wrap", [dropped, Normed], ids=["dropout", "batch normalization"]
)
def test_the_jacobian_is_taken_through_the_pass_that_was_sent(
    mode: str, wrap: Callable[..., nn.Module]
) -> None:
    """The same dropout masks, and rows that depend on each other."""
    toy, twin = (
        made(mode, dtype=torch.float64, wrap_model={"ada": wrap}) for _ in range(2)
    )
    rows = twin.batches.rows("train/0/0")
    models = [party.model.train() for party in twin.parties.values()]
    loss = joined_loss(
        models,
        [party.features[rows] for party in twin.parties.values()],
        twin.driver.labels[rows],
    )
    torch.autograd.backward(loss)
    toy.run(1)
    for model, party in zip(models, toy.parties.values(), strict=True):
        assert relative(gradient(party.model), gradient(model)) <= 1e-10


@encrypted_modes
@pytest.mark.parametrize("scheme", ["ckks", "bfv"])
def test_encrypted_gradients_match_within_the_schemes_precision(
    mode: str, scheme: str
) -> None:
    toy = made(mode, scheme, columns=(3, 3), task="binary", dtype=torch.float64)
    expected = joined_gradients(toy)
    jacobians = {
        name: jacobian(party.model, party.x("train/0/0"))
        for name, party in toy.parties.items()
    }
    toy.run(1)
    for name, party in toy.parties.items():
        secret = (
            toy.driver._secret if mode == "encrypted-coefficients" else party._secret
        )
        rows = len(jacobians[name])
        bound = secret.public.product_error(jacobians[name]) / rows + 1e-12
        assert bound <= 2e-4
        assert float((gradient(party.model) - expected[name]).abs().max()) <= bound
        assert relative(gradient(party.model), expected[name]) <= 1e-4


@encrypted_modes
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
@pytest.mark.parametrize("task", ["binary", "classes"])
def test_every_mode_takes_the_same_steps(mode: Any, optimizer: str, task: Task) -> None:
    config: dict[str, Any] = {"optimizer": optimizer, "learning_rate": 0.01}
    plain = federation(
        vfedcce.ALGORITHM,
        task=task,
        dtype=torch.float64,
        config=vfedcce.Config(mode="plaintext", **config),
    )
    other = vfedcce.Config(mode=mode, scheme="plain", **config)
    hidden = federation(vfedcce.ALGORITHM, task=task, dtype=torch.float64, config=other)
    assert hidden.run(7) == pytest.approx(plain.run(7), rel=1e-9)
    assert difference(plain.states(), hidden.states()) <= 1e-9


@encrypted_modes
@pytest.mark.parametrize(
    "transport", ["through bytes", "threads", "recording", "cohorts"]
)
def test_what_carries_the_calls_cannot_change_a_bit(mode: str, transport: str) -> None:
    """Nor can parties be stacked: each computes with keys of its own."""
    plain = made(mode)
    other = made(mode, transport=TRANSPORTS[transport])
    assert other.cohorts() == []
    assert plain.run(3) == other.run(3)
    assert_bit_equal(plain.states(), other.states())


@encrypted_modes
def test_ledgers_and_transcripts_agree_on_every_byte(mode: str) -> None:
    toy = made(
        mode, transport=lambda parties: Recording(TRANSPORTS["through bytes"](parties))
    )
    toy.run(2)
    for name, party in toy.parties.items():
        up = toy.transport.of("label owner").total(name)
        down = toy.transport.of(name).total("label owner")
        assert (
            toy.driver.ledger.total("in", name)
            == party.ledger.total("out", "label owner")
            == up
            > 0
        )
        assert (
            toy.driver.ledger.total("out", name)
            == party.ledger.total("in", "label owner")
            == down
            > 0
        )


@encrypted_modes
def test_saved_and_loaded_it_continues_with_new_keys(mode: str, tmp_path: Path) -> None:
    whole = made(mode)
    second = made(mode)
    expected = whole.run(2)
    save(whole, tmp_path)
    expected += whole.run(2)
    load(second, tmp_path)
    assert second.run(2) == expected[2:]
    assert_bit_equal(whole.states(), second.states())


@encrypted_modes
@pytest.mark.parametrize("at", [2, 3, 4, 5, 6])
@pytest.mark.parametrize("kind", ["drop", "fail"])
def test_a_lost_call_is_named(mode: str, at: int, kind: Any) -> None:
    toy = made(
        mode,
        transport=lambda parties: Faulty(
            sequential(parties), [Fault(kind, "bob", at=at)]
        ),
    )
    with pytest.raises(PartyError, match="'bob' failed while answering"):
        toy.run()
    assert torch.isfinite(toy.predict()).all()


@encrypted_modes
def test_a_call_that_comes_twice_changes_nothing(mode: str) -> None:
    plain = made(mode)
    twice = made(
        mode,
        transport=lambda parties: Faulty(
            sequential(parties), [Fault("duplicate", "bob")]
        ),
    )
    assert plain.run(3) == twice.run(3)
    assert_bit_equal(plain.states(), twice.states())


@every_mode
@pytest.mark.parametrize("transport", ["by reference", "cohorts"])
def test_a_label_owner_with_columns_of_its_own_keeps_them_at_home(
    mode: str, transport: str
) -> None:
    toy = made(mode, driver="ada", dtype=torch.float64, transport=TRANSPORTS[transport])
    expected = joined_gradients(toy)
    toy.run(1)
    toy.states()  # a cohort's members get their models back
    if transport == "by reference":
        for name, party in toy.parties.items():
            assert relative(gradient(party.model), expected[name]) <= 1e-10
    else:
        plain = made(mode, driver="ada", dtype=torch.float64)
        plain.run(1)
        assert difference(plain.states(), toy.states()) <= 1e-10
    own = (
        {"log_odds", "jacobian", "gradient"}
        if mode == "plaintext"
        else {"log_odds", "coefficients"}
    )
    assert {e.name for e in toy.driver.ledger.entries if e.peer == "ada"} == own
    assert {e.direction for e in toy.driver.ledger.entries if e.peer == "ada"} == {
        "own"
    }


@pytest.mark.parametrize("mode", ["plaintext", "encrypted-jacobian"])
def test_a_jacobian_that_is_not_as_agreed_is_refused_with_its_senders_name(
    mode: str,
) -> None:
    toy = made(mode)
    liar: Any = toy.parties["bob"]

    def ask_jacobian(request: vfedcce.AskJacobian) -> vfedcce.Jacobian:
        if mode == "encrypted-jacobian":
            return vfedcce.Jacobian(
                liar.outbox.release(torch.zeros(4, 3), "jacobian", request.batch)
            )
        key = make_keys("plain", use="combinations", limit=1.0)
        return vfedcce.Jacobian(
            liar.outbox.encrypt(torch.zeros(4, 3), "jacobian", request.batch, key=key)
        )

    ask_jacobian.__serves__ = 1  # type: ignore[attr-defined]
    liar.ask_jacobian = ask_jacobian
    sent = "readable" if mode == "encrypted-jacobian" else "encrypted"
    with pytest.raises(
        PartyError,
        match=(
            f"'bob' failed while answering vfedcce.AskJacobian .* it sent {sent} values"
        ),
    ):
        toy.run(1)


def test_numbers_to_be_predicted_are_refused() -> None:
    with pytest.raises(
        ConfigError,
        match=(
            "averages class probabilities, and the label of 'label owner' is a number"
        ),
    ):
        made("plaintext", task="regression")


def test_coefficients_in_the_clear_are_taken_from_the_own_label_owner_alone() -> None:
    toy = federation(vfedcce.ALGORITHM)
    next(iter(vfedcce.train(toy.driver, toy.peers, toy.batches)))
    gradient = toy.driver.outbox.release(torch.zeros(32, 3), "gradient", "train/0/0")
    with pytest.raises(BoundaryError, match="this is for ada to ask"):
        toy.peers["ada"].ask(vfedcce.TakeCoefficients("train/0/0", gradient))
    with pytest.raises(BoundaryError, match=r"does not serve embedding\.Descend"):
        toy.peers["ada"].ask(Descend("train/0/0", gradient))
