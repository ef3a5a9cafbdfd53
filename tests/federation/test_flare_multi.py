"""Several label owners over FLARE: the whole way in its simulator where it is installed, and kits for real sites."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from tests.federation.small import checkpoint_of, with_models
from tests.federation.small_multi import write
from tests.federation.small_multi_sites import EVERY, folders, lines_of, private, sites

from colonnade.federation import MultiFederation, Settings
from colonnade.flare import job as engine
from colonnade.flare.provision import project_of
from colonnade.serving.site_service import serve_at
from colonnade.settings.owners import SERVER
from colonnade.settings.party_file import asked_with, asker_of

WITHOUT = 'NVIDIA FLARE is not installed: pip install "colonnade[flare]"'


def test_a_project_has_a_site_for_everybody_and_the_lead_where_weights_are_added_up(tmp_path: Path) -> None:
    settings = Settings.from_toml(write(tmp_path / "all", private()))
    project = project_of(settings, server="relay.example.org", port=1, admin_port=2)
    kinds = [(one["type"], one["name"]) for one in project["participants"]]
    sites = [("client", name) for name in EVERY]
    assert kinds == [("server", "relay.example.org"), *sites, ("admin", "lead@aggregation-server.local")]


def test_sites_have_their_own_files_and_nobody_elses(tmp_path: Path) -> None:
    pytest.importorskip("nvflare", reason=WITHOUT)
    engine.write_sites(tmp_path / "sites", Settings.from_toml(write(tmp_path / "all", private())))
    for name in EVERY:
        text = "".join(path.read_text() for path in (tmp_path / "sites" / name).rglob("*") if path.is_file())
        assert [other for other in EVERY if f"{other}.csv" in text] == ([] if name == SERVER else [name])


def test_a_job_to_predict_names_a_label_owner_and_a_model_and_needs_no_other(tmp_path: Path) -> None:
    settings = Settings.from_toml(write(tmp_path / "all", private()))
    assert [asker_of(settings), asker_of(settings, "south")] == ["north", "south"]
    assert asked_with(settings, "south") == ("south", "lab", "scan")
    job = engine.write_job(tmp_path / "job", driver="south", sites=3, run="run", predict="new.csv", model="own")
    server = json.loads((job / "app/config/config_fed_server.json").read_text())
    assert server["components"][0]["args"] == {
        "driver": "south", "run": "run", "resume": False, "predict": "new.csv", "model": "own",
    }  # fmt: skip


def test_a_job_that_asks_the_wrong_site_to_predict_fails_there(tmp_path: Path) -> None:
    pytest.importorskip("nvflare", reason=WITHOUT)
    pytest.importorskip("coincurve", reason='private alignment needs pip install "colonnade[crypto]"')
    from colonnade.flare.members import FAILURE, Member

    folders(tmp_path, private())
    every = sites(tmp_path)
    for name in ("lab", SERVER):
        for wish in ({"predict": "new.csv"}, {"serve": True}):
            member = Member()
            member.serve = lambda site, lines, run, _model: serve_at(site, lines, run, lambda: True)
            member._drive(every[name], lines_of(name, every), {"run": "run", "resume": False, **wish})
            assert member.state == b"failed (BoundaryError)"
            about = json.loads((tmp_path / name / "runs" / FAILURE).read_text())
            assert f"'{name}' does not predict" in about["message"]


@pytest.mark.long
def test_in_the_simulator_it_is_the_federation_of_one_process(tmp_path: Path) -> None:
    pytest.importorskip("nvflare", reason=WITHOUT)
    pytest.importorskip("coincurve", reason='private alignment needs pip install "colonnade[crypto]"')
    whole = Settings.from_toml(write(tmp_path / "all", private(train={"epochs": 2, "batch_size": 64})))
    whole = with_models(whole, "seeded")
    settings, seen = replace(whole, parties={"lab": whole.parties["lab"]}), list[dict[str, Any]]()
    here = MultiFederation.from_settings(settings).fit(tmp_path / "here").summary
    summary = engine.simulate(settings, tmp_path / "work", tmp_path / "run", watch=seen.append)
    for key in ("metrics", "bytes", "parties", "rows", "rounds", "privacy", "label_owners"):
        assert summary[key] == here[key], key
    assert [record["epoch"] for record in seen] == [1, 2]
    one, other = checkpoint_of(tmp_path / "here"), checkpoint_of(tmp_path / "run")
    assert one.keys() == other.keys()
    assert all(bool((one[key] == other[key]).all()) for key in one)
    ids = ["P003", "P001"]
    (tmp_path / "ids.csv").write_text("patient\n" + "\n".join(ids) + "\n")
    out = engine.simulate_prediction(
        settings, tmp_path / "work", "run", tmp_path / "ids.csv", owner="south", model="own"
    )
    mine = MultiFederation.load(tmp_path / "run", ids=ids, owner="south").predict(ids, owner="south", model="own")
    told = pd.read_csv(out)
    assert told["patient"].tolist() == ids == mine.ids.tolist()
    assert np.array_equal(told[["score_ill", "score_well"]].to_numpy(), mine.scores)
    assert MultiFederation.load(tmp_path / "run").evaluate("test") == here["metrics"]["test"]
