"""The parties' tables as a federation's settings say: each from its own file or frame, under its own name of the id
column, with ids as all compare them; and which of their rows are common (`aligned`), or asked for (`rows_asked_for`).

A table where rows have several keys, are written in many ways, or have other tables beside them is read into memory
whole. Rows without any key are left out, which is said. Columns of keys are no features, unless `columns` names them.
"""

from __future__ import annotations

import csv
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from colonnade.alignment.ids import ids_of, matched_names, renamed, shared, with_normalised_ids
from colonnade.alignment.keys import Keyed, keyed, matched, written_in
from colonnade.alignment.settings import Key, in_words
from colonnade.core.checks import did_you_mean
from colonnade.datasets.progress import watched
from colonnade.datasets.table import Table, align, how_written, read_table, table_from_frame
from colonnade.datasets.table_files import ColumnRoles, check_present, dialect_of, read_columns, read_frame
from colonnade.errors import ConfigError, DataError
from colonnade.rows.groups import grouped_table, with_groups
from colonnade.rows.holdings import AskedFor, Crossed, Ids, State, listed
from colonnade.settings.federation_file import Settings
from colonnade.settings.sections import LabelOwnerSettings, PartySettings, place_of

if TYPE_CHECKING:
    import pandas as pd

Owner = PartySettings | LabelOwnerSettings
ROW = "the owner's name of a row"
PIECE = 65_536  # rows read at a time


def read_tables(settings: Settings) -> dict[str, Table]:
    """Read the tables of all that hold columns, and of the one label owner."""
    if not settings.parties:
        where = place_of(settings.section, "NAME")
        raise ConfigError(f"Nobody holds columns. Add {where} with table = ..., or [data] dataset = ...")
    return {name: read_own(settings, name) for name in settings.parties}


def read_labels(settings: Settings) -> dict[str, Table]:
    """Read the tables of several label owners."""
    return {name: read_own_labels(settings, name) for name in settings.label_owners}


def read_own(settings: Settings, name: str) -> Table:
    """Read the table of a party that holds columns, and perhaps the labels."""
    party = settings.parties[name]
    if party.table is None:
        raise ConfigError(
            f'{place_of(settings.section, name)} must name its table, as in table = "{name}.csv". '
            "A run that was made from data frames is loaded with them: colonnade.load(DIR, frames=...)."
        )
    return _table_of(settings, name, party, party.table)


def read_own_labels(settings: Settings, name: str) -> Table:
    """Read the ids and labels of one of several label owners, whatever else its file holds."""
    owner = settings.label_owners[name]
    for key, value, example in (("table", owner.table, f"{name}.csv"), ("label", owner.label, "diagnosis")):
        if value is None:
            raise ConfigError(f'[[label_owners]] {name!r} must name its {key}, as in {key} = "{example}".')
    return _table_of(settings, name, owner, str(owner.table))


def tables_of(settings: Settings, frames: Mapping[str, pd.DataFrame]) -> dict[str, Table]:
    """Do as `read_tables`, with data frames."""
    tables = {}
    for name, frame in frames.items():
        party = settings.parties.get(name)
        if party is None:
            there = ", ".join(map(repr, settings.parties))
            raise ConfigError(f"There is a frame for {name!r}, which is no party here; there are {there}.")
        tables[name] = _table_of(settings, name, party, frame)
    return tables


def with_tables(settings: Settings, tables: Mapping[str, str]) -> Settings:
    """Put these files in the place of those that the settings name."""
    given = dict(tables)
    parties = {name: replace(party, table=given.pop(name, party.table)) for name, party in settings.parties.items()}
    for name in given:
        there = f"{did_you_mean(name, list(parties))}; there are {', '.join(parties)}"
        raise ConfigError(f"There is a table for {name!r}, which is no party here{there}.")
    return replace(settings, parties=parties)


def labels_of(settings: Settings, frames: Mapping[str, pd.DataFrame]) -> dict[str, Table]:
    """Do as `read_labels`, with data frames."""
    return {name: _table_of(settings, name, settings.label_owners[name], frame) for name, frame in frames.items()}


def rows_asked_for(
    settings: Settings,
    fitted: Mapping[str, State],
    ids: Sequence[str] | Ids | None,
    owner: str | None = None,
    frames: Mapping[str, pd.DataFrame] | None = None,
) -> AskedFor:
    """Collect the rows that a label owner is to predict, of the tables that settings name or of these frames: those of
    `ids`, each once and as all compare them, or every row that can be predicted. Parties bring the columns that they
    trained with; a label column is neither needed nor read."""
    trained = {n: tuple(c["name"] for c in s["columns"]["columns"]) for n, s in fitted.items() if "columns" in s}
    no_label: dict[str, Any] = dict.fromkeys(("label", "test_ids", "weights"))
    bring = {n: replace(settings.parties.get(n, PartySettings()), columns=c, **no_label) for n, c in trained.items()}
    if frames is not None:
        given = {name: frame for name, frame in frames.items() if name not in fitted or name in bring}
        held = tables_of(replace(settings, parties=bring), given)
    else:
        there = {n: p for n, p in bring.items() if not settings.may_lack or (p.table and Path(p.table).exists())}
        held = read_tables(replace(settings, parties=there))
    held = called_alike(settings, held)
    if ids is None:
        join: Any = np.union1d if settings.may_lack else np.intersect1d
        ids = reduce(join, [table.ids for table in held.values()]) if held else np.array([], dtype=np.str_)
        if not len(ids):
            raise DataError(
                f"There is no row to predict: no id is in all tables of {', '.join(map(repr, bring))}, who hold "
                "columns, or there is none. Compare how ids are written."
            )
        if surplus := {name: len(table) - len(ids) for name, table in held.items() if len(table) > len(ids)}:
            left_out = ", ".join(f"{count:,} of '{name}'" for name, count in surplus.items())
            warnings.warn(
                f"Rows that not all parties hold cannot be predicted, and are left out: {left_out}. To predict without "
                'a party, train with [federation] on_missing = "skip".',
                stacklevel=2,
            )
    return AskedFor(settings, held, fitted, ids, owner)


def each_once(settings: Settings, ids: Sequence[object]) -> list[str]:
    """List ids to predict once each, as all compare them: several spellings may name one row."""
    return list(dict.fromkeys(settings.names_of(listed(ids))))


def called_alike(settings: Settings, tables: Mapping[str, Table]) -> dict[str, Table]:
    """Give rows one name at all parties, where all tables are here to predict: that of the key that matches them, as in
    training; or, where rows differ, the label owner's. Tables of one key are called alike as they are."""
    if len(tables) < 2 or not all(table.keys for table in tables.values()):
        return dict(tables)
    if settings.rows_differ:
        owner = next(
            (name for name, party in settings.parties.items() if party.label is not None and name in tables), ""
        )
        if not owner:
            return dict(tables)
        mine, called = tables[owner], {}
        for name, table in tables.items():
            both = matched({owner: mine.keys, name: table.keys})
            at, names = np.concatenate(both[name]), mine.ids[np.concatenate(both[owner])]
            called[name] = mine if name == owner else renamed(table, at, names)
        return called
    rows = matched({name: table.keys for name, table in tables.items()})
    return {name: shared(table, rows[name]) for name, table in tables.items()}


def written_ids(path: Path, keys: Sequence[Key], whose: str) -> list[str]:
    """List the ids in a .csv or .parquet file as they are written, whatever else it holds. Where there are several
    keys, each row goes by the first that it has."""
    return [name for piece in written_pieces(path, keys, whose) for name in piece]


def written_pieces(path: Path, keys: Sequence[Key], whose: str) -> Iterator[list[str]]:
    """Do as `written_ids`, some rows at a time."""
    import pandas as pd
    import pyarrow.parquet

    first = " | ".join(keys[0])
    read: Any = pd.read_csv
    try:
        parquet = path.suffix == ".parquet"
        how = {} if parquet else {"dtype": str, "keep_default_na": False, **dialect_of(path)}
        names = pyarrow.parquet.read_schema(path).names if parquet else read(path, nrows=0, **how).columns
        there = [str(name) for name in names]
        known = [key for key in keys if all(column in there for column in key)]
        if not known or (first in there and len(keys[0]) > 1):  # as predictions have it
            known = [(first,)]
        columns = list(dict.fromkeys(column for key in known for column in key))
        check_present(columns, there, owner=whose.strip("'"), part="id")
        for frame in (
            (batch.to_pandas() for batch in pyarrow.parquet.ParquetFile(path).iter_batches(PIECE, columns=columns))
            if parquet
            else read(path, usecols=columns, chunksize=PIECE, **how)
        ):
            if known == [(first,)]:
                yield [str(cell) for cell in frame[columns[0]]]
            else:
                yield written_in({column: frame[column].tolist() for column in columns}, keys)
    except FileNotFoundError:
        raise DataError(f"{whose} names {path}, and there is no such file.") from None
    except (OSError, ValueError, csv.Error) as error:  # the reader's own text may quote cells
        raise DataError(f"{path} of {whose} cannot be read as CSV or Parquet ({type(error).__name__}).") from None


def _table_of(settings: Settings, name: str, owner: Owner, source: str | pd.DataFrame) -> Table:
    """Build an owner's table from its file or frame."""
    if not settings.plain_ids or (isinstance(owner, PartySettings) and owner.tables):
        return _people(settings, name, owner, source)
    how: Any = {"owner": name, "id": settings.id_of(owner), "label": owner.label, "columns": _columns_of(owner)}
    how["aside"] = settings.aside_of(owner)
    table = read_table(source, **how) if isinstance(source, str) else table_from_frame(source, **how)
    return table if settings.alignment.ids == "exact" else with_normalised_ids(table)


def _columns_of(owner: Owner) -> Sequence[str] | None:
    """List the features that an owner brings; one of several label owners brings none, whatever its file holds."""
    return owner.columns if isinstance(owner, PartySettings) else ()


def read_keyed(settings: Settings, name: str, owner: Owner, source: str | pd.DataFrame) -> Keyed:
    """Read the keys in an owner's file or frame, and no other column."""
    keys = settings.keys_of(owner)
    columns = list(dict.fromkeys(column for key in keys for column in key if column))
    if isinstance(source, str):
        frame = read_columns(source, owner=name, columns=columns)
    else:
        check_present(columns, [str(column) for column in source.columns], owner=name, part="id")
        frame = source
    cells = {column: frame[column].tolist() for column in columns}
    return keyed(name, cells, keys, settings.keys, settings.alignment)


def _people(settings: Settings, name: str, owner: Owner, source: str | pd.DataFrame) -> Table:
    """Build an owner's table whose rows have several keys, are written in many ways, or have tables beside them."""
    label, columns, groups = owner.label, _columns_of(owner), []
    aside, named = settings.aside_of(owner), [column for key in settings.keys_of(owner) for column in key if column]
    if isinstance(owner, PartySettings):
        where, id_column = place_of(settings.section, name), settings.id_of(owner)
        groups = [grouped_table(beside, given, where, id_column) for beside, given in owner.tables.items()]
    if isinstance(source, str):
        added = [column for group in groups for column in group.columns]
        own = None if columns is None else [column for column in columns if column not in added]
        if own == [] and label is None:  # its features are of other tables alone
            frame = read_columns(source, owner=name, columns=named[:1])
        else:
            frame = read_frame(source, ColumnRoles(name, named[0], label, own, aside))
        frame = with_groups(frame, source, name, groups)
    else:
        frame = with_groups(source.reset_index(drop=True), None, name, groups)
    known = read_keyed(settings, name, owner, source)
    held, every = np.flatnonzero(known.own != ""), " or ".join(f"'{in_words(key)}'" for key in settings.keys)
    if not len(held):
        raise DataError(f"'{name}' has no row with {every} that can be read. Compare how they are written.")
    if len(held) < len(known.own):
        warnings.warn(
            f"'{name}' has {len(known.own) - len(held):,} rows, of {len(known.own):,}, without any of {every} that is "
            "theirs alone and can be read. They are left out.",
            stacklevel=2,
        )
    beside = [column for column in (label, *aside.values()) if column is not None]
    chosen = list(columns) if columns is not None else [c for c in frame.columns if c not in (*named, *beside)]
    check_present(chosen, [str(column) for column in frame.columns], owner=name, part="feature")
    wanted = list(dict.fromkeys([*chosen, *beside]))
    chosen_rows = frame[wanted].iloc[held].assign(**{ROW: known.own[held]})
    table = table_from_frame(chosen_rows, owner=name, id=ROW, label=label, columns=chosen, aside=aside)
    return replace(table, keys=tuple(texts[held] for texts in known.texts)) if len(settings.keys) > 1 else table


def lost(known: Keyed, settings: Settings) -> dict[str, Any]:
    """Count the rows that no key can match, and for each key those that it cannot match, and why."""
    by_key: Mapping[str, Any] = {in_words(key): why for key, why in zip(settings.keys, known.lost, strict=True)}
    return {"without any key": int((known.own == "").sum()), "by key": by_key}


def the_one_labelled(settings: Settings, columns: Mapping[str, Table]) -> dict[str, Table]:
    """Find the table with labels among those with columns."""
    owners = [name for name, table in columns.items() if table.label is not None]
    if len(owners) != 1:
        named = ", ".join(map(repr, owners)) or "none"
        raise DataError(f"Exactly one party must name its label column (label = ...); found {named}.")
    if settings.data.align == "exact" and not settings.rows_differ:
        align(columns)  # that all hold the same ids
    return {owners[0]: columns[owners[0]]}


@dataclass
class Aligned:
    """Tables whose rows are called alike: each label owner's rows that train, and the columns of all."""

    rows: Mapping[str, Table]
    columns: Mapping[str, Table]
    crossed: Crossed
    is_told: bool = False  # whether a label owner must tell which rows these are: others cannot count them
    lacked: dict[str, Tensor] = field(default_factory=dict)  # by party, which of the rows it does not hold
    matched: dict[str, dict[str, int]] = field(default_factory=dict)  # by party, how many rows each key matched


def aligned(settings: Settings, columns: Mapping[str, Table], labelled: Mapping[str, Table]) -> Aligned:
    """Find the rows that parties have in common: all of them, or each with the label owner where rows differ."""
    crossed: Crossed = {}
    if settings.rows_differ:
        return _pairwise(settings, labelled, columns)
    if len(settings.keys) > 1 and len(columns) > 1:
        ((owner, table),) = labelled.items()
        tables = {**columns, owner: with_labels(table)}
        rows, crossed = _matched(settings, tables, owner)
        called = {name: matched_names(held, rows[name]) for name, held in tables.items()}  # as all call rows
        return Aligned({owner: shared(tables[owner], rows[owner])}, called, crossed)
    common = {name: _in_common_with(settings, name, table, columns, crossed) for name, table in labelled.items()}
    some_lack_labels = any(len(common[name]) < len(table) for name, table in labelled.items())
    return Aligned(common, columns, crossed, some_lack_labels)


def _in_common_with(
    settings: Settings, owner: str, table: Table, columns: Mapping[str, Table], crossed: Crossed
) -> Table:
    """Keep a label owner's rows that all who hold columns hold too and that have a label, in the agreed order: sorted
    by id. `crossed` grows by what crossed to find them."""
    if settings.data.align == "private":
        others = {name: held for name, held in columns.items() if name != owner}
        table = with_labels(table)  # first: nobody need know of the others
        if owner in columns:  # its own tables it compares by itself
            table = table.in_order(np.intersect1d(table.ids, columns[owner].ids))
        if others:
            in_party_order = {name: table if name == owner else held for name, held in columns.items()}
            common, entries = in_common(settings, {owner: table} | in_party_order, owner)
            table = common[owner]
            _add(crossed, entries)
        if not len(table):
            raise DataError(f"'{owner}' has no id in common with its own columns. Compare how its ids are written.")
    table = with_labels(table)
    return table.in_order(np.sort(table.ids))


def with_labels(table: Table) -> Table:
    """Keep the rows that have a label, and say how many have none."""
    labelled = table.labelled()
    if not len(labelled):
        raise DataError(f"'{table.owner}' has no label in any of its {len(table):,} rows. Check the label column.")
    if len(labelled) < len(table):
        column = str(label_of(table).name)
        warnings.warn(
            f"'{table.owner}' has {len(table) - len(labelled):,} rows without a label in {column!r}, of "
            f"{len(table):,}. They are left out.",
            stacklevel=2,
        )
    return labelled


def _pairwise(settings: Settings, labelled: Mapping[str, Table], columns: Mapping[str, Table]) -> Aligned:
    """Compare each partner with the label owner alone, so that nobody learns what another partner holds. All rows of
    the label owner are kept in the order of their ids, but those of which nobody holds a column; columns have rows
    called as the label owner does."""
    ((owner, table),) = labelled.items()
    table = with_labels(table)  # first: nobody need know of the others
    if owner in columns:
        table = table.in_order(np.intersect1d(table.ids, columns[owner].ids))
    held, crossed = dict[str, Ids](), Crossed()
    called, matched = dict(columns), {}
    for name, other in columns.items():
        if name == owner:
            continue
        if settings.data.align == "private":
            rows, entries = _matched(settings, {owner: table, name: other}, owner, may_be_none=True)
            held[name] = table.ids[np.concatenate(rows[owner])]
            if other.keys:
                called[name] = renamed(other, np.concatenate(rows[name]), held[name])
                matched[name] = by_key(settings, rows[name])
            _add(crossed, entries)
        else:
            held[name] = np.intersect1d(table.ids, other.ids)
    by_itself = not held or (owner in columns and bool(columns[owner].columns))
    ids = table.ids if by_itself else np.concatenate(list(held.values()))
    if not len(ids):
        raise DataError(f"No row of '{owner}' is held by anybody with columns. Compare how ids are written.")
    table = table.in_order(np.unique(ids))
    lacks = {name: torch.from_numpy(~np.isin(table.ids, known)) for name, known in held.items()}
    lacked = {name: mask for name, mask in lacks.items() if bool(mask.any())}
    return Aligned({owner: table}, called, crossed, True, lacked, matched)


def in_common(settings: Settings, tables: Mapping[str, Table], driver: str) -> tuple[dict[str, Table], Crossed]:
    """Keep the rows whose ids all parties hold, and give what crossed to find them."""
    rows, entries = _matched(settings, tables, driver)
    return {name: shared(table, rows[name]) for name, table in tables.items()}, entries


def _matched(
    settings: Settings, tables: Mapping[str, Table], driver: str, *, may_be_none: bool = False
) -> tuple[dict[str, list[NDArray[np.int64]]], Crossed]:
    """Find each party's rows that all hold, by each key, without anybody showing the others the rest; and give what
    crossed for it. As long as ids and settings are the same, they are found once (`alignment.kept`)."""
    from colonnade.alignment import align_here, kept  # and no protocol where rows are found by their names

    settings.alignment.check_trains()
    ids = {name: ids_of(table) for name, table in tables.items()}
    through_bytes = settings.engine.through_bytes
    key, every = None, {}
    if len(settings.keys) == 1:
        every = {name: key_ids for name, (key_ids,) in ids.items()}
        key = kept.key_of(every, settings.alignment, driver, through_bytes=through_bytes)
    known = kept.look_up(key, every)
    if known is not None:
        rows, entries = known
        return {name: [rows[name]] for name in tables}, entries
    with watched(f"aligning {' and '.join(tables)}") as watch:
        aligned = align_here(ids, settings.alignment, driver=driver, through_bytes=through_bytes, watch=watch)
    if not aligned.found.common and not may_be_none:
        cure = how_written({name: frozenset(table.ids.tolist()) for name, table in tables.items()})
        raise DataError(
            f"No id is held by all parties, so there is no row to train on. {cure or 'Compare how ids are written.'}"
        )
    entries = {name: book.entries for name, book in aligned.ledgers.items()}
    kept.keep(key, aligned.rows, entries)
    return aligned.by_key, entries


def _add(crossed: Crossed, entries: Crossed) -> None:
    for party, noted in entries.items():
        crossed.setdefault(party, []).extend(noted)


def by_key(settings: Settings, rows_by_key: Sequence[NDArray[np.int64]]) -> dict[str, int]:
    """Count the rows that each key matched."""
    return {in_words(key): len(rows) for key, rows in zip(settings.keys, rows_by_key, strict=True)}


def label_of(table: Table) -> Any:
    assert table.label is not None
    return table.label
