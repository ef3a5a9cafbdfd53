"""Services that follow a run: `fit` sends numbers and settings to those that [tracking]
names.

[tracking]
tensorboard = true                  # into the run directory; or a folder
mlflow = "http://127.0.0.1:5000"    # or a folder
experiment = "churn"
"""

from __future__ import annotations

from colonnade.settings.tracking import TrackingSettings
from colonnade.tracking.services import TRACKERS, trackers_of
from colonnade.tracking.trackers import (
    FAILED,
    FINISHED,
    INTERRUPTED,
    About,
    Tracker,
    Trackers,
    parameters_of,
)

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
