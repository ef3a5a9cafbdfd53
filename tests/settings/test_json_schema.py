"""The JSON Schema takes every good file, and marks the mistakes that an editor can see."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

from colonnade.settings.federation_file import Settings
from colonnade.settings.json_schema import schema_of_federation, schema_of_party

jsonschema = pytest.importorskip("jsonschema")

ROOT = Path(__file__).parents[2]
FILES = sorted(ROOT.glob("**/federation*.toml"))


def mistakes(schema: dict[str, Any], tables: dict[str, Any]) -> list[str]:
    validator = jsonschema.Draft202012Validator(schema)
    return [error.message for error in validator.iter_errors(tables)]


def test_both_are_schemas() -> None:
    for schema in (schema_of_federation(), schema_of_party()):
        jsonschema.Draft202012Validator.check_schema(schema)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.parent.name)
def test_every_file_of_ours_is_taken(path: Path) -> None:
    tables = tomllib.loads(path.read_text(encoding="utf-8"))
    assert mistakes(schema_of_federation(), tables) == []


@pytest.mark.parametrize(
    "tables",
    [
        {},
        {"algorithm": {"name": "knn", "fade": "auto"}, "preset": "vim-mnist"},
        {"algorithm": {"head_hidden": 3}, "model": "mlp"},
        {"data": {"id": ["email", ["name", "born"]], "validation": 12}},
        {"parties": {"lab": {"numbers": {"age": "quantile"}, "columns": ["a"]}}},
        {
            "algorithm": {"name": "multi_vfl"},
            "label_owners": [{"name": "north", "table": "n.csv", "label": "y"}],
            "data_owners": [{"name": "lab", "budget": {"epsilon": 2.0}}],
        },
    ],
    ids=str,
)
def test_what_a_file_may_say_is_taken_also_with_every_default(
    tables: dict[str, Any],
) -> None:
    assert mistakes(schema_of_federation(), tables) == []
    written = tomllib.loads(Settings.from_mapping(tables).to_toml())
    assert mistakes(schema_of_federation(), written) == []


@pytest.mark.parametrize(
    "tables",
    [
        {"trian": {}},
        {"train": {"epoch": 3}},
        {"train": {"epochs": 0}},
        {"algorithm": {"name": "vimadm"}},
        {"algorithm": {"name": "knn", "rho": 2.0}},
        {"federation": {"threads": "some"}},
        {"parties": {"lab": {"tabel": "x.csv"}}},
        {"parties": {"lab": {"budget": {"epsilon": 0}}}},
        {"data_owners": [{"table": "x.csv"}]},
        {"preset": "vim-minst"},
    ],
    ids=str,
)
def test_a_mistake_is_marked(tables: dict[str, Any]) -> None:
    assert mistakes(schema_of_federation(), tables)


def test_an_organisations_own_file_is_checked_too() -> None:
    good = {
        "name": "lab",
        "table": "lab.csv",
        "budget": {"epsilon": 8.0},
        "serve": {"port": 0},
        "memory_per_call": 64,
    }
    assert mistakes(schema_of_party(), good) == []
    assert mistakes(schema_of_party(), {"table": "lab.csv"})
    assert mistakes(schema_of_party(), {**good, "serve": {"prt": 1}})
    assert mistakes(schema_of_party(), {**good, "memory_per_call": 4096})


def test_every_setting_says_what_it_is_for() -> None:
    """An editor shows it beside the key."""
    silent = [
        f"{title}.{key}"
        for schema in (schema_of_federation(), schema_of_party())
        for title, table in schema["$defs"].items()
        for key, field in table["properties"].items()
        if len(field.get("description", "")) < 4
    ]
    assert silent == []
