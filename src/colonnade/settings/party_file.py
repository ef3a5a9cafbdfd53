"""Two files where a federation spans machines: what all agreed on, and what each
organisation keeps to itself.

    federation.toml      algorithm, data, model, train, seed, and the parties' names; the same file everywhere
    party.toml           one organisation's own: it never leaves its machine

        name = "lab"
        federation = "federation.toml"      # this organisation's copy of the agreed file
        table = "lab.csv"                   # paths are relative to this file
        columns = ["iron", "zinc"]          # gaps, scale, model, as under [parties.lab] of a file for one machine
        models = "secret"                   # as by default: nobody else knows its initial weights
        runs = "runs"                       # where its folder of each run goes
        memory_per_call = 256               # MiB that a call or an answer of others may unpack to

        allow_models = ["my_nets:Tower"]    # code that the agreed file may name as a model; none unless listed

        [outbox]
        embedding = { mechanism = { name = "gaussian", clip = 1.0, sigma = "auto" } }

        [budget]
        epsilon = 8.0

        [serve]                             # of who drives: it may answer HTTP requests (`colonnade serve`)
        port = 8080
        token_file = "token.txt"

        [alignments]                        # where rows are found privately: what each label owner may ask in a day
        per_day = 10                        # alignments to train, of lists of `smallest` ids or more
        predicted_per_day = 1000            # ids to predict

        [selections]                        # it takes part in selections (`colonnade select`); without this, in none
        per_day = 1                         # with each label owner
        queries = 256                       # rows whose neighbours it ranks in one of them

        [audit]                             # of an audit between sites (`colonnade audit`), its page stays here
        tell = "verdict"                    # to who asks: nothing (unless said), verdict, or figures
        inversion_r2 = 0.5                  # limits of its own, by which it gives its verdict

        [store]                             # what it remembers over all its runs (`colonnade site init` makes it)
        anchor = "/mnt/other/lab.anchor"    # its key and newest mark; best on another disk
        new_people = "new"                  # of rows never counted before: new or same people? by default it asks

        [peers]                             # whose certificate has which fingerprint (`colonnade party check` tells)
        clinic = "sha256:9f86d0..."

An organisation works by its own copies alone. A driver sends a fingerprint of what it
thinks was agreed, no setting.

Where several hold labels, the agreed file has [[label_owners]] and [[data_owners]], and
what adds the label owners' weights up is a site of its own, `aggregation_server`, whose
party.toml has nothing but its name. Were it to sit with a label owner, that one would
see the others' weights; at the relay, the relay would no longer be neutral. The helper
that [alignment] may name is such a site, too; and so are those of selections, with
[selection] servers = true in the agreed file: `aggregation_server` adds ciphertexts up,
and `key_server` decrypts sums.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from colonnade import models
from colonnade.algorithms import find
from colonnade.alignment.settings import AllowanceSettings
from colonnade.core.checks import (
    Checked,
    did_you_mean,
    from_mapping,
    one_of,
    read_toml,
)
from colonnade.core.wire import MAX_FRAME, UNPACKED
from colonnade.errors import ConfigError
from colonnade.selection.settings import KEYS, SERVER, SelectionAllowance
from colonnade.settings.federation_file import Settings
from colonnade.settings.known import LISTS
from colonnade.settings.sections import (
    AuditSettings,
    LabelOwnerSettings,
    PartySettings,
    by_name,
    place_of,
    with_paths,
)
from colonnade.settings.serving import ServeSettings, checked_pins
from colonnade.settings.toml_text import to_toml

AGREED = "federation.toml"
OWN = "party.toml"
STARTUP = "startup"
T = TypeVar("T")
LOCAL = ("device", "threads", "cohort", "through_bytes")
"""Of [federation]: how a machine computes is its owner's business."""

TO_FILL_IN = """
# Fill in, then check: colonnade party check {file}
# table = "/data/{name}.csv"      # .csv, .csv.gz or .parquet; relative to this file
# id = "customer_no"              # if the id column is not called as the agreed file says
"""
LABELS_TO_FILL_IN = """\
# label = "diagnosis"             # unless the agreed file names it
"""
COLUMNS_TO_FILL_IN = """\
# columns = ["a", "b"]            # all but the id and the label by default
#
# [outbox]                        # without rules, everything leaves as it is
# {release} = {{ mechanism = {{ name = "gaussian", clip = 1.0, sigma = "auto" }} }}
#
# [budget]
# epsilon = 8.0
#
# [selections]                    # without it, this organisation takes part in no selection of partners
# per_day = 1
"""


@dataclass(frozen=True)
class StoreSettings:
    """What an organisation says about its store (`colonnade.store`).

    Args:
        anchor: The folder of its key and its newest witness, relative to party.toml. By
            default it lies beside the folder of runs.
        new_people: What many rows are that were never counted before: "new" people, or
            the "same" ones under other ids; or the column was "renamed". By default
            the site refuses them until its owner says so.
        new_peers: Whether a peer that keeps nothing of this store is taken as one that
            was never met, though rows were released before and no other peer vouches.
        draw_again: Whether labels may be drawn at random once more, where the store has
            lost entries and does not know whether they were: that costs their epsilon
            again.
    """

    anchor: str = Checked(  # type: ignore[assignment]
        "a path", lambda v: v if isinstance(v, str) else None, ""
    )
    new_people: str = one_of("ask", "new", "same", "renamed", default="ask")
    new_peers: bool = Checked(  # type: ignore[assignment]
        "true or false", lambda v: v if isinstance(v, bool) else None, False
    )
    draw_again: bool = Checked(  # type: ignore[assignment]
        "true or false", lambda v: v if isinstance(v, bool) else None, False
    )


@dataclass(frozen=True)
class SiteConfig:
    """What one organisation's site is started with."""

    name: str
    # the agreed ones, with this organisation's own part under its name
    settings: Settings
    names: tuple[str, ...]  # all parties, in the agreed order
    driver: str
    runs: Path
    serve: ServeSettings | None = None  # None: no job makes it listen
    # fingerprints of their certificates; none: as issued
    peers: Mapping[str, str] = field(default_factory=dict)
    # what others may compare with its ids
    alignments: AllowanceSettings = field(default_factory=AllowanceSettings)
    memory_per_call: int = UNPACKED  # bytes
    selections: SelectionAllowance | None = None  # None: it takes part in none
    # its own limits, and what it tells of them
    audit: AuditSettings = field(default_factory=AuditSettings)
    store: StoreSettings = field(default_factory=StoreSettings)
    # of its store; None: beside its runs
    anchor: Path | None = None

    @property
    def everybody(self) -> tuple[str, ...]:
        """All who may call this site, and itself: those who train, and those who serve
        selections."""
        return all_sites(self.settings)

    @property
    def drives(self) -> bool:
        return self.name == self.driver

    @property
    def label_owners(self) -> list[str]:
        """The organisations that hold labels, and ask those that hold columns."""
        return label_owners_of(self.settings)

    @property
    def feature_owners(self) -> list[str]:
        """The organisations that answer label owners from columns, in the agreed order;
        not the label owner itself."""
        if self.settings.label_owners:
            return list(self.settings.parties)
        return [name for name in self.names if name not in (self.driver, self.helper)]

    @property
    def helper(self) -> str:
        """The site without data that compares keyed hashes of ids, where the agreed
        file names one; else ""."""
        return self.settings.alignment.helper or ""

    @property
    def private(self) -> bool:
        """Whether common rows are found first: where several hold labels, none knows
        who holds which."""
        data = self.settings.data
        return data.dataset is None and (
            self.settings.shared or data.align == "private"
        )

    @property
    def section(self) -> str:
        """The heading under which this organisation stands in the agreed file; "" for
        one without data."""
        if self.name in self.settings.label_owners:
            return "label_owners"
        return self.settings.section if self.name in self.settings.parties else ""

    @property
    def agreed(self) -> str:
        return fingerprint(self.settings)

    @property
    def local(self) -> Settings:
        """The settings without the names of the others: what this organisation alone
        builds. Several label owners stay named, since data owners keep the rows of each
        apart."""
        if self.settings.label_owners:
            return self.settings
        mine = {
            name: party
            for name, party in self.settings.parties.items()
            if name == self.name
        }
        return dataclasses.replace(self.settings, parties=mine)


def read_own(path: Path) -> SiteConfig:
    """Read a party.toml and the agreed file that it names, and check each against the
    other."""
    tables = dict(read_toml(path, str(path)))
    name = tables.pop("name", None)
    runs = tables.pop("runs", "runs")
    federation = tables.pop("federation", AGREED)
    tracking = tables.pop("tracking", {})
    allow = _allowed(tables, path)
    memory = _memory(tables, path)
    serve = _table(ServeSettings, tables, "serve", path)
    selections = _table(SelectionAllowance, tables, "selections", path)
    audit = _table(AuditSettings, tables, "audit", path) or AuditSettings()
    alignments = _table(AllowanceSettings, tables, "alignments", path)
    store = _table(StoreSettings, tables, "store", path) or StoreSettings()
    pinned = tables.pop("peers", None)
    if not isinstance(name, str):
        raise ConfigError(
            f'{path} must have the name of its organisation, as in name = "lab"; found'
            f" {name!r}."
        )
    for key, value in (("runs", runs), ("federation", federation)):
        if not isinstance(value, str):
            raise ConfigError(f"{path}: {key} must be text, a path; found {value!r}.")
    agreed = dict(read_toml(path.parent / federation, str(path.parent / federation)))
    _refuse_private(agreed, path.parent / federation)
    held = _sections(agreed)
    chooses = agreed.get("selection")
    servers = isinstance(chooses, Mapping) and chooses.get("servers") is True
    without = [
        str(agreed.get("alignment", {}).get("helper", "")),
        *([] if "parties" in held else [SERVER]),
    ]
    without += [SERVER, KEYS] if servers else []
    section = (
        "" if name in without and name else _section_of(name, held, path, federation)
    )
    mine = held[section].get(name, {}) if section else {}
    label = mine.get("label")
    if tables.get("label", label) != label and (
        label is not None or section == "parties"
    ):
        raise ConfigError(
            f"{path} has label = {tables['label']!r}, and {federation} says {label!r}."
            " Agree on one."
        )
    kind = LabelOwnerSettings if section == "label_owners" else PartySettings
    known = [field.name for field in dataclasses.fields(kind)] if section else []
    for key in tables:
        if key not in known:
            always = (
                "memory_per_call name federation runs allow_models alignments"
                " selections audit serve store peers tracking"
            )
            knows = [*always.split(), *known]
            raise ConfigError(
                f"{path} has no setting {key!r}{did_you_mean(key, knows)}. It knows:"
                f" {', '.join(knows)}."
            )
    if section:
        every = {**held[section], name: {"models": "secret", **mine, **tables}}
        agreed[section] = (
            every
            if section == "parties"
            else [{"name": n} | owner for n, owner in every.items()]
        )
    with in_own_words(name, section):
        settings = Settings.from_mapping(
            {**agreed, "tracking": tracking}, where=str(path), allow_models=allow
        )
    settings = _resolved(settings, name, path)
    if tracking:
        settings = dataclasses.replace(
            settings, tracking=settings.tracking.below(path.parent)
        )
    askers = label_owners_of(settings)
    driver = driver_of(settings)
    if tracking and name != driver:
        raise ConfigError(
            f"{path} has [tracking], and '{driver}' drives: only there are numbers to"
            " tell."
        )
    if serve is not None and name not in askers:
        at = " and ".join(f"'{asker}'" for asker in askers) + (
            " predict" if settings.label_owners else " drives"
        )
        raise ConfigError(
            f"{path} has [serve], and {at}: only there predictions are known."
        )
    if settings.engine.noise == "seeded":
        raise ConfigError(
            f'{federation} has [federation] noise = "seeded", which everybody who knows'
            " the seed can subtract. Between organisations noise is secret: remove the"
            " setting."
        )
    names = sites_of(settings)
    others = [site for site in all_sites(settings) if site != name]
    pinned = {} if pinned is None else checked_pins(pinned, others, path)
    serve = None if serve is None else serve.below(path.parent)
    alignments = alignments or AllowanceSettings()
    runs = (path.parent / runs).resolve()
    anchor = (path.parent / store.anchor).resolve() if store.anchor else None
    return SiteConfig(
        name,
        settings,
        names,
        driver,
        runs,
        serve,
        pinned,
        alignments,
        memory,
        selections,
        audit,
        store,
        anchor,
    )


@contextmanager
def in_own_words(name: str, section: str) -> Iterator[None]:
    """An error about one organisation's settings names its own file's tables: [budget],
    not [parties.lab.budget]."""
    try:
        yield
    except ConfigError as error:
        message = str(error)
        for part in ("outbox", "budget", "model") if section else ():
            message = message.replace(place_of(section, name, part), f"[{part}]")
        raise ConfigError(
            message.replace(place_of(section, name), OWN) if section else message
        ) from None


def runs_of(path: Path) -> Path:
    """Where an organisation keeps its runs, by its own file as far as that can be read:
    failures are told there."""
    usual = "../runs" if path.parent.name == "local" else "runs"
    try:
        runs = read_toml(path, str(path)).get("runs", "runs")
    except ConfigError:
        runs = usual
    return (path.parent / (runs if isinstance(runs, str) else usual)).resolve()


def at_sites(settings: Settings) -> Settings:
    """Make every organisation's models secret, unless its owner says otherwise, as they
    are between sites."""

    def secret(owners: Mapping[str, Any]) -> dict[str, Any]:
        return {
            name: dataclasses.replace(owner, models=owner.models or "secret")
            for name, owner in owners.items()
        }

    return dataclasses.replace(
        settings,
        parties=secret(settings.parties),
        label_owners=secret(settings.label_owners),
    )


def sites_of(settings: Settings) -> tuple[str, ...]:
    """List all who take part, in the agreed order: each has a site."""
    if (
        settings.rows_differ
        and settings.data.dataset is None
        and settings.data.align != "private"
    ):
        raise ConfigError(
            "Between machines the label owner finds which of its rows a partner holds"
            f' by [data] align = "private"; found {settings.data.align!r}, with rows ='
            ' "label_owner". Set it in the agreed file.'
        )
    helper = (settings.alignment.helper,) if settings.alignment.helper else ()
    if helper and settings.data.align != "private":
        rule = (
            f"[alignment] helper = {helper[0]!r} compares ids where they are found"
            " privately, and [data] align is "
        )
        raise ConfigError(
            f'{rule}{settings.data.align!r}. Set align = "private", or remove the'
            " helper."
        )
    if not settings.label_owners:
        return (*settings.parties, *helper)
    for name in settings.label_owners:
        if name in settings.parties:
            raise ConfigError(
                f"{name!r} is in [[label_owners]] and in [[data_owners]], and a site"
                f" plays one role. Give it two names, as in {name!r} and"
                f" '{name}_columns', and each a site."
            )
    if settings.data.dataset is None and settings.data.align != "private":
        raise ConfigError(
            "Between machines label owners and data owners find the rows they share by"
            f' [data] align = "private"; found {settings.data.align!r}. Set it in the'
            " agreed file, or train in one process."
        )
    return (*settings.label_owners, *settings.parties, SERVER, *helper)


def all_sites(settings: Settings) -> tuple[str, ...]:
    """List those who train, and where the agreed file has them, those who add up and
    decrypt in selections."""
    names = sites_of(settings)
    if not settings.selection.servers:
        return names
    for name in (SERVER, KEYS):
        if name in {*settings.parties, *settings.label_owners}:
            raise ConfigError(
                f"A party cannot be called {name!r}, which is a server's name in"
                " selections. Rename it."
            )
    return tuple(dict.fromkeys([*names, SERVER, KEYS]))


def driver_of(settings: Settings) -> str:
    """The party with the labels; where several have labels, the one that adds their
    weights up."""
    if settings.label_owners:
        return SERVER
    if settings.data.dataset is not None:
        return settings.data.labels_at
    owners = [
        name for name, party in settings.parties.items() if party.label is not None
    ]
    if len(owners) != 1:
        named = ", ".join(map(repr, owners)) or "none"
        raise ConfigError(
            "Exactly one party must name its label column (label = ...); found"
            f" {named}."
        )
    return owners[0]


def label_owners_of(settings: Settings) -> list[str]:
    """The organisations that hold labels."""
    return list(settings.label_owners) or [driver_of(settings)]


def asker_of(settings: Settings, name: str | None = None) -> str:
    """The organisation that predicts: the one with labels; of several label owners the
    one named, else the first."""
    owners = label_owners_of(settings)
    if name is not None and name not in owners:
        raise ConfigError(
            f"{name!r} is no label owner here{did_you_mean(name, owners)}; there are"
            f" {', '.join(owners)}."
        )
    return name or owners[0]


def asked_with(settings: Settings, asker: str) -> tuple[str, ...]:
    """The sites that a prediction needs: of several label owners only the one that
    asks."""
    if settings.label_owners:
        return (asker, *settings.parties)
    # by Diffie-Hellman
    return tuple(
        name for name in sites_of(settings) if name != settings.alignment.helper
    )


def agreed_tables(settings: Settings) -> dict[str, Any]:
    """Keep what all must know of settings that may hold more: nobody's paths, columns,
    models, rules or budgets."""
    tables = settings.to_mapping()
    # columns of a public data set say who gets which
    public = settings.data.dataset is not None

    def public_part(section: str, party: Mapping[str, Any]) -> dict[str, Any]:
        keep = ("name", *_told_of(section, public))
        return {
            key: value
            for key, value in party.items()
            if key in keep and (key != "scale" or value != "standard")
        }

    owners = {
        section: (
            [public_part(section, party) for party in tables[section]]
            if section in LISTS
            else {
                name: public_part(section, party)
                for name, party in tables[section].items()
            }
        )
        for section in ("parties", *LISTS)
        if section in tables
    }
    engine = {
        key: value for key, value in tables["federation"].items() if key not in LOCAL
    }
    kept = {
        key: value for key, value in tables.items() if key not in ("audit", "tracking")
    }
    return kept | {"federation": engine} | owners


def fingerprint(settings: Settings) -> str:
    """Digest what is agreed: equal at two organisations exactly when their copies
    agree."""
    return hashlib.sha256(
        json.dumps(agreed_tables(settings), sort_keys=True).encode()
    ).hexdigest()[:32]


def write_agreed(folder: Path, settings: Settings) -> None:
    (folder / AGREED).write_text(
        to_toml(agreed_tables(settings.with_few_epochs())), encoding="utf-8"
    )


def write_own(
    folder: Path, settings: Settings, name: str, *, runs: Path | None = None
) -> None:
    """Write one organisation's part of a file for one machine, as its party.toml beside
    the agreed file."""
    sections = _sections(settings.to_mapping())
    section = next(
        (heading for heading, parties in sections.items() if name in parties), ""
    )
    party = sections[section][name] if section else {}
    head: dict[str, Any] = {
        "name": name,
        "federation": AGREED,
        "runs": "runs" if runs is None else str(runs),
    }
    tables = settings.to_mapping()
    aside = (
        {"tracking": tables["tracking"]}
        if "tracking" in tables and name == driver_of(settings)
        else {}
    )
    aside |= {"audit": tables["audit"]} if tables.get("audit") and section else {}
    head |= (
        {"allow_models": list(settings.allow_models)} if settings.allow_models else {}
    )
    text = to_toml({**head, **party, **aside})
    if settings.data.dataset is None and "table" not in party and section:
        form = TO_FILL_IN + (
            LABELS_TO_FILL_IN if section == "label_owners" else COLUMNS_TO_FILL_IN
        )
        text += form.format(
            file=OWN, name=name, release=next(iter(find(settings.algorithm).releases))
        )
    (folder / OWN).write_text(text, encoding="utf-8")


def write_table(path: Path, name: str, table: Mapping[str, Any]) -> None:
    """Write [serve] or another table into a party.toml of this machine, in the place of
    what stood there."""
    path.write_text(
        to_toml({**read_toml(path, str(path)), name: dict(table)}), encoding="utf-8"
    )
    read_own(path)


def _allowed(tables: dict[str, Any], path: Path) -> tuple[str, ...]:
    """The import paths that an organisation's own file allows: those it lists, and that
    of its own model."""
    listed = tables.pop("allow_models", [])
    if not isinstance(listed, list) or not all(
        isinstance(item, str) for item in listed
    ):
        raise ConfigError(
            f"{path}: allow_models must be a list of import paths, as in"
            f' ["my_nets:Tower"]; found {listed!r}.'
        )
    own = models.import_path(tables.get("model"))
    return (*listed, own) if own is not None else tuple(listed)


def _memory(tables: dict[str, Any], path: Path) -> int:
    """Bytes that a call may unpack to, which the file has in MiB."""
    said = tables.pop("memory_per_call", UNPACKED >> 20)
    most = MAX_FRAME >> 20
    if not isinstance(said, int) or isinstance(said, bool) or not 1 <= said <= most:
        raise ConfigError(
            f"{path}: memory_per_call must be a whole number of MiB, from 1 to {most};"
            f" found {said!r}."
        )
    return said << 20


def _table(kind: type[T], tables: dict[str, Any], name: str, path: Path) -> T | None:
    """The settings under a heading that is an organisation's own alone; None where
    there is none."""
    table = tables.pop(name, None)
    if table is None:
        return None
    if not isinstance(table, Mapping):
        raise ConfigError(
            f"{path}: [{name}] must be a table of settings; found {table!r}."
        )
    return from_mapping(kind, table, where=f"{path} [{name}]")


def _sections(tables: Mapping[str, Any]) -> dict[str, dict[str, dict[str, Any]]]:
    """Group organisations and their settings by the heading under which they stand."""
    if any(section in tables for section in LISTS):
        return {section: by_name(section, tables.get(section, [])) for section in LISTS}
    return {"parties": dict(tables.get("parties", {}))}


def _section_of(
    name: str, held: Mapping[str, Mapping[str, Any]], path: Path, federation: str
) -> str:
    """Where an organisation stands in the agreed file."""
    sections = [section for section, parties in held.items() if name in parties]
    if not sections:
        names = [party for parties in held.values() for party in parties]
        hint = did_you_mean(name, names)
        there = ", ".join(map(repr, names))
        raise ConfigError(
            f"{path} is of {name!r}, which is no party of {federation}{hint}; there are"
            f" {there}."
        )
    return sections[0]


def _resolved(settings: Settings, name: str, path: Path) -> Settings:
    """Resolve the path of an organisation's table, which its own file gives relative to
    itself."""
    for section, owners in (
        ("label_owners", settings.label_owners),
        ("parties", settings.parties),
    ):
        if name not in owners:
            continue
        own: Any = owners[name]
        if own.table is None and settings.data.dataset is None:
            raise ConfigError(
                f"{path} must name the table of '{name}', as in table = \"{name}.csv\"."
            )
        if (
            section == "label_owners"
            and own.label is None
            and settings.data.dataset is None
        ):
            raise ConfigError(
                f"{path} must name the label column of '{name}', as in label ="
                ' "diagnosis".'
            )
        changed: Any = {section: {**owners, name: with_paths(own, path.parent)}}
        return dataclasses.replace(settings, **changed)
    return settings


def _told_of(section: str, public: bool) -> tuple[str, ...]:
    """What all know of an organisation, besides its name."""
    if section == "label_owners":
        return ("label", "rows", "classes") if public else ("label",)
    columns = ("columns", "scale", "numbers") if public else ()
    return columns if section == "data_owners" else ("label", *columns)


def _refuse_private(tables: Mapping[str, Any], path: Path) -> None:
    public = tables.get("data", {}).get("dataset") is not None
    for section in ("tracking", "serve", "alignments", "selections", "audit", "store"):
        whose = "of who drives" if section in ("tracking", "serve") else "of each"
        if section in tables:
            raise ConfigError(
                f"{path} is agreed among all, and has [{section}]. Put it into the"
                f" {OWN} {whose}."
            )
    for section, parties in _sections(tables).items():
        for name, party in parties.items():
            for key in party if isinstance(party, Mapping) else ():
                if key not in _told_of(section, public):
                    raise ConfigError(
                        f"{path} is agreed among all, and has {key!r} of '{name}'. What"
                        f" a party does with its data is in its own {OWN} alone: remove"
                        " it there; `colonnade provision` writes an agreed file"
                        " without it."
                    )
