"""Many rows to predict, some of them at a time, by a saved federation."""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from colonnade.core.outbox import Outbox
from colonnade.federation.federation import Federation, load
from colonnade.rows.asked import rows_asked_for
from colonnade.rows.holdings import with_tables
from colonnade.runs.run_directory import RunDirectory


def in_pieces(
    folder: str | Path,
    ids: NDArray[np.str_],
    *,
    owner: str | None = None,
    tables: Mapping[str, str] | None = None,
    allow_models: Sequence[str] = (),
) -> Callable[[Sequence[str]], Federation]:
    """To predict many rows, some of them at a time: what gives a federation of those.
    `ids` are all of them, each once and as rows are called.

    Tables are read once and all ids are looked for at once, but only rows that are
    asked for together are prepared. Each federation goes on where the one before it
    stood, which is not to be used any more: what they predict, write down and pay is
    what one federation of all rows would. From the first on, no other process counts
    their budgets.
    """
    run = RunDirectory(Path(folder))
    settings = run.settings(allow_models)
    if settings.data.dataset is not None:
        # its rows are those of the data set
        whole = load(folder, owner=owner, allow_models=allow_models)
        _claim(whole)
        return lambda _: whole
    run.check_whole()
    settings = with_tables(settings, tables or {})
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
            run.warn_unfinished(trains=federation.algorithm.trains)
        before.update(
            {
                name: organisation.outbox
                for name, organisation in federation.organisations.items()
            }
        )
        return federation

    return of


def _claim(federation: Federation) -> None:
    for account in federation.accounts.values():
        account.claim()
