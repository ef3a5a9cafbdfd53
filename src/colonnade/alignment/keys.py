"""Keys by which rows of different tables are matched, one after the other.

    id = "patient"                                           one column that names a row
    id = ["email", ["name", "birth_date", "zip"], "phone"]   three keys: rows that no key matched so far are compared by
                                                             the next; a key may have several columns

Each column is compared by a rule (`settings`). A shared row is named after the key that
matched it: by its plain text for the first key, "key 2: anna muster | 1980-12-31 |
8001" for another. So all who share a row give it one name. Its owner's own name for it,
whoever it is shared with, comes from the first key that it has; budgets are kept by
that name.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from colonnade.alignment.rules import find_rule, normalised, text_of
from colonnade.errors import DataError
from colonnade.settings.alignment import AlignmentSettings, Key, in_words
from colonnade.settings.federation_file import Settings

Texts = NDArray[np.str_]
SEPARATOR = " | "
GAP = "without a value that can be read"
TWICE = "with a value that several rows have"


NAMED = re.compile(r"key ([1-9]\d{0,2}): (.*)", re.DOTALL)


def row_names(settings: Settings, ids: Iterable[str]) -> list[str]:
    """The names of rows, by ids as somebody writes who asks for them."""
    if not settings.plain_ids:
        return names_of(ids, settings.keys, settings.alignment)
    if settings.alignment.ids == "normalised":
        return [normalised(name) for name in ids]
    return list(ids)


def name_of(number: int, text: str) -> str:
    """The name of a row that a key matched."""
    return text if number == 0 else f"key {number + 1}: {text}"


def names_of(
    written: Iterable[str], keys: Sequence[Key], of: AlignmentSettings
) -> list[str]:
    """The names of rows that somebody wrote down freely, as in "key 2: Anna Muster |
    31.12.1980": each part is read by the rule of its column. What a rule cannot read
    stays as it is, and names nobody."""
    rules = [
        [find_rule(of.rule_for(name), f"[alignment.rules] {name}") for name in key]
        for key in keys
    ]

    def name(text: str) -> str:
        number = 0
        value = text
        if (match := NAMED.fullmatch(text)) is not None and 1 < int(match[1]) <= len(
            keys
        ):
            number = int(match[1]) - 1
            value = match[2]
        parts = (
            [value]
            if len(rules[number]) == 1
            else [part.replace("||", "|") for part in value.split(SEPARATOR)]
        )
        if len(parts) != len(rules[number]):
            return text
        compared = _joined(
            [rule(part) for rule, part in zip(rules[number], parts, strict=True)]
        )
        return name_of(number, compared) if compared else text

    return [name(text) for text in written]


def written_in(columns: Mapping[str, Sequence[Any]], keys: Sequence[Key]) -> list[str]:
    """How each row of a file is written by the first key that it has; columns of some
    keys may be missing."""
    names_by_key = []
    for number, key in enumerate(keys):
        if all(name in columns for name in key):
            cells = zip(*(columns[name] for name in key), strict=True)
            texts = [_joined([text_of(cell) for cell in row]) for row in cells]
            names_by_key.append(
                [name_of(number, text) if text else "" for text in texts]
            )
    return [next(filter(None, names), "") for names in zip(*names_by_key, strict=True)]


@dataclass(frozen=True, eq=False)
class Keyed:
    """One owner's rows by each key: the text that is compared, "" where a row cannot be
    matched by it."""

    texts: tuple[Texts, ...]
    own: Texts  # the owner's own name for each row; "" where it has no key at all
    # for each key: how many rows it cannot match, and why
    lost: tuple[dict[str, int], ...] = field(default=())


def keyed(
    owner: str,
    columns: Mapping[str, Iterable[Any]],
    keys: Sequence[Key],
    agreed: Sequence[Key],
    of: AlignmentSettings,
) -> Keyed:
    """Make an owner's keys from its columns: `keys` has its own names of columns,
    `agreed` those of the rules."""
    texts = []
    lost = []
    for own, named in zip(keys, agreed, strict=True):
        if own == ("",):
            size = len(list(next(iter(columns.values()))))
            values: list[str] = [""] * size
        else:
            rules = [
                find_rule(of.rule_for(name), f"[alignment.rules] {name}")
                for name in named
            ]
            parts = [
                [rule(cell) for cell in columns[name]]
                for rule, name in zip(rules, own, strict=True)
            ]
            values = [_joined(row) for row in zip(*parts, strict=True)]
        unique, repeated = _without_repeats(owner, in_words(own), values, of.duplicates)
        texts.append(np.array(unique, dtype=np.str_))
        lost.append({GAP: values.count(""), TWICE: repeated})
    names = [""] * len(texts[0])
    for number in reversed(range(len(texts))):
        for row, text in enumerate(texts[number].tolist()):
            names[row] = name_of(number, text) if text else names[row]
    return Keyed(tuple(texts), np.array(names, dtype=np.str_), tuple(lost))


def matched(
    tables: Mapping[str, Sequence[Texts]],
) -> dict[str, list[NDArray[np.int64]]]:
    """Match tables that are all in one place: the rows of each that each key matches,
    in an order that all share."""
    rows_by_key: dict[str, list[NDArray[np.int64]]] = {name: [] for name in tables}
    for number in range(len(next(iter(tables.values())))):
        places = {}
        for name, texts in tables.items():
            unmatched = np.setdiff1d(
                np.flatnonzero(texts[number] != ""),
                np.concatenate([*rows_by_key[name], [-1]]),
            )
            places[name] = dict(
                zip(texts[number][unmatched].tolist(), unmatched.tolist(), strict=True)
            )
        first, *others = places.values()
        common = sorted(
            text for text in first if all(text in other for other in others)
        )
        for name, rows in places.items():
            rows_by_key[name].append(
                np.array([rows[text] for text in common], dtype=np.int64)
            )
    return rows_by_key


def counted(names: Sequence[str], keys: Sequence[Key]) -> dict[str, int]:
    """How many of the rows with these names each key matched."""
    later = [
        sum(name.startswith(name_of(number, "")) for name in names)
        for number in range(1, len(keys))
    ]
    return dict(
        zip(map(in_words, keys), [len(names) - sum(later), *later], strict=True)
    )


def _joined(parts: Sequence[str]) -> str:
    """A key's columns as one text; "" where one of them is empty."""
    if len(parts) == 1:
        return parts[0]
    return (
        SEPARATOR.join(part.replace("|", "||") for part in parts) if all(parts) else ""
    )


def _without_repeats(
    owner: str, key: str, values: list[str], rule: str
) -> tuple[list[str], int]:
    """Refuse repeated values, or take them from all rows or all but the first; returns
    "" for those, and how many."""
    import pandas as pd

    texts = pd.Series(values, dtype=object)
    shared, later = (
        (texts != "") & texts.duplicated(keep=keep) for keep in (False, "first")
    )
    if rule == "refuse" and later.any():
        raise DataError(
            f"'{owner}' has {texts[shared].nunique()} values of its key '{key}' that"
            f" several rows have; the first to repeat one is row {later.argmax()},"
            " counted from 0. Keep one row per value; or set [alignment] duplicates ="
            ' "none", so that such a value matches nobody and these rows go by their'
            ' other keys, or "first", so that the first row has it.'
        )
    lost = later if rule == "first" else shared
    return texts.mask(lost, "").tolist(), int(lost.sum())
