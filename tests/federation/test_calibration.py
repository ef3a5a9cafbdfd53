"""Predictions without a party are chances all the same: what it would have added on
average is not lost."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from tests.federation.small import federation

from colonnade import Federation, load

RULES = {
    "fdml": {},
    "vimsgd": {},
    "vimadmm": {},
    "vimadmm_joint": {},
    "vafl": {},
    "splitnn": {"combine": "mean"},
}


def uneven(rows: int = 600) -> dict[str, pd.DataFrame]:
    """A fifth is ill. The laboratory's columns are far from zero, so that without them
    everything is shifted."""
    random = np.random.default_rng(5)
    x = random.normal(size=(rows, 4))
    total = x @ np.array([1.0, -1.0, 1.0, 1.0]) + random.normal(size=rows)
    label = np.where(total > np.quantile(total, 0.8), "ill", "well")
    ids = [f"P{number:03d}" for number in range(rows)]
    clinic = pd.DataFrame(
        {"patient": ids, "age": x[:, 0], "weight": x[:, 1], "diagnosis": label}
    )
    return {
        "clinic": clinic,
        "lab": pd.DataFrame({"patient": ids, "iron": 3 + x[:, 2], "zinc": 2 + x[:, 3]}),
    }


def settings(name: str, **more: Any) -> dict[str, Any]:
    return {
        "algorithm": {"name": name, **RULES[name]},
        "data": {"validation": 0.25},
        "train": {"epochs": 6, "batch_size": 32},
        "federation": {"device": "cpu", "on_missing": "skip"},
        **more,
    }


def without_lab(one: Federation, given: dict[str, pd.DataFrame]) -> float:
    """The mean score of the ill, of test rows without the laboratory."""
    ids = one.ids[one.batches.splits["test"].numpy()].tolist()
    clinic = given["clinic"][given["clinic"]["patient"].isin(ids)].drop(
        columns="diagnosis"
    )
    found = one.predict(frames={"clinic": clinic})
    assert set(found.degraded or ()) == {"lab"}
    return float(found.scores[:, 0].mean())


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("name", RULES)
def test_without_a_party_the_mean_score_stays_at_the_share_of_the_class(
    name: str,
) -> None:
    given = uneven()
    one = federation(given, settings(name))
    one.fit()
    assert without_lab(one, given) == pytest.approx(0.2, abs=0.06)


def test_a_loaded_run_knows_it_too_and_says_the_same(tmp_path: Path) -> None:
    given = uneven()
    one = federation(given, settings("fdml"))
    one.fit(tmp_path / "run")
    clinic = given["clinic"].drop(columns="diagnosis").iloc[:50]
    ids = clinic["patient"].tolist()
    here = one.predict(frames={"clinic": clinic})
    again = load(tmp_path / "run", ids=ids, frames={"clinic": clinic}).predict(ids)
    np.testing.assert_allclose(
        again.scores,
        here.scores[np.argsort(here.ids)][np.argsort(np.argsort(ids))],
        atol=1e-6,
    )


def test_numbers_are_scaled_and_shifted_alike() -> None:
    given = uneven()
    given["clinic"]["diagnosis"] = (
        50 + 10 * given["clinic"]["age"] + 8 * (given["lab"]["iron"] - 1)
    )
    one = federation(given, settings("fdml"))
    one.fit()
    clinic = given["clinic"].drop(columns="diagnosis")
    found = one.predict(frames={"clinic": clinic}).labels
    assert float(np.mean(found)) == pytest.approx(
        given["clinic"]["diagnosis"].mean(), abs=2.0
    )


def test_without_validation_rows_outputs_stay_as_they_are() -> None:
    given = uneven()
    one = federation(given, settings("fdml", data={"validation": 0.0}))
    one.fit()
    missing = one.peers.missing
    assert missing is not None
    assert not missing.held_out
    without_lab(one, given)
