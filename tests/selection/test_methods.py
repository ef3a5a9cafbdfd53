"""Tests are different, fair, of one size and enough; importance is a mean over tests
that are alike. A linear model on joined columns sees who matters, and is
scikit-learn's. The best of all subsets, by trying them. The score is what is lost
without one. Everybody has the same chance.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from math import comb
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import Lasso
from torch import Generator

from colonnade.errors import ConfigError
from colonnade.selection import methods as module
from colonnade.selection.methods import (
    Group,
    brute_force,
    draw_tests,
    importance,
    lasso,
    leave_one_out,
    random,
    vf_ps,
)
from colonnade.selection.neighbours import standardised
from colonnade.selection.result import ranked


@settings(max_examples=50)
@given(st.integers(2, 12), st.integers(0, 40), st.integers(1, 3), st.integers(0, 99))
def test_tests_are_different_alike_and_everybody_is_in_one(
    count: int, tests: int, least: int, seed: int
) -> None:
    names = [f"p{number}" for number in range(count)]
    drawn = draw_tests(names, tests, Generator().manual_seed(seed), least=least)
    assert len(drawn) == len(set(drawn)) <= max(2, tests or max(10, 2 * count))
    assert {len(group) for group in drawn} == {min(count, max(least, (count + 1) // 2))}
    assert {name for group in drawn for name in group} == set(names)
    assert all(
        group == tuple(name for name in names if name in group) for group in drawn
    )


def test_with_few_participants_all_halves_are_tested() -> None:
    assert [
        len(draw_tests(list("abcdefgh")[:m], 0, Generator().manual_seed(0)))
        for m in (2, 3, 4, 5, 8)
    ] == [2, 3, 6, 10, 16]


def test_many_participants_are_tested_equally_often() -> None:
    names = [f"p{number}" for number in range(64)]
    drawn = draw_tests(names, 20, Generator().manual_seed(0))
    assert {len(group) for group in drawn} == {32}
    assert set(Counter(name for group in drawn for name in group).values()) == {10}


@pytest.mark.parametrize("count", range(2, 17))
def test_with_exact_information_the_best_comes_first(count: int) -> None:
    """Participants know independent things, so that what a group knows is the sum.
    Groups of several sizes averaged together, as they were drawn once, put the best of
    four first in two of three draws."""
    names = [f"p{number}" for number in range(count)]
    for seed in range(25):
        random = Random(seed)
        groups = draw_tests(names, 0, Generator().manual_seed(seed))
        knows = {name: 0.3 * random.random() for name in names}
        best = random.choice(names)
        for ahead in (
            (1.0, 0.31) if len(groups) == comb(count, (count + 1) // 2) else (1.0,)
        ):
            scores = vf_ps(names, partial(exact, knows=knows | {best: ahead}), groups)
            assert max(names, key=scores.__getitem__) == best


@pytest.mark.parametrize("count", range(2, 7))
def test_all_halves_rank_everybody_as_exact_information_does(count: int) -> None:
    names = [f"p{number}" for number in range(count)]
    for seed in range(10):
        random = Random(seed)
        knows = {name: random.random() for name in names}
        groups = draw_tests(names, 20, Generator().manual_seed(seed))
        scores = vf_ps(names, partial(exact, knows=knows), groups)
        assert sorted(names, key=scores.__getitem__) == sorted(
            names, key=knows.__getitem__
        )


def test_groups_of_different_sizes_are_compared_within_their_size() -> None:
    """Knowing nothing, "c" is in large groups alone, which know more than the small
    ones that "a" is in."""
    knows = {"a": 0.5, "b": 0.4, "c": 0.0, "d": 0.3}
    groups = [
        ("a",),
        ("b",),
        ("d",),
        ("a", "b", "d"),
        ("a", "b", "c"),
        ("b", "c", "d"),
        ("a", "c", "d"),
    ]
    scores = importance(list(knows), exact(groups, knows))
    assert sorted(knows, key=scores.__getitem__) == sorted(knows, key=knows.__getitem__)


def test_of_groups_of_one_size_importance_is_the_mean() -> None:
    found = importance(
        ["a", "b", "c"], {("a", "b"): 2.0, ("a", "c"): 1.0, ("b", "c"): 0.5}
    )
    assert found == pytest.approx({"a": 1.5, "b": 1.25, "c": 0.75})


def exact(groups: Sequence[Group], knows: Mapping[str, float]) -> dict[Group, float]:
    return {group: sum(knows[name] for name in group) for group in groups}


def test_who_was_forgotten_is_noticed_before_anything_is_sent() -> None:
    with pytest.raises(ConfigError, match="'b' is in none of the 1 test groups"):
        vf_ps(["a", "b"], lambda groups: pytest.fail("asked"), [("a",)])


@pytest.mark.parametrize("classes", [2, 3])
def test_scores_are_sums_of_absolute_coefficients(
    classes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    random = np.random.default_rng(0)
    labels = random.integers(0, classes, 100)
    held = {
        "ada": labels[:, None] + random.normal(size=(100, 2)),
        "bob": random.normal(size=(100, 1)),
    }
    monkeypatch.setattr(module, "PENALTIES", (0.01,))
    found = lasso(held, labels, seed=4)
    fitted = np.random.default_rng(4).permutation(100)[20:]
    x = standardised(np.concatenate([held["ada"], held["bob"]], axis=1))
    targets = [labels == 1] if classes == 2 else [labels == one for one in range(3)]
    coefficients = [
        np.abs(Lasso(alpha=0.01).fit(x[fitted], y[fitted].astype(float)).coef_)
        for y in targets
    ]
    total = np.sum(coefficients, axis=0)
    assert found == pytest.approx({"ada": total[:2].sum(), "bob": total[2]}, abs=1e-3)
    assert found["ada"] > found["bob"]


def test_a_label_that_is_a_number_has_one_model(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    random = np.random.default_rng(0)
    held = {"ada": random.normal(size=(100, 2)), "bob": random.normal(size=(100, 1))}
    y = 50 * held["ada"][:, 1] + random.normal(size=100)
    monkeypatch.setattr(module, "PENALTIES", (0.01,))
    fitted = np.random.default_rng(4).permutation(100)[20:]
    x = standardised(np.concatenate([held["ada"], held["bob"]], axis=1))
    expected = np.abs(
        Lasso(alpha=0.01).fit(x[fitted], standardised(y[:, None])[fitted, 0]).coef_
    )
    assert lasso(held, y, seed=4) == pytest.approx(
        {"ada": expected[:2].sum(), "bob": expected[2]}, abs=1e-3
    )


def test_nobody_is_warned_of_a_model_that_did_not_converge(
    recwarn: pytest.WarningsRecorder,
) -> None:
    random = np.random.default_rng(0)
    x = random.normal(size=(40, 30))
    y = (x.sum(1) > 0).astype(np.int64)
    with pytest.warns(ConvergenceWarning):
        Lasso(alpha=1e-4, max_iter=2).fit(x, y)
    copies = x[:, :1] + 1e-7 * random.normal(size=(40, 200))
    lasso({"ada": np.concatenate([x, copies], axis=1), "bob": x[:, :2]}, y)
    assert not recwarn.list


def test_it_is_the_best_subset() -> None:
    subsets: list[tuple[str, ...]] = list(itertools.combinations("abcd", 2))
    worth = {group: (7 * number) % 10 / 10 for number, group in enumerate(subsets)}
    scores, best = brute_force(
        "abcd", 2, lambda groups: {group: worth[group] for group in groups}
    )
    assert worth[best] == max(worth.values())
    assert scores == {
        name: max(value for group, value in worth.items() if name in group)
        for name in "abcd"
    }


def test_too_many_subsets_are_refused() -> None:
    with pytest.raises(
        ConfigError, match="would try 1832624140942590534 subsets of 32 out of 64"
    ):
        brute_force(
            [str(number) for number in range(64)],
            32,
            lambda groups: pytest.fail("asked"),
        )


def test_what_is_lost_without_one() -> None:
    known = {("a", "b", "c"): 1.0, ("b", "c"): 0.25, ("a", "c"): 1.0, ("a", "b"): 1.125}
    asked = []

    def information(groups):  # type: ignore[no-untyped-def]
        asked.append(list(groups))
        return {group: known[group] for group in groups}

    assert leave_one_out(["a", "b", "c"], information) == {
        "a": 0.75,
        "b": 0.0,
        "c": -0.125,
    }
    assert [sorted(groups) for groups in asked] == [sorted(known)], "in one batch"


def test_everybody_is_first_equally_often() -> None:
    generator = Generator().manual_seed(0)
    first = Counter(ranked(random("abcd", generator))[0] for _ in range(2000))
    deviation = (2000 * 0.25 * 0.75) ** 0.5
    assert all(abs(first[name] - 500) < 5 * deviation for name in "abcd")
