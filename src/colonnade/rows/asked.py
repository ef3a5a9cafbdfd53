"""Rows that are asked for, of tables that are here: prepared as training learned it, all at once or some at a time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from colonnade.errors import DataError
from colonnade.rows.holdings import Columns, Holdings, Ids, State, asked_by, own_names
from colonnade.settings.federation_file import Settings
from colonnade.settings.owners import PartySettings

if TYPE_CHECKING:
    from colonnade.datasets.table import Table

NO_LABEL: dict[str, Any] = dict.fromkeys(("label", "test_ids", "weights"))
"""What an owner's part says of labels, left out."""


class AskedFor:
    """The rows of these ids, all of one label owner (the first unless named), prepared as `Holdings.state_of`
    remembers: nothing is learned, and no labels are needed.

    `columns` are the tables of those with columns; they may hold rows that are new since training. With `may_lack` a
    party may hold some of the rows only, or have no table at all; but every row must be held by somebody. All that can
    be wrong with any of the rows is told here, before somebody is asked for the first of them.
    """

    def __init__(
        self,
        settings: Settings,
        columns: Mapping[str, Table],
        fitted: Mapping[str, State],
        ids: Sequence[str] | Ids,
        owner: str | None = None,
        *,
        may_lack: bool = False,
    ) -> None:
        from colonnade.datasets.preprocess import Labels, Preprocessor

        self.settings, self.columns, self.may_lack = settings, columns, may_lack
        self.owners = [name for name, state in fitted.items() if "labels" in state]
        self.asks = owner or self.owners[0]
        ids = np.asarray(ids, dtype=np.str_)
        self.prepared = {
            name: Preprocessor.from_state(state["columns"]) for name, state in fitted.items() if "columns" in state
        }
        self.encoder = Labels.from_state(fitted[self.asks]["labels"])
        self.known_to = max((int(state.get("known_to", 1)) for state in fitted.values()), default=1)
        self.ways: dict[str, dict[str, str]] = {}
        nobody = np.ones(len(ids), dtype=bool)
        for name, prepared in self.prepared.items():
            rows, held = self._rows(name, ids)
            self.ways[name] = prepared.check(columns[name], rows) if len(rows) else {}
            nobody &= ~held
        if nobody.any():
            raise DataError(
                f"{nobody.sum()} of {len(ids)} ids are in no party's table, such as {str(ids[nobody][0])!r}."
            )

    def holdings(self, some: Sequence[str] | Ids) -> Holdings:
        """What organisations hold of the rows, or of some of them, in the order of these ids."""
        ids = np.asarray(some, dtype=np.str_)
        held_columns, away = {}, {}
        for name, prepared in self.prepared.items():
            rows, held = self._rows(name, ids)
            own, features = None, torch.zeros(0, len(prepared.names))
            if len(rows):
                mine = self.columns[name].taking(rows)
                features, own = prepared.transform(mine, self.ways[name]), mine.own
            if not held.all():
                away[name] = torch.from_numpy(~held)
                known, features = features, torch.zeros(len(ids), len(prepared.names))
                features[~away[name]] = known  # nobody is asked for a row that it lacks
                own = None if own is None else own_names(own, ids, ~away[name])
            held_columns[name] = Columns(features, prepared, own)
        asked = asked_by(self.settings, self.asks, self.owners, ids)
        return Holdings(held_columns, asked, ids, self.encoder, self.known_to, self.settings.server, away)

    def _rows(self, name: str, ids: Ids) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """The rows of a party's table that have these ids, and which of the ids they are."""
        if name in self.columns and not self.may_lack:
            return self.columns[name].rows_of(ids), np.ones(len(ids), dtype=bool)
        if name in self.columns:
            rows, held = self.columns[name].find(ids)
            return rows[held], held
        if self.may_lack:
            return np.zeros(0, dtype=np.int64), np.zeros(len(ids), dtype=bool)
        raise DataError(
            f"'{name}' took part in training, and there is no table of it. Give it: frames={{{name!r}: frame}}, "
            f'or --table {name}=FILE. To predict without a party, train with [federation] on_missing = "skip".'
        )


def bringing(settings: Settings, fitted: Mapping[str, State]) -> dict[str, PartySettings]:
    """Those who hold columns, to predict: they bring just these, and a label column is neither needed nor read."""
    columns = {n: tuple(c["name"] for c in s["columns"]["columns"]) for n, s in fitted.items() if "columns" in s}
    return {
        name: replace(settings.parties.get(name, PartySettings()), **NO_LABEL, columns=names)
        for name, names in columns.items()
    }


def called_alike(settings: Settings, tables: Mapping[str, Table]) -> dict[str, Table]:
    """To predict where all tables are here: rows that a key matches are called by it at all, as they were in training;
    where rows differ, as the label owner calls them. Tables of one key are called alike as they are."""
    from colonnade.alignment.ids import renamed, shared
    from colonnade.alignment.keys import matched

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
    found = matched({name: table.keys for name, table in tables.items()})
    return {name: shared(table, found[name]) for name, table in tables.items()}
