"""The small clinic and laboratory as organisations of their own: a folder each, with its own files alone."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.federation.small import QUICK, Frames, with_models, write

from colonnade.federation import Settings
from colonnade.settings.party_file import OWN, read_own, write_agreed, write_own
from colonnade.sites.site import Site
from colonnade.transport.remote import Line


def folders(
    base: Path, given: Frames | None = None, settings: Mapping[str, Any] = QUICK, *, models: str | None = "seeded"
) -> tuple[Path, Settings]:
    """The file for one machine, and a folder per party made of it; they begin with the weights of one process, unless
    `models` says otherwise."""
    file = write(base / "all", given, settings)
    checked = with_models(Settings.from_toml(file), models)
    for name in checked.parties:
        (base / name).mkdir()
        write_agreed(base / name, checked)
        write_own(base / name, checked, name)
    return file, checked


def sites(base: Path, names: tuple[str, ...] = ("clinic", "lab")) -> dict[str, Site]:
    return {name: Site(read_own(base / name / OWN)) for name in names}


def line(site: Site, caller: str) -> Line:
    return lambda data, _deadline: site.desk(caller, data)


def lines_of(driver: str, every: Mapping[str, Site]) -> dict[str, Line]:
    return {name: line(site, driver) for name, site in every.items() if name != driver}
