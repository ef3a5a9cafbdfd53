"""The label owner's scores are scikit-learn's."""

from __future__ import annotations

import math

import numpy as np
import pytest
import sklearn.metrics
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from colonnade.evaluate.metrics import (
    HEADLINE,
    auc,
    beside_majority,
    hits,
    majority,
    measure,
    telling,
)
from colonnade.optim.losses import CrossEntropy, Logistic, Squared

ROWS = st.lists(
    st.tuples(st.sampled_from([-2.0, -0.5, 0.0, 0.25, 3.0]), st.booleans()),
    min_size=2,
    max_size=40,
)


@given(rows=ROWS)
@settings(max_examples=60)
def test_auc_is_scikit_learns_ties_included(rows: list[tuple[float, bool]]) -> None:
    scores, labels = (np.array(column) for column in zip(*rows, strict=True))
    assume(0 < labels.sum() < len(labels))
    ours = auc(torch.tensor(scores), torch.tensor(labels.astype(np.int64)))
    assert ours == pytest.approx(
        sklearn.metrics.roc_auc_score(labels, scores), abs=1e-12
    )


@pytest.mark.parametrize("label", [0, 1])
def test_auc_without_both_classes_is_not_a_number(label: int) -> None:
    assert math.isnan(auc(torch.tensor([0.1, 0.2]), torch.tensor([label, label])))


@pytest.mark.parametrize("seed", range(3))
def test_two_classes(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    outputs = torch.randn(50, 1, generator=generator)
    labels = torch.randint(2, (50,), generator=generator)
    found = measure(Logistic(), outputs, labels)
    probability = outputs[:, 0].double().sigmoid()
    assert list(found) == ["loss", "accuracy", "auc", "precision", "recall", "f1"]
    assert found["loss"] == pytest.approx(
        sklearn.metrics.log_loss(labels, probability), rel=1e-5
    )
    assert found["accuracy"] == pytest.approx(
        sklearn.metrics.accuracy_score(labels, probability > 0.5)
    )
    assert found["auc"] == pytest.approx(
        sklearn.metrics.roc_auc_score(labels, probability)
    )


@pytest.mark.parametrize("sure", [1.0, 18.0, 60.0])
@pytest.mark.parametrize("sign", [1, -1])
def test_auc_ranks_logits_since_probabilities_near_one_are_all_the_same(
    sure: float, sign: int
) -> None:
    generator = torch.Generator().manual_seed(0)
    labels = (torch.rand(400, generator=generator) < 0.9).long()
    logits = sign * (6 * labels + 6 * torch.randn(400, generator=generator) + sure)
    theirs = pytest.approx(
        sklearn.metrics.roc_auc_score(labels, logits.double()), abs=1e-12
    )
    assert measure(Logistic(), logits[:, None], labels)["auc"] == theirs
    two = torch.stack([-logits, torch.zeros(400)], 1)
    assert measure(CrossEntropy(2), two, labels)["auc"] == theirs


@given(rows=st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=30))
@settings(max_examples=60)
def test_hits_are_scikit_learns_with_the_second_class_as_the_positive_one(
    rows: list[tuple[bool, bool]],
) -> None:
    decided, labels = (
        np.array(column, dtype=np.int64) for column in zip(*rows, strict=True)
    )
    theirs = sklearn.metrics.precision_recall_fscore_support(
        labels, decided, average="binary", zero_division=0
    )
    ours = hits(torch.tensor(decided), torch.tensor(labels))
    assert list(ours.values()) == pytest.approx(theirs[:3], abs=1e-12)
    found = measure(
        Logistic(), torch.tensor(decided)[:, None] - 0.5, torch.tensor(labels)
    )
    assert {name: found[name] for name in ours} == ours


def test_several_classes() -> None:
    generator = torch.Generator().manual_seed(0)
    outputs = torch.randn(60, 4, generator=generator)
    labels = torch.randint(4, (60,), generator=generator)
    found = measure(CrossEntropy(4), outputs, labels)
    assert list(found) == ["loss", "accuracy"]
    assert found["accuracy"] == pytest.approx(
        sklearn.metrics.accuracy_score(labels, outputs.argmax(1))
    )
    assert found["loss"] == pytest.approx(
        sklearn.metrics.log_loss(labels, outputs.double().softmax(1)), rel=1e-5
    )


@pytest.mark.parametrize("seed", range(3))
def test_regression(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randn(50, generator=generator)
    outputs = (labels + 0.3 * torch.randn(50, generator=generator))[:, None]
    found = measure(Squared(), outputs, labels)
    assert list(found) == ["loss", "rmse", "mae", "r2"]
    assert found["r2"] == pytest.approx(
        sklearn.metrics.r2_score(labels, outputs[:, 0]), rel=1e-5
    )
    assert found["rmse"] == pytest.approx(
        sklearn.metrics.root_mean_squared_error(labels, outputs[:, 0]), rel=1e-5
    )
    assert found["mae"] == pytest.approx(
        sklearn.metrics.mean_absolute_error(labels, outputs[:, 0]), rel=1e-5
    )
    assert found["loss"] == pytest.approx(found["rmse"] ** 2 / 2, rel=1e-5)


@pytest.mark.parametrize("value", [0.0, 0.1, 1e6])
@pytest.mark.parametrize("error", [0.0, 0.5])
def test_r2_of_labels_that_are_all_the_same(value: float, error: float) -> None:
    labels = torch.full((7,), value)
    # 1.0 has an exact mean
    theirs = sklearn.metrics.r2_score(np.full(7, 1.0), np.full(7, 1.0) + error)
    assert measure(Squared(), (labels + error)[:, None], labels)["r2"] == theirs


def test_every_task_has_a_headline_that_is_measured() -> None:
    two = torch.zeros(2, 1), torch.tensor([0, 1])
    assert HEADLINE["classification"] in measure(Logistic(), *two)
    assert HEADLINE["regression"] in measure(
        Squared(), two[0], torch.tensor([0.0, 1.0])
    )


@given(rows=ROWS)
def test_the_largest_class_and_whether_one_of_two_is_always_said(
    rows: list[tuple[float, bool]],
) -> None:
    outputs = torch.tensor([[score] for score, _ in rows])
    labels = torch.tensor([int(one) for _, one in rows])
    decided = set(Logistic().decide(outputs).tolist())
    share, always = majority(labels, measure(Logistic(), outputs, labels))
    assert share == pytest.approx(
        max(float((labels == one).double().mean()) for one in (0, 1))
    )
    assert always is (len(decided) == 1) or share == 1
    assert telling(Logistic(), labels) == ("accuracy" if share == 1 else "auc")


def test_more_classes_and_numbers_keep_their_headline() -> None:
    labels = torch.tensor([0, 2, 2, 2])
    assert majority(labels, {"accuracy": 0.75}) == (0.75, False)
    assert (telling(CrossEntropy(3), labels), telling(Squared(), labels.float())) == (
        "accuracy",
        "r2",
    )
    told = beside_majority(
        {
            "metrics": {"test": {"accuracy": 0.9, "auc": 0.5}},
            "majority": {"test": {"share": 0.8}},
        }
    )
    assert list(told["test"].items()) == [
        ("accuracy", 0.9),
        ("majority", 0.8),
        ("auc", 0.5),
    ]
    assert beside_majority({"metrics": {"test": {"r2": 0.5}}}) == {"test": {"r2": 0.5}}
