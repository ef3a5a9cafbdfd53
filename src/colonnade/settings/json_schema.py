"""The JSON Schema of federation.toml and party.toml, by which editors complete and
check them."""

from __future__ import annotations

from typing import Any

from colonnade.settings.algorithms import ALGORITHM_SETTINGS, DEFAULT
from colonnade.settings.federation_file import FederationFile
from colonnade.settings.party_file import PartyFile
from colonnade.settings.sections import LISTS
from colonnade.settings.suggested import PRESETS

DRAFT = "https://json-schema.org/draft/2020-12/schema"
"""The version of JSON Schema that is written."""
NAME = {"type": "string", "description": "The organisation's name."}


def schema_of_federation() -> dict[str, Any]:
    """The schema of federation.toml, which is also that of a file for one machine."""
    schema = FederationFile.model_json_schema()
    schema["properties"]["algorithm"] = _algorithm()
    schema["properties"]["preset"] = {
        "enum": list(PRESETS),
        "description": "A paper's settings, where the file leaves them out.",
    }
    for section in LISTS:
        schema["properties"][section] = _list_of_owners(schema, section)
    _accept_names_of_models(schema)
    schema["$defs"].pop("AlgorithmSettings", None)
    return {"$schema": DRAFT, **schema, "title": "federation.toml"}


def schema_of_party() -> dict[str, Any]:
    """The schema of party.toml, an organisation's own file."""
    schema = PartyFile.model_json_schema()
    return {"$schema": DRAFT, **schema, "title": "party.toml"}


def _algorithm() -> dict[str, Any]:
    """One schema for each algorithm, chosen by its name. The default needs no name."""
    kinds = []
    for name, kind in ALGORITHM_SETTINGS.items():
        schema = kind.model_json_schema()
        schema["properties"] = {"name": {"const": name}, **schema["properties"]}
        schema["description"] = kind.about()
        if name != DEFAULT:
            schema["required"] = ["name"]
        kinds.append(schema)
    return {
        "description": "Which algorithm trains, and its own settings.",
        "type": "object",
        "anyOf": kinds,
    }


def _list_of_owners(schema: dict[str, Any], section: str) -> dict[str, Any]:
    """Organisations that a file lists, each with its name."""
    field = schema["properties"][section]
    reference = field["additionalProperties"]["$ref"].rpartition("/")[2]
    owner = schema["$defs"][reference]
    item = {
        **owner,
        "properties": {"name": NAME, **owner["properties"]},
        "required": ["name"],
    }
    return {"type": "array", "items": item, "description": field["description"]}


def _accept_names_of_models(schema: dict[str, Any]) -> None:
    """A model may be a name alone: model = "mlp"."""
    for key in ("model", "label_model"):
        field = schema["properties"][key]
        kinds = [{"type": "string"}, {"type": "object", "additionalProperties": True}]
        schema["properties"][key] = {
            "anyOf": kinds,
            "description": field["description"],
        }
