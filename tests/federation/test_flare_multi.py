"""Several label owners over FLARE: the whole way in its simulator where it is installed, and kits for real sites."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.federation.small import checkpoint_of
from tests.federation.small_multi import write
from tests.federation.small_multi_sites import EVERY, private

from colonnade.federation import MultiFederation, Settings
from colonnade.federation import flare as engine
from colonnade.federation.owners import SERVER
from colonnade.federation.provision import project_of

WITHOUT = 'NVIDIA FLARE is not installed: pip install "colonnade[flare]"'


def test_a_project_has_a_site_for_everybody_and_the_lead_where_weights_are_added_up(tmp_path: Path) -> None:
    settings = Settings.from_toml(write(tmp_path / "all", private()))
    project = project_of(settings, server="relay.example.org", port=1, admin_port=2)
    kinds = [(one["type"], one["name"]) for one in project["participants"]]
    sites = [("client", name) for name in EVERY]
    assert kinds == [("server", "relay.example.org"), *sites, ("admin", "lead@aggregation-server.local")]


def test_sites_have_their_own_files_and_nobody_elses(tmp_path: Path) -> None:
    engine.write_sites(tmp_path / "sites", Settings.from_toml(write(tmp_path / "all", private())))
    for name in EVERY:
        text = "".join(path.read_text() for path in (tmp_path / "sites" / name).iterdir())
        assert [other for other in EVERY if f"{other}.csv" in text] == ([] if name == SERVER else [name])


@pytest.mark.long
def test_in_the_simulator_it_is_the_federation_of_one_process(tmp_path: Path) -> None:
    pytest.importorskip("nvflare", reason=WITHOUT)
    pytest.importorskip("coincurve", reason='private alignment needs pip install "colonnade[crypto]"')
    whole = Settings.from_toml(write(tmp_path / "all", private(train={"epochs": 2, "batch_size": 64})))
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
    assert MultiFederation.load(tmp_path / "run", ids=ids, owner="north").predict(ids).ids.tolist() == ids
    assert MultiFederation.load(tmp_path / "run").evaluate("test") == here["metrics"]["test"]
