"""The [tracking] table of a federation file: which services follow a run."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import urlsplit

from colonnade.errors import ConfigError

SCHEMES = ("file", "databricks", "databricks-uc")
"""MLflow's addresses that need no "//"."""


@dataclass(frozen=True)
class TrackingSettings:
    """The services that follow a run; none by default. They may change on resuming,
    since they change no training."""

    # true: into the run directory; or a folder, where each run has one of its own
    tensorboard: bool | str = False
    mlflow: str | None = None  # a server's address, or a folder
    experiment: str = "colonnade"  # of MLflow: under which name runs are listed

    def __post_init__(self) -> None:
        if not isinstance(self.tensorboard, (bool, str)) or self.tensorboard == "":
            raise ConfigError(
                "[tracking] tensorboard must be true, false, or a folder; found"
                f" {self.tensorboard!r}."
            )
        if not isinstance(self.mlflow, str | None) or self.mlflow == "":
            raise ConfigError(
                "[tracking] mlflow must be a server's address or a folder; found"
                f" {self.mlflow!r}."
            )
        if not isinstance(self.experiment, str) or not self.experiment.strip():
            raise ConfigError(
                f"[tracking] experiment must be a name; found {self.experiment!r}."
            )
        if self.mlflow is not None and urlsplit(self.mlflow).password:
            raise ConfigError(
                "[tracking] mlflow has a password, and a run directory keeps its"
                " settings. Leave it out, and set MLFLOW_TRACKING_USERNAME and"
                " MLFLOW_TRACKING_PASSWORD in the environment."
            )

    def below(self, folder: Path) -> TrackingSettings:
        """The settings with relative folders resolved below this one."""
        tensorboard = self.tensorboard
        mlflow = self.mlflow
        if isinstance(tensorboard, str):
            tensorboard = str((folder / tensorboard).resolve())
        if mlflow is not None and not is_address(mlflow):
            mlflow = str((folder / mlflow).resolve())
        return replace(self, tensorboard=tensorboard, mlflow=mlflow)


def is_address(text: str) -> bool:
    """Whether the text is an MLflow server's address rather than a folder."""
    return "://" in text or text.split(":", 1)[0] in SCHEMES
