"""Settings of a federation file that a run has otherwise: `--set train.epochs=30`.

    train.epochs=30                    a key with its table, and a value as TOML writes it
    algorithm.name=splitnn             a single word is text, since a shell takes quotes away
    parties.lab.scale="minmax"         organisations by name, also where the file has a list of them

What a changed setting may be is checked with the rest of the file. A run that is
resumed may have some settings otherwise than it was started with (`check_continues`).

A file without some of its parties (`leave_out`) has every other line, comments too, as
its author wrote it; who holds the label stays, without its columns.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from colonnade.errors import ConfigError, did_you_mean
from colonnade.settings.sections import LISTS

Change = tuple[tuple[str, ...], Any]
"""Where a value stands, table by table, and the value."""
ALONE = ("preset", "model", "label_model")
"""What stands in no table."""
STOPPING = ("early_stop", "patience", "stop_on", "patience_drop")
MAY_CHANGE = {("train", key) for key in ("epochs", *STOPPING, "checkpoint_every")} | {
    ("federation", key)
    for key in (
        "device",
        "through_bytes",
        "threads",
        "cohort",
        "deadline",
        "retries",
        "on_missing",
    )
}
ASIDE = ("audit", "alignment", "selection", "tracking")
"""Tables that are not about what is trained."""
WORD = re.compile(r"[A-Za-z_][\w.:/-]*")


def changes_of(given: Sequence[str]) -> list[Change]:
    """Parse every KEY=VALUE of a command line."""
    changes: list[Change] = []
    for argument in given:
        key, equals, text = argument.partition("=")
        keys = _keys(key)
        value = _value(text.strip())
        if not equals or not keys or value is None:
            raise ConfigError(
                "--set takes KEY=VALUE with a value as TOML has it, as in --set"
                f" train.epochs=30 or --set 'model.hidden=[64]'; found {argument!r}."
            )
        if len(keys) == 1 and keys[0] not in ALONE:
            raise ConfigError(
                "--set names a setting with its table, as in train.epochs; found"
                f" {key.strip()!r}."
            )
        changes.append((keys, value))
    return changes


def laid_over(
    tables: Mapping[str, Any], changes: Sequence[Change], where: str
) -> dict[str, Any]:
    """Give a file's tables, with these values in the place of theirs."""
    changed = dict(tables)
    for keys, value in changes:
        changed = _with(changed, keys, value, where, ())
    return changed


def _keys(text: str) -> tuple[str, ...]:
    try:
        inner: Any = tomllib.loads(f"{text} = 0")
    except ValueError:
        return ()
    keys: list[str] = []
    while isinstance(inner, dict) and len(inner) == 1:
        key, inner = next(iter(inner.items()))
        keys.append(key)
    return tuple(keys) if inner == 0 else ()


def _value(text: str) -> Any:
    """Read a value as TOML has it, or as a bare word; None, which is no value in TOML,
    where it is neither."""
    try:
        table = tomllib.loads(f"value = {text}")
    except (ValueError, RecursionError):
        return text if WORD.fullmatch(text) else None
    return table["value"] if len(table) == 1 else None


def _with(
    table: Any, keys: tuple[str, ...], value: Any, where: str, path: tuple[str, ...]
) -> Any:
    if isinstance(table, str):  # a model, or a mechanism, that is only named
        table = {"name": table}
    first = keys[0]
    rest = keys[1:]
    if path and path[0] in ("parties", *LISTS) and len(path) == 1:
        names = (
            [owner.get("name") for owner in table]
            if isinstance(table, list)
            else list(table)
        )
        if first not in names:
            hint = did_you_mean(first, [str(name) for name in names])
            raise ConfigError(
                f"--set {'.'.join((*path, *keys))}: {where} has no {path[0]} of the"
                f" name {first!r}{hint}. An organisation is added in the file."
            )
        if isinstance(table, list) and rest:
            return [
                (
                    _with(owner, rest, value, where, (*path, first))
                    if owner.get("name") == first
                    else owner
                )
                for owner in table
            ]
    if not isinstance(table, Mapping):
        raise ConfigError(
            f"--set {'.'.join((*path, *keys))}: in {where}, {'.'.join(path)} is"
            f" {table!r} and no table, so it has no {first!r}. Set {'.'.join(path)}"
            " itself."
        )
    return {
        **table,
        first: (
            _with(table.get(first, {}), rest, value, where, (*path, first))
            if rest
            else value
        ),
    }


def check_continues(
    before: Mapping[str, Any],
    now: Mapping[str, Any],
    counted: str,
    counted_now: str,
    own: Path,
) -> list[str]:
    """Raise unless a run that was started with these tables, which are in its own file,
    can go on with others: what may change is how long to train and what computes, not
    what is trained, nor by what rows are counted. Gives what did."""
    # else other rows' budgets
    pairs: list[tuple[str, str, Any, Any]] = [
        ("alignment", "ids", counted, counted_now)
    ]
    for section in before:
        if section in ASIDE:
            continue
        table, other = (
            (
                {owner["name"]: owner for owner in given}
                if isinstance(given, list)
                else given
            )
            for given in (before[section], now.get(section, {}))
        )
        pairs += [
            (section, key, table.get(key), other.get(key)) for key in {**table, **other}
        ]
    changed = {
        (at, key): f"[{at}] {key} is {new!r} now and was {old!r}"
        for at, key, old, new in pairs
        if old != new
    }
    if refused := [words for key, words in changed.items() if key not in MAY_CHANGE]:
        raise ConfigError(
            f"A run is continued as it was started, and {refused[0]}. Undo it, name the"
            f" run's own file, {own}, or start a new run."
        )
    return list(changed.values())


HEADER = re.compile(
    r"^\s*(\[(?P<path>[^\[\]]+)\]|\[\[(?P<listed>[^\[\]]+)\]\])\s*(#.*)?$"
)
LIST = "data_owners"
COLUMNS = re.compile(
    r"""^[ \t]*columns[ \t]*=[ \t]*\[([^]"'#]|"[^"\n]*"|'[^'\n]*'|#.*)*\].*\n?""",
    re.MULTILINE,
)


def leave_out(text: str, parties: Collection[str]) -> str:
    """Drop the tables [parties.NAME] and [parties.NAME.*] of these parties, or where
    several hold labels, their [[data_owners]] with the tables below, and the comments
    directly above them. [parties.NAME] of the label stays with columns = []. A file
    that writes parties in another way, as inline tables or dotted keys, is refused
    rather than guessed at."""
    before = tomllib.loads(text)
    held = before.get(LIST)
    listed = (
        [str(owner.get("name")) for owner in held if isinstance(owner, dict)]
        if isinstance(held, list)
        else []
    )
    there = [*before.get("parties", {}), *listed]
    for name in parties:
        if name not in there:
            raise ConfigError(
                f"The federation file has no party {name!r}{did_you_mean(name, there)}."
            )
    wanted = dict(before)
    tables = before.get("parties", {})
    labels = [name for name in parties if "label" in tables.get(name, {})]
    if "parties" in before or not listed:
        kept_tables = {
            name: t
            for name, t in tables.items()
            if name not in parties or name in labels
        }
        wanted["parties"] = kept_tables | {
            name: tables[name] | {"columns": []} for name in labels
        }
    if listed:
        left = [owner for owner in before[LIST] if owner.get("name") not in parties]
        wanted = {
            key: left if key == LIST else value
            for key, value in wanted.items()
            if key != LIST or left
        }
    kept: list[str] = []
    dropping = False
    owner = ""
    owners = iter(listed)
    for line in text.splitlines(keepends=True):
        if (header := HEADER.match(line)) is not None:
            if (header["listed"] or "").strip() == LIST:
                owner = next(owners, "")
            inside = (header["listed"] or header["path"]).strip().split(".")[
                0
            ].strip() == LIST
            of = owner if inside else _party(header["path"] or "")
            dropping = of in parties and of not in labels
            # they belong to what they stand above
            while dropping and kept and kept[-1].lstrip().startswith("#"):
                kept.pop()
        if not dropping:
            kept.append(line)
    rewritten = "".join(kept)
    for name in labels:
        rewritten = _emptied(rewritten, name)
    try:
        as_wanted = tomllib.loads(rewritten) == wanted
    except tomllib.TOMLDecodeError:  # lines were dropped from inside a text
        as_wanted = False
    if not as_wanted:
        out = ", ".join(map(repr, sorted(parties)))
        raise ConfigError(
            f"The federation file cannot be rewritten without {out}: only parties that"
            " are tables of their own, as in [parties.NAME] or [[data_owners]], can be"
            " left out. Remove them by hand."
        )
    return rewritten


def _emptied(text: str, name: str) -> str:
    """The text with no columns in [parties.NAME]."""
    head = re.search(
        rf"""(?m)^\s*\[\s*parties\s*\.\s*["']?{re.escape(name)}["']?\s*\].*\n""", text
    )
    start = head.end() if head else len(text)
    end = start + len(re.split(r"(?m)^[ \t]*\[", text[start:], maxsplit=1)[0])
    return f"{text[:start]}columns = []\n{COLUMNS.sub('', text[start:end])}{text[end:]}"


def _party(path: str) -> str | None:
    """The party that a header such as `parties.lab.outbox` belongs to; names hold no
    dots or quotes inside."""
    steps = [step.strip().strip("\"'") for step in path.split(".")]
    return steps[1] if len(steps) > 1 and steps[0] == "parties" else None
