"""An organisation's seat: which noise protects it, when it has an account, and what its label rule does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.federation.small import federation, frames, models_of, quick, splitnn

from colonnade.core import Plain
from colonnade.core.chance import normal
from colonnade.errors import ConfigError
from colonnade.evaluate.metrics import measure
from colonnade.federation import Federation, load
from colonnade.federation.seats import draw_labels
from colonnade.privacy import Gaussian, RandomizedResponse
from colonnade.privacy.accounting import known_batch

GAUSSIAN = {"mechanism": {"name": "gaussian", "clip": 1.0, "sigma": 5.0}}
AUTO = {"mechanism": {"name": "gaussian", "clip": 1.0, "sigma": "auto"}}
DRAWN = {"clinic": {"outbox": {"labels": {"mechanism": {"name": "randomized_response", "epsilon": 1.0}}}}}


def lab(rule: Any = GAUSSIAN, budget: dict[str, Any] | None = None, make: Any = quick, **changes: Any) -> Federation:
    parties = {"lab": {"outbox": {"embedding": rule}} | ({"budget": budget} if budget else {})}
    return federation(settings=make(parties=parties, **changes))


def noise_of(one: Federation) -> torch.Tensor:
    return normal((5,), one.seats["lab"].outbox.noise)


def test_noise_is_secret_unless_an_experiment_says_otherwise() -> None:
    assert not torch.equal(noise_of(lab()), noise_of(lab()))
    seeded = {"federation": {"noise": "seeded"}}
    assert torch.equal(noise_of(lab(**seeded)), noise_of(lab(**seeded)))
    assert lab(**seeded).seats["lab"].outbox.noise is not lab(**seeded).seats["lab"].outbox.noise


def test_a_saved_run_never_draws_its_noise_again(tmp_path: Path) -> None:
    """Two rows behind the same noise would show their difference as it is."""
    one = lab()
    one.fit(tmp_path / "run")
    drawn = [noise_of(load(tmp_path / "run", frames=frames())) for _ in range(2)]
    assert not torch.equal(*drawn)


def test_who_promises_something_for_columns_has_an_account() -> None:
    assert set(lab().accounts) == {"lab"}
    assert federation().accounts == {}
    assert lab(rule={"mechanism": "plain"}).accounts == {}
    own = federation(settings=quick(parties={"clinic": {"outbox": {"embedding": GAUSSIAN}}}))
    assert own.accounts == {}  # the label owner's own embedding never leaves it


@pytest.mark.parametrize(("epochs", "epsilon", "relation"), [(3, 8.0, "replace-one"), (10, 1.0, "add-or-remove")])
def test_automatic_noise_meets_the_budget_and_half_of_it_would_not(epochs: int, epsilon: float, relation: str) -> None:
    one = lab(AUTO, {"epsilon": epsilon, "relation": relation}, train={"epochs": epochs, "early_stop": False})
    outcome = one.fit()
    assert (outcome.exhausted, outcome.summary["epochs"]) == (False, epochs)
    assert 0.99 * epsilon < one.accounts["lab"].worst <= epsilon
    mechanism = one.seats["lab"].outbox.rule("embedding").mechanism
    assert isinstance(mechanism, Gaussian)
    ((_, event),) = one.accounts["lab"].counts
    half = (event[0], tuple((k, v / 2 if k == "noise_multiplier" else v) for k, v in event[1]))
    assert known_batch({half: epochs}, relation, 1e-5) > epsilon


def test_a_budget_without_noise_is_refused_at_the_start() -> None:
    for rule in ({"mechanism": "plain"}, {"mechanism": {"name": "gaussian", "clip": 1.0, "sigma": 0.0}}):
        with pytest.raises(
            ConfigError, match=r"\[parties\.lab\.budget\] can never be kept: train\.embedding is released"
        ):
            lab(rule, {"epsilon": 8.0})
    parties = {"lab": {"outbox": {"embedding": GAUSSIAN, "test.embedding": {}}, "budget": {"epsilon": 8.0}}}
    with pytest.raises(ConfigError, match=r"can never be kept: test\.embedding is released with Plain\(\)"):
        federation(settings=quick(parties=parties))
    with pytest.raises(ConfigError, match=r"\[parties\.lab\.budget\] can never be kept"):
        federation(settings=quick(parties={"lab": {"budget": {"epsilon": 8.0}}}))


def test_a_label_owners_budget_is_refused() -> None:
    parties = {"clinic": {"outbox": {"embedding": GAUSSIAN}, "budget": {"epsilon": 8.0}}}
    with pytest.raises(ConfigError, match=r"\[parties\.clinic\.budget\] can never be kept: a budget is for columns"):
        federation(settings=quick(parties=parties))


def test_automatic_noise_needs_a_budget() -> None:
    with pytest.raises(ConfigError, match=r'embedding has sigma = "auto".*Add \[parties\.lab\.budget\] epsilon = 8\.0'):
        lab(AUTO)


@pytest.mark.parametrize("make", [quick, splitnn])
def test_labels_are_drawn_once_for_training_and_scores_follow_the_draw(make: Any, tmp_path: Path) -> None:
    one = federation(settings=make(parties=DRAWN, train={"epochs": 3, "early_stop": False}))
    train, truth = one.batches.splits["train"], one.holdings.parties["clinic"].labels
    assert truth is not None
    moved = one.driver.labels[train] != truth[train]
    assert 0 < int(moved.sum()) < len(train)
    for split in ("validation", "test"):
        rows = one.batches.splits[split]
        assert torch.equal(one.driver.labels[rows], truth[rows])
    drawn = one.driver.labels.clone()
    one.fit(tmp_path / "run")
    assert torch.equal(one.driver.labels, drawn)
    outputs, loss = one.outputs("train"), one.holdings.loss
    found = one.evaluate("train")
    assert found == measure(loss, outputs, drawn[train]) != measure(loss, outputs, truth[train])
    again = load(tmp_path / "run", frames=frames())
    assert torch.equal(again.driver.labels, drawn)  # a second draw would tell more


def test_drawn_labels_are_what_the_label_owner_learns_from() -> None:
    """Training with a rule equals training on those labels without one: what leaves follows from the draw alone."""
    one = federation(settings=quick(parties=DRAWN))
    drawn = one.driver.labels.clone()
    other = federation()
    other.driver.labels = drawn
    list(one.train())
    list(other.train())
    first, second = models_of(one), models_of(other)
    assert all(torch.equal(first[place], second[place]) for place in second)


@pytest.mark.parametrize(
    ("task", "party", "rule", "message"),
    [
        ("regression", "clinic", DRAWN["clinic"]["outbox"]["labels"], "randomized response needs classes"),
        ("binary", "lab", DRAWN["clinic"]["outbox"]["labels"], "a rule for 'labels', which is never released"),
        ("binary", "clinic", GAUSSIAN, "mechanism 'gaussian' is not known; there are randomized_response"),
        ("binary", "clinic", {"mechanism": "plain", "codec": "identity"}, "labels must look like"),
    ],
)
def test_a_label_rule_that_protects_nothing_is_refused(task: Any, party: str, rule: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        federation(frames(task=task), quick(parties={party: {"outbox": {"labels": rule}}}))


def test_the_classes_are_filled_in() -> None:
    one = federation(frames(task="classes"), quick(parties=DRAWN))
    rule = one.seats["clinic"].outbox.rules["labels"]
    assert rule.mechanism == RandomizedResponse(1.0, 3)
    labels = torch.tensor([0, 1, 2] * 27)[:80]
    drawn, event = draw_labels(labels, one.seats["clinic"])
    assert event is not None
    assert not torch.equal(drawn, labels)
    plain, nothing = draw_labels(labels, one.seats["lab"])
    assert plain is labels
    assert nothing is None
    assert isinstance(one.seats["lab"].outbox.rule("embedding").mechanism, Plain)
