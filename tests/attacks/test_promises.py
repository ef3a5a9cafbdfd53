"""Every promise is attacked: honest mechanisms stand, and each planted fault is caught.

Noise of the honest ones is drawn from a fixed generator where a verdict could fail by
chance, without the attack by the agreed seed, which such noise is no match for.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.cli.called import Caller
from tests.federation.small import federation, frames, quick, write
from torch import Tensor

from colonnade.attacks import promises
from colonnade.attacks.promises import (
    Attempt,
    Bound,
    CanaryOwner,
    Promises,
    Setup,
    Turn,
    attack,
    audit_promises,
    bound_of_labels,
    canary_setup,
    column_bound,
    released,
    sampled_bound,
)
from colonnade.core import Batches, DpEvent, Mechanism, Rule
from colonnade.core.chance import Secret, Source
from colonnade.errors import AuditFailed
from colonnade.federation import Federation, load
from colonnade.privacy import Account, Binomial, Budget, Gaussian, RandomizedResponse
from colonnade.privacy.accounting import dp_accounting, hidden_pld, hidden_rdp
from colonnade.privacy.gaussian import clip_rows
from colonnade.privacy.report import KNOWN, Guarantee, Statement, for_columns

DELTA = 1e-5
MANY = 10_000
EPSILONS = [1.0, 8.0]


@pytest.fixture
def fixed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The operating system's numbers, replaced by a stream that is the same in every
    run of these tests."""
    random = np.random.default_rng(7)
    monkeypatch.setattr(
        Secret,
        "uniform",
        lambda _, shape: torch.from_numpy(random.random(tuple(shape))),
    )


def setup(
    mechanism: Mechanism, more: Mapping[str, Rule] | None = None, *, secret: bool = True
) -> Setup:
    def account(batches: Batches, ids: Sequence[str]) -> Account:
        return Account("lab", batches, ids)

    return Setup(
        "lab", {"embedding": Rule(mechanism), **(more or {})}, 4, 0, secret, account
    )


def turns(count: int, purpose: str = "train") -> list[Turn]:
    return [Turn("embedding", purpose)] * count


def sigma(epsilon: float, releases: int = 1) -> float:
    """Of a Gaussian that costs so much, one row replaced."""
    return (
        2
        * math.sqrt(releases)
        * float(dp_accounting().get_sigma_gaussian(epsilon, DELTA))
    )


@pytest.mark.usefixtures("fixed")
@pytest.mark.parametrize("epsilon", EPSILONS)
def test_the_bound_of_one_gaussian_release_is_at_least_half_of_its_claim(
    epsilon: float,
) -> None:
    found = column_bound(
        setup(Gaussian(1.0, sigma(epsilon))), turns(1), MANY, "replace-one", DELTA
    )
    assert found.counted == pytest.approx(epsilon)
    assert 0.5 * epsilon <= found.epsilon <= epsilon
    assert 0 < found.baseline < found.epsilon


@pytest.mark.usefixtures("fixed")
def test_an_epoch_predictions_and_another_purpose_add_up_as_claimed() -> None:
    rules = {"test.embedding": Rule(Gaussian(0.5, 3.0))}
    way = [*turns(4), *turns(2, "validation"), *turns(2, "test"), *turns(1, "predict")]
    found = column_bound(
        setup(Gaussian(1.0, 5.0), rules), way, MANY, "replace-one", DELTA
    )
    assert found.releases == 9
    assert 0.5 * found.counted <= found.epsilon <= found.counted


@pytest.mark.usefixtures("fixed")
def test_binomial_noise_is_bounded_as_closely() -> None:
    found = column_bound(
        setup(Binomial(16, 4096)), turns(2), MANY, "replace-one", DELTA
    )
    assert 0.5 * found.counted <= found.epsilon <= found.counted


@pytest.mark.usefixtures("fixed")
def test_an_attack_on_replacement_exceeds_what_removal_is_promised() -> None:
    """So an add-or-remove figure never stands without the replace-one figure."""
    way = setup(Gaussian(1.0, sigma(8.0)))
    removed, replaced = (
        column_bound(way, turns(1), MANY, one, DELTA)
        for one in ("add-or-remove", "replace-one")
    )
    assert 0.5 * removed.counted <= removed.epsilon <= removed.counted
    assert replaced.epsilon > removed.counted
    _, organisation = released(way, torch.zeros(40, 4), turns(2))
    account = organisation.outbox.meter
    assert isinstance(account, Account)
    for relation in ("replace-one", "add-or-remove"):
        account.limit = Budget(relation=relation)
        stated = for_columns("lab", account).statements
        against = {one.adversary for one in stated if one.relation == "add-or-remove"}
        assert against
        assert against <= {
            one.adversary for one in stated if one.relation == "replace-one"
        }


def drawn(mechanism: Mechanism, sampling: str = "poisson") -> Setup:
    return dataclasses.replace(setup(mechanism), sampling=sampling, share=0.05)


@pytest.mark.usefixtures("fixed")
def test_who_does_not_know_the_batches_is_bounded_below_what_amplification_claims() -> (
    None
):
    claim = hidden_pld(1.0, MANY, MANY // 20, 10, DELTA)
    found = sampled_bound(
        drawn(Gaussian(1.0, 1.0)), turns(10), MANY, "add-or-remove", DELTA
    )
    assert 0.3 * claim <= found.epsilon <= claim
    swapped = sampled_bound(
        drawn(Gaussian(1.0, 0.8), "without_replacement"),
        turns(10),
        2000,
        "replace-one",
        DELTA,
    )
    assert 0.5 < swapped.epsilon < hidden_rdp(0.4, 2000, 100, 10, DELTA)


@pytest.mark.usefixtures("fixed")
def test_half_the_noise_and_larger_batches_than_said_are_caught(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    claim = hidden_pld(1.0, 2000, 100, 10, DELTA)
    assert (
        sampled_bound(
            drawn(HalfTheNoise(1.0, 1.0)), turns(10), 2000, "add-or-remove", DELTA
        ).epsilon
        > 1.5 * claim
    )
    first = Batches._sampled

    def larger(self: Batches, epoch: int, number: int, device: str) -> Tensor:
        rows = [
            first(self, epoch + 100 * more, number, device).tolist()
            for more in range(5)
        ]
        return torch.tensor(sorted(set().union(*rows)))

    monkeypatch.setattr(Batches, "_sampled", larger)
    assert (
        sampled_bound(
            drawn(Gaussian(1.0, 1.0)), turns(10), 2000, "add-or-remove", DELTA
        ).epsilon
        > 1.5 * claim
    )


class HalfTheNoise(Gaussian):
    """Says sigma, and draws half of it."""

    def apply(self, tensor: Tensor, source: Source) -> tuple[Tensor, DpEvent]:
        half, _ = Gaussian(self.clip, self.sigma / 2).apply(tensor, source)
        return half, Gaussian(self.clip, self.sigma).apply(tensor, source)[1]


class NoClip(Gaussian):
    """Adds the noise, and forgets to clip."""

    def apply(self, tensor: Tensor, source: Source) -> tuple[Tensor, DpEvent]:
        noise, event = Gaussian(self.clip, self.sigma).apply(
            torch.zeros_like(tensor), source
        )
        return tensor + noise, event


class NoiseAgain(Gaussian):
    """Draws noise once and uses it again whenever it is asked again."""

    drawn: dict[tuple[int, ...], Tensor] = {}

    def apply(self, tensor: Tensor, source: Source) -> tuple[Tensor, DpEvent]:
        noise, event = Gaussian(self.clip, self.sigma).apply(
            torch.zeros_like(tensor), source
        )
        noise = self.drawn.setdefault(tuple(tensor.shape), noise)
        return clip_rows(tensor, self.clip) + noise, event


@pytest.fixture
def forgotten() -> Iterator[None]:
    NoiseAgain.drawn.clear()
    yield
    NoiseAgain.drawn.clear()


@pytest.mark.usefixtures("forgotten")
@pytest.mark.parametrize(
    ("kind", "releases"), [(HalfTheNoise, 1), (NoClip, 1), (NoiseAgain, 2)]
)
def test_a_broken_mechanism_is_caught(kind: type[Gaussian], releases: int) -> None:
    """By so wide a margin that chance cannot hide it: half the noise doubles mu, seven
    deviations of the estimate."""
    found = column_bound(
        setup(kind(1.0, sigma(4.0, releases))),
        turns(releases),
        MANY,
        "replace-one",
        DELTA,
    )
    assert found.counted == pytest.approx(4.0, abs=0.01)
    assert found.epsilon > 1.5 * found.counted


def test_noise_from_the_agreed_seed_is_caught() -> None:
    found = column_bound(
        setup(Gaussian(1.0, sigma(1.0)), secret=False),
        turns(1),
        2000,
        "replace-one",
        DELTA,
    )
    assert found.right == 2000
    assert found.epsilon > 10
    assert found.by == "what left, less the seed's noise"


def test_a_call_that_comes_twice_shows_nothing_more_and_a_checkpoint_forgets_nothing() -> (
    None
):
    """Both deliveries are answered alike, and the account counts each turn once, over
    the checkpoint between them."""
    seen, organisation = released(
        setup(Gaussian(1.0, 2.0)), torch.zeros(50, 4), turns(4)
    )
    assert len(seen) == 4
    steps = [float((values * 2.0**17).frac().abs().max()) for values in seen]
    # the mean of two different releases would lie between the grid's points
    assert max(steps) == 0
    account = organisation.outbox.meter
    assert isinstance(account, Account)
    assert [sum(way.values()) for way in account.spent()] == [4]


@pytest.mark.usefixtures("fixed")
def test_an_answer_that_is_drawn_anew_for_a_repeated_call_is_caught(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A party that forgets what it answered shows each row twice, which no account of
    one release covers."""
    monkeypatch.setattr(CanaryOwner, "remembered", lambda *_: None)
    found = column_bound(
        setup(Gaussian(1.0, sigma(4.0))), turns(1), MANY, "replace-one", DELTA
    )
    assert found.epsilon > 1.15 * 4.0
    assert found.counted > found.epsilon  # its own account noticed


@pytest.mark.parametrize("classes", [2, 10])
def test_randomized_response_is_bounded_closely(classes: int, fixed: None) -> None:
    rule = Rule(RandomizedResponse(2.0, classes))
    found = bound_of_labels(rule, lambda: Secret(), MANY, classes)
    assert 0.7 * 2.0 <= found.epsilon <= 2.0


class Lazy:
    """Randomized response that keeps every second label."""

    def apply(self, tensor: Tensor, source: Source) -> tuple[Tensor, DpEvent]:
        drawn, event = RandomizedResponse(1.0, 2).apply(tensor, source)
        return torch.where(torch.arange(len(tensor)) % 2 == 0, tensor, drawn), event


def test_labels_that_are_kept_or_drawn_by_the_seed_are_caught() -> None:
    assert bound_of_labels(Rule(Lazy()), lambda: Secret(), MANY, 2).epsilon > 1.2
    seeded = bound_of_labels(
        Rule(RandomizedResponse(1.0, 2)),
        lambda: torch.Generator().manual_seed(3),
        MANY,
        2,
    )
    assert seeded.epsilon > 5


RULE = {"mechanism": {"name": "gaussian", "clip": 1.0, "sigma": 6.0}}


def run(folder: Path, **changes: Any) -> Path:
    labels = {
        "outbox": {
            "labels": {"mechanism": {"name": "randomized_response", "epsilon": 2.0}}
        }
    }
    tables = quick(
        parties={"lab": {"outbox": {"embedding": RULE}}, "clinic": labels}, **changes
    )
    Federation.from_toml(write(folder, frames(80), tables)).fit(folder / "run")
    return folder / "run"


@pytest.mark.usefixtures("fixed")
def test_a_run_is_audited_as_often_as_its_dearest_row_was_released(
    tmp_path: Path,
) -> None:
    folder = run(tmp_path)
    made = load(folder)
    made.predict(["P003"])
    made.predict(["P003"])  # a validation or training row asked twice more
    found = audit_promises(folder, canaries=2000)
    by = {
        (one.protects, one.adversary.partition(":")[0], one.relation): one
        for one in found.attempts
    }
    known = by["columns", "who knows the batches", "replace-one"]
    account = load(folder).accounts["lab"]
    assert known.releases == max(sum(way.values()) for way in account.spent()) == 4
    assert known.claim is not None
    assert known.bound is not None
    assert 0 < known.bound <= known.claim
    assert by["labels", "anybody", "one row's label replaced"].bound is not None
    hidden = [
        one
        for one in found.attempts
        if one.adversary == "who does not know the batches"
    ]
    assert hidden
    assert all(
        one.bound is not None and one.bound <= (one.claim or 0) for one in hidden
    )
    found.check()


def test_a_run_with_seeded_noise_fails_the_command(
    tmp_path: Path, call: Caller
) -> None:
    folder = run(tmp_path, federation={"noise": "seeded"})
    called = call("audit", folder, "--dp", "--canaries", "500")
    assert called.code == 5
    assert "promises do not hold" in called.err
    told = json.loads((folder / "audit" / "promises.json").read_text())
    assert not told["passed"]
    assert any(one["broken"] for one in told["attempts"])


@pytest.mark.usefixtures("fixed")
def test_a_run_with_drawn_batches_has_every_statement_attacked(tmp_path: Path) -> None:
    found = audit_promises(run(tmp_path, train={"sampling": "poisson"}), canaries=500)
    hidden = [
        one
        for one in found.attempts
        if one.adversary == "who does not know the batches"
    ]
    assert {one.relation for one in hidden} == {"add-or-remove", "replace-one"}
    assert all(one.bound is not None for one in found.attempts if one.claim is not None)
    found.check()


@pytest.mark.usefixtures("fixed")
def test_a_run_with_secret_noise_passes_the_command(
    tmp_path: Path, call: Caller
) -> None:
    called = call("audit", run(tmp_path), "--dp", "--canaries", "500", "--json")
    assert called.code == 0
    assert json.loads(called.out)["passed"]


def test_where_nothing_is_promised_it_says_so(tmp_path: Path) -> None:
    Federation.from_toml(write(tmp_path, frames(60), quick())).fit(tmp_path / "run")
    found = audit_promises(tmp_path / "run", canaries=100)
    assert found.attempts == []
    assert "Nothing is promised" in found.notes[0]
    found.check()


@pytest.mark.parametrize(("claims", "counted"), [((4.0, 2.0), 9.0), ((4.0, 4.0), 2.0)])
def test_any_claim_below_the_bound_is_attacked_again(
    claims: tuple[float, float], counted: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second of two claims, or what the account counted: chance alone must not
    accuse anybody."""
    bounds = iter(
        [
            Bound(epsilon, 0.0, 0.0, counted, 10, 1, 9, "what left")
            for epsilon in (3.0, 1.0)
        ]
    )
    monkeypatch.setattr(promises, "_bound", lambda *_: next(bounds))
    statements = tuple(
        Statement(KNOWN, "replace-one", "-", claim, DELTA) for claim in claims
    )
    attempts = promises.attempts(
        federation(frames(60)), Guarantee("lab", "columns", (), statements), 10
    )
    assert [(attempt.bound, attempt.broken) for attempt in attempts] == [
        (1.0, False)
    ] * 2


def test_what_is_broken_is_named() -> None:
    parties = {"lab": {"outbox": {"embedding": RULE}}}
    one = federation(frames(60), quick(parties=parties, federation={"noise": "seeded"}))
    one.fit()
    way, went = canary_setup(one, "lab", one.accounts["lab"].spent()[0])
    assert went
    attacked, _ = attack(way, went, 300, "replace-one")
    assert attacked["what left, less the seed's noise"][0].right == 300
    broken = Promises(
        "run",
        "vimadmm",
        [Attempt("lab", "columns", "anybody", "replace-one", 1.0, DELTA, bound=3.0)],
    )
    with pytest.raises(
        AuditFailed,
        match=(
            r"lab's columns against anybody \(replace-one\): epsilon is at least 3\.000"
        ),
    ):
        broken.check()


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Caller:
    return Caller(monkeypatch, capfd)
