"""Curves, counts and costs, held to scikit-learn and to counting by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn import metrics

from colonnade.core.unit import Unit
from colonnade.evaluate.metrics import RATIOS, measure, quality
from colonnade.optim.losses import CrossEntropy, Logistic, Squared

RANDOM = np.random.default_rng(0)
LABELS = torch.from_numpy((RANDOM.random(400) < 0.1).astype(np.int64))
LOGITS = torch.from_numpy(RANDOM.normal(size=400) + 1.5 * LABELS.numpy() - 2.5)[:, None]
SCORES = torch.sigmoid(LOGITS[:, 0]).numpy()
TRUE = LABELS.numpy()


def test_curves_of_two_classes_are_scikit_learns() -> None:
    found = quality(Logistic(), LOGITS, LABELS, ("paid", "default"))
    alarms, recall, thresholds = metrics.roc_curve(
        TRUE, SCORES, drop_intermediate=False
    )
    for x, y in found["roc"]:
        assert np.isclose(np.stack([alarms, recall]), [[x], [y]]).all(0).any()
    best = int((recall - alarms).argmax())
    assert found["ks"] == pytest.approx(
        {"value": (recall - alarms)[best], "at": thresholds[best]}
    )
    precision, sensitivity, _ = metrics.precision_recall_curve(TRUE, SCORES)
    for x, y in found["precision_recall"]:
        assert np.isclose(np.stack([sensitivity, precision]), [[x], [y]]).all(0).any()
    assert found["brier"] == pytest.approx(metrics.brier_score_loss(TRUE, SCORES))
    assert found["confusion"] == metrics.confusion_matrix(TRUE, SCORES > 0.5).tolist()
    assert [sum(one) for one in found["distribution"]] == [
        int((TRUE == 0).sum()),
        int(TRUE.sum()),
    ]
    top = np.argsort(-SCORES)[:40]
    assert found["lift"][0] == pytest.approx((0.1, TRUE[top].mean() / TRUE.mean()))
    assert found["lift"][-1] == pytest.approx((1.0, 1.0))
    assert np.mean([true for _, true in found["calibration"]]) == pytest.approx(
        TRUE.mean()
    )


def test_a_threshold_costs_least_of_all() -> None:
    found = quality(Logistic(), LOGITS, LABELS, ("paid", "default"))
    for ratio, one in zip(RATIOS, found["thresholds"], strict=True):
        costs = [
            ratio * ((at > SCORES) & (TRUE == 1)).sum()
            + ((at <= SCORES) & (TRUE == 0)).sum()
            for at in [*SCORES, 2.0]
        ]
        assert one["cost"] * 400 == pytest.approx(min(costs))
        assert one["cost"] * 400 == pytest.approx(ratio * one["misses"] + one["alarms"])
    acted = [one["acted_on"] for one in found["thresholds"]]
    assert acted == sorted(acted), "the dearer a miss, the more rows one looks at"


def test_scores_and_curves_have_one_positive_class_however_rare_it_is() -> None:
    loss = Logistic()
    often = 1 - LABELS
    found = quality(loss, -LOGITS, often, ("default", "paid"))
    assert found["positive"] == 1
    assert found["share"] == pytest.approx(often.double().mean())
    decided = measure(loss, -LOGITS, often)
    for key in ("precision", "recall", "f1"):
        assert decided[key] == pytest.approx(found["each"][found["positive"]][key])
    at_half = decided["recall"], decided["precision"]
    assert np.isclose(found["precision_recall"], at_half, atol=0.02).all(1).any()


def test_several_classes_have_a_table_each_and_one_class_alone_no_curve() -> None:
    labels = torch.arange(90) % 3
    outputs = torch.nn.functional.one_hot(labels, 3).double() + torch.from_numpy(
        RANDOM.normal(size=(90, 3))
    )
    found = quality(CrossEntropy(3), outputs, labels, ("a", "b", "c"))
    assert (
        found["confusion"]
        == metrics.confusion_matrix(labels, outputs.argmax(1)).tolist()
    )
    expected = metrics.precision_recall_fscore_support(labels, outputs.argmax(1))
    for at, one in enumerate(found["each"]):
        assert list(one.values()) == pytest.approx(
            [expected[3][at], expected[0][at], expected[1][at], expected[2][at]]
        )
    assert "roc" not in found
    assert "roc" not in quality(
        Logistic(), LOGITS, torch.zeros(400, dtype=torch.int64), ("a", "b")
    )


def test_of_numbers_it_says_how_far_off() -> None:
    labels = torch.linspace(0, 1, 101)[:, None].double()
    loss = Squared(unit=Unit(mean=10.0, scale=2.0))
    found = quality(loss, labels + 0.5, labels, ())
    assert list(found["off"].values()) == pytest.approx([1.0] * 4)
    predicted, true = map(list, zip(*found["calibration"], strict=True))
    assert predicted == pytest.approx([value + 1.0 for value in true])
    assert 10.0 <= min(true) <= max(true) <= 12.0
