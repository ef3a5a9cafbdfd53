"""One organisation where a federation spans machines: it builds its own roles from its own files, and nobody else's.

    driver                                   every other organisation
    Join      the same agreed file?     ->   refuses another one
    (Agree ...                          ->   private set intersection, where [data] align = "private")
    (Kept     which checkpoints         ->   those in its folder, where a run is resumed)
    Prepare   so many outputs           ->   reads its table, builds its feature owner, opens its folder of the run
    Embed ... the algorithm's requests  ->   its feature owner
    Save      after the driver saved    ->   its own checkpoint, in its own folder (`saves`)
    Close                               ->   its summary: what left, what arrived, what was promised

Rows: everybody sorts the ids it holds; that all hold the same ones is checked by a digest of the whole list, keyed with
the agreed file's fingerprint. With `align = "private"` the common ones are found first, over the same lines. Splits and
batches follow from the agreed seed, and a feature owner's card says whether they are the same. All of these calls are
made again where they were lost, as [federation] says (`patience`): each is done once however often it arrives.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from colonnade.alignment import Ids
from colonnade.alignment.id_owner import Agree, IdOwner
from colonnade.alignment.intersection import align
from colonnade.core import Batches, Done, Message, Party, Peers, Request, Seat, Transport, serves
from colonnade.core.wire import Envelope
from colonnade.errors import BoundaryError, CheckpointError, ConfigError, DataError, InputError
from colonnade.federation.call_policy import Patience
from colonnade.federation.federation import Federation, device_of
from colonnade.federation.fit import Outcome, Watch, fit
from colonnade.rows.holdings import Holdings, from_tables
from colonnade.runs.refusals import Refusals
from colonnade.runs.run_directory import AFTER, RunDirectory
from colonnade.settings.party_file import Own
from colonnade.sites.clerk import MOST_OUTPUTS, RUN, Clerk
from colonnade.sites.member import Asked, Member, own_holdings, read_own_table, to_predict
from colonnade.sites.prediction import predict
from colonnade.sites.reader import Reader, Strings, written
from colonnade.sites.saves import Close, Kept, Numbers, Save, Saves, numbers
from colonnade.sites.session import keep_widths
from colonnade.transport.endpoint import Desk
from colonnade.transport.remote import Flare, Line

log = logging.getLogger("colonnade.party")


class Join(Request[Done]):
    """Is this the federation that you agreed to?"""

    agreed: str


class Prepared(Message):
    rows: int
    ids: str  # a digest of all ids in the agreed order
    step: int  # where its training stands
    counts: bool  # whether it counts what its rows are released with


class Prepare(Request[Prepared]):
    run: str  # names a folder under each organisation's own runs
    outputs: int  # of the joint model: how wide a local head must be
    resume: bool
    number: int = 0  # of the checkpoint to resume from; 0: none was saved by all


class SiteClerk(Clerk):
    """Answers for an organisation what is not about its data; asked by the driver alone."""

    def __init__(self, seat: Seat, site: Site) -> None:
        super().__init__(seat, site.own, {site.own.driver})
        self.site = site

    @serves
    def join(self, request: Join) -> Done:
        self.check_agreed(request.agreed)
        return Done()

    @serves
    def kept(self, request: Kept) -> Numbers:
        return Numbers(numbers(RunDirectory(self.folder(request.run))))

    @serves
    def prepare(self, request: Prepare) -> Prepared:
        self.expect(0 < request.outputs <= MOST_OUTPUTS, f"a model cannot have {request.outputs} outputs")
        self.expect(self.site.member is None, "it takes part in a run already")
        resumed = request.number if request.resume else None
        holdings = self.site.prepare(self.folder(request.run), request.outputs, resumed)
        member = self._member()
        digest = self.site.digest(holdings.ids)
        return Prepared(len(holdings.ids), digest, member.batches.done, bool(member.accounts))

    @serves
    def save(self, request: Save) -> Done:
        newest = self._member().run.mark()["number"]
        self.expect(request.number > newest, f"it saved {newest} last, and was asked to save {request.number}")
        self._member().save(request.step, request.number, request.common)
        return Done()

    @serves
    def close(self, request: Close) -> Done:
        self._member().close(request.outcome[:200], self.site.refused.count)
        return Done()

    def _member(self) -> Member:
        self.expect(self.site.member is not None, "it was not prepared for a run")
        assert self.site.member is not None
        return self.site.member


class Site:
    """Everything of one organisation. `desk` takes the calls of others; the driver's `drive` makes them."""

    def __init__(self, own: Own) -> None:
        self.own, self.deadline, self.refused = own, own.settings.engine.deadline, Refusals(own.runs)
        self.device = device_of(own.settings.engine.device)
        nothing = Batches({}, batch_size=1, epochs=1, seed=0)  # rows are agreed on later
        seat = Seat.at(own.name, nothing)
        self.clerk = SiteClerk(seat, self)
        self.id_owner = self._id_owner(seat)
        self.reader = Reader(seat, self, {own.driver})
        self.roles: list[Party] = [self.clerk, self.reader, *([self.id_owner] if self.id_owner else [])]
        self.member: Member | None = None
        self.others = [name for name in own.names if name != own.name]  # whom it asks where it drives
        self.desk = Desk(own.name, self.handle, admitted=self.others, device=self.device, refused=self.refused)

    def handle(self, envelope: Envelope[Any]) -> Message:
        """By the role that serves it."""
        if isinstance(envelope.message, Agree):
            self._refresh_ids()
        for role in self.roles:
            if type(envelope.message) in role.served():
                reply: Message = role.handle(envelope)
                return reply
        served = sorted({kind.kind for role in self.roles for kind in role.served()})
        raise BoundaryError(
            f"'{self.own.name}' does not serve {envelope.message.kind}.\n    It serves: {', '.join(served)}."
        )

    def prepare(self, folder: Path, outputs: int, resumed: int | None) -> Holdings:
        """Build what this organisation holds, as a feature owner that only the driver may ask."""
        holdings = own_holdings(self.own, self._rows())
        holdings.aligned = {self.own.name: self.clerk.ledger.take()}
        self.join(Member(self.own, holdings, outputs, folder, device=self.device, resumed=resumed))
        return holdings

    def join(self, member: Member) -> None:
        """From here on its feature owner answers, to the driver alone."""
        member.owner.serves_for = {self.own.driver}
        self.member = member
        self.roles.append(member.owner)

    def answer(self, asked: Asked, folder: Path) -> None:
        """From here on for rows that the driver is to predict, with the run in this folder."""
        self.join(to_predict(self.own, self.device, asked, folder))

    def leave(self) -> None:
        """Another run may begin."""
        if self.member is not None:
            self.keep_alignment(self.member.run.path)
            self.member.purse.leave()
            self.roles.remove(self.member.owner)
            self.member = None

    def digest(self, ids: NDArray[Any]) -> str:
        """Of the whole list of ids: it tells two lists apart and says nothing else."""
        return hashlib.sha256("\n".join([self.own.agreed, *ids.tolist()]).encode()).hexdigest()

    def drive(
        self, lines: Mapping[str, Line], run: str, *, resume: bool = False, watch: Watch | None = None
    ) -> Outcome:
        """Train with the others, from joining to the summaries; this organisation's part is in its own folder."""
        own = self.own
        self.check_asks(run)
        patience = Patience(own.settings.engine, elsewhere=True)
        carrier = patience.around(Flare(lines, device=self.device, deadline=self.deadline))
        others = Peers(own.name, self.others, carrier, self.clerk.ledger)
        others.ask(Join(own.agreed))
        if self.id_owner is not None:
            align(self.id_owner, others)
        holdings, folder = self._driven(), RunDirectory(own.runs / run)
        saves = Saves(folder, others, lenient=own.settings.engine.on_missing in ("stale", "skip"))
        number = saves.go_back() if resume else 0
        prepared = others.ask(Prepare(run, holdings.loss.outputs, resume, number))
        self._compare(holdings, folder.mark()["step"] if number else 0, prepared)
        mine = holdings.parties[own.name].features is not None
        names = [name for name in own.names if name != own.name or mine]

        def reach(here: Transport) -> tuple[Transport, list[str]]:
            return Flare(lines, here=here, own=[own.name], device=self.device, deadline=self.deadline), names

        holdings.aligned = {own.name: self.clerk.ledger.take()}
        federation = Federation(own.local, holdings, reach=reach)
        federation.counted_elsewhere = any(one.counts for one in prepared.values())
        folder.path.mkdir(parents=True, exist_ok=True)
        keep_widths(folder.path, federation.widths)
        watch = saves.after(own.settings.train.checkpoint_every, watch)
        outcome = fit(federation, folder, resume=number > 0, watch=watch)
        saves.save(federation.batches.done)
        saves.close(outcome)
        return outcome

    def predict(self, lines: Mapping[str, Line], run: str, rows: str) -> Path:
        """Predict the ids in this organisation's own file with the others' columns; gives the file of predictions."""
        self.check_asks(run)
        return predict(self, lines, run, rows)

    def check_asks(self, run: str) -> None:
        """That this organisation may ask the others, and that this names a run."""
        own = self.own
        if not own.drives:
            raise BoundaryError(f"'{own.name}' does not drive; in the federation it agreed to, '{own.driver}' does.")
        if not RUN.fullmatch(run):
            raise ConfigError(f"A run's name has letters, digits, '-', '_' and '.'; found {run!r}.")

    def _compare(self, holdings: Holdings, step: int, answers: Mapping[str, Prepared]) -> None:
        mine = self.digest(holdings.ids)
        for name, answer in answers.items():
            if answer.ids != mine:
                raise DataError(
                    f"'{name}' and '{self.own.name}' hold different ids, {answer.rows} there and {len(holdings.ids)} "
                    'here. Give both the same ids, or set align = "private" under [data] in the agreed file.'
                )
            if answer.step != step:
                raise CheckpointError(
                    f"'{name}' saved this run at step {answer.step}, and '{self.own.name}' at step {step}: these are "
                    "two runs. Start a new one."
                )

    def _driven(self) -> Holdings:
        own = self.own
        if own.settings.data.dataset is not None:
            return own_holdings(own, None)
        table = read_own_table(own, self._rows())
        aligned = replace(own.local, data=replace(own.local.data, align="exact"))
        return from_tables(aligned, {own.name: table})

    def _rows(self) -> NDArray[Any] | None:
        """The common rows of this organisation's table, after an alignment; None: all."""
        if self.id_owner is None:
            return None
        rows = self.id_owner.common_rows
        if rows is None or not len(rows):
            raise DataError("No id is held by all parties, or they were not compared. Compare how ids are written.")
        return rows

    def _id_owner(self, seat: Seat) -> IdOwner | None:
        settings = self.own.settings
        if settings.data.align != "private" or settings.data.dataset is not None:
            return None
        settings.alignment.check_trains()
        self._seen, self._ids = written(self.own), read_own_table(self.own, None).ids
        owner = IdOwner(seat, Ids.of(self.own.name, [self._ids.tolist()]), settings.alignment)
        owner.serves_for = {self.own.driver}
        return owner

    def _refresh_ids(self) -> None:
        """Ids are compared as the table has them now; one that cannot be read changes nothing."""
        if self.id_owner is None or (seen := written(self.own)) == self._seen:
            return
        try:
            ids = read_own_table(self.own, None).ids
        except InputError as error:
            log.warning("%s: its table changed and cannot be read (%s)", self.own.name, type(error).__name__)
        else:
            self._ids, self.id_owner.ids = ids, Ids.of(self.own.name, [ids.tolist()])
        self._seen = seen

    def common_ids(self, asker: str) -> Strings | None:  # noqa: ARG002 - one may ask
        """Those that an alignment found, in the agreed order."""
        rows = None if self.id_owner is None else self.id_owner.common_rows
        return None if rows is None else self._ids[rows]

    def keep_alignment(self, run: Path) -> None:
        """What crossed to find the rows to predict. A training's alignment is in the ledger of the training."""
        if self.clerk.ledger.entries:
            self.clerk.ledger.flush(run / "parties" / self.own.name / AFTER)
