"""The aggregation server: it reads sub-rankings of pseudo ids, adds ciphertexts, and
turns places into pseudo ids.

It holds no data, no labels and no key but public ones. Distances reach it encrypted;
rows have pseudo ids only.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from colonnade.core import (
    Ciphertext,
    Encrypted,
    Message,
    Organisation,
    Party,
    Peers,
    Released,
    Request,
    serves,
)
from colonnade.core.message import Done
from colonnade.encryption import PublicKey, read_public_key
from colonnade.selection.neighbours import Fagin, Ids, following
from colonnade.selection.participant import Distances, FurtherOwn, RankRows, SortOwn
from colonnade.selection.sorting import Further, Sort, Sorted, packs

SEEN = "seen"
SORTED = "sorted_ids"
TOTAL = "total"
CANDIDATES = "candidates"


class Begin(Request[Done]):
    """How many rows there are, and the public keys of those who may sort."""

    rows: int
    keys: dict[str, Released]


class Seen(Message):
    """The pseudo ids that are now seen in all lists, per query, in the order in which
    they became so."""

    ids: Released
    counts: Released


class Scan(Request[Seen]):
    """Start reading the sub-rankings of some participants for these queries: a first
    page of each."""

    among: tuple[str, ...]
    queries: Released
    page: int


class More(Request[Seen]):
    """Another page, for the queries (by position) that did not stop."""

    queries: Released
    page: int


class Ranked(Message):
    """Pseudo ids, nearest first, [groups, queries, length]; -1 beyond the last
    candidate."""

    ids: Released


class Rank(Request[Ranked]):
    """Sort each query's candidates in each group: those up to where its scan stopped
    or, without `stops`, all rows."""

    groups: tuple[tuple[str, ...], ...]
    queries: Released
    stops: Released | None
    first: int


class Rest(Request[Ranked]):
    """The next places, for some of the queries (by position)."""

    queries: Released
    start: int
    stop: int


class Sums(Message):
    """The distances of each query to all other rows, added up for each group, encrypted
    for the leader."""

    totals: tuple[Ciphertext, ...]


class Add(Request[Sums]):
    """Where the leader decrypts (the paper's baseline, Section 3.2.1): give it every
    group's sum."""

    groups: tuple[tuple[str, ...], ...]
    queries: Released


class AggregationServer(Party):
    """Serves the leader; asks participants and whoever sorts. Between sites it holds at
    most `most` ranks at once."""

    peers: Peers

    def __init__(
        self, organisation: Organisation, *, scheme: str, most: int | None = None
    ) -> None:
        super().__init__(organisation)
        self.scheme = scheme
        self.most = most
        self.total_rows = 0
        self.operations = Counter[str]()
        self._keys: dict[str, PublicKey] = {}
        self._fagin: Fagin | None = None
        self._groups: tuple[tuple[str, ...], ...] | None = None

    @serves
    def begin(self, request: Begin) -> Done:
        self.total_rows = request.rows
        self._keys = {
            name: read_public_key(key, scheme=self.scheme, use="sums")
            for name, key in request.keys.items()
        }
        return Done()

    @serves
    def scan(self, request: Scan) -> Seen:
        self._among = request.among
        self._queries = request.queries
        count = request.queries.shape[0]
        reason = (
            f"its owner has no room for {count} queries of {self.total_rows} rows"
            " (memory_per_call in party.toml)"
        )
        self.expect(
            self.most is None or 0 < count * self.total_rows <= self.most, reason
        )
        self._fagin = Fagin(count, self.total_rows, len(request.among))
        return self._read(np.arange(count), request.page)

    @serves
    def more(self, request: More) -> Seen:
        return self._read(request.queries.tensor.numpy().astype(np.int64), request.page)

    def _read(self, positions: NDArray[np.int64], page: int) -> Seen:
        fagin = self._scanned()
        start = fagin.depth
        queries = self._release(self._queries.tensor.numpy()[positions], CANDIDATES)
        request = RankRows(queries, start, min(start + page, self.total_rows - 1))
        answers = self.peers.ask_each(dict.fromkeys(self._among, request))
        complete = fagin.read(
            positions, [answer.ids.tensor.numpy() for answer in answers.values()]
        )
        return Seen(
            self._release(complete.ids, SEEN), self._release(complete.counts, SEEN)
        )

    @serves
    def rank(self, request: Rank) -> Ranked:
        queries = request.queries
        ids = None
        if request.stops is None:
            counts = np.full(queries.shape[0], self.total_rows - 1, dtype=np.int32)
        else:
            fagin = self._scanned()
            depths = fagin.depths(request.stops.tensor.numpy())
            candidates = fagin.candidates(depths, queries.tensor.numpy())
            ids = self._release(candidates.ids, CANDIDATES)
            counts = candidates.counts
        self.operations["candidates"] += int(counts.sum())
        self._groups = request.groups
        self._counts = counts
        self._ids = None if ids is None else candidates.ids
        self._asked = queries.tensor.numpy()
        sizes = self._release(counts, CANDIDATES)
        self._reader = self._draw_reader()
        shared = [group for group in request.groups if len(group) > 1]
        totals = self._totals(shared, Distances(queries, ids, sizes, self._reader))
        orders = []
        for number, group in enumerate(request.groups):
            if len(group) == 1:
                orders.append(
                    self.peers.ask_one(
                        group[0], SortOwn(queries, ids, sizes, request.first)
                    )
                )
                continue
            sent = self.outbox.pass_on(next(totals), TOTAL)
            orders.append(
                self.peers.ask_one(
                    self._reader, Sort(number, sent, sizes, request.first)
                )
            )
        return self._with_ids(np.arange(len(counts)), orders)

    @serves
    def add(self, request: Add) -> Sums:
        reader = self._draw_reader()
        for group in request.groups:
            others = len(set(group) - {reader})
            self.expect(
                others != 1,
                f"the sum of {list(group)} would show '{reader}' one participant's"
                " distances",
            )
        counts = np.full(request.queries.shape[0], self.total_rows - 1, dtype=np.int32)
        self.operations["candidates"] += int(counts.sum())
        distances = Distances(
            request.queries, None, self._release(counts, CANDIDATES), reader
        )
        return Sums(
            tuple(
                self.outbox.pass_on(total, TOTAL)
                for total in self._totals(request.groups, distances)
            )
        )

    def _totals(
        self, groups: Sequence[tuple[str, ...]], request: Distances
    ) -> Iterator[Encrypted]:
        """Server.addition(): one encryption of each participant's distances serves all
        groups."""
        names = dict.fromkeys(name for group in groups for name in group)
        replies = self.peers.ask_each(dict.fromkeys(names, request)) if names else {}
        parts = [answer.distances.encrypted for answer in replies.values()]
        order = list(names)
        numbered = [[order.index(name) for name in group] for group in groups]
        for group, total in zip(
            groups, self._keys[request.reader].add_groups(parts, numbered), strict=True
        ):
            self.operations["additions"] += packs(total) * (len(group) - 1)
            yield total

    @serves
    def rest(self, request: Rest) -> Ranked:
        positions = request.queries
        start = request.start
        stop = request.stop
        orders: list[Sorted] = []
        groups = self.needed(
            self._groups,
            "it has ranked nothing, so there are no next places; rank comes first",
        )
        for number, group in enumerate(groups):
            if len(group) == 1:
                orders.append(
                    self.peers.ask_one(group[0], FurtherOwn(positions, start, stop))
                )
            else:
                orders.append(
                    self.peers.ask_one(
                        self._reader, Further(number, positions, start, stop)
                    )
                )
        return self._with_ids(positions.tensor.numpy().astype(np.int64), orders)

    def _scanned(self) -> Fagin:
        return self.needed(self._fagin, "it has scanned no rankings; scan comes first")

    def _draw_reader(self) -> str:
        """Server.scheduler(): draw one of those who can sort."""
        names = sorted(self._keys)
        self.expect(bool(names), "it was given no keys; a selection starts with begin")
        return names[int(torch.randint(len(names), (), generator=self.generator))]

    def _with_ids(self, positions: NDArray[np.int64], orders: list[Sorted]) -> Ranked:
        """Server.scheduler_callback(): places among the candidates become pseudo ids."""
        places = np.stack([answer.order.tensor.numpy() for answer in orders])
        if self._ids is None:
            ids = following(self._asked[positions], places, self.total_rows)
        else:
            starts = np.cumsum(self._counts) - self._counts
            ids = self._ids[
                np.minimum(starts[positions][:, None] + places, len(self._ids) - 1)
            ]
        return Ranked(self._release(np.where(places < 0, -1, ids), SORTED))

    def _release(self, values: Ids | NDArray[np.int64], as_: str) -> Released:
        return self.outbox.release(
            torch.from_numpy(np.ascontiguousarray(values).astype(np.int32)), as_
        )
