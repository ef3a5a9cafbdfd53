"""Multi-VFL's rounds when things go wrong, end and begin again: who is left out, who
comes back, what is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.algorithms.several import ROUNDS, ROWS, Reference, Several, made
from tests.conformance.toy import assert_bit_equal
from torch import nn

from colonnade.algorithms import multi_vfl
from colonnade.algorithms.multi_vfl import joined
from colonnade.core import Rule, Transport, files, roles
from colonnade.errors import BudgetExhausted, ConfigError, PartyError
from colonnade.models import seeded
from colonnade.privacy import Account, Budget
from colonnade.privacy.gaussian import Gaussian
from colonnade.transport import Fault, Faulty

OTHERS = ["abel", "carl"]
BEGIN, ADOPT, TRAIN, ADOPT_1, TRAIN_1, ADOPT_2 = range(1, 7)
"""The calls to a label owner, in order."""


def faulty(*faults: Fault) -> Callable[[Transport], Transport]:
    return lambda inner: Faulty(inner, faults)


def follow(toy: Several, present: list[list[str]]) -> None:
    """Hold every round of a federation to the plain loop over those that took part in
    it."""
    reference = Reference(toy)
    for number, who in enumerate(present):
        loss = reference.round(number, who)
        toy.run(1)
        said = toy.said[-1]
        assert (list(said.losses), said.batch.epoch) == (who, number)
        assert set(said.left_out) == set(ROWS) - set(who)
        assert said.loss == pytest.approx(loss, rel=1e-9)
        assert said.batch.size == sum(ROWS[k] for k in who)
        reference.assert_equal(toy)


@pytest.mark.parametrize("kind", ["drop", "fail"])
def test_who_cannot_be_asked_or_whose_answer_is_lost_is_left_out_and_comes_back(
    kind: Any,
) -> None:
    toy = made(upper=faulty(Fault(kind, "bea", at=TRAIN)))
    follow(toy, [OTHERS, list(ROWS), list(ROWS)])
    assert (
        "'bea' failed while answering multi_vfl.TrainRound"
        in toy.said[0].left_out["bea"]
    )


@pytest.mark.parametrize("call", [7, 12])
def test_who_fails_in_the_middle_of_a_round_leaves_nothing_behind(call: int) -> None:
    """Its copies at data owners are half trained; the next round begins from the
    average of the others."""

    def lower(k: str, inner: Transport) -> Transport:
        return Faulty(inner, [Fault("fail", "lung", at=call)]) if k == "bea" else inner

    toy = made(lower=lower)
    follow(toy, [OTHERS, list(ROWS), list(ROWS)])
    assert "'lung' failed while answering" in toy.said[0].left_out["bea"]
    assert "bea:train/0/" in toy.said[0].left_out["bea"]


def test_a_copy_that_was_left_out_is_the_average() -> None:
    toy = made(upper=faulty(Fault("fail", "bea", at=TRAIN)))
    toy.run(1)
    for owner in toy.data_owners.values():
        for a, b in zip(
            owner.copies["bea"].model.parameters(),
            owner.model.parameters(),
            strict=True,
        ):
            assert torch.equal(a, b)
    assert torch.equal(toy.predict("bea", model="own"), toy.predict("bea"))


def test_who_missed_the_new_weights_gets_them_before_the_next_round() -> None:
    toy = made(upper=faulty(Fault("drop", "bea", at=ADOPT_1)))
    toy.run(1)
    assert toy.label_owners["bea"].round == 0
    assert toy.label_owners["abel"].round == 1
    toy = made(upper=faulty(Fault("drop", "bea", at=ADOPT_1)))
    reference = Reference(toy)
    for number in range(ROUNDS):
        reference.round(number, ROWS)
    toy.run()
    assert [list(said.losses) for said in toy.said] == [list(ROWS)] * ROUNDS
    reference.assert_equal(toy)


def test_who_is_away_for_several_rounds_needs_nothing_that_it_missed() -> None:
    toy = made(
        upper=faulty(
            *(Fault("drop", "bea", at=call) for call in range(TRAIN, TRAIN + 3))
        )
    )
    follow(toy, [OTHERS, OTHERS, list(ROWS)])


def test_when_nobody_finishes_the_first_failure_is_raised_and_names_the_party() -> None:
    toy = made(lower=lambda _, inner: Faulty(inner, [Fault("drop", "lung", at=4)]))
    before = toy.states()
    with pytest.raises(
        PartyError,
        match=(
            r"'lung' failed while answering multi_vfl_data_owner\.\w+ at batch"
            r" abel:train"
        ),
    ):
        toy.run()
    assert toy.server.round == 0
    assert_bit_equal(before["lung"]["model"], toy.states()["lung"]["model"])


def test_a_repeated_delivery_does_nothing() -> None:
    plain = made()
    toy = made(
        upper=faulty(*(Fault("duplicate", k) for k in ROWS)),
        lower=lambda _, inner: Faulty(
            inner, [Fault("duplicate", d) for d in ("heart", "lung")]
        ),
    )
    assert toy.run() == plain.run()
    assert_bit_equal(toy.states()["heart"], plain.states()["heart"])


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
@pytest.mark.parametrize("server", ["fedavg", "feddemonadam"])
def test_saved_and_loaded_after_a_round_it_continues_bit_equal(
    tmp_path: Any, optimizer: Any, server: Any
) -> None:
    config = multi_vfl.Config(server=server, optimizer=optimizer, learning_rate=0.05)
    rows = {"abel": 40, "bea": 40, "carl": 24}
    whole = made(config=config, rows=rows)
    first, second = (made(config=config, rows=rows) for _ in range(2))
    whole.run()
    first.run(1)
    for name, party in first.everyone().items():
        files.write_state(
            tmp_path / name, {"role": party.state(), "seat": party.organisation.state()}
        )
    for name, party in second.everyone().items():
        saved = files.read_state(tmp_path / name)
        party.organisation.load_state(saved["seat"])
        party.load_state(saved["role"])
    second.run()
    assert [said.batch.epoch for said in second.said] == [1, 2]
    for name, state in whole.states().items():
        assert_bit_equal(state, second.states()[name])
    assert torch.equal(whole.predict(model="own"), second.predict(model="own"))


def test_through_bytes_is_bit_equal() -> None:
    plain = made()
    wired = made(through_bytes=True)
    assert plain.run() == wired.run()
    for name, state in plain.states().items():
        assert_bit_equal(state, wired.states()[name])


def test_dropout_draws_from_the_party_s_own_generator() -> None:
    def wrap(model: nn.Module, organisation: Any) -> nn.Module:
        return seeded(
            nn.Sequential(model, nn.Dropout(0.3)),
            organisation.generator,
            owner=organisation.name,
        )

    one = made(wrap_model=wrap)
    same = made(wrap_model=wrap)
    without = made()
    assert one.run() == same.run()
    assert one.said[-1].loss != without.run()[-1]


def test_a_budget_counts_a_row_over_all_label_owners_and_ends_the_round() -> None:
    """Rows 20 to 39 of abel's order are bea's first 20 too: their releases to both are
    counted together."""
    rules = {"heart": {"embedding": Rule(Gaussian(sigma=4.0, clip=1.0))}}
    toy = made(rules=rules, rounds=50)
    heart = toy.data_owners["heart"]
    ids = [str(number) for number in range(200)]
    account = heart.outbox.meter = Account("heart", heart.agreed, ids)
    toy.run(1)
    (counts,) = account.by_row().values()
    shared = set(heart.agreed.order("abel")[:40].tolist()) & set(
        heart.agreed.order("bea")[:56].tolist()
    )
    thrice = shared & set(heart.agreed.order("carl")[:24].tolist())
    assert shared
    for row in range(200):
        known = sum(row in heart.agreed.order(k)[: ROWS[k]].tolist() for k in ROWS)
        assert counts[row] == known
    assert all(counts[row] == 3 for row in thrice)
    heart.outbox.meter = Account("heart", heart.agreed, ids, Budget(epsilon=3.0))
    with pytest.raises(BudgetExhausted, match="'heart' will not release"):
        toy.run()
    assert toy.server.round > 1
    assert toy.predict("carl", "test").isfinite().all()


def test_other_rows_than_agreed_are_refused() -> None:
    toy = made()
    abel = toy.label_owners["abel"]
    abel.batches.seed = 4
    # in one process the data owners look at the same batches
    cards = abel.peers.ask(roles.Introduce())
    abel.batches.seed = 5
    with pytest.raises(
        ConfigError, match="'heart' and 'abel' do not agree on the rows"
    ):
        abel.meet(cards)


def test_what_cannot_be_joined_is_refused() -> None:
    flat = multi_vfl.Config()
    tall = multi_vfl.Config(concatenate="height")
    assert joined({"a": (3,), "b": (5,)}, flat) == (8,)
    assert joined({"a": (32, 7, 28), "b": (32, 5, 28)}, tall) == (32, 12, 28)
    for shapes, config in (
        ({"a": (32, 7, 28), "b": (16, 7, 28)}, tall),
        ({"a": (3,), "b": (5,)}, tall),
        ({"a": (3,), "b": (2, 5)}, flat),
    ):
        with pytest.raises(ConfigError, match="cannot be joined"):
            joined(shapes, config)


def test_a_label_owner_without_training_rows_is_told_and_not_asked() -> None:
    toy = made()
    abel = toy.label_owners["abel"]
    del abel.batches.splits["train"]
    reference = Reference(toy)
    toy.run(1)
    reference.round(0, ["bea", "carl"])
    reference.assert_equal(toy)
    assert toy.said[0].left_out == {}
    assert abel.round == 1
    assert toy.predict("abel").shape == (20, 3)


def test_label_owners_must_have_one_architecture() -> None:
    toy = made()
    bea = toy.label_owners["bea"]
    bea.build = lambda shape: nn.Linear(shape[-1], 3, dtype=torch.float64)
    bea.meet(bea.peers.ask(roles.Introduce()))
    with pytest.raises(
        ConfigError,
        match="'bea' has a model of 30 parameters, and there are 107 at the others",
    ):
        toy.run()
