"""What goes in and out over HTTP, as the OpenAPI document describes it. Needs the extra `serve`."""

from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StrictInt, StrictStr


def not_blank(text: str) -> str:
    """No table has an id of nothing but spaces, by what Python takes for one (a regular expression takes less)."""
    if not text.strip():
        raise ValueError("an id is not blank")
    return text


Text = Annotated[StrictStr, Field(min_length=1, max_length=256, pattern=r"^[^\x00]+$"), AfterValidator(not_blank)]
Id = Text | StrictInt
"""Without NUL: arrays of text drop it at an end, so "17" and "17" with NULs would be the same row."""


class Asked(BaseModel):
    """Rows to predict."""

    model_config = ConfigDict(extra="forbid", json_schema_extra={"examples": [{"ids": ["17", "23"]}]})

    ids: list[Id] = Field(min_length=1, description="Their ids; whole numbers stand for their digits.")


class Prediction(BaseModel):
    """One row."""

    id: str
    prediction: Any = Field(description="The predicted label, or the value itself.")
    scores: dict[str, float | None] = Field(description="A score per class; empty where the label is a number.")
    answered: list[str] = Field(description="The parties that answered for this row.")
    missing: list[str] = Field(description="Those that did not: the prediction is degraded.")


class Answer(BaseModel):
    """Predictions, in the order of the ids."""

    predictions: list[Prediction]
    degraded: int = Field(description="How many rows were answered without some party.")


class Trouble(BaseModel):
    """Every error."""

    error: str
    rule: str
    cure: str


class Health(BaseModel):
    """Alive is who answers; ready is who can predict."""

    status: str = Field(description="ready, degraded (a party is missing, which is allowed), or unavailable")
    parties: dict[str, bool] | None = Field(default=None, description="Who answers; told to those with the token.")
    tables: str | None = Field(default=None, description="current; or old, where a changed file cannot be used.")
