"""What files may say, known without torch: an error in one, and the list of algorithms,
need not wait for it.

`known.json` has every table's settings with their rules, and every algorithm's with
what it reveals. It is written from the settings' own classes and the algorithms'
records by `python docs/known.py`, and a test holds it to them. What a class checks
besides, as two settings that do not go together, is checked when it is imported.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import field, fields, make_dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, get_type_hints

from colonnade.core.checks import (
    RULES,
    Checked,
    check_named,
    check_tables,
    from_mapping,
    read_toml,
)

FILE = Path(__file__).with_name("known.json")
LISTS = ("label_owners", "data_owners")
SECTIONS = (
    *(
        "algorithm",
        "data",
        "preprocess",
        "model",
        "label_model",
        "train",
        "federation",
        "audit",
    ),
    *("alignment", "selection", "tracking", "parties", *LISTS),
)
MODELS = ("model", "label_model")
KINDS: dict[str, type] = {"str": str, "bool": bool, "tuple": tuple, "any": object}


@cache
def known() -> dict[str, Any]:
    """Read the whole table."""
    table: dict[str, Any] = json.loads(FILE.read_text(encoding="utf-8"))
    return table


def described(settings: type) -> dict[str, Any]:
    """Describe a class of settings as the table has it."""
    hints = get_type_hints(settings)
    rules: dict[str, Any] = {}
    for setting in fields(settings):
        hint = hints[setting.name]
        rule = vars(settings).get(setting.name)
        kind = (
            hint.__name__
            if hint in (str, bool)
            else "tuple"
            if "tuple" in str(hint)
            else "any"
        )
        rules[setting.name] = [kind, *(rule.made if isinstance(rule, Checked) else ())]
    return {"of": [settings.__module__, settings.__name__], "settings": rules}


def algorithms() -> dict[str, Any]:
    """List what is known about each algorithm, also of one that joined those that are
    imported."""
    written: dict[str, Any] = known()["algorithms"]
    imported = sys.modules.get("colonnade.algorithms")
    every: Mapping[str, Any] = {} if imported is None else imported.ALGORITHMS
    return written | {
        name: described_algorithm(every[name]) for name in every if name not in written
    }


def described_algorithm(algorithm: Any) -> dict[str, Any]:
    """Describe an algorithm's record as the table has it."""
    about = {
        "about": algorithm.about,
        "reveals": algorithm.reveals,
        "for_tables": dict(algorithm.for_tables),
    }
    return about | described(algorithm.config)


def _class(table: Mapping[str, Any]) -> type:
    """Make a class of settings with these rules; rules that compare several settings
    are not in it."""
    module, name = table["of"]
    settings: list[Any] = []
    for key, (kind, *rule) in table["settings"].items():
        default = RULES[rule[0]](*rule[1], **rule[2]) if rule else field(default=None)
        settings.append((key, KINDS[kind], default))
    return make_dataclass(name, settings, namespace={"__module__": module})


def check_early(path: Path) -> None:
    """Raise what `Settings.from_toml` would say of a file, as far as it can be told by
    single settings."""
    tables = read_toml(path, f"The federation file {path}")
    check_tables(tables, str(path), SECTIONS, lists=LISTS, words=MODELS)
    chosen = {**tables.get("algorithm", {})}
    name = str(chosen.pop("name", known()["default"]))
    if name not in algorithms():
        # it may have joined them since the table was written
        import_module("colonnade.algorithms")
    check_named("algorithm", name, list(algorithms()))
    for place, owner, given in _owners(tables):
        from_mapping(_class(owner), given, where=place)
    from_mapping(_class(algorithms()[name]), chosen, where=f"[algorithm] ({name})")
    for section, settings in known()["tables"].items():
        from_mapping(_class(settings), tables.get(section, {}), where=f"[{section}]")


def _owners(
    tables: Mapping[str, Any],
) -> Iterator[tuple[str, Mapping[str, Any], Mapping[str, Any]]]:
    """List every organisation of a file: where it stands, what may stand there, and
    what does."""
    for section, settings in known()["owners"].items():
        held = tables.get(section, {})
        listed = (
            held
            if isinstance(held, list)
            else [{"name": name, "": owner} for name, owner in held.items()]
        )
        for entry in listed:
            given = entry.get("", entry) if isinstance(entry, Mapping) else entry
            if isinstance(given, Mapping):
                rest = {
                    key: value
                    for key, value in given.items()
                    if key != "name" or section not in LISTS
                }
                name = entry.get("name")
                yield (
                    (
                        f"[[{section}]] '{name}'"
                        if section in LISTS
                        else f"[{section}.{name}]"
                    ),
                    settings,
                    rest,
                )
