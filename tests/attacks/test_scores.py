"""Scores against brute force and other libraries, and baselines that need no attack."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest
import torch
from scipy.stats import binomtest
from sklearn.metrics import r2_score
from torch import Generator, Tensor
from torch.nn.functional import one_hot

from colonnade.attacks.scores import (
    LabelScore,
    PlainTerms,
    best_names,
    correlation,
    r_squared,
    recogniser,
    score_classes,
    score_numbers,
)
from colonnade.evaluate import wilson
from colonnade.evaluate.ranking import rank


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


def scored(
    scores: Tensor, truth: Tensor, classes: int, *, named: bool = True
) -> tuple[LabelScore, PlainTerms]:
    found = score_classes(scores, truth, classes, named=named)
    assert found.plain is not None
    return found, found.plain


def low(found: LabelScore) -> float:
    assert found.low is not None
    return found.low


def of_two(second: Tensor) -> Tensor:
    return torch.stack([-second, second], 1)


def said(labels: Tensor, classes: int) -> Tensor:
    """The scores of an attacker that only says labels."""
    return one_hot(labels, classes).double()


def test_groups_are_judged_whatever_their_numbers_are() -> None:
    truth = draw(300, 5, 0)
    renamed = said(torch.tensor([3, 0, 4, 1, 2])[truth], 5)
    groups, plain = scored(renamed, truth, 5, named=False)
    assert groups.score == plain.accuracy == 1.0
    _, plain = scored(renamed, truth, 5)
    assert plain.accuracy < 0.3
    one_group = said(torch.zeros(300, dtype=torch.int64), 5)
    nothing, plain = scored(one_group, truth, 5, named=False)
    assert nothing.score == 0.5
    assert plain.accuracy <= 0.3  # one group has one name


def test_random_groups_are_no_better_than_guessing() -> None:
    """Naming groups gets more rows right than the commonest class, on few rows; and of
    many groups and classes some pair is alike by luck."""
    alarms = 0
    for seed in range(60):
        truth = draw(120, 6, seed)
        groups = said(draw(120, 6, seed + 1000), 6)
        found, plain = scored(groups, truth, 6, named=False)
        alarms += low(found) > found.baseline
        assert plain.accuracy_without >= float(truth.bincount().max()) / 120
    assert alarms <= 5


def test_a_rare_class_that_is_ranked_first_is_told_though_no_label_is() -> None:
    """One row in twenty defaults. The attacker's best guess of every row is that it
    pays, so it is as accurate as no attack; and it knows who defaults."""
    generator = Generator().manual_seed(0)
    truth = (torch.arange(500) < 25).long()
    second = -3 + 1.5 * truth + torch.randn(500, generator=generator)
    found, plain = scored(of_two(second), truth, 2)
    assert plain.accuracy == pytest.approx(plain.accuracy_without, abs=0.02)
    assert low(found) > 0.65
    assert plain.class_rows == 25
    assert plain.recall_without == pytest.approx(0.05)
    assert plain.recall is not None
    assert plain.recall > 5 * 0.05


def test_auc_is_the_same_for_either_class_and_recall_is_of_the_rarer() -> None:
    truth = (torch.rand(400, generator=Generator().manual_seed(1)) < 0.2).long()
    noise = torch.randn(400, generator=Generator().manual_seed(2))
    rare, of_rare = scored(of_two(truth + noise), truth, 2)
    swapped, of_swapped = scored(of_two(-truth - noise), 1 - truth, 2)
    assert swapped == rare
    assert of_swapped.recall == of_rare.recall


@pytest.mark.parametrize("share", [0.05, 0.5, 0.64, 0.9])
def test_of_two_classes_noise_is_not_turned_and_an_inverted_leak_is(
    share: float,
) -> None:
    rows = 320
    false_alarms = 0
    for seed in range(100):
        generator = Generator().manual_seed(seed)
        truth = (torch.rand(rows, generator=generator) < share).long()
        noise, _ = scored(of_two(torch.randn(rows, generator=generator)), truth, 2)
        false_alarms += low(noise) > noise.baseline
        wrong = torch.rand(rows, generator=generator) < 0.01
        inverted = of_two(((truth == 0) ^ wrong).double() - 0.5)
        found, plain = scored(inverted, truth, 2)
        straight, _ = scored(-inverted, truth, 2)
        assert found.turned
        assert found.score == straight.score
        assert plain.accuracy == pytest.approx(1 - float(wrong.double().mean()))
        # it was read in two ways
        assert found.baseline < low(found) < low(straight)
    assert false_alarms <= 8  # 2.5 and 1.25 of a hundred


def test_an_attack_is_not_excused_by_scores_that_rank_worse_than_its_labels() -> None:
    """Under randomized response a row is suspected the more, the more its drawn label
    surprises the model, and then it is the likeliest to be wrong."""
    generator = Generator().manual_seed(0)
    truth = draw(400, 2, 0)
    noise = torch.randn(400, generator=generator)
    known = torch.sigmoid(6 * truth - 3 + noise)
    drawn = truth ^ (torch.rand(400, generator=generator) < 0.27)
    found, plain = scored(of_two(drawn - known), truth, 2)
    by_scores = rank(drawn - known, truth == 1)
    by_labels = rank(drawn.double(), truth == 1)
    assert by_scores.low < 0.5 < by_labels.low
    assert found.score == pytest.approx(by_labels.auc)
    assert low(found) > 0.6
    assert plain.accuracy == float((drawn == truth).double().mean())


def test_of_several_classes_the_one_that_is_told_best_counts() -> None:
    truth = draw(600, 4, 0)
    scores = torch.randn(600, 4, generator=Generator().manual_seed(1)).double()
    nothing, _ = scored(scores, truth, 4)
    assert low(nothing) <= 0.5
    scores[:, 2] += 2.0 * (truth == 2)
    found, plain = scored(scores, truth, 4)
    by_itself = rank(scores[:, 2], truth == 2, comparisons=2)  # or by its labels
    assert found.score == by_itself.auc
    assert plain.class_rows == int((truth == 2).sum())
    # chosen from four
    assert 0.5 < low(found) < by_itself.low


def test_the_worst_of_many_classes_is_no_leak_by_luck() -> None:
    alarms = 0
    for seed in range(100):
        truth = draw(400, 8, seed)
        scores = torch.randn(400, 8, generator=Generator().manual_seed(seed + 500))
        found, _ = scored(scores, truth, 8)
        alarms += low(found) > 0.5
    assert alarms <= 8


@pytest.mark.parametrize("classes", [2, 3])
def test_one_class_alone_is_not_measured(classes: int) -> None:
    """Every guess is right, and none says anything."""
    truth = torch.zeros(64, dtype=torch.int64)
    found, plain = scored(said(truth, classes), truth, classes)
    assert (found.score, found.low, found.high) == (None, None, None)
    assert plain.accuracy == plain.accuracy_without == 1.0
    assert plain.recall is None
    assert plain.classes_not_measured == (1 if classes == 2 else 3)
    assert found.undecided == ((0.0, 1.0),) * plain.classes_not_measured


def test_what_few_rows_cannot_show_is_undecided() -> None:
    """Ten of 200 rows are ranked perfectly: no threshold can be said to be kept from
    where luck could be as good."""
    truth = (torch.arange(200) < 10).long()
    perfect, _ = scored(of_two(truth.double()), truth, 2)
    ((start, end),) = perfect.undecided
    assert start == low(perfect)
    assert end == 1.0
    one_row = (torch.arange(200) < 1).long()
    assert scored(of_two(one_row.double()), one_row, 2)[0].score is None
    enough = draw(600, 2, 0)
    noise = torch.randn(600, generator=Generator().manual_seed(1))
    assert scored(of_two(noise), enough, 2)[0].undecided == ()


def test_a_class_that_few_rows_have_is_said_beside_those_that_are_measured() -> None:
    truth = torch.tensor([0] * 100 + [1] * 100 + [2])
    found, plain = scored(said(truth, 4), truth, 4)
    assert found.score == 1.0
    assert plain.classes_not_measured == 2
    assert sum(start <= 0.5 for start, _ in found.undecided) == 2


def test_numbers_are_judged_by_their_squared_correlation() -> None:
    truth = torch.randn(200, generator=Generator().manual_seed(0))
    guess = -3 * truth + torch.randn(200, generator=Generator().manual_seed(1))
    found = score_numbers(guess, truth)
    expected = np.corrcoef(guess.numpy(), truth.numpy())[0, 1] ** 2
    assert found.score == pytest.approx(expected)
    assert found.high is not None
    assert low(found) < expected < found.high
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
    noise = torch.randn(400, 3, generator=Generator().manual_seed(1))
    columns = one_hot(labels, 3).float() + 0.3 * noise
    recognise = recogniser(columns[:300], labels[:300], 4)
    seen, plain = scored(recognise(columns[300:]), labels[300:], 4)
    assert plain.accuracy > 0.9
    assert low(seen) > 0.8
    blank, _ = scored(recognise(columns.mean(0).expand(100, 3)), labels[300:], 4)
    assert blank.score == 0.5
