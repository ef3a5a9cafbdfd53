"""A saved federation, trained as far as it was: to go on with, to explain, or to predict rows that may be new.

What crosses between parties from here on is in every party's ledger-after.jsonl.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from colonnade.alignment.ids import comparable
from colonnade.errors import ConfigError, DataError
from colonnade.federation.federation import Federation
from colonnade.rows import shares
from colonnade.rows.holdings import from_dataset, from_tables, to_predict
from colonnade.rows.tables import read_tables, tables_of
from colonnade.runs.run_directory import RunDirectory

if TYPE_CHECKING:
    import pandas as pd

    from colonnade.datasets.table import Table
    from colonnade.federation.multi import MultiFederation
    from colonnade.settings.federation_file import Settings

Ids = Sequence[str] | Literal["all"]


def load(
    folder: str | Path,
    *,
    ids: Ids | None = None,
    frames: Mapping[str, pd.DataFrame] | None = None,
    tables: Mapping[str, str] | None = None,
    record: bool = False,
    allow_models: Sequence[str] = (),
) -> Federation:
    """A saved federation, trained as far as it was.

    With `ids` it is loaded for prediction: only those rows are read, and they may be new since training; "all" reads
    every row that can be predicted. Tables come from where the run's settings say, or from `frames` (needed when it was
    made from frames) or `tables` (files). A run with a model of your own names its import path, which must be among
    `allow_models`: a run directory may be somebody else's, and importing runs code.
    """
    run = RunDirectory(Path(folder))
    settings = run.settings(allow_models)
    if settings.label_owners:
        raise ConfigError(
            f"This run has several label owners ({settings.algorithm}), and what was asked works on runs with one. "
            "`colonnade predict` and `colonnade privacy` take both; in Python use MultiFederation.load."
        )
    run.check_whole()
    if settings.data.dataset is not None and frames is None:
        federation = Federation(settings, from_dataset(settings), record=record)
        run.read(federation)
    else:
        settings = _moved(settings, tables)
        if ids is None:
            held = tables_of(settings, frames) if frames is not None else read_tables(settings)
            federation = Federation(settings, from_tables(settings, held), record=record)
            run.read(federation)
        else:
            federation = _to_predict(run, settings, ids, frames, record=record)
    run.follow(federation)
    return federation


def _to_predict(
    run: RunDirectory, settings: Settings, ids: Ids, frames: Mapping[str, pd.DataFrame] | None, *, record: bool
) -> Federation:
    fitted = {name: run.fitted(name, json.loads) for name in settings.parties}
    # Those who hold columns bring just these; a label column is neither needed nor read.
    columns = {n: tuple(c["name"] for c in s["columns"]["columns"]) for n, s in fitted.items() if "columns" in s}
    bring = {name: replace(settings.parties[name], label=None, columns=names) for name, names in columns.items()}
    may_lack = settings.engine.on_missing in ("stale", "skip")
    if frames is not None:
        given = {name: frame for name, frame in frames.items() if name not in fitted or name in bring}
        held = tables_of(replace(settings, parties=bring), given)
    else:
        there = {n: p for n, p in bring.items() if not may_lack or (p.table and Path(p.table).exists())}
        held = read_tables(replace(settings, parties=there))
    join: Any = np.union1d if may_lack else np.intersect1d
    wanted = every_id(held, join) if ids == "all" else _as_compared(settings, ids)
    federation = Federation(settings, to_predict(held, fitted, wanted, may_lack=may_lack), record=record)
    run.load(federation, run.mark())
    return federation


def load_multi(
    folder: str | Path,
    *,
    ids: Ids | None = None,
    owner: str | None = None,
    tables: Mapping[str, str] | None = None,
    allow_models: Sequence[str] = (),
) -> MultiFederation:
    """A saved federation with several label owners.

    With `ids` it is loaded for a label owner's prediction (the first's unless `owner` is named): only those rows are
    read, and they may be new since training; "all" reads every row that all data owners hold. `tables` are files that
    data owners have in the place of the run's; `allow_models` as for `load`.
    """
    from colonnade.federation.multi import MultiFederation

    run = RunDirectory(Path(folder))
    settings = run.settings(allow_models)
    run.check_whole()
    if ids is None or settings.data.dataset is not None:
        federation = MultiFederation.from_settings(settings)
        run.read(federation)
    else:
        settings = _moved(settings, tables)
        fitted = {name: run.fitted(name, json.loads) for name in {**settings.parties, **settings.label_owners}}
        columns = {name: tuple(c["name"] for c in fitted[name]["columns"]["columns"]) for name in settings.parties}
        bring = {name: replace(party, columns=columns[name]) for name, party in settings.parties.items()}
        asks = owner if owner is not None and owner in settings.label_owners else next(iter(settings.label_owners))
        held = read_tables(replace(settings, parties=bring))
        wanted = every_id(held, np.intersect1d) if ids == "all" else _as_compared(settings, ids)
        federation = MultiFederation(settings, shares.to_predict(held, fitted, wanted, asks))
        federation.owner_named(owner)
        run.load(federation, run.mark())
    run.follow(federation)
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
    return list(dict.fromkeys(comparable(map(str, ids), settings.alignment)))


def _moved(settings: Settings, tables: Mapping[str, str] | None) -> Settings:
    """With these files in the place of the run's."""
    moved = {n: replace(party, table=(tables or {}).get(n, party.table)) for n, party in settings.parties.items()}
    return replace(settings, parties=moved)
