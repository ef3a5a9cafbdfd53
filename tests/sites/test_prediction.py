"""Predictions by organisations that know only their own files are those of one process, and are counted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from tests.federation.small import Frames, frames, quick
from tests.federation.small_sites import folders, line, lines_of, sites
from tests.federation.test_site import ALONE

from colonnade.errors import BoundaryError, BudgetExhausted, ConfigError, DataError
from colonnade.federation import Federation, load

SKIP = {"federation": {"device": "cpu", "cohort": "off", "on_missing": "skip", "retries": 0, "deadline": 5}}


def trained(base: Path, settings: Any = None, given: Frames | None = None) -> Path:
    """A run by sites, and the same in one process."""
    file, _ = folders(base, given, settings or quick(**ALONE))
    Federation.from_toml(file).fit(base / "here")
    every = sites(base)
    every["clinic"].drive(lines_of("clinic", every), "run")
    return base / "clinic" / "runs" / "run"


def asked(run: Path, ids: list[str], name: str = "new.csv") -> str:
    (run / "rows").mkdir(exist_ok=True)
    frame = pd.DataFrame({"patient": ids})
    frame.to_csv(run / "rows" / name, index=False) if name.endswith("csv") else frame.to_parquet(run / "rows" / name)
    return name


def told(base: Path, ids: list[str], name: str = "new.csv") -> pd.DataFrame:
    every, run = sites(base), base / "clinic" / "runs" / "run"
    out = every["clinic"].predict(lines_of("clinic", every), "run", asked(run, ids, name))
    assert out == run / "predictions" / name
    return pd.read_csv(out, keep_default_na=False) if name.endswith("csv") else pd.read_parquet(out)


def new_people(base: Path) -> list[str]:
    """Five more rows in both tables since training."""
    more = frames(rows=85, seed=3)
    for name in ("clinic", "lab"):
        path = base / "all" / f"{name}.csv"
        added = more[name][more[name]["patient"] >= "P080"]
        pd.concat([pd.read_csv(path), added.drop(columns="diagnosis", errors="ignore")]).to_csv(path, index=False)
    return ["P083", "P002", "P080"]


def same(one: pd.DataFrame, ids: list[str], here: Any) -> None:
    assert one["patient"].tolist() == ids
    assert one["prediction"].tolist() == here.labels.tolist()
    scores = one[[column for column in one.columns if column.startswith("score_")]].to_numpy()
    assert np.array_equal(scores, here.scores)


@pytest.mark.parametrize("align", ["exact", "private"])
def test_what_sites_predict_is_what_one_process_predicts(tmp_path: Path, align: str) -> None:
    """Also for rows that are new since training, in the order asked for."""
    if align == "private":
        pytest.importorskip("coincurve")
    run = trained(tmp_path, quick(**ALONE, data={"align": align}))
    ids = new_people(tmp_path)
    same(told(tmp_path, ids, "new.parquet"), ids, load(tmp_path / "here", ids=ids).predict(ids))
    after = tmp_path / "lab" / "runs" / "run" / "parties" / "lab" / "ledger-after.jsonl"
    left = [json.loads(one) for one in after.read_text().splitlines()]
    assert [(one["direction"], one["batch"], one["shape"]) for one in left if one["name"] == "embedding"] == [
        ("out", "predict[0:3]", [3, 4])
    ]
    words = (tmp_path / "lab" / "runs" / "run" / "parties" / "lab" / "ledger-after.jsonl").read_text()
    assert ("asked_ids" in words) == (align == "exact"), "what crossed to find the rows is written down"
    assert "P083" not in words
    assert (run / "summary.json").exists()


def test_an_id_that_a_party_lacks_is_an_error_before_anything_is_released(tmp_path: Path) -> None:
    run = trained(tmp_path)
    with pytest.raises(DataError, match="'clinic' holds no row for 1 of 2 ids, such as 'P999'"):
        told(tmp_path, ["P001", "P999"])
    assert not (run / "predictions").exists()
    assert not list((tmp_path / "lab").rglob("ledger-after.jsonl"))


def test_where_parties_may_be_missing_rows_say_who_was(tmp_path: Path) -> None:
    trained(tmp_path, quick(**SKIP))
    table = tmp_path / "all" / "lab.csv"
    frame = pd.read_csv(table)
    frame[frame["patient"] != "P002"].to_csv(table, index=False)
    ids = ["P003", "P002", "P001"]
    found = told(tmp_path, ids)
    here = load(tmp_path / "here", ids=ids).predict(ids)
    same(found, ids, here)
    assert found["degraded"].tolist() == ["", "lab", ""] == list(here.degraded or ())
    run = tmp_path / "clinic" / "runs" / "run"
    out = sites(tmp_path)["clinic"].predict({}, "run", asked(run, ids))  # the laboratory's site is down
    assert pd.read_csv(out)["degraded"].tolist() == ["lab"] * 3


def test_an_organisation_that_falls_silent_is_left_out_or_ends_it(tmp_path: Path) -> None:
    trained(tmp_path, quick(**SKIP))
    every, run = sites(tmp_path), tmp_path / "clinic" / "runs" / "run"
    inner = line(every["lab"], "clinic")

    def silent(data: bytes, deadline: float) -> bytes:
        if b"Embed" in data:
            raise ConnectionError("gone")
        return inner(data, deadline)

    out = every["clinic"].predict({"lab": silent}, "run", asked(run, ["P001", "P002"]))
    assert pd.read_csv(out)["degraded"].tolist() == ["lab"] * 2


def test_predictions_are_paid_from_the_one_budget(tmp_path: Path) -> None:
    pytest.importorskip("dp_accounting")
    rules = {"embedding": {"mechanism": {"name": "gaussian", "clip": 1.0, "sigma": 8.0}}}
    private = {"lab": {"outbox": rules, "budget": {"epsilon": 4.0, "delta": 1e-5}}}
    trained(tmp_path, quick(train={"epochs": 1}, parties=private, **ALONE))
    times = 0
    while times < 50:
        try:
            told(tmp_path, ["P001"])
            times += 1
        except BudgetExhausted:
            break
    assert 2 < times < 50
    with pytest.raises(BudgetExhausted):  # and another run has nothing left for this row
        told(tmp_path, ["P001"])


@pytest.mark.parametrize(
    "rows", ["../party.toml", "/etc/passwd", "a/b.csv", "", ".csv", "x..csv", "rows.txt", "a b.csv"]
)
def test_what_to_predict_is_named_by_a_plain_file_name(tmp_path: Path, rows: str) -> None:
    folders(tmp_path)
    every = sites(tmp_path)
    with pytest.raises(ConfigError, match="and no path"):
        every["clinic"].predict(lines_of("clinic", every), "run", rows)


def test_only_the_driver_predicts_and_only_what_is_there(tmp_path: Path) -> None:
    folders(tmp_path)
    every = sites(tmp_path)
    with pytest.raises(BoundaryError, match="'lab' does not drive"):
        every["lab"].predict(lines_of("lab", every), "run", "new.csv")
    with pytest.raises(DataError, match=r"There is no file .*new\.csv with the ids to predict"):
        every["clinic"].predict(lines_of("clinic", every), "run", "new.csv")
