from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.compose import ColumnTransformer
from sklearn.impute import MissingIndicator, SimpleImputer
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from colonnade.datasets.fitted import Scale
from colonnade.datasets.preprocess import Preprocessor
from colonnade.datasets.split import train_validation_test
from colonnade.datasets.table import Table, align, read_table, table_from_frame
from colonnade.errors import CheckpointError, ConfigError, DataError

TRAIN = list(range(60))


def frame(rows: int = 80) -> pd.DataFrame:
    random = np.random.default_rng(3)
    age = random.normal(40, 12, rows)
    age[::7] = np.nan
    job = random.choice(["clerk", "nurse", "cook", "judge"], rows).astype(object)
    job[::9] = None
    return pd.DataFrame(
        {
            "job": job,
            "age": age,
            "income": random.integers(0, 9000, rows),
            "owner": random.random(rows) < 0.5,
            "code": pd.Series(random.integers(1, 4, rows)).astype("category"),
            "mixed": pd.Series(
                [["a", 1, None][at % 3] for at in range(rows)], dtype=object
            ),
        }
    )


def table(features: pd.DataFrame) -> Table:
    return table_from_frame(
        features.assign(id=range(len(features))), owner="bank", id="id"
    )


def test_the_matrix_is_that_of_a_scikit_learn_pipeline() -> None:
    data = frame()
    fitted = Preprocessor.fit(table(data), TRAIN)
    words = pd.DataFrame(
        {
            name: pd.Series(
                [
                    np.nan if pd.isna(cell) else str(cell)
                    for cell in data[name].astype(object)
                ],
                dtype=object,
            )
            for name in ("job", "owner", "code", "mixed")
        }
    )
    theirs = ColumnTransformer(
        [
            (
                "numbers",
                make_pipeline(SimpleImputer(strategy="median"), StandardScaler()),
                ["age", "income"],
            ),
            ("gaps", MissingIndicator(), ["age", "income"]),
            (
                "words",
                make_pipeline(
                    SimpleImputer(strategy="constant", fill_value="missing"),
                    OneHotEncoder(
                        handle_unknown="ignore", max_categories=50, sparse_output=False
                    ),
                ),
                list(words.columns),
            ),
        ],
        sparse_threshold=0,
    )
    both = pd.concat([data[["age", "income"]], words], axis=1)
    expected = theirs.fit(both.iloc[TRAIN]).transform(both).astype(np.float32)
    ours = fitted.transform(table(data))
    assert ours.dtype == torch.float32
    order = ["age", "income", "age is missing"]
    order += [f"job={word}" for word in ("clerk", "cook", "judge", "missing", "nurse")]
    order += [
        "owner=False",
        "owner=True",
        "code=1",
        "code=2",
        "code=3",
        "mixed=1",
        "mixed=a",
        "mixed=missing",
    ]
    assert sorted(order) == sorted(fitted.names)
    found = ours[:, [fitted.names.index(name) for name in order]].numpy()
    np.testing.assert_array_equal(found, expected)


def test_only_the_training_rows_are_learned_from() -> None:
    data = frame()
    other = data.copy()
    other.loc[60:, "age"] = 1e6
    other.loc[60:, "job"] = "astronaut"
    assert Preprocessor.fit(table(data), TRAIN) == Preprocessor.fit(table(other), TRAIN)


def test_the_outputs_of_a_column_lie_together_in_table_order() -> None:
    fitted = Preprocessor.fit(table(frame()))
    assert list(fitted.spans) == ["job", "age", "income", "owner", "code", "mixed"]
    assert fitted.names[fitted.spans["age"]] == ["age", "age is missing"]
    assert (
        fitted.spans["mixed"].stop
        == len(fitted.names)
        == fitted.transform(table(frame())).shape[1]
    )


@pytest.mark.parametrize("scale", ["standard", "minmax", "none"])
def test_a_saved_preprocessor_gives_equal_bits(scale: Scale) -> None:
    fitted = Preprocessor.fit(table(frame()), TRAIN, scale=scale, max_categories=3)
    loaded = Preprocessor.from_state(json.loads(json.dumps(fitted.state())))
    assert loaded == fitted
    assert torch.equal(
        loaded.transform(table(frame())), fitted.transform(table(frame()))
    )


def test_the_columns_may_come_in_another_order_later() -> None:
    fitted = Preprocessor.fit(table(frame()))
    turned = table(frame()[["mixed", "code", "owner", "income", "age", "job"]])
    assert torch.equal(fitted.transform(turned), fitted.transform(table(frame())))


def test_a_later_column_of_gaps_only_is_filled_whatever_its_type() -> None:
    fitted = Preprocessor.fit(table(frame()))
    holed = fitted.transform(table(frame().assign(job=np.nan, age=None)))
    assert holed[:, fitted.names.index("job=missing")].eq(1).all()
    assert holed[:, fitted.names.index("age is missing")].eq(1).all()


def test_columns_that_say_nothing_are_left_out_with_a_sentence() -> None:
    data = frame().assign(empty=np.nan, same=1, void=None, word="x")
    with pytest.warns(UserWarning, match="leaves out") as said:
        fitted = Preprocessor.fit(table(data), TRAIN)
    assert [str(one.message) for one in said] == [
        "'bank' leaves out columns that say nothing on its 60 training rows: no value"
        " at all: 'empty', 'void'; one value only: 'same', 'word'."
    ]
    plain = Preprocessor.fit(table(frame()), TRAIN)
    again = Preprocessor.from_state(json.loads(json.dumps(fitted.state())))
    assert torch.equal(again.transform(table(data)), plain.transform(table(frame())))
    assert torch.equal(
        again.transform(table(frame())), plain.transform(table(frame()))
    ), "new rows need not have them"
    with pytest.raises(
        DataError,
        match=r"'bank' has no column that says anything .*: no value at all: 'a'",
    ):
        Preprocessor.fit(table(pd.DataFrame({"a": [None, None]})))
    with pytest.raises(
        DataError,
        match=r"'bank' has infinite values in 'odd', on its 60 training rows\. Replace",
    ):
        Preprocessor.fit(table(frame().assign(odd=np.inf)), TRAIN)


def test_text_that_means_numbers_or_times_is_read_as_such_and_new_rows_alike() -> None:
    random = np.random.default_rng(0)
    values = random.integers(1000, 9000, 40)
    days = random.integers(0, 900, 40)
    when = pd.Timestamp("2020-01-01") + pd.to_timedelta(days, unit="D")
    written = pd.DataFrame(
        {
            "sum": [f"€ {one:,}" for one in values],
            "age": values.astype(str),
            "day": when.strftime("%d.%m.%Y"),
        }
    )
    written.loc[3, "age"], written.loc[5, "sum"] = "?", "n/a"
    bare = pd.DataFrame(
        {"sum": values.astype(float), "age": values.astype(float), "day": when}
    )
    bare.loc[3, "age"], bare.loc[5, "sum"] = np.nan, np.nan
    fitted = Preprocessor.fit(table(written))
    plain = Preprocessor.fit(table(bare))
    assert torch.equal(fitted.transform(table(written)), plain.transform(table(bare)))
    again = Preprocessor.from_state(json.loads(json.dumps(fitted.state())))
    assert torch.equal(
        again.transform(table(written[:7])), plain.transform(table(bare[:7]))
    )
    assert torch.equal(again.transform(table(bare)), plain.transform(table(bare))), (
        "numbers are numbers"
    )
    assert torch.equal(plain.transform(table(written)), plain.transform(table(bare))), (
        "new rows may be text"
    )


def test_odd_words_among_numbers_are_gaps_and_their_owner_is_told() -> None:
    ages = ["1", "2", "3", "4", "5", "6", "7", "8", "old"]
    with pytest.warns(UserWarning, match="""'bank' .* as gaps: 'age' has "old" 1\\."""):
        fitted = Preprocessor.fit(table(pd.DataFrame({"age": ages})))
    assert fitted.names == ["age", "age is missing"]
    again = Preprocessor.from_state(json.loads(json.dumps(fitted.state())))
    assert again == fitted
    with pytest.warns(UserWarning, match="""'age' has "new" 2\\. If"""):
        again.check(table(pd.DataFrame({"age": ["old", "new", "new"]})), np.arange(3))


def test_new_rows_alone_need_not_look_like_numbers() -> None:
    """One row with an odd word is a gap as it was in training, also by itself."""
    fitted = Preprocessor.fit(table(pd.DataFrame({"age": ["3,5", "7", "4"] * 5})))
    one = fitted.transform(table(pd.DataFrame({"age": [">20"]})))
    assert torch.equal(one, fitted.transform(table(pd.DataFrame({"age": [None]}))))
    plain = Preprocessor.fit(table(pd.DataFrame({"age": [3.5, 7.0, None]})))
    gap = plain.transform(table(pd.DataFrame({"age": ["k.A."]})))
    assert torch.equal(gap, plain.transform(table(pd.DataFrame({"age": [None]}))))


def test_a_column_that_its_owner_made_a_category_stays_one() -> None:
    meant = pd.DataFrame({"code": pd.Categorical(["1", "2", "1"])})
    assert Preprocessor.fit(table(meant)).names == [
        "code=1",
        "code=2",
    ], "its owner made it a category"
    assert Preprocessor.fit(
        table(pd.DataFrame({"zip": ["007", "012", "007"]}))
    ).names == ["zip=007", "zip=012"]


def test_a_column_is_judged_on_the_training_rows_alone() -> None:
    data = frame().assign(late=[0.0] * 60 + [1.0] * 20)
    with pytest.warns(UserWarning, match=r"60 training rows: one value only: 'late'\."):
        assert "late" not in Preprocessor.fit(table(data), TRAIN).names
    assert "late" in Preprocessor.fit(table(data)).names


def test_one_value_and_gaps_are_two_things_to_tell_apart() -> None:
    fitted = Preprocessor.fit(table(pd.DataFrame({"a": [5.0, None, 5.0]})))
    assert fitted.transform(table(pd.DataFrame({"a": [5.0, None]}))).tolist() == [
        [0.0, 0.0],
        [0.0, 1.0],
    ]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"age": "old"},
            "'bank' was fitted with 'age' as a number, and this table holds it as",
        ),
        (
            {"job": 3},
            (
                "'bank' was fitted with 'job' as a category, and this table holds it as"
                " int64"
            ),
        ),
        ({"age": np.inf}, "'bank' has values too large for float32 in 'age'"),
        ({"new": 1}, "'bank' was fitted on 6 columns, and this table also has 'new'."),
    ],
)
def test_a_later_table_of_another_shape_is_refused(
    change: dict[str, Any], message: str
) -> None:
    fitted = Preprocessor.fit(table(frame()))
    with pytest.raises(DataError) as caught:
        fitted.transform(table(frame().assign(**change)))
    assert message in str(caught.value)


def test_a_later_table_without_a_column_is_refused_with_the_likely_name() -> None:
    fitted = Preprocessor.fit(table(frame()))
    with pytest.raises(
        DataError,
        match=r"lacks 'income' and also has 'incomes' \(did you mean 'incomes'\?\)\.",
    ):
        fitted.transform(table(frame().rename(columns={"income": "incomes"})))


def test_values_that_float32_cannot_hold_are_refused() -> None:
    huge = table(pd.DataFrame({"a": [1e300, 2e300]}))
    with pytest.raises(
        DataError, match="'bank' has values too large for float32 in 'a'"
    ):
        Preprocessor.fit(huge, scale="none").transform(huge)
    some = table(pd.DataFrame({"a": [1.0, 2e300, 2.0, np.nan]}))
    fitted = Preprocessor.fit(some, [0, 2, 3], scale="none")
    assert fitted.check(some, np.array([0, 2, 3])) == {}
    with pytest.raises(DataError, match="too large for float32"):
        fitted.check(some, np.arange(4))


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"scale": "robust"}, "sets scale to 'robust'"),
        ({"max_categories": 1}, "sets max_categories to 1"),
    ],
)
def test_a_wrong_setting_is_named(setting: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=f"'bank' {message}, and it must be"):
        Preprocessor.fit(table(frame()), **setting)


def test_a_table_without_features_has_nothing_to_preprocess() -> None:
    labels = table_from_frame(
        pd.DataFrame({"id": [1], "y": [0]}), owner="bank", id="id", label="y"
    )
    with pytest.raises(DataError, match="'bank' has no feature columns to preprocess"):
        Preprocessor.fit(labels)


@pytest.mark.parametrize(
    "state",
    [
        {},
        {"owner": "bank", "scale": "odd", "columns": []},
        {"owner": "bank", "scale": "none", "columns": [{"kind": "x"}]},
    ],
)
def test_another_state_is_refused(state: dict[str, Any]) -> None:
    with pytest.raises(
        CheckpointError, match="This is not the saved state of a Preprocessor"
    ):
        Preprocessor.from_state(state)


def test_two_real_tables_of_one_population_become_matrices_in_one_order(
    real_data: Path,
) -> None:
    files = {
        party: real_data / "fate_vertical" / f"breast_hetero_{party}.csv.gz"
        for party in ("guest", "host")
    }
    tables = {
        "guest": read_table(files["guest"], owner="guest", id="id", label="y"),
        "host": read_table(files["host"], owner="host", id="id"),
    }
    order = align(tables)
    split = train_validation_test(len(order), validation=0.1, test=0.2, seed=5)
    width = {}
    for party, held in tables.items():
        ordered = held.in_order(order)
        x = Preprocessor.fit(ordered, split.train).transform(ordered)
        assert x[split.train].mean(dim=0).abs().max() < 1e-5
        width[party] = x.shape[1]
    assert len(order) == 569
    assert width == {"guest": 10, "host": 20}


def test_text_that_differs_in_nearly_every_training_row_is_warned_of_and_no_cell_is_shown() -> (
    None
):
    given = frame().assign(
        name=[f"secret{number}" for number in range(80)],
        note=[f"n{n // 5}" for n in range(80)],
    )
    given.loc[:7, "name"] = None  # gaps are no values
    with pytest.warns(
        UserWarning, match=r"'bank' has text .* in 'name'\. .* columns = \[\.\.\.\]"
    ) as caught:
        Preprocessor.fit(table(given), TRAIN)
    assert len(caught) == 1
    assert "secret" not in str(caught[0].message)


@pytest.mark.parametrize(
    "values", [["a", "b"] * 40, [f"c{n // 2}" for n in range(80)]], ids=["few", "twice"]
)
def test_text_that_comes_back_is_no_matter(values: list[str]) -> None:
    given = table(frame().assign(word=values))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Preprocessor.fit(given)
        # 20 rows are too few to tell
        Preprocessor.fit(given, list(range(0, 30, 3)) + list(range(40, 50)))


@pytest.mark.parametrize(
    "numbers_as", ["quantile", "piecewise", {"": "piecewise", "income": "standard"}]
)
def test_whatever_numbers_become_is_saved_as_plain_values_with_equal_bits(
    numbers_as: Any,
) -> None:
    data = table(frame())
    fitted = Preprocessor.fit(data, TRAIN, numbers_as=numbers_as)
    again = Preprocessor.from_state(json.loads(json.dumps(fitted.state())))
    assert torch.equal(fitted.transform(data), again.transform(data))
    assert again.transform(data).shape[1] == len(fitted.names) == len(set(fitted.names))
    assert "age is missing" in fitted.names


def test_a_way_that_there_is_not_is_refused() -> None:
    with pytest.raises(
        ConfigError, match="'bank' has numbers prepared as 'bins'; it must be one of"
    ):
        Preprocessor.fit(table(frame()), TRAIN, numbers_as={"": "bins"})  # type: ignore[dict-item]
    with pytest.raises(
        ConfigError,
        match="'bank' says how the numbers of 'job' are prepared, and holds categories",
    ):
        Preprocessor.fit(table(frame()), TRAIN, numbers_as={"job": "quantile"})
