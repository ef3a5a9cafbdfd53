"""Services that follow a run: `fit` sends numbers and settings to those that [tracking] names.

[tracking]
tensorboard = true                  # into the run directory; or a folder
mlflow = "http://127.0.0.1:5000"    # or a folder
experiment = "churn"
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from colonnade.tracking.mlflow import MLflow
from colonnade.tracking.settings import TrackingSettings
from colonnade.tracking.tensorboard import TensorBoard
from colonnade.tracking.trackers import FAILED, FINISHED, INTERRUPTED, About, Tracker, Trackers, parameters_of

__all__ = [
    "FAILED",
    "FINISHED",
    "INTERRUPTED",
    "TRACKERS",
    "About",
    "Tracker",
    "Trackers",
    "TrackingSettings",
    "parameters_of",
    "trackers_of",
]

TRACKERS: dict[str, Callable[[TrackingSettings, Path], Tracker]] = {"tensorboard": TensorBoard, "mlflow": MLflow}


def trackers_of(settings: TrackingSettings, run: Path | None) -> Trackers:
    """The trackers that the settings ask for; none without a run directory. A package that is not installed, or a
    server that cannot be reached, is an error here, before training."""
    if run is None:
        return Trackers()
    return Trackers([make(settings, run) for name, make in TRACKERS.items() if getattr(settings, name)])
