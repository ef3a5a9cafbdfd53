"""Two hospitals and two centres as organisations of their own, and the aggregation server: a folder each."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from tests.federation.small import tensors, with_models
from tests.federation.small_multi import COLUMNS, LABELS, QUICK, Frames, quick, write

from colonnade.core import checkpoint
from colonnade.federation import MultiFederation, Settings
from colonnade.settings.owners import SERVER
from colonnade.settings.party_file import OWN, read_own, sites_of, write_agreed, write_own
from colonnade.sites.multi_site import MultiSite
from colonnade.transport.remote import Line

PRIVATE = {"id": "patient", "align": "private"}
ALONE = {"device": "cpu", "cohort": "off"}
EVERY = (*LABELS, *COLUMNS, SERVER)


def private(**changes: Any) -> dict[str, Any]:
    """`QUICK` with rows found privately, and party by party: stacked label owners round otherwise."""
    given = quick(**changes)
    data, engine = given.get("data", {}), {**ALONE, **changes.get("federation", {})}
    return {**given, "data": {**PRIVATE, **data}, "federation": engine}


def folders(
    base: Path, settings: Mapping[str, Any] = QUICK, given: Frames | None = None, *, models: str | None = "seeded"
) -> tuple[Path, Settings]:
    """The file for one machine, and a folder per organisation made of it; they begin with the weights of one process,
    unless `models` says otherwise."""
    base.mkdir(parents=True, exist_ok=True)
    file = write(base / "all", settings, given)
    checked = with_models(Settings.from_toml(file), models)
    for name in sites_of(checked):
        (base / name).mkdir()
        write_agreed(base / name, checked)
        write_own(base / name, checked, name)
    return file, checked


def public_folders(base: Path) -> tuple[MultiFederation, tuple[str, ...]]:
    """For organisations that each cut a public data set for themselves: all in one process, and their names."""
    tables = {
        "algorithm": {"name": "multi_vfl"},
        "data": {"dataset": "breast_cancer", "parts": [10, 20]},
        "train": {"epochs": 1, "batch_size": 128},
        "federation": ALONE,
        "label_owners": [{"name": "north", "rows": 200}, {"name": "south", "rows": 150}],
    }
    whole = MultiFederation.from_settings(Settings.from_mapping(tables))
    named = Settings.from_mapping({**tables, "data_owners": [{"name": name} for name in whole.owners]})
    named = with_models(named, "seeded")
    names = (*LABELS, *whole.owners, SERVER)
    for name in names:
        (base / name).mkdir()
        write_agreed(base / name, named)
        write_own(base / name, named, name)
    return whole, names


def line(site: MultiSite, caller: str) -> Line:
    return lambda data, _deadline: site.desk(caller, data)


def sites(base: Path, names: tuple[str, ...] = EVERY) -> dict[str, MultiSite]:
    """All of them, with lines to each other."""
    every = {name: MultiSite(read_own(base / name / OWN)) for name in names}
    for name, site in every.items():
        site.lines = lines_of(name, every)
    return every


def lines_of(caller: str, every: Mapping[str, MultiSite]) -> dict[str, Line]:
    return {name: line(site, caller) for name, site in every.items() if name != caller}


def saved(base: Path, run: str) -> dict[str, torch.Tensor]:
    """Every tensor in the organisations' own last checkpoints."""
    found: dict[str, torch.Tensor] = {}
    for name in EVERY:
        folder = max((base / name / "runs" / run / "parties" / name).glob("checkpoint-*"))
        found |= tensors(checkpoint.read(folder), name)
    return found
