"""Logistic and ridge regression over everybody's columns are scikit-learn's optimum,
and each knows its own part."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.datasets import load_breast_cancer, load_diabetes, load_wine
from sklearn.linear_model import LogisticRegression, Ridge
from tests.federation.small import frames, quick
from tests.federation.small_sites import ALONE, ask, folders, sites

from colonnade import Federation, load
from colonnade.algorithms import encrypted_columns, logistic_regression
from colonnade.core import Outbox
from colonnade.errors import ConfigError, PartyError
from colonnade.federation.coefficients import weights_of
from colonnade.federation.soundness import Finding
from colonnade.sites.driving import drive
from colonnade.sites.messages import Prepare
from colonnade.sites.site import Site

OPTIMUM = {"epochs": 120, "early_stop": False}


def tables(loading: Any, parties: int, labels_alone: bool) -> dict[str, pd.DataFrame]:
    x, y = loading(return_X_y=True)
    frame = pd.DataFrame(x, columns=[f"c{at}" for at in range(x.shape[1])]).assign(
        id=np.arange(len(x))
    )
    runs = np.array_split(frame.columns[:-1], parties)
    found = {f"party_{at}": frame[["id", *run]] for at, run in enumerate(runs)}
    whose = "owner" if labels_alone else "party_0"
    found[whose] = found.get(whose, frame[["id"]]).assign(label=y)
    return found


def federated(
    loading: Any, parties: int = 3, train: Any = OPTIMUM, **algorithm: Any
) -> Federation:
    secure = algorithm.get("aggregation") == "secure"
    settings = {
        "algorithm": {"name": "logistic_regression", **algorithm},
        "preprocess": {"numbers": "standard"},
        "data": {
            "task": "regression" if loading is load_diabetes else "classification"
        },
        "train": train,
        "federation": {"device": "cpu"},
    }
    return Federation.from_frames(
        tables(loading, parties, secure), id="id", label="label", settings=settings
    )


@pytest.mark.parametrize(("aggregation", "l2"), [("plain", 1.0), ("secure", 20.0)])
@pytest.mark.parametrize(
    "loading",
    [load_breast_cancer, load_wine, load_diabetes],
    ids=["two", "three", "numbers"],
)
def test_it_is_scikit_learns_optimum(loading: Any, aggregation: str, l2: float) -> None:
    """sum of losses + l2/2 |w|^2 is scikit-learn's with C = 1/l2, and with alpha = l2
    of a ridge regression, whose squares have no half; the intercept is not penalised.
    """
    is_scikit_learns(federated(loading, aggregation=aggregation, l2=l2), loading, l2)


@pytest.mark.parametrize(
    "loading",
    [
        load_diabetes,
        *(
            pytest.param(one, marks=pytest.mark.long)
            for one in (load_breast_cancer, load_wine)
        ),
    ],
    ids=["numbers", "two", "three"],
)
def test_encrypted_it_is_the_same_optimum(
    loading: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To the same tolerance: what rounding leaves of it is far below."""
    monkeypatch.setattr(encrypted_columns, "ROWS_FOR_A_NUMBER", 1)
    train = {"epochs": 12 if loading is load_diabetes else 60, "early_stop": False}
    is_scikit_learns(
        federated(loading, 2, train, encryption="bfv", l2=20.0), loading, 20.0
    )


def is_scikit_learns(one: Federation, loading: Any, l2: float) -> None:
    for _ in one.train():
        pass
    rows = one.batches.splits["train"]
    test = one.batches.splits["test"]
    x = (
        torch.cat([owner.features for owner in one.owners.values()], dim=1)
        .double()
        .numpy()
    )
    y = one.labels.numpy()
    weights = torch.cat([owner.w for owner in one.owners.values()]).T.numpy()
    if loading is load_diabetes:
        reference: Any = Ridge(alpha=l2).fit(x[rows], y[rows])
        expected = reference.predict(x[test])[:, None]
    else:
        reference = LogisticRegression(C=1 / l2, tol=1e-10, max_iter=10_000).fit(
            x[rows], y[rows]
        )
        expected = reference.predict_proba(x[test])
    np.testing.assert_allclose(
        weights,
        np.atleast_2d(reference.coef_),
        atol=1e-3 * np.abs(reference.coef_).max(),
    )
    b = one.driver.b.numpy()
    theirs = np.atleast_1d(reference.intercept_)
    # of softmax, all may be larger by the same
    shift = theirs.mean() - b.mean() if len(b) > 1 else 0.0
    np.testing.assert_allclose(b + shift, theirs, atol=2e-3)
    scores = one.holdings.loss.scores(one.outputs("test")).double().numpy()
    np.testing.assert_allclose(scores, expected, atol=1e-3)


def test_every_round_lowers_the_objective() -> None:
    one = federated(load_wine)
    before = float("inf")
    penalty = 0.0
    for number, step in enumerate(one.train()):  # the loss is that before its move
        now = step.loss * step.batch.size + penalty
        assert now <= before + 1e-4
        before = now
        penalty = (
            sum(float(owner.w.square().sum()) for owner in one.owners.values()) / 2
        )
        if number == 20:
            break


def test_by_default_it_trains_until_nothing_changes_and_keeps_no_earlier_model() -> (
    None
):
    """Here after 112 rounds."""
    outcome = federated(load_breast_cancer, train={}).fit()
    assert "findings" not in outcome.summary
    assert outcome.stopped == "converged: the training loss no longer changes"
    assert "best_epoch" not in outcome.summary
    assert outcome.summary["metrics"]["test"]["accuracy"] > 0.9


def test_a_run_that_ends_on_the_way_to_its_optimum_says_so() -> None:
    for epochs, told in ((3, "had just begun to fall"), (8, "still changed by")):
        with pytest.warns(
            Finding,
            match=f"after {epochs} epochs on the way to its optimum: the loss {told}",
        ):
            found = (
                federated(load_wine, train={"epochs": epochs}).fit().summary["findings"]
            )
        assert len(found) == 1


def test_of_numbers_the_label_owner_has_what_brings_coefficients_into_its_units(
    tmp_path: Path,
) -> None:
    """The others have no part in it: what labels are on average is not theirs to know."""
    one = federated(load_diabetes, train={})
    one.fit(tmp_path / "run")
    parts = [
        json.loads(
            (tmp_path / "run" / "parties" / name / "coefficients.json").read_text()
        )
        for name in one.owners
    ]
    own = {key: value[0] for key, value in parts[0].items() if key.startswith("(")}
    assert not [key for part in parts[1:] for key in part if key.startswith("(")]
    weights = [
        value[0]
        for part in parts
        for key, value in part.items()
        if not key.startswith("(")
    ]
    x = (
        torch.cat([owner.features for owner in one.owners.values()], dim=1)
        .double()
        .numpy()
    )
    said = own["(label mean)"] + own["(label scale)"] * (
        own["(intercept)"] + x @ np.array(weights)
    )
    rows = one.batches.splits["train"]
    y = load_diabetes(return_X_y=True)[1]
    scaled = Ridge(alpha=1.0).fit(x[rows], y[one.ids.astype(int)][rows])
    np.testing.assert_allclose(said[rows], scaled.predict(x[rows]), rtol=1e-4)


def test_coefficients_lie_with_who_holds_their_columns_and_the_intercept_with_the_labels(
    tmp_path: Path,
) -> None:
    one = federated(load_breast_cancer, train={"epochs": 10})
    one.fit(tmp_path / "run")
    for name, owner in one.owners.items():
        own = json.loads(
            (tmp_path / "run" / "parties" / name / "coefficients.json").read_text()
        )
        assert own == weights_of(one, name)
        columns = [column for column in own if column != "(intercept)"]
        assert columns == one.holdings.columns[name].preprocessor.names  # type: ignore[union-attr]
        assert [own[column][0] for column in columns] == pytest.approx(
            owner.w[:, 0].tolist(), rel=1e-5
        )
        assert ("(intercept)" in own) == (name == "party_0")
    again = load(tmp_path / "run", frames=tables(load_breast_cancer, 3, False))
    assert again.evaluate("test") == one.evaluate("test")
    with pytest.raises(ConfigError, match="There are no coefficients of 'nobody'"):
        weights_of(one, "nobody")


def test_between_sites_it_is_the_same_and_each_has_its_own_coefficients_alone(
    tmp_path: Path,
) -> None:
    settings = {
        **quick(**ALONE),
        "algorithm": {"name": "logistic_regression"},
        "train": {"epochs": 12},
    }
    file, _ = folders(tmp_path, frames(), settings)
    here = Federation.from_toml(file).fit(tmp_path / "here").summary
    there = drive(sites(tmp_path)["clinic"], "run").summary
    assert there["metrics"] == here["metrics"]
    for name in ("clinic", "lab"):
        parts = tmp_path / name / "runs" / "run" / "parties"
        assert [path.parent.name for path in parts.glob("*/coefficients.json")] == [
            name
        ]
        own, whole = (
            (base / name / "coefficients.json").read_text()
            for base in (parts, tmp_path / "here" / "parties")
        )
        assert own == whole


def test_a_secure_sum_of_one_is_refused() -> None:
    with pytest.raises(ConfigError, match="A secure sum hides nothing here"):
        federated(load_wine, parties=1, aggregation="secure")


def test_products_of_rows_are_not_read_past_a_budget(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A label owner that sends gradients of its choice has the laboratory answer e C^-1
    e with e = X^T g: by two rows at a time it reads their products, to the last digits.
    A site with a budget takes no part; without one they are in the ledger."""
    noisy = {"logits": {"mechanism": {"name": "gaussian", "clip": 1.0, "sigma": 50.0}}}
    batch = "train/0/0"
    for budget in ({}, {"budget": {"epsilon": 1.0}}):
        base = tmp_path / ("with" if budget else "without")
        own = {"lab": {"outbox": noisy, **budget}}
        folders(
            base,
            settings={
                **quick(**ALONE, parties=own),
                "algorithm": {"name": "logistic_regression"},
            },
        )
        every = sites(base)
        clinic = every["clinic"]
        lab = every["lab"]
        clinic.read()
        digest = clinic.digest("run", clinic.shared_with("clinic"))
        if budget:
            with pytest.raises(
                PartyError,
                match=r"'lab' failed while answering messages.Prepare: ConfigError",
            ):
                ask(lab, "clinic", Prepare("run", 1, False, ids=digest))
            assert (
                "[parties.lab.budget] can never be kept with logistic_regression: it"
                " also releases lengths" in caplog.text
            )
            continue
        ask(lab, "clinic", Prepare("run", 1, False, ids=digest))
        assert lab.participant is not None
        owner = lab.participant.role
        assert isinstance(owner, logistic_regression.FeatureOwner)
        rows = owner.rows(batch)

        def answered(*chosen: int, lab: Site = lab, rows: torch.Tensor = rows) -> float:
            gradient = torch.zeros(len(rows), 1)
            gradient[list(chosen)] = 1.0
            sent = Outbox("clinic", torch.Generator()).release(
                gradient, "gradient", batch
            )
            return float(
                ask(
                    lab, "clinic", logistic_regression.Move(batch, 0.0, sent)
                ).lengths.tensor[0]
            )

        product = (answered(0, 1) - answered(0) - answered(1)) / 2 * len(rows)
        x = owner.features[rows].flatten(1).double()
        assert product == pytest.approx(
            float(x[0] @ torch.cholesky_solve(x[1:2].T, owner._factor(batch)))
        )
        assert [
            entry.name for entry in owner.ledger.entries if entry.direction == "out"
        ] == ["lengths"] * 3
