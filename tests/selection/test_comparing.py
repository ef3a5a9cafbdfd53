"""Whether one participant tells more than another, by paired differences."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from colonnade.selection.comparing import (
    Comparison,
    compare,
    compare_all,
    jointly_compared,
)
from colonnade.selection.methods import Group

QUERIES = 400


def noise(scale: float, seed: int) -> NDArray[np.float64]:
    return scale * np.random.default_rng(seed).normal(size=QUERIES)


def test_noise_that_both_share_is_no_error_of_their_difference() -> None:
    """Scores that each waver by 0.05 are told apart where they waver alike."""
    shared = noise(1.0, 0)
    terms: dict[Group, NDArray[np.float64]] = {
        ("a", "c"): shared + 0.06 + noise(0.1, 1),
        ("b", "c"): shared + noise(0.1, 2),
        ("a", "d"): shared + 0.06 + noise(0.1, 3),
        ("b", "d"): shared + noise(0.1, 4),
    }
    found = compare("a", "b", terms)
    assert found is not None
    assert found.difference == pytest.approx(0.06, abs=0.02)
    assert found.error < 0.03
    assert not found.is_tie()


def test_companies_that_disagree_make_a_tie() -> None:
    """The difference is exact by queries, and depends on the company."""
    zero = np.zeros(QUERIES)
    terms: dict[Group, NDArray[np.float64]] = {
        ("a", "c"): zero + 0.06,
        ("b", "c"): zero,
        ("a", "d"): zero,
        ("b", "d"): zero,
    }
    found = compare("a", "b", terms)
    assert found is not None
    assert found.difference == pytest.approx(0.03)
    # the deviation of 0.06 and 0 over the root of 2, twice
    assert found.error == pytest.approx(2 * 0.03)
    assert found.is_tie()


def test_one_company_has_the_error_of_its_queries_alone() -> None:
    values = noise(1.0, 5)
    found = compare("a", "b", {("a", "c"): values, ("b", "c"): np.zeros(QUERIES)})
    assert found is not None
    assert found.error == pytest.approx(2 * values.std(ddof=1) / np.sqrt(QUERIES))


def test_without_pairs_of_groups_two_means_are_compared() -> None:
    zero = np.zeros(QUERIES)
    terms: dict[Group, NDArray[np.float64]] = {
        ("a", "c"): zero + 0.5,
        ("a", "d"): zero + 0.7,
        ("b", "e"): zero + 0.1,
        ("b", "f"): zero + 0.3,
    }
    found = compare("a", "b", terms)
    assert found is not None
    assert found.difference == pytest.approx(0.4)
    assert found.error == pytest.approx(2 * np.sqrt(0.1**2 + 0.1**2))


def test_who_is_never_apart_is_not_compared() -> None:
    zero = np.zeros(QUERIES)
    assert compare("a", "b", {("a", "b"): zero, ("c", "d"): zero}) is None
    assert compare_all(["a", "b"], {("a", "b"): zero}) == []


def test_what_is_asked_for_raises_the_bar_and_never_lowers_it() -> None:
    found = Comparison("a", "b", difference=0.05, error=0.03)
    assert not found.is_tie()
    assert not found.is_tie(0.04)
    assert found.is_tie(0.06)
    assert Comparison("a", "b", difference=0.02, error=0.03).is_tie(0.001)


def test_several_label_owners_are_weighted_by_their_rows() -> None:
    first = {("a", "b"): Comparison("a", "b", 0.1, 0.03)}
    second = {
        ("a", "b"): Comparison("a", "b", 0.3, 0.04),
        ("a", "c"): Comparison("a", "c", 1.0, 0.1),
    }
    (joint,) = jointly_compared([(0.25, first), (0.75, second)])
    assert joint.difference == pytest.approx(0.25 * 0.1 + 0.75 * 0.3)
    assert joint.error == pytest.approx(np.hypot(0.25 * 0.03, 0.75 * 0.04))
