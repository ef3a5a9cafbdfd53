"""[tracking] in a federation file."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.federation.small import quick, settings_of, write

from colonnade.errors import ConfigError
from colonnade.federation import Settings
from colonnade.settings.party_file import (
    AGREED,
    OWN,
    fingerprint,
    read_own,
    write_agreed,
    write_own,
)
from colonnade.settings.tracking import is_address
from colonnade.tracking import TrackingSettings


def test_folders_are_relative_to_the_file_and_come_back(tmp_path: Path) -> None:
    given = {"tensorboard": "boards", "mlflow": "runs/ml", "experiment": "churn"}
    settings = Settings.from_toml(
        write(tmp_path / "at", settings=quick(tracking=given))
    )
    there = tmp_path / "at"
    assert settings.tracking == TrackingSettings(
        tensorboard=str(there / "boards"),
        mlflow=str(there / "runs" / "ml"),
        experiment="churn",
    )
    (tmp_path / "again.toml").write_text(settings.to_toml())
    assert Settings.from_toml(tmp_path / "again.toml") == settings
    into_the_run = Settings.from_toml(
        write(tmp_path, settings=quick(tracking={"tensorboard": True}))
    )
    assert into_the_run.tracking.tensorboard is True
    # by default there is nothing to say
    assert "tracking" not in settings_of().to_mapping()


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("http://127.0.0.1:5000", True),
        ("https://flow.example.org/a", True),
        ("sqlite:///runs.db", True),
        ("file:/somewhere", True),
        ("databricks", True),
        ("mlruns", False),
        ("../mlruns", False),
        ("C:\\runs", False),
    ],
)
def test_an_address_is_told_from_a_folder(text: str, address: bool) -> None:
    assert is_address(text) is address
    kept = TrackingSettings(mlflow=text).below(Path("/here")).mlflow
    assert (kept == text) is address


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {"tensorbord": True},
            (
                r"\[tracking\] has no setting 'tensorbord' \(did you mean"
                r" 'tensorboard'\?\)"
            ),
        ),
        ({"tensorboard": 3}, "tensorboard must be true, false, or a folder; found 3"),
        ({"tensorboard": ""}, "tensorboard must be true, false, or a folder; found ''"),
        ({"mlflow": True}, "mlflow must be a server's address or a folder; found True"),
        ({"experiment": " "}, "experiment must be a name; found ' '"),
        ({"experiment": 1}, "experiment must be a name; found 1"),
        ({"mlflow": "http://me:hidden@flow.example"}, "MLFLOW_TRACKING_PASSWORD"),
    ],
)
def test_a_mistake_is_named(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        settings_of(tracking=given)
    assert "hidden" not in str(caught.value)


def test_it_may_change_when_a_run_is_resumed() -> None:
    plain = settings_of()
    told = settings_of(tracking={"mlflow": "runs"})
    plain.check_continues(told)
    told.check_continues(plain)
    settings_of(tracking={"tensorboard": True}).check_continues(told)


def test_between_machines_it_is_the_drivers_own_and_nobody_agrees_on_it(
    tmp_path: Path,
) -> None:
    settings = Settings.from_toml(
        write(tmp_path, settings=quick(tracking={"mlflow": "runs/ml"}))
    )
    assert fingerprint(settings) == fingerprint(
        replace(settings, tracking=TrackingSettings())
    )
    for name in settings.parties:
        (tmp_path / name).mkdir()
        write_agreed(tmp_path / name, settings)
        write_own(tmp_path / name, settings, name)
        assert "tracking" not in (tmp_path / name / AGREED).read_text()
    assert read_own(tmp_path / "clinic" / OWN).local.tracking == settings.tracking
    assert read_own(tmp_path / "lab" / OWN).local.tracking == TrackingSettings()
    table = '[tracking]\nmlflow = "mine"\n'
    (tmp_path / "lab" / OWN).write_text((tmp_path / "lab" / OWN).read_text() + table)
    with pytest.raises(
        ConfigError,
        match=r"has \[tracking\], and 'clinic' drives: only there are numbers to tell",
    ):
        read_own(tmp_path / "lab" / OWN)
    (tmp_path / "clinic" / AGREED).write_text(
        (tmp_path / "clinic" / AGREED).read_text() + table
    )
    with pytest.raises(ConfigError, match=r"is agreed among all, and has \[tracking\]"):
        read_own(tmp_path / "clinic" / OWN)
