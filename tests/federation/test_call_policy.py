"""[federation] deadline, retries and on_missing: what they do to a run, its records,
summary and predictions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from tests.federation.small import (
    equal,
    federation,
    learned_of,
    models_of,
    quick,
    settings_of,
    write,
)

from colonnade.core import Transport
from colonnade.errors import ConfigError, DataError, NoAnswer
from colonnade.federation import Federation, load
from colonnade.federation.call_policy import calibrated
from colonnade.transport import Fault, Faulty, Retrying

PLAIN = {"name": "fdml"}


def away(settings: dict[str, Any], faults: list[Fault]) -> Federation:
    """The small federation, with a network between its parties."""
    near = federation(settings=settings)

    def between(_: str, here: Transport) -> Transport:
        return Faulty(here, faults)

    far = Federation(near.settings, near.holdings, between=between)
    assert isinstance(far.peers.transport, Retrying)
    far.peers.transport.pause = 0.0
    return far


def fdml(**engine: Any) -> dict[str, Any]:
    engine = {"cohort": "off", "retries": 0, "deadline": 20.0, **engine}
    return quick(train={"epochs": 2, "early_stop": False}, federation=engine) | {
        "algorithm": PLAIN
    }


def test_lost_calls_are_made_again_and_the_run_is_the_same() -> None:
    quiet = federation(settings=fdml())
    lossy = away(fdml(retries=2), [Fault("fail", "lab", at=at) for at in (4, 9, 10)])
    assert [r["loss"] for r in quiet.fit().history] == [
        r["loss"] for r in lossy.fit().history
    ]
    assert equal(learned_of(quiet), learned_of(lossy))


def test_by_default_a_missing_party_ends_the_run_with_its_name(tmp_path: Path) -> None:
    with pytest.raises(
        NoAnswer,
        match=(
            r"'lab' failed while answering embedding\.Embed at batch train/1/0: the"
            r" call nev"
        ),
    ):
        away(fdml(), [Fault("drop", "lab", at=11)]).fit(tmp_path / "run")
    whole = federation(settings=fdml())
    whole.fit()
    resumed = federation(settings=fdml())
    resumed.fit(tmp_path / "run", resume=True)
    assert equal(models_of(whole), models_of(resumed))


def test_what_was_done_without_a_party_is_in_every_record_and_in_the_summary(
    tmp_path: Path,
) -> None:
    far = away(fdml(on_missing="skip"), [Fault("drop", "lab", at=at) for at in (2, 13)])
    outcome = far.fit(tmp_path / "run")
    lines = [
        json.loads(line)
        for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    ]
    assert [line["missing"] for line in lines] == [
        {"lab": {"skip": 1}},
        {"lab": {"not_updated": 1}},
    ]
    total = {"lab": {"skip": 1, "not_updated": 1}}
    assert (
        outcome.summary["missing"]
        == json.loads((tmp_path / "run" / "summary.json").read_text())["missing"]
        == total
    )
    assert "missing" not in federation(settings=fdml()).fit().summary


def test_a_party_that_stays_away_is_waited_for() -> None:
    far = away(
        fdml(on_missing="wait"), [Fault("drop", "lab", at=at) for at in range(5, 12)]
    )
    quiet = federation(settings=fdml())
    quiet.fit()
    far.fit()
    assert equal(models_of(quiet), models_of(far))


@pytest.mark.parametrize("rule", ["skip", "stale"])
def test_predictions_say_row_by_row_who_was_missing(rule: str) -> None:
    far = away(fdml(on_missing=rule), [])
    far.fit()
    whole = far.predict()
    assert whole.degraded == ("",) * 80
    far.peers.transport.inner.faults = [Fault("drop", "lab")]  # type: ignore[attr-defined]
    some = far.predict()
    assert some.degraded == ("lab",) * 80
    assert some.to_frame()["degraded"].tolist() == ["lab"] * 80
    scores = torch.from_numpy(some.scores), torch.from_numpy(whole.scores)
    # every row had been embedded with these very models
    assert torch.allclose(*scores) == (rule == "stale")
    assert "degraded" not in federation(settings=fdml()).predict().to_frame()
    with pytest.raises(NoAnswer, match="'lab' failed"):
        away(fdml(), [Fault("drop", "lab", at=2)]).predict()


def test_a_prediction_may_lack_a_partys_rows_or_its_whole_table(tmp_path: Path) -> None:
    file = write(tmp_path, settings=fdml(on_missing="skip"))
    Federation.from_toml(file).fit(tmp_path / "run")
    ids = ["P004", "P001", "P002", "P003"]
    whole = load(tmp_path / "run", ids=ids).predict(ids)
    lab = pd.read_csv(tmp_path / "lab.csv")
    lab[~lab["patient"].isin(["P001", "P003"])].to_csv(
        tmp_path / "lab.csv", index=False
    )
    one = load(tmp_path / "run", ids=ids)
    some = one.predict(ids)
    assert some.degraded == ("", "lab", "", "lab")
    assert some.scores[[0, 2]].tolist() == pytest.approx(whole.scores[[0, 2]])
    clinic: Any = one.owners["clinic"]
    alone = calibrated(
        one.algorithm, one.driver, ["lab"], clinic.model.eval()(clinic.features[[1, 3]])
    )
    assert torch.allclose(
        torch.from_numpy(some.scores[[1, 3]]), one.holdings.loss.scores(alone).double()
    )
    (tmp_path / "lab.csv").unlink()
    assert load(tmp_path / "run", ids=ids).predict(ids).degraded == ("lab",) * 4
    (tmp_path / "clinic.csv").write_text("patient,age,weight\nP001,1.0,2.0\n")
    with pytest.warns(UserWarning, match=r"3 of 4 ids cannot .*: clinic and lab \(3\)"):
        frame = load(tmp_path / "run", ids=ids).predict(ids).to_frame()
    assert frame["patient"].tolist() == ids
    held = frame["patient"] == "P001"
    assert frame["missing"].tolist() == [
        "" if is_held else "clinic lab" for is_held in held
    ]
    assert frame["degraded"].tolist() == ["lab" if is_held else "" for is_held in held]
    nobody = r"2 of 2 ids are in no party's table, such as 'P004'"
    with pytest.raises(DataError, match=nobody):
        load(tmp_path / "run", ids=["P004", "P002"])


def test_unless_it_is_allowed_a_row_that_a_party_lacks_is_an_error(
    tmp_path: Path,
) -> None:
    file = write(tmp_path, settings=fdml())
    Federation.from_toml(file).fit(tmp_path / "run")
    lab = pd.read_csv(tmp_path / "lab.csv")
    lab[lab["patient"] != "P001"].to_csv(tmp_path / "lab.csv", index=False)
    with pytest.raises(DataError, match="lab"):
        load(tmp_path / "run", ids=["P001"])


@pytest.mark.parametrize(
    ("algorithm", "rule", "allowed"),
    [
        (
            {"name": "splitnn", "combine": "concat"},
            "skip",
            '"fail", "wait", "stale"',
        ),
        ({"name": "vafl", "schedule": "turns"}, "stale", '"fail", "wait"'),
        (
            {"name": "vimadmm", "head_update": "exact"},
            "skip",
            '"fail", "wait", "stale"',
        ),
        ({"name": "vimadmm_joint", "aggregation": "secure"}, "skip", '"fail", "wait"'),
        ({"name": "compressed_vfl"}, "stale", '"fail", "wait"'),
        ({"name": "vfedcce"}, "skip", '"fail", "wait"'),
    ],
)
def test_what_the_maths_does_not_allow_is_refused_before_anything_is_read(
    algorithm: dict[str, Any], rule: str, allowed: str
) -> None:
    for fits in ("fail", "wait"):
        settings_of(algorithm=algorithm, federation={"on_missing": fits})
    with pytest.raises(ConfigError) as caught:
        settings_of(algorithm=algorithm, federation={"on_missing": rule})
    assert f"on_missing = {rule!r} cannot be used with {algorithm['name']}" in str(
        caught.value
    )
    assert str(caught.value).endswith(f"It allows {allowed}.")


@pytest.mark.parametrize(
    ("key", "value", "rule"),
    [
        ("deadline", 0, "a number above 0"),
        ("retries", -1, "a whole number, 0 or more"),
        ("on_missing", "zero", 'one of "fail", "wait", "stale", "skip"'),
    ],
)
def test_bad_settings_are_refused(key: str, value: Any, rule: str) -> None:
    with pytest.raises(ConfigError, match=rf"{key} must be {rule}; found {value!r}"):
        settings_of(federation={key: value})
