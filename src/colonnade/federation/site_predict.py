"""Prediction where a federation spans machines: ids that lie with the driver, and everybody's own table as it is now.

    driver                                          every other organisation
    Join      the same agreed file?            ->   refuses another one
    Kept      which checkpoints                ->   all take the newest that all have
    (Agree .. a private set intersection       ->   with each alone, where [data] align = "private")
    Look      digests of the ids, or none      ->   which of them it holds; it opens its table and its checkpoint
    Take      which of its rows come next      ->   they are the batch called predict
    Embed ... the algorithm's requests         ->   its feature owner
    Enough                                     ->   its account and its ledger are written

Which ids are asked for, a party learns as far as it holds them: it has to look them up. With `align = "exact"`, where
all hold the same ids, they travel as digests keyed with the agreed file's fingerprint, which hide nothing from whoever
guesses ids; with `align = "private"` only what is common is learned. The ids to predict are in a file of the driver's
own folder of the run, `rows/`, and what comes of them is written there, `predictions/`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from colonnade.alignment import AlignmentSettings, Ids
from colonnade.alignment.id_owner import IdOwner
from colonnade.alignment.intersection import align
from colonnade.core import Batches, Peers, Seat, Transport, roles
from colonnade.datasets.labels import Labels
from colonnade.errors import ConfigError, DataError, NoAnswer, PartyError
from colonnade.federation.federation import Federation, Predictions
from colonnade.federation.holdings import Holding, Holdings
from colonnade.federation.party_file import Own
from colonnade.federation.patience import Patience
from colonnade.federation.run_directory import RunDirectory, write_text
from colonnade.federation.saves import Kept, newest_common, numbers
from colonnade.federation.site_reader import (
    ASKED_IDS,
    ASKED_ROWS,
    DIGEST,
    Enough,
    Look,
    State,
    Strings,
    Take,
    digests_of,
    has_columns,
    own_rows,
)
from colonnade.transport.flare import Flare, Line

if TYPE_CHECKING:
    from colonnade.federation.site import Site

ROWS, PREDICTIONS, WIDTHS = "rows", "predictions", "widths.json"
FILE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}\.(csv|parquet)")


class Introduced:
    """A transport that knows how wide everybody's embeddings were in training, and does not ask again."""

    def __init__(self, inner: Transport, cards: Mapping[str, roles.Card]) -> None:
        self.inner, self.cards = inner, cards

    def exchange(self, to: str, envelope: Any) -> Any:
        if isinstance(envelope.message, roles.Introduce) and to in self.cards:
            return self.cards[to]
        return self.inner.exchange(to, envelope)

    def exchange_each(self, envelopes: Mapping[str, Any]) -> dict[str, Any]:
        known = {to: self.cards[to] for to, e in envelopes.items()
                 if isinstance(e.message, roles.Introduce) and to in self.cards}  # fmt: skip
        others = {to: envelope for to, envelope in envelopes.items() if to not in known}
        found = self.inner.exchange_each(others) if others else {}
        return {to: known[to] if to in known else found[to] for to in envelopes}


def predict(site: Site, lines: Mapping[str, Line], run: str, rows: str) -> Path:
    """Predict the ids in this organisation's file runs/RUN/rows/FILE; gives the file with the predictions."""
    own, folder = site.own, RunDirectory(site.clerk.folder(run))
    asked_in, out = checked_file(folder.path, rows)
    lenient = own.settings.engine.on_missing in ("stale", "skip")
    ids = _ids_of(own, asked_in)
    patience = Patience(own.settings.engine, elsewhere=True)
    carrier = patience.around(Flare(lines, device=site.device, deadline=site.deadline))
    there = Peers(own.name, [name for name in own.names if name in lines], carrier, site.clerk.ledger)
    there = _joined(site, there, lenient=lenient)
    kept = {own.name: numbers(folder)} | {name: one.numbers for name, one in there.ask(Kept(run)).items()}
    mark = next(mark for mark in folder.marks() if mark["number"] == newest_common(kept))
    fitted = folder.fitted(own.name, json.loads)
    encoder = Labels.from_state(fitted["labels"])
    holdings = _own_part(own, fitted, ids, encoder)
    _check_held(holdings, ids, [], lenient=lenient)
    places = _look(site, there, run, mark["number"], holdings.loss.outputs, ids)
    widths = json.loads((folder.path / WIDTHS).read_text(encoding="utf-8"))
    for name in widths:
        if name != own.name:
            mask = torch.ones(len(ids), dtype=torch.bool)
            mask[places.get(name, torch.empty(0, dtype=torch.int64))] = False
            if mask.any():
                holdings.away[name] = mask
    _check_held(holdings, ids, list(widths), lenient=lenient)
    train, engine = own.settings.train, own.settings.engine
    batches = Batches(
        holdings.splits, batch_size=train.batch_size, epochs=train.epochs, seed=engine.seed, reshuffle=train.reshuffle
    )
    cards = {k: roles.Card(width, len(ids), batches.fingerprint()) for k, width in widths.items() if k != own.name}

    def reach(here: Transport) -> tuple[Transport, list[str]]:
        away = Flare(lines, here=here, own=[own.name], device=site.device, deadline=site.deadline)
        return Introduced(away, cards), list(widths)

    federation = Federation(own.local, holdings, reach=reach)
    folder.load(federation, mark)
    folder.follow(federation)
    try:
        found = [_group(federation, there, places, ids, group, away)
                 for group, away in holdings.by_absence(torch.arange(len(ids)))]  # fmt: skip
    finally:
        there.attempt(dict.fromkeys(there, Enough()))
        site.keep_alignment(folder.path)
    return _write(out, own.settings.data.id, found)


def checked_file(run: Path, rows: str) -> tuple[Path, Path]:
    """Where the ids are and where predictions go. The name comes from elsewhere, so it is a name and no path."""
    if not FILE.fullmatch(rows) or ".." in rows:
        raise ConfigError(f"What to predict is the name of a .csv or .parquet file, and no path; found {rows[:120]!r}.")
    if not (run / ROWS / rows).is_file():
        raise DataError(f"There is no file {run / ROWS / rows} with the ids to predict. Put it there.")
    return run / ROWS / rows, run / PREDICTIONS / rows


def keep_widths(run: Path, federation: Federation) -> None:
    """For predictions: how wide everybody's embeddings are, in their order."""
    write_text(run / WIDTHS, json.dumps(federation.widths))


def _own_part(own: Own, fitted: State, ids: Strings, encoder: Labels) -> Holdings:
    """What the driver holds of the rows; its own columns are zero where it lacks a row, and then nobody uses them."""
    part, away = Holding(labels=torch.zeros(len(ids), dtype=torch.int64)), {}
    if has_columns(own, fitted):
        known, columns = own_rows(own, fitted)
        held = torch.from_numpy(np.isin(ids, known))
        some = columns(ids[held.numpy()] if held.any() else known[:1])
        part.features = torch.zeros(len(ids), *some.shape[1:], dtype=some.dtype)
        if held.any():
            part.features[held] = some
        away = {} if held.all() else {own.name: ~held}
    return Holdings({own.name: part}, ids, {"predict": torch.arange(len(ids))}, own.name, encoder, away)


def _joined(site: Site, there: Peers, *, lenient: bool) -> Peers:
    """Those who are there, and agreed to the same."""
    from colonnade.federation.site import Join

    if not lenient:
        there.ask(Join(site.own.agreed))
        return there
    answers, failures = there.attempt(dict.fromkeys(there, Join(site.own.agreed)))
    for error in failures.values():
        if not isinstance(error, NoAnswer):
            raise error
    return Peers(there.owner, answers, there.transport, there.ledger)


def _look(site: Site, there: Peers, run: str, number: int, outputs: int, ids: Strings) -> dict[str, torch.Tensor]:
    """Of each party the places in `ids` of the rows that it holds, in its own order of them."""
    own, places = site.own, {}
    if site.id_owner is None:
        digests = np.frombuffer(b"".join(digests_of(own, ids)), dtype=np.uint8).reshape(-1, DIGEST)
        asked = site.clerk.outbox.release(torch.from_numpy(digests.copy()), ASKED_IDS)
        for name, answer in there.ask(Look(run, number, outputs, asked)).items():
            held = None if answer.held is None else answer.held.tensor.cpu()
            if held is None or not _subset(held, len(ids)):
                raise PartyError(name, Look.kind, None, "it did not say which of the rows it holds")
            places[name] = held
        return places
    for name in there:
        mine = IdOwner(Seat.at(own.name, Batches({}, batch_size=1, epochs=1, seed=0)), Ids.of(own.name, [ids.tolist()]),
                       AlignmentSettings())  # fmt: skip
        align(mine, Peers(own.name, [name], there.transport, site.clerk.ledger))
        rows = mine.common_rows
        places[name] = torch.empty(0, dtype=torch.int64) if rows is None else torch.from_numpy(rows.astype(np.int64))
        if len(places[name]):
            there.ask_one(name, Look(run, number, outputs, None))
    return places


def _subset(places: torch.Tensor, size: int) -> bool:
    inside = places.dtype == torch.int64 and places.dim() == 1 and bool(((places >= 0) & (places < size)).all())
    return inside and len(torch.unique(places)) == len(places)


def _check_held(holdings: Holdings, ids: Strings, names: Sequence[str], *, lenient: bool) -> None:
    if not lenient:
        for name, away in holdings.away.items():
            lost = ids[away.numpy()]
            raise DataError(
                f"'{name}' holds no row for {len(lost)} of {len(ids)} ids, such as {str(lost[0])!r}. Predict ids that "
                'every table holds; or set on_missing = "skip" under [federation] in the agreed file.'
            )
    elif names and len(holdings.away) == len(names):
        nobody = torch.stack(list(holdings.away.values())).all(0).numpy()
        if nobody.any():
            raise DataError(f"{nobody.sum()} of {len(ids)} ids are in no party's table, such as {ids[nobody][0]!r}.")


def _group(
    federation: Federation, there: Peers, places: Mapping[str, torch.Tensor], ids: Strings, group: torch.Tensor,
    away: Sequence[str],
) -> tuple[torch.Tensor, Predictions]:  # fmt: skip
    """The rows that the same parties hold."""
    takes = {}
    for name in there:
        if name not in away:
            at = torch.full((len(ids),), -1, dtype=torch.int64)
            at[places[name]] = torch.arange(len(places[name]))
            takes[name] = Take(federation.driver.outbox.release(at[group], ASKED_ROWS))
    there.ask_each(takes)
    return group, federation.predict(ids[group.numpy()].tolist())


def _write(out: Path, column: str, found: Sequence[tuple[torch.Tensor, Predictions]]) -> Path:
    import pandas as pd

    order = torch.cat([group for group, _ in found]).argsort().numpy()
    frame = pd.concat([one.to_frame() for _, one in found], ignore_index=True).iloc[order]
    frame = frame.rename(columns={"id": column})
    out.parent.mkdir(exist_ok=True)
    fresh = out.with_name(f".{out.name}.tmp")
    frame.to_parquet(fresh, index=False) if out.suffix == ".parquet" else frame.to_csv(fresh, index=False)
    fresh.replace(out)
    return out


def _ids_of(own: Own, path: Path) -> Strings:
    """The ids in a file, each once, whatever else it holds."""
    import pandas as pd

    from colonnade.datasets.columns import check_present

    try:
        text: Any = {"dtype": str, "keep_default_na": False, "encoding": "utf-8-sig"}
        frame = pd.read_parquet(path) if path.suffix == ".parquet" else pd.read_csv(path, **text)
    except (OSError, ValueError) as error:  # the reader's own text may quote cells
        raise DataError(f"{path} cannot be read as CSV or Parquet ({type(error).__name__}).") from None
    column = own.settings.data.id
    check_present([column], [str(name) for name in frame.columns], owner="what to predict", part="id")
    ids = list(dict.fromkeys(str(one) for one in frame[column]))
    if not ids:
        raise DataError(f"{path} has no rows to predict.")
    return np.array(ids, dtype=np.str_)
