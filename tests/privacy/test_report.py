"""What holds against whom, from an account."""

from __future__ import annotations

import json
import math

import pytest
import torch
from tests.privacy.test_budget import NOISE, OTHER, account, epoch

from colonnade.core import NON_PRIVATE, Batches, DpEvent
from colonnade.core.batches import SAMPLINGS
from colonnade.core.receipt import PUBLIC
from colonnade.privacy import Account
from colonnade.privacy.accounting import (
    binomial_cpsgd,
    gaussian_epsilon,
    hidden_pld,
    hidden_poisson_rdp,
    hidden_rdp,
    key_of,
    known_batch,
)
from colonnade.privacy.report import (
    HIDDEN,
    KNOWN,
    THROUGH,
    Guarantee,
    describe,
    for_columns,
    for_labels,
    nothing,
)

ENCRYPTED = DpEvent("encrypted (bfv)")
BINOMIAL = DpEvent(
    "binomial", {"levels": 4.0, "trials": 65536.0, "p": 0.5, "coordinates": 4.0}
)


def trained(
    epochs: int = 3, event: DpEvent = NOISE, epsilon: float | None = None
) -> Guarantee:
    mine = account(epsilon)
    for number in range(epochs):
        epoch(mine, number, event)
    mine.charge("embedding", "test[0:10]", 10, event)
    return for_columns("lab", mine)


def test_gaussian_noise_has_one_statement_per_adversary_relation_and_accountant() -> (
    None
):
    found = trained()
    told = {(s.adversary, s.relation): s.epsilon for s in found.statements}
    assert told == pytest.approx(
        {
            (HIDDEN, "replace-one"): known_batch(
                {key_of(NOISE): 3}, "replace-one", 1e-5
            ),
            (KNOWN, "replace-one"): known_batch(
                {key_of(NOISE): 3}, "replace-one", 1e-5
            ),
            (KNOWN, "add-or-remove"): known_batch(
                {key_of(NOISE): 3}, "add-or-remove", 1e-5
            ),
            (THROUGH, "replace-one"): gaussian_epsilon(
                2 / 4.0 * math.sqrt(3 * 30 + 10), 1e-5
            ),
        }
    )
    (release,) = found.releases
    assert (release.release, release.mechanism, release.appearances) == (
        "embedding",
        "gaussian, clip 1, sigma 4",
        3,
    )
    assert all(s.delta == 1e-5 for s in found.statements)


def test_hidden_batches_amplify_where_they_are_drawn_anew_and_nowhere_else() -> None:
    told = {}
    often = {}
    for sampling in SAMPLINGS:
        drawn = Batches(
            {"train": torch.arange(30)},
            batch_size=8,
            epochs=3,
            seed=0,
            sampling=sampling,
        )
        mine = Account("lab", drawn, [f"id{row}" for row in range(30)], None)
        for number in range(3):
            epoch(mine, number)
        (item,) = mine.rounds
        often[sampling] = drawn.most_often()
        # what the label owner counts is what was really drawn
        assert mine.released(item)[0] == drawn.most_often()
        restored = Account("lab", drawn, (), None)
        restored.load_state(mine.state())
        hidden = [
            s for s in for_columns("lab", restored).statements if s.adversary == HIDDEN
        ]
        told[sampling] = {
            s.accountant: s.epsilon
            for s in hidden
            if s.relation != "replace-one, sensitivity C"
        }
    three = known_batch({key_of(NOISE): 3}, "replace-one", 1e-5)
    assert told["epoch"] == pytest.approx({"no amplification": three})
    assert told["without_replacement"] == pytest.approx(
        {"RDP, batches without replacement": hidden_rdp(2.0, 30, 8, 12, 1e-5)}
    )
    assert told["poisson"] == pytest.approx(
        {
            "PLD, Poisson batches": hidden_pld(4.0, 30, 8, 12, 1e-5),
            "RDP, Poisson batches": hidden_poisson_rdp(4.0, 30, 8, 12, 1e-5),
            # one row replaced
            "no amplification": known_batch(
                {key_of(NOISE): often["poisson"]}, "replace-one", 1e-5
            ),
        }
    )


def test_the_budgets_own_relation_comes_with_what_is_spent() -> None:
    mine = account(9.0, relation="add-or-remove", delta=1e-4)
    epoch(mine, 0)
    found = for_columns("lab", mine)
    spent = known_batch({key_of(NOISE): 1}, "add-or-remove", 1e-4)
    assert found.budget == {
        "epsilon": 9.0,
        "delta": 1e-4,
        "relation": "add-or-remove",
        "spent": pytest.approx(spent),
    }
    assert {s.delta for s in found.statements} == {1e-4}


def test_binomial_noise_shows_the_theorem_beside_the_exact_value() -> None:
    told = {
        s.accountant: s.epsilon
        for s in trained(event=BINOMIAL).statements
        if s.adversary == KNOWN
    }
    assert told == pytest.approx(
        {
            "exact privacy-loss distribution": known_batch(
                {key_of(BINOMIAL): 3}, "replace-one", 1e-5
            ),
            "cpSGD's theorem": binomial_cpsgd(key_of(BINOMIAL), 3, 1e-5),
        }
    )


def test_too_little_binomial_noise_is_said_to_be_none() -> None:
    weak = DpEvent(
        "binomial", {"levels": 8.0, "trials": 8.0, "p": 0.5, "coordinates": 4.0}
    )
    found = trained(event=weak)
    assert all(s.epsilon is None for s in found.statements)
    assert "its condition on N p (1 - p) does not hold" in {
        s.note for s in found.statements
    }


@pytest.mark.parametrize("event", [NON_PRIVATE, DpEvent("magic")])
def test_one_release_without_a_guarantee_is_none_for_its_rows(event: DpEvent) -> None:
    mine = account(None)
    epoch(mine, 0)
    mine.charge("embedding", "train[0:1]", 1, event)
    known = [
        s
        for s in for_columns("lab", mine).statements
        if s.adversary in (KNOWN, THROUGH)
    ]
    assert known
    assert all(s.epsilon is None for s in known)


def test_rows_for_other_purposes_are_not_training_rows() -> None:
    mine = account(None)
    mine.charge("embedding", "test[0:10]", 10, OTHER)
    found = for_columns("lab", mine)
    # nothing was learned from them
    assert {s.adversary for s in found.statements} == {KNOWN}


def test_seeded_noise_is_called_an_experiment() -> None:
    assert (
        "an experiment, no protection"
        in for_columns("lab", account(None), seeded=True).notes[0]
    )


def test_labels_have_a_statement_of_their_own() -> None:
    event = DpEvent("randomized-response", {"epsilon": 2.0, "classes": 3.0})
    found = for_labels("clinic", event, ["gradient"])
    (statement,) = found.statements
    assert (found.protects, statement.epsilon, statement.delta) == ("labels", 2.0, 0.0)
    assert "label-DP" in statement.note
    assert "up to n x epsilon" not in statement.note
    assert any(
        "every new run draws the labels again and adds its epsilon" in note
        for note in found.notes
    )
    (shared,) = for_labels("clinic", event, ["gradient"], owners=3).statements
    assert (
        "up to n x epsilon for a row that n label owners know, here up to 3"
        in shared.note
    )


def test_nothing_is_none() -> None:
    found = nothing("lab", "columns", {"embedding": NON_PRIVATE, "jacobian": ENCRYPTED})
    assert [s.epsilon for s in found.statements] == [None]
    assert [r.mechanism for r in found.releases] == ["plain", describe(ENCRYPTED)]


def test_it_is_json() -> None:
    told = trained(epsilon=50.0).to_json()
    assert json.loads(json.dumps(told, allow_nan=False)) == told


def test_mechanisms_in_words() -> None:
    assert describe(BINOMIAL) == "binomial, 4 levels, Bin(65536, 0.5), 4 values a row"
    assert (
        describe(NON_PRIVATE)
        == describe(DpEvent("gaussian", {"noise_multiplier": 0.0}))
        == "plain"
    )


@pytest.mark.parametrize("event", [NOISE, BINOMIAL], ids=["gaussian", "binomial"])
def test_what_was_encrypted_too_is_listed_and_changes_no_epsilon(
    event: DpEvent,
) -> None:
    mine = account(None)
    epoch(mine, 0, event)
    before = for_columns("lab", mine)
    mine.charge("jacobian", "train/0/0", 8, ENCRYPTED)
    mine.charge("jacobian", None, 3, ENCRYPTED)  # not a row per row
    after = for_columns("lab", mine)
    assert after.statements == before.statements
    told = [r.mechanism for r in after.releases]
    assert told == [describe(event), "encrypted (bfv): readable by the key holder only"]


def test_what_cannot_be_read_is_told_as_that_and_plain_encryption_as_plain() -> None:
    assert (
        describe(DpEvent("blinded (ckks)"))
        == "blinded (ckks): readable by the mask's maker only"
    )
    assert describe(PUBLIC) == "public: nothing about data"
    assert describe(DpEvent("encrypted (plain)")) == describe(NON_PRIVATE) == "plain"
