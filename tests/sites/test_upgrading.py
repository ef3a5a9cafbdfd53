"""A site is upgraded with runs on disk: what an older version wrote goes on, what a
newer one wrote is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.federation.small import quick
from tests.federation.small_sites import ALONE, saved, sites, told, trained
from tests.sites.test_prediction import same

from colonnade.core import files
from colonnade.core.files import FORMAT
from colonnade.errors import CheckpointError, PartyError
from colonnade.federation import load
from colonnade.runs.layout import MARK
from colonnade.runs.run_directory import RunDirectory
from colonnade.sites.driving import drive

NAMES = ("clinic", "lab")


def mark_of(base: Path, name: str) -> Path:
    return base / name / "runs" / "run" / MARK


def rewrite(path: Path, **changes: Any) -> None:
    """As another version would have written it; None: without."""
    mark = {**files.read_json(path, ""), **changes}
    kept = {
        key: value
        for key, value in mark.items()
        if value is not None and key != files.KEY
    }
    path.write_text(files.json_with_digest(kept))


def test_a_run_of_a_version_without_formats_is_resumed_predicts_and_gets_one(
    tmp_path: Path,
) -> None:
    trained(tmp_path, quick(**ALONE, train={"epochs": 1}))
    for name in NAMES:
        assert json.loads(mark_of(tmp_path, name).read_text())["format"] == FORMAT
        rewrite(mark_of(tmp_path, name), format=None)
    before = saved(tmp_path, "run")
    same(
        told(tmp_path, ["P001"]),
        load(tmp_path / "here", ids=["P001"]).predict(["P001"]),
    )
    for name in NAMES:
        agreed = tmp_path / name / "federation.toml"
        agreed.write_text(agreed.read_text().replace("epochs = 1", "epochs = 2"))
    drive(sites(tmp_path)["clinic"], "run", resume=True)
    assert all(
        json.loads(mark_of(tmp_path, name).read_text())["format"] == FORMAT
        for name in NAMES
    )
    assert saved(tmp_path, "run").keys() == before.keys()


@pytest.mark.parametrize("newer", [{"format": FORMAT + 1}, {"split": 99}])
def test_a_run_of_a_newer_version_is_refused_and_stays_as_it_is(
    tmp_path: Path, newer: dict[str, int], caplog: pytest.LogCaptureFixture
) -> None:
    trained(tmp_path, quick(**ALONE, train={"epochs": 1}))
    rewrite(mark_of(tmp_path, "lab"), **newer)
    rewrite(tmp_path / "here" / MARK, **newer)
    before = mark_of(tmp_path, "lab").read_bytes()
    for goes_on in (
        lambda: drive(sites(tmp_path)["clinic"], "run", resume=True),
        lambda: told(tmp_path, ["P001"]),
    ):
        caplog.clear()
        with pytest.raises(
            PartyError,
            match=r"'lab' failed while answering messages.Kept: CheckpointError",
        ):
            goes_on()
        # at home it is said in full
        assert "was written by a newer Colonnade" in caplog.text
    with pytest.raises(CheckpointError, match="Upgrade Colonnade here"):
        load(tmp_path / "here")
    assert mark_of(tmp_path, "lab").read_bytes() == before
    with pytest.raises(CheckpointError):
        RunDirectory(tmp_path / "lab" / "runs" / "run").marks()
