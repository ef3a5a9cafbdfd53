"""One session between sites answers many batches as one process would. Whole files:
test_prediction.py."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from tests.federation.small import quick
from tests.federation.small_sites import ALONE, SKIP, new_people, sites, trained

from colonnade.errors import BudgetExhausted, NoAnswer, PartyError
from colonnade.federation import Predictions, load
from colonnade.sites.messages import Prepare
from colonnade.sites.prediction import Session


def opened(base: Path) -> Session:
    return Session(sites(base)["clinic"], "run")


def failing(base: Path, down: list[bool], words: Sequence[bytes] = (b"",)) -> Session:
    """The laboratory does not answer calls with these words while it is down."""
    clinic = sites(base)["clinic"]
    inner = clinic.routes["lab"]

    def sometimes(data: bytes, deadline: float) -> bytes:
        if down and any(word in data for word in words):
            raise ConnectionError("gone")
        return inner(data, deadline)

    clinic.routes["lab"] = sometimes
    return Session(clinic, "run")


def asked(session: Session, ids: list[str]) -> Predictions:
    rows = session.own_part(np.array(ids))
    session.look(rows)
    ((places, found),) = session.ask(rows)
    assert places.tolist() == list(range(len(ids)))
    return found


def same(found: Predictions, here: Predictions) -> None:
    assert found.ids.tolist() == here.ids.tolist()
    assert found.labels.tolist() == here.labels.tolist()
    assert np.array_equal(found.scores, here.scores)


@pytest.mark.parametrize("align", ["exact", "private"])
def test_batch_after_batch_is_what_one_process_predicts(
    tmp_path: Path, align: str
) -> None:
    """Also of rows that come into the tables while the session is open."""
    trained(tmp_path, quick(**ALONE, data={"align": align}))
    session = opened(tmp_path)
    for ids in (["P003", "P001"], ["P001"], ["P007", "P002", "P003"]):
        same(asked(session, ids), load(tmp_path / "here", ids=ids).predict(ids))
    ids = new_people(tmp_path)
    same(asked(session, ids), load(tmp_path / "here", ids=ids).predict(ids))
    session.close()
    after = tmp_path / "lab" / "runs" / "run" / "parties" / "lab" / "ledger-after.jsonl"
    left = [json.loads(one) for one in after.read_text().splitlines()]
    assert [one["shape"][0] for one in left if one["name"] == "embedding"] == [
        2,
        1,
        3,
        3,
    ]
    assert session.site.participant is None


def test_only_some_of_the_rows_that_were_looked_for_may_be_predicted(
    tmp_path: Path,
) -> None:
    trained(tmp_path)
    session = opened(tmp_path)
    rows = session.own_part(np.array(["P001", "P002", "P003"]))
    session.look(rows)
    ((_, found),) = session.ask(rows, torch.tensor([2, 0]))
    same(found, load(tmp_path / "here", ids=["P003", "P001"]).predict(["P003", "P001"]))


def test_what_somebody_lacks_is_known_before_anything_is_released(
    tmp_path: Path,
) -> None:
    trained(tmp_path)
    table = tmp_path / "all" / "lab.csv"
    frame = pd.read_csv(table)
    frame[frame["patient"] != "P002"].to_csv(table, index=False)
    session = opened(tmp_path)
    rows = session.own_part(np.array(["P001", "P002", "P999"]))
    session.look(rows)
    names = session.names
    assert rows.lacking(names, lenient=False).tolist() == [False, True, True]
    assert rows.lacking(names, lenient=True).tolist() == [False, False, True]
    after = tmp_path / "lab" / "runs" / "run" / "parties" / "lab" / "ledger-after.jsonl"
    assert "embedding" not in after.read_text()


@pytest.mark.parametrize("lost", ["Look", "Take", "Embed"])
def test_who_falls_silent_is_left_out_of_that_batch_and_comes_back(
    tmp_path: Path, lost: str
) -> None:
    trained(tmp_path, quick(**SKIP))
    down = list[bool]()
    session = failing(tmp_path, down, (lost.encode(), b"Ping"))
    whole = asked(session, ["P001", "P002"])
    assert whole.degraded == ("", "")
    down.append(True)
    alone = asked(session, ["P001", "P002"])
    assert alone.degraded == ("lab", "lab")
    assert not np.array_equal(whole.scores, alone.scores)
    down.clear()
    same(asked(session, ["P001", "P002"]), whole)


def test_where_nobody_may_be_missing_silence_is_an_error_and_the_session_goes_on(
    tmp_path: Path,
) -> None:
    calm = {
        "federation": {"device": "cpu", "cohort": "off", "retries": 0, "deadline": 5}
    }
    trained(tmp_path, quick(**calm))
    down = list[bool]()
    session = failing(tmp_path, down)
    down.append(True)
    with pytest.raises(NoAnswer, match="'lab'"):
        asked(session, ["P001"])
    down.clear()
    same(
        asked(session, ["P001"]),
        load(tmp_path / "here", ids=["P001"]).predict(["P001"]),
    )


def test_a_run_under_way_is_not_broken_off_to_predict(tmp_path: Path) -> None:
    trained(tmp_path)
    every = sites(tmp_path)
    every["lab"].take_part(
        tmp_path / "lab" / "runs" / "other", None, Prepare("other", 1, False)
    )
    with pytest.raises(PartyError, match="it takes part in a run already"):
        asked(Session(every["clinic"], "run"), ["P001"])


def test_batches_are_paid_from_the_one_budget_and_rows_that_have_some_left_go_on(
    tmp_path: Path,
) -> None:
    rules = {
        "embedding": {"mechanism": {"name": "gaussian", "clip": 1.0, "sigma": 8.0}}
    }
    private = {"lab": {"outbox": rules, "budget": {"epsilon": 2.5, "delta": 1e-5}}}
    trained(tmp_path, quick(train={"epochs": 1}, parties=private, **ALONE))
    session = opened(tmp_path)
    times = 0
    while times < 50:
        try:
            asked(session, ["P001"])
            times += 1
        except BudgetExhausted:
            break
    assert 1 < times < 50
    asked(session, ["P002"])
    session.close()
    again = opened(tmp_path)
    with pytest.raises(BudgetExhausted):
        asked(again, ["P001"])
    asked(again, ["P002"])
