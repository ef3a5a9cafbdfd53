"""One label owner, or several: laws that hold for both kinds of federations are stated
once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.federation import small_multi_sites, small_sites
from tests.federation.small import checkpoint_of, quick
from tests.federation.small_sites import ALONE, saved, sites

from colonnade.federation import Outcome
from colonnade.settings.selection import SERVER
from colonnade.sites.driving import drive

each_kind = pytest.mark.parametrize("kind", ["one", "several"])
DRIVER = {"one": "clinic", "several": SERVER}


def made(base: Path, kind: str, **changes: Any) -> Path:
    """A folder per organisation; gives the file for one machine."""
    if kind == "one":
        return small_sites.folders(base, settings=quick(**{**ALONE, **changes}))[0]
    return small_multi_sites.folders(base, small_multi_sites.private(**changes))[0]


def trains(base: Path, kind: str, run: str = "run", **more: Any) -> Outcome:
    """By sites that have just started."""
    return drive(sites(base)[DRIVER[kind]], run, **more)


def same_bits(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> None:
    assert one.keys() == other.keys()
    assert [key for key in one if not torch.equal(one[key], other[key])] == []


def as_in_one_process(base: Path) -> None:
    """What sites saved as base/*/runs/run is what one process saved in base/here."""
    same_bits(checkpoint_of(base / "here"), saved(base, "run"))
