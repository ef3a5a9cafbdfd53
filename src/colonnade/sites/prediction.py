"""Prediction of a file of ids where a federation spans machines, at the organisation that drives.

The ids to predict are in a file of its own folder of the run, `rows/`, and what comes of them is written there,
`predictions/`. How the others are asked is in `sites.session`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from colonnade.algorithms import find
from colonnade.datasets.table_files import for_spreadsheets
from colonnade.errors import ConfigError, DataError
from colonnade.federation.scores import Predictions
from colonnade.rows.tables import written_ids
from colonnade.runs.layout import PREDICTIONS, ROWS
from colonnade.settings.party_file import asker_id
from colonnade.sites.session import Rows, Session, check_asks
from colonnade.sites.site import Site

FILE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}\.(csv|parquet)")


def predict(site: Site, run: str, rows: str, model: str | None = None) -> Path:
    """Predict the ids in this organisation's file runs/RUN/rows/FILE; gives the file with the predictions. `model` is
    "aggregated" or "own", where each of several label owners has its own."""
    own = site.own
    check_asks(own, run)
    find(own.settings.algorithm).check_model(model)
    asked_in, out = checked_file(site.host.folder(run), rows)
    column = asker_id(own.settings, own.name)
    spelled = list(dict.fromkeys(written_ids(asked_in, own.settings.keys_at(own.name), whose="what to predict")))
    if not spelled:
        raise DataError(f"{asked_in} has no rows to predict.")
    keys = own.settings.names_of(spelled)
    session = Session(site, run, model=model)
    asked = session.own_part(np.array(list(dict.fromkeys(keys)), dtype=np.str_))
    _check_held(asked, [], session)
    try:
        session.look(asked)
        _check_held(asked, session.names, session)
        found = session.ask(asked)
    finally:
        session.close()
    return _write(out, column, found, spelled, keys)


def checked_file(run: Path, rows: str) -> tuple[Path, Path]:
    """Where the ids are and where predictions go. The name comes from elsewhere, so it is a name and no path."""
    if not FILE.fullmatch(rows) or ".." in rows:
        raise ConfigError(f"What to predict is the name of a .csv or .parquet file, and no path; found {rows[:120]!r}.")
    if not (run / ROWS / rows).is_file():
        raise DataError(f"There is no file {run / ROWS / rows} with the ids to predict. Put it there.")
    return run / ROWS / rows, run / PREDICTIONS / rows


def _check_held(rows: Rows, names: Sequence[str], session: Session) -> None:
    ids = rows.ids
    if not session.may_lack:
        settings = session.local
        may = "skip" in find(settings.algorithm).missing(settings.config)
        cure = '; or set on_missing = "skip" under [federation] in the agreed file.' if may else "."
        for name, away in rows.holdings.away.items():
            lost = np.flatnonzero(away.numpy())  # by place: the message goes into this site's log
            raise DataError(
                f"'{name}' holds no row for {len(lost)} of {len(ids)} ids, the first of them number {lost[0] + 1} in "
                f"the file. Predict ids that every table holds{cure}"
            )
    elif names and (nobody := rows.lacking(names, lenient=True).numpy()).any():
        first = np.flatnonzero(nobody)[0] + 1
        raise DataError(
            f"{nobody.sum()} of {len(ids)} ids are in no party's table, the first of them number {first} in the file."
        )


def _write(
    out: Path,
    column: str,
    found: Sequence[tuple[torch.Tensor, Predictions]],
    spelled: Sequence[str],
    keys: Sequence[str],
) -> Path:
    """One line per id as it was spelled; `keys` are what they are compared by."""
    import pandas as pd

    frame = pd.concat([one.to_frame("id") for _, one in found]).set_index("id").loc[list(keys)].reset_index()
    frame = frame.assign(id=list(spelled)).rename(columns={"id": column})
    out.parent.mkdir(exist_ok=True)
    fresh = out.with_name(f".{out.name}.tmp")
    frame.to_parquet(fresh, index=False) if out.suffix == ".parquet" else for_spreadsheets(frame).to_csv(
        fresh, index=False
    )
    fresh.replace(out)
    return out
