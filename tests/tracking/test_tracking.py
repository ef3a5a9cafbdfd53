"""Who is told, and when it is known that they cannot be."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from tests.federation.small import federation, quick

from colonnade.errors import ConfigError
from colonnade.tracking import TRACKERS, TrackingSettings, trackers_of


@pytest.mark.parametrize(
    ("package", "given"),
    [("tensorboard", {"tensorboard": True}), ("mlflow.tracking", {"mlflow": "runs"})],
)
def test_a_package_that_is_missing_is_named_before_training(
    package: str, given: dict[str, object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ConfigError, match=r'pip install "colonnade\[tracking\]"'):
        federation(settings=quick(tracking=given)).fit(tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_only_a_run_directory_is_tracked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    federation(settings=quick(tracking={"tensorboard": True})).fit()
    assert list(tmp_path.iterdir()) == []
    assert trackers_of(TrackingSettings(), tmp_path).active == []
    assert set(TRACKERS) <= set(vars(TrackingSettings()))
