"""Who answers at a site what is not about the algorithm: a label owner's clerk, who asks data owners in turn, and that
of a data owner, who hears the same from every label owner."""

from __future__ import annotations

from typing import TYPE_CHECKING

from colonnade.core import Done, Message, Request, Seat, serves
from colonnade.errors import CheckpointError, DataError
from colonnade.runs.run_directory import RunDirectory
from colonnade.settings.owners import SERVER
from colonnade.sites.clerk import Clerk
from colonnade.sites.multi_member import MultiMember
from colonnade.sites.multi_server import Measure, Measured, Ready
from colonnade.sites.saves import Close, Kept, Numbers, Save, numbers
from colonnade.sites.session import keep_widths
from colonnade.sites.site import Join

if TYPE_CHECKING:
    from colonnade.sites.multi_site import MultiSite


class Align(Request[Done]):
    """Find the rows that you share with all data owners."""


class Prepare(Request[Ready]):
    run: str  # names a folder under each organisation's own runs
    resume: bool
    number: int  # of the checkpoint to resume from; 0: none was saved by all


class Brought(Message):
    rows: int  # that it shares with the asker
    ids: str  # a digest of all their ids in order
    step: int  # where its training stands
    counts: bool  # whether it counts what its rows are released with


class Bring(Request[Brought]):
    """To a data owner: its columns of all label owners' rows, for this run."""

    run: str
    resume: bool
    number: int


class LabelClerk(Clerk):
    """A label owner's; asked by the aggregation server alone."""

    def __init__(self, seat: Seat, site: MultiSite) -> None:
        super().__init__(seat, site.own, {SERVER})
        self.site = site

    @serves
    def join(self, request: Join) -> Done:
        self.check_agreed(request.agreed)
        self.site.read()
        self.site.below.ask(request)
        return Done()

    @serves
    def align(self, request: Align) -> Done:  # noqa: ARG002
        self.expect(self.site.member is None, "it takes part in a run already")
        self.site.align()
        return Done()

    @serves
    def kept(self, request: Kept) -> Numbers:
        """What it has, and every data owner too."""
        mine = numbers(RunDirectory(self.folder(request.run)))
        others = self.site.below.ask(request).values()
        return Numbers(tuple(n for n in mine if all(n in other.numbers for other in others)))

    @serves
    def prepare(self, request: Prepare) -> Ready:
        site, folder = self.site, self.folder(request.run)
        self.expect(site.member is None, "it takes part in a run already")
        shares = site.own_labels()
        brought = site.below.ask(Bring(request.run, request.resume, request.number))
        mine = shares.label_owners[self.name]
        for name, other in brought.items():
            if other.ids != site.digest(mine.ids):
                raise DataError(
                    f"'{name}' has {other.rows} rows of '{self.name}', and {len(mine.ids)} are here, or others. "
                    "Compare how ids are written."
                )
        member = MultiMember(site.own, shares, site.device)
        owner = member.owner
        owner.peers = site.peers(site.settings.parties, member.seats[self.name])
        owner.meet(owner.peers.ask(member.nested.introduce()))
        widths = {name: shape[-1] for name, shape in owner.shapes.items()}
        site.patience.look(owner.peers, owner.rows, widths, member.algorithm)
        member.open(folder, request.number if request.resume else None)
        keep_widths(folder, {name: list(shape) for name, shape in owner.shapes.items()})
        for name, other in brought.items():
            if other.step != member.batches.done:
                raise CheckpointError(
                    f"'{name}' is at round {other.step} of this run, and '{self.name}' at {member.batches.done}. "
                    "Start a new one."
                )
        site.serve(member, {SERVER})
        rows = {split: len(rows) for split, rows in mine.splits.items()}
        counts = any(other.counts for other in brought.values())
        return Ready(rows, shares.encoder.task, member.batches.done, counts)

    @serves
    def measure(self, request: Measure) -> Measured:
        self.expect(request.model in ("aggregated", "own"), f"there is no model {request.model[:40]!r}")
        member = prepared(self, self.site)
        scores, rows = member.measure(request.split, "own" if request.model == "own" else "aggregated")
        return Measured(scores, rows)

    @serves
    def save(self, request: Save) -> Done:
        member, newest = prepared(self, self.site), prepared(self, self.site).run.mark()["number"]
        self.expect(request.number > newest, f"it saved {newest} last, and was asked to save {request.number}")
        self.site.below.ask(request)
        member.save(request.step, request.number, request.common)
        return Done()

    @serves
    def close(self, request: Close) -> Done:
        self.site.below.ask(request)
        prepared(self, self.site).close(request.outcome[:200], self.site.refused.count)
        return Done()


class ColumnClerk(Clerk):
    """A data owner's; asked by label owners alone, of whom the first is obeyed and the others are compared."""

    def __init__(self, seat: Seat, site: MultiSite) -> None:
        super().__init__(seat, site.own, site.settings.label_owners)
        self.site = site
        self.brought: dict[str, Bring] = {}
        self.closed = ""

    @serves
    def join(self, request: Join) -> Done:
        self.check_agreed(request.agreed)
        self.site.read()
        return Done()

    @serves
    def kept(self, request: Kept) -> Numbers:
        return Numbers(numbers(RunDirectory(self.folder(request.run))))

    @serves
    def bring(self, request: Bring) -> Brought:
        site, asker = self.site, str(self.asker)
        folder = self.folder(request.run)
        self.expect(site.member is None or not site.member.predicts, "it answers a prediction now")
        self.expect(asker not in self.brought, "it takes part in a run already")
        first = next(iter(self.brought.values()), request)
        self.expect(
            request == first, f"another label owner asked for the run {first.run!r}, from checkpoint {first.number}"
        )
        if site.member is None:
            member = MultiMember(site.own, site.own_columns(), site.device)
            member.open(folder, request.number if request.resume else None)
            site.serve(member, self.serves_for or ())
        self.brought = {**self.brought, asker: request}
        member = prepared(self, site)
        ids = member.holdings.ids[member.agreed.orders[asker].numpy()]
        return Brought(len(ids), site.digest(ids), member.batches.done, bool(member.accounts))

    @serves
    def save(self, request: Save) -> Done:
        member, mark = prepared(self, self.site), prepared(self, self.site).run.mark()
        again = request.number == mark["number"]
        fits = request.step == mark["step"] if again else request.number > mark["number"]
        self.expect(fits, f"it saved {mark['number']} last, and was asked to save {request.number}")
        if not again:
            member.save(request.step, request.number, request.common)
        return Done()

    @serves
    def close(self, request: Close) -> Done:
        if not self.closed:
            prepared(self, self.site).close(request.outcome[:200], self.site.refused.count)
            self.closed = request.outcome or "closed"
        return Done()


def prepared(clerk: Clerk, site: MultiSite) -> MultiMember:
    clerk.expect(site.member is not None and not site.member.predicts, "it was not prepared for a run")
    assert site.member is not None
    return site.member
