"""The examples run and do what they say."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
from examples.two_hospitals_two_centres import make_tables

from colonnade.federation import Federation, load
from examples import align_select_train, regression_with_own_models


def test_regression_with_own_models_explains_some_variance() -> None:
    assert regression_with_own_models.main()["r2"] > 0.3


def test_frames_are_aligned_partners_chosen_and_a_model_trained() -> None:
    frames = align_select_train.tables()
    shared = set.intersection(*(set(frame["patient"]) for frame in frames.values()))
    found = align_select_train.main()
    assert found["common"] == len(shared) < min(map(len, frames.values()))
    assert not found["kept the broker"], "its columns are noise"
    assert found["accuracy"] > 0.9


@pytest.mark.long
def test_two_hospitals_and_two_centres_learn_together(tmp_path: Path) -> None:
    federation = Federation.from_toml(make_tables.main(tmp_path))
    outcome = federation.fit(tmp_path / "run")
    assert outcome.summary["metrics"]["test"]["accuracy"] > 0.9
    assert set(outcome.summary["label_owners"]) == {"north", "south"}
    new = pd.read_csv(tmp_path / "referred.csv")["person"].tolist()
    assert not set(new) & set(federation.holdings.ids)
    assert len(load(tmp_path / "run", ids=new).predict(new).labels) == 10
