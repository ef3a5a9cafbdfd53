"""A run's id: random, fixed when it begins, and one for all sites."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.federation import small_multi_sites, small_sites
from tests.federation.small import QUICK, write

from colonnade.core.files import json_with_digest, read_json
from colonnade.errors import CheckpointError, PartyError
from colonnade.federation import Federation
from colonnade.runs.run_identity import RUN_ID, read_identity
from colonnade.sites.driving import drive


def id_of(run: Path) -> str:
    identity = read_identity(run)
    assert identity is not None
    assert RUN_ID.fullmatch(identity.id)
    return identity.id


def test_each_run_has_an_id_of_its_own_and_keeps_it(tmp_path: Path) -> None:
    file = write(tmp_path)
    for name in ("one", "two"):
        Federation.from_toml(file).fit(tmp_path / name)
    first = read_identity(tmp_path / "one")
    assert id_of(tmp_path / "one") != id_of(tmp_path / "two")
    Federation.from_toml(file).fit(tmp_path / "one", resume=True)
    assert read_identity(tmp_path / "one") == first


def test_a_damaged_identity_is_told(tmp_path: Path) -> None:
    Federation.from_toml(write(tmp_path)).fit(tmp_path / "run")
    file = tmp_path / "run" / "run.json"
    file.write_text(json_with_digest({"id": "../x", "begun": "", "version": ""}))
    with pytest.raises(CheckpointError, match="no id of a run"):
        read_identity(tmp_path / "run")
    file.write_text(json_with_digest({"id": "0" * 32}))
    with pytest.raises(CheckpointError, match="begun"):
        read_identity(tmp_path / "run")
    file.unlink()
    assert read_identity(tmp_path / "run") is None


def test_all_sites_have_the_drivers_id(tmp_path: Path) -> None:
    small_sites.folders(tmp_path)
    drive(small_sites.sites(tmp_path)["clinic"], "run")
    assert id_of(tmp_path / "lab/runs/run") == id_of(tmp_path / "clinic/runs/run")


def test_several_label_owners_have_the_servers_id(tmp_path: Path) -> None:
    small_multi_sites.folders(tmp_path, small_multi_sites.private())
    every = small_multi_sites.sites(tmp_path)
    drive(every["aggregation_server"], "run")
    ids = {id_of(tmp_path / name / "runs" / "run") for name in every}
    assert len(ids) == 1


def test_a_run_goes_on_with_its_own_id_alone(tmp_path: Path) -> None:
    """Two runs of one name are not mixed."""
    small_sites.folders(tmp_path, settings=QUICK)
    drive(small_sites.sites(tmp_path)["clinic"], "run")
    file = tmp_path / "lab" / "runs" / "run" / "run.json"
    file.write_text(json_with_digest(read_json(file) | {"id": "0" * 32}))
    with pytest.raises(PartyError, match="has another id"):
        drive(small_sites.sites(tmp_path)["clinic"], "run", resume=True)


def test_an_id_that_is_none_is_refused(tmp_path: Path) -> None:
    from colonnade.sites.messages import Prepare

    small_sites.folders(tmp_path)
    every = small_sites.sites(tmp_path)
    with pytest.raises(PartyError, match="no id of a run"):
        small_sites.ask(
            every["lab"],
            "clinic",
            Prepare("run", outputs=1, resume=False, run_id="../../x"),
        )
