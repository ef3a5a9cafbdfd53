"""How well an attack did, measured by somebody who knows the truth.

Classes: an attack has a score for every row and class, and is judged by AUC, the chance
that a row of the class scores above another row; or by AUC of the labels that it says,
if that is better. Of two classes it is about the rarer
one. Of several, each class is held against the rest, and the class that is told best
counts; the interval allows for choosing it. Accuracy is shown beside AUC and decides
nothing: where one row in twenty is a default, an attack that finds most of them is
hardly more accurate than saying that nobody defaults.

Scores may be the wrong way round, as a few known labels would show. They are turned
where AUC is below 0.5 for sure, with an interval that allows for reading them in two
ways. An attacker that only found groups of rows does not know which class a group is:
every group is held against every class, in both ways, and the interval allows for all
of it.

Rows of one class alone say nothing, and neither do so few that even a perfect attack
could not be told from luck. These are not measured, which is no pass.

Numbers as labels: squared correlation. Columns: R squared and correlation, by column;
'guess the mean' has R squared 0. Pictures: PSNR, and SSIM with the standard Gaussian
window of Wang et al. (2004).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Generator, Tensor
from torch.nn.functional import conv2d, one_hot

from colonnade.attacks.received import labels_said, suspicion
from colonnade.evaluate.ranking import (
    Ranking,
    low_if_perfect,
    normal_quantile,
    rank,
    recall_at,
    rows_within,
)

AUC = "AUC"
SQUARED_CORRELATION = "squared correlation"
GUESSED_AUC = 0.5
"""The AUC of an attacker that knows nothing."""
MOST_SUSPECTED = 0.05
"""The share of rows, those with the highest scores, in which a class is looked for."""
SHUFFLES = 20
"""How often groups are shuffled to see how many rows naming them gets right by luck."""
NEVER_SEEN = -1e3
"""The log probability of a class that a classifier saw no row of, and the lowest of
any."""

Undecided = tuple[tuple[float, float], ...]
"""Ranges of AUC, one for each class with too few rows. The true AUC may be below the
second number, and from the first one on these rows cannot show it, not even for a
perfect attack. So a threshold in the range can be neither kept nor crossed."""


@dataclass(frozen=True)
class LabelScore:
    """How well labels were told, and what needs no attack.

    Args:
        metric: `AUC`, or for numbers `SQUARED_CORRELATION`.
        baseline: The score of an attacker that knows nothing.
        rows: How many rows were scored.
        score: None where these rows cannot measure it.
        low: The lower end of the score's 95 % interval.
        high: The upper end.
        turned: Whether the attacker's scores count with the opposite sign.
        undecided: The thresholds about which these rows say nothing.
        plain: The same in plainer terms; None for numbers.
    """

    metric: str
    baseline: float
    rows: int
    score: float | None = None
    low: float | None = None
    high: float | None = None
    turned: bool = False
    undecided: Undecided = ()
    plain: PlainTerms | None = None


@dataclass(frozen=True)
class PlainTerms:
    """What an attack on classes means for the rows.

    Args:
        accuracy: The share of rows whose label the attacker says right.
        accuracy_without: The same by always saying the commonest class; for groups, by
            naming shuffled groups where that gets more right.
        classes_not_measured: How many classes have too few rows to measure.
        class_rows: How many rows are of the class that AUC is about, if it is measured.
        recall: The share of these that is among the most suspected 5 % of all rows.
        recall_without: The share that as many rows drawn by chance would have.
    """

    accuracy: float
    accuracy_without: float
    classes_not_measured: int
    class_rows: int | None = None
    recall: float | None = None
    recall_without: float | None = None


@dataclass(frozen=True, eq=False)
class OneClass:
    """How well the rows of one class are ranked before the rest.

    Args:
        number: The class.
        suspicion: The score of each row by which it is ranked best.
        turned: Whether this is the attacker's score with the opposite sign.
        ranking: AUC, with an interval that allows for all rankings it was chosen from.
        low_if_perfect: The lower end that a perfect ranking of these rows would have.
    """

    number: int
    suspicion: Tensor
    turned: bool
    ranking: Ranking
    low_if_perfect: float


def score_numbers(guess: Tensor, truth: Tensor) -> LabelScore:
    """Score guesses of labels that are numbers, which may be off by a scale."""
    guess = guess.double().nan_to_num()
    squared = float(correlation(guess[:, None], truth[:, None])[0] ** 2)
    low, high = _fisher(squared, len(truth))
    return LabelScore(
        SQUARED_CORRELATION, 0.0, len(truth), score=squared, low=low, high=high
    )


def score_classes(
    scores: Tensor, truth: Tensor, classes: int, *, named: bool, seed: int = 0
) -> LabelScore:
    """Score how well an attack tells classes.

    Args:
        scores: How strongly each row is suspected, `[rows, columns]`; of two classes as
            `received.suspicion` gives them.
        truth: The class of each row.
        classes: How many classes there are.
        named: Whether the columns are classes. If not, they are groups.
        seed: For the shuffles behind `PlainTerms.accuracy_without`.
    """
    scores = scores.double().nan_to_num()
    each = list(one_against_the_rest(scores, truth, classes, named=named))
    measured = [one for one in each if one.low_if_perfect > GUESSED_AUC]
    absent = len(_looked_for(truth, classes)) - len(each)
    told_best = max(measured, key=lambda one: one.ranking.low, default=None)
    turned = named and told_best is not None and told_best.turned
    said = labels_said(-scores if turned and classes == 2 else scores)
    plain = PlainTerms(
        accuracy=_accuracy(said, truth, classes, named=named),
        accuracy_without=_accuracy_without(said, truth, classes, named, seed),
        classes_not_measured=absent + len(each) - len(measured),
    )
    not_measured = LabelScore(
        AUC,
        GUESSED_AUC,
        len(truth),
        undecided=_undecided(each, absent),
        plain=plain,
    )
    if told_best is None:
        return not_measured
    positive = truth == told_best.number
    plain = replace(
        plain,
        class_rows=int(positive.sum()),
        recall=recall_at(told_best.suspicion, positive, MOST_SUSPECTED),
        recall_without=rows_within(len(truth), MOST_SUSPECTED) / len(truth),
    )
    return replace(
        not_measured,
        score=told_best.ranking.auc,
        low=told_best.ranking.low,
        high=told_best.ranking.high,
        turned=turned,
        plain=plain,
    )


def _undecided(each: Sequence[OneClass], absent: int) -> Undecided:
    """The thresholds about which no verdict is possible, by class with too few rows."""
    ranges = [(0.0, 1.0)] * absent
    for one in each:
        # scores that are the wrong way round tell as much
        highest = max(one.ranking.high, 1 - one.ranking.low)
        ranges.append((one.low_if_perfect, highest))
    return tuple((start, end) for start, end in ranges if start < end)


def one_against_the_rest(
    scores: Tensor, truth: Tensor, classes: int, *, named: bool
) -> Iterator[OneClass]:
    """For each class of which there are rows, and others, how well it is told apart.

    An attack is taken by its scores and by the labels that it says, whichever tells
    more. Under randomized response scores can rank worse than the labels: a row whose
    drawn label surprises the model is suspected most, and is the likeliest to have been
    drawn wrongly.
    """
    present = [
        number
        for number in sorted(_looked_for(truth, classes))
        if 0 < int((truth == number).sum()) < len(truth)
    ]
    said = one_hot(labels_said(scores), scores.shape[1]).double()
    groups = 1 if classes == 2 else scores.shape[1]  # two columns order rows alike
    comparisons = 2 * len(present) * (1 if named else groups)
    for number in present:
        columns = [number] if named or classes == 2 else list(range(groups))
        positive = truth == number
        readings = [
            _reading(by_row[:, column], positive, comparisons, named=named)
            for column in columns
            for by_row in (scores, said)
        ]
        best, turned, ranking = max(readings, key=lambda reading: reading[2].low)
        perfect = low_if_perfect(
            int(positive.sum()),
            int((~positive).sum()),
            comparisons=comparisons if named and not turned else 2 * comparisons,
        )
        yield OneClass(number, best, turned, ranking, perfect)


def _looked_for(truth: Tensor, classes: int) -> set[int]:
    """The classes that are held against the rest: of two the rarer one, since AUC is
    the same for both; of several all."""
    if classes != 2:
        return set(range(classes))
    counts = torch.bincount(truth, minlength=2)
    return {1 if counts[1] <= counts[0] else 0}


def _reading(
    scores: Tensor, positive: Tensor, comparisons: int, *, named: bool
) -> tuple[Tensor, bool, Ranking]:
    """The scores as they are, or turned, with how well they rank the positive rows.

    Scores that stand for a class are turned where that is better than guessing for
    sure. Scores of a group say nothing of direction, so the better one is taken.
    """
    turned = rank(-scores, positive, comparisons=2 * comparisons)
    if named:
        straight = rank(scores, positive, comparisons=comparisons)
        turns = turned.low > GUESSED_AUC
    else:
        straight = rank(scores, positive, comparisons=2 * comparisons)
        turns = turned.auc > straight.auc
    return (-scores, True, turned) if turns else (scores, False, straight)


def _accuracy(said: Tensor, truth: Tensor, classes: int, *, named: bool) -> float:
    """The share of rows whose label was said right; groups get the best names."""
    names = said if named else best_names(said, truth, classes)
    return float((names == truth).double().mean())


def _accuracy_without(
    said: Tensor, truth: Tensor, classes: int, named: bool, seed: int
) -> float:
    """The accuracy of saying the commonest class; where naming groups that were
    shuffled gets more right on average, that."""
    commonest = float(torch.bincount(truth).max()) / len(truth)
    if named:
        return commonest
    generator = Generator().manual_seed(seed)
    by_luck = 0.0
    for _ in range(SHUFFLES):
        shuffled = said[torch.randperm(len(said), generator=generator)]
        by_luck += _accuracy(shuffled, truth, classes, named=False) / SHUFFLES
    return max(commonest, by_luck)


def best_names(groups: Tensor, truth: Tensor, classes: int) -> Tensor:
    """Name each group so that most rows are right; no name is used twice."""
    from scipy.optimize import linear_sum_assignment

    count = max(classes, int(groups.max()) + 1)
    pairs = torch.bincount(groups * count + truth, minlength=count * count)
    _, names = linear_sum_assignment(-pairs.reshape(count, count).numpy())
    return torch.from_numpy(np.asarray(names))[groups]


def _fisher(squared: float, rows: int) -> tuple[float, float]:
    """The 95 % interval of a squared correlation, by Fisher's transformation."""
    z = np.arctanh(min(squared, 1 - 1e-12) ** 0.5)
    half = normal_quantile() / max(rows - 3, 1) ** 0.5
    return float(np.tanh(max(z - half, 0.0)) ** 2), float(np.tanh(z + half) ** 2)


def correlation(a: Tensor, b: Tensor) -> Tensor:
    """Pearson's correlation of each column of `a` with that of `b`; 0 where one of them
    is constant."""
    a = a.double() - a.double().mean(0)
    b = b.double() - b.double().mean(0)
    size = a.norm(dim=0) * b.norm(dim=0)
    return torch.where(size > 1e-12, (a * b).sum(0) / size.clamp_min(1e-12), 0.0)


def r_squared(
    truth: Tensor, guess: Tensor, mean: Tensor, spans: Mapping[str, slice]
) -> dict[str, float]:
    """How much of the error of guessing the mean is gone, for each named column.

    The numbers that a category became count together. A column that is constant on
    these rows has nothing to guess and is left out.
    """
    error = (truth - guess).double().square().sum(0)
    error_of_mean = (truth - mean).double().square().sum(0)
    by_name = {}
    for name, span in spans.items():
        varies = bool((truth[:, span] != truth[:1, span]).any())
        if varies:
            by_name[name] = float(1 - error[span].sum() / error_of_mean[span].sum())
    return by_name


def recogniser(
    columns: Tensor, labels: Tensor, classes: int, *, seed: int = 0
) -> Callable[[Tensor], Tensor]:
    """A classifier that gives columns a score for each class, `[rows, classes]`.

    It never saw the attacked rows or any embedding: it learned raw columns of other
    rows. How well it ranks reconstructions by class says whether they still show it.
    """
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    model = make_pipeline(
        StandardScaler(), LogisticRegression(C=0.1, max_iter=300, random_state=seed)
    )
    model.fit(columns.flatten(1).numpy(), labels.numpy())
    known = torch.from_numpy(model.classes_).long()

    def recognise(others: Tensor) -> Tensor:
        shares = model.predict_log_proba(others.flatten(1).numpy())
        scores = torch.full((len(others), classes), NEVER_SEEN, dtype=torch.float64)
        scores[:, known] = torch.from_numpy(shares).double().clamp_min(NEVER_SEEN)
        return suspicion(scores, classes)

    return recognise


WINDOW = 11
SIGMA = 1.5
K1 = 0.01
K2 = 0.03


def psnr(original: Tensor, other: Tensor, span: float) -> Tensor:
    """10 log10(span^2 / mean squared error) of each picture, in decibels; `span` is
    white minus black."""
    error = (original - other).flatten(1).double().square().mean(1)
    return 10 * torch.log10(span**2 / error.clamp_min(1e-30))


def ssim(original: Tensor, other: Tensor, span: float) -> Tensor:
    """The structural similarity of each picture, [height, width] or [channels, height,
    width], over all places of a window that is cropped to small pictures."""
    x = _with_channels(original)
    y = _with_channels(other)
    channels, height, width = x.shape[1:]
    window = torch.outer(_gaussian(height), _gaussian(width))[None, None]

    def mean(values: Tensor) -> Tensor:
        return conv2d(values.flatten(0, 1)[:, None], window)

    mean_x = mean(x)
    mean_y = mean(y)
    variance_x = mean(x * x) - mean_x * mean_x
    variance_y = mean(y * y) - mean_y * mean_y
    covariance = mean(x * y) - mean_x * mean_y
    c1 = (K1 * span) ** 2
    c2 = (K2 * span) ** 2
    luminance = (2 * mean_x * mean_y + c1) / (mean_x**2 + mean_y**2 + c1)
    structure = (2 * covariance + c2) / (variance_x + variance_y + c2)
    similarity = luminance * structure
    by_picture: Tensor = similarity.flatten(1).mean(1).reshape(-1, channels).mean(1)
    return by_picture


def _with_channels(pictures: Tensor) -> Tensor:
    return (pictures if pictures.dim() == 4 else pictures[:, None]).double()


def _gaussian(length: int) -> Tensor:
    """Eleven weights that add up to 1, or the largest odd number that fits."""
    size = min(WINDOW, length - (length + 1) % 2)
    weights: Tensor = torch.signal.windows.gaussian(
        size, std=SIGMA, dtype=torch.float64
    )
    return weights / weights.sum()
