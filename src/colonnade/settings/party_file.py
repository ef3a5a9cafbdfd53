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
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from colonnade.errors import ConfigError, did_you_mean
from colonnade.settings.algorithms import algorithm_settings
from colonnade.settings.alignment import AllowanceSettings
from colonnade.settings.federation_file import Settings, import_path
from colonnade.settings.schema import (
    Rule,
    Table,
    Texts,
    checked,
    place_of,
)
from colonnade.settings.sections import (
    LISTS,
    AuditSettings,
    LabelOwnerSettings,
    PartySettings,
    by_name,
    with_paths,
)
from colonnade.settings.selection import KEYS, SERVER, SelectionAllowance
from colonnade.settings.serving import ServeSettings, checked_pins
from colonnade.settings.toml_text import read_toml, to_toml
from colonnade.settings.tracking import TrackingSettings

AGREED = "federation.toml"
OWN = "party.toml"
STARTUP = "startup"
MEMORY_PER_CALL = 256
"""MiB that a call of others may unpack to, unless the owner says otherwise."""
MOST_MEMORY_PER_CALL = 2048
"""MiB: no frame of the wire has more."""
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


class StoreSettings(Table):
    """What an organisation says about its store (`colonnade.store`)."""

    place: ClassVar[str] = "[store]"

    anchor: Annotated[str, Rule("a path")] = Field(
        default="",
        description=(
            "the folder of its key and its newest witness, relative to party.toml; by"
            " default beside the folder of runs"
        ),
    )
    new_people: Literal["ask", "new", "same", "renamed"] = Field(
        default="ask",
        description=(
            "what many rows are that were never counted before: `new` people, or the"
            " `same` ones under other ids; or the column was `renamed`; `ask`: the site"
            " refuses them until its owner says so"
        ),
    )
    new_peers: bool = Field(
        default=False,
        description=(
            "whether a peer that keeps nothing of this store is taken as one that was"
            " never met, though rows were released before and no other peer vouches"
        ),
    )
    draw_again: bool = Field(
        default=False,
        description=(
            "whether labels may be drawn at random once more, where the store has lost"
            " entries and does not know whether they were: that costs their epsilon"
            " again"
        ),
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
    memory_per_call: int = MEMORY_PER_CALL << 20  # bytes
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


class SiteFile(Table):
    """What every organisation's own file may say of its site: party.toml.

    It is all that the file of a site without data says.
    """

    name: str = Field(description="The organisation's name in the agreed file.")
    federation: Annotated[str, Rule("text, a path")] = Field(
        default=AGREED,
        description=(
            "This organisation's copy of the agreed file, relative to this one."
        ),
    )
    runs: Annotated[str, Rule("text, a path")] = Field(
        default="runs", description="Where the folder of each run goes."
    )
    memory_per_call: Annotated[
        int,
        Field(ge=1, le=MOST_MEMORY_PER_CALL),
        Rule(f"a whole number of MiB, from 1 to {MOST_MEMORY_PER_CALL}"),
    ] = Field(
        default=MEMORY_PER_CALL,
        description="MiB that a call or an answer of others may unpack to.",
    )
    allow_models: Annotated[
        Texts, Rule('a list of import paths, as in ["my_nets:Tower"]')
    ] = Field(
        default=(),
        description=(
            "Code that the agreed file may name as a model; none unless listed here."
        ),
    )
    tracking: TrackingSettings | None = Field(
        default=None, description="Of who drives: which services follow a run."
    )
    serve: ServeSettings | None = Field(
        default=None, description="Of who drives: it may answer HTTP requests."
    )
    alignments: AllowanceSettings = Field(
        default=AllowanceSettings(),
        description="What each label owner may ask in a day, where ids are private.",
    )
    selections: SelectionAllowance | None = Field(
        default=None, description="Without it, the organisation is in no selection."
    )
    store: StoreSettings = Field(
        default=StoreSettings(),
        description="What the organisation remembers over all its runs.",
    )
    audit: AuditSettings = Field(
        default=AuditSettings(),
        description="What an audit at this site may find, and what others are told.",
    )
    peers: Annotated[dict[str, Any], Rule("a table of fingerprints")] | None = Field(
        default=None, description="Whose certificate has which fingerprint."
    )


class PartyFile(PartySettings, SiteFile):
    """An organisation's own file, party.toml: its table, and its rules about what
    leaves."""


class LabelOwnerFile(LabelOwnerSettings, SiteFile):
    """The party.toml of an organisation with labels, where several have them."""


FILE_OF_SECTION: dict[str, type[SiteFile]] = {
    "parties": PartyFile,
    "data_owners": PartyFile,
    "label_owners": LabelOwnerFile,
    "": SiteFile,
}
"""The schema of party.toml by where its organisation stands in the agreed file."""


def read_own(path: Path) -> SiteConfig:
    """Read a party.toml and the agreed file that it names, and check each against the
    other."""
    tables = read_toml(path, str(path))
    name = tables.get("name")
    if not isinstance(name, str):
        raise ConfigError(
            f'{path} must have the name of its organisation, as in name = "lab"; found'
            f" {name!r}."
        )
    agreed_name = _agreed_name(tables, path)
    agreed_path = path.parent / agreed_name
    agreed = read_toml(agreed_path, str(agreed_path))
    _refuse_private(agreed, agreed_path)
    section = _section_of(name, agreed, path, agreed_name)
    own = checked(FILE_OF_SECTION[section], tables, whose=str(path))
    settings = _with_own_part(own, tables, agreed, section, path)
    _check_driver_alone(own, settings, path)
    names = sites_of(settings)
    others = [site for site in all_sites(settings) if site != name]
    anchor = own.store.anchor
    return SiteConfig(
        name=name,
        settings=settings,
        names=names,
        driver=driver_of(settings),
        runs=(path.parent / own.runs).resolve(),
        serve=None if own.serve is None else own.serve.below(path.parent),
        peers={} if own.peers is None else checked_pins(own.peers, others, path),
        alignments=own.alignments,
        memory_per_call=own.memory_per_call << 20,
        selections=own.selections,
        audit=own.audit,
        store=own.store,
        anchor=None if not anchor else (path.parent / anchor).resolve(),
    )


def _agreed_name(tables: Mapping[str, Any], path: Path) -> str:
    """The path of the agreed file, which is read before the schema of this one is
    known."""
    federation = tables.get("federation", AGREED)
    if not isinstance(federation, str):
        raise ConfigError(
            f"{path}: federation must be text, a path; found {federation!r}."
        )
    return federation


def _with_own_part(
    own: SiteFile,
    tables: Mapping[str, Any],
    agreed: Mapping[str, Any],
    section: str,
    path: Path,
) -> Settings:
    """The agreed settings, with this organisation's own part under its name."""
    every = dict(agreed)
    if section:
        held = _sections(agreed)[section]
        said = {k: v for k, v in tables.items() if k not in SiteFile.model_fields}
        mine = held.get(own.name, {})
        _check_label(mine, said, section, own, path)
        held = {**held, own.name: {"models": "secret", **mine, **said}}
        every[section] = held if section == "parties" else _listed(held)
    allowed = list(own.allow_models)
    model = import_path(tables.get("model"))
    if model is not None:
        allowed.append(model)
    with in_own_words(own.name, section):
        settings = Settings.from_mapping(
            every, where=str(path.parent / own.federation), allow_models=allowed
        )
    settings = _resolved(settings, own.name, path)
    if own.tracking is None:
        return settings
    return dataclasses.replace(settings, tracking=own.tracking.below(path.parent))


def _check_label(
    agreed: Mapping[str, Any],
    said: Mapping[str, Any],
    section: str,
    own: SiteFile,
    path: Path,
) -> None:
    """Raise where a party.toml names another label column than the agreed file."""
    label = agreed.get("label")
    may_name_it = label is None and section != "parties"
    if said.get("label", label) != label and not may_name_it:
        raise ConfigError(
            f"{path} has label = {said['label']!r}, and {own.federation} says"
            f" {label!r}."
            " Agree on one."
        )


def _check_driver_alone(own: SiteFile, settings: Settings, path: Path) -> None:
    """Raise where a party.toml says what only the driver, or a label owner, can do."""
    driver = driver_of(settings)
    askers = label_owners_of(settings)
    if own.tracking is not None and own.name != driver:
        raise ConfigError(
            f"{path} has [tracking], and '{driver}' drives: only there are numbers to"
            " tell."
        )
    if own.serve is not None and own.name not in askers:
        verb = "predict" if settings.label_owners else "drives"
        at = " and ".join(f"'{asker}'" for asker in askers)
        raise ConfigError(
            f"{path} has [serve], and {at} {verb}: only there predictions are known."
        )
    if settings.engine.noise == "seeded":
        raise ConfigError(
            f'{own.federation} has [federation] noise = "seeded", which everybody who'
            " knows the seed can subtract. Between organisations noise is secret:"
            " remove the setting."
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
            name: owner.changed(models=owner.models or "secret")
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
    if settings.allow_models:
        head["allow_models"] = list(settings.allow_models)
    text = to_toml({**head, **party, **aside})
    if settings.data.dataset is None and "table" not in party and section:
        form = TO_FILL_IN + (
            LABELS_TO_FILL_IN if section == "label_owners" else COLUMNS_TO_FILL_IN
        )
        text += form.format(
            file=OWN,
            name=name,
            release=next(iter(algorithm_settings(settings.algorithm).reveals)),
        )
    (folder / OWN).write_text(text, encoding="utf-8")


def write_table(path: Path, name: str, table: Mapping[str, Any]) -> None:
    """Write [serve] or another table into a party.toml of this machine, in the place of
    what stood there."""
    path.write_text(
        to_toml({**read_toml(path, str(path)), name: dict(table)}), encoding="utf-8"
    )
    read_own(path)


def _sections(tables: Mapping[str, Any]) -> dict[str, dict[str, dict[str, Any]]]:
    """Group organisations and their settings by the heading under which they stand."""
    if any(section in tables for section in LISTS):
        return {
            section: _by_name(section, tables.get(section, [])) for section in LISTS
        }
    parties = tables.get("parties", {})
    return {"parties": dict(parties) if isinstance(parties, Mapping) else {}}


def _by_name(section: str, given: Any) -> dict[str, dict[str, Any]]:
    try:
        return by_name(section, given)
    except ValueError as error:
        raise ConfigError(str(error)) from None


def _listed(owners: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [{"name": name, **owner} for name, owner in owners.items()]


def _section_of(
    name: str, agreed: Mapping[str, Any], path: Path, agreed_name: str
) -> str:
    """Where an organisation stands in the agreed file. "" for a site without data."""
    held = _sections(agreed)
    if name and name in _sites_without_data(agreed):
        return ""
    for section, parties in held.items():
        if name in parties:
            return section
    names = [party for parties in held.values() for party in parties]
    hint = did_you_mean(name, names)
    there = ", ".join(map(repr, names))
    raise ConfigError(
        f"{path} is of {name!r}, which is no party of {agreed_name}{hint}; there"
        f" are {there}."
    )


def _sites_without_data(agreed: Mapping[str, Any]) -> list[str]:
    """The names of the servers and the helper that the agreed file has."""
    sites = []
    alignment = agreed.get("alignment")
    if isinstance(alignment, Mapping):
        sites.append(str(alignment.get("helper", "")))
    if "parties" not in _sections(agreed):
        sites.append(SERVER)
    selection = agreed.get("selection")
    if isinstance(selection, Mapping) and selection.get("servers") is True:
        sites += [SERVER, KEYS]
    return sites


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
    data = tables.get("data")
    public = isinstance(data, Mapping) and data.get("dataset") is not None
    for section in (
        "tracking",
        "serve",
        "alignments",
        "selections",
        "audit",
        "store",
    ):
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
