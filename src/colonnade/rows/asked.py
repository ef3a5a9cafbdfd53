"""The rows that a label owner asks for by their ids, to predict them: they may be new
since training."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from colonnade.alignment.ids import renamed, shared
from colonnade.alignment.keys import matched, row_names
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
from colonnade.rows.missing import Missing, who_lacks
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
    *,
    strict: bool = False,
) -> AskedFor:
    """Collect the rows that a label owner is to predict.

    Parties bring the columns that they trained with; a label column is neither needed
    nor read.

    Args:
        settings: The settings of the run, which name the tables.
        fitted: By organisation, how its columns and labels became numbers in training.
        ids: The rows to predict, each once and as all compare them; by default every row
            that can be predicted.
        owner: The label owner that asks; by default the first.
        frames: The tables, where they are not those that the settings name.
        strict: Whether an id that cannot be predicted is an error.
    """
    tables = tables_to_predict(settings, fitted, frames)
    if ids is None:
        names = [name for name, state in fitted.items() if "columns" in state]
        ids = all_that_can_be_predicted(settings, tables, names)
    return AskedFor(settings, tables, fitted, ids, owner, strict=strict)


def tables_to_predict(
    settings: Settings,
    fitted: Mapping[str, State],
    frames: Mapping[str, pd.DataFrame] | None,
) -> dict[str, Table]:
    """The tables of those with columns, of frames or as the settings name them, with rows
    called alike. Where rows may lack a party, its table need not be there."""
    no_label: dict[str, Any] = dict.fromkeys(("label", "test_ids", "weights"))
    parties = {}
    for name, state in fitted.items():
        if "columns" in state:
            columns = tuple(column["name"] for column in state["columns"]["columns"])
            party = settings.parties.get(name, PartySettings())
            parties[name] = party.changed(columns=columns, **no_label)
    if frames is not None:
        without_labels = {
            name: frame
            for name, frame in frames.items()
            if name not in fitted or name in parties
        }
        tables = tables_of(replace(settings, parties=parties), without_labels)
    else:
        if settings.may_lack:
            parties = {
                name: party
                for name, party in parties.items()
                if party.table and Path(party.table).exists()
            }
        tables = read_tables(replace(settings, parties=parties), fitted)
    return called_alike(settings, tables)


def all_that_can_be_predicted(
    settings: Settings, tables: Mapping[str, Table], names: Sequence[str]
) -> Ids:
    """The ids that the tables of all these parties hold or, where rows may lack a party,
    that any of them does."""
    join: Any = np.union1d if settings.may_lack else np.intersect1d
    ids = np.array([], dtype=np.str_)
    if tables:
        ids = reduce(join, [table.ids for table in tables.values()])
    if not len(ids):
        raise DataError(
            "There is no row to predict: no id is in all tables of"
            f" {', '.join(map(repr, names))}, who hold columns, or there is none."
            " Compare how ids are written."
        )
    left_out = [
        f"{len(table) - len(ids):,} of '{name}'"
        for name, table in tables.items()
        if len(table) > len(ids)
    ]
    if left_out:
        warnings.warn(
            "Rows that not all parties hold cannot be predicted, and are left out:"
            f" {', '.join(left_out)}. To predict without a party, train with [federation]"
            ' on_missing = "skip".',
            stacklevel=3,
        )
    return ids


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
    """The rows of these ids that one label owner is to predict, prepared as
    `Holdings.state_of` remembers: nothing is learned, and no labels are needed.

    Rows may be new since training. Where settings say that rows may lack a party, it may
    hold some of them, or have no table at all, but somebody must hold each; else all must
    hold each. Those that cannot be predicted are `missing`, and not among `ids`. Whatever
    else is wrong with any of the rows is told here, before somebody is asked for the
    first.

    Args:
        settings: The settings of the run.
        columns: The tables of those with columns.
        fitted: By organisation, how its columns and labels became numbers.
        ids: The rows to predict, each once and as all compare them.
        owner: The label owner that asks; by default the first.
        strict: Whether an id that cannot be predicted is an error.
    """

    def __init__(
        self,
        settings: Settings,
        columns: Mapping[str, Table],
        fitted: Mapping[str, State],
        ids: Sequence[str] | Ids,
        owner: str | None = None,
        *,
        strict: bool = False,
    ) -> None:
        self.settings = settings
        self.columns = columns
        self.may_lack = settings.may_lack
        self.owners = [name for name, state in fitted.items() if "labels" in state]
        self.asks = owner if owner in self.owners else self.owners[0]
        self.prepared = {
            name: Preprocessor.from_state(state["columns"])
            for name, state in fitted.items()
            if "columns" in state
        }
        self.encoder = Labels.from_state(fitted[self.asks]["labels"])
        self.known_to = max(
            (int(state.get("known_to", 1)) for state in fitted.values()), default=1
        )
        self.ids, self.missing = self._found(np.asarray(ids, dtype=np.str_), strict)
        self.ways: dict[str, dict[str, str]] = {}
        for name, prepared in self.prepared.items():
            rows, _ = self._rows(name, self.ids)
            self.ways[name] = prepared.check(columns[name], rows) if len(rows) else {}

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
            missing=self.missing,
        )

    def _found(self, ids: Ids, strict: bool) -> tuple[Ids, dict[str, str]]:
        """The ids that can be predicted and, by id of the others, who lacks them; an
        error where there are no others than these."""
        lacks = {name: ~self._rows(name, ids)[1] for name in self.prepared}
        masks = np.stack(list(lacks.values()))
        lost = np.all(masks, axis=0) if self.may_lack else np.any(masks, axis=0)
        predictable: NDArray[np.bool_] = ~lost
        if predictable.all():
            return ids, {}
        if strict or not predictable.any():
            raise self._cannot_be_predicted(ids, lacks, predictable)
        return ids[predictable], who_lacks(ids, lacks, predictable)

    def _cannot_be_predicted(
        self,
        ids: Ids,
        lacks: Mapping[str, NDArray[np.bool_]],
        predictable: NDArray[np.bool_],
    ) -> DataError:
        if self.may_lack:
            nobody = ids[~predictable]
            return DataError(
                f"{len(nobody)} of {len(ids)} ids are in no party's table, such as"
                f" {str(nobody[0])!r}."
            )
        name = next(name for name, mask in lacks.items() if mask.any())
        return DataError(
            f"'{name}' lacks {lacks[name].sum():,} of the ids asked for. Ask for rows that"
            f" all parties hold. New rows are given with --table {name}=FILE, or in Python"
            " with frames=."
        )

    def _rows(self, name: str, ids: Ids) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """Find the rows of a party's table that have these ids, and which of the ids
        they are."""
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


@dataclass(frozen=True, eq=False)
class Question:
    """The ids to predict as they are spelled, and those among them that can be."""

    asked: Ids
    ids: Ids
    rows: Tensor  # their row numbers
    missing: Missing  # by id of the others, who lacks them
    tells_missing: bool  # whether that is no error

    def also(self, missing: Missing) -> Question:
        """The same question, where these ids were asked for before, too."""
        asked = np.concatenate([self.asked, np.array([*missing], dtype=np.str_)])
        return replace(self, asked=asked, missing=missing, tells_missing=True)


def asked_for(
    ids: Sequence[str] | None,
    index: Index,
    whose: str,
    names_of: Callable[[list[str]], list[str]],
    lacking: Callable[[str], str],
    *,
    strict: bool,
) -> Question:
    """Find the rows to predict among those that are known.

    Args:
        ids: The ids as they are spelled; None for all known rows.
        index: Where the row of an id is.
        whose: Whose rows are known, in the words of an error.
        names_of: What rows are called that are spelled so.
        lacking: Who lacks a row that is not known, by what it is called.
        strict: Whether an id that is not known is an error.
    """
    if ids is None:
        known = unpacked(index.packed)
        return Question(known, known, torch.arange(len(index)), {}, False)
    asked = np.array(listed(ids), dtype=np.str_)
    names = names_of(asked.tolist())
    rows, is_known = index.find(np.array(names))
    absent = np.flatnonzero(~is_known).tolist()
    if absent and (strict or not is_known.any()):
        raise DataError(
            f"{len(absent)} of {len(asked)} ids are not among the {len(index)} rows"
            f" that {whose}, such as {str(asked[absent[0]])!r}. Predict ids that every"
            " party's table holds."
        )
    missing = {str(asked[place]): lacking(names[place]) for place in absent}
    known_rows = torch.from_numpy(rows[is_known])
    return Question(asked, asked[is_known], known_rows, missing, not strict)


def each_once(settings: Settings, ids: Sequence[object]) -> list[str]:
    """List ids to predict once each, as all compare them: several spellings may name
    one row."""
    return list(dict.fromkeys(row_names(settings, listed(ids))))


def listed(ids: Sequence[object]) -> list[str]:
    """Give the ids to predict as text; there must be at least one."""
    if isinstance(ids, str):
        raise DataError(
            f"The ids to predict are a list; found the text {ids!r}. Write [{ids!r}]."
        )
    if not len(ids):
        raise DataError("There are no ids to predict. Give at least one.")
    return [str(name) for name in ids]
