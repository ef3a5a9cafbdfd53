"""Rows that parties hold in common, found without anybody showing the others the rest."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from colonnade.alignment.ids import (
    ids_of,
    matches_by_rule,
    more_by_rule,
    renamed,
    shared,
)
from colonnade.datasets.progress import watched
from colonnade.datasets.table import Table, how_written
from colonnade.errors import DataError
from colonnade.rows.holdings import Crossed, Ids
from colonnade.settings.alignment import in_words
from colonnade.settings.federation_file import Settings

FEW_IDS = 200_000
"""Ids in all tables up to which trying every rule takes a moment."""


@dataclass
class Aligned:
    """Tables whose rows are called alike: each label owner's rows that train, and the
    columns of all."""

    rows: Mapping[str, Table]
    columns: Mapping[str, Table]
    crossed: Crossed
    # whether a label owner must tell which rows these are: others cannot count them
    is_told: bool = False
    # by party, which of the rows it does not hold
    lacked: dict[str, Tensor] = field(default_factory=dict)
    # by party, how many rows each key matched
    matched: dict[str, dict[str, int]] = field(default_factory=dict)


def match(
    settings: Settings,
    tables: Mapping[str, Table],
    driver: str,
    *,
    may_be_none: bool = False,
) -> tuple[dict[str, list[NDArray[np.int64]]], Crossed]:
    """Find each party's rows that all hold, by each key, without anybody showing the
    others the rest; and give what crossed for it. As long as ids and settings are the
    same, they are found once (`alignment.kept`)."""
    # and no protocol where rows are found by their names
    from colonnade.alignment import align_here, kept

    settings.alignment.check_trains()
    ids = {name: ids_of(table) for name, table in tables.items()}
    through_bytes = settings.engine.through_bytes
    key = None
    every = {}
    if len(settings.keys) == 1:
        every = {name: key_ids for name, (key_ids,) in ids.items()}
        key = kept.key_of(
            every, settings.alignment, driver, through_bytes=through_bytes
        )
    known = kept.look_up(key, every)
    if known is None or sum(map(len, tables.values())) <= FEW_IDS:
        _tell_of_more(settings, tables)
    if known is not None:
        rows, entries = known
        return {name: [rows[name]] for name in tables}, entries
    with watched(f"aligning {' and '.join(tables)}") as watch:
        aligned = align_here(
            ids,
            settings.alignment,
            driver=driver,
            through_bytes=through_bytes,
            watch=watch,
        )
    if not aligned.found.common and not may_be_none:
        raise none_in_common(
            {name: frozenset(table.ids.tolist()) for name, table in tables.items()}
        )
    entries = {name: book.entries for name, book in aligned.ledgers.items()}
    kept.keep(key, aligned.rows, entries)
    return aligned.by_key, entries


def _tell_of_more(settings: Settings, tables: Mapping[str, Table]) -> None:
    """Warn where more rows would match if ids were compared by a rule. All tables are in
    this process, so nobody else is told anything."""
    if not settings.plain_ids or settings.alignment.ids != "exact":
        return
    ids = [table.ids.tolist() for table in tables.values()]
    smallest = min(map(len, ids))
    matches = matches_by_rule(*ids)
    # that none matches is an error, which says more
    if matches["exact"] and (
        advice := more_by_rule(matches, smallest, settings.keys[0][0])
    ):
        warnings.warn(
            f"{matches['exact']:,} ids are common to {' and '.join(tables)}. {advice}",
            stacklevel=2,
        )


def none_in_common(ids: Mapping[str, frozenset[str]]) -> DataError:
    """The error where no row is in all tables, with how each writes its ids."""
    cure = (
        how_written(ids) if all(ids.values()) else ""
    ) or "Compare how ids are written."
    return DataError(
        f"No id is held by all of {', '.join(map(repr, ids))}, so there is no row to"
        f" train on. {cure}"
    )


def in_common(
    settings: Settings, tables: Mapping[str, Table], driver: str
) -> tuple[dict[str, Table], Crossed]:
    """Keep the rows whose ids all parties hold, and give what crossed to find them."""
    rows, entries = match(settings, tables, driver)
    return {name: shared(table, rows[name]) for name, table in tables.items()}, entries


def pairwise(
    settings: Settings, labelled: Mapping[str, Table], columns: Mapping[str, Table]
) -> Aligned:
    """Compare each partner with the label owner alone, so that nobody learns what
    another partner holds. All rows of the label owner are kept in the order of their
    ids, but those of which nobody holds a column; columns have rows called as the label
    owner does."""
    ((owner, table),) = labelled.items()
    if owner in columns:
        table = table.in_order(np.intersect1d(table.ids, columns[owner].ids))
    held = dict[str, Ids]()
    crossed = Crossed()
    called = dict(columns)
    matched = {}
    for name, other in columns.items():
        if name == owner:
            continue
        if settings.data.align == "private":
            rows, entries = match(
                settings, {owner: table, name: other}, owner, may_be_none=True
            )
            held[name] = table.ids[np.concatenate(rows[owner])]
            if other.keys:
                called[name] = renamed(other, np.concatenate(rows[name]), held[name])
                matched[name] = by_key(settings, rows[name])
            add_to(crossed, entries)
        else:
            held[name] = np.intersect1d(table.ids, other.ids)
    by_itself = not held or (owner in columns and bool(columns[owner].columns))
    ids = table.ids if by_itself else np.concatenate(list(held.values()))
    if not len(ids):
        raise DataError(
            f"No row of '{owner}' is held by anybody with columns. Compare how ids are"
            " written."
        )
    table = table.in_order(np.unique(ids))
    lacks = {
        name: torch.from_numpy(~np.isin(table.ids, known))
        for name, known in held.items()
    }
    lacked = {name: mask for name, mask in lacks.items() if bool(mask.any())}
    return Aligned({owner: table}, called, crossed, True, lacked, matched)


def add_to(crossed: Crossed, entries: Crossed) -> None:
    """Add what crossed to what each party noted before."""
    for party, noted in entries.items():
        crossed.setdefault(party, []).extend(noted)


def by_key(
    settings: Settings, rows_by_key: Sequence[NDArray[np.int64]]
) -> dict[str, int]:
    """Count the rows that each key matched."""
    return {
        in_words(key): len(rows)
        for key, rows in zip(settings.keys, rows_by_key, strict=True)
    }
