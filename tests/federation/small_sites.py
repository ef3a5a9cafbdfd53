"""The small clinic and laboratory as organisations of their own: a folder each, with
its own files alone.

What is here of sites holds of several label owners (`small_multi_sites`), too.
"""

from __future__ import annotations

import shutil
from collections.abc import Collection, Mapping
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pandas as pd
from tests.federation.small import (
    QUICK,
    Frames,
    Tables,
    frames,
    quick,
    tensors,
    with_models,
    write,
)
from torch import Tensor

from colonnade.core import Ledger, Peers, files
from colonnade.errors import ConfigError
from colonnade.federation import Federation, Settings
from colonnade.runs.run_directory import column_of_people
from colonnade.runs.stores import make_site_store, peek_site_store
from colonnade.settings.party_file import (
    OWN,
    all_sites,
    read_own,
    write_agreed,
    write_own,
)
from colonnade.sites.driving import drive
from colonnade.sites.prediction import predict
from colonnade.sites.site import Site
from colonnade.transport.remote import Remote, Route

ALONE = {"federation": {"device": "cpu", "cohort": "off"}}
"""In one process, too, party by party: a cohort rounds otherwise."""
SKIP = {
    "federation": {
        "device": "cpu",
        "cohort": "off",
        "on_missing": "skip",
        "retries": 0,
        "deadline": 5,
    }
}


def folders(
    base: Path,
    given: Frames | None = None,
    settings: Mapping[str, Any] = QUICK,
    *,
    models: str | None = "seeded",
) -> tuple[Path, Settings]:
    """The file for one machine, and a folder per party made of it; they begin with the
    weights of one process, unless `models` says otherwise."""
    return divided(base, write(base / "all", given, settings), models)


def divided(
    base: Path, file: Path, models: str | None = "seeded"
) -> tuple[Path, Settings]:
    """A folder per organisation, made of the file for one machine."""
    settings = with_models(Settings.from_toml(file), models)
    for name in all_sites(settings):
        (base / name).mkdir()
        write_agreed(base / name, settings)
        write_own(base / name, settings, name)
        give_store(base / name / OWN)
    return file, settings


def give_store(own_file: Path) -> None:
    """As `colonnade site init` does. A copy of a store that was made before is as good,
    and quicker: to make one waits for the disk several times."""
    try:
        own = read_own(own_file)
    except ConfigError:
        return  # a test of what is wrong with it
    runs = made_store(own.name, column_of_people(own.settings, own.name))
    own.runs.mkdir(parents=True, exist_ok=True)
    shutil.copytree(runs / "store", own.runs / "store")
    anchor = own.anchor or own.runs.with_name("runs.anchor")
    shutil.copytree(runs.with_name("runs.anchor"), anchor)


@cache
def made_store(owner: str, column: str) -> Path:
    """A folder of runs with an organisation's store that was just made."""
    folder = TemporaryDirectory()
    STORES.append(folder)
    runs = Path(folder.name) / "runs"
    make_site_store(owner, runs, column)
    return runs


STORES: list[TemporaryDirectory[str]] = []
"""Kept until the tests end."""


def taken_at(base: Path, name: str) -> dict[str, dict[str, int]]:
    """What others have taken today of an organisation's allowances."""
    store = peek_site_store(name, base / name / "runs")
    assert store is not None
    return store.taken()


def three(base: Path, settings: Tables = QUICK) -> dict[str, Site]:
    given = frames()
    given["bank"] = given["lab"].rename(columns={"iron": "income", "zinc": "loans"})
    folders(base, given, settings)
    return sites(base)


def sites(base: Path, names: Collection[str] | None = None) -> dict[str, Site]:
    """Those named, or all that have a folder here, with lines to each other."""
    found = (
        sorted(path.parent.name for path in base.glob(f"*/{OWN}"))
        if names is None
        else names
    )
    every = {name: Site(read_own(base / name / OWN)) for name in found}
    for name, site in every.items():
        site.routes = lines_of(name, every)
    return every


def line(site: Site, caller: str) -> Route:
    """A line for calls that are made by hand, and say nothing of stores."""
    return lambda data, _deadline: site.endpoint(caller, data)


def line_between(site: Site, caller: str) -> Route:
    """A line as sites have it, over which they tell each other of their stores."""
    return lambda data, _deadline: site.desk(caller, data)


def lines_of(caller: str, every: Mapping[str, Site]) -> dict[str, Route]:
    return {
        name: line_between(site, caller)
        for name, site in every.items()
        if name != caller
    }


def ask(site: Site, caller: str, request: Any) -> Any:
    name = site.own.name
    return Peers(
        caller, [name], Remote({name: line(site, caller)}), Ledger(caller)
    ).ask_one(name, request)


def saved(base: Path, run: str) -> dict[str, Tensor]:
    """Every tensor in the organisations' own last checkpoints."""
    found: dict[str, Tensor] = {}
    for own in base.glob(f"*/runs/{run}/parties/*"):
        found |= tensors(files.read_state(max(own.glob("checkpoint-*"))), own.name)
    return found


def trained(base: Path, settings: Any = None, given: Frames | None = None) -> Path:
    """A run by sites, and the same in one process."""
    file, _ = folders(base, given, settings or quick(**ALONE))
    Federation.from_toml(file).fit(base / "here")
    drive(sites(base)["clinic"], "run")
    return base / "clinic" / "runs" / "run"


def asked(run: Path, ids: list[str], name: str = "new.csv") -> str:
    (run / "rows").mkdir(exist_ok=True)
    frame = pd.DataFrame({"patient": ids})
    (
        frame.to_csv(run / "rows" / name, index=False)
        if name.endswith("csv")
        else frame.to_parquet(run / "rows" / name)
    )
    return name


def told(base: Path, ids: list[str], name: str = "new.csv") -> pd.DataFrame:
    """What the clinic's site predicts."""
    run = base / "clinic" / "runs" / "run"
    out = predict(sites(base)["clinic"], "run", asked(run, ids, name))
    assert out == run / "predictions" / name
    return (
        pd.read_csv(out, keep_default_na=False)
        if name.endswith("csv")
        else pd.read_parquet(out)
    )


def new_people(base: Path) -> list[str]:
    """Five more rows in both tables since training."""
    more = frames(rows=85, seed=3)
    for name in ("clinic", "lab"):
        path = base / "all" / f"{name}.csv"
        added = more[name][more[name]["patient"] >= "P080"]
        pd.concat(
            [pd.read_csv(path), added.drop(columns="diagnosis", errors="ignore")]
        ).to_csv(path, index=False)
    return ["P083", "P002", "P080"]
