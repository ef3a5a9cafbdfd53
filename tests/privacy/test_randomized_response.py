"""Randomized response: the printed chances, and no more than the printed epsilon. Two
stages: epsilon by exact enumeration, the paper's choice of k, and more labels that
stay.
"""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from tests.federation.small import federation, frames, quick
from torch import Generator, Tensor

from colonnade.errors import ConfigError
from colonnade.federation.guarantees import guarantees
from colonnade.privacy import RandomizedResponse, TwoStage


@pytest.mark.parametrize(("epsilon", "classes"), [(0.5, 2), (2.0, 3), (4.0, 10)])
def test_labels_stay_and_move_as_often_as_epsilon_says(
    epsilon: float, classes: int
) -> None:
    from scipy.stats import chisquare

    labels = torch.full((40_000,), classes - 1)
    drawn, event = RandomizedResponse(epsilon, classes).apply(
        labels, Generator().manual_seed(0)
    )
    counts = torch.bincount(drawn, minlength=classes).double().numpy()
    other = 1 / (math.exp(epsilon) + classes - 1)
    expected = [other] * (classes - 1) + [math.exp(epsilon) * other]
    assert chisquare(counts, [share * len(labels) for share in expected]).pvalue > 1e-4
    assert event.kind == "randomized-response"
    assert dict(event.parameters) == {"epsilon": epsilon, "classes": classes}


def test_types_and_shapes_stay() -> None:
    labels = torch.randint(0, 5, (30,), generator=Generator().manual_seed(1))
    drawn, _ = RandomizedResponse(1.0, 5).apply(labels, Generator().manual_seed(2))
    assert drawn.dtype == labels.dtype
    assert set(drawn.tolist()) <= set(range(5))
    assert not torch.equal(drawn, labels)


@pytest.mark.parametrize("epsilon", [0.0, -1.0, 101.0, math.nan, True, "2"])
def test_a_bad_epsilon_is_refused(epsilon: float) -> None:
    with pytest.raises(
        ConfigError, match=r"randomized_response\.epsilon must be above 0, at most 100"
    ):
        RandomizedResponse(epsilon)


def test_one_class_is_refused() -> None:
    with pytest.raises(ConfigError, match="classes must be 2 or more"):
        RandomizedResponse(1.0, 1)


def priors(classes: int) -> Tensor:
    """All there are on a grid of tenths, those with zeros and ties among them."""
    grid = [
        one for one in itertools.product(range(11), repeat=classes) if sum(one) == 10
    ]
    return torch.tensor(grid, dtype=torch.float64) / 10


@pytest.mark.parametrize("epsilon", [0.3, 1.0, 3.0])
@pytest.mark.parametrize("classes", [2, 3, 4])
def test_no_draw_is_e_to_the_epsilon_likelier_for_one_label_than_for_another(
    epsilon: float, classes: int
) -> None:
    """Enumerated: every prior, every pair of labels, every draw; and somewhere it is
    exactly epsilon."""
    prior = priors(classes)
    mechanism = TwoStage(epsilon, classes)
    tables = [
        mechanism.chances(torch.full((len(prior),), label), prior)
        for label in range(classes)
    ]
    worst = 0.0
    for one, other in itertools.permutations(tables, 2):
        assert torch.allclose(one.sum(1), torch.ones(len(prior), dtype=torch.float64))
        # what one label can become, every label can
        assert torch.equal(one > 0, other > 0)
        some = one > 0
        worst = max(worst, float((one[some] / other[some]).log().max()))
    assert worst == pytest.approx(epsilon, abs=1e-9)


@pytest.mark.parametrize("epsilon", [0.5, 2.0])
def test_k_is_the_one_that_keeps_most_labels_by_the_prior(epsilon: float) -> None:
    """Theorem 3 of the paper: no other k of two or more is right more often, where
    labels follow the prior."""
    prior = priors(4)
    mechanism = TwoStage(epsilon, 4)
    ranked, k = mechanism.chosen(prior)
    for row, order, found in zip(prior, ranked, k, strict=True):
        right = [
            math.exp(epsilon)
            / (math.exp(epsilon) + size - 1)
            * float(row[order[:size]].sum())
            for size in (2, 3, 4)
        ]
        assert right[int(found) - 2] == pytest.approx(max(right))


def test_with_nothing_to_expect_it_is_randomized_response() -> None:
    uniform = torch.full((1, 5), 0.2)
    chances = TwoStage(2.0, 5).chances(torch.tensor([3]), uniform)[0]
    keep = RandomizedResponse(2.0, 5).keep
    assert float(chances[3]) == pytest.approx(keep)
    assert chances[[0, 1, 2, 4]].tolist() == pytest.approx([(1 - keep) / 4] * 4)


def test_draws_are_as_likely_as_the_table_says() -> None:
    from scipy.stats import chisquare

    mechanism = TwoStage(1.0, 4)
    prior = torch.tensor([[0.5, 0.3, 0.2, 0.0]])
    labels = torch.full((40_000,), 1)
    drawn = mechanism.with_prior(
        labels, prior.expand(len(labels), -1), Generator().manual_seed(0)
    )
    expected = mechanism.chances(labels[:1], prior)[0]
    some = expected > 0
    counts = torch.bincount(drawn, minlength=4).double()
    assert not counts[~some].any()
    assert (
        chisquare(counts[some].numpy(), (expected[some] * len(labels)).numpy()).pvalue
        > 1e-4
    )


def test_a_prior_is_what_is_left_when_the_first_draw_is_taken_off() -> None:
    mechanism = TwoStage(1.5, 3)
    keep = RandomizedResponse(1.5, 3).keep
    true = torch.tensor([[0.7, 0.3, 0.0]], dtype=torch.float64)
    noisy = true * keep + (1 - true) * (1 - keep) / 2
    assert torch.allclose(mechanism.unmixed(noisy), true, atol=1e-9)
    assert torch.allclose(
        mechanism.unmixed(torch.zeros(1, 3)),
        torch.full((1, 3), 1 / 3, dtype=torch.float64),
    )


def test_each_label_is_drawn_once_and_no_prior_sees_a_label_that_was_not_drawn() -> (
    None
):
    labels = torch.randint(3, (200,), generator=Generator().manual_seed(1))
    seen: list[tuple[Tensor, Tensor, Tensor]] = []

    def learn(rows: Tensor, drawn: Tensor, others: Tensor) -> Tensor:
        seen.append((rows, drawn, others))
        return torch.full((len(others), 3), 1 / 3)

    drawn, event = TwoStage(1.0, 3).draw(labels, Generator().manual_seed(2), learn)
    ((rows, told, others),) = seen
    assert sorted([*rows.tolist(), *others.tolist()]) == list(range(200))
    assert len(rows) == 80  # of the hundred that are drawn first
    assert torch.equal(told, drawn[rows])
    assert dict(event.parameters) == {"epsilon": 1.0, "classes": 3.0, "stages": 2.0}


def test_what_other_drawn_labels_do_not_bear_out_is_not_believed() -> None:
    mechanism = TwoStage(1.0, 3)
    generator = Generator().manual_seed(0)
    labels = torch.randint(3, (3000,), generator=generator)
    drawn, _ = RandomizedResponse(1.0, 3).apply(labels, generator)
    truth = torch.nn.functional.one_hot(labels, 3).double()
    assert mechanism.believed(truth, drawn) > 0.8
    assert (
        mechanism.believed(truth[torch.randperm(3000, generator=generator)], drawn)
        < 0.2
    )


def test_more_labels_stay_than_by_randomized_response() -> None:
    """Nine of ten rows are of two classes of six: expecting these keeps more, at the
    same epsilon."""
    labels = torch.where(
        torch.arange(4000) % 10 == 0, torch.arange(4000) % 6, torch.arange(4000) % 2
    )
    kept = [
        float(
            (mechanism.apply(labels, Generator().manual_seed(0))[0] == labels)
            .double()
            .mean()
        )
        for mechanism in (RandomizedResponse(1.0, 6), TwoStage(1.0, 6))
    ]
    assert kept[1] > kept[0] + 0.05


def test_a_federation_expects_what_its_own_columns_say() -> None:
    rule = {"outbox": {"labels": {"mechanism": {"name": "two_stage", "epsilon": 1.0}}}}
    settings = quick(parties={"clinic": rule}, federation={"noise": "seeded"})
    made = federation(frames(600, "classes"), settings)
    train = made.batches.splits["train"]
    truth = made.holdings.labelled.labels[train]
    drawn = made.labels[train]
    stayed = float((truth == drawn).double().mean())
    assert 0.61 < stayed < 0.8  # by randomized response alone it is 0.58
    told = next(one for one in guarantees(made) if one.protects == "labels")
    assert told.statements[0].epsilon == 1.0
    assert (
        told.releases[0].mechanism
        == "randomized response over 3 classes, in two stages"
    )


@pytest.mark.parametrize("epsilon", [0.0, -1.0, True, math.inf])
def test_what_makes_no_sense_is_refused(epsilon: float) -> None:
    with pytest.raises(ConfigError, match="epsilon must be above 0"):
        TwoStage(epsilon)
