"""Row weights: a row counts as often as a column of the label owner says; nobody else
is told, and scores count rows alike."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from tests.federation import small_sites
from tests.federation.small import Frames, federation, frames, quick, write
from tests.federation.test_class_weights import OPEN, rare

from colonnade import Federation
from colonnade.algorithms import ALGORITHMS
from colonnade.errors import ConfigError, DataError
from colonnade.federation import load
from colonnade.sites.driving import drive

WEIGH = [name for name, algorithm in ALGORITHMS.items() if algorithm.weighs_rows]


def weighted(cells: Any, given: Frames | None = None) -> Frames:
    """The clinic's rows with a column `exposure`."""
    given = rare() if given is None else given
    return {**given, "clinic": given["clinic"].assign(exposure=cells)}


def trained(
    name: str, given: Frames, *, weights: str | None = "exposure", **train: Any
) -> Federation:
    settings = {
        "algorithm": {"name": name, **OPEN.get(name, {})},
        "data": {"stratify": False},
        "parties": {"clinic": {} if weights is None else {"weights": weights}},
        "train": {"epochs": 4, "batch_size": 64, "early_stop": False, **train},
        "federation": {"device": "cpu"},
    }
    one = federation(given, settings)
    for _ in one.train():
        pass
    return one


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("name", WEIGH)
def test_a_row_that_weighs_nothing_says_nothing(name: str) -> None:
    """Whatever its label is, the model is the same; and weights of one are none."""
    given = rare()
    absent = np.arange(len(given["clinic"])) % 3 == 0
    cells = np.where(absent, 0.0, 1.0)
    other = given["clinic"]["diagnosis"].where(~absent, "ill")
    lied = {**given, "clinic": given["clinic"].assign(diagnosis=other)}
    one, two = (
        trained(name, weighted(cells, some)).outputs("test") for some in (given, lied)
    )
    torch.testing.assert_close(one, two, rtol=1e-4, atol=1e-5)
    plain = trained(name, given, weights=None)
    ones = trained(name, weighted(1.0, given))
    torch.testing.assert_close(
        plain.outputs("test"), ones.outputs("test"), rtol=1e-4, atol=1e-5
    )
    assert (one - plain.outputs("test")).abs().max() > 1e-3


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("name", WEIGH)
def test_the_weight_of_all_rows_of_a_class_is_the_weight_of_the_class(
    name: str,
) -> None:
    given = rare()
    cells = np.where(given["clinic"]["diagnosis"] == "ill", 5.0, 1.0)
    by_row = trained(name, weighted(cells, given))
    owner = by_row.driver
    assert owner.row_weights is not None
    mean = (
        1.0
        if name == "boosted_trees"
        else float(owner.row_weights[by_row.batches.splits["train"]].mean())
    )
    by_class = trained(
        name, given, weights=None, class_weights={"ill": 5 / mean, "well": 1 / mean}
    )
    torch.testing.assert_close(
        by_row.outputs("test"), by_class.outputs("test"), rtol=1e-3, atol=1e-4
    )


def test_logistic_regression_is_scikit_learns() -> None:
    cells = np.random.default_rng(5).exponential(size=240)
    one = trained("logistic_regression", weighted(cells), epochs=120)
    rows = one.batches.splits["train"]
    test = one.batches.splits["test"]
    x = (
        torch.cat([owner.features for owner in one.owners.values()], dim=1)
        .double()
        .numpy()
    )
    counts = one.driver.counts(rows)
    assert counts is not None
    assert float(counts.mean()) == pytest.approx(1)
    theirs = LogisticRegression(tol=1e-10, max_iter=10_000).fit(
        x[rows], one.labels[rows], sample_weight=counts
    )
    scores = one.holdings.loss.scores(one.outputs("test")).double().numpy()
    np.testing.assert_allclose(scores, theirs.predict_proba(x[test]), atol=1e-3)


@pytest.mark.filterwarnings("ignore:The model learned nothing")
def test_scores_count_rows_alike_and_weights_are_no_feature(tmp_path: Path) -> None:
    cells = np.linspace(0, 2, 80)
    settings = quick(train={"epochs": 2}, parties={"clinic": {"weights": "exposure"}})
    file = write(tmp_path / "one", weighted(cells, frames()), settings)
    one = Federation.from_toml(file)
    plain = federation(settings=quick())
    one.fit(tmp_path / "run")
    # it is no feature
    assert (
        one.owners["clinic"].features.shape[1]
        == plain.owners["clinic"].features.shape[1]
    )
    scores = one.evaluate("test")
    outputs = one.outputs("test")
    test = one.batches.splits["test"]
    labels = one.labels[test]
    counts = one.driver.counts(test)
    assert scores["loss"] == pytest.approx(float(one.holdings.loss(outputs, labels)))
    assert scores["weighted_loss"] == pytest.approx(
        float(one.holdings.loss(outputs, labels, counts))
    )
    assert torch.equal(load(tmp_path / "run").outputs("test"), outputs)


@pytest.mark.filterwarnings("error:The given NumPy array is not writable")
def test_weights_are_a_copy_that_may_be_written_to() -> None:
    before = torch.is_warn_always_enabled()
    torch.set_warn_always(True)  # else it is said once in a process
    try:
        federation(
            weighted(np.linspace(1, 2, 80), frames()),
            quick(parties={"clinic": {"weights": "exposure"}}),
        )
    finally:
        torch.set_warn_always(before)


def test_no_more_crosses_than_without_weights() -> None:
    given = weighted(np.linspace(0, 2, 240))
    books = [
        trained("boosted_trees", given, weights=how).driver.ledger.entries
        for how in ("exposure", None)
    ]
    told = [
        [(e.name, e.shape) for e in book if e.peer == "lab" and e.direction == "out"][
            :3
        ]
        for book in books
    ]
    assert told[0] == told[1]
    one, other = ({entry.name for entry in book} for book in books)
    assert one == other


def test_at_a_site_weights_are_the_label_owners_own(tmp_path: Path) -> None:
    cells = np.linspace(0, 2, 80)
    settings = quick(parties={"clinic": {"weights": "exposure"}}, **small_sites.ALONE)
    file, _ = small_sites.folders(tmp_path, weighted(cells, frames()), settings)
    assert "exposure" not in "".join(
        path.read_text() for path in (tmp_path / "lab").glob("*.toml")
    )
    drive(small_sites.sites(tmp_path)["clinic"], "run")
    alone = Federation.from_toml(file)
    alone.fit(tmp_path / "alone")
    runs = tmp_path / "alone", tmp_path / "clinic" / "runs" / "run"
    one, other = (
        (run / "summary.json").read_text().partition('"metrics"')[2][:400]
        for run in runs
    )
    assert one == other
    assert "weighted_loss" in one


@pytest.mark.parametrize("cell", [-1.0, np.nan, np.inf, "much"])
def test_what_is_no_weight_is_refused(cell: Any) -> None:
    cells = [cell] + [1.0] * 79
    with pytest.raises(
        DataError,
        match=(
            r"'clinic' has 1 rows whose weight in 'exposure' is no number of 0 or more"
        ),
    ):
        federation(
            weighted(cells, frames()),
            quick(parties={"clinic": {"weights": "exposure"}}),
        )


def test_what_cannot_be_weighed_is_refused() -> None:
    given = weighted(1.0, frames())
    wants = {"weights": "exposure"}
    with pytest.raises(
        DataError, match=r"no training row with a weight above 0 in 'exposure'"
    ):
        federation(weighted(0.0, frames()), quick(parties={"clinic": wants}))
    with pytest.raises(
        DataError,
        match=r"'clinic' has no column 'exposed' .*, named as its weights column",
    ):
        federation(given, quick(parties={"clinic": {"weights": "exposed"}}))
    with pytest.raises(
        ConfigError,
        match=r"weights is for the party with the label, whose loss counts rows",
    ):
        federation(given, quick(parties={"lab": {"weights": "iron"}}))
    with pytest.raises(
        ConfigError, match=r"weights is for .*splitnn.*, and the algorithm is knn"
    ):
        federation(given, {"algorithm": {"name": "knn"}, "parties": {"clinic": wants}})
    drawn = {
        "outbox": {
            "labels": {"mechanism": {"name": "randomized_response", "epsilon": 1.0}}
        }
    }
    with pytest.raises(ConfigError, match="a weight may tell what the label was"):
        federation(given, quick(parties={"clinic": {**wants, **drawn}}))
