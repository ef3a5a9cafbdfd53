"""What an organisation answers at its site when a label owner asks whose columns are
worth having, before anybody trains.

    label owner                         who holds columns               aggregation_server, key_server
    Join, (Agree ...)              ->   as before a run
    TakePart                       ->   refuses, or ranks from here on  ->  adds up, or decrypts, from here on
    participant.Join, Begin ...    ->   the protocol of `selection.leader`
    Leave                          ->   counts what it computed, and writes its ledger

Whether it takes part, how often and about how many rows, its own party.toml says
([selections]); with which scheme it encrypts and who decrypts, its own copy of the
agreed file. The label owner has no say in any of it.
"""

from __future__ import annotations

from colonnade.alignment.allowance import Allowance
from colonnade.core import Batches, Message, Organisation, Party, Request, serves
from colonnade.rows.holdings import Holdings
from colonnade.runs.layout import DRAINING
from colonnade.runs.stores import A_RUN, is_run
from colonnade.selection import choosing
from colonnade.selection.aggregation import AggregationServer
from colonnade.selection.choosing import as_columns
from colonnade.selection.participant import Participant as Candidate
from colonnade.selection.sorting import KeyServer
from colonnade.settings.party_file import SiteConfig
from colonnade.settings.selection import KEYS, SERVER
from colonnade.sites.host import Home
from colonnade.sites.reader import own_columns


class Taking(Message):
    # that it shares with the asker, before `sides` leave any out; 0 where it holds no
    # data
    rows: int
    same: bool  # whether their ids have the digest that it was told


class TakePart(Request[Taking]):
    """From a label owner: rank rows, add up or decrypt for me, as the file says that we
    agreed on."""

    run: str  # names a folder under each organisation's own runs, for its ledger
    agreed: str  # the fingerprint of the agreed file
    parties: int  # how many participants' distances may be added up
    queries: int  # rows whose neighbours will be asked for, at most
    # which rows train, where that does not follow from their ids
    # (`rows.sides.sides_to_tell`)
    sides: str = ""
    # a digest of all the asker's ids (`Site.digest`); none where they were compared
    # privately
    ids: str = ""
    outputs: int = 1  # of the joint model, for which columns are prepared


class WorkDone(Message):
    """What a selection took here: it follows from how many candidates there were."""

    operations: dict[str, int]
    sent: int  # bytes


class Leave(Request[WorkDone]):
    """The selection has ended."""


def organisation_of(own: SiteConfig) -> Organisation:
    """Build an organisation for one selection, in which rows go by pseudo ids. Queries
    are drawn by the agreed seed, as in one process; keys and the shuffle that pseudo
    ids come from never are."""
    return Organisation.at(
        own.name,
        Batches({}, batch_size=1, epochs=1, seed=0),
        seed=own.settings.engine.seed,
    )


class SelectionHost(Party):
    """Stands for one organisation where label owners select; it has one part at a time."""

    def __init__(self, organisation: Organisation, site: Home) -> None:
        super().__init__(organisation)
        self.site = site
        self.own = site.own
        self.serves_for = frozenset(site.own.label_owners)
        self.role: Party | None = None
        self.run = ""

    @serves
    def take_part(self, request: TakePart, asker: str) -> Taking:
        own = self.own
        self.expect(
            request.agreed == own.agreed,
            f"it agreed to {own.agreed}, and was asked for another federation",
        )
        self.expect(is_run(request.run), f"a {A_RUN}")
        self.expect(
            not (own.runs / DRAINING).exists(),
            "it takes no new runs now: its owner is draining it",
        )
        self.expect(
            2 <= request.parties <= len(own.names),
            f"there are no {request.parties} participants",
        )
        role, rows, same = self._part(request, asker)
        self.end()  # now only: where this is refused, the one before goes on
        self.run = request.run
        self.role = role
        choosing.admit(role, asker)
        if isinstance(role, AggregationServer):
            role.serves_for = frozenset({asker})
            others = [*own.feature_owners, asker, KEYS]
            role.peers = self.site.peers(
                [party for party in own.everybody if party in others], role.organisation
            )
        self.site.roles.append(role)
        return Taking(rows, same)

    @serves
    def leave(self, request: Leave) -> WorkDone:  # noqa: ARG002
        role = self.needed(self.role, "it takes part in no selection")
        return WorkDone(dict(choosing.counted_by(role)), self.end())

    def end(self) -> int:
        """End this selection, so that another may begin; what crossed is written down.
        It gives how many bytes left."""
        if self.role is None:
            return 0
        sent = self.role.ledger.total("out")
        self.site.keep_crossed(self.own.runs / self.run, self.role.ledger)
        self.site.roles.remove(self.role)
        self.role = None
        return sent

    def _part(self, request: TakePart, asker: str) -> tuple[Party, int, bool]:
        """Build this organisation's part; tell how many rows it and the asker share,
        and whether they are the same."""
        own, agreed = self.own, self.own.settings.selection
        if own.name == SERVER:
            return (
                AggregationServer(
                    organisation_of(own),
                    scheme=agreed.scheme,
                    most=2 * own.memory_per_call,
                ),
                0,
                True,
            )
        if own.name == KEYS:
            return (
                KeyServer(
                    organisation_of(own), scheme=agreed.scheme, most=request.parties
                ),
                0,
                True,
            )
        refused = (
            "its owner takes part in no selection: its party.toml has no [selections]"
        )
        allowed = self.needed(own.selections, refused)
        most = (
            f"its owner lets the neighbours of {allowed.queries} rows be ranked"
            " ([selections] queries in party.toml)"
        )
        self.expect(
            0 < request.queries <= allowed.queries,
            f"{most}, and it was asked for {request.queries}",
        )
        self.expect(
            not own.settings.rows_differ,
            "rows may differ by the agreed file, and a selection needs common ones",
        )
        allowance = Allowance(own.name, lambda: self.site.store, own.alignments)
        allowance.select(asker, allowed.per_day)
        self.site.read()
        known = {} if self.site.table is None else {asker: self.site.common(asker).ids}
        holdings = own_columns(
            own, self.site.table, known, request.outputs, request.sides
        )
        ids = self.site.shared_with(asker, holdings)
        candidate = participant(organisation_of(own), own, holdings, asker, request)
        return candidate, len(ids), self.site.are_same(ids, request.run, request.ids)


def participant(
    organisation: Organisation,
    own: SiteConfig,
    holdings: Holdings,
    leader: str,
    request: TakePart,
) -> Candidate:
    """Build an organisation's columns of a leader's training rows, as it lets them be
    compared."""
    agreed = own.settings.selection
    trained = holdings.label_owners[leader].trained
    columns = as_columns(
        own.name, holdings.columns[own.name].features.flatten(1), trained.numpy()
    )
    candidate = Candidate(
        organisation,
        columns,
        scheme=agreed.scheme,
        parties=request.parties,
        readers=choosing.readers(agreed.reads, own.names, leader),
        scaling=agreed.scaling,
        queries=request.queries,
    )
    if agreed.reads == "participants":
        candidate.make_keys(agreed.scheme, request.parties)
    return candidate
