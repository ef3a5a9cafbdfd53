"""The driver's side of predictions across machines: opened once, then asked batch by batch.

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

Which ids are asked for, a party learns as far as it holds them: it has to look them up. With `align = "exact"`, where
all hold the same ids, they travel as digests keyed with the agreed file's fingerprint, which hide nothing from whoever
guesses ids; with `align = "private"` only what is common is learned.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch

from colonnade.algorithms import find
from colonnade.alignment import Ids
from colonnade.alignment.id_owner import IdOwner
from colonnade.alignment.intersection import align
from colonnade.core import Batches, Peers, Request, Seat, Transport, roles
from colonnade.datasets.labels import Labels
from colonnade.errors import CheckpointError, NoAnswer, PartyError
from colonnade.federation.call_policy import Patience
from colonnade.federation.federation import Federation, Predictions
from colonnade.rows.holdings import Holding, Holdings
from colonnade.runs.run_directory import WIDTHS, RunDirectory, write_text
from colonnade.settings.federation_file import EngineSettings
from colonnade.sites.reader import (
    ASKED_IDS,
    ASKED_ROWS,
    DIGEST,
    Enough,
    Look,
    Looked,
    OwnRows,
    Strings,
    Take,
    digests_of,
    has_columns,
)
from colonnade.sites.saves import Kept, marked, newest_common, numbers
from colonnade.transport.remote import Flare, Line

if TYPE_CHECKING:
    from pathlib import Path

    from colonnade.sites.multi_site import MultiSite
    from colonnade.sites.site import Site


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


@dataclass
class Rows:
    """Some ids: what the driver holds of them, who lacks which, and the places of the rows that each party holds."""

    holdings: Holdings
    places: dict[str, torch.Tensor]

    @property
    def ids(self) -> Strings:
        return self.holdings.ids

    def lacking(self, names: Collection[str], *, lenient: bool) -> torch.Tensor:
        """Which of them cannot be predicted: not all hold them, or, where parties may be missing, nobody does."""
        away = list(self.holdings.away.values())
        if not away or (lenient and len(away) < len(names)):
            return torch.zeros(len(self.ids), dtype=torch.bool)
        return torch.stack(away).all(0) if lenient else torch.stack(away).any(0)


Predict = Callable[[list[str]], Predictions]


class Part(Protocol):
    """The asking organisation's own part of a run."""

    @property
    def names(self) -> Sequence[str]:
        """Who holds columns, in their order."""
        ...

    def open(self, rows: Rows) -> Predict:
        """What predicts some of these rows, as the checkpoint has it. The others have looked for them."""
        ...


class Session:
    """Of one run, at the organisation that asks. `part` makes its own part of it, a `Driver` unless there are several
    who hold labels; `engine` says how long it waits, where not as agreed."""

    def __init__(
        self,
        site: Site | MultiSite,
        lines: Mapping[str, Line],
        run: str,
        *,
        part: Callable[[Session], Part] | None = None,
        engine: EngineSettings | None = None,
    ) -> None:
        self.site, self.own, self.run, self.lines = site, site.own, run, lines
        self.engine = engine or site.own.settings.engine
        self.local = replace(self.own.local, engine=self.engine)
        self.lenient = self.engine.on_missing in ("stale", "skip")
        data = self.own.settings.data
        self.private = data.align == "private" and data.dataset is None
        assert site.clerk is not None
        self.clerk = site.clerk
        self.folder = RunDirectory(site.clerk.folder(run))
        self.patience = Patience(self.engine, elsewhere=True)
        carrier = self.patience.around(self.carrier())
        names = [name for name in site.others if name in lines]
        self.there = Peers(self.own.name, names, carrier, site.clerk.ledger)
        self.met: set[str] = set()
        self._meet()
        asked = Peers(self.own.name, [name for name in self.there if name in self.met], carrier, site.clerk.ledger)
        kept = {self.own.name: numbers(self.folder)} | {name: one.numbers for name, one in asked.ask(Kept(run)).items()}
        self.mark = marked(self.folder, newest_common(kept))
        self.fitted = self.folder.fitted(self.own.name, json.loads)
        self.encoder = Labels.from_state(self.fitted["labels"])
        self.part: Part = (part or Driver)(self)
        self.names = list(self.part.names)
        self.own_rows = OwnRows(self.own)
        self._with_columns = has_columns(self.own, self.fitted)

    def own_part(self, ids: Strings) -> Rows:
        """What the driver holds of some ids; its own columns are zero where it lacks a row, and then nobody uses them.
        Nothing is asked."""
        own = self.own
        part, away = Holding(labels=torch.zeros(len(ids), dtype=torch.int64)), {}
        if self._with_columns:
            known, columns = self.own_rows.now(self.fitted)
            held = torch.from_numpy(np.isin(ids, known))
            some = columns(ids[held.numpy()] if held.any() else known[:1])
            part.features = torch.zeros(len(ids), *some.shape[1:], dtype=some.dtype)
            if held.any():
                part.features[held] = some
            away = {} if held.all() else {own.name: ~held}
        splits = {"predict": torch.arange(len(ids))}
        return Rows(Holdings({own.name: part}, ids, splits, own.name, self.encoder, away), {})

    def look(self, rows: Rows) -> None:
        """Ask each party which of these rows it holds; who does not answer holds none, where parties may be missing."""
        self._meet()
        rows.places = self._places(rows.ids, rows.holdings.loss.outputs)
        for name in self.names:
            if name != self.own.name:
                mask = torch.ones(len(rows.ids), dtype=torch.bool)
                mask[rows.places.get(name, torch.empty(0, dtype=torch.int64))] = False
                rows.holdings.away.pop(name, None)
                if mask.any():
                    rows.holdings.away[name] = mask

    def ask(self, rows: Rows, wanted: torch.Tensor | None = None) -> list[tuple[torch.Tensor, Predictions]]:
        """Predict rows that were looked for, or some of them; by who lacks them, with their places."""
        predict = self.part.open(rows)
        wanted = torch.arange(len(rows.ids)) if wanted is None else wanted
        groups = rows.holdings.by_absence(wanted)
        return [self._group(predict, rows, wanted[group], away) for group, away in groups]

    def warm(self) -> None:
        """Everybody reads its table now, so that the first batch need not wait for it; no id is asked for."""
        none = self.own_part(np.array([], dtype=np.str_))
        if not self.private:
            with suppress(NoAnswer):  # who is slow goes on reading
                self.look(none)

    def close(self) -> None:
        """That was all."""
        self.there.attempt({name: Enough() for name in self.there if name in self.met})
        self.site.keep_alignment(self.folder.path)

    def carrier(self, here: Transport | None = None) -> Flare:
        """To everybody else; and, where it holds columns itself, to them."""
        own = [] if here is None else [self.own.name]
        return Flare(self.lines, here=here, own=own, device=self.site.device, deadline=self.engine.deadline)

    def _asked(self, requests: Mapping[str, Request[Any]]) -> dict[str, Any]:
        """The answers; of those who do not answer none, where parties may be missing."""
        if not self.lenient:
            return self.there.ask_each(requests) if requests else {}
        answers, failures = self.there.attempt(requests) if requests else ({}, {})
        for error in failures.values():
            if not isinstance(error, NoAnswer):
                raise error
        return answers

    def _meet(self) -> None:
        """Who has not agreed to the same yet is asked, as after it was away."""
        from colonnade.sites.site import Join

        self.met |= self._asked({name: Join(self.own.agreed) for name in self.there if name not in self.met}).keys()

    def _places(self, ids: Strings, outputs: int) -> dict[str, torch.Tensor]:
        """Of each party the places in `ids` of the rows that it holds, in its own order of them."""
        number, present = self.mark["number"], [name for name in self.there if name in self.met]
        if not self.private:
            digests = np.frombuffer(b"".join(digests_of(self.own, ids)), dtype=np.uint8).reshape(len(ids), DIGEST)
            asked = self.clerk.outbox.release(torch.from_numpy(digests.copy()), ASKED_IDS)
            answers = self._asked({name: Look(self.run, number, outputs, asked) for name in present})
            return {name: _held(name, answer, len(ids)) for name, answer in answers.items()}
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
        """Which of these a party holds, too: it learns these and no others."""
        seat = Seat.at(self.own.name, Batches({}, batch_size=1, epochs=1, seed=0))
        mine = IdOwner(seat, Ids.of(self.own.name, [ids.tolist()]), self.own.settings.alignment)
        align(mine, Peers(self.own.name, [name], self.there.transport, self.clerk.ledger))
        rows = mine.common_rows
        return torch.empty(0, dtype=torch.int64) if rows is None else torch.from_numpy(rows.astype(np.int64))

    def _group(
        self, predict: Predict, rows: Rows, group: torch.Tensor, away: Collection[str]
    ) -> tuple[torch.Tensor, Predictions]:
        """The rows that the same parties hold."""
        takes = {}
        for name, places in rows.places.items():
            if name not in away:
                at = torch.full((len(rows.ids),), -1, dtype=torch.int64)
                at[places] = torch.arange(len(places))
                takes[name] = Take(self.clerk.outbox.release(at[group], ASKED_ROWS))
        for name in takes.keys() - self._asked(takes).keys():  # it would answer for other rows
            rows.holdings.away[name] = torch.ones(len(rows.ids), dtype=torch.bool)
        return group, predict(rows.ids[group.numpy()].tolist())


class Driver:
    """The one that holds the labels, perhaps columns too, and drives."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.widths = {name: shape[-1] for name, shape in session.folder.widths().items()}
        self.names = list(self.widths)
        if not self.widths:
            raise CheckpointError(f"{session.folder.path} has no {WIDTHS}, so it was not trained from here. Train it.")

    def open(self, rows: Rows) -> Predict:
        session, settings, own = self.session, self.session.local, self.session.own.name
        train, seed = settings.train, settings.engine.seed
        agreed: dict[str, Any] = {"epochs": train.epochs, "seed": seed, "reshuffle": train.reshuffle}
        size = find(settings.algorithm).batch_size(train.batch_size, len(rows.holdings.splits.get("train", ())))
        mark = Batches(rows.holdings.splits, batch_size=size, **agreed).fingerprint()
        cards = {k: roles.Card(width, len(rows.ids), mark) for k, width in self.widths.items() if k != own}

        def reach(here: Transport) -> tuple[Transport, list[str]]:
            return Introduced(session.carrier(here), cards), self.names

        federation = Federation(settings, rows.holdings, reach=reach)
        session.folder.load(federation, session.mark)
        session.folder.follow(federation)
        return federation.predict


def keep_widths(run: Path, widths: Mapping[str, int | Sequence[int]]) -> None:
    """For predictions, and for whoever exports: what everybody sends for a row, in their order."""
    write_text(run / WIDTHS, json.dumps(widths))


def _held(name: str, answer: Looked, size: int) -> torch.Tensor:
    held = None if answer.held is None else answer.held.tensor.cpu()
    fits = held is not None and held.dtype == torch.int64 and held.dim() == 1
    if held is None or not fits or not bool(((held >= 0) & (held < size)).all()) or len(torch.unique(held)) < len(held):
        raise PartyError(name, Look.kind, None, "it did not say which of the rows it holds")
    return held
