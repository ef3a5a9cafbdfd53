"""TOML text of nested tables of plain values, as a run keeps its settings and `init`
writes a file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def to_toml(tables: Mapping[str, Any], prefix: str = "") -> str:
    """TOML text for nested tables of plain values."""
    plain = {
        key: value
        for key, value in tables.items()
        if not isinstance(value, Mapping) and not _is_list(value)
    }
    lines = [f"{toml_key(key)} = {toml_value(value)}" for key, value in plain.items()]
    text = "\n".join(lines) + ("\n" if lines else "")
    for key, value in tables.items():
        name = f"{prefix}{toml_key(key)}"
        if isinstance(value, Mapping):
            holds_plain = not value or any(
                not isinstance(inner, Mapping) for inner in value.values()
            )
            text += (f"\n[{name}]\n" if holds_plain else "") + to_toml(
                value, name + "."
            )
        elif _is_list(value):
            text += "".join(
                f"\n[[{name}]]\n" + to_toml(table, name + ".") for table in value
            )
    return text


def _is_list(value: Any) -> bool:
    return (
        isinstance(value, list)
        and bool(value)
        and all(isinstance(item, Mapping) for item in value)
    )


def toml_key(key: str) -> str:
    return (
        key
        if key.replace("_", "").replace("-", "").isalnum() and key.isascii()
        else toml_value(key)
    )


def toml_value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        escaped = value.replace("\\", "\\\\").replace('"', '\\"')
        plain = "".join(
            c if c >= " " and c != "\x7f" else f"\\u{ord(c):04x}" for c in escaped
        )
        return f'"{plain}"'
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(toml_value, value)) + "]"
    if isinstance(value, Mapping):  # inside an array
        return (
            "{"
            + ", ".join(
                f"{toml_key(key)} = {toml_value(inner)}" for key, inner in value.items()
            )
            + "}"
        )
    return repr(value)
