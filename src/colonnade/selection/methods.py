"""VF-PS by group testing (Jiang et al., Section 3.3): a participant is worth what the
groups it is in know on average.

    A, [T, m], who is in which test;  U(S) = I(X_S; Y);  importance of i = mean of U over the tests with i

The paper draws tests at random. But larger groups know more, whoever is in them, so a
mean over groups of different sizes ranks participants by the sizes of their groups:
with four or five participants the best then came first in two of three draws. Here all
tests are halves of one size, (m + 1) // 2: all such groups where there are no more than
T, and otherwise T different ones, drawn from the participants tested least so far.
Where smaller groups would show somebody's own distances, all have `least` participants.
A caller's own groups may differ in size; each is then compared only with those of its
size.

With all halves the ranking is right wherever information adds up. With T of them a
participant's mean also depends on whom it was drawn with: somebody far ahead of all
others is first with 2m tests, not always with the paper's 10 (of 16, in 68 % of draws),
and participants nearly alike may change places. So T is 10 or 2m, whichever is more,
unless given.

What VF-PS is compared with.

    lasso           the paper's: a linear model on all columns, joined in one place, that sets many coefficients to zero
    random          the paper's: participants by chance
    leave_one_out   not in the paper: what is lost without a participant, by the same estimates
    brute_force     all subsets of the wanted size: no other selection can be better

LASSO is centralized: whoever fits it sees every column. A participant's score is the
sum of the absolute coefficients of its columns, over all classes. The penalty is the
one of the paper's grid with the least error on a fifth of the rows. By the joint mutual
information brute force solves the paper's Equation 1. The paper compares with the
subset whose model is best in the end; for that, a function that trains and scores one
replaces the mutual information.
"""

from __future__ import annotations

import itertools
import math
import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
from torch import Generator

from colonnade.errors import ConfigError
from colonnade.selection.neighbours import Numbers, Whole, standardised

Group = tuple[str, ...]
Information = Callable[[Sequence[Group]], dict[Group, float]]


def draw_tests(
    participants: Sequence[str], tests: int, generator: Generator, *, least: int = 1
) -> list[Group]:
    """Draw so many groups of one size, with everybody in one; 0: as many as the
    participants ask for."""
    count = len(participants)
    size = min(count, max(least, (count + 1) // 2))
    tests = max(tests or max(10, 2 * count), math.ceil(count / size))
    if math.comb(count, size) <= tests:
        return list(itertools.combinations(participants, size))
    groups = dict[Group, None]()
    tested = Counter[int]()
    fair = True
    while len(groups) < tests:
        order = torch.randperm(count, generator=generator).tolist()
        if fair:
            order.sort(key=lambda number: tested[number])
        chosen = sorted(order[:size])
        group = tuple(participants[number] for number in chosen)
        # those tested least may be a group that was drawn already: then any is taken
        fair = group not in groups
        if fair:
            groups[group] = None
            tested.update(chosen)
    return list(groups)


def importance(
    participants: Sequence[str], information: Mapping[Group, float]
) -> dict[str, float]:
    """The mean over the tests that each participant is in. Where tests differ in size,
    it is the mean of all tests plus the mean of how far each is above or below the mean
    of its size."""
    sizes: dict[int, list[float]] = {}
    for group, value in information.items():
        sizes.setdefault(len(group), []).append(value)
    usual = {size: sum(values) / len(values) for size, values in sizes.items()}
    overall = sum(information.values()) / max(1, len(information))
    scores = {}
    for name in participants:
        differences = [
            value - usual[len(group)]
            for group, value in information.items()
            if name in group
        ]
        if not differences:
            raise ConfigError(
                f"'{name}' is in none of the {len(information)} test groups. Put"
                " everybody into one."
            )
        scores[name] = overall + sum(differences) / len(differences)
    return scores


def vf_ps(
    participants: Sequence[str], information: Information, groups: Sequence[Group]
) -> dict[str, float]:
    """Scores of all participants, from one batch of tests."""
    # raises before anything is sent where one is in no group
    importance(participants, dict.fromkeys(groups, 0.0))
    return importance(participants, information(groups))


PENALTIES = (1e-4, 1e-3, 1e-2)
MOST = 5000
"""The most subsets that brute force tries."""


def lasso(
    features: Mapping[str, Numbers], labels: Whole | Numbers, *, seed: int = 0
) -> dict[str, float]:
    """One linear model per class (a single one for two classes, or for a label that is
    a number), on standardised columns. A model that is not quite at its optimum after
    2000 rounds ranks as well, so nobody is warned of it."""
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import Lasso
    from sklearn.metrics import mean_squared_error

    joined = standardised(np.concatenate(list(features.values()), axis=1))
    if np.issubdtype(labels.dtype, np.floating):
        targets = standardised(labels[:, None].astype(np.float64))
    else:
        classes = np.unique(labels)
        targets = (
            labels[:, None] == (classes[1:] if len(classes) == 2 else classes)
        ).astype(np.float64)
    order = np.random.default_rng(seed).permutation(len(joined))
    held_out = order[: len(order) // 5]
    fitted = order[len(order) // 5 :]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        models = [
            Lasso(alpha=alpha, max_iter=2000).fit(joined[fitted], targets[fitted])
            for alpha in PENALTIES
        ]
    errors = [
        mean_squared_error(targets[held_out], model.predict(joined[held_out]))
        for model in models
    ]
    weights = np.abs(np.atleast_2d(models[int(np.argmin(errors))].coef_)).sum(0)
    ends = np.cumsum([columns.shape[1] for columns in features.values()])
    return {
        name: float(part.sum())
        for name, part in zip(features, np.split(weights, ends[:-1]), strict=True)
    }


def random(participants: Sequence[str], generator: Generator) -> dict[str, float]:
    """Score every participant by a random number."""
    return dict(
        zip(
            participants,
            torch.rand(len(participants), generator=generator).tolist(),
            strict=True,
        )
    )


def leave_one_out(
    participants: Sequence[str], information: Information
) -> dict[str, float]:
    """I(X_P; Y) - I(X_{P without i}; Y), by m + 1 groups; 0 for two with the same
    columns: neither is missed."""
    everybody: Group = tuple(participants)
    without = {
        name: tuple(other for other in everybody if other != name) for name in everybody
    }
    values = information([everybody, *without.values()])
    return {
        name: values[everybody] - values[others] for name, others in without.items()
    }


def brute_force(
    participants: Sequence[str], keep: int, information: Information
) -> tuple[dict[str, float], Group]:
    """The best subset, and for each participant the value of the best subset that it is
    in."""
    count = math.comb(len(participants), keep)
    if count > MOST:
        raise ConfigError(
            f"brute_force would try {count} subsets of {keep} out of"
            f" {len(participants)} participants, and tries at "
            f'most {MOST}. Use method = "vf_ps".'
        )
    values = information(list(itertools.combinations(participants, keep)))
    best = max(values, key=lambda group: values[group])
    return {
        name: max(value for group, value in values.items() if name in group)
        for name in participants
    }, best
