"""The learned records agree with scikit-learn's own transformers."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.impute import SimpleImputer
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MinMaxScaler, OneHotEncoder, StandardScaler

from colonnade.datasets.fitted import Category, Number, Scale, fit_categories, fit_numbers

VALUES = st.lists(st.one_of(st.floats(-1e6, 1e6), st.just(float("nan"))), min_size=2, max_size=30)


@settings(max_examples=50)
@given(VALUES.filter(lambda values: not np.isnan(values).all()), VALUES)
def test_standard_scaling_has_the_bits_of_scikit_learn(train: list[float], later: list[float]) -> None:
    learned = fit_numbers({"a": np.array(train)}, "standard")["a"]
    theirs = make_pipeline(SimpleImputer(strategy="median"), StandardScaler()).fit(np.array(train)[:, None])
    np.testing.assert_array_equal(learned.apply(np.array(later))[:, :1], theirs.transform(np.array(later)[:, None]))


@settings(max_examples=50)
@given(VALUES.filter(lambda values: not np.isnan(values).all()))
def test_minmax_scaling_agrees_with_scikit_learn_and_fills_zero_to_one(train: list[float]) -> None:
    values = np.array(train)
    learned = fit_numbers({"a": values}, "minmax")["a"].apply(values)[:, :1]
    theirs = make_pipeline(SimpleImputer(strategy="median"), MinMaxScaler()).fit_transform(values[:, None])
    np.testing.assert_allclose(learned, theirs, atol=1e-9)
    assert learned.min() == 0.0
    assert learned.max() <= 1.0


@pytest.mark.parametrize("scale", ["standard", "minmax", "none"])
def test_gaps_are_marked_exactly_when_training_had_some(scale: Scale) -> None:
    learned = fit_numbers({"full": np.array([1.0, 2.0]), "holed": np.array([1.0, np.nan])}, scale)
    assert learned["full"].outputs == ["full"]
    assert learned["holed"].outputs == ["holed", "holed is missing"]
    assert learned["holed"].apply(np.array([np.nan, 5.0]))[:, 1].tolist() == [1.0, 0.0]


def test_scale_none_changes_no_value() -> None:
    values = np.array([3.25, -7.0, 1e9])
    np.testing.assert_array_equal(fit_numbers({"a": values}, "none")["a"].apply(values)[:, 0], values)


WORDS = st.lists(st.sampled_from("abcdefgh"), min_size=1, max_size=40)


@settings(max_examples=50)
@given(WORDS, WORDS, st.integers(2, 6))
def test_categories_have_the_columns_of_scikit_learn(train: list[str], later: list[str], most: int) -> None:
    seen, new = (np.array(words, dtype=object) for words in (train, later))
    learned = fit_categories({"job": seen}, most)["job"]
    theirs = OneHotEncoder(handle_unknown="ignore", max_categories=most).fit(seen[:, None])
    np.testing.assert_array_equal(learned.apply(new), theirs.transform(new[:, None]).toarray())
    assert len(learned.outputs) <= most


def test_rare_categories_share_the_last_column_and_new_ones_give_zeros() -> None:
    learned = fit_categories({"job": np.array(list("aaabbcd"), dtype=object)}, 3)["job"]
    assert learned.outputs == ["job=a", "job=b", "job=(other)"]
    rows = learned.apply(np.array(["c", "d", "unheard of"], dtype=object))
    assert rows.tolist() == [[0, 0, 1], [0, 0, 1], [0, 0, 0]]


def test_states_come_back_equal() -> None:
    number, category = Number("a", 0.1, 1 / 3, 1e-7, True), Category("b", ("x", "y"), ("z",))
    assert Number.from_state(number.state()) == number
    assert Category.from_state(category.state()) == category


def test_a_party_with_categories_only_has_no_numbers_to_learn() -> None:
    assert fit_numbers({}, "standard") == {}
