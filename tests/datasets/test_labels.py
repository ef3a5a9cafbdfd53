from __future__ import annotations

import json
import warnings
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from colonnade.datasets.preprocess import Labels, Task
from colonnade.datasets.table import table_from_frame
from colonnade.errors import CheckpointError, ConfigError, DataError

CLASSES = st.one_of(
    st.lists(st.text(max_size=3), min_size=2, max_size=30),
    st.lists(st.integers(-5, 5), min_size=2, max_size=30),
    st.lists(st.booleans(), min_size=2, max_size=30),
    st.lists(st.sampled_from([0.0, 1.0]), min_size=2, max_size=30),
).filter(lambda values: len(set(values)) > 1)


@settings(max_examples=50)
@given(CLASSES)
@example(["", "\0"])
def test_decode_undoes_encode_and_classes_are_sorted(values: list[Any]) -> None:
    series = pd.Series(values, name="y")
    labels = Labels.fit(series, owner="bank")
    encoded = labels.encode(series)
    assert labels.task == "classification"
    assert list(labels.classes) == sorted(set(values))
    assert encoded.dtype == torch.int64
    assert labels.decode(encoded).tolist() == values


@settings(max_examples=50)
@given(
    st.lists(st.floats(-1e6, 1e6, width=32), min_size=2, max_size=40).filter(
        lambda v: max(v) - min(v) > 1e-3
    )
)
def test_regression_has_mean_zero_and_scale_one_and_decodes(
    values: list[float],
) -> None:
    series = pd.Series(values, name="y")
    labels = Labels.fit(series, owner="bank", task="regression")
    encoded = labels.encode(series)
    assert encoded.dtype == torch.float32
    assert abs(float(encoded.double().mean())) < 1e-3
    assert float(encoded.double().std(correction=0)) == pytest.approx(1.0, abs=1e-3)
    np.testing.assert_allclose(
        labels.decode(encoded),
        values,
        atol=1e-4 * labels.unit.scale + 1e-6 * abs(labels.unit.mean),
    )


@pytest.mark.parametrize(
    ("values", "task", "in_doubt"),
    [
        ([at + 0.5 for at in range(21)], "regression", False),
        ([at + 0.5 for at in range(20)] * 5, "regression", True),
        ([float(at) for at in range(3, 10)] * 5, "regression", True),  # wine quality
        ([float(at) for at in range(9)] * 5, "regression", True),  # counts
        ([0.0, 1.0] * 5, "classification", False),
        (list(range(9)) * 5, "classification", False),
        (list(range(1, 31)), "classification", True),
        (list(range(3, 10)) * 5, "classification", True),
        ([2 * at for at in range(30)] * 5, "regression", True),
        (list(range(101)), "regression", False),
        ([str(at) for at in range(30)], "classification", False),
        (["1,5", "2,5", "3,0"] * 5, "regression", True),
        (["1,5", "2,5", "high"] * 5, "classification", False),
        ([True, False] * 5, "classification", False),
    ],
)
def test_auto_takes_ordered_numbers_as_regression_and_says_so_where_in_doubt(
    values: list[Any], task: str, in_doubt: bool
) -> None:
    label = pd.Series(values, name="quality")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert Labels.fit(label, owner="bank").task == task
        assert Labels.fit(label, owner="bank", task="classification")
    said = [str(warning.message) for warning in caught]
    assert len(said) == in_doubt
    other = "classification" if task == "regression" else "regression"
    for words in said:
        assert f"the label 'quality' has {len(set(values))} different numbers" in words
        assert words.endswith(f'set [data] task = "{other}".')


def test_a_gap_makes_no_number_of_a_class() -> None:
    """pandas makes whole numbers floats where a cell is empty; these rows are left out."""
    frame = pd.DataFrame({"id": range(7), "y": [0, 1, 2, None, 0, 1, 2]})
    table = table_from_frame(frame, owner="bank", id="id", label="y", columns=())
    assert table.label is not None
    assert table.label.dtype.kind == "f"
    label = table.labelled().label
    assert label is not None
    assert Labels.fit(label, owner="bank").classes == (0, 1, 2)


def test_only_the_training_rows_are_learned_from() -> None:
    labels = Labels.fit(
        pd.Series([1.0, 3.0, 1e9]), [0, 1], owner="bank", task="regression"
    )
    assert (labels.unit.mean, labels.unit.scale) == (2.0, 1.0)


def test_class_words_of_mixed_types_and_dates_have_an_order() -> None:
    labels = Labels.fit(
        pd.Series(["b", 2, "a", pd.Timestamp("2020-01-01")], dtype=object), owner="bank"
    )
    assert labels.classes == (2, "2020-01-01 00:00:00", "a", "b")


@pytest.mark.parametrize("task", ["classification", "regression"])
def test_saved_labels_come_back_equal(task: Task) -> None:
    labels = Labels.fit(pd.Series([0.1, 0.7, 0.2]), owner="bank", task=task)
    assert Labels.from_state(json.loads(json.dumps(labels.state()))) == labels


@pytest.mark.parametrize(
    "state", [{}, {"owner": "b", "task": "auto", "classes": [], "mean": 0, "scale": 1}]
)
def test_another_state_is_refused(state: dict[str, Any]) -> None:
    with pytest.raises(CheckpointError, match="This is not the saved state of Labels"):
        Labels.from_state(state)


@pytest.mark.parametrize(
    ("values", "task", "message"),
    [
        (
            ["a", "a"],
            "auto",
            "'bank' has a label 'y' with one value only on its 2 rows",
        ),
        ([2.0, 2.0], "regression", "'bank' has a label 'y' with one value only"),
        (
            ["a", None],
            "auto",
            "'bank' has 1 rows without a label in 'y', and every row needs one",
        ),
        (
            ["a", "b"],
            "regression",
            "and regression needs numbers. Convert it, or set task='classification'",
        ),
        ([1.0, np.inf], "regression", "'bank' has infinite values in its label 'y'"),
    ],
)
def test_labels_that_cannot_be_learned_are_refused(
    values: list[Any], task: Task, message: str
) -> None:
    with pytest.raises(DataError) as caught:
        Labels.fit(pd.Series(values, name="y"), owner="bank", task=task)
    assert message in str(caught.value)


def test_a_class_unseen_in_training_is_refused_without_showing_it() -> None:
    series = pd.Series(["no", "yes", "secret", "secret"], name="y")
    labels = Labels.fit(series, [0, 1], owner="bank")
    with pytest.raises(
        DataError,
        match=(
            r"'bank' has 2 labels of a class that no training row has, the first in"
            r" row 2"
        ),
    ) as caught:
        labels.encode(series)
    assert "secret" not in str(caught.value)


def test_a_missing_label_is_refused_at_encode() -> None:
    labels = Labels.fit(pd.Series(["no", "yes"]), owner="bank")
    with pytest.raises(DataError, match="'bank' has 1 rows without a label"):
        labels.encode(pd.Series(["no", None], name="y"))


@pytest.mark.parametrize(
    "given", [torch.tensor([2]), torch.tensor([-1]), torch.tensor([0.2, 0.8])]
)
def test_scores_are_not_class_numbers(given: torch.Tensor) -> None:
    labels = Labels.fit(pd.Series(["no", "yes"]), owner="bank")
    with pytest.raises(
        DataError,
        match=(
            r"'bank' was given .* must be whole class numbers from 0 to 1\. Take the"
            r" argmax"
        ),
    ):
        labels.decode(given)


def test_an_unknown_task_is_refused() -> None:
    with pytest.raises(
        ConfigError, match="'bank' sets task to 'ranking', and it must be one of"
    ):
        Labels.fit(pd.Series([0, 1]), owner="bank", task="ranking")  # type: ignore[arg-type]


def test_whole_numbers_that_a_gap_made_floats_are_whole_again() -> None:
    """Else a report would speak of the class 1.0, and a prediction say it."""
    label = pd.Series([0.0, 1.0, 1.0, 0.0], name="y")
    fitted = Labels.fit(label, owner="bank", task="classification")
    assert [repr(one) for one in fitted.classes] == ["0", "1"]
    assert fitted.encode(label).tolist() == [0, 1, 1, 0]
    assert Labels.fit(
        pd.Series([0.5, 1.0]), owner="bank", task="classification"
    ).classes == (0.5, 1.0)
