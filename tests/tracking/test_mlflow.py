"""MLflow's own client finds what was told."""

from __future__ import annotations

import json
import os
import shutil
import socket
from pathlib import Path
from typing import Any

import pytest
from tests.federation.small import THREE, federation, records

from colonnade.errors import ConfigError
from colonnade.tracking import TrackingSettings, services

pytest.importorskip("mlflow", reason="MLflow is not installed")


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a tracker sets for its process does not outlive a test."""
    for name in (*services.ENVIRONMENT, "MLFLOW_ALLOW_FILE_STORE"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)


def told(tmp_path: Path, **changes: Any) -> dict[str, Any]:
    return {
        **THREE,
        "tracking": {"mlflow": str(tmp_path / "ml"), "experiment": "churn"},
        **changes,
    }


def runs(tmp_path: Path) -> list[Any]:
    client = client_of(tmp_path)
    return list(
        client.search_runs([client.get_experiment_by_name("churn").experiment_id])
    )


def client_of(tmp_path: Path) -> Any:
    from mlflow.tracking import MlflowClient

    return MlflowClient(tracking_uri=(tmp_path / "ml").as_uri())


def history(tmp_path: Path, run: Any, name: str) -> dict[int, float]:
    return {
        one.step: one.value
        for one in client_of(tmp_path).get_metric_history(run.info.run_id, name)
    }


def test_a_run_has_its_settings_numbers_and_end(tmp_path: Path) -> None:
    outcome = federation(settings=told(tmp_path)).fit(tmp_path / "first")
    (run,) = runs(tmp_path)
    assert (run.info.run_name, run.info.status) == ("first", "FINISHED")
    assert run.data.params["algorithm.name"] == "vimadmm"
    assert run.data.tags["parties"] == "clinic lab"
    assert history(tmp_path, run, "loss") == {
        one["step"]: one["loss"] for one in outcome.history
    }
    scores = {one["step"]: one["validation"]["accuracy"] for one in outcome.history}
    assert history(tmp_path, run, "validation/accuracy") == scores
    assert (
        run.data.metrics["test/accuracy"]
        == outcome.summary["metrics"]["test"]["accuracy"]
    )
    assert run.data.metrics["bytes_out/lab"] == outcome.summary["bytes"]["lab"]["out"]
    assert os.environ["MLFLOW_DISABLE_TELEMETRY"] == "true"
    told_of = str([run.data.params, run.data.tags, run.info.user_id])
    for private in ("P001", "iron", "diagnosis", str(tmp_path)):
        assert private not in told_of
    federation(settings=told(tmp_path)).fit(tmp_path / "second")
    assert len(runs(tmp_path)) == 2


def test_a_killed_run_goes_on_under_its_own_id(tmp_path: Path) -> None:
    def killed(event: Any) -> None:
        if isinstance(event, dict) and event["epoch"] == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        federation(settings=told(tmp_path)).fit(tmp_path / "run", watch=killed)
    assert [run.info.status for run in runs(tmp_path)] == ["KILLED"]
    longer = told(tmp_path, train={**THREE["train"], "epochs": 4})
    federation(settings=longer).fit(tmp_path / "run", resume=True)
    (run,) = runs(tmp_path)
    assert run.info.status == "FINISHED"
    assert history(tmp_path, run, "loss") == {
        one["step"]: one["loss"] for one in records(tmp_path / "run")
    }
    assert (run.data.params["train.epochs"], run.data.tags["resumed.train.epochs"]) == (
        "3",
        "4",
    )


def test_a_resumed_run_that_mlflow_no_longer_knows_is_a_new_one(tmp_path: Path) -> None:
    federation(settings=told(tmp_path)).fit(tmp_path / "run")
    (gone,) = runs(tmp_path)
    shutil.rmtree(tmp_path / "ml" / gone.info.experiment_id / gone.info.run_id)
    longer = told(tmp_path, train={**THREE["train"], "epochs": 4})
    federation(settings=longer).fit(tmp_path / "run", resume=True)
    (run,) = runs(tmp_path)
    assert list(history(tmp_path, run, "loss")) == [16]


def test_a_store_that_goes_away_does_not_end_the_training(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def watch(event: Any) -> None:
        if isinstance(event, dict) and event["epoch"] == 1:
            shutil.rmtree(tmp_path / "ml")
            (tmp_path / "ml").write_text("no folder")

    outcome = federation(settings=told(tmp_path)).fit(tmp_path / "run", watch=watch)
    assert len(outcome.history) == 3
    said = json.loads((tmp_path / "run" / "summary.json").read_text())["tracking"]
    assert said["mlflow"].startswith("stopped at step 8: ")
    assert caplog.text.count("Training goes on without it.") == 1


def test_a_failed_run_is_marked_as_failed(tmp_path: Path) -> None:
    def broken(event: Any) -> None:
        raise RuntimeError("no")

    with pytest.raises(RuntimeError):
        federation(settings=told(tmp_path)).fit(tmp_path / "run", watch=broken)
    assert [run.info.status for run in runs(tmp_path)] == ["FAILED"]


def test_a_server_that_is_not_there_is_an_error_before_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{free.getsockname()[1]}"
        settings = {**THREE, "tracking": {"mlflow": address}}
        with pytest.raises(
            ConfigError,
            match=rf"mlflow = '{address}' cannot be used: .*Start the server",
        ):
            federation(settings=settings).fit(tmp_path / "run")
    assert not (tmp_path / "run").exists()
    assert os.environ["MLFLOW_HTTP_REQUEST_MAX_RETRIES"] == "0"  # who set it decides


def test_many_settings_go_in_pieces(tmp_path: Path) -> None:
    from colonnade.tracking.trackers import About

    (tmp_path / "run").mkdir()
    tracker = services.MLflow(
        TrackingSettings(mlflow=str(tmp_path / "ml"), experiment="churn"),
        tmp_path / "run",
    )
    tracker.begin(About("many", {f"s{number}": str(number) for number in range(250)}))
    tracker.log({f"m{number}": float(number) for number in range(1200)}, 1)
    tracker.end("finished")
    (run,) = runs(tmp_path)
    assert len(run.data.params) == 250
    assert run.data.metrics == {f"m{number}": float(number) for number in range(1200)}
