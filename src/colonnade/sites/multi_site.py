"""One organisation where several hold labels and all are on different machines: it builds its own role, nobody else's.

    aggregation server              label owner k                           data owner
    Join, Align                ->   Join, its own private alignment    ->   which of its rows k has, for each k
    (Kept                      ->   Kept                               ->   its checkpoints, where a run is resumed)
    Prepare                    ->   Describe -> the other label owners: what labels are called
                                    Bring, Introduce                   ->   its columns of all rows, its own folder
    Begin, TrainRound, Adopt   ->   Open, Embed, Descend, Average      ->   the algorithm's own
    Measure                    ->   Embed                              ->   its scores on its own rows
    Save, Close                ->   Save, Close                        ->   its own checkpoint and summary, once

The aggregation server calls label owners alone, and holds no line to a data owner; embeddings and gradients go between
label owners and data owners, end to end. What every label owner passes on and a data owner does once, it does for the
first and compares for the others. Checkpoints are numbered by the aggregation server (`saves`).
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from colonnade.alignment import Ids as Aligning
from colonnade.alignment.id_owner import Agree, IdOwner
from colonnade.alignment.intersection import align
from colonnade.core import Batches, Message, Party, Peers, Seat, Transport
from colonnade.core.ledger import Entry
from colonnade.core.wire import Envelope
from colonnade.datasets.labels import Labels
from colonnade.errors import BoundaryError, CheckpointError, ConfigError, DataError, InputError
from colonnade.federation.call_policy import Patience
from colonnade.federation.federation import device_of
from colonnade.federation.fit import Outcome, Watch, fit
from colonnade.federation.multi import MultiFederation
from colonnade.rows.shares import Ids, Shares, divide, from_dataset, own_columns, own_labels
from colonnade.rows.tables import read_own, read_own_labels
from colonnade.runs.refusals import Refusals
from colonnade.runs.run_directory import AFTER, RunDirectory
from colonnade.settings.party_file import Own
from colonnade.sites.clerk import RUN
from colonnade.sites.label_sets import Describe, Describer, agreed_labels, described
from colonnade.sites.member import Asked
from colonnade.sites.multi_clerks import Align, ColumnClerk, LabelClerk, Prepare
from colonnade.sites.multi_member import MultiMember
from colonnade.sites.multi_predict import Asking, to_predict
from colonnade.sites.multi_server import Aggregation
from colonnade.sites.prediction import predict
from colonnade.sites.reader import Reader, written
from colonnade.sites.saves import Saves
from colonnade.sites.site import Join, Site
from colonnade.transport.endpoint import Desk
from colonnade.transport.remote import Flare, Line

if TYPE_CHECKING:
    from colonnade.datasets.table import Table


log = logging.getLogger("colonnade.party")


def site_for(own: Own) -> Site | MultiSite:
    """Of the kind that the agreed file asks for."""
    return MultiSite(own) if own.settings.label_owners else Site(own)


class MultiSite:
    """Everything of one organisation. `desk` takes the calls of others; `lines` go to them, and must be there before
    the first call is answered."""

    def __init__(self, own: Own) -> None:
        self.own, self.settings, self.refused = own, own.settings, Refusals(own.runs)
        self.device = device_of(own.settings.engine.device)
        self.lines: Mapping[str, Line] = {}
        self.member: MultiMember | None = None
        self.table: Table | None = None
        self.id_owners: dict[str, IdOwner] = {}
        self.describer: Describer | None = None
        self.clerk: LabelClerk | ColumnClerk | None = None
        self.reader: Reader | None = None
        self.others = list(self.settings.parties)  # whom a label owner asks to predict
        if self.has_labels:
            self.clerk = LabelClerk(self._seat(), self)
        elif not own.drives:
            self.clerk = ColumnClerk(self._seat(), self)
            self.reader = Reader(self.clerk.seat, self, self.settings.label_owners)
        self.roles: list[Party] = [role for role in (self.clerk, self.reader) if role is not None]
        others = [name for name in own.names if name != own.name]
        self.desk = Desk(own.name, self.handle, admitted=others, device=self.device, refused=self.refused)

    @property
    def has_labels(self) -> bool:
        return self.own.name in self.settings.label_owners

    @property
    def _public(self) -> bool:
        return self.settings.data.dataset is not None

    def handle(self, envelope: Envelope[Any]) -> Message:
        """By the role that serves it, and serves it to this sender."""
        if isinstance(envelope.message, Agree):
            self._refresh_ids()
        able = [role for role in self.roles if type(envelope.message) in role.served()]
        for role in sorted(able, key=lambda role: envelope.sender not in (role.serves_for or ())):
            asked = None if type(envelope.message) in role.aside else self.reader
            with nullcontext() if asked is None else asked.answering(envelope.sender):
                reply: Message = role.handle(envelope)
            return reply
        served = ", ".join(sorted({kind.kind for role in self.roles for kind in role.served()})) or "nothing"
        raise BoundaryError(f"'{self.own.name}' does not serve {envelope.message.kind}.\n    It serves: {served}.")

    def read(self) -> None:
        """This organisation's table, once, when it joins: a wrong one then fails a call, with its name."""
        if self.table is None and not self._public and not self.own.drives:
            self._seen, self.table = written(self.own), self._read()
            self.id_owners = self._id_owners(self.table)
            self.roles += self.id_owners.values()

    @cached_property
    def patience(self) -> Patience:
        return Patience(self.settings.engine, elsewhere=True)

    @cached_property
    def carrier(self) -> Transport:
        """To everybody this organisation may call, with lost calls made again."""
        deadline = self.settings.engine.deadline
        return self.patience.around(Flare(self.lines, device=self.device, deadline=deadline))

    def peers(self, names: Any, seat: Seat) -> Peers:
        return Peers(self.own.name, names, self.carrier, seat.ledger)

    @property
    def below(self) -> Peers:
        """The data owners, as the clerk of a label owner asks them."""
        assert self.clerk is not None
        return self.peers(self.settings.parties, self.clerk.seat)

    def align(self) -> None:
        """A label owner finds the rows it has in common with all data owners."""
        if self._public:
            return
        own = self.own.name
        id_owner = self.id_owners[own]
        align(id_owner, self.peers(self.settings.parties, id_owner.seat))
        rows = self.common(own)
        train = divide(rows.ids, self.settings.data, self.settings.engine.seed, own)["train"]
        assert rows.label is not None
        others = [name for name in self.settings.label_owners if name != own]
        self.describer = Describer(self._seat(), rows.label.iloc[train.numpy()], self.settings.data.task, others)
        self.roles.append(self.describer)

    def own_labels(self) -> Shares:
        """A label owner's rows, once all label owners have told what their labels are called."""
        own, settings = self.own.name, self.settings
        if self._public:
            whole = from_dataset(settings)
            return Shares({own: whole.label_owners[own]}, {}, whole.label_owners[own].ids, whole.encoder, 1)
        if self.describer is None:
            raise DataError(f"'{own}' has not compared its ids with the data owners.")
        others = [name for name in settings.label_owners if name != own]
        told = self.peers(others, self.describer.seat).ask(Describe()) | {own: self.describer.told}
        encoder = agreed_labels({name: told[name] for name in settings.label_owners}, settings.data.task)
        return replace(own_labels(settings, own, self.common(own), encoder), aligned=self._crossed())

    def own_columns(self) -> Shares:
        """A data owner's columns of the rows of all label owners."""
        own, settings = self.own.name, self.settings
        if self._public:
            whole = from_dataset(settings)
            if own not in whole.data_owners:
                there = ", ".join(whole.data_owners)
                raise ConfigError(f"{own!r} is no data owner of this data set's; there are {there}.")
            return Shares(whole.label_owners, {own: whole.data_owners[own]}, whole.ids, whole.encoder, whole.known_to)
        ids = {name: self.common(name).ids for name in settings.label_owners}
        return replace(own_columns(settings, own, self.table, ids), aligned=self._crossed())

    def common(self, owner: str) -> Table:
        """This organisation's rows that are a label owner's too, in the order of their ids."""
        rows = self.id_owners[owner].common_rows
        assert self.table is not None
        if rows is None or not len(rows):
            raise DataError(f"'{owner}' shares no id with all data owners, or they were not compared.")
        return self.table.in_order(np.sort(self.table.ids[rows]))

    def digest(self, ids: Ids) -> str:
        """Of the whole list of ids: it tells two lists apart and says nothing else."""
        return hashlib.sha256("\n".join([self.own.agreed, *ids.tolist()]).encode()).hexdigest()

    def serve(self, member: MultiMember, askers: Any) -> None:
        """From here on the algorithm's requests are answered."""
        member.owner.serves_for = frozenset(askers)
        self.member = member
        self.roles.append(member.owner)
        self.keep_alignment(member.run.path)

    def keep_alignment(self, run: Path) -> None:
        """What crossed to find the rows to predict. A training's alignment is in the ledger of the training."""
        for role in (self.clerk, *self.id_owners.values()):
            if role is not None and role.ledger.entries:
                role.ledger.flush(run / "parties" / self.own.name / AFTER)

    def _crossed(self) -> dict[str, list[Entry]]:
        """While rows were agreed on."""
        roles = [role for role in (self.clerk, *self.id_owners.values()) if role is not None]
        return {self.own.name: [entry for role in roles for entry in role.ledger.take()]}

    def answer(self, asked: Asked, folder: Path) -> None:
        """From here on for rows that a label owner is to predict, with the run in this folder."""
        self.serve(to_predict(self.own, self.device, asked, folder), {asked.by})

    def leave(self) -> None:
        """Another prediction may begin."""
        if self.member is not None:
            self.keep_alignment(self.member.run.path)
            assert self.member.purse is not None
            self.member.purse.leave()
            self.roles.remove(self.member.owner)
            self.member = None

    def drive(
        self, lines: Mapping[str, Line], run: str, *, resume: bool = False, watch: Watch | None = None
    ) -> Outcome:
        """As the aggregation server: train with the label owners, from joining to the summaries."""
        own = self.own
        if not own.drives:
            raise BoundaryError(f"'{own.name}' does not drive; in the federation it agreed to, '{own.driver}' does.")
        _check_name(run)
        self.lines = {name: lines[name] for name in self.settings.label_owners}
        others = self.peers(self.settings.label_owners, self._seat())
        others.ask(Join(own.agreed))
        others.ask(Align())
        folder = RunDirectory(own.runs / run)
        saves = Saves(folder, others, lenient=True)  # who is silent misses a round, and may miss a checkpoint
        number = saves.go_back() if resume else 0
        ready = others.ask(Prepare(run, resume, number))
        step = folder.mark()["step"] if number else 0
        for name, one in ready.items():
            if one.step != step:
                raise CheckpointError(
                    f"'{name}' is at round {one.step} of this run, and {step} are done. Start a new one."
                )
        federation = Aggregation(self.settings, ready, self.carrier, others, self.device)
        watch = saves.after(self.settings.train.checkpoint_every, watch)
        outcome = fit(cast(MultiFederation, federation), folder, resume=number > 0, watch=watch)
        saves.lenient = False
        saves.save(federation.batches.done)
        saves.close(outcome)
        return outcome

    def predict(self, lines: Mapping[str, Line], run: str, rows: str, model: str = "aggregated") -> Path:
        """As a label owner: predict the ids in its own file with the data owners' columns, by the aggregated model or
        its own; gives the file of predictions."""
        self.check_asks(run)
        return predict(self, lines, run, rows, partial(Asking, model=model))

    def check_asks(self, run: str) -> None:
        """That this organisation may ask for columns to predict, and that this names a run."""
        if not self.has_labels:
            raise BoundaryError(
                f"'{self.own.name}' does not predict; in the federation it agreed to, label owners do: "
                f"{', '.join(self.settings.label_owners)}."
            )
        _check_name(run)

    def common_ids(self, asker: str) -> Ids | None:
        """Those that an alignment with a label owner found, in the agreed order."""
        rows = self.id_owners[asker].common_rows if asker in self.id_owners else None
        return None if rows is None or self.table is None else self.table.ids[rows]

    def _refresh_ids(self) -> None:
        """While somebody predicts, ids are compared as the table has them now; one that cannot be read changes nothing.
        In training all label owners' rows are of one reading."""
        looked = self.reader is not None and self.reader.by is not None
        if not looked or self.table is None or (seen := written(self.own)) == self._seen:
            return
        try:
            self.table = self._read()
        except InputError as error:
            log.warning("%s: its table changed and cannot be read (%s)", self.own.name, type(error).__name__)
        else:
            for id_owner in self.id_owners.values():
                id_owner.ids = Aligning.of(self.own.name, [self.table.ids.tolist()])
        self._seen = seen

    def _seat(self) -> Seat:
        """For what is not about the algorithm: rows are agreed on later."""
        return Seat.at(self.own.name, Batches({}, batch_size=1, epochs=1, seed=0))

    def _read(self) -> Table:
        name = self.own.name
        table = (read_own_labels if self.has_labels else read_own)(self.settings, name)
        if not self.has_labels and not table.columns:
            raise DataError(f"'{name}' holds no feature columns, and it is a data owner. Name some columns.")
        return table.in_order(np.sort(table.ids))

    def _id_owners(self, table: Table) -> dict[str, IdOwner]:
        """A label owner aligns once; a data owner with each label owner, under another secret each time."""
        settings = self.settings.alignment
        settings.check_trains()
        own = self.own.name
        ids = Aligning.of(own, [table.ids.tolist()])
        found = {}
        for owner in [own] if self.has_labels else self.settings.label_owners:
            found[owner] = IdOwner(self._seat(), ids, settings)
            found[owner].serves_for = frozenset({owner} - {own})
        return found


def _check_name(run: str) -> None:
    if not RUN.fullmatch(run):
        raise ConfigError(f"A run's name has letters, digits, '-', '_' and '.'; found {run!r}.")


def rehearse(own: Own) -> tuple[int, int, MultiMember | None]:
    """What an organisation can check by itself before anybody calls: how many rows it has, how many numbers a row, and
    its role with its rules, as if it shared all its rows; the aggregation server has none of these."""
    site = MultiSite(own)
    site.read()
    if own.drives:
        return 0, 0, None
    settings, name = own.settings, own.name
    if site.table is None:
        shares = site.own_labels() if site.has_labels else site.own_columns()
    elif site.has_labels:
        assert site.table.label is not None
        told = described(site.table.label, name, settings.data.task)
        encoder = Labels(name, "regression" if told.measured else "classification", tuple(json.loads(told.classes)))
        shares = own_labels(settings, name, site.table, encoder)
    else:
        shares = own_columns(settings, name, site.table, dict.fromkeys(settings.label_owners, site.table.ids))
    held = shares.data_owners.get(name)
    numbers = 0 if held is None or held.features is None else held.features[0].numel()
    return len(shares.ids), numbers, MultiMember(own, shares, site.device)
