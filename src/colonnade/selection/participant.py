"""A participant: it ranks rows by its own columns, encrypts partial distances, and
names rows by pseudo ids alone.

All participants and the leader shuffle rows by one seed, which the leader draws and
tells only the participants. An aggregation server sees of a row only its place after
the shuffle.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from colonnade.core import Ciphertext, Message, Organisation, Released, Request, serves
from colonnade.core.message import Done
from colonnade.encryption import PublicKey, read_public_key
from colonnade.selection.neighbours import Columns, Numbers, shuffled, standardised
from colonnade.selection.sorting import (
    ORDER,
    Orders,
    Sorted,
    SortingParty,
    limit,
    packs,
)

RANKING = "ranking"
DISTANCES = "distances"
REACH = "reach"


class Joined(Message):
    """How many rows it has, how many columns that vary, and the power of two above all
    its partial distances."""

    rows: int
    columns: int
    reach: Released


class Join(Request[Joined]):
    """Only the leader asks this: the seed of the shuffle is not for the servers."""

    seed: int


class Prepare(Request[Done]):
    """The public keys of those who may sort, and the factor of partial distances before
    they are encrypted."""

    keys: dict[str, Released]
    unit: float


class Ranking(Message):
    """Pseudo ids, nearest first, [queries, page]."""

    ids: Released


class RankRows(Request[Ranking]):
    """The participant's own nearest rows of each query, from the start-th to the
    stop-th."""

    queries: Released
    start: int
    stop: int


class Partial(Message):
    distances: Ciphertext


class Distances(Request[Partial]):
    """Partial distances of candidates, encrypted for the `reader`; without ids, of all
    rows but the query."""

    queries: Released
    ids: Released | None
    counts: Released
    reader: str


class SortOwn(Request[Sorted]):
    """For a group of one, the participant sorts its own distances, and nobody needs to
    decrypt them."""

    queries: Released
    ids: Released | None
    counts: Released
    first: int


class FurtherOwn(Request[Sorted]):
    """More of the distances that it sorted itself."""

    queries: Released
    start: int
    stop: int


class Participant(SortingParty):
    """Holds columns [N, F]. Its own settings say with which scheme it encrypts, who may
    decrypt (`readers`), how many participants' distances are added up (`parties`), and
    for how many rows it ranks the neighbours (`queries`). With keys of its own, it may
    be drawn to sort."""

    _columns: Columns | None = None
    _own: Orders | None = None

    def __init__(
        self,
        organisation: Organisation,
        features: Numbers,
        *,
        scheme: str,
        readers: Collection[str],
        parties: int,
        scaling: str = "standard",
        queries: int | None = None,
    ) -> None:
        super().__init__(organisation)
        self._features = standardised(features) if scaling == "standard" else features
        self._readers = frozenset(readers)
        self._keys_as: dict[str, Any] = {
            "scheme": scheme,
            "use": "sums",
            "limit": limit(scheme, parties),
        }
        self._keys: dict[str, PublicKey] = {}
        self._most = queries
        self._asked = np.empty(0, dtype=np.int64)
        self._unit = 1.0
        self.operations = Counter[str]()

    @serves
    def join(self, request: Join) -> Joined:
        """Answered once: after another shuffle the same rows would have other pseudo
        ids, to be asked for anew."""
        self.expect(
            self._columns is None, "it was told how rows are shuffled, and keeps to it"
        )
        self._columns = Columns(
            self._features[shuffled(len(self._features), request.seed)]
        )
        reach = self.outbox.release(torch.tensor([self._columns.reach()]), REACH)
        return Joined(
            len(self._features), int((np.ptp(self._features, axis=0) > 0).sum()), reach
        )

    @serves
    def prepare(self, request: Prepare) -> Done:
        """Answered once: a key or a scale that changes on the way would let a reader
        compare what it should not."""
        self.expect(not self._keys, "it was given keys before, and keeps to them")
        strangers = sorted(request.keys.keys() - self._readers)
        self.expect(
            not strangers,
            f"{strangers} may not decrypt by its own settings;"
            f" {sorted(self._readers)} may",
        )
        most = self._keys_as["limit"] / self._joined().reach()
        self.expect(
            0 < request.unit <= most,
            "a distance times this unit would not fit what the keys are made for",
        )
        self._keys = {
            name: read_public_key(key, **self._keys_as)
            for name, key in request.keys.items()
        }
        self._unit = request.unit
        return Done()

    @serves
    def rank_rows(self, request: RankRows) -> Ranking:
        columns = self._joined()
        fits = 0 <= request.start < request.stop < columns.rows
        self.expect(
            fits,
            f"it has no rows {request.start} to {request.stop} of {columns.rows - 1}",
        )
        nearest = columns.ranking(
            self._queries(request.queries), request.start, request.stop
        )
        return Ranking(self.outbox.release(torch.from_numpy(nearest), RANKING))

    @serves
    def distances(self, request: Distances) -> Partial:
        otherwise = (
            f"it was given no key of {request.reader!r}; there are {sorted(self._keys)}"
        )
        key = self.needed(self._keys.get(request.reader), otherwise)
        values = (
            self._partial(request.queries, request.ids, request.counts) * self._unit
        )
        sent = self.outbox.encrypt(torch.from_numpy(values), DISTANCES, key=key)
        self.operations["encryptions"] += packs(sent.encrypted)
        return Partial(sent)

    @serves
    def sort_own(self, request: SortOwn) -> Sorted:
        self._own = Orders(
            self._partial(request.queries, request.ids, request.counts),
            request.counts.tensor.numpy(),
        )
        return Sorted(self.outbox.release(self._own.part(0, request.first), ORDER))

    @serves
    def further_own(self, request: FurtherOwn) -> Sorted:
        own = self.needed(
            self._own,
            "it has sorted no distances of its own, so there are no more of them",
        )
        part = own.part(request.start, request.stop, request.queries.tensor.numpy())
        return Sorted(self.outbox.release(part, ORDER))

    def _joined(self) -> Columns:
        return self.needed(
            self._columns,
            "it was not told how rows are shuffled; a selection starts with join",
        )

    def _numbers(self, released: Released) -> NDArray[np.int64]:
        numbers: NDArray[np.int64] = released.tensor.to(torch.int64).numpy()
        rows = self._joined().rows
        inside = bool(((numbers >= 0) & (numbers < rows)).all())
        self.expect(inside, f"pseudo ids must be below {rows}")
        return numbers

    def _queries(self, released: Released) -> NDArray[np.int64]:
        """The rows whose neighbours are asked for: over all requests no more than the
        owner allows."""
        queries = self._numbers(released)
        self.expect(
            queries.ndim == 1 and len(np.unique(queries)) == len(queries),
            "each query is asked for once",
        )
        if self._most is not None:
            asked = np.union1d(self._asked, queries)
            allowed = f"its owner lets the neighbours of {self._most} rows be ranked"
            self.expect(
                len(asked) <= self._most,
                f"{allowed}, and it was asked for those of {len(asked)}",
            )
            self._asked = asked
        return queries

    def _partial(
        self, queries: Released, ids: Released | None, counts: Released
    ) -> Numbers:
        candidates = None if ids is None else self._numbers(ids).astype(np.int32)
        asked = self._queries(queries)
        columns = self._joined()
        sizes = counts.tensor.numpy()
        expected = (
            len(asked) * (columns.rows - 1) if candidates is None else len(candidates)
        )
        self.expect(
            len(sizes) == len(asked) and int(sizes.sum()) == expected,
            "counts and candidates do not fit",
        )
        return columns.distances(asked, candidates, sizes)
