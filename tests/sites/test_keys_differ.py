"""Rows matched by several keys of which partners lack some: each partner by its own
keys with the label owner, between sites as in one process."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from tests.alignment.people import DATA, ID, people, settings
from tests.federation.small import checkpoint_of
from tests.federation.small_sites import saved, sites
from tests.sites.kinds import same_bits
from tests.sites.test_keys import made, rows_that_paid

from colonnade import Federation, load
from colonnade.core.by_id import numbers_of
from colonnade.sites.driving import drive
from colonnade.sites.prediction import predict


def three() -> dict[str, Any]:
    """A laboratory that knows most people by one of three keys, and a shop that knows
    some by their phone alone."""
    frames = people()
    number = np.arange(0, 90, 2)
    shop = pd.DataFrame(
        {"mobile": [f"0041 79 {n:07d}" for n in number], "spent": np.sin(number)}
    )
    return {**frames, "lab": frames["lab"].iloc[:80], "shop": shop.iloc[::-1]}


def given(**more: Any) -> dict[str, Any]:
    data = {
        **DATA,
        "rows": "label_owner",
        "id": ["email", ["name", "birth_date"], "phone"],
    }
    made = settings(data=data, **more)
    made["parties"]["shop"] = {"id": ["", "", "mobile"]}
    return made


def test_each_partner_goes_by_its_own_keys() -> None:
    """All rows of the label owner train, called as it calls them; a row has the columns
    of the person that it is."""
    frames = three()
    federation = Federation.from_frames(frames, id=ID, label="ill", settings=given())
    holdings = federation.holdings
    emails = frames["clinic"]["email"].tolist()
    assert holdings.ids.tolist() == sorted(emails)
    people_of_row = np.array([emails.index(one) for one in holdings.ids.tolist()])
    held = {name: ~holdings.away[name].numpy() for name in ("lab", "shop")}
    assert people_of_row[held["shop"]].tolist() == [
        n for n in people_of_row if n % 2 == 0
    ]
    assert holdings.matched["shop"] == {"email": 0, "name + birth_date": 0, "phone": 45}
    assert sum(holdings.matched["lab"].values()) == held["lab"].sum() == 70
    for name, column in (("lab", "iron"), ("shop", "spent")):
        prepared = holdings.columns[name].preprocessor
        assert prepared is not None
        true = (
            people()["lab"].iloc[10:].iloc[::-1]["iron"].to_numpy()
            if name == "lab"
            else np.sin(np.arange(90))
        )
        mine = holdings.columns[name].features[held[name]][:, 0].numpy()
        order = true[people_of_row[held[name]]].argsort()
        assert (np.diff(mine[order]) >= 0).all(), f"{column} of another person"
    own = holdings.own_ids("shop")[held["shop"]].tolist()
    assert own[0].startswith("key 3: +4179")


def test_rows_are_predicted_by_whoever_holds_them_and_ids_go_by_the_rules(
    tmp_path: Path,
) -> None:
    frames = three()
    trained = Federation.from_frames(frames, id=ID, label="ill", settings=given())
    outcome = trained.fit(tmp_path / "run")
    assert outcome.summary["matched"]["shop"]["phone"] == 45
    again = load(tmp_path / "run", ids="all", frames=frames)
    wanted = ["P85@X.org ", "p84@x.org", "p83@X.ORG"]
    found = again.predict(wanted)
    here = trained.predict(wanted)
    assert found.ids.tolist() == wanted
    assert found.degraded == here.degraded == ("shop", "", "shop")
    assert np.allclose(found.scores, here.scores)


def test_sites_train_as_one_process_does(tmp_path: Path) -> None:
    file = made(
        tmp_path, given(alignment={"protocol": "helper", "helper": "trust"}), three()
    )
    here = Federation.from_toml(file).fit(tmp_path / "here")
    outcome = drive(sites(tmp_path)["clinic"], "run")
    assert outcome.summary["matched"] == here.summary["matched"]
    assert outcome.summary["metrics"] == here.summary["metrics"]
    same_bits(checkpoint_of(tmp_path / "here"), saved(tmp_path, "run"))
    run = tmp_path / "clinic" / "runs" / "run"
    (run / "rows").mkdir(exist_ok=True)
    pd.DataFrame({"email": ["P84@X.ORG", "p85@x.org"]}).to_csv(
        run / "rows" / "wanted.csv", index=False
    )
    found = pd.read_csv(
        predict(sites(tmp_path)["clinic"], "run", "wanted.csv"), keep_default_na=False
    )
    assert found["degraded"].tolist() == ["", "shop"]


def test_a_partner_is_told_numbers_from_which_no_other_key_can_be_guessed(
    tmp_path: Path,
) -> None:
    """The shop knows a phone number; whoever guesses the e-mail address behind it must
    not be able to test that."""
    made(tmp_path, given(), three(), models=None)
    every = sites(tmp_path)
    told = {}
    original = every["shop"].take_part

    def take_part(*given: Any) -> None:
        told["numbers"] = given[-1].numbers.tensor
        original(*given)

    every["shop"].take_part = take_part  # type: ignore[method-assign,assignment]
    drive(every["clinic"], "run")
    emails = three()["clinic"]["email"]
    guesses = set(numbers_of(emails, 0).tolist())
    assert len(told["numbers"]) == 45
    assert not guesses & set(told["numbers"].tolist())
    ledger = (
        tmp_path / "shop" / "runs" / "run" / "parties" / "shop" / "ledger.jsonl"
    ).read_text()
    assert '"batch_numbers"' in ledger
    # with the same numbers, or it would be refused
    again = drive(sites(tmp_path)["clinic"], "run", resume=True)
    assert again.summary["rounds"] > 0


def test_a_row_pays_once_by_whatever_key_it_was_matched(tmp_path: Path) -> None:
    noisy = {
        "embedding": {"mechanism": {"name": "gaussian", "clip": 1.0, "sigma": 5.0}}
    }
    config = given(parties={"lab": {"outbox": noisy, "budget": {"epsilon": 6.0}}})
    config["train"] = {"epochs": 1, "batch_size": 32, "early_stop": False}
    made(tmp_path, config, three())
    drive(sites(tmp_path)["clinic"], "first")
    paid = rows_that_paid(tmp_path)
    path = tmp_path / "all" / "clinic.csv"
    frame = pd.read_csv(path)
    frame.assign(email=[f"q{number}@x.org" for number in range(len(frame))]).to_csv(
        path, index=False
    )
    outcome = drive(sites(tmp_path)["clinic"], "again")
    assert outcome.summary["matched"]["lab"]["email"] == 0
    assert 0 < len(paid) <= len(rows_that_paid(tmp_path) | paid) <= 70


def test_the_command_says_what_each_key_matched_with_each_partner(
    tmp_path: Path,
) -> None:
    from typer.testing import CliRunner

    from colonnade.cli import app

    file = made(tmp_path, given(), three())
    told = CliRunner().invoke(app, ["align", str(file), "--json"])
    assert told.exit_code == 0, told.output
    found = json.loads(told.output)
    assert found["shop"]["by_key"] == [0, 0, 45]
    assert sum(found["lab"]["by_key"]) == found["lab"]["common"] == 70
    assert found["lab"]["lost"].keys() == {"clinic", "lab"}
