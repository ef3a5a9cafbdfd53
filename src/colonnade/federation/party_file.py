"""Two files where a federation spans machines: what all agreed on, and what each organisation keeps to itself.

    federation.toml      algorithm, data, model, train, seed, and the parties' names; the same file everywhere
    party.toml           one organisation's own: it never leaves its machine

        name = "lab"
        federation = "federation.toml"      # this organisation's copy of the agreed file
        table = "lab.csv"                   # paths are relative to this file
        columns = ["iron", "zinc"]          # scale, model, as under [parties.lab] of a file for one machine
        runs = "runs"                       # where its folder of each run goes

        [outbox]
        embedding = { mechanism = { name = "gaussian", clip = 1.0, sigma = "auto" } }

        [budget]
        epsilon = 8.0

An organisation works by its own copies alone. A driver sends a fingerprint of what it thinks was agreed, no setting.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from colonnade.algorithms import find
from colonnade.core.checks import did_you_mean
from colonnade.errors import ConfigError
from colonnade.federation.settings import PartySettings, Settings, to_toml

AGREED = "federation.toml"
OWN = "party.toml"
LOCAL = ("device", "threads", "cohort", "through_bytes", "engine")
"""Of [federation]: how a machine computes is its owner's business."""

TO_FILL_IN = """
# Fill in, then check: colonnade party check {file}
# table = "/data/{name}.csv"      # .csv, .csv.gz or .parquet; relative to this file
# columns = ["a", "b"]            # all but the id and the label by default
#
# [outbox]                        # without rules, everything leaves as it is
# {release} = {{ mechanism = {{ name = "gaussian", clip = 1.0, sigma = "auto" }} }}
#
# [budget]
# epsilon = 8.0
"""


@dataclass(frozen=True)
class Own:
    """What one organisation starts from."""

    name: str
    settings: Settings  # the agreed ones, with this organisation's own part under its name
    names: tuple[str, ...]  # all parties, in the agreed order
    driver: str
    runs: Path

    @property
    def drives(self) -> bool:
        return self.name == self.driver

    @property
    def agreed(self) -> str:
        return fingerprint(self.settings)

    @property
    def local(self) -> Settings:
        """The same, without the names of the others: what this organisation alone builds."""
        mine = {name: party for name, party in self.settings.parties.items() if name == self.name}
        return dataclasses.replace(self.settings, parties=mine)


def read_own(path: Path) -> Own:
    """A party.toml and the agreed file it names, checked against each other."""
    tables = dict(_toml(path))
    name, runs = tables.pop("name", None), tables.pop("runs", "runs")
    federation = tables.pop("federation", AGREED)
    if not isinstance(name, str):
        raise ConfigError(f'{path} must have the name of its organisation, as in name = "lab"; found {name!r}.')
    for key, value in (("runs", runs), ("federation", federation)):
        if not isinstance(value, str):
            raise ConfigError(f"{path}: {key} must be text, a path; found {value!r}.")
    agreed = dict(_toml(path.parent / federation))
    _refuse_private(agreed, path.parent / federation)
    parties = dict(agreed.get("parties", {}))
    if name not in parties:
        hint = did_you_mean(name, list(parties))
        there = ", ".join(map(repr, parties))
        raise ConfigError(f"{path} is of {name!r}, which is no party of {federation}{hint}; there are {there}.")
    label = parties[name].get("label")
    if label != tables.get("label", label):
        raise ConfigError(f"{path} has label = {tables['label']!r}, and {federation} says {label!r}. Agree on one.")
    known = [field.name for field in dataclasses.fields(PartySettings)]
    for key in tables:
        if key not in known:
            hint = did_you_mean(key, [*known, "name", "runs", "federation"])
            raise ConfigError(
                f"{path} has no setting {key!r}{hint}. It knows: name, federation, runs, {', '.join(known)}."
            )
    parties[name] = {**parties[name], **tables}
    settings = Settings.from_mapping({**agreed, "parties": parties}, where=str(path))
    table = settings.parties[name].table
    if table is None and settings.data.dataset is None:
        raise ConfigError(f"{path} must name the table of '{name}', as in table = \"{name}.csv\".")
    own = dataclasses.replace(settings.parties[name], table=str((path.parent / table).resolve()) if table else None)
    settings = dataclasses.replace(settings, parties={**settings.parties, name: own})
    if settings.engine.noise == "seeded":
        raise ConfigError(
            f'{federation} has [federation] noise = "seeded", which everybody who knows the seed can subtract. Between '
            "organisations noise is secret: remove the setting."
        )
    return Own(name, settings, tuple(settings.parties), driver_of(settings), (path.parent / runs).resolve())


def driver_of(settings: Settings) -> str:
    """The party with the labels."""
    if settings.label_owners:
        raise ConfigError(f"{settings.algorithm!r} has several label owners, which FLARE does not carry yet.")
    if settings.data.dataset is not None:
        return settings.data.labels_at
    owners = [name for name, party in settings.parties.items() if party.label is not None]
    if len(owners) != 1:
        found = ", ".join(map(repr, owners)) or "none"
        raise ConfigError(f"Exactly one party must name its label column (label = ...); found {found}.")
    return owners[0]


def agreed_tables(settings: Settings) -> dict[str, Any]:
    """What all must know, of settings that may hold more: nobody's paths, columns, models, rules or budgets."""
    tables = settings.to_mapping()
    public = settings.data.dataset is not None  # columns of a public data set say who gets which
    keep = ("label", "columns", "scale") if public else ("label",)
    parties = {
        name: {key: value for key, value in party.items() if key in keep and (key != "scale" or value != "standard")}
        for name, party in tables["parties"].items()
    }
    engine = {key: value for key, value in tables["federation"].items() if key not in LOCAL}
    return {key: value for key, value in tables.items() if key != "audit"} | {"federation": engine, "parties": parties}


def fingerprint(settings: Settings) -> str:
    """Equal at two organisations exactly when their copies agree."""
    text = json.dumps(agreed_tables(settings), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def write_agreed(folder: Path, settings: Settings) -> None:
    (folder / AGREED).write_text(to_toml(agreed_tables(settings)), encoding="utf-8")


def write_own(folder: Path, settings: Settings, name: str, *, runs: Path | None = None) -> None:
    """One organisation's part of a file for one machine, as its party.toml beside the agreed file."""
    party = settings.to_mapping()["parties"].get(name, {})
    head = {"name": name, "federation": AGREED, "runs": "runs" if runs is None else str(runs)}
    text = to_toml({**head, **party})
    if settings.data.dataset is None and "table" not in party:
        text += TO_FILL_IN.format(file=OWN, name=name, release=next(iter(find(settings.algorithm).REVEALS)))
    (folder / OWN).write_text(text, encoding="utf-8")


def _refuse_private(tables: Mapping[str, Any], path: Path) -> None:
    public = tables.get("data", {}).get("dataset") is not None
    allowed = {"label", "columns", "scale"} if public else {"label"}
    for name, party in tables.get("parties", {}).items():
        for key in party if isinstance(party, Mapping) else ():
            if key not in allowed:
                raise ConfigError(
                    f"{path} is agreed among all, and has {key!r} of '{name}'. What a party does with its data is in "
                    f"its own {OWN} alone: remove it there; `colonnade provision` writes an agreed file without it."
                )


def _toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}.") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not TOML: {error}.") from None
