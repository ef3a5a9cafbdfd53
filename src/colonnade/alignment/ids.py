"""Ids, made comparable: text by a stated rule, then one digest per row. No id is kept
as text from here on.

    exact         text as it is; whole numbers as their decimal digits, so 1 and "1" are one id and "01" is another
    normalised    Unicode NFKC, case folded, white space stripped at the ends and made one space inside

Composite ids are encoded with the number of parts and the length of each, so ("ab",
"c") is not ("a", "bc"). Floats (1.0), dates, True and bytes are refused: they have no
single spelling, and a float may have lost digits of a long id.

Only the id columns of a party's file are read before anybody trains.
"""

from __future__ import annotations

import hashlib
import operator
import re
import secrets
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from colonnade.alignment.keys import name_of
from colonnade.alignment.rules import RULES, normalised
from colonnade.datasets.table import WORTH_TELLING, Table, packed
from colonnade.datasets.table_files import read_columns
from colonnade.errors import DataError
from colonnade.settings.alignment import AlignmentSettings

DIGEST = 32
FILLED = 100
"""The fewest entries of a list that is compared after the first key."""
NOBODY = -1
"""The row of an entry that was filled in."""


@dataclass(frozen=True, eq=False, repr=False)
class Ids:
    """One party's ids: the digest of each distinct one, and the row of its table that
    it names."""

    owner: str
    digests: NDArray[np.uint8]
    rows: NDArray[np.int64]
    total: int  # rows in the table
    columns: int  # that an id is made of

    def __len__(self) -> int:
        return len(self.rows)

    def __repr__(self) -> str:
        return (
            f"Ids({self.owner!r}, {len(self)} of {self.total} rows, {self.columns}"
            " columns)"
        )

    @property
    def repeated(self) -> int:
        """Rows left out because another has their id."""
        return self.total - len(self)

    @classmethod
    def of(
        cls,
        owner: str,
        columns: Sequence[Iterable[Any]],
        settings: AlignmentSettings | None = None,
    ) -> Ids:
        """Make the ids of the columns that they consist of, each as long as the table."""
        settings = settings or AlignmentSettings()
        write = normalised if settings.ids == "normalised" else str
        parts = [
            (_text(owner, row, value, write) for row, value in enumerate(column))
            for column in columns
        ]
        joined = bytearray()  # not b"".join, which would hold every digest twice
        for digest in _digests(owner, parts):
            joined += digest
        digests = np.frombuffer(joined, dtype=np.uint8).reshape(-1, DIGEST)
        if not len(digests):
            raise DataError(
                f"'{owner}' has a table without rows, and there is nothing to align."
                " Check its export."
            )
        words = digests.view(f"S{DIGEST}").reshape(-1)
        if settings.duplicates == "none":
            _, number_of_row, counts = np.unique(
                words, return_inverse=True, return_counts=True
            )
            rows = np.flatnonzero(counts[number_of_row] == 1)
        else:
            rows = np.sort(np.unique(words, return_index=True)[1])
        repeated = len(digests) - len(rows)
        if repeated and settings.duplicates == "refuse":
            at = int(np.setdiff1d(np.arange(len(digests)), rows, assume_unique=True)[0])
            raise DataError(
                f"'{owner}' has {repeated} rows with an id that an earlier row has too,"
                f" comparing {settings.ids} ids; the first is row {at}, counted from 0."
                " An id must name one row: keep one row per id, or set [alignment]"
                ' duplicates = "first".'
            )
        return cls(
            owner,
            digests if not repeated else digests[rows],
            rows,
            len(digests),
            len(parts),
        )

    def left(self, matched: Sequence[NDArray[np.int64]], *, fill: bool) -> Ids:
        """The ids of rows that no other key matched yet. `fill` adds random entries,
        which match nobody's, to a short list: others might refuse it otherwise, and
        need not know how short it is."""
        unmatched = ~np.isin(self.rows, np.concatenate([[NOBODY], *matched]))
        digests = self.digests[unmatched]
        rows = self.rows[unmatched]
        more = max(FILLED - len(rows), 0) if fill else 0
        random = np.frombuffer(
            secrets.token_bytes(DIGEST * more), dtype=np.uint8
        ).reshape(more, DIGEST)
        digests = np.concatenate([digests, random])
        rows = np.concatenate([rows, np.full(more, NOBODY)])
        return replace(self, digests=digests, rows=rows)

    @classmethod
    def of_texts(cls, owner: str, texts: NDArray[np.str_]) -> Ids:
        """Make the ids of texts that are compared as they are, each once; "" where a
        row has none."""
        rows = np.flatnonzero(texts != "").astype(np.int64)
        joined = b"".join(
            _digests(owner, [iter([text.encode() for text in texts[rows].tolist()])])
        )
        digests = np.frombuffer(bytearray(joined), dtype=np.uint8).reshape(-1, DIGEST)
        return cls(owner, digests, rows, len(texts), 1)


def _text(owner: str, row: int, value: Any, write: Callable[[str], str]) -> bytes:
    if isinstance(value, str):
        text = write(value)
        if text.strip():
            try:
                return text.encode()
            except UnicodeEncodeError:
                raise DataError(
                    f"'{owner}' has an id in row {row} that is no valid Unicode."
                    " Correct it."
                ) from None
    elif not isinstance(value, bool | np.bool_):
        try:
            return str(operator.index(value)).encode()
        except TypeError:
            pass
    if (
        value is None
        or isinstance(value, str)
        or type(value).__name__ == "NAType"
        or value != value
    ):
        raise DataError(
            f"'{owner}' has no id in row {row}, and every row needs one. Remove such"
            " rows, or name them."
        )
    raise DataError(
        f"'{owner}' has an id of type {type(value).__name__} in row {row}, and ids must"
        " be text or whole numbers, to be compared exactly. Convert the column to"
        " text, or to whole numbers."
    )


def _digests(owner: str, parts: Sequence[Iterator[bytes]]) -> Iterator[bytes]:
    if not parts:
        raise DataError(f"'{owner}' names no id column. Name at least one.")
    head = len(parts).to_bytes(4, "big")
    try:
        for texts in zip(*parts, strict=True):
            yield hashlib.sha256(
                head + b"".join(len(text).to_bytes(8, "big") + text for text in texts)
            ).digest()
    except ValueError:
        raise DataError(
            f"'{owner}' has id columns of different lengths. Take them from one table."
        ) from None


WITHOUT = {
    "text": "differences in capitals, spaces and Unicode form",
    "code": "hyphens, dots, slashes and spaces",
    "digits": "leading zeros",
}
"""What each rule for comparing ids takes away, from the mildest rule to the boldest."""
_LETTER = re.compile(r"[^\W\d_]")


def matches_by_rule(*tables: Collection[str]) -> dict[str, int]:
    """How many ids all these tables have in common, by the rule that compares them.

    The rules are those of [alignment.rules]: "exact" as ids are written, and the ones
    of `WITHOUT`. Ids of one table that a rule makes equal match nothing by it, for they
    may be different people. The rule "digits" is left out where an id has letters,
    which it would ignore.

    Args:
        tables: The ids of two or more tables, as they are written. All must be here:
            organisations that may not show each other ids cannot count this.
    """
    rules = ["exact", *WITHOUT]
    if any(_LETTER.search(text) for texts in tables for text in texts):
        rules.remove("digits")
    return {rule: len(_common(tables, RULES[rule])) for rule in rules}


def _common(
    tables: Iterable[Collection[str]], write: Callable[[str], str]
) -> frozenset[str]:
    """The ids in all tables, once written so; those twice in a table are left out."""
    held = []
    for texts in tables:
        counts = Counter(map(write, frozenset(texts)))
        held.append(frozenset(text for text, count in counts.items() if count == 1))
    return frozenset.intersection(*held) - {""}


def more_by_rule(matches: Mapping[str, int], ids: int, column: str) -> str:
    """Advice to compare ids by a rule, as in `503 more would match without leading
    zeros: kunde = "digits" under [alignment.rules]`; "" where no rule finds more.

    Args:
        matches: What `matches_by_rule` counted; empty where it was not asked.
        ids: How many ids the smallest table has: a few more matches may be chance.
        column: The id column, as [data] id calls it.
    """
    if not matches:
        return ""
    gains = {rule: matches.get(rule, 0) - matches["exact"] for rule in WITHOUT}
    best = max(gains, key=gains.__getitem__)  # of equals the first, which is mildest
    if gains[best] < max(WORTH_TELLING * ids, 1):
        return ""
    setting = f'{column} = "{best}" under [alignment.rules]'
    if best == "text":
        setting = 'ids = "normalised" under [alignment]'
    return f"{gains[best]:,} more would match without {WITHOUT[best]}: {setting}."


def zeros_in_front(owner: str, ids: Collection[str], column: str) -> str:
    """Advice to an owner some of whose ids begin with zeros, which others may leave
    out; "" where none does.

    It follows from the owner's own ids alone, so that it can be told where tables are
    on several machines.
    """
    count = sum(text.startswith("0") and text.isdigit() for text in ids)
    if not count:
        return ""
    return (
        f"'{owner}' has zeros in front of {count:,} of its {len(ids):,} ids. Rows of"
        " somebody who writes them without zeros do not match; to compare numbers"
        f' alone, agree on {column} = "digits" under [alignment.rules].'
    )


def with_normalised_ids(table: Table) -> Table:
    """The table with normalised ids, which then join rows, divide them and name their
    accounts."""
    ids = np.array([normalised(text) for text in table.ids.tolist()], dtype=np.str_)
    empty = int((ids == "").sum())
    if empty:
        raise DataError(
            f"'{table.owner}' has {empty} rows whose ids are empty once normalised."
            " Remove such rows, or name them."
        )
    again = len(ids) - len(np.unique(ids))
    if again:
        raise DataError(
            f"'{table.owner}' has {again} rows whose id is an earlier row's once"
            " normalised: they differ in capitals, spaces or Unicode form alone, and"
            ' an id must name one row. Keep one row per id, or set ids = "exact"'
            " under [alignment]."
        )
    return replace(table, packed=packed(ids))


def ids_of(table: Table) -> tuple[Ids, ...]:
    """The ids that are compared of a table: one list for each of its keys, or its ids
    where it has no keys."""
    if not table.keys:
        return (Ids.of(table.owner, [table.ids.tolist()]),)
    return tuple(Ids.of_texts(table.owner, texts) for texts in table.keys)


def shared(table: Table, rows_by_key: Sequence[NDArray[np.int64]]) -> Table:
    """The rows that some key matched, named after it, in the order of these names."""
    matched = matched_names(table, rows_by_key).taking(np.concatenate(rows_by_key))
    return matched.in_order(np.sort(matched.ids))


def matched_names(table: Table, rows_by_key: Sequence[NDArray[np.int64]]) -> Table:
    """The whole table, with the rows that a key matched named after it."""
    if not table.keys:
        return table
    names = [
        name_of(key, text)
        for key, rows in enumerate(rows_by_key)
        for text in table.keys[key][rows].tolist()
    ]
    return renamed(table, np.concatenate(rows_by_key), names)


def renamed(
    table: Table, rows: NDArray[np.int64], names: Sequence[str] | NDArray[np.str_]
) -> Table:
    """The whole table, with other names for these rows. No other row has such a name: a
    row is named after a key that it alone has, and a row with the same key would have
    been matched with it."""
    ids = table.ids.astype(object)
    ids[rows] = list(names)
    return replace(table, packed=packed(ids.astype(np.str_)), own=table.ids, keys=())


def read_ids(
    path: str | Path, *, owner: str, columns: Sequence[str], settings: AlignmentSettings
) -> Ids:
    """The ids in a .csv, .csv.gz or .parquet file, whose columns may have any names
    besides."""
    frame = read_columns(path, owner=owner, columns=columns)
    return Ids.of(owner, [frame[name] for name in columns], settings)
