"""The role that answers at a site what is not about the algorithm: is it there, what
did it agree to, its part in runs.

A `ColumnHost` stands for a party with columns. Label owners ask it; where there are
several, the first is obeyed and the others are compared, since what every label owner
passes on is done once. A `LabelHost` stands for one of several label owners: the
aggregation server asks it, and it asks those with columns in turn. `sites.site` orders
the calls.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from colonnade.alignment import Alignment
from colonnade.core import (
    Done,
    Ledger,
    Organisation,
    Party,
    Peers,
    Request,
    Transport,
    serves,
)
from colonnade.core.message import Ping, Pong
from colonnade.datasets.table import Table
from colonnade.errors import BoundaryError, ConfigError, DataError
from colonnade.federation.federation import Federation
from colonnade.rows.holdings import Holdings, Ids
from colonnade.runs.layout import DRAINING, REFUSED
from colonnade.runs.run_directory import RunDirectory
from colonnade.runs.run_identity import RUN_ID, read_identity
from colonnade.runs.stores import A_RUN, is_run
from colonnade.settings.party_file import SiteConfig
from colonnade.settings.selection import SERVER
from colonnade.sites.messages import (
    Align,
    Close,
    GetReady,
    Join,
    KeepBest,
    Kept,
    Measure,
    Measured,
    Numbers,
    Prepare,
    Prepared,
    Ready,
    Save,
    TakeBest,
)
from colonnade.sites.participant import Participant, numbers
from colonnade.store import SiteStore

MOST_OUTPUTS = 1 << 14
MOST_ROWS = 1 << 40
"""Of a model: whoever asks says how many, and a party makes that much room, in its
model and for every row."""


def check_run(run: str) -> None:
    """Check that this names a run."""
    if not is_run(run):
        raise ConfigError(f"A {A_RUN}; found {run!r}.")


class Home(Protocol):
    """What the roles of a site need of it (`sites.site`)."""

    own: SiteConfig
    refused: Refusals
    participant: Participant | None
    roles: list[Party]
    table: Table | None
    # of an audit that it takes part in; none where it takes part in no audit
    moments: Collection[str]

    @property
    def store(self) -> SiteStore: ...
    def read(self) -> None: ...
    def take_part(self, folder: Path, resumed: int | None, asked: Prepare) -> None: ...
    def leave(self) -> None: ...
    def peers(
        self, names: Sequence[str], organisation: Organisation | None = None
    ) -> Peers: ...
    def partners(self) -> Peers: ...
    def meet(self) -> Peers: ...
    def align(self) -> None: ...
    def compare(self, reveal: str = "rows") -> list[Alignment]: ...
    def labels_alone(self) -> Holdings: ...
    def digest(self, run: str, ids: Ids) -> str: ...
    def carrier(self, here: Transport | None = None) -> Transport: ...
    def get_ready(
        self, folder: Path, resumed: int | None, moment: str, run_id: str
    ) -> Federation: ...
    def common(self, label_owner: str) -> Table: ...
    def shared_with(
        self, label_owner: str, holdings: Holdings | None = None
    ) -> Ids: ...
    def are_same(self, ids: Ids, run: str, digest: str) -> bool: ...
    def keep_crossed(self, run: Path, *more: Ledger) -> None: ...


def check_same(own: str, here: int, other: str, there: int, same: bool) -> None:
    """Check that another organisation holds the same rows, of so many here and there."""
    if not same or there != here:
        raise DataError(
            f"'{other}' and '{own}' hold different ids, {there} there and {here} here."
            ' Give both the same ids, or set align = "private" under [data] in the'
            " agreed file."
        )


class Host(Party):
    """Answers for one organisation, and only to `askers`."""

    aside = (Ping,)

    def __init__(
        self, organisation: Organisation, site: Home, askers: Collection[str]
    ) -> None:
        super().__init__(organisation)
        self.site = site
        self.own = site.own
        self.serves_for = frozenset(askers)

    @serves
    def ping(self, request: Ping) -> Pong:  # noqa: ARG002
        return Pong()

    def check_agreed(self, agreed: str) -> None:
        """Refuse to join unless both agreed to the same file."""
        mine = self.own.agreed
        self.expect(
            agreed == mine,
            f"it agreed to {mine}, and was asked to join {agreed[:64]!r}",
        )
        self.check_open()

    def check_open(self) -> None:
        """Refuse what would begin while its owner is draining it."""
        self.expect(
            not (self.own.runs / DRAINING).exists(),
            "it takes no new runs now: its owner is draining it",
        )

    def folder(self, run: str) -> Path:
        """Give this organisation's own folder of a run."""
        self.expect(is_run(run), f"a {A_RUN}")
        return self.own.runs / run

    def check_moment(self, folder: Path, asked: Prepare | GetReady) -> None:
        """Check, before the last moment is left, that an audit may repeat this one from
        a checkpoint that is here."""
        if not asked.moment:
            return
        if not self.site.moments:
            raise BoundaryError(f"'{self.name}' takes part in no audit here.")
        among = f"a moment of an audit is one of {', '.join(self.site.moments)}"
        self.expect(asked.moment in self.site.moments, among)
        kept = asked.number == 0 or asked.number in numbers(RunDirectory(folder))
        self.expect(kept, f"it has no checkpoint {asked.number} of {asked.run!r}")

    def check_id(self, folder: Path, asked: Prepare | GetReady) -> None:
        """Check the run's id, which is the one that is here where a run goes on."""
        told = asked.run_id
        is_id = told == "" or RUN_ID.fullmatch(told) is not None
        self.expect(is_id, f"{told[:40]!r} is no id of a run")
        kept = read_identity(folder) if asked.resume and asked.number else None
        same = told == "" or kept is None or kept.id == told
        self.expect(same, f"its run {asked.run!r} has another id than {told!r}")

    def participant(self) -> Participant:
        """Give this organisation's part of the run that it was prepared for."""
        participant = self.site.participant
        return self.needed(
            participant if participant and participant.trains else None,
            "it was not prepared for a run",
        )


class TakingPart(Host):
    """The host of an organisation that takes part in runs; a label owner passes on what
    it is asked."""

    def pass_on(self, request: Request[Done]) -> None:
        """Ask the same of those who hold columns, before it is done here."""

    @serves
    def join(self, request: Join) -> Done:
        self.check_agreed(request.agreed)
        self.site.read()
        self.pass_on(request)
        return Done()

    @serves
    def save(self, request: Save) -> Done:
        """Save a checkpoint; where another label owner asks for the same one again, it
        is there."""
        participant, mark = self.participant(), self.participant().run.mark()
        self.pass_on(request)
        again = (
            request.number == mark["number"]
            and request.step == mark["step"]
            and len(self.serves_for or ()) > 1
        )
        why = f"it saved {mark['number']} last, and was asked to save {request.number}"
        self.expect(again or request.number > mark["number"], why)
        if not again:
            participant.save(request.step, request.number, request.common)
        return Done()

    @serves
    def keep_best(self, request: KeepBest) -> Done:
        return self._best(request, take=False)

    @serves
    def take_best(self, request: TakeBest) -> Done:
        return self._best(request, take=True)

    def _best(self, request: KeepBest | TakeBest, *, take: bool) -> Done:
        participant = self.participant()
        self.pass_on(request)
        participant.best(take)
        return Done()


class ColumnHost(TakingPart):
    """The host of an organisation that holds columns; label owners ask it."""

    def __init__(
        self, organisation: Organisation, site: Home, askers: Collection[str]
    ) -> None:
        super().__init__(organisation, site, askers)
        self.prepared: dict[str, Prepare] = {}
        self.closed = False

    @serves
    def kept(self, request: Kept) -> Numbers:
        return Numbers(numbers(RunDirectory(self.folder(request.run))))

    @serves
    def prepare(self, request: Prepare, asker: str) -> Prepared:
        site = self.site
        self.check_open()
        folder = self.folder(request.run)
        self.expect(
            0 < request.outputs <= MOST_OUTPUTS,
            f"a model cannot have {request.outputs} outputs",
        )
        self.expect(
            0 <= request.rows <= MOST_ROWS, f"nobody trains {request.rows} rows"
        )
        self.expect(
            site.participant is None or not site.participant.predicts,
            "it answers a prediction now",
        )
        self.check_moment(folder, request)
        self.check_id(folder, request)
        before = self.prepared.get(asker)
        # the next part of an audit
        if before is not None and before.moment and request.moment:
            site.leave()
            self.prepared = {}
        self.expect(asker not in self.prepared, "it takes part in a run already")
        first = next(iter(self.prepared.values()), request)
        self.expect(
            replace(request, ids=first.ids) == first,  # each has ids of its own
            f"another label owner asked for the run {first.run!r}, from checkpoint"
            f" {first.number}",
        )
        if site.participant is None:
            site.take_part(folder, request.number if request.resume else None, request)
        participant = site.participant
        ids = site.shared_with(asker)
        assert participant is not None
        self.prepared = {**self.prepared, asker: request}
        same = site.are_same(ids, request.run, request.ids)
        return Prepared(
            len(ids),
            same,
            participant.federation.batches.done,
            bool(participant.accounts),
        )

    @serves
    def close(self, request: Close) -> Done:
        if not self.closed:
            self.participant().close(request.outcome[:200], self.site.refused.count)
            self.closed = True
        return Done()


class LabelHost(TakingPart):
    """The host of one of several label owners; the aggregation server alone asks it."""

    def __init__(self, organisation: Organisation, site: Home) -> None:
        super().__init__(organisation, site, {SERVER})

    def pass_on(self, request: Request[Done]) -> None:
        self.site.partners().ask(request)

    @serves
    def align(self, request: Align) -> Done:  # noqa: ARG002
        self.expect(self.site.participant is None, "it takes part in a run already")
        self.site.align()
        return Done()

    @serves
    def kept(self, request: Kept) -> Numbers:
        """List the checkpoints that this label owner has, and everybody with columns
        too."""
        mine = numbers(RunDirectory(self.folder(request.run)))
        others = self.site.partners().ask(request).values()
        return Numbers(
            tuple(n for n in mine if all(n in other.numbers for other in others))
        )

    @serves
    def get_ready(self, request: GetReady) -> Ready:
        folder = self.folder(request.run)
        before = self.site.participant
        self.check_moment(folder, request)
        self.check_id(folder, request)
        # the next part of an audit
        if before is not None and before.moment and request.moment:
            self.site.leave()
        self.expect(self.site.participant is None, "it takes part in a run already")
        federation = self.site.get_ready(
            folder,
            request.number if request.resume else None,
            request.moment,
            request.run_id,
        )
        labelled = federation.holdings.label_owners[self.name]
        rows = {split: len(rows) for split, rows in labelled.splits.items()}
        return Ready(
            rows,
            federation.holdings.encoder.task,
            federation.batches.done,
            federation.elsewhere.counts,
        )

    @serves
    def measure(self, request: Measure) -> Measured:
        self.expect(
            request.model in ("aggregated", "own"),
            f"there is no model {request.model[:40]!r}",
        )
        scores, rows = self.participant().measure(request.split, request.model)
        return Measured(scores, rows)

    @serves
    def close(self, request: Close) -> Done:
        self.pass_on(request)
        self.participant().close(request.outcome[:200], self.site.refused.count)
        return Done()


MOST = 10 << 20
"""Bytes of lines in a file. Whoever calls for ever must not fill the disk, nor keep
newer lines from being written: a full file takes the place of the one before it."""


class Refusals:
    """Calls that an organisation did not answer, one line each in its own folder of
    runs, for whoever runs it. The newest lines are kept."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.count = 0
        self._lock = threading.Lock()

    def __call__(self, caller: str, why: str) -> None:
        with self._lock:
            self.count += 1
            self.folder.mkdir(parents=True, exist_ok=True)
            line = json.dumps({"time": time.time(), "caller": caller[:80], "why": why})
            path = self.folder / REFUSED
            with path.open("a", encoding="utf-8") as file:
                file.write(line + "\n")
                is_full = file.tell() >= MOST
            if is_full:
                path.replace(path.with_name(f"{REFUSED}.1"))
