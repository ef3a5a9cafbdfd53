"""Predictions by organisations that know only their own files are those of one process,
and are counted; only who holds labels may ask."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from tests.federation.small import frames as small_frames
from tests.federation.small import quick
from tests.federation.small_multi import COLUMNS, GAUSSIAN, LABELS, frames
from tests.federation.small_multi_sites import public_folders
from tests.federation.small_sites import (
    ALONE,
    SKIP,
    ask,
    asked,
    folders,
    new_people,
    sites,
    told,
    trained,
)
from tests.sites.kinds import each_kind, made, trains

from colonnade.core import Outbox
from colonnade.errors import (
    BoundaryError,
    BudgetExhausted,
    CheckpointError,
    ConfigError,
    DataError,
    NoAnswer,
    PartyError,
)
from colonnade.federation import Federation, Predictions, load
from colonnade.settings.selection import SERVER
from colonnade.sites.driving import drive
from colonnade.sites.messages import Prepare, Save
from colonnade.sites.prediction import predict
from colonnade.sites.reader import Enough, Look, Take
from colonnade.sites.site import Site
from colonnade.transport.remote import Route

IDS = ["P083", "P002", "P120"]
ROUND = {"epochs": 1, "batch_size": 64}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of several label owners by sites, and the same in one process."""
    base = tmp_path_factory.mktemp("several")
    file = made(base, "several", train=ROUND, federation={"retries": 0, "deadline": 5})
    Federation.from_toml(file).fit(base / "here")
    trains(base, "several")
    return base


def hospital(base: Path, owner: str = "north") -> Site:
    """The asking label owner, and the data owners; nobody else is needed."""
    return sites(base, (owner, *COLUMNS))[owner]


def told_by(asks: Site, ids: list[str], model: str | None = None) -> pd.DataFrame:
    run = asks.own.runs / "run"
    out = predict(asks, "run", asked(run, ids), model)
    assert out == run / "predictions" / "new.csv"
    return pd.read_csv(out)


def same(one: pd.DataFrame, here: Predictions) -> None:
    assert one["patient"].tolist() == here.ids.tolist()
    assert one["prediction"].tolist() == here.labels.tolist()
    assert np.array_equal(
        one[[f"score_{name}" for name in here.classes]].to_numpy(), here.scores
    )
    assert ("degraded" in one) == (here.degraded is not None), (
        "only where somebody may be missing"
    )


def after(base: Path, name: str) -> str:
    """What a party wrote down since training."""
    path = base / name / "runs" / "run" / "parties" / name / "ledger-after.jsonl"
    return path.read_text() if path.exists() else ""


def embeddings(base: Path, name: str = "lab") -> list[tuple[str, str, list[int]]]:
    left = map(json.loads, after(base, name).splitlines())
    return [
        (one["direction"], one["batch"], one["shape"])
        for one in left
        if one["name"] == "embedding"
    ]


def silent(inner: Route) -> Route:
    """It does not answer when it is to compute."""

    def line(data: bytes, deadline: float) -> bytes:
        if b"Embed" in data:
            raise ConnectionError("gone")
        return inner(data, deadline)

    return line


@pytest.mark.parametrize("align", ["exact", "private"])
def test_what_sites_predict_is_what_one_process_predicts(
    tmp_path: Path, align: str
) -> None:
    """Also for rows that are new since training, in the order asked for."""
    run = trained(tmp_path, quick(**ALONE, data={"align": align}))
    ids = new_people(tmp_path)
    same(
        told(tmp_path, ids, "new.parquet"),
        load(tmp_path / "here", ids=ids).predict(ids),
    )
    assert embeddings(tmp_path) == [("out", "predict[0:3]", [3, 4])]
    words = after(tmp_path, "lab")
    assert ("asked_ids" in words) == (align == "exact"), (
        "what crossed to find the rows is written down"
    )
    assert "P083" not in words
    assert (run / "summary.json").exists()


TREES = {
    "algorithm": {
        "name": "boosted_trees",
        "encryption": "none",
        "depth": 8,
        "min_rows": 1,
        "learning_rate": 0.05,
    },
    "train": {"epochs": 20, "early_stop": False},
}


def test_answers_that_one_message_has_no_room_for_are_asked_for_in_pieces(
    tmp_path: Path,
) -> None:
    """Of trees, an answer has a number for each row and split: here 2 MiB where the
    sites let a message have one. Each piece is in the ledger, each row once."""
    given = small_frames(rows=900, task="classes")
    settings = quick(**ALONE) | TREES
    file, _ = folders(tmp_path, given, settings)
    for name in ("clinic", "lab"):
        own = tmp_path / name / "party.toml"
        own.write_text("memory_per_call = 1\n" + own.read_text())
    Federation.from_toml(file).fit(tmp_path / "here")
    drive(sites(tmp_path)["clinic"], "run")
    ids = given["clinic"]["patient"].tolist()
    whole = load(tmp_path / "here", ids=ids)
    splits = whole.label_owners["clinic"].bytes_per_row(torch.arange(900)) // 4
    assert splits * 900 * 4 > 1 << 20

    same(told(tmp_path, ids, "new.parquet"), whole.predict(ids))

    out = [
        json.loads(line)
        for line in after(tmp_path, "lab").splitlines()
        if json.loads(line)["name"] == "directions"
    ]
    assert len(out) > 1
    assert sum(entry["shape"][0] for entry in out) == 900
    assert max(4 * math.prod(entry["shape"]) for entry in out) <= 1 << 19


def test_so_do_several_label_owners_with_either_model(run: Path) -> None:
    """To the bit, by any label owner's and the aggregated model, in the order asked
    for, also of rows that are new."""
    for name in COLUMNS:
        path = run / "all" / f"{name}.csv"
        more = frames(155)[name]
        pd.concat([pd.read_csv(path), more[more["patient"] >= "P150"]]).to_csv(
            path, index=False
        )
    ids = [*IDS, "P152"]
    seen = []
    before = len(embeddings(run))
    for owner in LABELS:
        for model in ("aggregated", "own"):
            found = told_by(hospital(run, owner), ids, model)
            here = load(run / "here", ids=ids, owner=owner)
            same(found, here.predict(ids, owner=owner, model=model))
            seen.append(tuple(found.iloc[:, -2]))
    assert len(set(seen)) == 3, "the aggregated one is the same at both"
    assert embeddings(run)[before:] == [
        ("out", f"{owner}:predict[0:4]", [4, 4]) for owner in LABELS for _ in range(2)
    ]
    for name in ("lab", "north"):
        assert "asked_ids" not in after(run, name), "ids are compared privately"
        assert "P152" not in after(run, name)


def left_out(base: Path, name: str, ids: list[str]) -> None:
    """Take these rows out of a party's table."""
    path = base / "all" / f"{name}.csv"
    frame = pd.read_csv(path)
    frame[~frame["patient"].isin(ids)].to_csv(path, index=False)


@pytest.mark.parametrize("align", ["exact", "private"])
def test_an_id_that_a_party_lacks_is_named_and_the_others_are_predicted(
    tmp_path: Path, align: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Nobody is asked about a row that the asker itself would have to hold, and no id is
    in the log."""
    trained(tmp_path, quick(**ALONE, data={"align": align}))
    left_out(tmp_path, "lab", ["P002", "P005"])
    left_out(tmp_path, "clinic", ["P004", "P005"])
    ids = ["P999", "P003", "P002", "P001", "P004", "P005"]

    found = told(tmp_path, ids)

    assert found["patient"].tolist() == ids
    assert found["missing"].tolist() == ["clinic", "", "lab", "", "clinic", "clinic"]
    here = load(tmp_path / "here", ids=["P003", "P001"]).predict(["P003", "P001"])
    assert found["prediction"].tolist() == [
        "",
        here.labels[0],
        "",
        here.labels[1],
        "",
        "",
    ]
    predicted = found[found["missing"] == ""].astype({"score_ill": float})
    assert predicted["score_ill"].tolist() == here.scores[:, 0].tolist()
    assert embeddings(tmp_path) == [("out", "predict[0:2]", [2, 4])]
    words = "4 of 6 ids cannot be predicted, since a table that is needed lacks them:"
    assert f"{words} clinic (3), lab (1)." in caplog.text
    assert not any(name in caplog.text for name in ids)


def test_where_no_id_can_be_predicted_that_is_an_error(tmp_path: Path) -> None:
    run = trained(tmp_path)
    left_out(tmp_path, "lab", ["P002"])
    with pytest.raises(DataError, match=r"2 of 2 ids .*: clinic \(1\), lab \(1\)"):
        told(tmp_path, ["P999", "P002"])
    assert not (run / "predictions").exists()
    assert not embeddings(tmp_path)


def test_with_strict_it_is_an_error_before_anything_is_released(tmp_path: Path) -> None:
    run = trained(tmp_path)
    name = asked(run, ["P001", "P999"])
    words = (
        "'clinic' holds no row for 1 of 2 ids, the first of them number 2 in the file"
    )
    with pytest.raises(DataError, match=words):
        predict(sites(tmp_path)["clinic"], "run", name, strict=True)
    assert not (run / "predictions").exists()
    assert not list((tmp_path / "lab").rglob("ledger-after.jsonl"))
    left_out(tmp_path, "lab", ["P001"])
    with pytest.raises(DataError, match="'lab' holds no row for 1 of 2 ids"):
        predict(
            sites(tmp_path)["clinic"], "run", asked(run, ["P002", "P001"]), strict=True
        )
    assert not embeddings(tmp_path)


def test_so_it_is_where_several_ask_and_no_data_owner_may_be_missing(run: Path) -> None:
    before = embeddings(run)
    north = hospital(run)
    name = asked(north.own.runs / "run", ["P001", "P999"])
    words = r"'lab' holds no row for 1 of 2 ids, .* \d in the file\. .* every table holds\.$"
    with pytest.raises(DataError, match=words):
        predict(north, "run", name, strict=True)
    assert embeddings(run) == before
    found = told_by(hospital(run), ["P001", "P999"]).fillna({"missing": ""})
    assert found["missing"].tolist() == ["", "lab scan"]
    south = hospital(run, "south")
    told_by(south, IDS)
    south.routes["lab"] = silent(south.routes["lab"])
    with pytest.raises(NoAnswer, match="'lab'"):
        told_by(south, ["P001"])
    left = pd.read_csv(run / "south" / "runs" / "run" / "predictions" / "new.csv")
    assert left["patient"].tolist() == IDS, "nothing is written"


@pytest.mark.parametrize("on_missing", ["skip", "stale"])
def test_where_parties_may_be_missing_rows_say_who_was(
    tmp_path: Path, on_missing: str
) -> None:
    trained(
        tmp_path, quick(federation={**SKIP["federation"], "on_missing": on_missing})
    )
    table = tmp_path / "all" / "lab.csv"
    frame = pd.read_csv(table)
    frame[frame["patient"] != "P002"].to_csv(table, index=False)
    ids = ["P003", "P002", "P001"]
    found = told(tmp_path, ids)
    here = load(tmp_path / "here", ids=ids).predict(ids)
    same(found, here)
    assert found["degraded"].tolist() == ["", "lab", ""] == list(here.degraded or ())
    clinic = sites(tmp_path)["clinic"]
    clinic.routes["lab"] = silent(clinic.routes["lab"])
    assert told_by(clinic, ["P001", "P003"])["degraded"].tolist() == ["lab"] * 2
    clinic = sites(tmp_path, ["clinic"])["clinic"]  # the laboratory's site is down
    assert told_by(clinic, ids)["degraded"].tolist() == ["lab"] * 3


def test_predictions_are_paid_from_the_one_budget(tmp_path: Path) -> None:
    rules = {
        "embedding": {"mechanism": {"name": "gaussian", "clip": 1.0, "sigma": 8.0}}
    }
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
    # and another run has nothing left for this row
    with pytest.raises(BudgetExhausted):
        told(tmp_path, ["P001"])


def test_so_they_are_whoever_of_several_asks(tmp_path: Path) -> None:
    lab = {"name": "lab", "budget": {"epsilon": 5.0, "delta": 1e-5}, "outbox": GAUSSIAN}
    made(tmp_path, "several", train=ROUND, data_owners=[lab])
    trains(tmp_path, "several")
    times = 0
    while times < 40:
        try:
            told_by(hospital(tmp_path, LABELS[times % 2]), ["P080"])  # known to both
            times += 1
        except BudgetExhausted:
            break
    assert 2 < times < 40
    for owner in LABELS:
        with pytest.raises(BudgetExhausted):
            told_by(hospital(tmp_path, owner), ["P080"])
    assert len(told_by(hospital(tmp_path), ["P001"])) == 1, "other rows have some left"


def test_only_label_owners_ask_and_data_owners_answer_one_at_a_time(run: Path) -> None:
    every = sites(run)
    lab = every["lab"]
    north = every["north"]
    look = Look("run", 2, 2, None)
    held = list[str]()
    for caller, why in (
        ("bank", "no party of its federation"),
        ("scan", "to ask"),
        (SERVER, "to ask"),
    ):
        for request in (look, Enough()):
            with pytest.raises(BoundaryError, match=why):
                ask(lab, caller, request)
    with pytest.raises(PartyError, match="no alignment found any"):
        ask(lab, "north", look)
    take = Take(Outbox("south", torch.Generator()).release(torch.tensor([0]), "asked"))
    refused: list[tuple[Any, str]] = [
        (one, "it answers 'north' now") for one in (look, take, Enough())
    ]
    refused += [
        (Prepare("run", 1, False), "it answers a prediction now"),
        (Save(9, 9, 1), "not prepared for a run"),
    ]
    inner = north.routes["lab"]

    def watched(data: bytes, deadline: float) -> bytes:
        if b"Embed" in data:  # south comes while north predicts
            for request, why in refused:
                with pytest.raises(PartyError, match=why):
                    ask(lab, "south", request)
                held.append(why)
        return inner(data, deadline)

    north.routes["lab"] = watched
    told_by(north, IDS)
    assert len(held) == len(refused)
    assert lab.participant is None


@each_kind
def test_only_who_holds_labels_predicts_and_only_what_is_there(
    tmp_path: Path, kind: str
) -> None:
    made(tmp_path, kind)
    every = sites(tmp_path)
    asks = {"one": ["clinic"], "several": list(LABELS)}[kind]
    for name in every.keys() - set(asks):
        with pytest.raises(
            BoundaryError,
            match=f"'{name}' does not predict; .* does: {', '.join(asks)}",
        ):
            predict(every[name], "run", "new.csv")
    with pytest.raises(ConfigError, match="A run's name has letters"):
        predict(every[asks[0]], "../run", "new.csv")
    with pytest.raises(
        DataError, match=r"There is no file .*new\.csv with the ids to predict"
    ):
        predict(every[asks[0]], "run", "new.csv")
    wrong = [
        "../party.toml",
        "/etc/passwd",
        "a/b.csv",
        "",
        ".csv",
        "x..csv",
        "rows.txt",
        "a b.csv",
    ]
    for rows in wrong:  # a plain file name, and no path
        with pytest.raises(ConfigError, match="and no path"):
            predict(every[asks[0]], "run", rows)


def test_a_model_or_a_checkpoint_that_is_not_there_is_told(run: Path) -> None:
    with pytest.raises(
        ConfigError, match="called 'best': it predicts by one of aggregated, own"
    ):
        told_by(hospital(run), IDS, "best")
    other = run / "north" / "runs" / "other"
    other.mkdir()
    with pytest.raises(CheckpointError, match="there is nothing to go on from"):
        predict(hospital(run), "other", asked(other, IDS))


def test_rows_of_a_public_data_set_are_predicted_too(tmp_path: Path) -> None:
    whole, columns = public_folders(tmp_path)
    whole.fit(tmp_path / "here")
    trains(tmp_path, "several")
    ids = whole.holdings.label_owners["north"].ids[:5].tolist()
    run = tmp_path / "north" / "runs" / "run"
    (run / "rows").mkdir()
    pd.DataFrame({"id": ids}).to_csv(run / "rows" / "new.csv", index=False)
    found = pd.read_csv(
        predict(sites(tmp_path, ("north", *columns))["north"], "run", "new.csv", "own")
    )
    mine = whole.predict(ids, owner="north", model="own")
    assert np.array_equal(
        found[[f"score_{name}" for name in mine.classes]].to_numpy(), mine.scores
    )
