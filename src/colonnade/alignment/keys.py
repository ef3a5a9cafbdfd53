"""Keys by which rows of different tables are matched, one after the other.

    id = "patient"                                           one column that names a row
    id = ["email", ["name", "birth_date", "zip"], "phone"]   three keys: rows that no key matched so far are compared by
                                                             the next; a key may have several columns

Each column is compared by a rule (`settings`). A row that was matched by its first key is called by it, and one
that was matched by another by that: "key 2: anna muster | 1980-12-31 | 8001". So all who share a row call it the same.
What its owner calls it, whoever it is shared with, is by the first key that it has; budgets are kept by that name.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from colonnade.alignment.settings import AlignmentSettings, Key, find_rule, in_words, text_of
from colonnade.errors import DataError

Texts = NDArray[np.str_]
SEPARATOR = " | "
GAP, TWICE = "without a value that can be read", "with a value that several rows have"


NAMED = re.compile(r"key ([1-9]\d{0,2}): (.*)", re.DOTALL)


def name_of(number: int, text: str) -> str:
    """What a row that a key matched is called."""
    return text if number == 0 else f"key {number + 1}: {text}"


def names_of(written: Iterable[str], keys: Sequence[Key], of: AlignmentSettings) -> list[str]:
    """What rows are called that somebody writes down in his own way, as in "key 2: Anna Muster | 31.12.1980": each part
    goes by the rule of its column. What a rule cannot read stays as it is, and names nobody."""
    rules = [[find_rule(of.rule_for(name), f"[alignment.rules] {name}") for name in key] for key in keys]

    def name(text: str) -> str:
        found = NAMED.fullmatch(text)
        by, said = (int(found[1]) - 1, found[2]) if found is not None and 1 < int(found[1]) <= len(keys) else (0, text)
        parts = [said] if len(rules[by]) == 1 else [part.replace("||", "|") for part in said.split(SEPARATOR)]
        if len(parts) != len(rules[by]):
            return text
        made = _joined([rule(part) for rule, part in zip(rules[by], parts, strict=True)])
        return name_of(by, made) if made else text

    return [name(one) for one in written]


def written_in(columns: Mapping[str, Sequence[Any]], keys: Sequence[Key]) -> list[str]:
    """Of rows in a file with the columns of some keys, how each is written by the first key that it has."""
    cells = [
        [_joined([text_of(cell) for cell in row]) for row in zip(*(columns[name] for name in key), strict=True)]
        if all(name in columns for name in key)
        else None
        for key in keys
    ]
    there = [(number, one) for number, one in enumerate(cells) if one is not None]
    return [
        next((name_of(number, one[row]) for number, one in there if one[row]), "")
        for row in range(len(there[0][1]) if there else 0)
    ]


@dataclass(frozen=True, eq=False)
class Keyed:
    """One owner's rows by each key: the text that is compared, "" where a row cannot be matched by it."""

    texts: tuple[Texts, ...]
    own: Texts  # what the owner calls each row; "" where it has no key at all
    lost: tuple[dict[str, int], ...] = field(default=())  # of each key: how many rows it cannot match, and why


def keyed(
    owner: str, columns: Mapping[str, Iterable[Any]], keys: Sequence[Key], agreed: Sequence[Key], of: AlignmentSettings
) -> Keyed:
    """From an owner's columns: `keys` are as it calls them, `agreed` as the rules do."""
    texts, lost = [], []
    for own, named in zip(keys, agreed, strict=True):
        if own == ("",):
            size = len(list(next(iter(columns.values()))))
            found: list[str] = [""] * size
        else:
            rules = [find_rule(of.rule_for(name), f"[alignment.rules] {name}") for name in named]
            parts = [[rule(cell) for cell in columns[name]] for rule, name in zip(rules, own, strict=True)]
            found = [_joined(row) for row in zip(*parts, strict=True)]
        once, again = _once(owner, in_words(own), found, of.duplicates)
        texts.append(np.array(once, dtype=np.str_))
        lost.append({GAP: sum(not one for one in found), TWICE: again})
    names = [""] * len(texts[0])
    for number in reversed(range(len(texts))):
        for row, text in enumerate(texts[number].tolist()):
            names[row] = name_of(number, text) if text else names[row]
    return Keyed(tuple(texts), np.array(names, dtype=np.str_), tuple(lost))


def matched(tables: Mapping[str, Sequence[Texts]]) -> dict[str, list[NDArray[np.int64]]]:
    """Where all tables are in one place: of each, the rows that each key matches, in an order that all share."""
    found: dict[str, list[NDArray[np.int64]]] = {name: [] for name in tables}
    for number in range(len(next(iter(tables.values())))):
        places = {}
        for name, texts in tables.items():
            left = np.setdiff1d(np.flatnonzero(texts[number] != ""), np.concatenate([*found[name], [-1]]))
            places[name] = dict(zip(texts[number][left].tolist(), left.tolist(), strict=True))
        first, *others = places.values()
        common = sorted(text for text in first if all(text in other for other in others))
        for name, known in places.items():
            found[name].append(np.array([known[text] for text in common], dtype=np.int64))
    return found


def counted(names: Sequence[str], keys: Sequence[Key]) -> dict[str, int]:
    """Of rows by what they are called, how many were matched by which key."""
    later = [sum(name.startswith(name_of(number, "")) for name in names) for number in range(1, len(keys))]
    return dict(zip(map(in_words, keys), [len(names) - sum(later), *later], strict=True))


def _joined(parts: Sequence[str]) -> str:
    """One text of a key's columns; "" where one of them has nothing."""
    if len(parts) == 1:
        return parts[0]
    return SEPARATOR.join(part.replace("|", "||") for part in parts) if all(parts) else ""


def _once(owner: str, key: str, found: list[str], rule: str) -> tuple[list[str], int]:
    """Values that several rows have are told by the rule: refused, the first row's, or nobody's."""
    first: dict[str, int] = {}
    again: set[str] = set()
    for row, text in enumerate(found):
        if text and first.setdefault(text, row) != row:
            again.add(text)
    if again and rule == "refuse":
        at = next(row for row, text in enumerate(found) if text in again and first[text] != row)
        raise DataError(
            f"'{owner}' has {len(again)} values of its key '{key}' that several rows have; the first to repeat one is "
            f'row {at}, counted from 0. Keep one row per value; or set [alignment] duplicates = "none", so that such a '
            'value matches nobody and these rows go by their other keys, or "first", so that the first row has it.'
        )
    once = [
        text if text not in again or (rule == "first" and first[text] == row) else "" for row, text in enumerate(found)
    ]
    return once, sum(bool(text) for text in found) - sum(map(bool, once))
