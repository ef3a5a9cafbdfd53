"""Baselines are the models they say they are: same rows, same settings, other columns;
and nobody pays for them."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.federation.small import frames, quick, splitnn, write
from tests.report.made import NOISY

from colonnade.errors import ConfigError
from colonnade.federation import Federation, Settings
from colonnade.report.baselines import joined, measure
from colonnade.rows.public import from_dataset


def test_alone_is_the_federation_of_that_party_alone(noisy: Path) -> None:
    found = json.loads((noisy / "baselines.json").read_text())
    clinic = Federation.from_frames(
        {"clinic": frames()["clinic"]},
        id="patient",
        label="diagnosis",
        settings=quick(train={"epochs": 3, "early_stop": False}),
    )
    clinic.fit()
    assert found["alone"]["clinic"] == [clinic.evaluate("test")]
    summary = json.loads((noisy / "summary.json").read_text())
    assert found["joint"] == [summary["metrics"]["test"]]
    assert (found["split"], found["rows"], found["metric"]) == (
        "test",
        summary["rows"]["test"],
        "accuracy",
    )


def test_in_one_place_is_one_party_with_all_columns(noisy: Path) -> None:
    found = json.loads((noisy / "baselines.json").read_text())
    given = frames()
    table = given["clinic"].merge(given["lab"], on="patient")
    whole = Federation.from_frames(
        {"clinic": table[["patient", "age", "weight", "iron", "zinc", "diagnosis"]]},
        id="patient",
        label="diagnosis",
        settings=quick(train={"epochs": 3, "early_stop": False}),
    )
    whole.fit()
    assert found["together"][0] == pytest.approx(whole.evaluate("test"), abs=1e-6)


def test_nobody_pays_and_the_run_stays_as_it_is(tmp_path: Path) -> None:
    file = write(tmp_path / "tables", settings=NOISY)
    Federation.from_toml(file).fit(tmp_path / "run")

    def files() -> dict[str, bytes]:
        return {
            str(path): path.read_bytes()
            for path in (tmp_path / "run").rglob("*")
            if path.is_file()
        }

    before = files()
    heard: list[tuple[str, int, int]] = []
    found = measure(tmp_path / "run", splits=2, say=lambda *told: heard.append(told))
    after = files()
    assert {
        path: content for path, content in after.items() if "baselines" not in path
    } == before
    assert [
        len(found["alone"]["lab"]),
        len(found["joint"]),
        len(found["together"]),
    ] == [2, 2, 2]
    assert [number for _, number, _ in heard] == list(range(1, 12))
    assert {total for _, _, total in heard} == {11}
    assert found["joint"][0] != found["joint"][1]  # other rows


def test_each_label_owner_alone(multi: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(multi, run)
    found = measure(run)
    settings = Settings.from_toml(multi / "federation.toml")
    whole = Federation.from_settings(settings)
    own = replace(settings, label_owners={"north": settings.label_owners["north"]})
    share = replace(
        whole.holdings,
        label_owners={"north": whole.holdings.label_owners["north"]},
        known_to=1,
    )
    alone = Federation(own, share)
    alone.fit()
    assert found["alone"]["north"] == [alone.evaluate("test")]
    summary = json.loads((run / "summary.json").read_text())
    assert found["each"]["south"] == [
        summary["label_owners"]["south"]["metrics"]["test"]
    ]
    assert found["together"] == []


def test_pictures_are_put_together_again() -> None:
    cut = Settings.from_mapping(
        {"data": {"dataset": "digits", "split": "strips", "parts": 4}}
    )
    holdings = from_dataset(cut)
    whole = joined(cut, holdings)
    assert whole is not None
    picture = whole.columns[holdings.label_owner].features
    strips = [held.features for held in holdings.columns.values()]
    assert picture is not None
    assert picture.numel() == sum(one.numel() for one in strips)
    assert torch.equal(
        picture.flatten(1)[:, : strips[0][0].numel()], strips[0].flatten(1)
    )


def test_what_cannot_be_compared_is_refused(plain: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(plain, run)
    (run / "summary.json").unlink()
    with pytest.raises(ConfigError, match="no summary yet"):
        measure(run)
    (run / "summary.json").write_text(json.dumps({"metrics": {"train": {}}}))
    with pytest.raises(ConfigError, match="nothing to compare with"):
        measure(run)


def test_what_cannot_be_trained_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = write(tmp_path / "tables")
    Federation.from_toml(file).fit(tmp_path / "run")

    def refuse(*_: object, **__: object) -> None:
        raise ConfigError("it takes two parties.")

    monkeypatch.setattr(Federation, "fit", refuse)
    found = measure(tmp_path / "run")
    assert found["alone"] == {}
    assert "lab alone could not be trained: it takes two parties." in found["notes"]


def test_what_is_wrong_with_a_baseline_is_not_said_of_the_run(
    tmp_path: Path, recwarn: pytest.WarningsRecorder
) -> None:
    tables = frames()
    tables["lab"] = tables["lab"].assign(iron=np.arange(80) % 7, zinc=np.arange(80) % 3)
    wild = splitnn(
        algorithm={"learning_rate": 2.0}, train={"epochs": 8, "early_stop": False}
    )
    Federation.from_toml(write(tmp_path / "tables", tables, wild)).fit(tmp_path / "run")
    recwarn.clear()
    found = measure(tmp_path / "run")
    assert not recwarn.list
    assert any(
        note.startswith("lab alone, trained to compare with: The model learned")
        for note in found["notes"]
    )
