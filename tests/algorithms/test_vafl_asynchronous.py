"""VAFL without rounds is the paper's loop, replayed by hand: one party steps, with what
the others sent last."""

from __future__ import annotations

import copy
import threading
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import pytest
import torch
from tests.algorithms.reference import assert_alike, mean_loss, optimizer_of, relative
from tests.conformance.toy import (
    TASKS,
    Task,
    Toy,
    assert_bit_equal,
    federation,
    sequential,
)
from tests.federation.small import equal, frames, learned_of, splitnn
from tests.federation.small import federation as clinic_and_lab
from tests.transport.one_by_one import OneByOne, only
from torch import Tensor

from colonnade.algorithms import vafl
from colonnade.algorithms.embedding import Descend
from colonnade.core import Envelope, Message, Party, Request, Transport
from colonnade.core.peers import Answer
from colonnade.errors import PartyError
from colonnade.transport import Fault, Faulty, InProcess

R = TypeVar("R", bound=Message)
EACH = 5  # batches an epoch
TURNS, ARRIVAL = (
    vafl.Config(schedule=schedule, learning_rate=0.1)
    for schedule in ("turns", "arrival")
)


class Noting(OneByOne):
    """Passes calls on; the requests that were answered, by party. One party's calls may
    wait for the others' last."""

    def __init__(self, inner: Transport, slow: str | None = None) -> None:
        self.inner = inner
        self.slow = slow
        self.all = list[tuple[str, Request[Any]]]()
        self.others_done = threading.Event()

    def exchange(self, calls: Sequence[Envelope[Any]]) -> list[Answer]:
        """Only calls that are made alone are noted: those of the schedule."""
        if len(calls) > 1:
            return self.inner.exchange(calls)
        return super().exchange(calls)

    def one(self, call: Envelope[Any]) -> Any:
        if call.receiver == self.slow:
            assert self.others_done.wait(20), "the others waited for the slow one"
        reply = only(self.inner, call)
        self.all.append((call.receiver, call.message))
        if sum(isinstance(request, vafl.Turn) for _, request in self.all) == 2 * EACH:
            self.others_done.set()
        return reply

    def to(self, party: str) -> list[Request[Any]]:
        return [request for to, request in self.all if to == party]

    def turns(self, party: str) -> list[str]:
        return [
            request.batch
            for request in self.to(party)
            if isinstance(request, vafl.Turn)
        ]


def noting(parties: Mapping[str, Party]) -> Transport:
    return Noting(InProcess(parties))


class Replay:
    """The asynchronous algorithm in one place: plain tensors, autograd through the
    party whose turn it is."""

    def __init__(self, toy: Toy) -> None:
        self.toy = toy
        config = toy.driver.config
        self.models = {
            name: copy.deepcopy(party.model) for name, party in toy.parties.items()
        }
        self.optimizers = {
            name: optimizer_of(model.parameters(), config)
            for name, model in self.models.items()
        }
        head = toy.driver.model
        self.head = [
            t.detach().clone().requires_grad_()
            for t in (head.alpha, head.linear.weight, head.linear.bias)
        ]
        adam = config.optimizer == "adam"  # the label owner's SGD has no momentum
        self.step_head = optimizer_of(
            self.head, config if adam else config.changed(momentum=0.0)
        )
        self.sent = {
            name: torch.zeros(len(toy.driver.labels), 8, dtype=torch.float64)
            for name in self.models
        }
        self.counts = dict.fromkeys(self.models, 0)

    def turn(self, party: str) -> float:
        batch = "train/{}/{}".format(*divmod(self.counts[party], EACH))
        self.counts[party] += 1
        rows = self.toy.batches.rows(batch)
        h_k = self.models[party](self.toy.parties[party].features[rows])
        self.sent[party][rows] = h_k.detach()
        h = torch.stack(
            [h_k if name == party else self.sent[name][rows] for name in self.models]
        )
        alpha, weight, bias = self.head
        loss = mean_loss(
            self.toy, (alpha[:, None, None] * h).sum(0) @ weight.T + bias, batch
        )
        self.step_head.zero_grad()
        self.optimizers[party].zero_grad()
        torch.autograd.backward(loss)
        self.step_head.step()
        self.optimizers[party].step()
        return loss.item()

    def turns(self, parties: Iterable[str]) -> list[float]:
        return [self.turn(party) for party in parties]

    def assert_equal(self) -> None:
        for name, party in self.toy.parties.items():
            assert_alike(party.model, self.models[name], 1e-9)
        head = self.toy.driver.model
        for mine, theirs in zip(
            (head.alpha, head.linear.weight, head.linear.bias), self.head, strict=True
        ):
            assert relative(mine, theirs) <= 1e-9


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize(
    "config",
    [
        TURNS,
        vafl.Config(
            schedule="turns", learning_rate=0.05, momentum=0.0, weight_decay=0.0
        ),
        vafl.Config(
            schedule="turns",
            optimizer="adam",
            learning_rate=0.01,
            momentum=0.8,
            weight_decay=0.01,
        ),
    ],
    ids=["momentum and decay", "sgd", "adam"],
)
def test_it_is_the_papers_loop(task: Task, config: vafl.Config) -> None:
    toy = federation(
        vafl.ALGORITHM, columns=(4, 4, 3), task=task, dtype=torch.float64, config=config
    )
    replay = Replay(toy)
    order = toy.driver.order(0, EACH) + toy.driver.order(1, EACH)
    for step in range(2 * EACH):
        losses = replay.turns(order[3 * step : 3 * step + 3])
        assert toy.run(1) == pytest.approx([sum(losses) / 3], rel=1e-9)
        replay.assert_equal()  # what a party is owed was delivered
    assert set(replay.counts.values()) == {2 * EACH}


class Learned(list[tuple[str, str]]):
    """Whose embedding of which batch the label owner stepped with."""

    def __init__(self, toy: Toy) -> None:
        super().__init__()
        self.driver = toy.driver
        self.took = toy.driver.took
        toy.driver.took = self

    def __call__(self, party: str, h_k: Tensor) -> float:
        self.append((party, self.driver.next_batch(party)))
        return self.took(party, h_k)  # type: ignore[no-any-return]

    def assert_all_once(self) -> None:
        for name in self.driver.widths:
            batches = [batch for party, batch in self if party == name]
            assert batches == [
                f"train/{epoch}/{number}" for epoch in (0, 1) for number in range(EACH)
            ]


def test_as_they_arrive_it_is_the_loop_in_the_order_of_arrival() -> None:
    toy = federation(vafl.ALGORITHM, InProcess, dtype=torch.float64, config=ARRIVAL)
    replay = Replay(toy)
    learned = Learned(toy)
    losses = toy.run()
    learned.assert_all_once()
    by_hand = replay.turns(party for party, _ in learned)
    assert losses == pytest.approx(
        [sum(by_hand[at : at + 3]) / 3 for at in range(0, 30, 3)], rel=1e-9
    )
    replay.assert_equal()


@pytest.mark.parametrize("config", [TURNS, ARRIVAL], ids=lambda config: config.schedule)
def test_one_party_alone_does_what_it_does_in_rounds(config: vafl.Config) -> None:
    rounds, other = (
        federation(vafl.ALGORITHM, columns=(6,), config=c)
        for c in (vafl.Config(learning_rate=0.1), config)
    )
    assert rounds.run() == other.run()
    assert_bit_equal(rounds.parties["ada"].state(), other.parties["ada"].state())
    assert_bit_equal(rounds.driver.model.state_dict(), other.driver.model.state_dict())
    assert torch.equal(rounds.predict(), other.predict())


def test_a_gradient_is_that_of_the_joined_loss_with_the_others_as_they_were() -> None:
    toy = federation(vafl.ALGORITHM, dtype=torch.float64, config=TURNS)
    toy.run(3)
    driver, head = toy.driver, copy.deepcopy(toy.driver.model)
    batch = driver.next_batch("bob")
    generator = torch.Generator().manual_seed(0)
    rows = toy.batches.rows(batch)
    before = driver.latest.clone()
    h_bob = torch.randn(
        32, 8, dtype=torch.float64, generator=generator, requires_grad=True
    )
    loss = mean_loss(
        toy, head(torch.stack([before[0, rows], h_bob, before[2, rows]])), batch
    )
    (expected,) = torch.autograd.grad(loss, h_bob)
    assert driver.took("bob", h_bob.detach()) == pytest.approx(loss.item(), rel=1e-12)
    owed = driver.owed["bob"]
    assert owed.batch == owed.gradient.receipt.batch == batch
    assert relative(owed.gradient.tensor, expected) <= 1e-12
    before[1, rows] = h_bob.detach()
    assert torch.equal(driver.latest, before)  # only bob's entries, only of these rows


def test_until_a_party_was_heard_its_embeddings_are_zero() -> None:
    toy = federation(vafl.ALGORITHM, noting, config=TURNS)
    toy.run(1)
    heard = {name: toy.transport.turns(name) for name in toy.parties}
    assert sum(map(len, heard.values())) == 3
    for latest, batches in zip(toy.driver.latest, heard.values(), strict=True):
        rows = torch.cat(
            [torch.empty(0, dtype=torch.int64), *map(toy.batches.rows, batches)]
        )
        assert set(latest.any(-1).nonzero()[:, 0].tolist()) == set(rows.tolist())
        assert len(latest) == len(toy.batches.splits["train"])


# Whose turn it is


def test_turns_are_shuffled_with_the_label_owners_seed() -> None:
    one, same, other = (
        federation(vafl.ALGORITHM, seed=seed, config=TURNS) for seed in (0, 0, 1)
    )
    orders = [
        toy.driver.order(epoch, EACH) for toy in (one, same, other) for epoch in (0, 1)
    ]
    assert orders[:2] == orders[2:4]
    assert len({tuple(order) for order in orders}) == 4
    for order in orders:
        assert sorted(order) == sorted([*one.parties] * EACH)
    ahead = [
        orders[0][:n].count("ada") - orders[0][:n].count("bob") for n in range(3 * EACH)
    ]
    assert max(map(abs, ahead)) > 1  # at their own pace, not one after the other


def test_turns_are_asked_for_in_that_order_and_every_gradient_comes_back() -> None:
    toy = federation(vafl.ALGORITHM, noting, config=TURNS)
    for _ in range(2 * EACH):
        toy.run(1)
        assert not toy.driver.owed
    asked = [to for to, request in toy.transport.all if isinstance(request, vafl.Turn)]
    assert asked == toy.driver.order(0, EACH) + toy.driver.order(1, EACH)
    for name in toy.parties:
        assert_answered(toy.transport.to(name))


def assert_answered(requests: list[Request[Any]], epochs: int = 2) -> None:
    """Every batch once, in order; each gradient before the next batch, and none twice."""
    turns = [request for request in requests if isinstance(request, vafl.Turn)]
    assert [turn.batch for turn in turns] == [
        f"train/{epoch}/{n}" for epoch in range(epochs) for n in range(EACH)
    ]
    answered = []
    last = None
    for request in requests:
        batch = (
            request.before
            if isinstance(request, vafl.Turn)
            else getattr(request, "batch", None)
        )
        if batch is not None:
            assert batch == last
            answered.append(batch)
        last = request.batch if isinstance(request, vafl.Turn) else None
    assert answered == [turn.batch for turn in turns]


def test_a_slow_party_does_not_hold_the_others_up() -> None:
    toy = federation(
        vafl.ALGORITHM,
        lambda parties: Noting(InProcess(parties), slow="cyd"),
        config=ARRIVAL,
    )
    assert len(toy.run()) == 2 * EACH
    first = [to for to, request in toy.transport.all if isinstance(request, vafl.Turn)]
    assert "cyd" not in first[: 2 * EACH]
    # the next epoch waits until all have taken this one
    assert first[2 * EACH : 3 * EACH] == ["cyd"] * EACH
    for name in toy.parties:
        requests = toy.transport.to(name)
        assert_answered(requests)
        # one message a turn
        assert [type(r) for r in requests] == ([vafl.Turn] * EACH + [Descend]) * 2


# What goes wrong


@pytest.mark.parametrize("config", [TURNS, ARRIVAL], ids=lambda config: config.schedule)
@pytest.mark.parametrize("kind", ["drop", "fail"])
@pytest.mark.parametrize("at", [2, 3])  # the first was the introduction
def test_a_party_that_fails_is_named_and_the_epoch_can_go_on(
    config: vafl.Config, kind: Any, at: int
) -> None:
    toy = federation(
        vafl.ALGORITHM,
        lambda parties: Faulty(sequential(parties), [Fault(kind, "bob", at=at)]),
        config=config,
    )
    learned = Learned(toy)
    with pytest.raises(PartyError, match="'bob'") as caught:
        toy.run()
    assert caught.value.party == "bob"
    assert torch.isfinite(toy.predict()).all()
    toy.run()
    learned.assert_all_once()
    assert not toy.driver.owed


@pytest.mark.parametrize("config", [TURNS, ARRIVAL], ids=lambda config: config.schedule)
def test_left_in_the_middle_of_an_epoch_it_goes_on_there(config: vafl.Config) -> None:
    toy = federation(vafl.ALGORITHM, config=config)
    learned = Learned(toy)
    assert len(toy.run(2) + toy.run(1) + toy.run()) == 2 * EACH
    learned.assert_all_once()


def test_a_gradient_for_a_batch_that_is_not_pending_is_refused() -> None:
    toy = federation(vafl.ALGORITHM, config=TURNS)
    toy.peers.ask_one("bob", vafl.Turn("train/0/0", None, None))
    gradient = toy.driver.outbox.release(torch.zeros(32, 8), "gradient", "train/0/3")
    before = toy.states()["bob"]
    with pytest.raises(
        PartyError,
        match="a gradient came for batch train/0/3, but train/0/0 is pending",
    ):
        toy.peers.ask_one("bob", vafl.Turn("train/0/1", "train/0/3", gradient))
    assert_bit_equal(before, toy.states()["bob"])


# In a federation


def settings(schedule: str, epochs: int = 2, **engine: Any) -> Any:
    train = {"epochs": epochs, "early_stop": False}
    tables = splitnn(train=train, federation={"device": "cpu", **engine})
    return {
        **tables,
        "algorithm": {"name": "vafl", "schedule": schedule, "learning_rate": 0.1},
    }


@pytest.mark.parametrize(
    "engine",
    [{"cohort": "on"}, {"through_bytes": True}, {"threads": "always"}],
    ids=str,
)
def test_what_carries_the_turns_cannot_change_a_bit(engine: dict[str, Any]) -> None:
    one, other = (
        clinic_and_lab(settings=settings("turns", **e))
        for e in ({"cohort": "off"}, engine)
    )
    for run in (one, other):
        run.fit()
    assert equal(learned_of(one), learned_of(other))
    # a cohort predicts stacked
    assert one.evaluate() == pytest.approx(other.evaluate(), rel=1e-5)


def test_a_resumed_run_continues_bit_equal(tmp_path: Path) -> None:
    whole = clinic_and_lab(settings=settings("turns", 3))
    whole.fit(tmp_path / "whole")
    clinic_and_lab(settings=settings("turns", 1)).fit(tmp_path / "parts")
    resumed = clinic_and_lab(settings=settings("turns", 3))
    outcome = resumed.fit(tmp_path / "parts", resume=True)
    assert len(outcome.history) == 3
    assert equal(learned_of(whole), learned_of(resumed))


def test_as_they_arrive_a_run_is_recorded_saved_and_resumed(tmp_path: Path) -> None:
    clinic_and_lab(settings=settings("arrival", 1)).fit(tmp_path)
    run = clinic_and_lab(settings=settings("arrival", 2), given=frames(), record=True)
    assert [record["epoch"] for record in run.fit(tmp_path, resume=True).history] == [
        1,
        2,
    ]
    assert run.recording is not None
    lab = run.ledgers["lab"]
    clinic = run.ledgers["clinic"]
    for way, back in (("out", "in"), ("in", "out")):
        assert lab.total(way, "clinic") == clinic.total(back, "lab") > 0  # type: ignore[arg-type]


def test_an_epoch_in_turns_crosses_as_many_bytes_as_in_rounds() -> None:
    rounds, turns, arrival = (
        federation(vafl.ALGORITHM, config=config)
        for config in (vafl.Config(), TURNS, ARRIVAL)
    )
    for toy in (rounds, turns, arrival):
        toy.run(EACH)
    for name, party in rounds.parties.items():
        for toy in (turns, arrival):
            other = toy.parties[name]
            assert (
                other.ledger.total("out")
                == party.ledger.total("out")
                == EACH * 32 * 8 * 4
            )
            assert (
                other.ledger.total("in")
                == party.ledger.total("in")
                == EACH * 32 * 8 * 4
            )
