"""An organisation: which noise protects it, when it has an account, what its label rule
does, and its own model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.federation import small_multi
from tests.federation.small import (
    federation,
    frames,
    learned_of,
    models_of,
    quick,
    splitnn,
    tensors,
)
from torch import Generator, Tensor, nn

from colonnade import models
from colonnade.algorithms import ALGORITHMS
from colonnade.core import Plain
from colonnade.core.chance import normal
from colonnade.errors import ConfigError
from colonnade.evaluate.metrics import measure
from colonnade.federation import Federation, Settings, load
from colonnade.federation.organisation import mixes_rows, models_told
from colonnade.models import seeded
from colonnade.privacy import Gaussian, RandomizedResponse
from colonnade.privacy.accounting import known_batch

GAUSSIAN = {"mechanism": {"name": "gaussian", "clip": 1.0, "sigma": 5.0}}
AUTO = {"mechanism": {"name": "gaussian", "clip": 1.0, "sigma": "auto"}}
DRAWN = {
    "clinic": {
        "outbox": {
            "labels": {"mechanism": {"name": "randomized_response", "epsilon": 1.0}}
        }
    }
}


def lab(
    rule: Any = GAUSSIAN,
    budget: dict[str, Any] | None = None,
    make: Any = quick,
    **changes: Any,
) -> Federation:
    parties = {
        "lab": {"outbox": {"embedding": rule}} | ({"budget": budget} if budget else {})
    }
    return federation(settings=make(parties=parties, **changes))


def noise_of(one: Federation) -> torch.Tensor:
    return normal((5,), one.organisations["lab"].outbox.noise)


def test_noise_is_secret_unless_an_experiment_says_otherwise() -> None:
    assert not torch.equal(noise_of(lab()), noise_of(lab()))
    seeded = {"federation": {"noise": "seeded"}}
    assert torch.equal(noise_of(lab(**seeded)), noise_of(lab(**seeded)))
    assert (
        lab(**seeded).organisations["lab"].outbox.noise
        is not lab(**seeded).organisations["lab"].outbox.noise
    )


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
    own = federation(
        settings=quick(parties={"clinic": {"outbox": {"embedding": GAUSSIAN}}})
    )
    assert own.accounts == {}  # the label owner's own embedding never leaves it


@pytest.mark.parametrize(
    ("epochs", "epsilon", "relation"),
    [(3, 8.0, "replace-one"), (10, 1.0, "add-or-remove")],
)
def test_automatic_noise_meets_the_budget_and_half_of_it_would_not(
    epochs: int, epsilon: float, relation: str
) -> None:
    one = lab(
        AUTO,
        {"epsilon": epsilon, "relation": relation},
        train={"epochs": epochs, "early_stop": False},
    )
    outcome = one.fit()
    assert (outcome.exhausted, outcome.summary["epochs"]) == (False, epochs)
    assert 0.99 * epsilon < one.accounts["lab"].worst <= epsilon
    mechanism = one.organisations["lab"].outbox.rule("embedding").mechanism
    assert isinstance(mechanism, Gaussian)
    ((_, event),) = one.accounts["lab"].counts
    half = (
        event[0],
        tuple((k, v / 2 if k == "noise_multiplier" else v) for k, v in event[1]),
    )
    assert known_batch({half: epochs}, relation, 1e-5) > epsilon


def test_a_budget_without_noise_is_refused_at_the_start() -> None:
    for rule in (
        {"mechanism": "plain"},
        {"mechanism": {"name": "gaussian", "clip": 1.0, "sigma": 0.0}},
    ):
        with pytest.raises(
            ConfigError,
            match=(
                r"\[parties\.lab\.budget\] can never be kept: train\.embedding is"
                r" released"
            ),
        ):
            lab(rule, {"epsilon": 8.0})
    parties = {
        "lab": {
            "outbox": {"embedding": GAUSSIAN, "test.embedding": {}},
            "budget": {"epsilon": 8.0},
        }
    }
    with pytest.raises(
        ConfigError,
        match=r"can never be kept: test\.embedding is released with Plain\(\)",
    ):
        federation(settings=quick(parties=parties))
    with pytest.raises(
        ConfigError, match=r"\[parties\.lab\.budget\] can never be kept"
    ):
        federation(settings=quick(parties={"lab": {"budget": {"epsilon": 8.0}}}))


def test_a_label_owners_budget_is_refused() -> None:
    parties = {
        "clinic": {"outbox": {"embedding": GAUSSIAN}, "budget": {"epsilon": 8.0}}
    }
    with pytest.raises(
        ConfigError,
        match=r"\[parties\.clinic\.budget\] can never be kept: a budget is for columns",
    ):
        federation(settings=quick(parties=parties))


def test_automatic_noise_needs_a_budget() -> None:
    with pytest.raises(
        ConfigError,
        match=(
            r'embedding has sigma = "auto".*Add \[parties\.lab\.budget\] epsilon = 8\.0'
        ),
    ):
        lab(AUTO)


@pytest.mark.parametrize("make", [quick, splitnn])
def test_labels_are_drawn_once_for_training_and_scores_follow_the_draw(
    make: Any, tmp_path: Path
) -> None:
    one = federation(
        settings=make(parties=DRAWN, train={"epochs": 3, "early_stop": False})
    )
    train = one.batches.splits["train"]
    truth = one.holdings.label_owners["clinic"].labels
    moved = one.driver.labels[train] != truth[train]
    assert 0 < int(moved.sum()) < len(train)
    for split in ("validation", "test"):
        rows = one.batches.splits[split]
        assert torch.equal(one.driver.labels[rows], truth[rows])
    drawn = one.driver.labels.clone()
    one.fit(tmp_path / "run")
    assert torch.equal(one.driver.labels, drawn)
    outputs = one.outputs("train")
    loss = one.holdings.loss
    found = one.evaluate("train")
    assert (
        found
        == measure(loss, outputs, drawn[train])
        != measure(loss, outputs, truth[train])
    )
    again = load(tmp_path / "run", frames=frames())
    assert torch.equal(again.driver.labels, drawn)  # a second draw would tell more


def test_drawn_labels_are_what_the_label_owner_learns_from() -> None:
    """Training with a rule equals training on those labels without one: what leaves
    follows from the draw alone."""
    one = federation(settings=quick(parties=DRAWN))
    drawn = one.driver.labels.clone()
    # sides do not follow labels that are drawn
    other = federation(settings=quick(data={"stratify": False}))
    other.driver.labels = drawn
    list(one.train())
    list(other.train())
    first = models_of(one)
    second = models_of(other)
    assert all(torch.equal(first[place], second[place]) for place in second)


@pytest.mark.parametrize(
    ("task", "party", "rule", "message"),
    [
        (
            "regression",
            "clinic",
            DRAWN["clinic"]["outbox"]["labels"],
            "randomized response needs classes",
        ),
        (
            "binary",
            "lab",
            DRAWN["clinic"]["outbox"]["labels"],
            "a rule for 'labels', which is never released",
        ),
        (
            "binary",
            "clinic",
            GAUSSIAN,
            "mechanism 'gaussian' is not known; there are randomized_response",
        ),
        (
            "binary",
            "clinic",
            {"mechanism": "plain", "codec": "identity"},
            "labels must look like",
        ),
    ],
)
def test_a_label_rule_that_protects_nothing_is_refused(
    task: Any, party: str, rule: Any, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        federation(
            frames(task=task), quick(parties={party: {"outbox": {"labels": rule}}})
        )


def test_the_classes_are_filled_in() -> None:
    one = federation(frames(task="classes"), quick(parties=DRAWN))
    rule = one.organisations["clinic"].outbox.rules["labels"]
    assert rule.mechanism == RandomizedResponse(1.0, 3)
    assert isinstance(
        one.organisations["lab"].outbox.rule("embedding").mechanism, Plain
    )


MIXED = {"lab": {"outbox": {"embedding": GAUSSIAN}}}


class Ranked(nn.Module):
    """No statistics are kept, and rows still depend on each other."""

    def forward(self, x: Tensor) -> Tensor:
        return x.softmax(0)


def batch_normalised(shape: tuple[int, ...]) -> nn.Module:
    return nn.Sequential(nn.Linear(shape[0], 4), nn.BatchNorm1d(4))


@pytest.mark.parametrize(
    ("model", "mixes"),
    [
        (nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.ReLU()), True),
        (nn.Sequential(nn.Linear(6, 4), Ranked()), True),
        (nn.Sequential(nn.Linear(6, 4), nn.LayerNorm(4), nn.ReLU()), False),
        (nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.5), nn.Linear(8, 4)), False),
    ],
    ids=["BatchNorm", "softmax over rows", "LayerNorm", "Dropout"],
)
def test_rows_that_change_each_other_are_found_and_nothing_else_is_changed(
    model: nn.Module, mixes: bool
) -> None:
    generator = Generator().manual_seed(1)
    model = seeded(model, generator, owner="lab")
    before = [value.clone() for value in model.state_dict().values()]
    drawn = generator.get_state()
    assert (
        mixes_rows(
            model, torch.randn(50, 6, generator=Generator().manual_seed(0)), generator
        )
        is mixes
    )
    assert all(map(torch.equal, before, model.state_dict().values()))
    assert torch.equal(drawn, generator.get_state())


def test_noise_is_refused_where_it_would_not_cover_a_row(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(models.MODELS, "normalised", batch_normalised)
    settings = quick() | {"model": {"name": "normalised"}}
    federation(settings=settings)
    with pytest.raises(
        ConfigError,
        match=(
            r"The model of 'lab' lets the rows of a batch change each other.*GroupNorm"
        ),
    ):
        federation(settings=settings | {"parties": MIXED})


TRAINED = [
    name
    for name, algorithm in ALGORITHMS.items()
    if algorithm.nested is None
    and models_told(Settings.from_mapping({"algorithm": {"name": name}}), ["lab"])
]
PLAIN = {"vfedcce": {"mode": "plaintext"}}
SECRET = {"clinic": {"models": "secret"}, "lab": {"models": "secret"}}


@pytest.mark.parametrize("algorithm", TRAINED)
def test_what_a_party_with_secret_models_draws_does_not_follow_from_the_agreed_seed(
    algorithm: str,
) -> None:
    """Weights, heads, random numbers: what the seed decides otherwise, it decides no
    more."""

    def drawn(seed: int, parties: dict[str, dict[str, str]]) -> dict[str, Tensor]:
        tables = quick(federation={"seed": seed}, parties=parties)
        return learned_of(
            federation(
                settings={
                    **tables,
                    "algorithm": {"name": algorithm, **PLAIN.get(algorithm, {})},
                }
            )
        )

    one = drawn(0, {})
    other = drawn(1, {})
    again = drawn(0, {})
    by_seed = {place for place in one if not torch.equal(one[place], other[place])}
    assert all(torch.equal(one[place], again[place]) for place in one), (
        "in one process the seed repeats a run"
    )
    assert {"clinic/seat/generator", "lab/seat/generator"} <= by_seed
    assert (len(by_seed) > 2) == (algorithm != "logistic_regression"), (
        "whose weights start at zero"
    )
    first = drawn(0, SECRET)
    second = drawn(0, SECRET)
    same = {place for place in by_seed if torch.equal(first[place], second[place])}
    assert same == set()
    mixed = drawn(0, {"lab": {"models": "secret"}})
    assert {
        place.partition("/")[0]
        for place in by_seed
        if not torch.equal(one[place], mixed[place])
    } == {"lab"}


def test_so_it_is_with_several_label_owners() -> None:
    def drawn(**owners: list[dict[str, str]]) -> dict[str, Tensor]:
        found = small_multi.federation({**small_multi.QUICK, **owners})
        return {
            place: t
            for party in found.organisations
            for place, t in tensors(found.organisations[party].state(), party)
        }

    secret = {
        "label_owners": [
            {"name": name, "models": "secret"} for name in small_multi.LABELS
        ],
        "data_owners": [
            {"name": name, "models": "secret"} for name in small_multi.COLUMNS
        ],
    }
    first = drawn(**secret)
    second = drawn(**secret)
    one = drawn()
    again = drawn()
    assert all(torch.equal(one[place], again[place]) for place in one)
    weights = [
        place
        for place in first
        if place.endswith(("weight", "generator")) and "aggregation_server" not in place
    ]
    assert {place.partition("/")[0] for place in weights} == {
        *small_multi.LABELS,
        *small_multi.COLUMNS,
    }
    assert not any(torch.equal(first[place], second[place]) for place in weights)


def test_a_summary_says_whose_weights_follow_from_the_seed() -> None:
    found = federation(settings=quick(parties={"lab": {"models": "secret"}}))
    assert found.fit().summary["models"] == {"clinic": "seeded", "lab": "secret"}
    assert (
        models_told(Settings.from_mapping({"algorithm": {"name": "knn"}}), ["lab"])
        == {}
    ), "it has none"
