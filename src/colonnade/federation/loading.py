"""A saved federation, trained as far as it was: to go on with, to explain, or to predict rows that may be new.

What crosses between parties from here on is in every party's ledger-after.jsonl.
"""

from __future__ import annotations

import gc
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

from colonnade.core.checks import did_you_mean
from colonnade.core.release import Outbox
from colonnade.errors import ConfigError, DataError
from colonnade.federation.federation import Federation
from colonnade.federation.frames import check_frames
from colonnade.federation.organisation import holdings_of
from colonnade.rows.tables import each_once, rows_asked_for, tables_of
from colonnade.runs.layout import METRICS
from colonnade.runs.run_directory import RunDirectory
from colonnade.settings.federation_file import Settings

if TYPE_CHECKING:
    import pandas as pd

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
    if frames is not None:
        check_frames(frames)
        if tables:
            raise ConfigError("New rows come from `frames` or from `tables` (files), and not from both.")
    public = settings.data.dataset is not None and frames is None  # its rows are those of the data set
    settings = settings if public else _moved(settings, tables)
    if ids is None or public:
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
        wanted = None if ids == "all" else each_once(settings, ids)
        rows = rows_asked_for(settings, run.all_fitted(settings), wanted, owner, frames)
        federation = Federation(settings, rows.holdings(rows.ids), record=record)
        run.load(federation, run.mark())
    federation.owner_named(owner)
    run.follow(federation)
    _warn_unfinished(run, federation)
    return federation


def in_pieces(
    folder: str | Path,
    ids: NDArray[np.str_],
    *,
    owner: str | None = None,
    tables: Mapping[str, str] | None = None,
    allow_models: Sequence[str] = (),
) -> Callable[[Sequence[str]], Federation]:
    """To predict many rows, some of them at a time: what gives a federation of those. `ids` are all of them, each once
    and as rows are called.

    Tables are read once and all ids are looked for at once, but only rows that are asked for together are prepared.
    Each federation goes on where the one before it stood, which is not to be used any more: what they predict, write
    down and pay is what one federation of all rows would. From the first on, no other process counts their budgets.
    """
    run = RunDirectory(Path(folder))
    settings = run.settings(allow_models)
    if settings.data.dataset is not None:
        whole = load(folder, owner=owner, allow_models=allow_models)  # its rows are those of the data set
        _claim(whole)
        return lambda _: whole
    run.check_whole()
    settings = _moved(settings, tables)
    rows = rows_asked_for(settings, run.all_fitted(settings), ids, owner)
    before: dict[str, Outbox] = {}

    def of(wanted: Sequence[str]) -> Federation:
        gc.collect()  # the one before, whose parties know each other, with its rows
        federation = Federation(settings, rows.holdings(wanted))
        run.load(federation, run.mark())
        for name, outbox in before.items():
            federation.organisations[name].outbox.go_on_from(outbox)
        federation.owner_named(owner)
        run.follow(federation)
        _claim(federation)
        if not before:
            _warn_unfinished(run, federation)
        before.update({name: organisation.outbox for name, organisation in federation.organisations.items()})
        return federation

    return of


def _warn_unfinished(run: RunDirectory, federation: Federation) -> None:
    """Warn of models that are untrained, or of a training that was cut off; a federation that its owner saved is none
    of these."""
    mark = run.mark()
    if not mark["finished"] and federation.algorithm.trains and (mark["step"] == 0 or (run.path / METRICS).exists()):
        warnings.warn(
            f"{run.path} holds a run that has not finished: its models were trained for {mark['step']} steps. Finish "
            "it: colonnade run ... --resume.",
            stacklevel=3,
        )


def _claim(federation: Federation) -> None:
    for account in federation.accounts.values():
        account.claim()


def _moved(settings: Settings, tables: Mapping[str, str] | None) -> Settings:
    """Put these files in the place of the run's."""
    given = dict(tables or {})
    moved = {n: replace(party, table=given.pop(n, party.table)) for n, party in settings.parties.items()}
    for name in given:
        near = did_you_mean(name, list(moved))
        raise ConfigError(f"There is a table for {name!r}, which is no party here{near}; there are {', '.join(moved)}.")
    return replace(settings, parties=moved)
