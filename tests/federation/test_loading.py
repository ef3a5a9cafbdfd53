"""Loading a run, and predicting from it: the rows of training, and new ones, prepared
as in training."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from tests.federation.small import (
    THREE_EACH,
    Frames,
    equal,
    federation,
    frames,
    learned_of,
    quick,
    write,
)

from colonnade.errors import ConfigError, DataError
from colonnade.federation import Federation, Settings, load
from colonnade.federation.many_rows import ManyRows


@pytest.mark.parametrize("settings", THREE_EACH, ids=["vimadmm", "splitnn"])
def test_a_run_made_from_frames_is_loaded_with_frames(
    settings: Any, tmp_path: Path
) -> None:
    one = federation(settings=settings)
    one.fit(tmp_path / "run")
    again = load(tmp_path / "run", frames=frames())
    assert equal(learned_of(one), learned_of(again))
    assert again.evaluate("test") == one.evaluate("test")
    assert again.predict().scores.tolist() == one.predict().scores.tolist()
    with pytest.raises(ConfigError, match=r"\[parties\.clinic\] must name its table"):
        load(tmp_path / "run")
    with pytest.raises(
        ConfigError, match=r"There is a frame for 'labs', which is no party"
    ):
        load(tmp_path / "run", frames={**frames(), "labs": frames()["lab"]})
    with pytest.raises(
        ConfigError, match=r"\[parties\.lab\] is no party of this federation"
    ):
        load(tmp_path / "run", frames={"clinic": frames()["clinic"]})


def test_a_saved_federation_continues_where_it_was(tmp_path: Path) -> None:
    one = federation()
    training = one.train()
    for _ in range(3):
        next(training)
    one.predict(["P001"])  # no part of what was agreed
    one.save(tmp_path / "saved")
    again = load(tmp_path / "saved", frames=frames())
    assert [step.loss for step in again.train()] == [step.loss for step in training]
    assert equal(learned_of(one), learned_of(again))


def test_a_run_from_files_or_a_named_data_set_is_loaded_by_its_folder_alone(
    tmp_path: Path,
) -> None:
    one = Federation.from_toml(write(tmp_path / "tables"))
    one.fit(tmp_path / "run")
    assert load(tmp_path / "run").evaluate("test") == one.evaluate("test")
    tables = quick(
        data={"dataset": "breast_cancer", "parts": 2, "validation": 0},
        train={"epochs": 1, "batch_size": 200},
    )
    named = Federation.from_settings(Settings.from_mapping(tables))
    named.fit(tmp_path / "named")
    for ids in (None, ["5", "17"]):
        again = load(tmp_path / "named", ids=ids)
        assert (
            again.predict(["17", "5"]).scores.tolist()
            == named.predict(["17", "5"]).scores.tolist()
        )


def fresh(rows: int = 5) -> Frames:
    """Patients that came after training, whose diagnosis nobody knows yet."""
    made = frames(rows=rows, seed=9)
    for frame in made.values():
        frame["patient"] = frame["patient"].str.replace("P", "N")
    made["clinic"] = made["clinic"].drop(columns="diagnosis")
    return made


def test_new_rows_are_predicted_from_new_tables_without_labels(tmp_path: Path) -> None:
    one = Federation.from_toml(write(tmp_path / "tables"))
    one.fit(tmp_path / "run")
    write(tmp_path / "new", fresh())
    tables = {name: str(tmp_path / "new" / f"{name}.csv") for name in ("clinic", "lab")}
    ids = ["N003", "N000"]
    from_files = load(tmp_path / "run", ids=ids, tables=tables).predict(ids)
    from_frames = load(tmp_path / "run", ids=ids, frames=fresh()).predict()
    assert from_files.ids.tolist() == from_frames.ids.tolist() == ids
    assert from_files.scores.tolist() == from_frames.scores.tolist()
    # the same cells under an id that was there in training give the same answer
    both = {
        name: pd.concat(
            [
                f,
                (
                    fresh()[name].assign(diagnosis="ill")
                    if name == "clinic"
                    else fresh()[name]
                ),
            ]
        )
        for name, f in frames().items()
    }
    known = load(tmp_path / "run", ids=["P004", "N003"], frames=both).predict()
    np.testing.assert_allclose(
        known.scores, [one.predict(["P004"]).scores[0], from_files.scores[0]], rtol=1e-6
    )


def test_rows_are_prepared_as_in_training_not_by_themselves(tmp_path: Path) -> None:
    one = federation()
    one.fit(tmp_path / "run")
    ids = one.holdings.ids[:3].tolist()
    few = load(
        tmp_path / "run",
        ids=ids,
        frames={n: f[f["patient"].isin(ids)] for n, f in frames().items()},
    )
    for name in ("clinic", "lab"):
        whole = one.holdings.columns[name].features
        part = few.holdings.columns[name].features
        assert whole is not None
        assert part is not None
        assert torch.equal(whole[:3], part)


def test_a_label_owner_without_columns_brings_no_table_to_a_prediction(
    tmp_path: Path,
) -> None:
    given = frames()
    given["clinic"] = given["clinic"][["patient", "diagnosis"]]
    one = federation(given)
    one.fit(tmp_path / "run")
    again = load(tmp_path / "run", ids=["P005"], frames={"lab": given["lab"]})
    np.testing.assert_allclose(
        again.predict().scores, one.predict(["P005"]).scores, rtol=1e-6
    )
    assert load(
        tmp_path / "run", ids=["P005"], frames=given
    ).predict().labels.shape == (1,)


def test_regression_predicts_new_rows_in_its_own_units(tmp_path: Path) -> None:
    given = frames(task="regression")
    one = federation(given)
    one.fit(tmp_path / "run")
    again = load(tmp_path / "run", ids=["P005"], frames=given).predict()
    np.testing.assert_allclose(again.labels, one.predict(["P005"]).labels, rtol=1e-5)


def test_rows_that_a_party_lacks_are_named(tmp_path: Path) -> None:
    federation().fit(tmp_path / "run")
    given = frames()
    given["lab"] = given["lab"].iloc[1:]
    gone = frames()["lab"]["patient"].iloc[0]
    with pytest.raises(
        DataError,
        match=(
            r"'lab' lacks 1 of the ids asked for\. Ask for rows that all parties hold"
        ),
    ):
        load(tmp_path / "run", ids=[gone], frames=given)


def test_all_rows_of_the_tables_can_be_loaded_new_ones_too(tmp_path: Path) -> None:
    one = Federation.from_toml(write(tmp_path / "tables"))
    one.fit(tmp_path / "run")
    both = {name: pd.concat([frame, fresh()[name]]) for name, frame in frames().items()}
    both["lab"] = both["lab"].iloc[1:]  # all but one are held by both
    again = load(tmp_path / "run", ids="all", frames=both)
    assert again.holdings.ids.tolist() == sorted(set(both["lab"]["patient"]))
    known = sorted(set(both["lab"]["patient"]) - set(fresh()["lab"]["patient"]))
    np.testing.assert_allclose(
        again.predict(known).scores, one.predict(known).scores, rtol=1e-5
    )
    other = {
        **both,
        "lab": fresh()["lab"].assign(patient="X" + fresh()["lab"]["patient"]),
    }
    with pytest.raises(DataError, match="There is no row to predict"):
        load(tmp_path / "run", ids="all", frames=other)


def test_what_crosses_after_training_is_written_down_beside_the_training(
    tmp_path: Path,
) -> None:
    one = Federation.from_toml(write(tmp_path / "tables"))
    one.fit(tmp_path / "run")
    lab = tmp_path / "run" / "parties" / "lab"
    training = (lab / "ledger.jsonl").read_text()
    load(tmp_path / "run", ids=["P003", "P001"]).predict(["P001"])
    load(tmp_path / "run").evaluate("test")
    entries = [
        json.loads(line)
        for line in (lab / "ledger-after.jsonl").read_text().splitlines()
    ]
    assert [(e["direction"], e["batch"], e["shape"]) for e in entries] == [
        ("out", "predict[0:1]", [1, 4]),
        ("out", "test[0:16]", [16, 4]),
    ]
    assert (lab / "ledger.jsonl").read_text() == training
    Federation.from_toml(tmp_path / "tables" / "federation.toml").fit(
        tmp_path / "run", resume=True
    )
    assert len((lab / "ledger-after.jsonl").read_text().splitlines()) == 2


def test_who_loads_a_run_cuts_nothing_off_that_is_being_trained(tmp_path: Path) -> None:
    federation().fit(tmp_path / "run")
    ledger = tmp_path / "run" / "parties" / "lab" / "ledger.jsonl"
    ledger.write_text(
        whole := ledger.read_text() + '{"since": "the last checkpoint"}\n'
    )
    again = load(tmp_path / "run", frames=frames())
    assert ledger.read_text() == whole
    assert again.ledgers["lab"].total("out") == federation_total(
        tmp_path / "run", "lab"
    )


def federation_total(run: Path, party: str) -> int:
    return int(json.loads((run / "summary.json").read_text())["bytes"][party]["out"])


def test_new_rows_without_labels_that_are_loaded_to_be_measured_get_the_cure(
    tmp_path: Path,
) -> None:
    one = federation(settings=quick())
    one.fit(tmp_path / "run")
    new = frames() | {"clinic": frames()["clinic"].drop(columns="diagnosis")}
    with pytest.raises(
        DataError, match=r"'clinic' has no column 'diagnosis'.*ids=.all., frames=frames"
    ):
        load(tmp_path / "run", frames=new)
    assert len(load(tmp_path / "run", ids="all", frames=new).predict().ids)


def test_a_run_that_was_cut_off_says_so_when_it_is_loaded(tmp_path: Path) -> None:
    """Predictions of models that are not done look like any others."""
    file = write(tmp_path / "tables")
    run = tmp_path / "run"
    cut_off = KeyboardInterrupt()

    def watch(_: Any) -> None:
        if (run / "metrics.jsonl").exists():
            raise cut_off

    Federation.from_toml(file).save(tmp_path / "new")
    with pytest.raises(KeyboardInterrupt):
        Federation.from_toml(file).fit(run, watch=watch)
    for folder, steps in ((tmp_path / "new", "0 steps"), (run, "steps")):
        with pytest.warns(
            UserWarning,
            match=f"holds a run that has not finished: .* {steps}. Finish it",
        ):
            load(folder)
        with pytest.warns(UserWarning, match="holds a run that has not finished"):
            [*ManyRows(folder, np.array([b"P001"])).frames()]
    Federation.from_toml(file).fit(run, resume=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        load(run)


def test_a_partner_that_has_the_label_too_is_refused(tmp_path: Path) -> None:
    given = frames()
    given["lab"]["diagnosis"] = given["clinic"]["diagnosis"]
    file = write(tmp_path, given)
    file.write_text(
        file.read_text().replace(
            'table = "lab.csv"\nlabel = "diagnosis"', 'table = "lab.csv"'
        )
    )
    with pytest.raises(
        DataError,
        match="'lab' has the column 'diagnosis' too, which is the label of 'clinic'",
    ):
        Federation.from_toml(file)
