"""What every algorithm in the registry must do, whatever it computes (DESIGN, "Definition of done")."""

from __future__ import annotations

import copy
import dataclasses
import functools
import math
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

import pytest
import torch
from tests.conformance.toy import (
    CANNOT,
    LOSSES,
    STACKS,
    TASKS,
    TRANSPORTS,
    Task,
    Toy,
    Wrap,
    assert_bit_equal,
    cohorts,
    config_for,
    difference,
    federation,
    sequential,
)
from torch import Generator, Tensor, nn

from colonnade.algorithms import ALGORITHMS
from colonnade.core import DpEvent, Envelope, Message, Party, Request, Rule, State, Transport
from colonnade.core.checkpoint import read, write
from colonnade.core.checks import Checked, from_mapping
from colonnade.core.message import batch_of
from colonnade.errors import ConfigError, PartyError
from colonnade.transport import Fault, Faulty, InProcess, Recording

R = TypeVar("R", bound=Message)
STEPS = 7  # of 5 batches an epoch: into the second epoch
FLOAT32 = 1e-5  # stacked against one by one, relative, after STEPS steps; measured: at most 1.4e-6

every_algorithm = pytest.mark.parametrize("algorithm", ALGORITHMS.values(), ids=ALGORITHMS)
every_task = pytest.mark.parametrize(
    ("algorithm", "task"),
    [
        pytest.param(algorithm, task, id=f"{name}-{task}")
        for name, algorithm in ALGORITHMS.items()
        for task in TASKS
        if task not in CANNOT.get(name, set())
    ],
)


def recorded(parties: Mapping[str, Party]) -> Transport:
    return Recording(sequential(parties))


@functools.cache
def one_by_one(
    algorithm: ModuleType, task: Task, columns: tuple[int, ...] = (4, 4, 4), dtype: torch.dtype = torch.float32
) -> tuple[list[float], dict[str, State], Tensor]:
    """What the others are measured against: STEPS steps by reference, one party after the other."""
    toy = federation(algorithm, task=task, columns=columns, dtype=dtype)
    return toy.run(STEPS), toy.states(), toy.predict()


# 1. One federation, whatever carries its calls


@every_task
@pytest.mark.parametrize("transport", [t for t in TRANSPORTS if t not in STACKS])
def test_what_carries_the_calls_cannot_change_a_bit(algorithm: ModuleType, task: Task, transport: str) -> None:
    losses, states, predicted = one_by_one(algorithm, task)
    other = federation(algorithm, TRANSPORTS[transport], task=task)
    assert other.run(STEPS) == losses
    assert_bit_equal(states, other.states())
    assert torch.equal(predicted, other.predict())


@every_task
@pytest.mark.parametrize(
    ("columns", "sizes"),
    [((4, 4, 4), [3]), ((4, 4, 4, 3), [3]), ((4, 3, 4, 3), [2, 2])],
    ids=["equal", "mixed", "two cohorts"],
)
@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float64, 1e-6), (torch.float32, FLOAT32)], ids=["float64", "float32"]
)
def test_a_cohort_computes_what_its_members_would(
    algorithm: ModuleType, task: Task, columns: tuple[int, ...], sizes: list[int], dtype: torch.dtype, tolerance: float
) -> None:
    losses, states, predicted = one_by_one(algorithm, task, columns, dtype)
    stacked = federation(algorithm, cohorts, task=task, columns=columns, dtype=dtype)
    assert [len(cohort.members) for cohort in stacked.cohorts()] == sizes
    assert stacked.run(STEPS) == pytest.approx(losses, rel=tolerance)
    assert all(cohort.alike and not cohort.fresh for cohort in stacked.cohorts()), "it did not run stacked"
    assert difference(states, stacked.states()) <= tolerance
    assert difference(predicted, stacked.predict()) <= tolerance


@every_algorithm
@pytest.mark.parametrize("columns", [(4, 4, 4), (4, 4, 4, 3)], ids=["equal", "mixed"])
def test_the_members_of_a_cohort_keep_the_ledgers_they_would_keep_alone(
    algorithm: ModuleType, columns: tuple[int, ...]
) -> None:
    plain, stacked = (federation(algorithm, wrap, columns=columns) for wrap in (sequential, cohorts))
    for toy in (plain, stacked):
        toy.run(2)
        toy.predict()
    for name, party in plain.parties.items():
        assert party.ledger.entries == stacked.parties[name].ledger.entries
        assert party.outbox.released == stacked.parties[name].outbox.released
    assert plain.driver.ledger.entries == stacked.driver.ledger.entries


@every_algorithm
def test_the_same_seed_gives_the_same_run_and_another_seed_another(algorithm: ModuleType) -> None:
    losses = [federation(algorithm, seed=seed).run(3) for seed in (0, 0, 1)]
    assert losses[0] == losses[1] != losses[2]


@every_algorithm
def test_no_global_random_numbers_are_used(algorithm: ModuleType) -> None:
    before = torch.random.get_rng_state()
    federation(algorithm).run(2)
    assert torch.equal(before, torch.random.get_rng_state())


# 3. Every tensor that crossed has a receipt, and every byte is in two ledgers and in the transcript


@every_algorithm
@pytest.mark.parametrize("transport", ["by reference", "through bytes", "cohorts"])
def test_ledgers_and_transcripts_agree_on_every_byte(algorithm: ModuleType, transport: str) -> None:
    toy = federation(algorithm, lambda parties: Recording(TRANSPORTS[transport](parties)))
    toy.run(3)
    toy.predict()
    recording: Recording = toy.transport
    here = toy.driver
    for name, party in toy.parties.items():
        up, down = recording.of(here.name).total(name), recording.of(name).total(here.name)
        assert up > 0
        assert down > 0
        assert here.ledger.total("in", name) == party.ledger.total("out", here.name) == up
        assert here.ledger.total("out", name) == party.ledger.total("in", here.name) == down
    assert here.ledger.total("own") == 0


@every_algorithm
def test_every_tensor_that_crossed_has_a_receipt_in_both_ledgers(algorithm: ModuleType) -> None:
    toy = federation(algorithm, recorded)
    toy.run(3)
    ledgers = {party.name: party.ledger for party in [toy.driver, *toy.parties.values()]}
    for receiver, transcript in toy.transport.transcripts.items():
        crossed = [(seen.sender, released) for seen in transcript for released in seen.message.released()]
        arrived = [entry for entry in ledgers[receiver].entries if entry.direction == "in"]
        assert len(arrived) == len(crossed)
        for sender, released in crossed:
            r = released.receipt
            assert r.owner == sender
            assert r.number >= 1
            left = [
                e for e in ledgers[sender].entries if (e.direction, e.peer, e.number) == ("out", receiver, r.number)
            ]
            assert [(e.owner, e.name, e.bytes, e.shape) for e in left] == [
                (sender, r.name, r.bytes, tuple(released.tensor.shape))
            ]
            assert (r.number, r.name) in {(e.number, e.name) for e in arrived if e.peer == sender}
            assert not released.tensor.requires_grad


@every_algorithm
def test_it_says_in_words_what_each_release_reveals(algorithm: ModuleType) -> None:
    toy = federation(algorithm)
    toy.run(2)
    toy.predict()
    assert {entry.name for entry in toy.driver.ledger.entries} == set(algorithm.REVEALS)


@every_algorithm
def test_a_release_number_is_given_once(algorithm: ModuleType) -> None:
    toy = federation(algorithm)
    toy.run(2)
    for party in [toy.driver, *toy.parties.values()]:
        mine = {(e.number, e.name, e.batch) for e in party.ledger.entries if e.owner == party.name}
        assert sorted(number for number, _, _ in mine) == list(range(1, party.outbox.released + 1))


# 4. Noise of none is no noise


@dataclasses.dataclass(frozen=True)
class Gaussian:
    """Clip each row to `clip` and add N(0, (sigma clip)^2)."""

    sigma: float
    clip: float

    def apply(self, tensor: Tensor, generator: Generator) -> tuple[Tensor, DpEvent]:
        norms = tensor.norm(dim=-1, keepdim=True)
        clipped = tensor * (self.clip / norms.clamp_min(1e-12)).clamp_max(1.0)
        noise = torch.randn(tensor.shape, generator=generator, dtype=tensor.dtype)
        scale = self.sigma * self.clip if self.sigma else 0.0
        return clipped + scale * noise, DpEvent("gaussian", {"noise_multiplier": self.sigma})


class Everything(dict[str, Rule]):
    """One rule for every release, whatever it is called."""

    def __init__(self, rule: Rule) -> None:
        super().__init__()
        self.rule = rule

    def get(self, name: str, default: Any = None) -> Rule:
        return self.rule


def ruled(algorithm: ModuleType, rule: Rule, transport: Wrap = sequential) -> Toy:
    """A federation whose feature owners release everything under one rule."""
    toy = federation(algorithm, transport)
    for party in toy.parties.values():
        party.outbox.rules = Everything(rule)
    return toy


@every_algorithm
@pytest.mark.parametrize("transport", ["by reference", "through bytes", "cohorts"])
def test_gaussian_with_no_noise_and_no_clipping_is_plain(algorithm: ModuleType, transport: str) -> None:
    plain = federation(algorithm, TRANSPORTS[transport])
    gaussian = ruled(algorithm, Rule(Gaussian(0.0, math.inf)), TRANSPORTS[transport])
    assert plain.run(STEPS) == gaussian.run(STEPS)
    assert_bit_equal(plain.states(), gaussian.states())
    for party in plain.parties.values():
        events = {entry.event for entry in party.ledger.entries if entry.direction == "out"}
        assert events == {"non-private"}
    for party in gaussian.parties.values():
        sent = [entry for entry in party.ledger.entries if entry.direction == "out"]
        assert {entry.event for entry in sent} == {"gaussian"}
        assert {entry.parameters["noise_multiplier"] for entry in sent} == {0.0}


@every_algorithm
def test_noise_is_the_owners_and_reproduces(algorithm: ModuleType) -> None:
    rule = Rule(Gaussian(0.5, 1.0))
    plain, noisy, again = federation(algorithm), ruled(algorithm, rule), ruled(algorithm, rule)
    losses = [toy.run(4) for toy in (plain, noisy, again)]
    assert losses[0] != losses[1] == losses[2]
    assert_bit_equal(noisy.states(), again.states())


# 5. It learns


@every_task
def test_the_loss_falls_and_held_out_rows_are_better_than_a_constant(algorithm: ModuleType, task: Task) -> None:
    """The mean loss of the last of 12 epochs is at most 3/4 of the first's; on 60 held-out rows, accuracy is 10 points
    above the majority's, and a regression leaves less than half of the variance."""
    toy = federation(algorithm, task=task, epochs=12)
    losses = toy.run()
    per = toy.batches.per_epoch
    assert len(losses) == 12 * per
    assert sum(losses[-per:]) <= 0.75 * sum(losses[:per])
    decided, truth = toy.driver.loss.decide(toy.predict()), toy.truth()
    if task == "regression":
        assert float((decided - truth).square().mean()) < 0.5 * float(truth.var())
    else:
        majority = float(truth.bincount().max()) / len(truth)
        assert float((decided == truth).double().mean()) >= majority + 0.1


# 6. What goes wrong is named, and harms nobody else


class Watched:
    """Remembers the last call and what everybody knew before it."""

    def __init__(self, inner: Transport, parties: Mapping[str, Party]) -> None:
        self.inner, self.parties = inner, parties

    def exchange(self, to: str, envelope: Envelope[Request[R]]) -> R:
        return self.exchange_each({to: envelope})[to]

    def exchange_each(self, envelopes: Mapping[str, Envelope[Request[R]]]) -> dict[str, R]:
        self.before = {name: copy.deepcopy(party.state()) for name, party in self.parties.items()}
        self.requests = {to: envelope.message for to, envelope in envelopes.items()}
        return self.inner.exchange_each(envelopes)


class Dies(nn.Module):
    """A model whose n-th forward pass fails."""

    def __init__(self, model: nn.Module, at: int) -> None:
        super().__init__()
        self.model, self.at, self.calls = model, at, 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        if self.calls == self.at:
            raise ZeroDivisionError("the disk is gone")
        result: Tensor = self.model(x)
        return result


def assert_named(error: PartyError, party: str, watched: Watched) -> None:
    request = watched.requests[party]
    assert (error.party, error.request, error.batch) == (party, request.kind, batch_of(request))
    assert f"'{party}'" in str(error)
    assert request.kind in str(error)
    assert str(error.batch or "") in str(error)


@every_algorithm
@pytest.mark.parametrize("at", [2, 3, 5, 8])
@pytest.mark.parametrize("inner", ["by reference", "through bytes", "threads"])
def test_a_party_that_dies_in_its_model_is_named(algorithm: ModuleType, at: int, inner: str) -> None:
    toy = federation(
        algorithm,
        lambda parties: Watched(TRANSPORTS[inner](parties), parties),
        wrap_model={"bob": lambda model: Dies(model, at)},
    )
    with pytest.raises(PartyError) as caught:
        toy.run()
    assert_named(caught.value, "bob", toy.transport)
    assert caught.value.batch is not None
    assert caught.value.cause == "ZeroDivisionError: the disk is gone"
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
    if inner != "threads":  # one by one: those after bob were not asked
        assert_bit_equal(toy.transport.before["cyd"], toy.states()["cyd"])
    assert torch.isfinite(toy.predict()).all()


@every_algorithm
@pytest.mark.parametrize("at", range(2, 7))
@pytest.mark.parametrize("kind", ["drop", "fail"])
def test_a_lost_call_is_named_and_leaves_the_others_as_they_were(algorithm: ModuleType, at: int, kind: Any) -> None:
    faults = [Fault(kind, "bob", at=at)]
    toy = federation(algorithm, lambda parties: Watched(Faulty(sequential(parties), faults), parties))
    with pytest.raises(PartyError) as caught:
        toy.run()
    assert_named(caught.value, "bob", toy.transport)
    before, after = toy.transport.before, toy.states()
    assert_bit_equal(before["cyd"], after["cyd"])
    if kind == "drop":
        assert_bit_equal(before["bob"], after["bob"])
    assert torch.isfinite(toy.predict()).all()


@every_algorithm
def test_a_member_that_dies_inside_a_cohort_names_the_cohort(algorithm: ModuleType) -> None:
    """One stacked computation cannot say which of its members failed; all are named."""
    toy = federation(
        algorithm, cohorts, wrap_model={name: lambda model: Dies(model, 3) for name in ("ada", "bob", "cyd")}
    )
    assert len(toy.cohorts()) == 1
    with pytest.raises(PartyError, match="the disk is gone") as caught:
        toy.run()
    assert caught.value.party == "ada, bob, cyd"
    assert caught.value.request.startswith(algorithm.__name__.rsplit(".", 1)[-1])
    assert caught.value.batch is not None


@every_algorithm
@pytest.mark.parametrize("inner", ["by reference", "through bytes"])
@pytest.mark.parametrize(
    "fault", [Fault("duplicate", "bob"), Fault("delay", "bob", seconds=0.001)], ids=lambda f: f.kind
)
def test_calls_that_come_twice_or_late_change_nothing(algorithm: ModuleType, inner: str, fault: Fault) -> None:
    plain = federation(algorithm)
    disturbed = federation(algorithm, lambda parties: Faulty(TRANSPORTS[inner](parties), [fault]))
    assert plain.run(3) == disturbed.run(3)
    assert_bit_equal(plain.states(), disturbed.states())
    for name, party in plain.parties.items():
        assert party.ledger.entries == disturbed.parties[name].ledger.entries


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


def bad_values() -> list[Any]:
    """Each checked field of each Config, with each value of BAD."""
    return [
        pytest.param(algorithm, field.name, value, id=f"{name}-{field.name}-{value!r}")
        for name, algorithm in ALGORITHMS.items()
        for field in dataclasses.fields(algorithm.Config)
        for value in BAD
    ]


@pytest.mark.parametrize(("algorithm", "field", "value"), bad_values())
def test_a_setting_refuses_a_bad_value_with_its_rule_and_the_value(
    algorithm: ModuleType, field: str, value: Any
) -> None:
    checked = vars(algorithm.Config)[field]
    assert isinstance(checked, Checked), f"{field} is not checked"
    with pytest.raises(ConfigError) as caught:
        algorithm.Config(**{field: value})
    message = str(caught.value)
    assert f"{algorithm.__name__.rsplit('.', 1)[-1]}.{field}" in message
    assert checked.rule in message
    assert repr(value) in message
    with pytest.raises(ConfigError):
        from_mapping(algorithm.Config, {field: value}, where="[algorithm]")


@every_algorithm
def test_settings_cannot_change_and_unknown_ones_are_refused(algorithm: ModuleType) -> None:
    config = algorithm.Config()
    field = dataclasses.fields(config)[0].name
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(config, field, getattr(config, field))
    with pytest.raises(ConfigError) as caught:
        from_mapping(algorithm.Config, {f"{field}x": 1}, where="[algorithm]")
    assert f"[algorithm] has no setting '{field}x' (did you mean '{field}'?)" in str(caught.value)
    assert from_mapping(algorithm.Config, dataclasses.asdict(config), where="[algorithm]") == config


# 8. Saved and loaded mid-run


def save(toy: Toy, folder: Path) -> None:
    toy.states()  # hands a cohort's state back
    for name, party in (toy.parties | {"the driver": toy.driver}).items():
        write(folder / name, {"role": party.state(), "seat": party.seat.state(), "done": toy.batches.done})


def load(toy: Toy, folder: Path) -> None:
    for name, party in (toy.parties | {"the driver": toy.driver}).items():
        saved = read(folder / name)
        party.load_state(saved["role"])
        party.seat.load_state(saved["seat"])
        toy.batches.done = saved["done"]
    for cohort in toy.cohorts():
        cohort.restack()


@every_task
@pytest.mark.parametrize("transport", ["through bytes", "cohorts"])
@pytest.mark.parametrize("after", [1, 5])
def test_saved_and_loaded_it_continues_bit_equal(
    algorithm: ModuleType, task: Task, transport: str, after: int, tmp_path: Path
) -> None:
    whole, second = (federation(algorithm, TRANSPORTS[transport], task=task) for _ in range(2))
    expected = whole.run(after)
    save(whole, tmp_path)  # and goes on as if it had not been saved
    expected += whole.run(STEPS - after)
    load(second, tmp_path)
    assert second.run(STEPS - after) == expected[after:]
    assert_bit_equal(whole.states(), second.states())
    assert {n: p.seat.state()["released"] for n, p in whole.parties.items()} == {
        n: p.seat.state()["released"] for n, p in second.parties.items()
    }


@every_algorithm
def test_noise_continues_where_it_stood(algorithm: ModuleType, tmp_path: Path) -> None:
    rule = Rule(Gaussian(0.3, 1.0))
    whole, first, second = (ruled(algorithm, rule) for _ in range(3))
    expected = whole.run(5)
    first.run(3)
    save(first, tmp_path)
    load(second, tmp_path)
    assert second.run(2) == expected[3:]
    assert_bit_equal(whole.states(), second.states())


@every_algorithm
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
@pytest.mark.parametrize(("saved_from", "continued_in"), [(cohorts, sequential), (sequential, cohorts)])
def test_a_checkpoint_does_not_know_whether_it_was_stacked(
    algorithm: ModuleType, optimizer: str, saved_from: Wrap, continued_in: Wrap, tmp_path: Path
) -> None:
    config = config_for(algorithm, optimizer=optimizer, learning_rate=0.02)
    whole, first, second = (
        federation(algorithm, wrap, dtype=torch.float64, config=config)
        for wrap in (sequential, saved_from, continued_in)
    )
    whole.run(STEPS)
    first.run(3)
    save(first, tmp_path)
    load(second, tmp_path)
    second.run(STEPS - 3)
    assert difference(whole.states(), second.states()) <= 1e-6


# 9. Prediction only looks


@every_task
@pytest.mark.parametrize("transport", ["by reference", "cohorts"])
def test_prediction_changes_nothing(algorithm: ModuleType, task: Task, transport: str) -> None:
    undisturbed, toy = (federation(algorithm, TRANSPORTS[transport], task=task) for _ in range(2))
    expected = undisturbed.run(4)
    losses = toy.run(2)
    before = toy.states()
    one, other = toy.predict("validation"), toy.predict("validation")
    assert one.shape == (20, LOSSES[task].outputs)
    assert not one.requires_grad
    assert torch.equal(one, other)
    assert_bit_equal(before, toy.states())
    assert losses + toy.run(2) == expected
    assert_bit_equal(undisturbed.states(), toy.states())


@every_algorithm
def test_predictions_do_not_depend_on_the_chunks(algorithm: ModuleType) -> None:
    toy = federation(algorithm, dtype=torch.float64)
    toy.run(2)
    whole = [toy.algorithm.predict(toy.driver, toy.peers, rows) for rows in toy.batches.chunks("test")]
    single = [toy.algorithm.predict(toy.driver, toy.peers, rows) for rows in toy.batches.chunks("test", 1)]
    assert len(single) == 60
    assert torch.allclose(torch.cat(whole), torch.cat(single), rtol=1e-12, atol=1e-12)


@every_algorithm
def test_one_party_alone_is_a_federation_too(algorithm: ModuleType) -> None:
    toy = federation(algorithm, columns=(6,))
    losses = toy.run()
    assert losses[-1] < losses[0]
    assert isinstance(toy.transport, InProcess)
