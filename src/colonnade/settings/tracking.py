"""The [tracking] table of a federation file: which services follow a run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, ClassVar, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, model_validator

from colonnade.settings.schema import Rule, Table

SCHEMES = ("file", "databricks", "databricks-uc")
"""MLflow's addresses that need no "//"."""


def _not_blank(text: str) -> str:
    if not text.strip():
        raise ValueError("it must not be empty")
    return text


NotBlank = Annotated[str, AfterValidator(_not_blank)]


class TrackingSettings(Table):
    """The services that follow a run; none by default.

    They may change on resuming, since they change no training.
    """

    place: ClassVar[str] = "[tracking]"

    tensorboard: Annotated[bool | NotBlank, Rule("true, false, or a folder")] = Field(
        default=False,
        description=(
            "`true`: into the run directory; or a folder, where each run has one of its"
            " own"
        ),
    )
    mlflow: Annotated[NotBlank, Rule("a server's address or a folder")] | None = Field(
        default=None, description="a server's address, or a folder"
    )
    experiment: Annotated[NotBlank, Rule("a name")] = Field(
        default="colonnade", description="of MLflow: under which name runs are listed"
    )

    @model_validator(mode="after")
    def _refuse_password(self) -> Self:
        if self.mlflow is not None and urlsplit(self.mlflow).password:
            raise ValueError(
                "[tracking] mlflow has a password, and a run directory keeps its"
                " settings. Leave it out, and set MLFLOW_TRACKING_USERNAME and"
                " MLFLOW_TRACKING_PASSWORD in the environment."
            )
        return self

    def below(self, folder: Path) -> TrackingSettings:
        """The settings with relative folders resolved below this one."""
        tensorboard = self.tensorboard
        mlflow = self.mlflow
        if isinstance(tensorboard, str):
            tensorboard = str((folder / tensorboard).resolve())
        if mlflow is not None and not is_address(mlflow):
            mlflow = str((folder / mlflow).resolve())
        return self.changed(tensorboard=tensorboard, mlflow=mlflow)


def is_address(text: str) -> bool:
    """Whether the text is an MLflow server's address rather than a folder."""
    return "://" in text or text.split(":", 1)[0] in SCHEMES
