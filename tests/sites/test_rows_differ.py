"""Rows that not everybody holds, between sites: a partner knows its own rows, and the
label owner who holds which."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from tests.federation.small_sites import folders, sites
from tests.federation.test_rows_differ import ABLE, settings, three

from colonnade.errors import ConfigError
from colonnade.federation import Federation
from colonnade.runs.run_directory import RunDirectory
from colonnade.sites.driving import drive
from colonnade.sites.prediction import predict

TREES: dict[str, Any] = {"name": "boosted_trees", "depth": 2, "bins": 4}
ALONE = {"device": "cpu", "cohort": "off"}


def between(algorithm: dict[str, Any], **more: Any) -> dict[str, Any]:
    data = {"align": "private", "stratify": False}
    return settings(algorithm, data=data, federation=ALONE, **more)


@pytest.mark.parametrize(
    "algorithm", [ABLE[0], ABLE[1], TREES], ids=["fdml", "vimadmm", "trees"]
)
def test_sites_train_as_one_process_does(
    tmp_path: Path, algorithm: dict[str, Any]
) -> None:
    file, _ = folders(
        tmp_path, three(), between(algorithm, train={"party_dropout": 0.3})
    )
    every = sites(tmp_path)
    outcome = drive(every["clinic"], "first")
    here = Federation.from_toml(file).fit(tmp_path / "here")
    assert outcome.summary["metrics"] == here.summary["metrics"]
    # some scores are NaN
    assert repr(outcome.summary["subsets"]) == repr(here.summary["subsets"])
    assert list(here.summary["subsets"]["test"]) == [
        "everybody",
        "without lab",
        "without shop",
        "label owner alone",
    ]
    for name in ("lab", "shop"):
        summary = RunDirectory(tmp_path / name / "runs" / "first").summary()
        assert summary is not None
        moved = outcome.summary["bytes"]["clinic"], summary["bytes"][name]
        assert 0 < moved[1]["out"] < moved[0]["in"]
        assert summary["rows"]["train"] < here.summary["rows"]["train"]


def test_a_partner_knows_its_own_rows_and_of_the_others_nothing(tmp_path: Path) -> None:
    frames = three()
    folders(tmp_path, frames, between(ABLE[0]))
    every = sites(tmp_path)
    clinic = set(frames["clinic"]["patient"])
    seen: dict[str, set[str]] = {}
    lab = every["lab"]
    original = lab.serve

    def serve(participant: Any, resumed: int | None, askers: Any) -> None:
        seen["lab"] = set(participant.ids.tolist())
        original(participant, resumed, askers)

    lab.serve = serve  # type: ignore[method-assign]
    drive(every["clinic"], "first")
    assert seen["lab"] == clinic & set(frames["lab"]["patient"])
    ledger = (
        tmp_path / "lab" / "runs" / "first" / "parties" / "lab" / "ledger.jsonl"
    ).read_text()
    assert '"peer":"clinic"' in ledger
    assert "shop" not in ledger


@pytest.mark.parametrize("algorithm", [ABLE[0], TREES], ids=["fdml", "trees"])
def test_any_subset_is_predicted_and_said(
    tmp_path: Path, algorithm: dict[str, Any]
) -> None:
    frames = three()
    folders(tmp_path, frames, between(algorithm))
    drive(sites(tmp_path)["clinic"], "first")
    rows = tmp_path / "clinic" / "runs" / "first" / "rows"
    rows.mkdir(exist_ok=True)
    ids = frames["clinic"]["patient"].tolist()
    pd.DataFrame({"patient": ids}).to_csv(rows / "wanted.csv", index=False)
    out = predict(sites(tmp_path)["clinic"], "first", "wanted.csv")
    found = pd.read_csv(out, dtype=str, keep_default_na=False)
    held = {name: set(frames[name]["patient"]) for name in ("lab", "shop")}
    assert found["degraded"].tolist() == [
        " ".join(n for n in held if one not in held[n]) for one in ids
    ]


def test_sites_resume_bit_equal(tmp_path: Path) -> None:
    found = {}
    for name, first in (("straight", 3), ("twice", 1)):
        base = tmp_path / name
        folders(base, three(), between(ABLE[1], train={"epochs": first}))
        outcome = drive(sites(base)["clinic"], "run")
        if first < 3:
            for agreed in base.glob("*/federation.toml"):
                agreed.write_text(
                    agreed.read_text().replace("epochs = 1", "epochs = 3")
                )
            outcome = drive(sites(base)["clinic"], "run", resume=True)
        found[name] = outcome.summary["metrics"]["test"]
    assert np.isfinite(found["straight"]["loss"])
    assert found["straight"] == found["twice"]


def test_ids_are_compared_privately(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError,
        match=r"which of its rows a partner holds by \[data\] align = .private.",
    ):
        folders(tmp_path, three(), settings(ABLE[0]))
