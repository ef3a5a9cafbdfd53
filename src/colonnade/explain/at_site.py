"""An explanation between organisations, at a label owner's site: which parties matter
in a run, by its held-out rows.

Each partner is asked once for these rows, as for a prediction, and for nothing else:
its own rules, budget and allowance say whether and how it answers. The label owner
knows head norms and how far heads moved itself. Noise and training again need the
columns of others, and are left to simulations in one process.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from colonnade.core.batches import PREDICT
from colonnade.errors import DataError
from colonnade.explain.pictures import write
from colonnade.explain.report import Report, default_split, explain
from colonnade.rows.public import from_dataset
from colonnade.runs.layout import EXPLANATION
from colonnade.sites.participant import started
from colonnade.sites.prediction import Rows, Session
from colonnade.sites.site import Site


def explain_at(site: Site, run: str, **how: Any) -> tuple[Report, Path]:
    """Explain a run as its label owner; the report is in its own folder of the run.
    `how` goes to `explain`."""
    session = Session(site, run)
    held_out, began = started(session.folder.path, site.own.name)
    split = default_split([name for name, ids in held_out.items() if ids])
    rows = _with_labels(site, session, np.array(held_out[split], dtype=np.str_))
    try:
        session.look(rows)
        if rows.lacking(session.names, lenient=session.may_lack).any():
            raise DataError(
                f"Some of the {len(rows.ids)} {split} rows of this run are no longer in"
                " all parties' tables. Put them back, or train anew."
            )
        federation = session.opened(rows)
        take = partial(session.take, rows)
        report = explain(
            federation,
            split=PREDICT,
            owner=site.own.name,
            began=began,
            before=take,
            **how,
        )
    finally:
        session.close()
    report.split = split
    folder = session.folder.path / EXPLANATION
    write(report, folder, pictures=False)
    return report, folder


def _with_labels(site: Site, session: Session, ids: Any) -> Rows:
    """Held-out rows as for a prediction, with this label owner's labels."""
    own = site.own
    rows = session.own_part(ids)
    site.read()
    if site.table is not None:
        if not np.isin(ids, site.table.ids).all():
            raise DataError(
                f"'{own.name}' no longer holds all rows that this run held out. Put"
                " them back into its table."
            )
        label = site.table.in_order(ids).label
        assert label is not None
        labels = replace(session.encoder, owner=own.name).encode(label)
    else:
        held = from_dataset(own.settings).label_owners[own.name]
        place_of = {id_: place for place, id_ in enumerate(held.ids.tolist())}
        labels = held.labels[
            torch.tensor([place_of[id_] for id_ in ids.tolist()], dtype=torch.int64)
        ]
    labelled = replace(rows.holdings.label_owners[own.name], labels=labels)
    return Rows(
        replace(
            rows.holdings,
            label_owners={**rows.holdings.label_owners, own.name: labelled},
        ),
        rows.places,
    )
