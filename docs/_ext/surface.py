"""What a user can touch: public names, commands, settings, errors. The reference must
have a line for each."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, get_type_hints

import click
import typer

if TYPE_CHECKING:
    from colonnade.settings.schema import Table

LINES = Path(__file__).parents[1] / "reference" / "settings.toml"


@dataclass(frozen=True)
class Setting:
    """One key of a settings file."""

    section: str
    key: str
    value: str  # what it may be
    default: str
    line: str  # what it is for, in words; empty: nobody wrote it


@cache
def packages() -> dict[str, ModuleType]:
    """colonnade and those of its direct parts that say what is public."""
    import colonnade

    names = [
        "colonnade",
        *(
            f"colonnade.{part.name}"
            for part in pkgutil.iter_modules(colonnade.__path__)
        ),
    ]
    found = {
        name: importlib.import_module(name)
        for name in names
        if not name.rpartition(".")[2].startswith("_")
    }
    return {
        name: module for name, module in found.items() if hasattr(module, "__all__")
    }


def public_names() -> set[str]:
    """Every public name, in full."""
    return {
        f"{package}.{name}"
        for package, module in packages().items()
        for name in module.__all__
    }


@cache
def commands() -> dict[str, click.Command]:
    """Every command of the command line, subcommands in full, as `party check`."""
    from colonnade.cli import app

    def walk(group: click.Group, prefix: str) -> Iterator[tuple[str, click.Command]]:
        for name, command in group.commands.items():
            if isinstance(command, click.Group):
                yield from walk(command, f"{prefix}{name} ")
            else:
                yield prefix + name, command

    root = typer.main.get_command(app)
    assert hasattr(root, "commands")
    return dict(walk(root, ""))  # type: ignore[arg-type]


def errors() -> dict[str, type[Exception]]:
    """Every error, parents first."""
    from colonnade import errors as module

    return {name: kind for name, kind in vars(module).items() if name in module.__all__}


@cache
def settings() -> dict[str, list[Setting]]:
    """The keys of every section, from the models that check the files."""
    from colonnade.federation.rules import CODECS
    from colonnade.models import HEADS, MAPS, MODELS
    from colonnade.privacy import LABEL_MECHANISMS, MECHANISMS
    from colonnade.settings.algorithms import ALGORITHM_SETTINGS

    made: dict[str, list[Setting]] = {}
    for name, kind in ALGORITHM_SETTINGS.items():
        made[f"algorithm.{name}"] = _of_table(f"algorithm.{name}", kind)
    for section, table in _tables().items():
        made[section] = _of_table(section, table)
    lines = tomllib.loads(LINES.read_text(encoding="utf-8"))
    functions: dict[str, Mapping[str, Callable[..., Any]]] = {
        "model": MODELS | MAPS,
        "label_model": HEADS,
        "mechanism": MECHANISMS | LABEL_MECHANISMS,
        "codec": CODECS,
    }
    for kind_of, known in functions.items():
        for name, function in known.items():
            section = f"{kind_of}.{name}"
            made[section] = _of_function(section, function, lines, common=kind_of)
    return made


def _tables() -> dict[str, type[Table]]:
    """The tables of federation.toml and party.toml, by their headings."""
    from colonnade.settings import alignment, party_file, sections, selection, serving
    from colonnade.settings.tracking import TrackingSettings

    return {
        "data": sections.DataSettings,
        "preprocess": sections.PreprocessSettings,
        "train": sections.TrainSettings,
        "federation": sections.EngineSettings,
        "audit": sections.AuditSettings,
        "alignment": alignment.AlignmentSettings,
        "selection": selection.SelectionSettings,
        "tracking": TrackingSettings,
        "parties.NAME": sections.PartySettings,
        "parties.NAME.budget": sections.Budget,
        "label_owners": sections.LabelOwnerSettings,
        "party.toml": party_file.SiteFile,
        "serve": serving.ServeSettings,
        "alignments": alignment.AllowanceSettings,
        "selections": selection.SelectionAllowance,
        "store": party_file.StoreSettings,
    }


def sections(wanted: str) -> list[str]:
    """A section, or with "algorithm.*" all of that kind."""
    kind, _, every = wanted.partition(".")
    return (
        [one for one in settings() if one.partition(".")[0] == kind]
        if every == "*"
        else [wanted]
    )


def _of_table(section: str, kind: type[Table]) -> list[Setting]:
    """Each setting of a table, as its model has it."""
    from colonnade.settings.schema import rule_of

    made = []
    for key, field in kind.model_fields.items():
        default = "" if field.is_required() else _default(kind, key)
        line = field.description or ""
        made.append(Setting(section, key, rule_of(field), default, line))
    return made


def _of_function(
    section: str, function: Callable[..., Any], lines: Mapping[str, Any], common: str
) -> list[Setting]:
    given = ("shape", "outputs", "classes", "name")  # the library fills these in
    made = []
    hints = get_type_hints(
        vars(function)["__init__"] if isinstance(function, type) else function
    )
    for name, one in inspect.signature(function).parameters.items():
        if name not in given:
            default = (
                "" if one.default is inspect.Parameter.empty else _plain(one.default)
            )
            made.append(
                Setting(
                    section,
                    name,
                    _type(hints[name]),
                    default,
                    _line(lines, section, common, name),
                )
            )
    return made


def _line(lines: Mapping[str, Any], section: str, common: str, key: str) -> str:
    return str(lines.get(section, {}).get(key) or lines.get(common, {}).get(key) or "")


def _default(kind: type[Table], key: str) -> str:
    """The default of a setting as TOML has it. Empty where it is to say nothing."""
    required = {
        name: "x" for name, field in kind.model_fields.items() if field.is_required()
    }
    value = kind(**required).model_dump()[key]
    return "" if isinstance(value, dict) else _plain(value)


def _plain(value: Any) -> str:
    from colonnade.settings.toml_text import toml_value

    return "" if value is None or value in ((), []) else toml_value(value)


def _type(hint: Any) -> str:
    words = {
        str: "text",
        int: "a whole number",
        float: "a number",
        bool: "true or false",
    }
    if hint in words:
        return words[hint]
    text = str(hint)
    if "tuple[int" in text or "list[int" in text or "Sequence[int" in text:
        return (
            "a whole number, or a list of them"
            if text.startswith("int |")
            else "a list of whole numbers"
        )
    if "tuple[" in text:
        return "a list"
    for kind, word in (
        ("str", "text"),
        ("int", "a whole number"),
        ("float", "a number"),
    ):
        if text == f"{kind} | None":
            return word
    if text == "bool | str":
        return "true or false, or text"
    return (
        "a table"
        if "Mapping" in text
        else "a name, or a table"
        if hint is Any
        else text
    )
