"""TOML text of nested tables of plain values, as a run keeps its settings and `init` writes a file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def to_toml(tables: Mapping[str, Any], prefix: str = "") -> str:
    """TOML text for nested tables of plain values."""
    plain = {key: value for key, value in tables.items() if not _is_section(value) and not _is_list(value)}
    lines = [f"{_key(key)} = {_value(value)}" for key, value in plain.items()]
    text = "\n".join(lines) + ("\n" if lines else "")
    for key, value in tables.items():
        if _is_section(value):
            name = f"{prefix}{_key(key)}"
            header = f"\n[{name}]\n" if not value or any(not _is_section(inner) for inner in value.values()) else ""
            text += header + to_toml(value, name + ".")
        elif _is_list(value):
            name = f"{prefix}{_key(key)}"
            text += "".join(f"\n[[{name}]]\n" + to_toml(table, name + ".") for table in value)
    return text


def _is_section(value: Any) -> bool:
    return isinstance(value, Mapping)


def _is_list(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(item, Mapping) for item in value)


def _key(key: str) -> str:
    return key if key.replace("_", "").replace("-", "").isalnum() and key.isascii() else _value(key)


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        escaped = value.replace("\\", "\\\\").replace('"', '\\"')
        plain = "".join(c if c >= " " and c != "\x7f" else f"\\u{ord(c):04x}" for c in escaped)
        return f'"{plain}"'
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(_value, value)) + "]"
    if isinstance(value, Mapping):  # inside an array
        return "{" + ", ".join(f"{_key(key)} = {_value(inner)}" for key, inner in value.items()) + "}"
    return repr(value)
