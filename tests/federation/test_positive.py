"""The positive class is the one that somebody looks for, and not the second in the
alphabet: every score, table and prediction follows it, and training does not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn import metrics
from tests.federation.small import models_of, quick

from colonnade.datasets.preprocess import Labels
from colonnade.errors import ConfigError
from colonnade.evaluate.metrics import majority
from colonnade.federation import Federation, load
from colonnade.federation.scores import measured
from colonnade.report.facts import read
from colonnade.report.page import render
from colonnade.serving.source import rows_of

PAIRS = [("ja", "nein"), ("default", "paid"), ("bad", "good"), ("fraud", "ok")]
"""The rarer class comes first in the alphabet."""


def frames(rare: str = "ja", common: str = "nein", rows: int = 300) -> dict[str, Any]:
    """About 12 % of the rows are of the rarer class."""
    random = np.random.default_rng(0)
    ids = [f"P{number:03d}" for number in range(rows)]
    x = random.normal(size=(rows, 2))
    is_rare = x.sum(1) + random.normal(size=rows) > 2.0
    label = np.where(is_rare, rare, common)
    return {
        "bank": pd.DataFrame({"id": ids, "income": x[:, 0], "outcome": label}),
        "shop": pd.DataFrame({"id": ids, "spent": x[:, 1]}),
    }


def federation(
    given: dict[str, Any] | None = None, positive: Any = None, **settings: Any
) -> Federation:
    return Federation.from_frames(
        frames() if given is None else given,
        id="id",
        label="outcome",
        positive=positive,
        settings=quick(**settings),
    )


def test_a_model_that_finds_no_rare_row_has_no_recall() -> None:
    one = federation()
    certain_of_nein = torch.full((300, 1), 9.0)
    found = measured(one.holdings, certain_of_nein, one.holdings.labelled.labels)
    assert (found["recall"], found["precision"], found["f1"]) == (0, 0, 0)
    assert found["accuracy"] > 0.8
    share, always_one = majority(
        one.holdings.labelled.labels, found, one.holdings.encoder.positive
    )
    assert (share, always_one) == (found["accuracy"], True)


@pytest.mark.parametrize(("rare", "common"), PAIRS)
def test_scores_are_scikit_learns_with_the_rarer_class(rare: str, common: str) -> None:
    one = federation(frames(rare, common))
    list(one.train())
    assert one.holdings.encoder.positive_class == rare
    found = one.score("test").all
    predicted = one.predict(one.holdings.ids[one.holdings.splits["test"].numpy()])
    true = frames(rare, common)["bank"].set_index("id").loc[predicted.ids, "outcome"]
    for name, of in (
        ("precision", metrics.precision_score),
        ("recall", metrics.recall_score),
        ("f1", metrics.f1_score),
    ):
        expected = of(true, predicted.labels, pos_label=rare, zero_division=0)
        assert found[name] == pytest.approx(expected), name
    assert found["auc"] == pytest.approx(
        metrics.roc_auc_score(true == rare, predicted.score)
    )


def test_who_is_positive_changes_no_bit_of_training() -> None:
    runs = [federation(positive=name) for name in (None, "ja", "nein")]
    for one in runs:
        list(one.train())
    first, *others = map(models_of, runs)
    for other in others:
        assert all(torch.equal(first[place], other[place]) for place in first)
    classes = {one.holdings.encoder.classes for one in runs}
    assert classes == {("ja", "nein")}
    by = [one.holdings.encoder.positive_by for one in runs]
    assert by == ["rarer", "setting", "setting"]


def test_every_table_follows_the_positive_class(tmp_path: Path) -> None:
    outcome = federation(positive="nein").fit(tmp_path / "run")
    assert outcome.summary["positive"] == {"by": "setting", "class": "nein"}
    facts = read(tmp_path / "run")
    page = render(facts)
    for words in (
        "The positive class is nein, as [data] positive says.",
        "From which score of nein on to act",
        "Precision, recall and F1 are about the class nein.",
    ):
        assert words in page
    assert facts.quality is not None
    share = (frames()["bank"]["outcome"] == "nein").mean()
    assert facts.quality["share"] == pytest.approx(share, abs=0.03)
    again = load(tmp_path / "run", frames=frames())
    assert again.holdings.encoder.positive_class == "nein"
    assert "class nein" in outcome._repr_html_()


def test_where_nothing_is_said_the_report_says_that_it_is_the_rarer_class(
    tmp_path: Path,
) -> None:
    outcome = federation().fit(tmp_path / "run")
    page = render(read(tmp_path / "run"))
    rarer = "the rarer one of the training rows ([data] positive names another)."
    assert f"The positive class is ja, {rarer}" in page
    assert "Precision, recall and F1 are about the rarer one" in page
    # the class's name is the label owner's, and a summary is read by others
    assert outcome.summary["positive"] == {"by": "rarer"}
    assert "ja" not in json.dumps(outcome.summary["positive"])


def test_predictions_and_the_service_begin_with_the_positive_class() -> None:
    one = federation(positive="nein")
    found = one.predict(["P003", "P001"])
    frame = found.to_frame()
    assert list(frame.columns) == [
        "id",
        "prediction",
        "score_nein",
        "score_ja",
        "missing",
    ]
    assert np.array_equal(found.score, frame["score_nein"])
    assert np.array_equal(found.score, found.scores[:, 1])
    (first, _) = rows_of(found, ["bank", "shop"])
    assert list(first.scores) == ["nein", "ja"]
    assert first.scores["nein"] == found.score[0]
    by_default = federation().predict(["P003"])
    assert list(by_default.to_frame().columns)[2:4] == ["score_ja", "score_nein"]


@pytest.mark.parametrize("given", ["yes", "JA", 1, True, ""])
def test_what_is_no_class_is_refused_with_the_classes(given: Any) -> None:
    with pytest.raises(
        ConfigError,
        match=rf"\[data\] positive = {given!r} is no class .* classes are 'ja', 'nein'",
    ):
        federation(positive=given)


@pytest.mark.parametrize(
    ("label", "given", "is_class"),
    [
        ([0, 1], 0, 0),
        ([0, 1], np.int64(0), 0),
        ([0, 1], "1", 1),
        ([0.0, 1.0], 1, 1),
        ([False, True], False, False),
        (["0", "1"], 0, "0"),
        ([1.5, 2.5], 1.5, 1.5),
    ],
)
def test_a_class_may_be_written_as_a_file_writes_it(
    label: list[Any], given: Any, is_class: Any
) -> None:
    tables = frames()
    bank = tables["bank"]
    common, rare = label
    bank["outcome"] = np.where(bank["outcome"] == "ja", rare, common)
    found = federation(tables, positive=given).holdings.encoder
    assert found.positive_class == is_class


def test_only_one_of_two_classes_can_be_positive() -> None:
    tables = frames()
    tables["bank"].loc[:40, "outcome"] = "later"
    with pytest.raises(
        ConfigError, match=r"one of two classes, .* has 3: 'ja', 'later'"
    ):
        federation(tables, positive="ja")
    tables["bank"]["outcome"] = np.linspace(0.0, 1.0, 300)
    with pytest.raises(ConfigError, match=r"names a class, and the label .* a number"):
        federation(tables, positive="ja")
    with pytest.raises(ConfigError, match="positive must be one class"):
        federation(data={"positive": ["ja"]})
    with pytest.raises(ConfigError, match=r"the label is a number\. Remove one"):
        federation(data={"positive": "ja", "task": "regression"})


def test_labels_that_are_drawn_at_random_are_not_counted() -> None:
    """Which class is rarer would tell more of them than their epsilon allows."""
    rule = {"labels": {"mechanism": {"name": "randomized_response", "epsilon": 1.0}}}
    found = federation(parties={"bank": {"outbox": rule}}).holdings.encoder
    assert (found.positive_class, found.positive_by) == ("nein", "order")


def test_the_state_of_labels_has_the_positive_class() -> None:
    labels = Labels("bank", "classification", ("ja", "nein")).with_positive("ja")
    assert Labels.from_state(labels.state()) == labels
