"""A saved federation, trained as far as it was: to go on with, to explain, or to predict rows that may be new.

What crosses between parties from here on is in every party's ledger-after.jsonl.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from colonnade.errors import DataError
from colonnade.federation.federation import Federation
from colonnade.federation.organisation import holdings_of
from colonnade.rows.making import bringing, called_alike, to_predict
from colonnade.rows.tables import read_tables, tables_of
from colonnade.runs.run_directory import RunDirectory
from colonnade.settings.federation_file import Settings

if TYPE_CHECKING:
    import pandas as pd

    from colonnade.datasets.table import Table

Ids = Sequence[str] | Literal["all"]


def load(
    folder: str | Path,
    *,
    ids: Ids | None = None,
    owner: str | None = None,
    frames: Mapping[str, pd.DataFrame] | None = None,
    tables: Mapping[str, str] | None = None,
    record: bool = False,
    allow_models: Sequence[str] = (),
) -> Federation:
    """A saved federation, trained as far as it was.

    With `ids` it is loaded for prediction: only those rows are read, and they may be new since training; "all" reads
    every row that can be predicted. Of several label owners the first asks, unless `owner` is named. Tables of those
    with columns come from where the run's settings say, or from `frames` (needed when it was made from frames) or
    `tables` (files). A run with a model of your own names its import path, which must be among `allow_models`: a run
    directory may be somebody else's, and importing runs code.
    """
    run = RunDirectory(Path(folder))
    settings = run.settings(allow_models)
    run.check_whole()
    if settings.data.dataset is not None and frames is None:
        federation = Federation(settings, holdings_of(settings), record=record)
        run.read(federation)
    else:
        settings = _moved(settings, tables)
        if ids is None:
            for name, party in settings.parties.items():
                if frames is not None and name in frames and party.label not in (None, *frames[name].columns):
                    raise DataError(
                        f"'{name}' has no column {party.label!r}, its label, which measuring needs. To predict rows "
                        'without labels, load them: colonnade.load(folder, ids="all", frames=frames).'
                    )
            held = None if frames is None else tables_of(settings, frames)
            fitted = run.fitted_earlier(settings)
            federation = Federation(settings, holdings_of(settings, held, run.salt(), fitted), record=record)
            run.read(federation)
        else:
            federation = _to_predict(run, settings, ids, owner, frames, record=record)
    if owner is not None:
        federation.owner_named(owner)
    run.follow(federation)
    return federation


def _to_predict(
    run: RunDirectory,
    settings: Settings,
    ids: Ids,
    owner: str | None,
    frames: Mapping[str, pd.DataFrame] | None,
    *,
    record: bool,
) -> Federation:
    fitted = run.all_fitted(settings)
    bring = bringing(settings, fitted)
    may_lack = settings.may_lack
    if frames is not None:
        given = {name: frame for name, frame in frames.items() if name not in fitted or name in bring}
        held = tables_of(replace(settings, parties=bring), given)
    else:
        there = {n: p for n, p in bring.items() if not may_lack or (p.table and Path(p.table).exists())}
        held = read_tables(replace(settings, parties=there))
    held = called_alike(settings, held)
    join: Any = np.union1d if may_lack else np.intersect1d
    wanted = every_id(held, join) if ids == "all" else _as_compared(settings, ids)
    asks = owner if owner in settings.label_owners else None
    holdings = to_predict(settings, held, fitted, wanted, asks, may_lack=may_lack)
    federation = Federation(settings, holdings, record=record)
    run.load(federation, run.mark())
    return federation


def every_id(tables: Mapping[str, Table], join: Callable[..., NDArray[Any]]) -> list[str]:
    """The ids of all tables together, or those that all of them hold."""
    ids = reduce(join, [table.ids for table in tables.values()]) if tables else np.array([])
    if not len(ids):
        raise DataError("There is no row to predict: no id is held by all parties, or there is no table. Compare them.")
    return [str(one) for one in ids.tolist()]


def _as_compared(settings: Settings, ids: Sequence[str]) -> Sequence[str]:
    """Several of these may name one row, which is loaded once."""
    if isinstance(ids, str):
        return ids
    return list(dict.fromkeys(settings.names_of(map(str, ids))))


def _moved(settings: Settings, tables: Mapping[str, str] | None) -> Settings:
    """With these files in the place of the run's."""
    moved = {n: replace(party, table=(tables or {}).get(n, party.table)) for n, party in settings.parties.items()}
    return replace(settings, parties=moved)
