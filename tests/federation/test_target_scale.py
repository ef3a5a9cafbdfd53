"""Positive labels with a long tail are trained as logarithms, and scored and predicted
in their own unit."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.metrics import mean_absolute_error, r2_score, root_mean_squared_error

from colonnade import load
from colonnade.errors import ConfigError
from colonnade.federation import Federation, Settings

ROWS = 600


def costs(spread: float = 1.0) -> dict[str, pd.DataFrame]:
    """What a patient costs is multiplied by what the clinic and the laboratory know, of
    which one part matters only together."""
    random = np.random.default_rng(3)
    x = random.normal(size=(ROWS, 4))
    level = x[:, 0] * x[:, 2] + 0.5 * (x[:, 1] + x[:, 3])
    level += 0.2 * random.normal(size=ROWS)
    ids = [f"P{number:03d}" for number in range(ROWS)]
    clinic = pd.DataFrame({"patient": ids, "age": x[:, 0], "weight": x[:, 1]})
    clinic["cost"] = 900 * np.exp(spread * level)
    lab = pd.DataFrame({"patient": ids, "iron": x[:, 2], "zinc": x[:, 3]})
    return {"clinic": clinic, "lab": lab}


def made(tables: dict[str, pd.DataFrame], **data: Any) -> Federation:
    settings = {
        "data": {"validation": 0.15, "test": 0.3, **data},
        "train": {"epochs": 25, "batch_size": 32},
        "federation": {"device": "cpu"},
    }
    return Federation.from_frames(tables, id="patient", label="cost", settings=settings)


@pytest.fixture(scope="module")
def scores() -> dict[str, dict[str, float]]:
    """Test scores of the same table by the scale that was asked for."""
    found = {}
    for scale in ("auto", "log", "linear"):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            outcome = made(costs(), target_scale=scale).fit()
        found[scale] = outcome.summary["metrics"]["test"]
    return found


def test_a_long_tail_is_learned_better_as_logarithms(
    scores: dict[str, dict[str, float]],
) -> None:
    assert scores["auto"] == scores["log"]
    assert scores["auto"]["r2"] > scores["linear"]["r2"] + 0.05
    assert scores["auto"]["mae"] < 0.8 * scores["linear"]["mae"]


@pytest.mark.filterwarnings("ignore")
def test_predictions_and_scores_are_in_the_labels_own_unit(tmp_path: Path) -> None:
    tables = costs()
    federation = made(tables)
    outcome = federation.fit(tmp_path / "run")
    ids = federation.holdings.ids[federation.holdings.splits["test"].numpy()]
    truth = tables["clinic"].set_index("patient").loc[ids, "cost"]
    predicted = federation.predict(list(ids)).to_frame().set_index("patient")
    values = predicted.loc[ids, "prediction"]
    assert values.min() > 0
    expected = {
        "r2": r2_score(truth, values),
        "mae": mean_absolute_error(truth, values),
        "rmse": root_mean_squared_error(truth, values),
    }
    told = outcome.summary["metrics"]["test"]
    assert {name: told[name] for name in expected} == pytest.approx(expected, rel=1e-4)
    assert outcome.summary["chosen"]["data.target_scale"] == "log"
    again = load(tmp_path / "run", frames=tables).predict(list(ids)).to_frame()
    np.testing.assert_array_equal(
        again["prediction"], federation.predict(list(ids)).to_frame()["prediction"]
    )


def test_who_trains_on_a_log_scale_without_having_asked_is_told() -> None:
    with pytest.warns(UserWarning, match=r"'clinic' has a label 'cost' above 0 with a"):
        made(costs())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for scale in ("log", "linear"):
            made(costs(), target_scale=scale)
        made(costs(spread=0.2))


@pytest.mark.parametrize(
    "algorithm",
    [
        {"name": "logistic_regression"},  # its coefficients are read
        {"name": "boosted_trees", "encryption": "none", "loss": "poisson"},
    ],
)
@pytest.mark.filterwarnings("ignore:boosted_trees without")
def test_what_is_said_in_the_labels_own_unit_stays_linear(
    algorithm: dict[str, str],
) -> None:
    federation = Federation.from_frames(
        costs(), id="patient", label="cost", settings={"algorithm": algorithm}
    )
    assert not federation.holdings.encoder.unit.is_log


@pytest.mark.parametrize(
    ("tables", "rule"),
    [
        ({"data": {"task": "classification"}}, "is for labels that are numbers"),
        (
            {"algorithm": {"name": "boosted_trees", "loss": "poisson"}},
            'does not go with loss = "poisson"',
        ),
        (
            {
                "algorithm": {"name": "multi_vfl"},
                "label_owners": [
                    {"name": name, "table": f"{name}.csv", "label": "cost"}
                    for name in ("north", "south")
                ],
                "data_owners": [{"name": "lab", "table": "lab.csv"}],
            },
            "works with one label owner, and there are 2: north, south",
        ),
    ],
)
def test_a_log_scale_that_cannot_be_had_is_refused(
    tables: dict[str, Any], rule: str
) -> None:
    Settings.from_mapping(tables)
    data = {**tables.get("data", {}), "target_scale": "log"}
    with pytest.raises(ConfigError, match=rule):
        Settings.from_mapping({**tables, "data": data})
