"""The tables of a federation file, one class each: what each may say, and what is
refused.

    [data] [preprocess] [train] [federation] [audit]     once in a file
    [parties.NAME]           one per organisation, where one of them holds the labels
    [[label_owners]]         one per organisation with labels       name = "north", table = "north.csv", label = "ill"
    [[data_owners]]          one per organisation with columns      name = "lab", table = "lab.csv"
    [label_model]            the label owners' one architecture     name = "mlp", hidden = [16]

The lists are for several organisations with labels. With a named data set instead of
tables, `rows` and `classes` say which rows are dealt to a label owner. An organisation
that stands in both lists plays both roles: it has one outbox, and calls between its own
roles cross no boundary.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from colonnade.algorithms import ALGORITHMS
from colonnade.algorithms.algorithm import AnyAlgorithm
from colonnade.alignment.settings import Key
from colonnade.core import Transport
from colonnade.core.batches import SAMPLINGS
from colonnade.core.checks import (
    did_you_mean,
    equal_or_by_class,
    fraction,
    from_mapping,
    one_of,
    positive,
    share,
    whole,
    whole_or_auto,
)
from colonnade.errors import ConfigError
from colonnade.privacy import Budget
from colonnade.selection.settings import SERVER
from colonnade.settings.known import LISTS
from colonnade.transport.faulty import Distant
from colonnade.transport.holding import Holding
from colonnade.transport.remote import Remote
from colonnade.transport.retrying import Retrying

MODELS_FROM = ("secret", "seeded", None)
SECRET_OR_SEEDED = 'one of "secret", "seeded"'
"""Where an organisation's initial weights come from; None: from the agreed seed in one
process, and at a site from the operating system."""
NUMBERS = ("standard", "quantile", "piecewise")
WAYS = ", ".join(f'"{way}"' for way in ("auto", *NUMBERS))
NUMBERS_RULE = f'one of {WAYS}, or a table by column, as in {{ age = "quantile" }}'
GAPS_RULE = 'a list of words, as in ["k.A.", "-999"]'
PARTY_DROPOUT = 0.2
"""How often a partner is left out of a training batch, where rows differ and nobody
says otherwise."""


@dataclass(frozen=True)
class DataSettings:
    """Where rows come from and how they are divided."""

    # the id column, or keys that are tried in turn; who calls it otherwise names its
    # own
    id: Any = "id"
    # all hold the same ids; or find the common ones first
    align: str = one_of("exact", "private", default="exact")
    # those that all hold; or all of the label owner's
    rows: str = one_of("common", "label_owner", default="common")
    # of the rows: a fraction, or from 1 upwards their number
    validation: float = share(default=0.1)
    test: float = share(default=0.2)
    # every class is divided alike, where one organisation holds the labels
    stratify: bool = True
    # a column of the label owner: "train", "validation", "test"; or times, the latest
    # test
    split_by: str | None = None
    # with times in split_by: test rows are those from then on
    test_from: str | float | None = None
    # and those from then on to there, for validation
    validation_from: str | float | None = None
    task: str = one_of("auto", "classification", "regression", default="auto")
    # of two classes, the one that scores, curves and thresholds are about; without, the
    # rarer one of the training rows
    positive: str | int | float | bool | None = None
    # of labels that are numbers; auto: log where they are positive and skewed
    target_scale: str = one_of("auto", "log", "linear", default="auto")
    dataset: str | None = None  # a named data set, cut into parties, instead of tables
    split: str = one_of("columns", "strips", "patches", "views", default="columns")
    # how many parties; for patches [rows, columns], for columns also their widths
    parts: int | tuple[int, ...] = 2
    # pixels a side of a patch, when patches overlap; else they divide the picture
    patch: int | None = None
    # with a named data set: the party that holds the labels
    labels_at: str = "label_owner"

    def __post_init__(self) -> None:
        if not isinstance(self.id, str):
            object.__setattr__(self, "id", keys_in(self.id, "[data] id"))
        if not isinstance(self.split_by, str | None):
            raise ConfigError(
                "[data] split_by must be text, the name of a column; found"
                f" {self.split_by!r}."
            )
        if not isinstance(self.positive, str | int | float | bool | None):
            raise ConfigError(
                "[data] positive names one class, as the label column writes it, as in"
                f' positive = "yes"; found {self.positive!r}.'
            )
        if self.positive is not None and self.task == "regression":
            raise ConfigError(
                f"[data] positive = {self.positive!r} names a class, and with task ="
                ' "regression" the label is a number. Remove one of them.'
            )
        for key in ("test_from", "validation_from"):
            if (value := vars(self)[key]) is None:
                continue
            if isinstance(value, bool) or not isinstance(value, str | int | float):
                raise ConfigError(
                    f'[data] {key} must be a number, or a date as in "2024-01-31";'
                    f" found {value!r}."
                )
            if self.split_by is None:
                raise ConfigError(
                    f"[data] {key} needs split_by, the column whose times it is of."
                    " Name it."
                )
        if self.split_by is not None and self.dataset is not None:
            raise ConfigError(
                "[data] split_by names a column of a table, and dataset is no table."
                " Remove one of them."
            )


@dataclass(frozen=True)
class PreprocessSettings:
    """How every owner's columns become numbers for its model, unless it says otherwise
    itself."""

    # auto: by the training rows (`fitted.best_way`)
    numbers: str = one_of("auto", *NUMBERS, default="auto")


@dataclass(frozen=True)
class TrainSettings:
    """How long training goes on, and what is kept on the way."""

    epochs: int = whole_or_auto(most=10**9)  # auto: as `federation_file.by_rows` says
    batch_size: int = whole_or_auto(most=10**12)
    reshuffle: bool = True  # new batches every epoch
    class_weights: Any = equal_or_by_class()  # noqa: RUF009 - how much a row of a class counts
    # "poisson", "without_replacement": each batch from all rows
    sampling: str = one_of(*SAMPLINGS, default="epoch")
    # of a partner, from a batch; None: 0.2 where rows differ, else 0
    party_dropout: float | None = None
    # epochs in which each model first learns from its owner's rows alone
    pretrain: int = whole(default=0, least=0)
    # keep the models that validated best; stop by `patience`, or when nothing changes
    early_stop: bool = True
    # epochs without a better validation before it stops
    patience: int = whole(default=10)
    # auto: AUC of two classes where 100 validation rows are of the rarer one, or loss
    stop_on: str = one_of("auto", "loss", "score", default="auto")
    # stop at once when the score fell by more than this; 0: never
    patience_drop: float = fraction(default=0.0)
    # epochs between checkpoints; 0: only at the end
    checkpoint_every: int = whole(default=1, least=0)


@dataclass(frozen=True)
class EngineSettings:
    """What carries the calls, and what computes."""

    seed: int = whole(default=0, least=0, most=2**63 - 1)
    device: str = "auto"  # "auto" takes a GPU when there is one
    through_bytes: bool = False  # send real frames between the parties of one process
    threads: str = one_of("auto", "always", "never", default="auto")
    cohort: str = one_of("auto", "on", "off", default="auto")
    # seconds for a call to a party elsewhere, before it is made again
    deadline: float = positive(default=600.0)
    retries: int = whole(default=3, least=0)
    # when a party still does not answer
    on_missing: str = one_of("fail", "wait", "stale", "skip", default="fail")
    # "seeded": repeatable, and no protection: experiments
    noise: str = one_of("secret", "seeded", default="secret")

    def around(self, transport: Transport) -> Transport:
        """Wrap a transport so that lost calls are made again. Where it joins calls,
        what is answered by Done waits for the next one; not where a driver goes on
        without who does not answer, since it must know who did what."""
        again = Retrying(
            transport,
            deadline=self.deadline,
            retries=self.retries,
            wait=self.on_missing == "wait",
        )
        joins = isinstance(transport, Distant) or (
            isinstance(transport, Remote) and transport.joins
        )
        return (
            Holding(again) if joins and self.on_missing in ("fail", "wait") else again
        )


TELLS = ("nothing", "verdict", "figures")
"""What an organisation may tell a label owner of an audit at its site, from least to
most."""


@dataclass(frozen=True)
class AuditSettings:
    """The scores that `colonnade audit` must not find exceeded; where one is None, any
    will do. They may change after the run."""

    # AUC of guessed labels, by the lower end of its interval: 0.5 is guessing (of
    # numbers: the squared correlation)
    label_inference: float | None = None
    inversion_ssim: float | None = None  # likeness of rebuilt pictures
    inversion_r2: float | None = None  # of the column that is rebuilt best
    # AUC with which another classifier still sees the class of rebuilt rows, likewise
    recognition: float | None = None
    # between sites, of one's own columns: "verdict" or "figures"; else nothing
    tell: str | None = None

    @property
    def limits(self) -> dict[str, float | None]:
        """By kind of score, the value that it must not exceed."""
        return {name: value for name, value in vars(self).items() if name != "tell"}

    def __post_init__(self) -> None:
        if self.tell not in (None, *TELLS):
            raise ConfigError(
                f"[audit] tell must be one of {', '.join(TELLS)}; found {self.tell!r}."
            )
        for name, value in self.limits.items():
            if value is not None and (
                isinstance(value, bool)
                or not isinstance(value, (int, float))
                or not value <= 1
            ):
                raise ConfigError(
                    f"[audit] {name} must be a number, at most 1; found {value!r}."
                )


@dataclass(frozen=True)
class LabelOwnerSettings:
    """One organisation that holds labels of rows of its own."""

    table: str | None = None
    id: str | None = None  # its id column, where it is not called [data] id here
    label: str | None = None
    # of a named data set: how many training rows it is dealt; without, an even share
    rows: int | None = None
    classes: tuple[Any, ...] | None = None  # and of which classes; without, of all
    gaps: tuple[str, ...] = ()  # its own words for a gap, such as "k.A."
    outbox: Mapping[str, Any] = field(default_factory=dict)
    models: str | None = None  # "secret" or "seeded", as of a party


@dataclass(frozen=True)
class PartySettings:
    """One organisation's own part; where there are several machines, its own file."""

    table: str | None = None
    # its id column, where it is not called [data] id here; or its keys, "" where it
    # lacks one
    id: Any = None
    # of its own with many rows for one person: `rows.groups`
    tables: Mapping[str, Any] = field(default_factory=dict)
    label: str | None = None
    # of the one with the label: a column that says how much each row counts
    weights: str | None = None
    # of the one with the label: a file with the ids of the test rows
    test_ids: str | None = None
    columns: tuple[str, ...] | None = None
    gaps: tuple[str, ...] = ()  # its own words for a gap, such as "k.A."
    scale: str = one_of("standard", "minmax", "none", default="standard")
    # how its numbers are prepared, where not as [preprocess] says: one word, or by
    # column
    numbers: Any = None
    model: Any = None
    outbox: Mapping[str, Any] = field(default_factory=dict)
    budget: Mapping[str, Any] = field(default_factory=dict)
    # "secret" or "seeded": where its initial weights come from
    models: str | None = None

    def limit(self, name: str, section: str = "parties") -> Budget | None:
        """Check the budget, and give it."""
        return (
            from_mapping(Budget, self.budget, where=place_of(section, name, "budget"))
            if self.budget
            else None
        )


def place_of(section: str, name: str, part: str = "") -> str:
    """Where an error is: [parties.lab.outbox], or [data_owners.outbox] of 'lab'."""
    if section not in LISTS:
        return f"[{section}.{name}{f'.{part}' if part else ''}]"
    return f"[{section}.{part}] of '{name}'" if part else f"[[{section}]] '{name}'"


def by_name(section: str, given: Any) -> dict[str, dict[str, Any]]:
    """Turn an array of tables with names into a table for each name."""
    if not isinstance(given, list) or not all(
        isinstance(table, Mapping) for table in given
    ):
        raise ConfigError(
            f"[[{section}]] must be tables, each with a name, as in\n   "
            f' [[{section}]]\n    name = "north"\nfound {given!r}.'
        )
    tables: dict[str, dict[str, Any]] = {}
    for number, owner in enumerate(given, 1):
        name = owner.get("name")
        if not isinstance(name, str):
            raise ConfigError(
                f'[[{section}]] number {number} must have a name, as in name = "north";'
                f" found {name!r}."
            )
        if name in tables:
            raise ConfigError(
                f"[[{section}]] has two tables with the name {name!r}. Give each"
                " organisation one."
            )
        if name == SERVER:
            raise ConfigError(
                f"[[{section}]] has an organisation called {name!r}, which is the name"
                " of the party that adds the label owners' weights up. Choose another"
                " name."
            )
        tables[name] = {key: value for key, value in owner.items() if key != "name"}
    return tables


def label_owner(name: str, given: Mapping[str, Any]) -> LabelOwnerSettings:
    """Check the settings of a label owner."""
    where = place_of("label_owners", name)
    owner = from_mapping(LabelOwnerSettings, given, where=where)
    rows = owner.rows is None or (
        isinstance(owner.rows, int)
        and not isinstance(owner.rows, bool)
        and owner.rows >= 1
    )
    for key, rule, fits in (
        ("table", "text", isinstance(owner.table, str | None)),
        ("id", "text", isinstance(owner.id, str | None)),
        ("label", "text", isinstance(owner.label, str | None)),
        ("rows", "a whole number, 1 or more", rows),
        (
            "classes",
            "a list of classes",
            owner.classes is None
            or (isinstance(owner.classes, tuple) and owner.classes),
        ),
        ("gaps", GAPS_RULE, _are_words(owner.gaps)),
        ("outbox", "a table of rules", isinstance(owner.outbox, Mapping)),
        ("models", SECRET_OR_SEEDED, owner.models in MODELS_FROM),
    ):
        if not fits:
            raise ConfigError(f"{where}: {key} must be {rule}; found {given[key]!r}.")
    return owner


def check_lists(algorithm: str, several: bool, tables: Mapping[str, Any]) -> None:
    """Refuse lists of owners where one label owner drives, and one list of parties
    where several are asked for."""
    for section in (*LISTS, "label_model"):
        if section in tables and not several:
            raise ConfigError(
                f"[{section}] is for algorithms with several label owners, as"
                " [algorithm] name = "
                f'"{ALGORITHMS.nested_names()[0]}"; found with {algorithm!r}, where one'
                " party holds the labels. "
                "Name the parties as [parties.NAME]."
            )
    if several and "parties" in tables:
        raise ConfigError(
            f"[parties] is for algorithms with one label owner; {algorithm!r} takes"
            " [[label_owners]] and [[data_owners]], each with a name. Move the parties"
            " there."
        )
    if several and not tables.get("label_owners"):
        raise ConfigError(
            f"{algorithm!r} needs organisations with labels, and there is none. Add"
            " [[label_owners]]."
        )


FORM = 'a column, or a list of keys as in ["email", ["name", "birth_date"], "phone"]'


def keys_in(given: Any, where: str, *, may_lack: bool = False) -> tuple[Key, ...]:
    """The columns of each key. With `may_lack` a key may be "", of who has no such
    column."""
    if isinstance(given, str):
        return ((given,),)
    if not isinstance(given, list | tuple) or not given:
        raise ConfigError(f"{where} must be {FORM}; found {given!r}.")
    keys = []
    for columns in given:
        key = (
            (columns,)
            if isinstance(columns, str)
            else tuple(columns)
            if isinstance(columns, list | tuple)
            else ()
        )
        named = bool(key) and all(isinstance(name, str) and name for name in key)
        if not (named or (may_lack and key == ("",))) or len(set(key)) != len(key):
            raise ConfigError(
                f"{where} must be {FORM}, each column once in a key; found {columns!r}"
                " in it."
            )
        keys.append(key)
    if len(set(keys)) != len(keys) and not may_lack:
        raise ConfigError(f"{where} has a key twice: {given!r}. Name each once.")
    return tuple(keys)


def check_keys(
    keys: Sequence[Key],
    parties: Mapping[str, Any],
    section: str,
    *,
    plain: bool,
    several: bool,
    tables: bool,
) -> None:
    """Check that all name the same keys, that there are tables which have them where
    ids are not plain, and that there is one key where several hold labels."""
    for name, party in parties.items():
        where = f"{place_of(section, name)}: id"
        own = keys if party.id is None else keys_in(party.id, where, may_lack=True)
        fits = (
            mine == ("",) or len(mine) == len(key)
            for mine, key in zip(own, keys, strict=False)
        )
        if len(own) != len(keys) or not all(fits):
            raise ConfigError(
                f"{where} must have the {len(keys)} keys of [data] id, each of as many"
                f' columns, or "" for one that it lacks; found {party.id!r}.'
            )
    if not plain and not tables:
        raise ConfigError(
            "Several keys, rules and duplicates are for tables, and [data] dataset is"
            " none. Remove them."
        )
    if len(keys) > 1 and several:
        raise ConfigError(
            "Several keys in [data] id are for one organisation with labels: where"
            " several have them, a row must be on the same side of the division at all,"
            " which follows from its name, and two of them may know a person by"
            " different keys. Name one key, which may have several columns, and rules"
            " under [alignment.rules]."
        )


def check_dealt(owners: Mapping[str, LabelOwnerSettings], dataset: str | None) -> None:
    """Refuse `rows` and `classes` without a named data set, which they deal out: a
    table has the rows it has."""
    for name, owner in owners.items():
        for key in ("rows", "classes"):
            if dataset is None and vars(owner)[key] is not None:
                raise ConfigError(
                    f"[[label_owners]] {name!r} has {key}, which deals out a named data"
                    " set, and there is none. Remove it, or set [data] dataset ="
                    ' "digits".'
                )


def known_classes(
    name: str, owner: LabelOwnerSettings, classes: tuple[Any, ...]
) -> set[int]:
    """The numbers of the classes that a label owner is dealt."""
    numbers = set()
    for wanted in owner.classes if owner.classes is not None else classes:
        number = next(
            (n for n, known in enumerate(classes) if str(known) == str(wanted)), None
        )
        if number is None:
            hint = did_you_mean(str(wanted), [str(known) for known in classes])
            there = ", ".join(map(str, classes))
            raise ConfigError(
                f"[[label_owners]] {name!r} has the class {wanted!r}, which no row"
                f" has{hint}; there are {there}."
            )
        numbers.add(number)
    return numbers


def with_paths(owner: Any, folder: Path) -> Any:
    """Resolve the paths in an organisation's part, which are relative to this folder."""
    files = {key: vars(owner).get(key) for key in ("table", "test_ids")}
    paths: dict[str, Any] = {
        key: str((folder / file).resolve()) for key, file in files.items() if file
    }
    more = vars(owner).get("tables", {})
    if more and all(
        isinstance(table, Mapping) and isinstance(table.get("table"), str)
        for table in more.values()
    ):
        placed = {
            name: {**table, "table": str((folder / table["table"]).resolve())}
            for name, table in more.items()
        }
        paths |= {"tables": placed}
    return replace(owner, **paths)


def is_name(name: str) -> bool:
    """Whether an organisation can be called so: the name becomes that of a folder."""
    return 0 < len(name) <= 64 and all(c.isalnum() or c in "_-" for c in name)


def check_name(name: str) -> None:
    if not is_name(name):
        raise ConfigError(
            "A party's name has 1 to 64 letters, digits, '-' or '_', since it names a"
            f" folder; found {name!r}."
        )


def check_names(names: Iterable[str]) -> None:
    """Refuse names of which two would share a folder, where a disk takes capitals and
    small letters for one."""
    alike: dict[str, str] = {}
    for name in names:
        check_name(name)
        if alike.setdefault(name.casefold(), name) != name:
            raise ConfigError(
                f"{alike[name.casefold()]!r} and {name!r} differ in capitals alone, and"
                " names are names of folders. Rename one of them."
            )


def _are_words(given: Any) -> bool:
    return isinstance(given, tuple) and all(
        isinstance(word, str) and word.strip() for word in given
    )


def _is_numbers(given: Any) -> bool:
    ways = given.values() if isinstance(given, Mapping) else [given]
    return given is None or all(
        isinstance(way, str) and way in ("auto", *NUMBERS) for way in ways
    )


def party_of(name: str, given: Any, section: str) -> PartySettings:
    check_name(name)
    where = place_of(section, name)
    if not isinstance(given, Mapping):
        raise ConfigError(
            f'{where} must be a table of settings, as in table = "x.csv"; found'
            f" {given!r}."
        )
    if section in LISTS and "label" in given:
        raise ConfigError(
            f"{where} holds columns, and its label {given['label']!r} belongs to a"
            " label owner. Add a [[label_owners]] with the same name and table, and"
            " leave the label column out of columns here."
        )
    party = from_mapping(PartySettings, given, where=where)
    columns = isinstance(party.columns, tuple | None) and all(
        isinstance(name, str) for name in party.columns or ()
    )
    for key, rule, fits in (
        ("table", "text", isinstance(party.table, str | None)),
        (
            "tables",
            "a table of tables, as in [tables.purchases]",
            isinstance(party.tables, Mapping),
        ),
        ("label", "text", isinstance(party.label, str | None)),
        (
            "weights",
            "text, the name of a column",
            isinstance(party.weights, str | None),
        ),
        ("test_ids", "text, a path", isinstance(party.test_ids, str | None)),
        ("columns", "a list of column names", columns),
        ("gaps", GAPS_RULE, _are_words(party.gaps)),
        ("numbers", NUMBERS_RULE, _is_numbers(party.numbers)),
        ("model", "a name or a table", isinstance(party.model, str | Mapping | None)),
        ("outbox", "a table of rules", isinstance(party.outbox, Mapping)),
        ("budget", "a table, as in epsilon = 8.0", isinstance(party.budget, Mapping)),
        ("models", SECRET_OR_SEEDED, party.models in MODELS_FROM),
    ):
        if not fits:
            raise ConfigError(f"{where}: {key} must be {rule}; found {given[key]!r}.")
    for key, what in (
        ("test_ids", "who divides rows"),
        ("weights", "whose loss counts rows"),
    ):
        if vars(party)[key] is not None and party.label is None:
            raise ConfigError(
                f"{where}: {key} is for the party with the label, {what}. Move it"
                " there."
            )
    party.limit(name, section)
    return party


def dropout_of(rows: str, chosen: float | None) -> float:
    """How often a partner is left out, as it was chosen or as it is usual for these
    rows."""
    if chosen is None:
        return PARTY_DROPOUT if rows == "label_owner" else 0.0
    if (
        isinstance(chosen, bool)
        or not isinstance(chosen, (int, float))
        or not 0 <= chosen < 1
    ):
        raise ConfigError(
            "[train] party_dropout must be a number from 0 up to, not including, 1;"
            f" found {chosen!r}."
        )
    return float(chosen)


def check_train(
    name: str,
    algorithm: AnyAlgorithm,
    config: object,
    data: DataSettings,
    train: TrainSettings,
) -> None:
    """Check that the algorithm can divide, draw and start as asked to, and do without a
    partner's part of rows."""
    several = algorithm.nested is not None
    differ = data.rows == "label_owner"
    if several and data.split_by is not None:
        raise ConfigError(
            "[data] split_by is for one organisation with labels: where several have"
            " them, a row must be on the same side at all, and that follows from its"
            " id. Remove it."
        )
    if train.sampling != "epoch" and (several or not algorithm.in_batches):
        why = (
            "has several label owners, whose batches go together"
            if several
            else "takes all rows at once"
        )
        raise ConfigError(
            f'[train] sampling = "{train.sampling}" draws each batch by itself, and'
            f' {name} {why}. Set sampling = "epoch", or leave it out.'
        )
    one_model = not several and algorithm.local_model is not None
    in_steps = (
        not (algorithm.converges or algorithm.grows) and algorithm.most_epochs is None
    )
    # each party has one model, trained step by step
    if train.pretrain and not (one_model and in_steps):
        raise ConfigError(
            f"[train] pretrain gives each party's model a start, and {name} has none"
            " that keeps it:"
            f" {'each label owner has its own copy of it' if several else 'it learns in its own way'}."
            " Remove it."
        )
    if differ or dropout_of(data.rows, train.party_dropout):
        asked = '[data] rows = "label_owner"' if differ else "[train] party_dropout"
        ALGORITHMS.check_can_lack(name, config, asked)
    if differ and train.sampling != "epoch":
        raise ConfigError(
            f'[train] sampling = "{train.sampling}" draws each batch from all rows, and'
            " a partner that lacks some cannot tell which of its own are drawn. With"
            ' rows = "label_owner" set sampling = "epoch".'
        )
