"""The rows that a label owner asks for by their ids, to predict them: they may be new
since training."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from colonnade.alignment.ids import renamed, shared
from colonnade.alignment.keys import matched
from colonnade.datasets.preprocess import Labels, Preprocessor
from colonnade.datasets.table import Index, Table, packed, unpacked
from colonnade.errors import DataError
from colonnade.rows.holdings import (
    NOBODY,
    Columns,
    Holdings,
    Ids,
    LabelledRows,
    State,
    labelled_rows,
    own_names,
    read_tables,
    tables_of,
)
from colonnade.settings.federation_file import Settings
from colonnade.settings.sections import PartySettings

if TYPE_CHECKING:
    import pandas as pd


def rows_asked_for(
    settings: Settings,
    fitted: Mapping[str, State],
    ids: Sequence[str] | Ids | None,
    owner: str | None = None,
    frames: Mapping[str, pd.DataFrame] | None = None,
) -> AskedFor:
    """Collect the rows that a label owner is to predict, of the tables that settings
    name or of these frames: those of `ids`, each once and as all compare them, or every
    row that can be predicted. Parties bring the columns that they trained with; a label
    column is neither needed nor read."""
    trained = {
        n: tuple(c["name"] for c in s["columns"]["columns"])
        for n, s in fitted.items()
        if "columns" in s
    }
    no_label: dict[str, Any] = dict.fromkeys(("label", "test_ids", "weights"))
    bring = {
        n: replace(settings.parties.get(n, PartySettings()), columns=c, **no_label)
        for n, c in trained.items()
    }
    if frames is not None:
        given = {
            name: frame
            for name, frame in frames.items()
            if name not in fitted or name in bring
        }
        held = tables_of(replace(settings, parties=bring), given)
    else:
        there = {
            n: p
            for n, p in bring.items()
            if not settings.may_lack or (p.table and Path(p.table).exists())
        }
        held = read_tables(replace(settings, parties=there), fitted)
    held = called_alike(settings, held)
    if ids is None:
        join: Any = np.union1d if settings.may_lack else np.intersect1d
        ids = (
            reduce(join, [table.ids for table in held.values()])
            if held
            else np.array([], dtype=np.str_)
        )
        if not len(ids):
            raise DataError(
                "There is no row to predict: no id is in all tables of"
                f" {', '.join(map(repr, bring))}, who hold columns, or there is none."
                " Compare how ids are written."
            )
        if surplus := {
            name: len(table) - len(ids)
            for name, table in held.items()
            if len(table) > len(ids)
        }:
            left_out = ", ".join(
                f"{count:,} of '{name}'" for name, count in surplus.items()
            )
            warnings.warn(
                "Rows that not all parties hold cannot be predicted, and are left out:"
                f" {left_out}. To predict without a party, train with [federation]"
                ' on_missing = "skip".',
                stacklevel=2,
            )
    return AskedFor(settings, held, fitted, ids, owner)


def called_alike(settings: Settings, tables: Mapping[str, Table]) -> dict[str, Table]:
    """Give rows one name at all parties, where all tables are here to predict: that of
    the key that matches them, as in training; or, where rows differ, the label owner's.
    Tables of one key are called alike as they are."""
    if len(tables) < 2 or not all(table.keys for table in tables.values()):
        return dict(tables)
    if settings.rows_differ:
        owner = next(
            (
                name
                for name, party in settings.parties.items()
                if party.label is not None and name in tables
            ),
            "",
        )
        if not owner:
            return dict(tables)
        mine = tables[owner]
        called = {}
        for name, table in tables.items():
            both = matched({owner: mine.keys, name: table.keys})
            at = np.concatenate(both[name])
            names = mine.ids[np.concatenate(both[owner])]
            called[name] = mine if name == owner else renamed(table, at, names)
        return called
    rows = matched({name: table.keys for name, table in tables.items()})
    return {name: shared(table, rows[name]) for name, table in tables.items()}


class AskedFor:
    """The rows of these ids, all of one label owner (the first unless named), prepared
    as `Holdings.state_of` remembers: nothing is learned, and no labels are needed.
    `columns` are the tables of those with columns; they may hold rows that are new
    since training. Where settings say that rows may lack a party, it may hold some of
    the rows only, or have no table at all; but every row must be held by somebody. All
    that can be wrong with any of the rows is told here, before somebody is asked for
    the first."""

    def __init__(
        self,
        settings: Settings,
        columns: Mapping[str, Table],
        fitted: Mapping[str, State],
        ids: Sequence[str] | Ids,
        owner: str | None = None,
    ) -> None:
        self.settings = settings
        self.columns = columns
        self.may_lack = settings.may_lack
        self.owners = [name for name, state in fitted.items() if "labels" in state]
        self.asks = owner if owner in self.owners else self.owners[0]
        self.ids = ids = np.asarray(ids, dtype=np.str_)
        states = {
            name: state["columns"]
            for name, state in fitted.items()
            if "columns" in state
        }
        self.prepared = {
            name: Preprocessor.from_state(state) for name, state in states.items()
        }
        self.encoder = Labels.from_state(fitted[self.asks]["labels"])
        self.known_to = max(
            (int(state.get("known_to", 1)) for state in fitted.values()), default=1
        )
        self.ways: dict[str, dict[str, str]] = {}
        nobody = np.ones(len(ids), dtype=bool)
        for name, prepared in self.prepared.items():
            rows, held = self._rows(name, ids)
            self.ways[name] = prepared.check(columns[name], rows) if len(rows) else {}
            nobody &= ~held
        if nobody.any():
            raise DataError(
                f"{nobody.sum()} of {len(ids)} ids are in no party's table, such as"
                f" {str(ids[nobody][0])!r}."
            )

    def holdings(self, wanted: Sequence[str] | Ids) -> Holdings:
        """Say what organisations hold of the rows, or of some of them, in the order of
        these ids."""
        ids = np.asarray(wanted, dtype=np.str_)
        held_columns = {}
        away = {}
        for name, prepared in self.prepared.items():
            rows, held = self._rows(name, ids)
            own = None
            features = torch.zeros(0, len(prepared.names))
            if len(rows):
                mine = self.columns[name].taking(rows)
                features = prepared.transform(mine, self.ways[name])
                own = mine.own
            if not held.all():
                away[name] = torch.from_numpy(~held)
                known = features
                features = torch.zeros(len(ids), len(prepared.names))
                features[~away[name]] = known  # nobody is asked for a row that it lacks
                own = None if own is None else own_names(own, ids, ~away[name])
            held_columns[name] = Columns(features, prepared, own)
        asked = asked_by(self.settings, self.asks, self.owners, ids)
        return Holdings(
            held_columns,
            asked,
            packed(ids),
            self.encoder,
            self.known_to,
            self.settings.server,
            away,
        )

    def _rows(self, name: str, ids: Ids) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """Find the rows of a party's table that have these ids, and which of the ids
        they are."""
        if name in self.columns and not self.may_lack:
            return self.columns[name].rows_of(ids), np.ones(len(ids), dtype=bool)
        if name in self.columns:
            rows, held = self.columns[name].find(ids)
            return rows[held], held
        if self.may_lack:
            return np.zeros(0, dtype=np.int64), np.zeros(len(ids), dtype=bool)
        raise DataError(
            f"'{name}' took part in training, and there is no table of it. Give it:"
            f" frames={{{name!r}: frame}}, "
            f"or --table {name}=FILE. To predict without a party, train with"
            ' [federation] on_missing = "skip".'
        )


def asked_by(
    settings: Settings, owner: str, owners: Sequence[str], ids: Ids
) -> dict[str, LabelledRows]:
    """Describe rows that one label owner is to predict, and no rows of the others; no
    label is known."""
    every = torch.arange(len(ids))
    asks = labelled_rows(
        settings,
        owner,
        ids,
        {"predict": every},
        every,
        torch.zeros(len(ids), dtype=torch.int64),
    )
    nothing = {
        name: labelled_rows(settings, name, ids[:0], {}, NOBODY) for name in owners
    }
    return {name: asks if name == owner else other for name, other in nothing.items()}


def asked_for(
    ids: Sequence[str] | None,
    index: Index,
    whose: str,
    names_of: Callable[[list[str]], list[str]],
) -> tuple[Ids, Tensor]:
    """Give the ids to predict as they are spelled, or all known ones where none are
    given, and their row numbers. `names_of` says what rows are called that are spelled
    so."""
    if ids is None:
        return unpacked(index.packed), torch.arange(len(index))
    wanted = np.array(listed(ids), dtype=np.str_)
    rows, there = index.find(np.array(names_of(wanted.tolist())))
    if not there.all():
        absent = wanted[~there]
        raise DataError(
            f"{len(absent)} of {len(wanted)} ids are not among the {len(index)} rows"
            f" that {whose}, such as {str(absent[0])!r}. Predict ids that every party's"
            " table holds."
        )
    return wanted, torch.from_numpy(rows)


def each_once(settings: Settings, ids: Sequence[object]) -> list[str]:
    """List ids to predict once each, as all compare them: several spellings may name
    one row."""
    return list(dict.fromkeys(settings.names_of(listed(ids))))


def listed(ids: Sequence[object]) -> list[str]:
    """Give the ids to predict as text; there must be at least one."""
    if isinstance(ids, str):
        raise DataError(
            f"The ids to predict are a list; found the text {ids!r}. Write [{ids!r}]."
        )
    if not len(ids):
        raise DataError("There are no ids to predict. Give at least one.")
    return [str(name) for name in ids]
