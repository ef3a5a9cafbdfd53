"""Rows matched by several keys, between sites: as in one process, and budgets by the
owner's own names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from tests.alignment.people import ID, people, settings
from tests.federation.small import checkpoint_of
from tests.federation.small_sites import asked, divided, saved, sites, taken_at
from tests.sites.kinds import same_bits

from colonnade.alignment.keys import counted
from colonnade.errors import PartyError
from colonnade.federation import Federation
from colonnade.runs.stores import open_site_store
from colonnade.settings.party_file import OWN, read_own
from colonnade.settings.sections import keys_in
from colonnade.settings.toml_text import to_toml
from colonnade.sites.driving import drive
from colonnade.sites.prediction import predict

KEYS = keys_in(ID)


def made(
    base: Path,
    given: dict[str, Any],
    frames: dict[str, Any] | None = None,
    models: str | None = "seeded",
) -> Path:
    """A folder per organisation; gives the file for one machine."""
    (base / "all").mkdir(parents=True)
    for name, frame in (frames or people()).items():
        frame.to_csv(base / "all" / f"{name}.csv", index=False)
        given["parties"][name] = {**given["parties"][name], "table": f"{name}.csv"}
    (base / "all" / "federation.toml").write_text(to_toml(given))
    return divided(base, base / "all" / "federation.toml", models)[0]


@pytest.mark.parametrize("helped", [False, True])
def test_sites_train_as_one_process_does(tmp_path: Path, helped: bool) -> None:
    by = {"protocol": "helper", "helper": "trust"} if helped else {}
    file = made(tmp_path, settings(alignment=by))
    here = Federation.from_toml(file).fit(tmp_path / "here")
    outcome = drive(sites(tmp_path)["clinic"], "run")
    assert (
        outcome.summary["matched"]
        == here.summary["matched"]
        == {
            "email": 30,
            "name + birth_date": 30,
            "phone": 30,
        }
    )
    same_bits(checkpoint_of(tmp_path / "here"), saved(tmp_path, "run"))
    taken = taken_at(tmp_path, "lab")
    assert taken["clinic"]["alignments"] == 1  # all keys are one


def test_rows_are_predicted_by_any_key(tmp_path: Path) -> None:
    made(tmp_path, settings())
    drive(sites(tmp_path)["clinic"], "run")
    run = tmp_path / "clinic" / "runs" / "run"
    name = asked(run, [])
    # as the clinic calls them
    wanted = [f"p{number}@x.org" for number in (0, 1, 2, 4, 7)]
    pd.DataFrame({"email": wanted}).to_csv(run / "rows" / name, index=False)
    found = pd.read_csv(predict(sites(tmp_path)["clinic"], "run", name))
    assert found["email"].tolist() == wanted
    assert found["prediction"].isin(["yes", "no"]).all()
    taken = taken_at(tmp_path, "lab")
    # each key is paid, over what is still unmatched
    assert taken["clinic"]["ids"] == 5 + 4 + 1


def test_a_row_does_not_begin_anew_by_another_key(tmp_path: Path) -> None:
    """The label owner changes its e-mail addresses, so that rows are matched by other
    keys; they are the same rows."""
    noisy = {
        "embedding": {"mechanism": {"name": "gaussian", "clip": 1.0, "sigma": 5.0}}
    }
    given = settings(parties={"lab": {"outbox": noisy, "budget": {"epsilon": 6.0}}})
    given["train"] = {"epochs": 1, "batch_size": 32, "early_stop": False}
    made(tmp_path, given)
    drive(sites(tmp_path)["clinic"], "first")
    paid = rows_that_paid(tmp_path)
    assert 0 < len(paid) <= 90
    path = tmp_path / "all" / "clinic.csv"
    frame = pd.read_csv(path)
    frame.assign(email=[f"q{number}@x.org" for number in range(len(frame))]).to_csv(
        path, index=False
    )
    outcome = drive(sites(tmp_path)["clinic"], "again")
    assert outcome.summary["matched"] == {
        "email": 0,
        "name + birth_date": 60,
        "phone": 30,
    }
    assert len(rows_that_paid(tmp_path) | paid) == 90


def rows_that_paid(base: Path) -> set[int]:
    """As the laboratory's store knows them."""
    own = read_own(base / "lab" / OWN)
    with open_site_store(own.name, own.runs) as store:
        paid = sum(store.counts().values())
    return set(np.flatnonzero(paid).tolist())


def test_a_cascade_that_is_broken_off_begins_again(tmp_path: Path) -> None:
    made(tmp_path, settings())
    path = tmp_path / "lab" / OWN
    path.write_text(path.read_text() + "\n[alignments]\nper_day = 1\n")
    every = sites(tmp_path)
    for name in ("clinic", "lab"):
        every[name].read()
    every["clinic"].align()
    names = every["lab"].common("clinic").ids.tolist()
    assert counted(names, KEYS) == {"email": 30, "name + birth_date": 30, "phone": 30}
    assert names == every["clinic"].common("clinic").ids.tolist()
    with pytest.raises(PartyError, match="it aligns with 'clinic' 1 times a day"):
        every["clinic"].align()
