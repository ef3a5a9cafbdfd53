"""An owner's table where rows have several keys, are written in many ways, or have other tables beside them.

Rows without any key are left out, which is said. Columns of keys are no features, unless `columns` names them. Such a
table is read into memory whole.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from colonnade.alignment.ids import read_columns
from colonnade.alignment.keys import Keyed, keyed
from colonnade.alignment.settings import in_words
from colonnade.datasets.columns import check_present
from colonnade.datasets.table import table_from_frame
from colonnade.datasets.table_files import read_frame
from colonnade.errors import DataError
from colonnade.rows.groups import GroupedTable, grouped_tables, with_groups
from colonnade.settings.federation_file import Settings
from colonnade.settings.owners import LabelOwnerSettings, PartySettings, place_of

if TYPE_CHECKING:
    import pandas as pd

    from colonnade.datasets.table import Table

Owner = PartySettings | LabelOwnerSettings
ROW = "the owner's name of a row"


def groups_of(settings: Settings, name: str, owner: Owner) -> list[GroupedTable]:
    """One owner's tables with many rows for one person."""
    if isinstance(owner, LabelOwnerSettings):
        return []
    return grouped_tables(owner.tables, place_of(settings.section, name), settings.id_of(owner))


def read_keyed(settings: Settings, name: str, owner: Owner, path: str) -> Keyed:
    """The keys in an owner's file, and no other column."""
    keys = settings.keys_of(owner)
    columns = list(dict.fromkeys(column for key in keys for column in key if column))
    frame = read_columns(path, owner=name, columns=columns)
    cells = {column: frame[column].tolist() for column in columns}
    return keyed(name, cells, keys, settings.keys, settings.alignment)


def read_people(
    settings: Settings, name: str, owner: Owner, path: str, label: str | None, columns: Sequence[str] | None
) -> Table:
    """Read an owner's people from its file."""
    groups = groups_of(settings, name, owner)
    added = [column for one in groups for column in one.columns]
    keys = [column for key in settings.keys_of(owner) for column in key if column]
    own = None if columns is None else [column for column in columns if column not in added]
    aside = settings.aside_of(owner, label)
    if own == [] and label is None:  # its features are of other tables alone
        frame = read_columns(path, owner=name, columns=keys[:1])
    else:
        frame = read_frame(path, owner=name, id_column=keys[0], label=label, columns=own, aside=aside)
    frame = with_groups(frame, path, name, groups)
    known = read_keyed(settings, name, owner, path)
    return _made(settings, name, known, frame, keys, label, columns, settings.aside_of(owner, label))


def people_of(
    settings: Settings, name: str, owner: Owner, frame: pd.DataFrame, label: str | None, columns: Sequence[str] | None
) -> Table:
    """Take an owner's people from its data frame."""
    keys = settings.keys_of(owner)
    named = [column for key in keys for column in key if column]
    check_present(named, [str(column) for column in frame.columns], owner=name, part="id")
    known = keyed(name, {column: frame[column].tolist() for column in named}, keys, settings.keys, settings.alignment)
    frame = with_groups(frame.reset_index(drop=True), None, name, groups_of(settings, name, owner))
    return _made(settings, name, known, frame, named, label, columns, settings.aside_of(owner, label))


def _made(
    settings: Settings,
    name: str,
    known: Keyed,
    frame: pd.DataFrame,
    keys: Sequence[str],
    label: str | None,
    columns: Sequence[str] | None,
    aside: Mapping[str, str],
) -> Table:
    held = np.flatnonzero(known.own != "")
    if not len(held):
        raise DataError(f"'{name}' has no row with {_keys(settings)} that can be read. Compare how they are written.")
    if len(held) < len(known.own):
        warnings.warn(
            f"'{name}' has {len(known.own) - len(held):,} rows, of {len(known.own):,}, without any of "
            f"{_keys(settings)} that is theirs alone and can be read. They are left out.",
            stacklevel=2,
        )
    beside = [one for one in (label, *aside.values()) if one is not None]
    chosen = list(columns) if columns is not None else [c for c in frame.columns if c not in (*keys, *beside)]
    check_present(chosen, [str(column) for column in frame.columns], owner=name, part="feature")
    wanted = list(dict.fromkeys([*chosen, *beside]))
    some = frame[wanted].iloc[held].assign(**{ROW: known.own[held]})
    table = table_from_frame(some, owner=name, id=ROW, label=label, columns=chosen, aside=aside)
    return replace(table, keys=tuple(texts[held] for texts in known.texts)) if len(settings.keys) > 1 else table


def _keys(settings: Settings) -> str:
    return " or ".join(f"'{in_words(key)}'" for key in settings.keys)


def lost(known: Keyed, settings: Settings) -> dict[str, Any]:
    """How many rows no key can match, and of each key how many it cannot, and why."""
    by_key: Mapping[str, Any] = {in_words(key): why for key, why in zip(settings.keys, known.lost, strict=True)}
    return {"without any key": int((known.own == "").sum()), "by key": by_key}
