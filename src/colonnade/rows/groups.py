"""Tables that are read into memory whole: where rows have several keys, are written in
many ways, or have other tables beside them. Rows without any key are left out, which is
said. Columns of keys are no features, unless `columns` names them.

Of a table with many rows for one person, such as purchases, its owner makes one row
before anything is sent:

    [tables.purchases]                                 in its party.toml; in a file for one machine
    table = "purchases.csv"                            [parties.shop.tables.purchases]
    by = "customer_no"                                 whose row it is, as a column of the party's own table has it
    order = "time"                                     of a person's rows the last by this column; else by the file
    group = { amount = ["count", "sum", "mean", "last"], channel = "last" }

What comes of it are columns of the party's table, such as `purchases.amount.sum`. Who
has no row there has a count and a sum of 0, and a gap in the others.
"""

from __future__ import annotations

import warnings
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from colonnade.alignment.keys import Keyed, keyed
from colonnade.datasets import readings
from colonnade.datasets.table import Table, table_from_frame
from colonnade.datasets.table_files import (
    ColumnRoles,
    check_present,
    read_columns,
    read_frame,
    without_gaps,
)
from colonnade.errors import ConfigError, DataError
from colonnade.settings.alignment import in_words
from colonnade.settings.federation_file import Settings
from colonnade.settings.schema import place_of
from colonnade.settings.sections import LabelOwnerSettings, PartySettings

if TYPE_CHECKING:
    import pandas as pd

Owner = PartySettings | LabelOwnerSettings
ROW = "the owner's name of a row"
WAYS = ("count", "sum", "mean", "last")


@dataclass(frozen=True)
class GroupedTable:
    """One of an owner's tables with many rows for one person."""

    name: str
    table: str
    by: str
    group: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    order: str | None = None

    @property
    def columns(self) -> list[str]:
        """The columns that it adds to the owner's own table."""
        return [
            f"{self.name}.{column}.{way}"
            for column, ways in self.group.items()
            for way in ways
        ]


def grouped_table(name: str, given: Any, where: str, id_column: str) -> GroupedTable:
    """[tables.NAME] of one owner, checked; `by` is its id column where it does not say."""
    where = f"{where} [tables.{name}]"
    known = ("table", "by", "order", "group")
    if not isinstance(given, Mapping) or not isinstance(given.get("table"), str):
        raise ConfigError(
            f'{where} must be a table with table = "{name}.csv" and group = {{...}};'
            f" found {given!r}."
        )
    for key in given:
        if key not in known:
            raise ConfigError(
                f"{where} has no setting {key!r}. It knows: {', '.join(known)}."
            )
    by = given.get("by", id_column)
    order = given.get("order")
    group = given.get("group")
    for key, value in (("by", by), ("order", order)):
        if not isinstance(value, str | None):
            raise ConfigError(
                f"{where}: {key} must be text, the name of a column; found {value!r}."
            )
    if not isinstance(group, Mapping) or not group:
        raise ConfigError(
            f"{where}: group must say what becomes of which column, as in {{ amount ="
            ' ["sum", "mean"] }.'
        )
    ways = {
        column: tuple(way) if isinstance(way, list | tuple) else (way,)
        for column, way in group.items()
    }
    for column, chosen in ways.items():
        if not chosen or any(way not in WAYS for way in chosen):
            raise ConfigError(
                f"{where}: group of {column!r} must be of {', '.join(WAYS)}; found"
                f" {group[column]!r}."
            )
    return GroupedTable(name, given["table"], by, ways, order)


def with_groups(
    frame: pd.DataFrame,
    path: str | None,
    owner: str,
    tables: Sequence[GroupedTable],
    gaps: Sequence[str] = (),
) -> pd.DataFrame:
    """An owner's rows with the columns that its other tables make.

    Args:
        frame: The rows, without these columns.
        path: The file of the rows; None where they were a frame.
        owner: Whose rows they are.
        tables: The owner's other tables.
        gaps: The owner's own words for a gap.
    """
    for table in tables:
        if path is not None:
            whose = read_columns(path, owner=owner, columns=[table.by])[
                table.by
            ].astype(str)
        elif table.by in frame:
            whose = frame[table.by].astype(str)
        else:
            raise DataError(
                f"'{owner}' has no column {table.by!r}, by which '{table.name}' belongs"
                " to its rows. Name another."
            )
        frame = frame.assign(**_grouped(table, owner, whose, gaps))
    return frame


def _grouped(
    table: GroupedTable, owner: str, whose: pd.Series[Any], gaps: Sequence[str]
) -> dict[str, Any]:
    """The columns that an owner's other table makes, for the rows of `whose`."""
    import pandas as pd

    wanted = list(
        dict.fromkeys([*table.group, *([] if table.order is None else [table.order])])
    )
    beside = [column for column in wanted if column != table.by]
    roles = ColumnRoles(owner, table.by, columns=beside, gaps=gaps)
    rows = without_gaps(read_frame(table.table, roles), roles)
    if table.order is not None:
        rows = rows.iloc[
            _as_numbers(rows[table.order], owner, table.name).argsort(kind="stable")
        ]
    by = rows[table.by].astype(str).to_numpy()
    columns: dict[str, Any] = {}
    for column, ways in table.group.items():
        for way in ways:
            cells = rows[column]
            if way in ("sum", "mean"):
                cells = pd.Series(
                    _as_numbers(cells, owner, table.name), index=rows.index
                )
            # one of WAYS
            by_person: Any = getattr(cells.groupby(by, sort=False), way)()
            there = whose.map(by_person)
            columns[f"{table.name}.{column}.{way}"] = (
                there.fillna(0) if way in ("count", "sum") else there
            ).to_numpy()
    return columns


def _as_numbers(cells: pd.Series[Any], owner: str, table: str) -> Any:
    """Read cells as numbers or times, also where they are text."""
    import pandas as pd

    if pd.api.types.is_numeric_dtype(cells.dtype):
        return cells.to_numpy(dtype=float, na_value=float("nan"))
    way = readings.recognise(cells)
    if odd := readings.odd_words(cells, way):
        warnings.warn(
            f"'{owner}' has words among the numbers of {str(cells.name)!r} in its table"
            f" '{table}', and they are read as gaps: {odd}.",
            stacklevel=2,
        )
    if way is None:
        raise DataError(
            f"'{owner}' has a table '{table}' whose column {str(cells.name)!r} holds no"
            ' numbers or times, and they are summed or ordered by. Take "count" or'
            ' "last" of it, or write numbers.'
        )
    return readings.read(cells, way)


def people(
    settings: Settings,
    name: str,
    owner: Owner,
    source: str | pd.DataFrame,
    columns: Sequence[str] | None,
    as_text: Collection[str] = (),
) -> Table:
    """Build an owner's table whose rows have several keys, are written in many ways, or
    have tables beside them."""
    label = owner.label
    groups = []
    aside = settings.aside_of(owner)
    named = [column for key in settings.keys_of(owner) for column in key if column]
    if isinstance(owner, PartySettings):
        where = place_of(settings.section, name)
        id_column = settings.id_of(owner)
        groups = [
            grouped_table(beside, given, where, id_column)
            for beside, given in owner.tables.items()
        ]
    if isinstance(source, str):
        added = [column for group in groups for column in group.columns]
        own = (
            None
            if columns is None
            else [column for column in columns if column not in added]
        )
        if own == [] and label is None:  # its features are of other tables alone
            frame = read_columns(source, owner=name, columns=named[:1])
        else:
            roles = ColumnRoles(name, named[0], label, own, aside, as_text=as_text)
            frame = read_frame(source, roles)
        frame = with_groups(frame, source, name, groups, owner.gaps)
    else:
        frame = source.reset_index(drop=True)
        frame = with_groups(frame, None, name, groups, owner.gaps)
    known = read_keyed(settings, name, owner, source)
    held = np.flatnonzero(known.own != "")
    every = " or ".join(f"'{in_words(key)}'" for key in settings.keys)
    if not len(held):
        raise DataError(
            f"'{name}' has no row with {every} that can be read. Compare how they are"
            " written."
        )
    if len(held) < len(known.own):
        warnings.warn(
            f"'{name}' has {len(known.own) - len(held):,} rows, of {len(known.own):,},"
            f" without any of {every} that is theirs alone and can be read. They are"
            " left out.",
            stacklevel=2,
        )
    beside = [column for column in (label, *aside.values()) if column is not None]
    chosen = (
        list(columns)
        if columns is not None
        else [c for c in frame.columns if c not in (*named, *beside)]
    )
    check_present(
        chosen, [str(column) for column in frame.columns], owner=name, part="feature"
    )
    wanted = list(dict.fromkeys([*chosen, *beside]))
    chosen_rows = frame[wanted].iloc[held].assign(**{ROW: known.own[held]})
    table = table_from_frame(
        chosen_rows,
        owner=name,
        id=ROW,
        label=label,
        columns=chosen,
        aside=aside,
        gaps=owner.gaps,
    )
    return (
        replace(table, keys=tuple(texts[held] for texts in known.texts))
        if len(settings.keys) > 1
        else table
    )


def read_keyed(
    settings: Settings, name: str, owner: Owner, source: str | pd.DataFrame
) -> Keyed:
    """Read the keys in an owner's file or frame, and no other column."""
    keys = settings.keys_of(owner)
    columns = list(dict.fromkeys(column for key in keys for column in key if column))
    if isinstance(source, str):
        frame = read_columns(source, owner=name, columns=columns)
    else:
        check_present(
            columns, [str(column) for column in source.columns], owner=name, part="id"
        )
        frame = source
    cells = {column: frame[column].tolist() for column in columns}
    return keyed(name, cells, keys, settings.keys, settings.alignment)


def lost(known: Keyed, settings: Settings) -> dict[str, Any]:
    """Count the rows that no key can match, and for each key those that it cannot
    match, and why."""
    by_key: Mapping[str, Any] = {
        in_words(key): why for key, why in zip(settings.keys, known.lost, strict=True)
    }
    return {"without any key": int((known.own == "").sum()), "by key": by_key}
