"""The services that can follow a run: TensorBoard (`tensorboard --logdir DIR`) and
MLflow.

TensorBoard gets the loss of every batch and each epoch's numbers over batches. MLflow
gets one run of an experiment, at a server or in a folder, with each epoch's numbers. A
resumed run goes on under its own id, which the run directory keeps in mlflow.json.
MLflow's own reporting about its users is switched off, and a server that does not
answer is given up soon, unless the environment says otherwise.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from colonnade.core.files import write_text
from colonnade.errors import ConfigError
from colonnade.installation import hint
from colonnade.settings.tracking import TrackingSettings, is_address
from colonnade.tracking.trackers import (
    FAILED,
    FINISHED,
    INTERRUPTED,
    About,
    Tracker,
    Trackers,
)

KEPT = "mlflow.json"
STATUS = {FINISHED: "FINISHED", FAILED: "FAILED", INTERRUPTED: "KILLED"}
AT_ONCE = 100
"""The most settings, or numbers, that a server takes in one call."""
ENVIRONMENT = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    # its own 7 keep a training waiting for four minutes
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "15",
}


class TensorBoard:
    """Writes into the run directory, or into a folder of this run's name below the one
    that the settings give."""

    name = "tensorboard"

    def __init__(self, settings: TrackingSettings, run: Path) -> None:
        try:
            import tensorboard  # noqa: F401
        except ImportError:
            raise ConfigError(
                "[tracking] tensorboard needs TensorBoard. Install it:"
                f" {hint('tracking')}"
            ) from None
        folder = settings.tensorboard
        self.folder = (
            Path(folder) / run.resolve().name
            if isinstance(folder, str)
            else run / self.name
        )
        if self.folder.exists() and not self.folder.is_dir():
            raise ConfigError(
                f"[tracking] tensorboard needs a folder, and {self.folder} is a file."
            )
        self.writer: Any = None

    def begin(self, about: About) -> None:
        from torch.utils.tensorboard import SummaryWriter

        # Steps after a killed run's last checkpoint are trained again: what it wrote of
        # them is purged.
        self.writer = SummaryWriter(
            self.folder, purge_step=about.step + 1 if about.resumed else None
        )
        settings = {**about.tags, **about.parameters}
        lines = [
            "| setting | value |",
            "|---|---|",
            *(f"| {key} | {value} |" for key, value in settings.items()),
        ]
        self.writer.add_text("settings", "\n".join(lines), about.step)

    def batch(self, step: int, loss: float) -> None:
        self.writer.add_scalar("batch/loss", loss, step)

    def log(self, numbers: Mapping[str, float], step: int) -> None:
        for name, value in numbers.items():
            self.writer.add_scalar(name, value, step)
        self.writer.flush()

    def end(self, how: str) -> None:  # noqa: ARG002 - its files have no place for it
        if self.writer is not None:
            self.writer.close()


class MLflow:
    """`mlflow ui --backend-store-uri FOLDER` shows what went into a folder."""

    name = "mlflow"

    def __init__(self, settings: TrackingSettings, run: Path) -> None:
        assert settings.mlflow is not None
        self.kept = run / KEPT
        self.run = ""
        self.where = (
            settings.mlflow
            if is_address(settings.mlflow)
            else Path(settings.mlflow).absolute().as_uri()
        )
        for key, value in ENVIRONMENT.items():
            os.environ.setdefault(key, value)
        if self.where.startswith("file:"):
            # the settings name a folder
            os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
        try:
            from mlflow.tracking import MlflowClient
        except ImportError:
            raise ConfigError(
                f"[tracking] mlflow needs MLflow. Install it: {hint('tracking')}"
            ) from None
        try:
            self.client: Any = MlflowClient(tracking_uri=self.where)
            known = self.client.get_experiment_by_name(settings.experiment)
            self.experiment = (
                known.experiment_id
                if known
                else self.client.create_experiment(settings.experiment)
            )
        except ImportError as error:
            raise ConfigError(
                f"[tracking] mlflow = {settings.mlflow!r} needs more of MLflow than its"
                f" client ({error}). Install it: pip install mlflow. A folder or a"
                " server needs no more."
            ) from None
        except Exception as error:  # MLflow's own, of requests, of the disk
            cause = (str(error).strip().splitlines() or [""])[0][:300].rstrip(".")
            raise ConfigError(
                f"[tracking] mlflow = {settings.mlflow!r} cannot be used: {cause}."
                " Start the server, correct the address, or leave it out."
            ) from None

    def begin(self, about: About) -> None:
        from mlflow.entities import Param

        known = self._resumed() if about.resumed else None
        if known is None:
            created = self.client.create_run(
                self.experiment, run_name=about.name, tags=dict(about.tags)
            )
            self.run = created.info.run_id
            known = {}
            write_text(self.kept, json.dumps({"where": self.where, "run": self.run}))
        new = [
            Param(key, value)
            for key, value in about.parameters.items()
            if key not in known
        ]
        for piece in _pieces(new):
            self.client.log_batch(self.run, params=piece)
        # MLflow never changes a setting: what is new now is a tag
        for key, value in about.parameters.items():
            if known.get(key, value) != value:
                self.client.set_tag(self.run, f"resumed.{key}", value)

    def _resumed(self) -> dict[str, str] | None:
        """The settings of the run that is resumed; None where it is new, or MLflow no
        longer knows it."""
        from mlflow.exceptions import MlflowException

        try:
            kept = json.loads(self.kept.read_text(encoding="utf-8"))
            if kept["where"] != self.where:
                return None
            resumed = self.client.get_run(kept["run"])
        except (OSError, ValueError, KeyError, MlflowException):
            return None
        self.run = resumed.info.run_id
        self.client.update_run(self.run, status="RUNNING")
        return dict(resumed.data.params)

    def batch(self, step: int, loss: float) -> None:
        """Nothing: a call to a server takes longer than most batches, so MLflow gets
        epochs alone."""

    def log(self, numbers: Mapping[str, float], step: int) -> None:
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        for piece in _pieces(
            [Metric(name, value, now, step) for name, value in numbers.items()]
        ):
            self.client.log_batch(self.run, metrics=piece)

    def end(self, how: str) -> None:
        if self.run:
            self.client.set_terminated(self.run, STATUS[how])


def _pieces(items: Sequence[Any]) -> Iterator[Sequence[Any]]:
    for start in range(0, len(items), AT_ONCE):
        yield items[start : start + AT_ONCE]


TRACKERS: dict[str, Callable[[TrackingSettings, Path], Tracker]] = {
    "tensorboard": TensorBoard,
    "mlflow": MLflow,
}


def trackers_of(settings: TrackingSettings, run: Path | None) -> Trackers:
    """The trackers that the settings ask for; none without a run directory. A package
    that is not installed, or a server that cannot be reached, is an error here, before
    training."""
    if run is None:
        return Trackers()
    return Trackers(
        [
            make(settings, run)
            for name, make in TRACKERS.items()
            if getattr(settings, name)
        ]
    )
