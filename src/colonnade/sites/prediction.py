"""The driver's side of predictions across machines: a session, opened once, then asked
batch by batch.

    driver                                          every other organisation
    Join      the same agreed file?            ->   refuses another one
    Kept      which checkpoints                ->   all take the newest that all have
    for each batch:
    (Agree .. a private set intersection       ->   with each alone, where [data] align = "private")
    Look      digests of the ids, or none      ->   which of them it holds; it opens its table and its checkpoint
    Take      which of its rows come next      ->   they are the batch called predict
    Embed ... the algorithm's requests         ->   its feature owner
    in the end:
    Enough                                     ->   its account and its ledger are written

Which ids are asked for, a party learns as far as it holds them: it has to look them up.
With `align = "exact"`, where all hold the same ids, they travel as digests keyed with
the agreed file's fingerprint, which hide nothing from whoever guesses ids; with `align
= "private"` only what is common is learned.

A file of ids is in the driver's own folder of the run, `rows/`, and what comes of it is
written to `predictions/`. There it says of a row that cannot be predicted which party
lacks it, as far as the driver learned that: it asks others only about rows that it holds
itself, where it must.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from colonnade.algorithms import find
from colonnade.alignment import Ids
from colonnade.alignment.id_owner import IdOwner
from colonnade.alignment.intersection import align
from colonnade.alignment.keys import row_names
from colonnade.core import Peers, Request, Transport, roles
from colonnade.core.files import replaced
from colonnade.core.peers import Answer
from colonnade.core.wire import Envelope
from colonnade.datasets.preprocess import Labels
from colonnade.datasets.table import packed
from colonnade.datasets.table_files import for_spreadsheets
from colonnade.errors import (
    BoundaryError,
    CheckpointError,
    ConfigError,
    DataError,
    NoAnswer,
    PartyError,
)
from colonnade.federation.federation import Elsewhere, Federation
from colonnade.federation.organisation import agreed_on
from colonnade.rows.asked import asked_by
from colonnade.rows.holdings import Columns, Holdings, Predictions, written_ids
from colonnade.rows.holdings import Ids as Strings
from colonnade.rows.missing import Missing, counted, who_lacks, with_missing
from colonnade.runs.layout import PREDICTIONS, ROWS, WIDTHS
from colonnade.runs.run_directory import RunDirectory
from colonnade.settings.party_file import SiteConfig
from colonnade.settings.sections import EngineSettings
from colonnade.sites.host import check_run
from colonnade.sites.messages import Join
from colonnade.sites.participant import (
    as_trained,
    newest_of,
    set_bounds,
    those_who_answer,
)
from colonnade.sites.reader import (
    ASKED_IDS,
    ASKED_ROWS,
    DIGEST,
    Enough,
    Look,
    Looked,
    OwnRows,
    Take,
    digests_of,
    has_columns,
)
from colonnade.sites.site import Site
from colonnade.transport.kept_up import with_retries

if TYPE_CHECKING:
    import pandas as pd

log = logging.getLogger("colonnade.party")


class Introduced:
    """A transport that knows how wide everybody's embeddings were in training, and does
    not ask again."""

    def __init__(
        self, inner: Transport, introductions: Mapping[str, roles.Introduction]
    ) -> None:
        self.inner = inner
        self.introductions = introductions

    def exchange(self, calls: Sequence[Envelope[Any]]) -> list[Answer]:
        others = [call for call in calls if self._known(call) is None]
        answers = iter(self.inner.exchange(others) if others else [])
        return [self._known(call) or next(answers) for call in calls]

    def _known(self, call: Envelope[Any]) -> roles.Introduction | None:
        """The introduction of a party that was asked for it and is known."""
        asks = isinstance(call.message, roles.Introduce)
        return self.introductions.get(call.receiver) if asks else None


@dataclass
class Rows:
    """Rows that are asked for: what the driver holds of them, who lacks which, and by
    party the places of those that it holds."""

    holdings: Holdings
    places: dict[str, torch.Tensor]
    # by id of the rows that cannot be predicted, who lacks them
    missing: Missing = field(default_factory=dict)

    @property
    def ids(self) -> Strings:
        return self.holdings.ids

    @property
    def predictable(self) -> torch.Tensor:
        """The places of the rows that can be predicted."""
        known = [name not in self.missing for name in self.ids.tolist()]
        return torch.tensor(known, dtype=torch.bool).nonzero()[:, 0]

    def lacking(self, names: Collection[str], *, lenient: bool) -> torch.Tensor:
        """Tell which rows cannot be predicted: not all hold them, or, where parties may
        be missing, nobody does."""
        away = list(self.holdings.away.values())
        if not away or (lenient and len(away) < len(names)):
            return torch.zeros(len(self.ids), dtype=torch.bool)
        return torch.stack(away).all(0) if lenient else torch.stack(away).any(0)


class Session:
    """Predictions with one run, at a label owner. `model` says with which, where label
    owners have one of their own beside the aggregated one; `engine` how long it waits,
    where not as agreed."""

    def __init__(
        self,
        site: Site,
        run: str,
        *,
        model: str | None = None,
        engine: EngineSettings | None = None,
    ) -> None:
        check_asks(site.own, run)
        self.site = site
        self.own = site.own
        self.run = run
        self.model = model
        self.engine = engine or site.own.settings.engine
        self.lenient = self.engine.on_missing in ("stale", "skip")
        self.host = site.host
        self.folder = RunDirectory(site.host.folder(run))
        self.local = replace(
            as_trained(self.own.local, self.folder), engine=self.engine
        )
        # a row may be predicted without who lacks it
        self.may_lack = self.local.may_lack
        carrier = with_retries(site.carrier(engine=self.engine), self.engine)
        names = [name for name in self.own.feature_owners if name in site.routes]
        self.there = Peers(self.own.name, names, carrier, site.host.ledger)
        self.met: set[str] = set()
        self._meet()
        asked = Peers(
            self.own.name,
            [name for name in self.there if name in self.met],
            carrier,
            site.host.ledger,
        )
        self.mark = self.folder.marked(newest_of(self.folder, asked))
        self.fitted = self.folder.fitted(self.own.name)
        self.encoder = Labels.from_state(self.fitted["labels"])
        self.shapes = self.folder.widths()
        if not self.shapes:
            raise CheckpointError(
                f"{self.folder.path} has no {WIDTHS}, so it was not trained from here."
                " Train it."
            )
        self.names = list(self.shapes)
        self.own_rows = OwnRows(self.own)
        self._with_columns = has_columns(self.own, self.fitted)

    def own_part(self, ids: Strings) -> Rows:
        """Collect what the driver holds of some ids, its own columns zero where it
        lacks a row; nobody is asked."""
        own = self.own.name
        mine = {}
        away = {}
        if self._with_columns:
            known, columns = self.own_rows.now(self.fitted)
            held = torch.from_numpy(np.isin(ids, known))
            prepared = columns(ids[held.numpy()] if held.any() else known[:1])
            features = torch.zeros(len(ids), *prepared.shape[1:], dtype=prepared.dtype)
            if held.any():
                features[held] = prepared
            mine[own], away = Columns(features), {} if held.all() else {own: ~held}
        settings = self.own.settings
        asks = asked_by(settings, own, [own], ids)
        return Rows(
            Holdings(
                mine, asks, packed(ids), self.encoder, server=settings.server, away=away
            ),
            {},
        )

    def find(self, ids: Strings, *, strict: bool = False) -> Rows:
        """Ask who holds which of these rows, each once, and note which of them cannot be
        predicted; where it is `strict`, that is an error.

        Where this organisation must hold a row, and does not, nobody else is asked about
        it. What others hold is known only where they say so: NoAnswer where a row may be
        lost because somebody is silent.
        """
        own = self.own.name
        rows = self.own_part(ids)
        missing: dict[str, str] = {}
        if not self.may_lack:
            lost = rows.lacking([own], lenient=False).numpy()
            if strict:
                self._refuse(rows, lost)
            missing = dict.fromkeys(ids[lost].tolist(), own)
            if lost.all():
                return replace(rows, missing=missing)
            if lost.any():
                rows = self.own_part(ids[~lost])
        self.look(rows)
        lost = rows.lacking(self.names, lenient=self.may_lack).numpy()
        silent = [name for name in self.names if name not in (own, *rows.places)]
        if silent and lost.any():
            cause = "it does not say which of the rows it holds"
            raise NoAnswer(silent[0], Look.kind, None, cause)
        if strict:
            self._refuse(rows, lost)
        away = {name: mask.numpy() for name, mask in rows.holdings.away.items()}
        missing |= who_lacks(rows.ids, away, ~lost)
        return replace(rows, missing=missing)

    def _refuse(self, rows: Rows, lost: NDArray[np.bool_]) -> None:
        """Raise where a row cannot be predicted. The message goes into this site's log,
        so it names no id."""
        if not lost.any():
            return
        first = np.flatnonzero(lost)[0] + 1
        if self.may_lack:
            raise DataError(
                f"{lost.sum()} of {len(lost)} ids are in no party's table, the first of"
                f" them number {first} in the file."
            )
        may_skip = "skip" in self.local.config.stand_ins()
        cure = (
            '; or set on_missing = "skip" under [federation] in the agreed file.'
            if may_skip
            else "."
        )
        name, away = next(iter(rows.holdings.away.items()))
        places = np.flatnonzero(away.numpy())
        raise DataError(
            f"'{name}' holds no row for {len(places)} of {len(lost)} ids, the first of"
            f" them number {places[0] + 1} in the file. Predict ids that every table"
            f" holds{cure}"
        )

    def look(self, rows: Rows) -> None:
        """Ask each party which of these rows it holds; who does not answer holds none,
        where parties may be missing."""
        self._meet()
        rows.places = self._places(rows.ids, rows.holdings.loss.outputs)
        for name in self.names:
            if name != self.own.name:
                mask = torch.ones(len(rows.ids), dtype=torch.bool)
                mask[rows.places.get(name, torch.empty(0, dtype=torch.int64))] = False
                rows.holdings.away.pop(name, None)
                if mask.any():
                    rows.holdings.away[name] = mask

    def ask(
        self, rows: Rows, wanted: torch.Tensor | None = None
    ) -> list[tuple[torch.Tensor, Predictions]]:
        """Predict rows that were looked for, or some of them, in groups by who lacks
        them, with their places."""
        opened = self.opened(rows)
        groups = []
        wanted = torch.arange(len(rows.ids)) if wanted is None else wanted
        for places, away in rows.holdings.by_absence(wanted):
            group = wanted[places]
            self.take(rows, group, away)
            predictions = opened.predict(
                rows.ids[group.numpy()].tolist(),
                owner=self.own.name,
                model=self.model,
                strict=True,
            )
            groups.append((group, predictions))
        return groups

    def warm(self) -> None:
        """Have everybody read its table now, so that the first batch need not wait for
        it; no id is asked for."""
        none = self.own_part(np.array([], dtype=np.str_))
        if not self.own.private:
            with suppress(NoAnswer):  # who is slow goes on reading
                self.look(none)

    def close(self) -> None:
        """Tell everybody that no more rows are asked for."""
        self.there.attempt({name: Enough() for name in self.there if name in self.met})
        self.site.keep_crossed(self.folder.path)

    def opened(self, rows: Rows) -> Federation:
        """Build the federation that predicts some of these rows, as the checkpoint has
        it. The others have looked for them, and need not introduce themselves again:
        what they send was written down in training."""
        own = self.own.name
        settings = self.local
        introductions = {
            name: roles.Introduction(
                shape,
                len(rows.ids),
                agreed_on(settings, rows.holdings, name)[own].fingerprint(),
            )
            for name, shape in self.shapes.items()
            if name != own
        }

        def reach(_: str, here: Transport) -> Transport:
            return Introduced(self.site.carrier(here, self.engine), introductions)

        federation = Federation(
            settings,
            rows.holdings,
            between=reach,
            elsewhere=Elsewhere({own}, self.names),
        )
        set_bounds(federation, self.own)
        self.folder.load(federation, self.mark)
        self.folder.follow(federation)
        return federation

    def _asked(self, requests: Mapping[str, Request[Any]]) -> dict[str, Any]:
        """Give the answers; where parties may be missing, those who do not answer have
        none."""
        if not requests:
            return {}
        return (
            those_who_answer(self.there, requests)
            if self.lenient
            else self.there.ask_each(requests)
        )

    def _meet(self) -> None:
        """Have partners join that have not agreed to the same yet, as after they were
        away."""
        self.met |= self._asked(
            {name: Join(self.own.agreed) for name in self.there if name not in self.met}
        ).keys()

    def _places(self, ids: Strings, outputs: int) -> dict[str, torch.Tensor]:
        """Give, by party, the places in `ids` of the rows that it holds, in its own
        order of them."""
        number = self.mark["number"]
        present = [name for name in self.there if name in self.met]
        if not self.own.private:
            digests = np.frombuffer(
                b"".join(digests_of(self.own, ids)), dtype=np.uint8
            ).reshape(len(ids), DIGEST)
            asked = self.host.outbox.release(
                torch.from_numpy(digests.copy()), ASKED_IDS
            )
            answers = self._asked(
                {name: Look(self.run, number, outputs, asked) for name in present}
            )
            return {
                name: _held(name, answer, len(ids)) for name, answer in answers.items()
            }
        places = {}
        for name in present:
            try:
                rows = self._in_common(name, ids)
                if len(rows):
                    self.there.ask_one(name, Look(self.run, number, outputs, None))
            except NoAnswer:
                if not self.lenient:
                    raise
            else:
                places[name] = rows
        return places

    def _in_common(self, name: str, ids: Strings) -> torch.Tensor:
        """Find which of these ids a party holds, too: it learns these and no others."""
        held = self._keys_of(ids)
        settings = self.own.settings.alignment
        mine = IdOwner(self.site.seat(), held, settings, among=(self.own.name, name))
        align(
            mine,
            Peers(self.own.name, [name], self.there.transport, self.host.ledger),
            predict=True,
        )
        rows = mine.common_rows
        return (
            torch.empty(0, dtype=torch.int64)
            if rows is None
            else torch.from_numpy(rows.astype(np.int64))
        )

    def _keys_of(self, ids: Strings) -> tuple[Ids, ...]:
        """Give what is compared of these ids: all keys that the own table has of a row;
        else its first."""
        own, keys = self.own.name, len(self.own.settings.keys)
        if keys == 1:
            return (Ids.of(own, [ids.tolist()]),)
        self.site.read()
        table = self.site.table
        texts = [
            ids.copy(),
            *(np.full(len(ids), "", dtype=ids.dtype) for _ in range(keys - 1)),
        ]
        if table is not None and table.keys:
            rows, there = table.find(ids)
            texts = [
                np.where(there, key[rows], text)
                for key, text in zip(table.keys, texts, strict=True)
            ]
        return tuple(Ids.of_texts(own, text) for text in texts)

    def take(self, rows: Rows, group: torch.Tensor, away: Collection[str]) -> None:
        """From here on, everybody but who lacks them is asked for these rows."""
        takes = {}
        for name, places in rows.places.items():
            if name not in away:
                at = torch.full((len(rows.ids),), -1, dtype=torch.int64)
                at[places] = torch.arange(len(places))
                takes[name] = Take(self.host.outbox.release(at[group], ASKED_ROWS))
        # it would answer for other rows
        for name in takes.keys() - self._asked(takes).keys():
            rows.holdings.away[name] = torch.ones(len(rows.ids), dtype=torch.bool)


def check_asks(own: SiteConfig, run: str) -> None:
    """Check that this organisation may ask for columns to predict, and that this names
    a run."""
    if own.name not in own.label_owners:
        raise BoundaryError(
            f"'{own.name}' does not predict; in the federation it agreed to, who holds"
            f" labels does: {', '.join(own.label_owners)}."
        )
    check_run(run)


def _held(name: str, answer: Looked, size: int) -> torch.Tensor:
    held = None if answer.held is None else answer.held.tensor.cpu()
    fits = held is not None and held.dtype == torch.int64 and held.dim() == 1
    if (
        held is None
        or not fits
        or not bool(((held >= 0) & (held < size)).all())
        or len(torch.unique(held)) < len(held)
    ):
        raise PartyError(
            name, Look.kind, None, "it did not say which of the rows it holds"
        )
    return held


FILE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}\.(csv|parquet)")


def predict(
    site: Site, run: str, rows: str, model: str | None = None, *, strict: bool = False
) -> Path:
    """Predict the ids in a file of this organisation's, and give the file with the
    predictions.

    Args:
        site: The organisation that asks.
        run: The name of the run.
        rows: The name of a file in runs/RUN/rows.
        model: "own" or "aggregated", where label owners have a model of each kind.
        strict: Whether an id that cannot be predicted is an error. Else its row says who
            lacks it, and has no prediction.
    """
    own = site.own
    check_asks(own, run)
    find(own.settings.algorithm).check_model(model)
    asked_in, out = checked_file(site.host.folder(run), rows)
    written = written_ids(
        asked_in, own.settings.keys_at(own.name), whose="what to predict"
    )
    spelled = list(dict.fromkeys(written))
    if not spelled:
        raise DataError(f"{asked_in} has no rows to predict.")
    keys = row_names(own.settings, spelled)
    ids = np.array(list(dict.fromkeys(keys)), dtype=np.str_)
    session = Session(site, run, model=model)
    try:
        asked = session.find(ids, strict=strict)
        if asked.missing:
            words = counted(asked.missing, len(ids))
            if len(asked.missing) == len(ids):
                raise DataError(f"{words} Predict ids that the tables hold.")
            log.warning("%s: %s", own.name, words)
        groups = session.ask(asked, asked.predictable)
    finally:
        session.close()
    frame = joined([group for _, group in groups], keys, asked.missing, strict=strict)
    frame.insert(0, own.settings.id_column_of(own.name), spelled, allow_duplicates=True)
    write(out, frame)
    return out


def joined(
    groups: Sequence[Predictions],
    keys: Sequence[str],
    missing: Missing,
    *,
    strict: bool,
) -> pd.DataFrame:
    """The predictions of several groups of rows in one frame, without their ids, in the
    order of these keys; unless it is `strict`, with who lacks the rows that have none."""
    import pandas as pd

    predicted = pd.concat([group.to_frame("id") for group in groups]).set_index("id")
    known = [key for key in keys if key not in missing]
    frame = predicted.loc[known].reset_index(drop=True)
    return frame if strict else with_missing(frame, keys, missing)


def write(out: Path, frame: pd.DataFrame) -> None:
    """Write a .csv or .parquet file, all of it or nothing."""
    out.parent.mkdir(exist_ok=True)
    with replaced(out) as fresh:
        if out.suffix == ".parquet":
            frame.to_parquet(fresh, index=False)
        else:
            for_spreadsheets(frame).to_csv(fresh, index=False)


def checked_file(run: Path, rows: str) -> tuple[Path, Path]:
    """Give where the ids are and where predictions go. The name comes from elsewhere:
    it must be no path."""
    if not FILE.fullmatch(rows) or ".." in rows:
        raise ConfigError(
            "What to predict is the name of a .csv or .parquet file, and no path;"
            f" found {rows[:120]!r}."
        )
    if not (run / ROWS / rows).is_file():
        raise DataError(
            f"There is no file {run / ROWS / rows} with the ids to predict. Put it"
            " there."
        )
    return run / ROWS / rows, run / PREDICTIONS / rows
