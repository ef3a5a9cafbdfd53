"""How well an attack did, measured by somebody who knows the truth, against what
anybody could have guessed.

Labels: the share of rows that are right, with Wilson's 95 % interval. An attacker that
only found groups of rows is given the best names for them (the Hungarian method); since
that alone gains something on few rows, the baseline names its groups after shuffling
them. A guess of two classes may be the wrong way round, as a few known labels would
show: it is turned where that beats the baseline for sure, with a 97.5 % interval, since
it was read in two ways. Columns: R squared and correlation, by column; 'guess the mean'
has R squared 0. Pictures: PSNR, and SSIM with the standard Gaussian window of Wang et
al. (2004).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Generator, Tensor
from torch.nn.functional import conv2d

from colonnade.evaluate import wilson

SHUFFLES = 20
TURNED = 2.241403
"""The normal quantile for a 97.5 % interval."""


@dataclass(frozen=True)
class LabelScore:
    """The share of labels guessed right (of numbers: the squared correlation), and what
    needs no attack."""

    score: float
    low: float
    high: float
    baseline: float
    chance: float
    majority: float
    rows: int
    turned: bool = False  # whether of two classes each is taken for the other


def score_labels(
    guess: Tensor, truth: Tensor, classes: int, *, named: bool, seed: int = 0
) -> LabelScore:
    """Score a guess against chance, and against always naming the commonest class."""
    if classes == 0:
        squared = float(correlation(guess[:, None], truth[:, None])[0] ** 2)
        return LabelScore(
            squared, *_fisher(squared, len(truth)), 0.0, 0.0, 0.0, len(truth)
        )
    chance = 1 / classes
    majority = float(torch.bincount(truth, minlength=classes).max()) / len(truth)
    named_guess = guess if named else best_names(guess, truth, classes)
    right = int((named_guess == truth).sum())
    baseline = max(chance, majority)
    if not named:
        generator = Generator().manual_seed(seed)
        shuffled = [
            guess[torch.randperm(len(guess), generator=generator)]
            for _ in range(SHUFFLES)
        ]
        by_luck = [
            float((best_names(groups, truth, classes) == truth).double().mean())
            for groups in shuffled
        ]
        baseline = max(baseline, sum(by_luck) / len(by_luck))
    interval = wilson(right, len(truth))
    other = int((1 - named_guess == truth).sum())
    turned = classes == 2 and wilson(other, len(truth), TURNED)[0] > baseline
    if turned:
        right = other
        interval = wilson(other, len(truth), TURNED)
    return LabelScore(
        right / len(truth), *interval, baseline, chance, majority, len(truth), turned
    )


def best_names(groups: Tensor, truth: Tensor, classes: int) -> Tensor:
    """Name each group so that most rows are right; no name is used twice."""
    from scipy.optimize import linear_sum_assignment

    count = max(classes, int(groups.max()) + 1)
    table = torch.bincount(groups * count + truth, minlength=count * count).reshape(
        count, count
    )
    _, names = linear_sum_assignment(-table.numpy())
    return torch.from_numpy(np.asarray(names))[groups]


def _fisher(squared: float, rows: int) -> tuple[float, float]:
    """The 95 % interval of a squared correlation, by Fisher's transformation."""
    z = np.arctanh(min(squared, 1 - 1e-12) ** 0.5)
    half = 1.959964 / max(rows - 3, 1) ** 0.5
    return float(np.tanh(max(z - half, 0.0)) ** 2), float(np.tanh(z + half) ** 2)


def correlation(a: Tensor, b: Tensor) -> Tensor:
    """Pearson's, per column; 0 where one side is constant."""
    a, b = (t.double() - t.double().mean(0) for t in (a, b))
    size = a.norm(dim=0) * b.norm(dim=0)
    return torch.where(size > 1e-12, (a * b).sum(0) / size.clamp_min(1e-12), 0.0)


def r_squared(
    truth: Tensor, guess: Tensor, mean: Tensor, spans: Mapping[str, slice]
) -> dict[str, float]:
    """1 - error / error of guessing the mean, for each named column; the outputs of a
    category count together. A column that is constant on these rows has nothing to
    guess and is left out."""
    error = (truth - guess).double().square().sum(0)
    without = (truth - mean).double().square().sum(0)
    varies = {
        name: span
        for name, span in spans.items()
        if bool((truth[:, span] != truth[:1, span]).any())
    }
    return {
        name: float(1 - error[span].sum() / without[span].sum())
        for name, span in varies.items()
    }


def recogniser(
    columns: Tensor, labels: Tensor, *, seed: int = 0
) -> Callable[[Tensor, Tensor], float]:
    """The accuracy, on columns and their classes, of a classifier that never saw the
    attacked rows or any embedding: it learned raw columns of other rows. Whether it
    names the class of a reconstruction says whether that still shows it.
    """
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    model = make_pipeline(
        StandardScaler(), LogisticRegression(C=0.1, max_iter=300, random_state=seed)
    )
    model.fit(columns.flatten(1).numpy(), labels.numpy())
    return lambda others, classes: float(
        model.score(others.flatten(1).numpy(), classes.numpy())
    )


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
    """The mean over all places of the window, cropped to small pictures, of each
    [height, width] or [channels, ...]."""
    x, y = (
        (pictures if pictures.dim() == 4 else pictures[:, None]).double()
        for pictures in (original, other)
    )
    (_, channels, height, width), c1, c2 = x.shape, (K1 * span) ** 2, (K2 * span) ** 2
    window = torch.outer(_gaussian(height), _gaussian(width))[None, None]

    def mean(values: Tensor) -> Tensor:
        return conv2d(values.flatten(0, 1)[:, None], window)

    mx = mean(x)
    my = mean(y)
    vx = mean(x * x) - mx * mx
    vy = mean(y * y) - my * my
    vxy = mean(x * y) - mx * my
    similarity = (
        (2 * mx * my + c1)
        * (2 * vxy + c2)
        / ((mx * mx + my * my + c1) * (vx + vy + c2))
    )
    by_picture: Tensor = similarity.flatten(1).mean(1).reshape(-1, channels).mean(1)
    return by_picture


def _gaussian(length: int) -> Tensor:
    """Eleven weights that add up to 1, or the largest odd number that fits."""
    size = min(WINDOW, length - (length + 1) % 2)
    weights: Tensor = torch.signal.windows.gaussian(
        size, std=SIGMA, dtype=torch.float64
    )
    return weights / weights.sum()
