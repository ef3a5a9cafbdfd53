"""A party's side of a prediction across machines: which of the rows asked for it holds, and its columns of them.

`session` has the protocol. Nothing is learned from a prediction, and no labels are needed: columns are prepared as in
training, from the organisation's table as it is at each batch, and its account and ledger go on.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import Counter
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import torch

from colonnade.core import Done, Message, Organisation, Party, Released, Request, serves
from colonnade.datasets.preprocess import Labels
from colonnade.rows.holdings import Columns, Holdings, Ids
from colonnade.rows.making import asked_by
from colonnade.runs.run_directory import RunDirectory
from colonnade.settings.party_file import SiteConfig
from colonnade.sites.host import MOST_OUTPUTS, Host
from colonnade.sites.own_rows import DIGEST, OwnRows, digests_of
from colonnade.sites.participant import Participant, numbers
from colonnade.transport.retrying import GONE

ASKED_IDS, HELD, ASKED_ROWS = "asked_ids", "held", "asked_rows"
REVEALS = {
    ASKED_IDS: "which ids are to be predicted: digests, which whoever guesses an id can compare",
    HELD: "which of the ids asked for this party holds",
    ASKED_ROWS: "which of this party's rows are to be predicted next",
}
log = logging.getLogger("colonnade.party")


@dataclass(frozen=True)
class Asked:
    """Rows of an organisation's that `by` is to predict, and with which checkpoint of the run."""

    by: str
    ids: Ids
    columns: torch.Tensor
    number: int
    outputs: int

    def holdings(self, own: SiteConfig, run: RunDirectory) -> Holdings:
        """These rows alone, as the organisation holds them."""
        known_to = int(run.fitted(own.name).get("known_to", 1))
        elsewhere = Labels(", ".join(own.label_owners), "classification")
        return Holdings(
            {own.name: Columns(self.columns)},
            asked_by(own.settings, self.by, own.label_owners, self.ids),
            self.ids,
            elsewhere,
            known_to,
            own.settings.server,
            outputs_elsewhere=self.outputs,
        )


class Shelf(Protocol):
    """What a reader does for its site (`sites.site`)."""

    own: SiteConfig
    participant: Participant | None
    host: Host

    def common_ids(self, asker: str) -> Ids | None:
        """Those that an alignment to predict with a label owner found, in the agreed order."""
        ...

    def answer(self, asked: Asked, folder: Path) -> None:
        """From here on rows that a label owner is to predict are answered for."""
        ...

    def leave(self) -> None:
        """Another prediction may begin."""
        ...


class Looked(Message):
    held: Released | None  # the places in what was asked for, of the rows that it holds; None where it was not told


class Look(Request[Looked]):
    run: str
    number: int  # of the checkpoint
    outputs: int
    digests: Released | None  # of the ids; None: those that an alignment found


class Take(Request[Done]):
    rows: Released  # of those it holds


class Enough(Request[Done]):
    """That was all."""


class Reader(Party):
    """Answers for an organisation which rows it holds, and makes its feature owner answer for some of them. Of several
    who may ask, it answers one at a time; another takes over when that one has not asked for so many seconds, as where
    it died, and never while it is being answered."""

    patience = GONE

    def __init__(self, organisation: Organisation, site: Shelf, askers: Collection[str]) -> None:
        super().__init__(organisation)
        self.site, self.serves_for, self.table = site, frozenset(askers), OwnRows(site.own)
        self.by: str | None = None  # for whom it answered last
        self._calls: Counter[str] = Counter()  # of whom calls are being answered
        self._heard: dict[str, float] = {}  # when whose last call was answered
        self._counting = threading.Lock()

    @serves
    def look(self, request: Look, asker: str) -> Looked:
        site = self.site
        self.expect(site.participant is None or site.participant.predicts, "it takes part in a run already")
        if site.participant is not None:
            self._take_over(site.participant, asker)
        self.leave()  # the batch before, of which the asker had enough
        self.by = asker
        self.expect(0 < request.outputs <= MOST_OUTPUTS, f"a model cannot have {request.outputs} outputs")
        folder = site.host.folder(request.run)
        self.expect(request.number in numbers(RunDirectory(folder)), f"it has no checkpoint {request.number} of it")
        known, columns = self.table.now(RunDirectory(folder).fitted(site.own.name))
        if request.digests is None:
            wanted, told = site.common_ids(asker), None
            self.expect(wanted is not None, "it was given no ids, and no alignment found any")
            assert wanted is not None
            self.expect(bool(np.isin(wanted, known).all()), "its table has changed since ids were compared; ask again")
        else:
            self.expect(not site.own.private, 'ids are compared privately, by its [data] align = "private"')
            mine = {digest: place for place, digest in enumerate(digests_of(site.own, known))}
            asked = request.digests.tensor
            fits = asked.dtype == torch.uint8 and asked.dim() == 2 and asked.shape[1] == DIGEST
            self.expect(fits, f"digests are {DIGEST} bytes each")
            wished = [bytes(one) for one in asked.cpu().numpy()]
            self._each_once(asker, len(wished), len(set(wished)))
            found = [mine.get(one, -1) for one in wished]
            wanted = known[[place for place in found if place >= 0]]
            held = torch.tensor([place for place, row in enumerate(found) if row >= 0], dtype=torch.int64)
            told = self.outbox.release(held, HELD)
        self._each_once(asker, len(wanted), len(np.unique(wanted)))
        if len(wanted):
            site.answer(Asked(asker, wanted, columns(wanted), request.number, request.outputs), folder)
        return Looked(told)

    @serves
    def take(self, request: Take, asker: str) -> Done:
        participant, rows = self.site.participant, request.rows.tensor.cpu()
        self.expect(participant is not None and participant.predicts, "it holds no row that was asked for")
        assert participant is not None
        self._by_the_same(asker)
        known = len(participant.ids)
        fits = rows.dtype == torch.int64 and rows.dim() == 1 and len(rows) > 0
        self.expect(fits and bool(((rows >= 0) & (rows < known)).all()), f"it has rows 0 to {known - 1}")
        self._each_once(asker, len(rows), len(torch.unique(rows)))
        participant.ask(rows)
        return Done()

    @serves
    def enough(self, request: Enough, asker: str) -> Done:  # noqa: ARG002
        if self.site.participant is not None:
            self._by_the_same(asker)
        self.leave()
        return Done()

    def leave(self) -> None:
        """Account and ledger are written; another may begin."""
        participant = self.site.participant
        if participant is not None and participant.predicts:
            participant.budget.settle()
            self.site.leave()

    @contextmanager
    def answering(self, asker: str) -> Iterator[None]:
        """Around every call that this organisation answers, whichever of its roles does."""
        with self._counting:
            self._calls[asker] += 1
        try:
            yield
        finally:
            with self._counting:
                self._calls[asker] -= 1
                self._heard[asker] = time.monotonic()

    def _each_once(self, asker: str, asked: int, different: int) -> None:
        """Each copy of a row would leave with noise of its own, and their mean has less."""
        why = f"'{asker}' asked for {asked} rows of which only {different} differ, and each is asked for once"
        self.expect(asked == different, why)

    def _by_the_same(self, asker: str) -> None:
        self.expect(asker == self.by, f"it answers '{self.by}' now")

    def _take_over(self, participant: Participant, asker: str) -> None:
        """Go on for the same asker, or for another once the one before has gone."""
        by = str(self.by)
        with self._counting:
            silent = time.monotonic() - self._heard.get(by, -math.inf)
            gone = not self._calls[by] and silent >= self.patience
        self.expect(asker == self.by or gone, f"it answers '{self.by}' now")
        if asker != self.by:
            log.warning("%s: '%s' has not asked for %.0f s; '%s' takes over", self.name, by, silent, asker)
            with participant.role.undisturbed():
                participant.role.serves_for = frozenset()
