"""What a column holds follows from its type; what is learned about it agrees with
scikit-learn's own transformers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.impute import SimpleImputer
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import (
    MinMaxScaler,
    OneHotEncoder,
    QuantileTransformer,
    StandardScaler,
)

from colonnade.datasets.fitted import (
    Category,
    Number,
    Piecewise,
    Quantile,
    Scale,
    fit_category,
    fit_numbers,
    fit_piecewise,
    fit_quantile,
    kind_of,
    numbers,
    text,
)
from colonnade.datasets.table import ids_as_text
from colonnade.errors import DataError

VALUES = st.lists(
    st.one_of(st.floats(-1e6, 1e6), st.just(float("nan"))), min_size=2, max_size=30
)


@settings(max_examples=50)
@given(VALUES.filter(lambda values: not np.isnan(values).all()), VALUES)
def test_standard_scaling_has_the_bits_of_scikit_learn(
    train: list[float], later: list[float]
) -> None:
    learned = fit_numbers({"a": np.array(train)}, "standard")["a"]
    theirs = make_pipeline(SimpleImputer(strategy="median"), StandardScaler()).fit(
        np.array(train)[:, None]
    )
    np.testing.assert_array_equal(
        learned.apply(np.array(later))[:, :1],
        theirs.transform(np.array(later)[:, None]),
    )


@settings(max_examples=50)
@given(VALUES.filter(lambda values: not np.isnan(values).all()))
def test_minmax_scaling_agrees_with_scikit_learn_and_fills_zero_to_one(
    train: list[float],
) -> None:
    values = np.array(train)
    learned = fit_numbers({"a": values}, "minmax")["a"].apply(values)[:, :1]
    theirs = make_pipeline(
        SimpleImputer(strategy="median"), MinMaxScaler()
    ).fit_transform(values[:, None])
    np.testing.assert_allclose(learned, theirs, atol=1e-9)
    assert learned.min() == 0.0
    assert learned.max() <= 1.0


@pytest.mark.parametrize("scale", ["standard", "minmax", "none"])
def test_gaps_are_marked_exactly_when_training_had_some(scale: Scale) -> None:
    learned = fit_numbers(
        {"full": np.array([1.0, 2.0]), "holed": np.array([1.0, np.nan])}, scale
    )
    assert learned["full"].outputs == ["full"]
    assert learned["holed"].outputs == ["holed", "holed is missing"]
    assert learned["holed"].apply(np.array([np.nan, 5.0]))[:, 1].tolist() == [1.0, 0.0]


def test_scale_none_changes_no_value() -> None:
    values = np.array([3.25, -7.0, 1e9])
    np.testing.assert_array_equal(
        fit_numbers({"a": values}, "none")["a"].apply(values)[:, 0], values
    )


WORDS = st.lists(st.sampled_from("abcdefgh"), min_size=1, max_size=40)


@settings(max_examples=50)
@given(WORDS, WORDS, st.integers(2, 6))
def test_categories_have_the_columns_of_scikit_learn(
    train: list[str], later: list[str], most: int
) -> None:
    seen, new = (np.array(words, dtype=object) for words in (train, later))
    learned = fit_category("job", seen, most)
    theirs = OneHotEncoder(handle_unknown="ignore", max_categories=most).fit(
        seen[:, None]
    )
    np.testing.assert_array_equal(
        learned.apply(new), theirs.transform(new[:, None]).toarray()
    )
    assert len(learned.outputs) <= most


def test_rare_categories_share_the_last_column_and_new_ones_give_zeros() -> None:
    learned = fit_category("job", np.array(list("aaabbcd"), dtype=object), 3)
    assert learned.outputs == ["job=a", "job=b", "job=(other)"]
    rows = learned.apply(np.array(["c", "d", "unheard of"], dtype=object))
    assert rows.tolist() == [[0, 0, 1], [0, 0, 1], [0, 0, 0]]


def test_states_come_back_equal() -> None:
    number = Number("a", 0.1, True, 1 / 3, 1e-7)
    category = Category("b", ("x", "y"), ("z",), (4, 3))
    assert Number.from_state(number.state()) == number
    assert Category.from_state(category.state()) == category


def test_a_party_with_categories_only_has_no_numbers_to_learn() -> None:
    assert fit_numbers({}, "standard") == {}


def test_a_piecewise_column_fills_its_bins_one_after_the_other() -> None:
    learned = fit_piecewise("a", np.arange(121.0))
    assert learned.edges == pytest.approx(tuple(np.arange(0.0, 121.0, 10.0)))
    seen = learned.apply(np.array([-5.0, 0.0, 25.0, 120.0, 1e9]))
    assert seen.shape == (5, 12)
    assert seen.sum(1).tolist() == pytest.approx([0.0, 0.0, 2.5, 12.0, 12.0]), (
        "two and a half bins are full"
    )
    assert seen[2, :4].tolist() == [1.0, 1.0, 0.5, 0.0]


def test_of_few_values_each_has_its_place_and_two_are_one_output() -> None:
    assert fit_piecewise("a", np.array([0.0, 1.0, 1.0, 0.0])).outputs == ["a 0 to 1"]
    few = fit_piecewise("a", np.array([1.0, 2.0, 5.0, 5.0, 5.0]))
    assert few.apply(np.array([1.0, 2.0, 5.0])).tolist() == [[0, 0], [1, 0], [1, 1]]
    gaps = fit_piecewise("a", np.array([3.0, np.nan, 3.0]))
    assert gaps.outputs == ["a 3 to 4", "a is missing"]
    assert gaps.apply(np.array([np.nan, 3.0])).tolist() == [[0.0, 1.0], [0.0, 0.0]]


@settings(max_examples=50)
@given(
    VALUES.filter(
        lambda values: (
            len(set(values) - {float("nan")}) > 1 and not np.isnan(values).all()
        )
    ),
    VALUES,
)
def test_bins_are_monotone_between_0_and_1_and_saved_as_plain_numbers(
    train: list[float], later: list[float]
) -> None:
    learned = fit_piecewise("a", np.array(train))
    again = Piecewise.from_state(learned.state())
    seen = learned.apply(np.array(later))
    np.testing.assert_array_equal(seen, again.apply(np.array(later)))
    assert ((seen >= 0) & (seen <= 1)).all()
    bins = len(learned.edges) - 1
    assert (np.diff(seen[:, :bins], axis=1) <= 0).all(), (
        "a later bin is never fuller than one before it"
    )


def test_normal_scores_are_those_of_scikit_learn_and_a_tail_weighs_no_more() -> None:
    random = np.random.default_rng(0)
    heavy = np.exp(random.normal(0, 3, 2000))
    learned = fit_quantile("a", heavy)
    theirs = QuantileTransformer(n_quantiles=101, output_distribution="normal").fit(
        heavy[:, None]
    )
    middle = np.quantile(heavy, np.linspace(0.05, 0.95, 50))
    np.testing.assert_allclose(
        learned.apply(middle)[:, 0], theirs.transform(middle[:, None])[:, 0], atol=0.02
    )
    assert np.abs(learned.apply(np.array([-1e12, 1e12]))).max() < 4
    again = Quantile.from_state(learned.state())
    np.testing.assert_array_equal(learned.apply(heavy), again.apply(heavy))


@pytest.mark.parametrize("edges", [[1.0], [2.0, 1.0], [1.0, float("nan")]])
def test_edges_that_were_tampered_with_are_refused(edges: list[float]) -> None:
    with pytest.raises(ValueError, match="edges"):
        Piecewise.from_state(
            {"name": "a", "median": 1.0, "edges": edges, "had_gaps": False}
        )


def test_for_others_words_of_few_rows_have_a_place_and_no_name() -> None:
    words = np.array([*["a"] * 5, *["b"] * 3, "c", "missing"], dtype=object)
    learned = fit_category("x", words, max_categories=50)
    assert learned.counts == (5, 3, 1, 1)
    assert learned.without_few(3)["frequent"] == ["a", "b", None, "missing"]
    assert learned.without_few(3)["other"] is False
    few = fit_category("x", words, max_categories=3)
    assert few.without_few(5) == {
        "kind": "category",
        "name": "x",
        "frequent": ["a", None],
        "other": True,
    }
    assert Category("x", ("a",), ()).without_few(1)["frequent"] == [None], (
        "whose counts are not known"
    )


@pytest.mark.parametrize(
    ("values", "dtype", "kind"),
    [
        ([1, 2], "int64", "number"),
        ([1, None], "Int64", "number"),
        ([1.5, None], "float32", "number"),
        ([True, False], "bool", "category"),
        ([True, None], "boolean", "category"),
        (["a", None], "str", "category"),
        (["a", 1], "object", "category"),
        ([1, 2], "category", "category"),
    ],
)
def test_the_kind_follows_from_the_type(
    values: list[Any], dtype: Any, kind: str
) -> None:
    assert kind_of(pd.Series(values, dtype=dtype), owner="bank") == kind


def test_complex_numbers_are_refused_with_a_cure() -> None:
    with pytest.raises(
        DataError, match=r"'bank' has column 'when' of type .* Turn it into numbers"
    ):
        kind_of(pd.Series(np.array([1j]), name="when"), owner="bank")


def test_times_are_days_since_1970_wherever_they_were_taken() -> None:
    times = pd.Series(
        pd.to_datetime(
            ["1970-01-02", "", "1971-01-01 12:00"], format="ISO8601", errors="coerce"
        ),
        name="when",
    )
    assert kind_of(times, owner="bank") == "number"
    np.testing.assert_array_equal(numbers(times), [1.0, np.nan, 365.5])
    there = pd.Series(pd.to_datetime(["1970-01-02 01:00"])).dt.tz_localize("Etc/GMT-1")
    assert numbers(there).tolist() == [1.0]


@pytest.mark.parametrize(
    ("values", "cure"),
    [
        (
            [7.0, 8.0],
            (
                r"Make them whole numbers: frame\[\'id\'\] ="
                r' frame\[\'id\'\]\.astype\("int64"\)'
            ),
        ),
        ([7.5, 8.0], "These numbers have a fraction, so they are no ids"),
        (
            pd.to_datetime(["2020-01-01", "2020-01-02"]),
            "Write them as text, all parties in one form",
        ),
    ],
)
def test_ids_of_another_type_are_refused_with_a_cure_that_is_right(
    values: Any, cure: str
) -> None:
    with pytest.raises(DataError, match=cure):
        ids_as_text(pd.Series(values, name="id"), "bank")


def test_gaps_become_nan_in_numbers() -> None:
    read = numbers(pd.Series([1, None, 3], dtype="Int64"))
    np.testing.assert_array_equal(read, [1.0, np.nan, 3.0])
    assert read.dtype == np.float64


def test_a_column_of_gaps_reads_as_numbers_whatever_its_type() -> None:
    assert np.isnan(numbers(pd.Series([None, None], dtype="object"))).all()


def test_gaps_become_the_word_missing_and_mixed_types_their_text() -> None:
    read = text(pd.Series(["a", 1, None, 2.5, True, (1, 2)], dtype="object"))
    assert read.tolist() == ["a", "1", "missing", "2.5", "True", "(1, 2)"]
