"""Tables with many rows for one person, such as purchases: their owner makes one row of them before anything is sent.

    [tables.purchases]                                 in its party.toml; in a file for one machine
    table = "purchases.csv"                            [parties.shop.tables.purchases]
    by = "customer_no"                                 whose row it is, as a column of the party's own table has it
    order = "time"                                     of a person's rows the last by this column; else by the file
    group = { amount = ["count", "sum", "mean", "last"], channel = "last" }

What comes of it are columns of the party's table, such as `purchases.amount.sum`. Who has no row there has a count and
a sum of 0, and a gap in the others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from colonnade.datasets import readings
from colonnade.datasets.table_files import ColumnRoles, read_columns, read_frame
from colonnade.errors import ConfigError, DataError

if TYPE_CHECKING:
    import pandas as pd

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
        return [f"{self.name}.{column}.{way}" for column, ways in self.group.items() for way in ways]


def grouped_table(name: str, given: Any, where: str, id_column: str) -> GroupedTable:
    """[tables.NAME] of one owner, checked; `by` is its id column where it does not say."""
    where, known = f"{where} [tables.{name}]", ("table", "by", "order", "group")
    if not isinstance(given, Mapping) or not isinstance(given.get("table"), str):
        raise ConfigError(f'{where} must be a table with table = "{name}.csv" and group = {{...}}; found {given!r}.')
    for key in given:
        if key not in known:
            raise ConfigError(f"{where} has no setting {key!r}. It knows: {', '.join(known)}.")
    by, order, group = given.get("by", id_column), given.get("order"), given.get("group")
    for key, value in (("by", by), ("order", order)):
        if not isinstance(value, str | None):
            raise ConfigError(f"{where}: {key} must be text, the name of a column; found {value!r}.")
    if not isinstance(group, Mapping) or not group:
        raise ConfigError(
            f'{where}: group must say what becomes of which column, as in {{ amount = ["sum", "mean"] }}.'
        )
    ways = {column: tuple(way) if isinstance(way, list | tuple) else (way,) for column, way in group.items()}
    for column, chosen in ways.items():
        if not chosen or any(way not in WAYS for way in chosen):
            raise ConfigError(f"{where}: group of {column!r} must be of {', '.join(WAYS)}; found {group[column]!r}.")
    return GroupedTable(name, given["table"], by, ways, order)


def with_groups(frame: pd.DataFrame, path: str | None, owner: str, tables: Sequence[GroupedTable]) -> pd.DataFrame:
    """An owner's rows with the columns that its other tables make."""
    for table in tables:
        if path is not None:
            whose = read_columns(path, owner=owner, columns=[table.by])[table.by].astype(str)
        elif table.by in frame:
            whose = frame[table.by].astype(str)
        else:
            raise DataError(
                f"'{owner}' has no column {table.by!r}, by which '{table.name}' belongs to its rows. Name another."
            )
        frame = frame.assign(**_grouped(table, owner, whose))
    return frame


def _grouped(table: GroupedTable, owner: str, whose: pd.Series[Any]) -> dict[str, Any]:
    import pandas as pd

    wanted = list(dict.fromkeys([*table.group, *([] if table.order is None else [table.order])]))
    rows = read_frame(table.table, ColumnRoles(owner, table.by, columns=[c for c in wanted if c != table.by]))
    if table.order is not None:
        rows = rows.iloc[_as_numbers(rows[table.order], owner, table.name).argsort(kind="stable")]
    by = rows[table.by].astype(str).to_numpy()
    columns: dict[str, Any] = {}
    for column, ways in table.group.items():
        for way in ways:
            cells = rows[column]
            if way in ("sum", "mean"):
                cells = pd.Series(_as_numbers(cells, owner, table.name), index=rows.index)
            by_person: Any = getattr(cells.groupby(by, sort=False), way)()  # one of WAYS
            there = whose.map(by_person)
            columns[f"{table.name}.{column}.{way}"] = (there.fillna(0) if way in ("count", "sum") else there).to_numpy()
    return columns


def _as_numbers(cells: pd.Series[Any], owner: str, table: str) -> Any:
    """Read cells as numbers or times, also where they are text."""
    import pandas as pd

    if pd.api.types.is_numeric_dtype(cells.dtype):
        return cells.to_numpy(dtype=float, na_value=float("nan"))
    way = readings.recognise(cells)
    if way is None:
        raise DataError(
            f"'{owner}' has a table '{table}' whose column {str(cells.name)!r} holds no numbers or times, and they are "
            'summed or ordered by. Take "count" or "last" of it, or write numbers.'
        )
    return readings.read(cells, way)
