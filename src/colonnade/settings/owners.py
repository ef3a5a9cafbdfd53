"""[[label_owners]] and [[data_owners]]: who takes part where several organisations hold labels.

    [[label_owners]]         one per organisation with labels       name = "north", table = "north.csv", label = "ill"
    [[data_owners]]          one per organisation with columns      name = "lab", table = "lab.csv"
    [label_model]            the label owners' one architecture     name = "mlp", hidden = [16]

With a named data set instead of tables, `rows` and `classes` say which rows are dealt to a label owner. An organisation
that stands in both lists plays both roles: it has one outbox, and calls between its own roles cross no boundary.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from colonnade.algorithms import ALGORITHMS
from colonnade.alignment.settings import Key
from colonnade.core.checks import did_you_mean, from_mapping, one_of
from colonnade.errors import ConfigError
from colonnade.privacy import Budget
from colonnade.selection.settings import SERVER
from colonnade.settings.known import LISTS

MODELS_FROM, SECRET_OR_SEEDED = ("secret", "seeded", None), 'one of "secret", "seeded"'
"""Where an organisation's initial weights come from; None: from the agreed seed in one process, and at a site from the
operating system."""


NUMBERS = ("standard", "quantile", "piecewise")


@dataclass(frozen=True)
class LabelOwnerSettings:
    """One organisation with labels of rows of its own."""

    table: str | None = None
    id: str | None = None  # its id column, where it is not called [data] id here
    label: str | None = None
    rows: int | None = None  # of a named data set: how many training rows it is dealt; without, an even share
    classes: tuple[Any, ...] | None = None  # and of which classes; without, of all
    outbox: Mapping[str, Any] = field(default_factory=dict)
    models: str | None = None  # "secret" or "seeded", as of a party


@dataclass(frozen=True)
class PartySettings:
    """One organisation's own part; with several machines, its own file."""

    table: str | None = None
    id: Any = None  # its id column, where it is not called [data] id here; or its keys, "" where it lacks one
    tables: Mapping[str, Any] = field(default_factory=dict)  # of its own with many rows for one person: `rows.groups`
    label: str | None = None
    weights: str | None = None  # of the one with the label: a column that says how much each row counts
    test_ids: str | None = None  # of the one with the label: a file with the ids of the test rows
    columns: tuple[str, ...] | None = None
    scale: str = one_of("standard", "minmax", "none", default="standard")
    numbers: Any = None  # how its numbers are prepared, where not as [preprocess] says: one word, or by column
    model: Any = None
    outbox: Mapping[str, Any] = field(default_factory=dict)
    budget: Mapping[str, Any] = field(default_factory=dict)
    models: str | None = None  # "secret" or "seeded": where its initial weights come from

    def limit(self, name: str, section: str = "parties") -> Budget | None:
        """The budget, once it is checked."""
        return from_mapping(Budget, self.budget, where=place_of(section, name, "budget")) if self.budget else None


def place_of(section: str, name: str, part: str = "") -> str:
    """Where an error is: [parties.lab.outbox], or [data_owners.outbox] of 'lab'."""
    if section not in LISTS:
        return f"[{section}.{name}{f'.{part}' if part else ''}]"
    return f"[{section}.{part}] of '{name}'" if part else f"[[{section}]] '{name}'"


def by_name(section: str, given: Any) -> dict[str, dict[str, Any]]:
    """An array of tables with names, as name -> the rest of the table."""
    if not isinstance(given, list) or not all(isinstance(one, Mapping) for one in given):
        raise ConfigError(
            f'[[{section}]] must be tables, each with a name, as in\n    [[{section}]]\n    name = "north"\n'
            f"found {given!r}."
        )
    found: dict[str, dict[str, Any]] = {}
    for number, one in enumerate(given, 1):
        name = one.get("name")
        if not isinstance(name, str):
            raise ConfigError(f'[[{section}]] number {number} must have a name, as in name = "north"; found {name!r}.')
        if name in found:
            raise ConfigError(f"[[{section}]] has two tables with the name {name!r}. Give each organisation one.")
        if name == SERVER:
            raise ConfigError(
                f"[[{section}]] has an organisation called {name!r}, which is the name of the party that adds the "
                "label owners' weights up. Choose another name."
            )
        found[name] = {key: value for key, value in one.items() if key != "name"}
    return found


def label_owner(name: str, given: Mapping[str, Any]) -> LabelOwnerSettings:
    """The label owner, once its settings are checked."""
    where = place_of("label_owners", name)
    owner = from_mapping(LabelOwnerSettings, given, where=where)
    rows = owner.rows is None or (isinstance(owner.rows, int) and not isinstance(owner.rows, bool) and owner.rows >= 1)
    for key, rule, fits in (
        ("table", "text", isinstance(owner.table, str | None)),
        ("id", "text", isinstance(owner.id, str | None)),
        ("label", "text", isinstance(owner.label, str | None)),
        ("rows", "a whole number, 1 or more", rows),
        ("classes", "a list of classes", owner.classes is None or (isinstance(owner.classes, tuple) and owner.classes)),
        ("outbox", "a table of rules", isinstance(owner.outbox, Mapping)),
        ("models", SECRET_OR_SEEDED, owner.models in MODELS_FROM),
    ):
        if not fits:
            raise ConfigError(f"{where}: {key} must be {rule}; found {given[key]!r}.")
    return owner


def check_lists(algorithm: str, several: bool, tables: Mapping[str, Any]) -> None:
    """Refuse lists of owners where one label owner drives, and one list of parties where several are asked for."""
    for section in (*LISTS, "label_model"):
        if section in tables and not several:
            raise ConfigError(
                f"[{section}] is for algorithms with several label owners, as [algorithm] name = "
                f'"{ALGORITHMS.nested_names()[0]}"; found with {algorithm!r}, where one party holds the labels. '
                "Name the parties as [parties.NAME]."
            )
    if several and "parties" in tables:
        raise ConfigError(
            f"[parties] is for algorithms with one label owner; {algorithm!r} takes [[label_owners]] and "
            "[[data_owners]], each with a name. Move the parties there."
        )
    if several and not tables.get("label_owners"):
        raise ConfigError(f"{algorithm!r} needs organisations with labels, and there is none. Add [[label_owners]].")


FORM = 'a column, or a list of keys as in ["email", ["name", "birth_date"], "phone"]'


def keys_in(given: Any, where: str, *, may_lack: bool = False) -> tuple[Key, ...]:
    """The columns of each key. With `may_lack` a key may be "", of who has no such column."""
    if isinstance(given, str):
        return ((given,),)
    if not isinstance(given, list | tuple) or not given:
        raise ConfigError(f"{where} must be {FORM}; found {given!r}.")
    keys = []
    for one in given:
        key = (one,) if isinstance(one, str) else tuple(one) if isinstance(one, list | tuple) else ()
        named = bool(key) and all(isinstance(name, str) and name for name in key)
        if not (named or (may_lack and key == ("",))) or len(set(key)) != len(key):
            raise ConfigError(f"{where} must be {FORM}, each column once in a key; found {one!r} in it.")
        keys.append(key)
    if len(set(keys)) != len(keys) and not may_lack:
        raise ConfigError(f"{where} has a key twice: {given!r}. Name each once.")
    return tuple(keys)


def check_keys(
    keys: Sequence[Key], parties: Mapping[str, Any], section: str, *, plain: bool, several: bool, tables: bool
) -> None:
    """That all name the same keys; that there are tables which have them, where ids are not plain; and one key where
    several hold labels."""
    for name, party in parties.items():
        where = f"{place_of(section, name)}: id"
        own = keys if party.id is None else keys_in(party.id, where, may_lack=True)
        same = len(own) == len(keys) and all(
            mine == ("",) or len(mine) == len(key) for mine, key in zip(own, keys, strict=True)
        )
        if not same:
            raise ConfigError(
                f'{where} must have the {len(keys)} keys of [data] id, each of as many columns, or "" for one that it '
                f"lacks; found {party.id!r}."
            )
    if not plain and not tables:
        raise ConfigError("Several keys, rules and duplicates are for tables, and [data] dataset is none. Remove them.")
    if len(keys) > 1 and several:
        raise ConfigError(
            "Several keys in [data] id are for one organisation with labels: where several have them, a row must be on "
            "the same side of the division at all, which follows from its name, and two of them may know a person by "
            "different keys. Name one key, which may have several columns, and rules under [alignment.rules]."
        )


def check_dealt(owners: Mapping[str, LabelOwnerSettings], dataset: str | None) -> None:
    """`rows` and `classes` deal out a named data set; a table has the rows it has."""
    for name, owner in owners.items():
        for key in ("rows", "classes"):
            if dataset is None and vars(owner)[key] is not None:
                raise ConfigError(
                    f"[[label_owners]] {name!r} has {key}, which deals out a named data set, and there is none. Remove "
                    'it, or set [data] dataset = "digits".'
                )


def known_classes(name: str, owner: LabelOwnerSettings, classes: tuple[Any, ...]) -> set[int]:
    """The numbers of the classes that a label owner is dealt."""
    found = set()
    for one in owner.classes if owner.classes is not None else classes:
        number = next((n for n, known in enumerate(classes) if str(known) == str(one)), None)
        if number is None:
            hint = did_you_mean(str(one), [str(known) for known in classes])
            there = ", ".join(map(str, classes))
            raise ConfigError(
                f"[[label_owners]] {name!r} has the class {one!r}, which no row has{hint}; there are {there}."
            )
        found.add(number)
    return found


def with_paths(owner: Any, folder: Path) -> Any:
    """An organisation's part, with its files named from this folder on."""
    files = {key: vars(owner).get(key) for key in ("table", "test_ids")}
    found: dict[str, Any] = {key: str((folder / one).resolve()) for key, one in files.items() if one}
    more = vars(owner).get("tables", {})
    if more and all(isinstance(one, Mapping) and isinstance(one.get("table"), str) for one in more.values()):
        placed = {name: {**one, "table": str((folder / one["table"]).resolve())} for name, one in more.items()}
        found |= {"tables": placed}
    return replace(owner, **found)


def is_name(name: str) -> bool:
    """Whether an organisation can be called so: the name becomes that of a folder."""
    return 0 < len(name) <= 64 and all(c.isalnum() or c in "_-" for c in name)


def check_name(name: str) -> None:
    if not is_name(name):
        raise ConfigError(
            f"A party's name has 1 to 64 letters, digits, '-' or '_', since it names a folder; found {name!r}."
        )


def check_names(names: Iterable[str]) -> None:
    """Of all organisations: where a disk takes capitals and small letters for one, two would have one folder."""
    alike: dict[str, str] = {}
    for name in names:
        check_name(name)
        if alike.setdefault(name.casefold(), name) != name:
            raise ConfigError(
                f"{alike[name.casefold()]!r} and {name!r} differ in capitals alone, and names are names of folders. "
                "Rename one of them."
            )


def _words(words: Sequence[str]) -> str:
    return "one of " + ", ".join(f'"{word}"' for word in ("auto", *words))


def _is_numbers(given: Any) -> bool:
    ways = given.values() if isinstance(given, Mapping) else [given]
    return given is None or all(isinstance(way, str) and way in ("auto", *NUMBERS) for way in ways)


def party_of(name: str, given: Any, section: str) -> PartySettings:
    check_name(name)
    where = place_of(section, name)
    if not isinstance(given, Mapping):
        raise ConfigError(f'{where} must be a table of settings, as in table = "x.csv"; found {given!r}.')
    if section in LISTS and "label" in given:
        raise ConfigError(
            f"{where} holds columns, and its label {given['label']!r} belongs to a label owner. Add a [[label_owners]] "
            "with the same name and table, and leave the label column out of columns here."
        )
    party = from_mapping(PartySettings, given, where=where)
    columns = party.columns is None or (
        isinstance(party.columns, tuple) and all(isinstance(c, str) for c in party.columns)
    )
    for key, rule, fits in (
        ("table", "text", isinstance(party.table, str | None)),
        ("tables", "a table of tables, as in [tables.purchases]", isinstance(party.tables, Mapping)),
        ("label", "text", isinstance(party.label, str | None)),
        ("weights", "text, the name of a column", isinstance(party.weights, str | None)),
        ("test_ids", "text, a path", isinstance(party.test_ids, str | None)),
        ("columns", "a list of column names", columns),
        (
            "numbers",
            f'{_words(NUMBERS)}, or a table by column, as in {{ age = "quantile" }}',
            _is_numbers(party.numbers),
        ),
        ("model", "a name or a table", isinstance(party.model, str | Mapping | None)),
        ("outbox", "a table of rules", isinstance(party.outbox, Mapping)),
        ("budget", "a table, as in epsilon = 8.0", isinstance(party.budget, Mapping)),
        ("models", SECRET_OR_SEEDED, party.models in MODELS_FROM),
    ):
        if not fits:
            raise ConfigError(f"{where}: {key} must be {rule}; found {given[key]!r}.")
    for key, what in (("test_ids", "who divides rows"), ("weights", "whose loss counts rows")):
        if vars(party)[key] is not None and party.label is None:
            raise ConfigError(f"{where}: {key} is for the party with the label, {what}. Move it there.")
    party.limit(name, section)
    return party
