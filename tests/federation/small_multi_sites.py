"""Two hospitals and two centres as organisations of their own, and the aggregation
server: a folder each."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.federation.small_multi import COLUMNS, LABELS, QUICK, Frames, quick, write
from tests.federation.small_sites import divided
from tests.federation.small_sites import sites as sites

from colonnade.federation import Federation, Settings
from colonnade.settings.selection import SERVER
from colonnade.settings.toml_text import to_toml

PRIVATE = {"id": "patient", "align": "private"}
ALONE = {"device": "cpu", "cohort": "off"}
EVERY = (*LABELS, *COLUMNS, SERVER)


def private(**changes: Any) -> dict[str, Any]:
    """`QUICK` with rows found privately, and party by party: stacked label owners round
    otherwise."""
    given = quick(**changes)
    data = given.get("data", {})
    engine = {**ALONE, **changes.get("federation", {})}
    return {**given, "data": {**PRIVATE, **data}, "federation": engine}


def folders(
    base: Path,
    settings: Mapping[str, Any] = QUICK,
    given: Frames | None = None,
    *,
    models: str | None = "seeded",
) -> tuple[Path, Settings]:
    """The file for one machine, and a folder per organisation made of it; they begin
    with the weights of one process, unless `models` says otherwise."""
    return divided(base, write(base / "all", settings, given), models)


def public_folders(base: Path) -> tuple[Federation, tuple[str, ...]]:
    """For organisations that each cut a public data set for themselves: all in one
    process, and who holds columns."""
    tables = {
        "algorithm": {"name": "multi_vfl"},
        "data": {"dataset": "breast_cancer", "parts": [10, 20]},
        "train": {"epochs": 1, "batch_size": 128},
        "federation": ALONE,
        "label_owners": [
            {"name": "north", "rows": 200},
            {"name": "south", "rows": 150},
        ],
    }
    whole = Federation.from_settings(Settings.from_mapping(tables))
    file = base / "federation.toml"
    file.write_text(
        to_toml({**tables, "data_owners": [{"name": name} for name in whole.owners]}),
        encoding="utf-8",
    )
    divided(base, file)
    return whole, tuple(whole.owners)
