"""What every algorithm in the registry must do, whatever it computes (DESIGN,
"Definition of done").

Faults (6) are in `test_algorithm_faults.py`, checkpoints (8) in
`test_algorithm_checkpoints.py`.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from typing import Any

import pytest
import torch
from tests.conformance.battery import (
    EVERY,
    STACKED,
    STEPS,
    TOGETHER,
    Gaussian,
    every_algorithm,
    every_task,
    every_task_that_stacks,
    in_long_runs,
    ruled,
)
from tests.conformance.toy import (
    ALSO,
    LOSSES,
    STACKS,
    TRANSPORTS,
    Task,
    assert_bit_equal,
    cohorts,
    config_for,
    difference,
    federation,
    module_of,
    sequential,
)
from torch import Tensor

from colonnade.algorithms import ALGORITHMS
from colonnade.algorithms.algorithm import AnyAlgorithm
from colonnade.core import Party, Rule, State, Transport
from colonnade.errors import ConfigError
from colonnade.settings.schema import checked, rule_of
from colonnade.transport import InProcess, Recording

# stacked against one by one, relative, after STEPS steps; measured: at most 1.4e-6
FLOAT32 = 1e-5


def recorded(parties: Mapping[str, Party]) -> Transport:
    return Recording(sequential(parties))


@functools.cache
def one_by_one(
    algorithm: AnyAlgorithm,
    task: Task,
    columns: tuple[int, ...] = (4, 4, 4),
    dtype: torch.dtype = torch.float32,
) -> tuple[list[float], dict[str, State], Tensor]:
    """What the others are measured against: STEPS steps by reference, one party after
    the other."""
    toy = federation(algorithm, task=task, columns=columns, dtype=dtype)
    return toy.run(STEPS), toy.states(), toy.predict()


# 1. One federation, whatever carries its calls

OTHERS = [
    t for t in TRANSPORTS if t not in (*STACKS, "through bytes", "threads", "retrying")
]


@every_task
@pytest.mark.parametrize(
    "transport",
    ["through bytes", "threads", "retrying", *(in_long_runs(t) for t in OTHERS)],
)
def test_what_carries_the_calls_cannot_change_a_bit(
    algorithm: AnyAlgorithm, task: Task, transport: str
) -> None:
    losses, states, predicted = one_by_one(algorithm, task)
    other = federation(algorithm, TRANSPORTS[transport], task=task)
    assert other.run(STEPS) == losses
    assert_bit_equal(states, other.states())
    assert torch.equal(predicted, other.predict())


@every_task_that_stacks
@pytest.mark.parametrize(
    ("columns", "sizes", "dtype", "tolerance"),
    [
        pytest.param((4, 4, 4), [3], torch.float64, 1e-6, id="equal"),
        pytest.param((4, 3, 4, 3), [2, 2], torch.float64, 1e-6, id="two cohorts"),
        pytest.param((4, 4, 4, 3), [3], torch.float32, FLOAT32, id="mixed, in float32"),
    ],
)
def test_a_cohort_computes_what_its_members_would(
    algorithm: AnyAlgorithm,
    task: Task,
    columns: tuple[int, ...],
    sizes: list[int],
    dtype: torch.dtype,
    tolerance: float,
) -> None:
    losses, states, predicted = one_by_one(algorithm, task, columns, dtype)
    stacked = federation(algorithm, cohorts, task=task, columns=columns, dtype=dtype)
    assert [len(cohort.members) for cohort in stacked.cohorts()] == sizes
    assert stacked.run(STEPS) == pytest.approx(losses, rel=tolerance)
    together = algorithm in STACKED.values()
    assert all(
        cohort.alike and cohort.fresh != together for cohort in stacked.cohorts()
    ), "it did not run stacked"
    assert difference(states, stacked.states()) <= tolerance
    assert difference(predicted, stacked.predict()) <= tolerance


@every_algorithm
@pytest.mark.parametrize("columns", [(4, 4, 4), (4, 4, 4, 3)], ids=["equal", "mixed"])
def test_the_members_of_a_cohort_keep_the_ledgers_they_would_keep_alone(
    algorithm: AnyAlgorithm, columns: tuple[int, ...]
) -> None:
    plain, stacked = (
        federation(algorithm, wrap, columns=columns) for wrap in (sequential, cohorts)
    )
    for toy in (plain, stacked):
        toy.run(2)
        toy.predict()
    for name, party in plain.parties.items():
        assert party.ledger.entries == stacked.parties[name].ledger.entries
        assert party.outbox.released == stacked.parties[name].outbox.released
    assert plain.driver.ledger.entries == stacked.driver.ledger.entries


@every_algorithm
def test_the_same_seed_gives_the_same_run_and_another_seed_another(
    algorithm: AnyAlgorithm,
) -> None:
    losses = [federation(algorithm, seed=seed).run(3) for seed in (0, 0, 1)]
    assert losses[0] == losses[1] != losses[2]


@every_algorithm
def test_no_global_random_numbers_are_used(algorithm: AnyAlgorithm) -> None:
    before = torch.random.get_rng_state()
    federation(algorithm).run(2)
    assert torch.equal(before, torch.random.get_rng_state())


# Predictions in pieces are predictions at once

EXACT = {"boosted_trees", "knn"}
"""They compare and count: a row's outputs cannot depend on which rows come with it. A
product of matrices may round its last bits otherwise, where it has fewer rows."""


@pytest.mark.parametrize(
    "algorithm",
    [one for one in ALGORITHMS.values() if one.nested is None],
    ids=[name for name, one in ALGORITHMS.items() if one.nested is None],
)
@pytest.mark.parametrize("transport", ["by reference", "through bytes"])
def test_rows_are_asked_for_in_pieces_that_are_small_enough_and_predicted_the_same(
    algorithm: AnyAlgorithm, transport: str
) -> None:
    toy = federation(
        algorithm, lambda parties: Recording(TRANSPORTS[transport](parties))
    )
    toy.run(STEPS)
    rows = toy.batches.splits["test"]
    whole = toy.predict()
    assert len(toy.batches.chunks("test", most=toy.driver.rows_at_once(rows))) == 1
    toy.transport.transcripts.clear()
    toy.driver.answer_bytes = 8 * toy.driver.bytes_per_row(rows)
    chunks = toy.batches.chunks("test", most=toy.driver.rows_at_once(rows))
    assert [chunk.size for chunk in chunks] == [8] * 7 + [4]

    in_pieces = torch.cat(
        [toy.algorithm.predict(toy.driver, toy.peers, chunk) for chunk in chunks]
    )

    if module_of(algorithm) in EXACT:
        assert torch.equal(in_pieces, whole)
    else:
        torch.testing.assert_close(in_pieces, whole, rtol=FLOAT32, atol=FLOAT32)
    received = toy.transport.of(toy.driver.name)
    answers = [
        released
        for seen in received
        for released in seen.message.released()
        if released.receipt.batch in {chunk.name for chunk in chunks}
    ]
    if module_of(algorithm) not in ("knn", "vfedcce"):  # they weigh something else
        assert answers
        assert max(one.tensor.nbytes for one in answers) <= toy.driver.answer_bytes


# 3. Every tensor that crossed has a receipt, and every byte is in two ledgers and in
#    the transcript


@every_algorithm
@pytest.mark.parametrize("transport", ["by reference", "through bytes", "cohorts"])
def test_ledgers_and_transcripts_agree_on_every_byte(
    algorithm: AnyAlgorithm, transport: str
) -> None:
    toy = federation(
        algorithm, lambda parties: Recording(TRANSPORTS[transport](parties))
    )
    toy.run(3)
    toy.predict()
    recording: Recording = toy.transport
    here = toy.driver
    answers = any(release.of != "columns" for release in algorithm.releases.values())
    for name, party in toy.parties.items():
        up = recording.of(here.name).total(name)
        down = recording.of(name).total(here.name)
        assert up > 0
        assert (down > 0) == answers, "where nothing follows labels, nothing comes back"
        assert (
            here.ledger.total("in", name) == party.ledger.total("out", here.name) == up
        )
        assert (
            here.ledger.total("out", name)
            == party.ledger.total("in", here.name)
            == down
        )
    assert here.ledger.total("own") == 0


@every_algorithm
def test_every_tensor_that_crossed_has_a_receipt_in_both_ledgers(
    algorithm: AnyAlgorithm,
) -> None:
    toy = federation(algorithm, recorded)
    toy.run(3)
    ledgers = {
        party.name: party.ledger for party in [toy.driver, *toy.parties.values()]
    }
    had_come = {
        receiver: {
            (seen.sender, r.receipt.number)
            for seen in transcript
            for r in seen.message.released()
        }
        for receiver, transcript in toy.transport.transcripts.items()
    }
    for receiver, transcript in toy.transport.transcripts.items():
        crossed = [
            (seen.sender, released)
            for seen in transcript
            for released in seen.message.released()
        ]
        arrived = [
            entry for entry in ledgers[receiver].entries if entry.direction == "in"
        ]
        assert len(arrived) == len(crossed)
        for sender, released in crossed:
            r = released.receipt
            assert r.owner == sender or (r.owner, r.number) in had_come[sender], (
                "passed on, and never received"
            )
            assert r.number >= 1
            same = ("out", receiver, r.owner, r.number)
            left = [
                e
                for e in ledgers[sender].entries
                if (e.direction, e.peer, e.owner, e.number) == same
            ]
            assert [(e.name, e.bytes, e.shape) for e in left] == [
                (r.name, r.bytes, tuple(released.tensor.shape))
            ]
            assert (r.number, r.name) in {
                (e.number, e.name) for e in arrived if e.peer == sender
            }
            assert not released.tensor.requires_grad


@every_algorithm
def test_it_says_in_words_what_each_release_reveals(algorithm: AnyAlgorithm) -> None:
    names: set[str] = set()
    for settings in ({}, *ALSO.get(module_of(algorithm), [])):
        toy = federation(algorithm, config=config_for(algorithm, **settings))
        toy.run(2)
        toy.predict()
        names |= {entry.name for entry in toy.driver.ledger.entries}
    assert names == set(algorithm.releases)


@every_algorithm
def test_a_release_number_is_given_once(algorithm: AnyAlgorithm) -> None:
    toy = federation(algorithm)
    toy.run(2)
    for party in [toy.driver, *toy.parties.values()]:
        mine = {
            (e.number, e.name, e.batch)
            for e in party.ledger.entries
            if e.owner == party.name
        }
        assert sorted(number for number, _, _ in mine) == list(
            range(1, party.outbox.released + 1)
        )


# 4. Noise of none is no noise


@every_algorithm
@pytest.mark.parametrize("transport", ["by reference", "through bytes", "cohorts"])
def test_gaussian_with_no_noise_and_no_clipping_is_plain(
    algorithm: AnyAlgorithm, transport: str
) -> None:
    plain = federation(algorithm, TRANSPORTS[transport])
    gaussian = ruled(algorithm, Rule(Gaussian(0.0, math.inf)), TRANSPORTS[transport])
    assert plain.run(STEPS) == gaussian.run(STEPS)
    assert_bit_equal(plain.states(), gaussian.states())
    for party in plain.parties.values():
        events = {
            entry.event for entry in party.ledger.entries if entry.direction == "out"
        }
        assert events == {"non-private"}
    for party in gaussian.parties.values():
        sent = [entry for entry in party.ledger.entries if entry.direction == "out"]
        assert {entry.event for entry in sent} == {"gaussian"}
        assert {entry.parameters["noise_multiplier"] for entry in sent} == {0.0}


@every_algorithm
def test_noise_is_the_owners_and_reproduces(algorithm: AnyAlgorithm) -> None:
    rule = Rule(Gaussian(0.5, 1.0))
    plain = federation(algorithm)
    noisy = ruled(algorithm, rule)
    again = ruled(algorithm, rule)
    losses = [toy.run(4) for toy in (plain, noisy, again)]
    assert losses[0] != losses[1] == losses[2]
    assert_bit_equal(noisy.states(), again.states())


# 5. It learns


@every_task
def test_the_loss_falls_and_held_out_rows_are_better_than_a_constant(
    algorithm: AnyAlgorithm, task: Task
) -> None:
    """The mean loss of the last of 12 epochs is at most 3/4 of the first's, or of a
    model's that says nothing where the first epoch learns all there is; on 60 held-out
    rows, accuracy is 10 points above the majority's, and a regression leaves less than
    half of the variance."""
    toy = federation(algorithm, task=task, epochs=12)
    losses = toy.run()
    per = toy.batches.per_epoch
    assert len(losses) == 12 * per
    begun = toy.untrained() if algorithm.once else sum(losses[:per])
    assert sum(losses[-per:]) <= 0.75 * begun
    decided = toy.driver.loss.decide(toy.predict())
    truth = toy.truth()
    if task == "regression":
        assert float((decided - truth).square().mean()) < 0.5 * float(truth.var())
    else:
        majority = float(truth.bincount().max()) / len(truth)
        assert float((decided == truth).double().mean()) >= majority + 0.1


# 7. Settings refuse what they cannot mean

BAD: tuple[Any, ...] = (
    -1,
    -0.5,
    -(10**9),
    math.nan,
    math.inf,
    -math.inf,
    "",
    "nonsense",
    None,
    True,
    (),
    [],
    {},
    1 + 1j,
)


SETTINGS = [
    pytest.param(algorithm, field, id=f"{name}-{field}")
    for name, algorithm in ALGORITHMS.items()
    for field in algorithm.config.model_fields
]


@pytest.mark.parametrize(("algorithm", "field"), SETTINGS)
def test_a_setting_refuses_a_bad_value_with_its_rule_and_the_value(
    algorithm: AnyAlgorithm, field: str
) -> None:
    rule = rule_of(algorithm.config.model_fields[field])
    for value in BAD:
        with pytest.raises(ConfigError) as caught:
            algorithm.config(**{field: value})
        message = str(caught.value)
        assert f"{algorithm.config.place} {field} " in message
        assert rule in message
        assert repr(value) in message
        with pytest.raises(ConfigError):
            checked(algorithm.config, {field: value}, whose="a file")


@every_algorithm
def test_settings_cannot_change_and_unknown_ones_are_refused(
    algorithm: AnyAlgorithm,
) -> None:
    config = algorithm.config()
    field = next(iter(algorithm.config.model_fields))
    with pytest.raises(AttributeError):
        setattr(config, field, getattr(config, field))
    with pytest.raises(ConfigError) as caught:
        checked(algorithm.config, {f"{field}x": 1}, whose="a file")
    assert f"has no setting '{field}x' (did you mean '{field}'?)" in str(caught.value)
    assert checked(algorithm.config, config.to_mapping(), whose="a file") == config


# 9. Prediction only looks


@every_task
@pytest.mark.parametrize("transport", ["by reference", "cohorts"])
def test_prediction_changes_nothing(
    algorithm: AnyAlgorithm, task: Task, transport: str
) -> None:
    undisturbed, toy = (
        federation(algorithm, TRANSPORTS[transport], task=task) for _ in range(2)
    )
    expected = undisturbed.run(4)
    losses = toy.run(2)
    before = toy.states()
    one = toy.predict("validation")
    other = toy.predict("validation")
    assert one.shape == (20, LOSSES[task].outputs)
    assert not one.requires_grad
    assert torch.equal(one, other)
    assert_bit_equal(before, toy.states())
    assert losses + toy.run(2) == expected
    assert_bit_equal(undisturbed.states(), toy.states())


@every_algorithm
def test_predictions_do_not_depend_on_the_chunks(algorithm: AnyAlgorithm) -> None:
    toy = federation(algorithm, dtype=torch.float64)
    toy.run(2)
    whole = [
        toy.algorithm.predict(toy.driver, toy.peers, rows)
        for rows in toy.batches.chunks("test")
    ]
    single = [
        toy.algorithm.predict(toy.driver, toy.peers, rows)
        for rows in toy.batches.chunks("test", 1)
    ]
    assert len(single) == 60
    assert torch.allclose(torch.cat(whole), torch.cat(single), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    "algorithm",
    [algorithm for name, algorithm in EVERY.items() if name not in TOGETHER],
)
def test_one_party_alone_is_a_federation_too(algorithm: AnyAlgorithm) -> None:
    toy = federation(algorithm, columns=(6,))
    losses = toy.run()
    assert losses[-1] < (toy.untrained() if algorithm.once else losses[0])
    assert isinstance(toy.transport, InProcess)
