"""TOML: files as organisations write them, and text as a run keeps its settings."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from colonnade.errors import ConfigError

CHARACTERS_OF_A_REASON = 200
"""The most of a parser's reason that an error shows."""


def read_toml(path: Path, what: str) -> dict[str, Any]:
    """Read the tables of a file.

    The file may be somebody else's, so whatever is wrong with it is told as an error of
    the file.

    Args:
        path: The file.
        what: What errors call it.
    """
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{what} cannot be read: {error.strerror}.") from None
    except RecursionError:
        raise ConfigError(
            f"{what} is not TOML that can be read: its values are nested too deeply."
        ) from None
    except ValueError as error:  # no TOML, no UTF-8, or a number of thousands of digits
        reason = str(error)[:CHARACTERS_OF_A_REASON]
        raise ConfigError(f"{what} is not TOML: {reason}.") from None


def to_toml(tables: Mapping[str, Any], prefix: str = "") -> str:
    """Write nested tables of plain values as TOML."""
    text = ""
    for key, value in tables.items():
        if not isinstance(value, Mapping) and not _is_list_of_tables(value):
            text += f"{toml_key(key)} = {toml_value(value)}\n"
    for key, value in tables.items():
        name = f"{prefix}{toml_key(key)}"
        if isinstance(value, Mapping):
            if _needs_heading(value):
                text += f"\n[{name}]\n"
            text += to_toml(value, f"{name}.")
        elif _is_list_of_tables(value):
            for table in value:
                text += f"\n[[{name}]]\n" + to_toml(table, f"{name}.")
    return text


def _needs_heading(table: Mapping[str, Any]) -> bool:
    """Whether a table must be named: not where all it has is tables, which name it."""
    holds_values = any(not isinstance(value, Mapping) for value in table.values())
    return not table or holds_values


def _is_list_of_tables(value: Any) -> bool:
    if not isinstance(value, list) or not value:
        return False
    return all(isinstance(item, Mapping) for item in value)


def toml_key(key: str) -> str:
    """A key as TOML writes it: bare where it may be, else quoted."""
    bare = key.replace("_", "").replace("-", "")
    return key if bare.isalnum() and key.isascii() else toml_value(key)


def toml_value(value: Any) -> str:
    """A value as TOML writes it on one line."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return _quoted(value)
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(toml_value, value)) + "]"
    if isinstance(value, Mapping):
        pairs = [f"{toml_key(key)} = {toml_value(one)}" for key, one in value.items()]
        return "{" + ", ".join(pairs) + "}"
    return repr(value)


def _quoted(text: str) -> str:
    """Text in quotes, with what TOML refuses in it written as escapes."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    signs = [
        sign if sign >= " " and sign != "\x7f" else f"\\u{ord(sign):04x}"
        for sign in escaped
    ]
    return f'"{"".join(signs)}"'
