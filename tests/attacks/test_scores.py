"""Scores against brute force and other libraries, and baselines that need no attack."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest
import torch
from scipy.stats import binomtest
from sklearn.metrics import r2_score
from torch import Generator, Tensor

from colonnade.attacks.scores import (
    best_names,
    correlation,
    r_squared,
    recogniser,
    score_labels,
)
from colonnade.evaluate import wilson


def draw(count: int, classes: int, seed: int) -> Tensor:
    return torch.randint(classes, (count,), generator=Generator().manual_seed(seed))


@pytest.mark.parametrize(("right", "of"), [(0, 20), (7, 20), (20, 20), (613, 1000)])
def test_wilson_is_scipys(right: int, of: int) -> None:
    interval = binomtest(right, of).proportion_ci(method="wilson")
    assert wilson(right, of) == pytest.approx((interval.low, interval.high), abs=1e-6)


@pytest.mark.parametrize("seed", range(5))
def test_groups_get_the_names_that_make_most_rows_right(seed: int) -> None:
    groups = draw(40, 4, seed)
    truth = draw(40, 4, seed + 100)
    best = max(
        int((torch.tensor(names)[groups] == truth).sum())
        for names in permutations(range(4))
    )
    assert int((best_names(groups, truth, 4) == truth).sum()) == best


def test_groups_are_judged_whatever_their_numbers_are() -> None:
    truth = draw(300, 5, 0)
    renamed = torch.tensor([3, 0, 4, 1, 2])[truth]
    assert score_labels(renamed, truth, 5, named=False).score == 1.0
    assert score_labels(renamed, truth, 5, named=True).score < 0.3
    assert (
        score_labels(torch.zeros(300, dtype=torch.int64), truth, 5, named=False).score
        <= 0.3
    )  # one group is one name


def test_random_groups_are_no_better_than_their_baseline() -> None:
    """Naming alone gains something on few rows; the baseline has the same gain."""
    truth = draw(60, 10, 1)
    groups = draw(60, 10, 2)
    found = score_labels(groups, truth, 10, named=False)
    assert found.score > found.chance
    assert found.baseline > found.majority
    assert found.low <= found.baseline


def test_the_baseline_is_the_commonest_class() -> None:
    truth = torch.tensor([0] * 70 + [1] * 30)
    found = score_labels(truth, truth, 2, named=True)
    assert (found.score, found.majority, found.baseline, found.chance) == (
        1.0,
        0.7,
        0.7,
        0.5,
    )
    assert found.low < 1.0


@pytest.mark.parametrize("share", [0.5, 0.64, 0.9])
def test_of_two_classes_noise_is_not_turned_and_an_inverted_leak_is(
    share: float,
) -> None:
    rows = 320
    for seed in range(100):
        generator = Generator().manual_seed(seed)
        truth, wrong, guess = (
            torch.rand(rows, generator=generator) < one for one in (share, 0.01, 0.5)
        )
        noise = score_labels(guess.long(), truth.long(), 2, named=True)
        assert not noise.turned
        assert noise.score == pytest.approx(float((guess == truth).float().mean()))
        assert noise.low <= noise.baseline
        # right in few rows: an attacker who knows some labels turns it round
        inverted = (~truth ^ wrong).long()
        found = score_labels(inverted, truth.long(), 2, named=True)
        assert found.turned
        assert found.score == pytest.approx(1 - float(wrong.float().mean()))
        assert found.low > found.baseline
        # it was read in two ways
        assert found.high - found.low > np.subtract(
            *wilson(found.score * rows, rows)[::-1]
        )
    # saying one class of every row tells nothing
    rarer = torch.full((rows,), int(share <= 0.5), dtype=torch.int64)
    assert not score_labels(rarer, truth.long(), 2, named=True).turned


def test_only_labels_that_there_are_can_be_turned() -> None:
    truth = draw(100, 2, 0)
    assert score_labels(torch.full((100,), 7), truth, 2, named=True).score == 0.0
    assert not score_labels((truth + 1) % 3, truth, 3, named=True).turned


def test_numbers_are_judged_by_their_squared_correlation() -> None:
    truth = torch.randn(200, generator=Generator().manual_seed(0))
    guess = -3 * truth + torch.randn(200, generator=Generator().manual_seed(1))
    found = score_labels(guess, truth, 0, named=True)
    expected = np.corrcoef(guess.numpy(), truth.numpy())[0, 1] ** 2
    assert found.score == pytest.approx(expected)
    assert found.low < expected < found.high
    assert found.baseline == 0


def test_correlation_and_r_squared_per_column_are_the_libraries() -> None:
    truth, noise = (
        torch.randn(50, 3, generator=Generator().manual_seed(seed)) for seed in (0, 1)
    )
    guess = truth + noise
    found = correlation(truth, guess)
    for column in range(3):
        expected = np.corrcoef(truth[:, column].numpy(), guess[:, column].numpy())[0, 1]
        assert float(found[column]) == pytest.approx(expected)
    spans = {"a": slice(0, 1), "b": slice(1, 3)}
    r2 = r_squared(truth, guess, truth.mean(0), spans)
    assert r2["a"] == pytest.approx(r2_score(truth[:, 0], guess[:, 0]), abs=1e-6)
    assert r2["b"] == pytest.approx(
        r2_score(truth[:, 1:], guess[:, 1:], multioutput="variance_weighted"), abs=1e-6
    )
    assert r_squared(
        truth, truth.mean(0).expand_as(truth), truth.mean(0), spans
    ) == pytest.approx({"a": 0, "b": 0})


def test_a_column_that_does_not_vary_has_no_score() -> None:
    truth = torch.tensor([[1.0, 2.0], [1.0, 3.0]])
    assert list(
        r_squared(truth, truth, truth.mean(0), {"a": slice(0, 1), "b": slice(1, 2)})
    ) == ["b"]
    assert float(correlation(truth[:, :1], truth[:, 1:])[0]) == 0.0


def test_a_recogniser_sees_the_class_in_the_columns_and_not_in_their_mean() -> None:
    labels = draw(400, 3, 0)
    columns = torch.nn.functional.one_hot(labels, 3).float() + 0.3 * torch.randn(
        400, 3, generator=Generator().manual_seed(1)
    )
    accuracy = recogniser(columns[:300], labels[:300])
    assert accuracy(columns[300:], labels[300:]) > 0.9
    blank = columns.mean(0).expand(100, 3)
    assert accuracy(blank, labels[300:]) < 0.5
