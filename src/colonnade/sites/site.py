"""One organisation where a federation spans machines: it builds its own roles from its
own files, and nobody else's.

    label owner                              everybody who holds columns
    Join      the same agreed file?     ->   refuses another one
    (Agree ...                          ->   private set intersection, where common rows are found first; or
     AgreeKeyed, and then the helper    ->   HandOut: hashes of its ids, which the helper compares)
    (Kept     which checkpoints         ->   those in its folder, where a run is resumed)
    Prepare   so many outputs           ->   reads its table, builds its feature owner, opens its folder of the run
    Embed ... the algorithm's requests  ->   its feature owner
    Save      after the driver saved    ->   its own checkpoint, in its own folder (`saves`)
    Close                               ->   its summary: what left, what arrived, what was promised

With one label owner, it drives (`driving`). With several, the aggregation server drives
them:

    aggregation server              label owner k
    Join, Align                ->   Join and its own alignment with those who hold columns
    (Kept                      ->   what it has and they have)
    GetReady                   ->   Describe -> the other label owners: what labels are called; then Prepare, Introduce
    Begin, TrainRound, Adopt   ->   Open, Embed, Descend, Average: the algorithm's own
    Measure                    ->   Embed; its scores on its own rows
    Save, Close                ->   Save, Close

Where the agreed file names a helper, it is a site without data that asks all parties
for their lists, and tells them what is common (`alignment.helper`).

The aggregation server calls label owners alone, and holds no line to who holds columns;
embeddings and gradients go between label owners and them, end to end.

Rows: everybody sorts the ids it holds. Where they were not compared privately, the
label owner tells a digest of its whole list, and hears whether the others hold the
same: nobody is told a digest of rows that it may not know. Batches follow from the
agreed seed, and so do splits where they are by id alone; else the label owner tells
which rows train (`Prepare.sides`). A feature owner's introduction says whether they are
the same. With [data] rows = "label_owner" each partner aligns itself with the label
owner alone, is told the sides of its own rows, and finds its part of a batch by their
ids, or where several keys are compared, by numbers that it is told (`Prepare.numbers`);
the label owner knows who holds which of its rows. All of these calls are made again
where they were lost, as [federation] says (`federation.call_policy`): each is done once
however often it arrives.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import cached_property, partial
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from colonnade.alignment.allowance import Allowance
from colonnade.alignment.helper import Helper, align_by_helper, sizes_of, takes_helper
from colonnade.alignment.id_owner import ALIGN, NUMBERS, Agree, IdOwner
from colonnade.alignment.ids import ids_of, matched_names, shared
from colonnade.alignment.intersection import Alignment, align
from colonnade.alignment.keyed import AgreeKeyed, KeyedIds
from colonnade.core import (
    Batches,
    Ledger,
    Message,
    Organisation,
    Party,
    Peers,
    Request,
    Transport,
)
from colonnade.core.by_id import numbers_of
from colonnade.core.ledger import Entry
from colonnade.core.wire import Envelope
from colonnade.datasets.table import Table
from colonnade.errors import BoundaryError, CheckpointError, DataError, InputError
from colonnade.federation.federation import Elsewhere, Federation
from colonnade.federation.organisation import device_of, training_rows
from colonnade.privacy.drawn_labels import DrawnLabels
from colonnade.rows.holdings import Holdings, LabelledRows
from colonnade.rows.matching import by_key
from colonnade.rows.sides import sides_to_tell
from colonnade.runs.layout import AFTER, PARTIES
from colonnade.runs.run_directory import WORDS, RunDirectory, column_of_people
from colonnade.settings.party_file import SiteConfig
from colonnade.settings.sections import EngineSettings
from colonnade.sites.candidate import SelectionHost
from colonnade.sites.host import ColumnHost, Host, LabelHost, Refusals, check_same
from colonnade.sites.label_sets import Describe, Describer, agreed_labels, labels_alone
from colonnade.sites.messages import Join, Prepare
from colonnade.sites.participant import (
    Listener,
    Participant,
    as_trained,
    open_own_store,
    set_bounds,
    stand,
)
from colonnade.sites.reader import (
    Asked,
    Reader,
    ids_with_zeros,
    own_columns,
    own_labels,
    read_own_table,
    written,
)
from colonnade.sites.selecting import LeadingHost
from colonnade.sites.witnessing import Witnessing
from colonnade.store import SiteStore
from colonnade.transport.kept_up import with_retries
from colonnade.transport.remote import Endpoint, Remote, Route

log = logging.getLogger("colonnade.party")


class Site:
    """One organisation's site, with all that it holds. `desk` takes the calls of others,
    and passes them on to `endpoint`; `routes` go to others, and must be there before
    the first call is made."""

    def __init__(self, own: SiteConfig) -> None:
        self.own = own
        self.refused = Refusals(own.runs)
        self.witnessing = Witnessing(own, lambda: self.store)
        self._routes: dict[str, Route] = {}
        self.device = device_of(own.settings.engine.device)
        self.participant: Participant | None = None
        self.table: Table | None = None
        self.id_owners: dict[str, IdOwner] = {}
        self.describer: Describer | None = None
        self.reader: Reader | None = None
        # set where an audit's host is (`attacks.at_site`)
        self.audits: Callable[[Participant], Listener] | None = None
        self.moments: Collection[str] = ()
        organisation = self.seat()
        self.host: Host = Host(organisation, self, ())
        if own.name in own.feature_owners:
            self.host = ColumnHost(organisation, self, own.label_owners)
            self.reader = Reader(organisation, self, own.label_owners)
        elif self.holds_labels and not own.drives:
            self.host = LabelHost(organisation, self)
        self.roles: list[Party] = [
            role for role in (self.host, self.reader) if role is not None
        ]
        self.keyed: KeyedIds | None = None
        if own.name == own.helper:
            admitted = [*own.label_owners, *own.feature_owners]
            self.roles.append(
                Helper(
                    organisation, self.peers, askers=own.label_owners, admitted=admitted
                )
            )
        if own.settings.selection.servers:
            self.roles.append(
                LeadingHost(self.seat(), self)
                if self.holds_labels
                else SelectionHost(self.seat(), self)
            )
        others = [name for name in own.everybody if name != own.name]
        self.endpoint = Endpoint(
            own.name,
            self.handle,
            admitted=others,
            allow=self.allow,
            most=own.memory_per_call,
            device=self.device,
            refused=self.refused,
        )
        self.desk = self.witnessing.around(self.endpoint)

    @cached_property
    def store(self) -> SiteStore:
        """What this organisation remembers over all its runs, from when it is first
        needed on. What is wrong with it, and the cure, is for its owner's log."""
        return open_own_store(self.own)

    @property
    def routes(self) -> dict[str, Route]:
        """The lines to others, over which sites tell each other of their stores."""
        return self._routes

    @routes.setter
    def routes(self, lines: Mapping[str, Route]) -> None:
        self._routes = {
            name: self.witnessing.line(name, line) for name, line in lines.items()
        }

    @property
    def holds_labels(self) -> bool:
        return self.own.name in self.own.label_owners

    def handle(self, envelope: Envelope[Any]) -> Message:
        """Let the role answer that serves this, and serves it to this sender."""
        if isinstance(envelope.message, Agree | AgreeKeyed):
            self._refresh()
        role = self._role(envelope.sender, type(envelope.message))
        asked = None if type(envelope.message) in role.aside else self.reader
        with nullcontext() if asked is None else asked.answering(envelope.sender):
            taking = self.participant
            if taking is not None and role is taking.role:
                return taking.answer(envelope)
            reply: Message = role.handle(envelope)
        return reply

    def allow(self, sender: str, kind: type[Request[Any]]) -> None:
        """Refuse what no role here serves to this sender."""
        self._role(sender, kind).allow(sender, kind)

    def _role(self, sender: str, kind: type[Request[Any]]) -> Party:
        """Find the role that serves a request, and serves it to this sender where there
        is one."""
        able = [role for role in self.roles if kind in role.served()]
        if not able:
            served = (
                ", ".join(
                    sorted(
                        {
                            request.kind
                            for role in self.roles
                            for request in role.served()
                        }
                    )
                )
                or "nothing"
            )
            raise BoundaryError(
                f"'{self.own.name}' does not serve {kind.kind}.\n    It serves:"
                f" {served}."
            )
        return min(able, key=lambda role: sender not in (role.serves_for or ()))

    def read(self) -> None:
        """Read this organisation's table, once, when it joins: a wrong one then fails a
        call, with its name."""
        own = self.own
        if (
            self.table is None
            and own.settings.data.dataset is None
            and (self.holds_labels or self.reader is not None)
        ):
            self._seen = written(own)
            self.table = read_own_table(own)
            if own.private:
                self.id_owners = self._id_owners(self.table)
                self.roles += self.id_owners.values()
                if own.helper:
                    owners = list(self.id_owners.values())
                    askers = () if self.holds_labels else own.label_owners
                    self.keyed = KeyedIds(
                        self.seat(), owners, helper=own.helper, askers=askers
                    )
                    self.roles.append(self.keyed)

    def carrier(
        self,
        here: Transport | None = None,
        engine: EngineSettings | None = None,
        *,
        joins: bool = False,
    ) -> Transport:
        """Give a transport to everybody this organisation may call; and, where it holds
        columns itself, to them."""
        deadline = (engine or self.own.settings.engine).deadline
        own = [] if here is None else [self.own.name]
        most = self.own.memory_per_call
        return Remote(
            self.routes,
            here=here,
            own=own,
            device=self.device,
            deadline=deadline,
            most=most,
            joins=joins,
        )

    def peers(
        self, names: Sequence[str], organisation: Organisation | None = None
    ) -> Peers:
        """Give others to ask, with lost calls made again."""
        transport = with_retries(self.carrier(), self.own.settings.engine)
        return Peers(
            self.own.name,
            names,
            transport,
            (organisation or self.host.organisation).ledger,
        )

    def partners(self) -> Peers:
        """Give those who hold columns, as a label owner asks them."""
        return self.peers(self.own.feature_owners)

    def meet(self) -> Peers:
        """Meet those who hold columns, as a label owner that drives: all have agreed to
        the same file."""
        self.read()
        partners = self.partners()
        partners.ask(Join(self.own.agreed))
        return partners

    def compare(self, reveal: str = "rows") -> list[Alignment]:
        """Find, as a label owner whose ids are compared privately, the rows that are
        common with all who hold columns, or with "count" only how many they are."""
        differ = self.own.settings.rows_differ
        every = self.own.feature_owners  # one partner after the other, or all
        return [
            self._align(mine, [partner] if differ else every, reveal)
            for partner, mine in self.id_owners.items()
        ]

    def align(self) -> None:
        """Find, as a label owner, the rows that are common with all who hold columns.
        Each of several label owners can then tell the others what its labels are
        called."""
        own = self.own
        self.compare()
        if (
            others := [name for name in own.label_owners if name != own.name]
        ) and self.table is not None:
            self.describer = Describer(self.seat(), own, self.common(own.name), others)
            self.roles.append(self.describer)

    def _align(self, mine: IdOwner, names: Sequence[str], reveal: str) -> Alignment:
        """Align by Diffie-Hellman, or by the helper where the agreed file wants it for
        so many ids."""
        own = self.own
        keyed = self.keyed
        if keyed is not None:
            peers = self.peers([*names, own.helper], keyed.organisation)
            everybody = [own.name, *names]
            if takes_helper(
                mine.settings, list(sizes_of(keyed, everybody, peers).values())
            ):
                return align_by_helper(keyed, everybody, peers, reveal=reveal)
        return align(mine, self.peers(names, mine.organisation), reveal=reveal)

    def own_labels(self, resumed: RunDirectory | None = None) -> Holdings:
        """Build a label owner's rows, and where it drives, its columns; a resumed run
        divides them as it did."""
        own = self.own
        encoder = None
        if self.describer is not None:
            others = [name for name in own.label_owners if name != own.name]
            labels = {own.name: self.describer.described}
            labels |= self.peers(others, self.describer.organisation).ask(Describe())
            encoder = agreed_labels(
                {name: labels[name] for name in own.label_owners},
                own.settings.data,
            )
        table = None if self.table is None else self.common(own.name)
        salt = (
            self._salt()
            if resumed is None
            else str(resumed.fitted(own.name).get("salt", ""))
        )
        holdings = replace(
            own_labels(own, table, encoder, salt), aligned=self._crossed()
        )
        if own.settings.rows_differ and own.private:
            lacks = {
                name: ~np.isin(holdings.ids, self._shared_with(name))
                for name in self.id_owners
            }
            holdings.away.update(
                {
                    name: torch.from_numpy(mask)
                    for name, mask in lacks.items()
                    if mask.any()
                }
            )
            # a partner knows a row by another key, so numbers do not follow from it
            if len(own.settings.keys) > 1:
                mine = holdings.label_owners[own.name]
                mine.numbers = numbers_of(
                    mine.ids.tolist(), own.settings.engine.seed, mine.salt
                )
                counts = {
                    name: by_key(own.settings, owner.rows_by_key)
                    for name, owner in self.id_owners.items()
                }
                holdings = replace(holdings, matched=counts)
        holdings.label_owners[own.name].drawn = self._drawn_labels()
        return holdings

    def _drawn_labels(self) -> DrawnLabels:
        """What this label owner drew at random for its rows, over all its runs."""
        own = self.own
        settings = own.settings
        labelled = settings.label_owners.get(own.name) or settings.parties.get(own.name)
        label = None if labelled is None else labelled.label
        return DrawnLabels(
            lambda: self.store,
            label or "label",  # a public data set has one, without a name
            column_of_people(own.settings, own.name),
            WORDS[own.store.new_people],
            own.store.draw_again,
        )

    def labels_alone(self) -> Holdings:
        """Build what a label owner holds, as far as it can tell without the other label
        owners."""
        return labels_alone(
            self.own,
            None if self.table is None else self.common(self.own.name),
            self._salt(),
        )

    def _salt(self) -> str:
        """Draw what a label owner divides its rows with, where others are not to know."""
        return (
            secrets.token_hex(16)
            if self.own.local.models_of(self.own.name) == "secret"
            else ""
        )

    def common(self, label_owner: str) -> Table:
        """Give this organisation's rows that are a label owner's too, in the order of
        their ids."""
        assert self.table is not None
        if not self.own.private:
            return self.table
        if self.own.settings.rows_differ and label_owner == self.own.name:
            held = [self._shared_with(name) for name in self.id_owners]
            ids = (
                self.table.ids
                if self.table.columns
                else np.unique(np.concatenate(held))
            )
            return self.table.in_order(np.sort(ids))
        rows = self.id_owners[label_owner].common_rows
        if rows is None or not len(rows) or self.id_owners[label_owner].predicts:
            raise DataError(
                f"No id of '{label_owner}' is held by all parties, or they were not"
                " compared. Compare how ids are written."
            )
        return shared(self.table, self.id_owners[label_owner].rows_by_key)

    def common_ids(self, asker: str) -> NDArray[np.str_] | None:
        """Give the ids that an alignment to predict with a label owner found, in the
        agreed order."""
        owner = self.id_owners.get(asker)
        if (
            owner is None
            or owner.common_rows is None
            or not owner.predicts
            or self.table is None
        ):
            return None
        return self.table.ids[owner.common_rows]

    def shared_with(
        self, label_owner: str, holdings: Holdings | None = None
    ) -> NDArray[np.str_]:
        """Give the ids of all rows that this organisation and a label owner share,
        before any is left out; of a public data set, those that are held."""
        if self.table is not None:
            return self.common(label_owner).ids
        if holdings is None:
            assert self.participant is not None
            holdings = self.participant.federation.holdings
        return holdings.label_owners[label_owner].ids

    def digest(self, run: str, ids: NDArray[np.str_]) -> str:
        """Digest the whole list of ids, for one run: it tells two lists apart. Where
        ids are compared privately there is no digest, since whoever says which rows are
        common could guess them by it."""
        return (
            ""
            if self.own.private
            else sha256(
                "\n".join([self.own.agreed, run, *ids.tolist()]).encode()
            ).hexdigest()
        )

    def are_same(self, ids: NDArray[np.str_], run: str, digest: str) -> bool:
        """Whether these are the ids of which a label owner told the digest; those
        compared privately are."""
        return self.own.private or self.digest(run, ids) == digest

    def take_part(self, folder: Path, resumed: int | None, asked: Prepare) -> None:
        """Build the columns of who holds some, and answer the algorithm's requests of
        label owners from here on."""
        own = self.own
        self.read()
        ids = (
            {name: self.common(name).ids for name in own.label_owners}
            if self.table is not None
            else {}
        )
        table = self.table
        # rows are called by the keys that matched them
        if table is not None and table.keys:
            table = matched_names(table, self.id_owners[own.driver].rows_by_key)
        numbers = None if asked.numbers is None else asked.numbers.tensor
        holdings = own_columns(
            own, table, ids, asked.outputs, asked.sides, asked.rows, numbers
        )
        settings = (
            as_trained(own.local, RunDirectory(folder)) if asked.moment else own.local
        )
        federation = Federation(
            settings,
            replace(holdings, aligned=self._crossed()),
            elsewhere=Elsewhere({own.name}),
        )
        self.serve(
            Participant(
                own,
                federation,
                folder,
                moment=asked.moment,
                run_id=asked.run_id,
                store=lambda: self.store,
            ),
            resumed,
            own.label_owners,
        )

    def get_ready(
        self, folder: Path, resumed: int | None, moment: str, run_id: str
    ) -> Federation:
        """Meet those who hold columns, as one of several label owners, and answer the
        aggregation server."""
        step = RunDirectory(folder).marked(resumed)["step"] if resumed else 0
        labels = self.own_labels()
        federation = self.prepare(folder, labels, resumed, step, moment, run_id=run_id)
        self.serve(
            Participant(
                self.own,
                federation,
                folder,
                moment=moment,
                run_id=run_id,
                store=lambda: self.store,
            ),
            resumed,
            {self.own.driver},
        )
        return federation

    def prepare(
        self,
        folder: Path,
        holdings: Holdings,
        resumed: int | None,
        step: int,
        moment: str = "",
        *,
        run_id: str = "",
    ) -> Federation:
        """Have everybody with columns build its part of a run, as a label owner, and
        meet them. `step` is where training stands here. Where an audit repeats some of
        it, that is recorded."""
        held = holdings.label_owners[self.own.name]
        differ = self.own.settings.rows_differ
        every = self.shared_with(self.own.name, holdings)
        count = training_rows(holdings) if differ else 0
        requests = {}
        rows = {}
        for name in self.own.feature_owners:
            part = self._part_of(name, holdings) if differ else held
            ids = part.ids if differ else every
            sides = sides_to_tell(ids, part) if held.is_told else ""
            mine = self.digest(folder.name, ids)
            again = resumed is not None
            numbers = None
            if part.numbers is not None:
                numbers = self.host.outbox.release(part.numbers, NUMBERS, ALIGN)
            requests[name] = Prepare(
                folder.name,
                holdings.outputs,
                again,
                resumed or 0,
                count,
                numbers,
                sides,
                mine,
                moment,
                run_id,
            )
            rows[name] = len(ids)
        prepared = self.partners().ask_each(requests)
        holdings.aligned.setdefault(self.own.name, []).extend(self.host.ledger.take())
        for name, answer in prepared.items():
            check_same(self.own.name, rows[name], name, answer.rows, answer.same)
            if answer.step != step:
                raise CheckpointError(
                    f"'{name}' saved this run at step {answer.step}, and"
                    f" '{self.own.name}' at step {step}: these are two runs. Start a"
                    " new one."
                )
        settings = (
            as_trained(self.own.local, RunDirectory(folder))
            if moment
            else self.own.local
        )
        own, asked = (
            self.own,
            {
                *self.own.feature_owners,
                *({self.own.name} & holdings.columns.keys()),
            },
        )
        names = [name for name in own.names if name in asked]
        elsewhere = Elsewhere(
            {own.name}, names, counts=any(answer.counts for answer in prepared.values())
        )
        lines = partial(self.carrier, joins=True)
        federation = Federation(
            settings,
            holdings,
            record=bool(moment),
            between=lambda _, here: lines(here),
            elsewhere=elsewhere,
        )
        set_bounds(federation, own)
        return federation

    def serve(
        self, participant: Participant, resumed: int | None, askers: Collection[str]
    ) -> None:
        """Begin a run; or stand where a checkpoint left it, for a prediction or for an
        audit, which then listens. From here on, answer the algorithm's requests to
        these askers alone."""
        with participant.held():
            if participant.trains:
                participant.begin(resumed)
            else:
                # 0: as if nobody had trained
                stand(participant.run, participant.federation, resumed or 0)
            if participant.moment and self.audits is not None:
                participant.listener = self.audits(participant)
            self.keep_crossed(participant.run.path)
        participant.role.serves_for = frozenset(askers)
        self.participant = participant
        self.roles.append(participant.role)

    def answer(self, asked: Asked, folder: Path) -> None:
        """Answer from here on for rows that a label owner is to predict, with the run
        in this folder."""
        own = self.own
        run = RunDirectory(folder)
        federation = Federation(
            as_trained(own.local, run),
            asked.holdings(own, run),
            elsewhere=Elsewhere({own.name}),
        )
        self.serve(
            Participant(
                own,
                federation,
                folder,
                predicts_for=asked.by,
                store=lambda: self.store,
            ),
            asked.number,
            {asked.by},
        )

    def leave(self) -> None:
        """End this run or prediction, so that another may begin."""
        if self.participant is not None:
            self.keep_crossed(self.participant.run.path)
            self.participant.leave()
            self.roles.remove(self.participant.role)
            self.participant = None

    def keep_crossed(self, run: Path, *more: Ledger) -> None:
        """Write down what crossed to find rows to predict, or to select; of a training,
        its own ledger has it."""
        folder = run / PARTIES / self.own.name
        for ledger in (*more, *(role.ledger for role in self._compared())):
            if ledger.entries:
                folder.mkdir(parents=True, exist_ok=True)
                ledger.flush(folder / AFTER)

    def _crossed(self) -> dict[str, list[Entry]]:
        """Take what crossed while rows were agreed on."""
        return {
            self.own.name: [
                entry for role in self._compared() for entry in role.ledger.take()
            ]
        }

    def _compared(self) -> list[Party]:
        """The roles that find common rows."""
        return [
            self.host,
            *self.id_owners.values(),
            *([] if self.keyed is None else [self.keyed]),
        ]

    def _refresh(self) -> None:
        """Compare ids as the table has them now; one that cannot be read changes
        nothing. Where several label owners compare theirs one after the other, to
        train, all are of one reading."""
        predicting = self.reader is not None and self.reader.by is not None
        once = len(self.own.label_owners) > 1 and not predicting
        if self.table is None or once or (seen := written(self.own)) == self._seen:
            return
        try:
            self.table = read_own_table(self.own)
        except InputError as error:
            log.warning(
                "%s: its table changed and cannot be read (%s)",
                self.own.name,
                type(error).__name__,
            )
        else:
            for id_owner in self.id_owners.values():
                id_owner.ids = ids_of(self.table)
        self._seen = seen

    def seat(self) -> Organisation:
        """Build an organisation for what is not about the algorithm: rows are agreed on
        later."""
        return Organisation.at(
            self.own.name, Batches({}, batch_size=1, epochs=1, seed=0)
        )

    def _id_owners(self, table: Table) -> dict[str, IdOwner]:
        """Build what aligns ids: once as a label owner, else with each label owner
        under another secret."""
        own, settings = self.own, self.own.settings.alignment
        settings.check_trains()
        ids = ids_of(table)
        if own.private and (advice := ids_with_zeros(own, table.ids)):
            log.warning(advice)
        allowance = Allowance(own.name, lambda: self.store, own.alignments)
        among: dict[str, tuple[str, ...]]
        if own.settings.rows_differ:  # each partner with the label owner alone
            whom = own.feature_owners if self.holds_labels else own.label_owners
            among = {
                name: (own.name, name) if self.holds_labels else (name, own.name)
                for name in whom
            }
        else:
            whom = [own.name] if self.holds_labels else own.label_owners
            among = {name: (name, *own.feature_owners) for name in whom}
        owners: dict[str, IdOwner] = {}
        for name, both in among.items():
            owners[name] = IdOwner(
                self.seat(), ids, settings, among=both, allowance=allowance
            )
            owners[name].serves_for = (
                frozenset() if self.holds_labels else frozenset({name})
            )
        return owners

    def _part_of(self, partner: str, holdings: Holdings) -> LabelledRows:
        """Give, as a label owner, the rows that a partner holds, too, as both call
        them."""
        part = holdings.part_of(partner)
        if self.table is None or not self.table.keys:
            return part
        pair = shared(self.table, self.id_owners[partner].rows_by_key)
        assert pair.own is not None
        return part.called(pair.ids, pair.own)

    def _shared_with(self, partner: str) -> NDArray[Any]:
        """Give the ids of a label owner that a partner holds, too."""
        assert self.table is not None
        rows = self.id_owners[partner].common_rows
        return self.table.ids[:0] if rows is None else self.table.ids[rows]
