"""What files may say, known without torch: an error in one, and the list of algorithms, need not wait for it.

`known.json` has every table's settings with their rules, and every algorithm's with what it reveals. It is written from
the settings' own classes and the algorithms' records by `python docs/known.py`, and a test holds it to them. What a
class checks besides, as two settings that do not go together, is checked when it is imported.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import field, fields, make_dataclass
from functools import cache
from pathlib import Path
from typing import Any, get_type_hints

from colonnade.core.checks import RULES, Checked, check_named, check_tables, from_mapping, read_toml

FILE = Path(__file__).with_name("known.json")
LISTS = ("label_owners", "data_owners")
SECTIONS = (
    *("algorithm", "data", "preprocess", "model", "label_model", "train", "federation", "audit"),
    *("alignment", "selection", "tracking", "parties", *LISTS),
)
MODELS = ("model", "label_model")
KINDS: dict[str, type] = {"str": str, "bool": bool, "tuple": tuple, "any": object}


@cache
def known() -> dict[str, Any]:
    """The whole table."""
    found: dict[str, Any] = json.loads(FILE.read_text(encoding="utf-8"))
    return found


def described(settings: type) -> dict[str, Any]:
    """A class of settings as the table has it."""
    hints = get_type_hints(settings)
    told: dict[str, Any] = {}
    for one in fields(settings):
        hint, rule = hints[one.name], vars(settings).get(one.name)
        kind = hint.__name__ if hint in (str, bool) else "tuple" if "tuple" in str(hint) else "any"
        told[one.name] = [kind, *(rule.made if isinstance(rule, Checked) else ())]
    return {"of": [settings.__module__, settings.__name__], "settings": told}


def algorithms() -> dict[str, Any]:
    """What there is about each algorithm. Where they are imported already, one that joined them is among them."""
    found: dict[str, Any] = known()["algorithms"]
    imported = sys.modules.get("colonnade.algorithms")
    every: Mapping[str, Any] = {} if imported is None else imported.ALGORITHMS
    return found | {name: described_algorithm(every[name]) for name in every if name not in found}


def described_algorithm(one: Any) -> dict[str, Any]:
    """An algorithm's record as the table has it."""
    return {"about": one.about, "reveals": one.reveals, **described(one.config)}


def _class(told: Mapping[str, Any]) -> type:
    """A class of settings with these rules, and none that go over several of them."""
    module, name = told["of"]
    made: list[Any] = []
    for key, (kind, *rule) in told["settings"].items():
        default = RULES[rule[0]](*rule[1], **rule[2]) if rule else field(default=None)
        made.append((key, KINDS[kind], default))
    return make_dataclass(name, made, namespace={"__module__": module})


def check_early(path: Path) -> None:
    """Raise what `Settings.from_toml` would say of a file, as far as it can be told by single settings."""
    tables = read_toml(path, f"The federation file {path}")
    check_tables(tables, str(path), SECTIONS, lists=LISTS, words=MODELS)
    chosen = {**tables.get("algorithm", {})}
    name = str(chosen.pop("name", known()["default"]))
    check_named("algorithm", name, list(algorithms()))
    for place, owner, given in _owners(tables):
        from_mapping(_class(owner), given, where=place)
    from_mapping(_class(algorithms()[name]), chosen, where=f"[algorithm] ({name})")
    for section, told in known()["tables"].items():
        from_mapping(_class(told), tables.get(section, {}), where=f"[{section}]")


def _owners(tables: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any], Mapping[str, Any]]]:
    """Every organisation of a file: where it stands, what may stand there, and what does."""
    for section, told in known()["owners"].items():
        held = tables.get(section, {})
        listed = held if isinstance(held, list) else [{"name": name, "": one} for name, one in held.items()]
        for one in listed:
            given = one.get("", one) if isinstance(one, Mapping) else one
            if isinstance(given, Mapping):
                rest = {key: value for key, value in given.items() if key != "name" or section not in LISTS}
                name = one.get("name")
                yield f"[[{section}]] '{name}'" if section in LISTS else f"[{section}.{name}]", told, rest
