"""A party's side of a prediction across machines: which of the rows asked for it holds,
and its columns of them.

`prediction` has the protocol. Nothing is learned from it, and no labels are needed:
columns are prepared as in training, from the organisation's table as it is at each
batch, and its account and ledger go on.
"""

from __future__ import annotations

import hashlib
import logging
import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from colonnade.alignment.ids import zeros_in_front
from colonnade.core import Done, Message, Organisation, Party, Released, Request, serves
from colonnade.core.files import stamp
from colonnade.datasets.preprocess import Labels, Preprocessor
from colonnade.datasets.table import Table, packed
from colonnade.errors import ConfigError, DataError, InputError
from colonnade.rows.asked import asked_by
from colonnade.rows.holdings import (
    NOBODY,
    Columns,
    Holdings,
    Ids,
    State,
    read_own,
    read_own_labels,
)
from colonnade.rows.making import from_tables, place, with_labels
from colonnade.rows.making import own_columns as columns_of
from colonnade.rows.public import from_dataset
from colonnade.rows.sides import sides_heard
from colonnade.runs.run_directory import RunDirectory
from colonnade.settings.party_file import SiteConfig
from colonnade.sites.host import MOST_OUTPUTS, Home, Host
from colonnade.sites.participant import Participant, numbers
from colonnade.transport.retrying import GONE

log = logging.getLogger("colonnade.party")
DIGEST = 16
Prepare = Callable[[Ids], torch.Tensor]


def read_own_table(own: SiteConfig) -> Table:
    """Read this organisation's table, in the order of its ids."""
    table = (read_own_labels if own.section == "label_owners" else read_own)(
        own.settings, own.name
    )
    if own.name in own.feature_owners and not table.columns:
        raise DataError(
            f"'{own.name}' holds no feature columns, and no labels. Name some columns."
        )
    if table.label is not None and own.private:
        table = with_labels(table)  # nobody need know of the others
    return table.in_order(np.sort(table.ids))


def own_columns(
    own: SiteConfig,
    table: Table | None,
    ids: Mapping[str, Ids],
    outputs: int,
    sides: str = "",
    rows: int = 0,
    numbers: torch.Tensor | None = None,
) -> Holdings:
    """Of one that holds columns: by label owner the rows they share, and its columns of
    all of them. Without a table, its part of a public data set. `sides` and `numbers`
    are of the one label owner's rows, where it told them; of other rows they change
    nothing, and the label owner sees that these are others. `rows` is how many train,
    where told."""
    name = own.name
    if table is None:
        whole = from_dataset(own.settings)
        if name not in whole.columns:
            raise ConfigError(
                f"{name!r} holds no columns of this data set; there are"
                f" {', '.join(whole.columns)}."
            )
        owners = {
            k: replace(held, labels=NOBODY) for k, held in whole.label_owners.items()
        }
        part = replace(whole, columns={name: whole.columns[name]}, label_owners=owners)
    else:
        divided = None
        if sides and len(ids) == 1:
            ((owner, known),) = ids.items()
            if (understood := sides_heard(sides, known)) is not None:
                ids = {owner: understood[0]}
                divided = understood[1]
        part = replace(place(own.settings, ids, divided), outputs_elsewhere=outputs)
        if numbers is not None and len(ids) == 1:
            (held,) = part.label_owners.values()
            if (
                numbers.dtype != torch.int64
                or tuple(numbers.shape) != (len(held.ids),)
                or bool((numbers < 0).any())
            ):
                raise DataError(
                    f"'{name}' was told numbers of other rows than the {len(held.ids)}"
                    " that it shares."
                )
            held.numbers = numbers.cpu()
        part = replace(
            part, columns={name: columns_of(own.settings, name, table, part)}
        )
    return replace(part, outputs_elsewhere=outputs, trained=rows)


def own_labels(
    own: SiteConfig, table: Table | None, encoder: Labels | None, salt: str = ""
) -> Holdings:
    """Build what a label owner holds: its rows, and the columns that it has beside its
    labels. Several agree on an `encoder`; one draws its split with a `salt` of its own.
    """
    name = own.name
    if table is None:
        whole = from_dataset(own.settings)
        mine = {name: whole.columns[name]} if name in whole.columns else {}
        held = whole.label_owners[name]
        if held.rows is not None:  # of all rows it knows its own alone
            held = replace(held, rows=torch.arange(len(held.packed)))
        return replace(
            whole,
            columns=mine,
            label_owners={name: held},
            packed=held.packed,
            known_to=1,
        )
    exact = replace(own.local, data=own.settings.data.changed(align="exact"))
    return from_tables(exact, {name: table}, {name: table}, salt=salt, encoder=encoder)


class OwnRows:
    """An organisation's table, read once, and again when its file has changed; one that
    cannot be read, such as one that is half-written, changes nothing."""

    def __init__(self, own: SiteConfig) -> None:
        self.own = own
        self._seen = written(own)
        self._fitted = State()
        self._rows: tuple[Ids, Prepare] | None = None

    def now(self, fitted: State) -> tuple[Ids, Prepare]:
        """Give the ids, and what prepares the columns of some of them as in training."""
        seen = written(self.own)
        if self._rows is None or fitted != self._fitted:
            self._rows = rows_of(self.own, fitted)
        elif seen != self._seen:
            try:
                self._rows = rows_of(self.own, fitted)
            except InputError as error:
                kind = type(error).__name__
                log.warning(
                    "%s: its table changed and cannot be read (%s); the old rows stay",
                    self.own.name,
                    kind,
                )
        self._seen = seen
        self._fitted = fitted
        return self._rows


def written(own: SiteConfig) -> tuple[tuple[int, int], ...]:
    """Tell when an organisation's tables were written, and their sizes; nothing where
    it has none."""
    party = own.settings.parties.get(own.name)
    if party is None or party.table is None:
        return ()
    return tuple(
        stamp(Path(path))
        for path in (party.table, *(more["table"] for more in party.tables.values()))
    )


def rows_of(own: SiteConfig, fitted: State) -> tuple[Ids, Prepare]:
    """Give the ids in an organisation's table as it is now, and what prepares columns
    of some as in training."""
    if own.settings.data.dataset is not None:
        whole = from_dataset(own.settings)
        index = {name: at for at, name in enumerate(whole.ids.tolist())}
        features = whole.columns[own.name].features
        return whole.ids, lambda ids: features[[index[name] for name in ids.tolist()]]
    prepared = Preprocessor.from_state(fitted["columns"])
    names = tuple(column["name"] for column in fitted["columns"]["columns"])
    brings = own.settings.parties[own.name].changed(label=None, columns=names)
    settings = replace(own.settings, parties={own.name: brings})
    table = read_own(settings, own.name, fitted)
    ways = prepared.ways(table)  # of the whole table: the rows asked for may not tell
    return table.ids, lambda ids: prepared.transform(table.in_order(ids), ways)


def ids_with_zeros(own: SiteConfig, ids: Ids) -> str:
    """Advice to an organisation whose ids begin with zeros, which others may leave out;
    "" where none do, or where a rule takes zeros away."""
    settings = own.settings
    if not settings.plain_ids:
        return ""
    return zeros_in_front(own.name, ids.tolist(), settings.keys[0][0])


def has_columns(own: SiteConfig, fitted: State) -> bool:
    """Whether a label owner that asks brings columns itself."""
    if own.settings.data.dataset is None:
        return "columns" in fitted
    return own.name in from_dataset(own.settings).columns


def digests_of(own: SiteConfig, ids: NDArray[Any]) -> list[bytes]:
    """Digests of ids, keyed with the agreed file's fingerprint."""
    key = own.agreed.encode()
    return [
        hashlib.blake2b(name.encode(), key=key, digest_size=DIGEST).digest()
        for name in ids.tolist()
    ]


ASKED_IDS = "asked_ids"
HELD = "held"
ASKED_ROWS = "asked_rows"
REVEALS = {
    ASKED_IDS: (
        "which ids are to be predicted: digests, which whoever guesses an id can"
        " compare"
    ),
    HELD: "which of the ids asked for this party holds",
    ASKED_ROWS: "which of this party's rows are to be predicted next",
}


@dataclass(frozen=True)
class Asked:
    """Rows of an organisation's that `by` is to predict, and with which checkpoint of
    the run."""

    by: str
    ids: Ids
    columns: torch.Tensor
    number: int
    outputs: int

    def holdings(self, own: SiteConfig, run: RunDirectory) -> Holdings:
        """Build holdings of these rows alone, as the organisation holds them."""
        columns = {own.name: Columns(self.columns)}
        asked = asked_by(own.settings, self.by, own.label_owners, self.ids)
        known_to = int(run.fitted(own.name).get("known_to", 1))
        server = own.settings.server
        # what labels mean is known elsewhere
        encoder = Labels(", ".join(own.label_owners), "classification")
        return Holdings(
            columns,
            asked,
            packed(self.ids),
            encoder,
            known_to,
            server,
            outputs_elsewhere=self.outputs,
        )


class Shelf(Home, Protocol):
    """What a reader needs of its site, besides (`sites.site`)."""

    host: Host

    def common_ids(self, asker: str) -> Ids | None: ...
    def answer(self, asked: Asked, folder: Path) -> None: ...


class Looked(Message):
    # the places in what was asked for, of the rows that it holds; None where it was not
    # told
    held: Released | None


class Look(Request[Looked]):
    run: str
    number: int  # of the checkpoint
    outputs: int
    digests: Released | None  # of the ids; None: those that an alignment found


class Take(Request[Done]):
    rows: Released  # of those it holds


class Enough(Request[Done]):
    """No more rows are asked for."""


class Reader(Party):
    """Answers for an organisation which rows it holds, and makes its feature owner
    answer for some of them. Of several who may ask, it answers one at a time; another
    takes over when that one has not asked for so many seconds, as where it died, and
    never while it is being answered."""

    patience = GONE

    def __init__(
        self, organisation: Organisation, site: Shelf, askers: Collection[str]
    ) -> None:
        super().__init__(organisation)
        self.site = site
        self.serves_for = frozenset(askers)
        self.table = OwnRows(site.own)
        self.by: str | None = None  # for whom it answered last
        self._calls: Counter[str] = Counter()  # of whom calls are being answered
        self._heard: dict[str, float] = {}  # when whose last call was answered
        self._counting = threading.Lock()

    @serves
    def look(self, request: Look, asker: str) -> Looked:
        site = self.site
        self.expect(
            site.participant is None or site.participant.predicts,
            "it takes part in a run already",
        )
        if site.participant is not None:
            self._take_over(site.participant, asker)
        self.leave()  # the batch before, of which the asker had enough
        self.by = asker
        self.expect(
            0 < request.outputs <= MOST_OUTPUTS,
            f"a model cannot have {request.outputs} outputs",
        )
        folder = site.host.folder(request.run)
        self.expect(
            request.number in numbers(RunDirectory(folder)),
            f"it has no checkpoint {request.number} of it",
        )
        known, columns = self.table.now(RunDirectory(folder).fitted(site.own.name))
        if request.digests is None:
            wanted = self.needed(
                site.common_ids(asker),
                "it was given no ids, and no alignment found any",
            )
            places = None
            self.expect(
                bool(np.isin(wanted, known).all()),
                "its table has changed since ids were compared; ask again",
            )
        else:
            self.expect(
                not site.own.private,
                'ids are compared privately, by its [data] align = "private"',
            )
            mine = {
                digest: place
                for place, digest in enumerate(digests_of(site.own, known))
            }
            asked = request.digests.tensor
            fits = (
                asked.dtype == torch.uint8
                and asked.dim() == 2
                and asked.shape[1] == DIGEST
            )
            self.expect(fits, f"digests are {DIGEST} bytes each")
            wished = [bytes(digest) for digest in asked.cpu().numpy()]
            self._each_once(asker, len(wished), len(set(wished)))
            rows = [mine.get(digest, -1) for digest in wished]
            wanted = known[[place for place in rows if place >= 0]]
            held = torch.tensor(
                [place for place, row in enumerate(rows) if row >= 0], dtype=torch.int64
            )
            places = self.outbox.release(held, HELD)
        self._each_once(asker, len(wanted), len(np.unique(wanted)))
        if len(wanted):
            site.answer(
                Asked(asker, wanted, columns(wanted), request.number, request.outputs),
                folder,
            )
        return Looked(places)

    @serves
    def take(self, request: Take, asker: str) -> Done:
        why = "it holds no row that was asked for"
        rows = request.rows.tensor.cpu()
        participant = self.needed(self.site.participant, why)
        self.expect(participant.predicts, why)
        self._by_the_same(asker)
        known = len(participant.ids)
        fits = rows.dtype == torch.int64 and rows.dim() == 1 and len(rows) > 0
        self.expect(
            fits and bool(((rows >= 0) & (rows < known)).all()),
            f"it has rows 0 to {known - 1}",
        )
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
        """Write account and ledger; another may begin."""
        participant = self.site.participant
        if participant is not None and participant.predicts:
            participant.settle()
            self.site.leave()

    @contextmanager
    def answering(self, asker: str) -> Iterator[None]:
        """Surround every call that this organisation answers, whichever of its roles
        does."""
        with self._counting:
            self._calls[asker] += 1
        try:
            yield
        finally:
            with self._counting:
                self._calls[asker] -= 1
                self._heard[asker] = time.monotonic()

    def _each_once(self, asker: str, asked: int, different: int) -> None:
        """Refuse rows asked for twice: each copy would leave with noise of its own, and
        their mean has less."""
        why = (
            f"'{asker}' asked for {asked} rows of which only {different} differ, and"
            " each is asked for once"
        )
        self.expect(asked == different, why)

    def _by_the_same(self, asker: str) -> None:
        self.expect(asker == self.by, f"it answers '{self.by}' now")

    def _take_over(self, participant: Participant, asker: str) -> None:
        """Go on for the same asker, or for another once the one before has gone."""
        by = str(self.by)
        with self._counting:
            silent = time.monotonic() - self._heard.get(by, -math.inf)
            gone = not self._calls[by] and silent >= self.patience
        if asker != self.by:
            self.expect(gone, f"it answers '{self.by}' now")
            log.warning(
                "%s: '%s' has not asked for %.0f s; '%s' takes over",
                self.name,
                by,
                silent,
                asker,
            )
            with participant.role.undisturbed():
                participant.role.serves_for = frozenset()
