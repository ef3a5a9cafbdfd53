"""What a user can touch: public names, commands, settings, errors. The reference must
have a line for each."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import pkgutil
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any, get_type_hints

import click
import typer

LINES = Path(__file__).parents[1] / "reference" / "settings.toml"
HEADINGS = {
    "engine": "federation",
    "parties": "parties.NAME",
    "label_owners": "label_owners",
}
"""Where a field of `Settings` stands in the file, where it is not under its own name.
"""


@dataclass(frozen=True)
class Setting:
    """One key of the federation file."""

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
    """Section -> its keys."""
    from colonnade.algorithms import ALGORITHMS
    from colonnade.models import HEADS, MAPS, MODELS
    from colonnade.privacy import LABEL_MECHANISMS, MECHANISMS, Budget
    from colonnade.settings import rules
    from colonnade.settings.federation_file import Settings

    lines = tomllib.loads(LINES.read_text(encoding="utf-8"))
    made: dict[str, list[Setting]] = {}
    for name, algorithm in ALGORITHMS.items():
        made[f"algorithm.{name}"] = _of_class(
            f"algorithm.{name}", algorithm.config, lines, common="algorithm"
        )
    for field, hint in get_type_hints(Settings).items():
        kinds = [
            kind
            for kind in (hint, *getattr(hint, "__args__", ()))
            if dataclasses.is_dataclass(kind)
        ]
        if kinds:
            heading = HEADINGS.get(field, field)
            made[heading] = _of_class(heading, kinds[0], lines)
    made["parties.NAME.budget"] = _of_class("parties.NAME.budget", Budget, lines)
    for kind, known in (
        ("model", MODELS | MAPS),
        ("label_model", HEADS),
        ("mechanism", MECHANISMS | LABEL_MECHANISMS),
        ("codec", rules.CODECS),
    ):
        for name, function in known.items():
            made[f"{kind}.{name}"] = _of_function(
                f"{kind}.{name}", function, lines, common=kind
            )
    return made


def sections(wanted: str) -> list[str]:
    """A section, or with "algorithm.*" all of that kind."""
    kind, _, every = wanted.partition(".")
    return (
        [one for one in settings() if one.partition(".")[0] == kind]
        if every == "*"
        else [wanted]
    )


def _of_class(
    section: str, kind: Any, lines: Mapping[str, Any], common: str = ""
) -> list[Setting]:
    hints = get_type_hints(kind)
    comments = _comments(kind)
    made = []
    for field in dataclasses.fields(kind):
        rule = getattr(
            inspect.getattr_static(kind, field.name, None), "rule", None
        ) or _type(hints[field.name])
        line = _line(lines, section, common, field.name) or comments.get(field.name, "")
        made.append(Setting(section, field.name, rule, _default(field), line))
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


def _comments(kind: type) -> dict[str, str]:
    """The comment beside each field in the source, or on the lines above it."""
    found = {}
    above: list[str] = []
    for line in inspect.getsource(kind).splitlines():
        if line.strip().startswith("# "):
            above.append(line.strip().lstrip("# "))
            continue
        code, _, beside = line.partition("  # ")
        name, colon, _ = code.strip().partition(":")
        if colon and name.isidentifier() and not beside.startswith("type:"):
            found[name] = beside.strip() or " ".join(above)
        above = []
    return found


def _default(field: dataclasses.Field[Any]) -> str:
    if field.default_factory is not dataclasses.MISSING:
        return ""
    return "" if field.default is dataclasses.MISSING else _plain(field.default)


def _plain(value: Any) -> str:
    from colonnade.settings.toml_text import toml_value

    return "" if value is None or value == () else toml_value(value)


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
