"""A party's side of a prediction across machines: which of the rows asked for it holds, and its columns of them.

`site_session` has the protocol. Nothing is learned from a prediction, and no labels are needed: columns are prepared as
in training, from the organisation's table as it is at each batch, and its account and ledger go on.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from colonnade.core import Done, Message, Party, Released, Request, Seat, serves
from colonnade.errors import InputError
from colonnade.rows import shares
from colonnade.rows.tables import read_own
from colonnade.runs.run_directory import RunDirectory
from colonnade.settings.party_file import Own
from colonnade.sites.clerk import MOST_OUTPUTS
from colonnade.sites.member import Asked, own_holdings
from colonnade.sites.saves import numbers
from colonnade.transport.retrying import GONE

if TYPE_CHECKING:
    from colonnade.sites.member import Member
    from colonnade.sites.multi_member import MultiMember
    from colonnade.sites.multi_site import MultiSite
    from colonnade.sites.site import Site

DIGEST = 16
ASKED_IDS, HELD, ASKED_ROWS = "asked_ids", "held", "asked_rows"
REVEALS = {
    ASKED_IDS: "which ids are to be predicted: digests, which whoever guesses an id can compare",
    HELD: "which of the ids asked for this party holds",
    ASKED_ROWS: "which of this party's rows are to be predicted next",
}
State = dict[str, Any]
Strings = NDArray[np.str_]
Columns = Callable[[Strings], torch.Tensor]
log = logging.getLogger("colonnade.party")


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

    def __init__(self, seat: Seat, site: Site | MultiSite, askers: Collection[str]) -> None:
        super().__init__(seat)
        self.site, self.serves_for, self.table = site, frozenset(askers), OwnRows(site.own)
        self.by: str | None = None  # for whom it answered last
        self._calls: Counter[str] = Counter()  # of whom calls are being answered
        self._heard: dict[str, float] = {}  # when whose last call was answered
        self._counting = threading.Lock()

    @serves
    def look(self, request: Look) -> Looked:
        site, asker = self.site, str(self.asker)
        self.expect(site.member is None or site.member.predicts, "it takes part in a run already")
        if site.member is not None:
            self._take_over(site.member)
        self.leave()  # the batch before, of which the asker had enough
        self.by = asker
        self.expect(0 < request.outputs <= MOST_OUTPUTS, f"a model cannot have {request.outputs} outputs")
        assert site.clerk is not None
        folder = site.clerk.folder(request.run)
        self.expect(request.number in numbers(RunDirectory(folder)), f"it has no checkpoint {request.number} of it")
        known, columns = self.table.now(RunDirectory(folder).fitted(site.own.name, json.loads))
        if request.digests is None:
            wanted, told = site.common_ids(asker), None
            self.expect(wanted is not None, "it was given no ids, and no alignment found any")
            assert wanted is not None
            self.expect(bool(np.isin(wanted, known).all()), "its table has changed since ids were compared; ask again")
        else:
            mine = {digest: place for place, digest in enumerate(digests_of(site.own, known))}
            asked = request.digests.tensor
            fits = asked.dtype == torch.uint8 and asked.dim() == 2 and asked.shape[1] == DIGEST
            self.expect(fits, f"digests are {DIGEST} bytes each")
            wished = [bytes(one) for one in asked.cpu().numpy()]
            self._each_once(len(wished), len(set(wished)))
            found = [mine.get(one, -1) for one in wished]
            wanted = known[[place for place in found if place >= 0]]
            held = torch.tensor([place for place, row in enumerate(found) if row >= 0], dtype=torch.int64)
            told = self.outbox.release(held, HELD)
        self._each_once(len(wanted), len(np.unique(wanted)))
        if len(wanted):
            site.answer(Asked(asker, wanted, columns(wanted), request.number, request.outputs), folder)
        return Looked(told)

    @serves
    def take(self, request: Take) -> Done:
        member, rows = self.site.member, request.rows.tensor.cpu()
        self.expect(member is not None and member.predicts, "it holds no row that was asked for")
        assert member is not None
        assert member.asked is not None
        self._by_the_same()
        known = len(member.holdings.ids)
        fits = rows.dtype == torch.int64 and rows.dim() == 1 and len(rows) > 0
        self.expect(fits and bool(((rows >= 0) & (rows < known)).all()), f"it has rows 0 to {known - 1}")
        self._each_once(len(rows), len(torch.unique(rows)))
        with member.owner.undisturbed():
            member.asked.splits = {"predict": rows}
        return Done()

    @serves
    def enough(self, request: Enough) -> Done:  # noqa: ARG002
        if self.site.member is not None:
            self._by_the_same()
        self.leave()
        return Done()

    def leave(self) -> None:
        """Account and ledger are written; another may begin."""
        member = self.site.member
        if member is not None and member.predicts:
            assert member.purse is not None
            member.purse.settle()
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

    def _each_once(self, asked: int, different: int) -> None:
        """Each copy of a row would leave with noise of its own, and their mean has less."""
        why = f"'{self.asker}' asked for {asked} rows of which only {different} differ, and each is asked for once"
        self.expect(asked == different, why)

    def _by_the_same(self) -> None:
        self.expect(self.asker == self.by, f"it answers '{self.by}' now")

    def _take_over(self, member: Member | MultiMember) -> None:
        """Go on for the same asker, or for another once the one before has gone."""
        by = str(self.by)
        with self._counting:
            silent = time.monotonic() - self._heard.get(by, -math.inf)
            gone = not self._calls[by] and silent >= self.patience
        self.expect(self.asker == self.by or gone, f"it answers '{self.by}' now")
        if self.asker != self.by:
            log.warning("%s: '%s' has not asked for %.0f s; '%s' takes over", self.name, by, silent, self.asker)
            with member.owner.undisturbed():
                member.owner.serves_for = frozenset()


class OwnRows:
    """An organisation's table, read once, and again when its file has changed; one that cannot be read, such as one
    that is half-written, changes nothing."""

    def __init__(self, own: Own) -> None:
        self.own, self._seen, self._fitted = own, written(own), State()
        self._rows: tuple[Strings, Columns] | None = None

    def now(self, fitted: State) -> tuple[Strings, Columns]:
        """The ids, and the columns of some of them, prepared as in training."""
        seen = written(self.own)
        if self._rows is None or fitted != self._fitted:
            self._rows = own_rows(self.own, fitted)
        elif seen != self._seen:
            try:
                self._rows = own_rows(self.own, fitted)
            except InputError as error:
                kind = type(error).__name__
                log.warning("%s: its table changed and cannot be read (%s); the old rows stay", self.own.name, kind)
        self._seen, self._fitted = seen, fitted
        return self._rows


def written(own: Own) -> tuple[int, int] | None:
    """When an organisation's table was written, and its size; None where it has none."""
    table = own.settings.parties[own.name].table if own.name in own.settings.parties else None
    if table is None:
        return None
    try:
        about = Path(table).stat()
    except OSError:
        return None
    return about.st_mtime_ns, about.st_size


def own_rows(own: Own, fitted: State) -> tuple[Strings, Columns]:
    """The ids in an organisation's table as it is now, and its columns of some of them, prepared as in training."""
    from colonnade.datasets.preprocess import Preprocessor

    if own.settings.data.dataset is not None:
        ids, features = _public(own)
        index = {one: at for at, one in enumerate(ids.tolist())}
        return ids, lambda ids: features[[index[one] for one in ids.tolist()]]
    prepared = Preprocessor.from_state(fitted["columns"])
    names = tuple(column["name"] for column in fitted["columns"]["columns"])
    brings = replace(own.settings.parties[own.name], label=None, columns=names)
    table = read_own(replace(own.settings, parties={own.name: brings}), own.name)
    return table.ids, lambda ids: prepared.transform(table.in_order(ids))


def _public(own: Own) -> tuple[Strings, torch.Tensor]:
    """All rows of a data set, with an organisation's part of the columns."""
    if own.settings.label_owners:
        several = shares.from_dataset(own.settings)
        ids, held = several.ids, several.data_owners[own.name]
    else:
        whole = own_holdings(own, None)
        ids, held = whole.ids, whole.parties[own.name]
    assert held.features is not None
    return ids, held.features


def has_columns(own: Own, fitted: State) -> bool:
    """Whether the organisation that asks brings columns itself: of several label owners, none does."""
    if own.settings.label_owners:
        return False
    public = own.settings.data.dataset is not None
    return own_holdings(own, None).parties[own.name].features is not None if public else "columns" in fitted


def digests_of(own: Own, ids: Strings) -> list[bytes]:
    key = own.agreed.encode()
    return [hashlib.blake2b(one.encode(), key=key, digest_size=DIGEST).digest() for one in ids.tolist()]
