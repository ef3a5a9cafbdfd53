"""VF-MINE (Jiang et al., VF-PS, NeurIPS 2022, Section 3.2 and Algorithm 1), as the
leader drives it: the mutual information of the label with the joined columns of each of
several groups of participants.

    leader            a seed for the shuffle -> participants; queries, by pseudo id -> aggregation server
    participants      sub-rankings of pseudo ids -> aggregation server, page by page
    aggregation       pseudo ids seen in all lists -> leader, who stops the scan at the k-th of the query's own label
    participants      [d_i] of the candidates, encrypted -> aggregation server, which adds them up for each group S
    who decrypts      sorts d_S -> aggregation server: places only, which it turns into pseudo ids -> leader
    leader            m_q = the place of the k-th of the query's own label; Ross's estimate

By Fagin's inclusion property the candidates of all participants together contain those
of every group of them, so one scan, and one encryption of each participant's distances,
serves all groups (batching). The leader asks for places in steps, until it has the k-th
in every group. A participant sorts the distances of a group of one itself.

Where the leader decrypts (the paper's baseline, Section 3.2.1), it gets each group's
distances to all rows:

    participants      [d_i] of all rows, encrypted for the leader -> aggregation server
    aggregation       [d_S] of each group -> leader, who decrypts; never of a group with one participant besides it
    leader            Kraskov's estimate, or Ross's

Kraskov's estimate compares d_S / F_S, the mean square over the group's columns, with
the squared difference of labels; columns and labels have the standard deviation 1.
(Without F_S the estimates of wide groups sink towards 0.) There is no scan here: ranks
do not tell whether an unseen row is inside the radius, which may be the distance of a
label.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from colonnade.core import Organisation, Party, Peers, Released
from colonnade.errors import ConfigError
from colonnade.selection.aggregation import Add, Begin, More, Rank, Rest, Scan
from colonnade.selection.methods import Group
from colonnade.selection.neighbours import (
    Numbers,
    Whole,
    counts,
    first_page,
    kraskov_terms,
    kth,
    possible_queries,
    ranks_by,
    ross_terms,
    shuffled,
    squared_distances,
    standardised,
)
from colonnade.selection.participant import Join, Prepare
from colonnade.selection.sorting import AskPublicKey, Sorter, limit
from colonnade.settings.selection import SERVER, SelectionSettings

QUERIES = "queries"
STOPS = "stops"
UNFINISHED = "unfinished"
AT_ONCE = 1 << 22
"""Rows times queries in one request; a quarter of it where all rows are candidates.
Where the leader decrypts, that quarter is of rows times queries times groups, since it
gets the sums of all groups at once."""
PLACES = 2
"""The first places asked for, in multiples of where the k-th is if the columns tell
nothing about the label."""

Watch = Callable[[int, int], None]


class Leader(Party):
    """Holds the labels, classes or numbers, and drives. `shuffle` is the seed of pseudo
    ids; it comes from the operating system, unless a simulation is to be repeated."""

    sorter: Sorter | None = None
    same: Whole
    neighbours: Whole

    def __init__(
        self,
        organisation: Organisation,
        labels: NDArray[Any],
        settings: SelectionSettings,
        shuffle: int | None = None,
    ) -> None:
        super().__init__(organisation)
        self.settings = settings.settled(numbers=labels.dtype.kind == "f")
        self.shuffle = secrets.randbits(62) if shuffle is None else shuffle
        order = shuffled(len(labels), self.shuffle)
        # by pseudo id, as is all that follows
        self.labels: NDArray[Any] = labels[order]
        if self.settings.estimator == "kraskov":
            possible = np.arange(len(labels))
            if settings.scaling == "standard":
                self.labels = standardised(self.labels[:, None])[:, 0]
        else:
            self.same, self.neighbours = counts(self.labels, settings.k)
            possible = possible_queries(labels)
        drawn = torch.randperm(len(possible), generator=self.generator).numpy()[
            : settings.queries
        ]
        self.queries: Whole = np.argsort(order)[possible[drawn]]
        self.participants: tuple[str, ...] = ()
        self.tested: list[Group] = []
        # for each group a term per query; their mean is the estimate
        self.terms: dict[Group, Numbers] = {}

    def meet(
        self, peers: Peers, participants: Sequence[str], readers: Sequence[str]
    ) -> None:
        """Tell the shuffle, agree on a scale, and pass the public keys of those who may
        sort on to all."""
        self.peers = peers
        self.participants = tuple(participants)
        joined = peers.ask_each(dict.fromkeys(self.participants, Join(self.shuffle)))
        for name, reply in joined.items():
            if reply.rows != len(self.labels):
                raise ConfigError(
                    f"'{name}' has {reply.rows} rows and '{self.name}'"
                    f" {len(self.labels)} labels. Align them first."
                )
        reach = max(float(reply.reach.tensor[0]) for reply in joined.values())
        self._columns = {name: reply.columns for name, reply in joined.items()}
        if self.settings.decryptor == "leader":
            self.sorter = Sorter(self.settings.scheme, len(self.participants))
            keys = {
                self.name: self.outbox.publish(
                    self.sorter.secret.public.to_bytes(), "public_key"
                )
            }
        else:
            keys = {
                name: peers.ask_one(name, AskPublicKey()).public for name in readers
            }
        self._unit = limit(self.settings.scheme, len(self.participants)) / reach
        peers.ask_each(dict.fromkeys(self.participants, Prepare(keys, self._unit)))
        peers.ask_one(SERVER, Begin(len(self.labels), keys))

    def information(
        self, groups: Sequence[Group], watch: Watch | None = None
    ) -> dict[Group, float]:
        """The mutual information of each group's joined columns with the label, in
        nats."""
        wanted = list(dict.fromkeys(groups)) if self.settings.batching else list(groups)
        runs = [wanted] if self.settings.batching else [[group] for group in wanted]
        estimates: dict[Group, float] = {}
        total = len(runs) * len(self.queries)
        done = 0
        self.tested += wanted
        for run in runs:
            distances = (
                AT_ONCE // 4 // len(run)
                if self.sorter
                else AT_ONCE
                if self.settings.fagin
                else AT_ONCE // 4
            )
            terms = []
            size = max(1, distances // len(self.labels))
            for start in range(0, len(self.queries), size):
                part = self.queries[start : start + size]
                terms.append(
                    self._opened(run, part)
                    if self.sorter
                    else self._ross(part, self._ranks(run, part))
                )
                done += len(part)
                if watch is not None:
                    watch(done, total)
            joined = np.concatenate(terms, axis=1)
            self.terms.update(zip(run, joined, strict=True))
            estimates.update(zip(run, joined.mean(1).tolist(), strict=True))
        return estimates

    def _opened(self, groups: list[Group], queries: Whole) -> Numbers:
        """The estimate's terms, [groups, queries], from sums that this leader decrypts."""
        assert self.sorter is not None
        answer = self.peers.ask_one(
            SERVER, Add(tuple(groups), self._release(queries, QUERIES))
        )
        terms = []
        for group, total in zip(groups, answer.totals, strict=True):
            values, noise = self.sorter.open(total)
            scale = self._unit
            if self.settings.scaling == "standard":
                scale *= max(1, sum(self._columns[name] for name in group))
            terms.append(
                self._terms(
                    values.reshape(len(queries), -1) / scale, queries, noise / scale
                )
            )
        return np.stack(terms)

    def _terms(self, distances: Numbers, queries: Whole, noise: float) -> Numbers:
        if self.settings.estimator == "kraskov":
            return kraskov_terms(
                distances,
                squared_distances(self.labels[:, None], queries),
                self.settings.k,
                noise,
            )
        return self._ross(
            queries,
            ranks_by(distances, self.labels, queries, self.neighbours[queries], noise),
        )

    def _ross(self, queries: Whole, ranks: Whole) -> Numbers:
        """The estimate's terms, from ranks."""
        return ross_terms(
            len(self.labels), self.same[queries], self.neighbours[queries], ranks
        )

    def _ranks(self, groups: list[Group], queries: Whole) -> Whole:
        """m_q, [groups, queries]."""
        k = self.neighbours[queries]
        released = self._release(queries, QUERIES)
        stops = self._scan(groups, queries, released) if self.settings.fagin else None
        step = PLACES * int(
            np.ceil(np.median(k * len(self.labels) / self.same[queries]))
        )
        answer = self.peers.ask_one(SERVER, Rank(tuple(groups), released, stops, step))
        ranks = np.zeros((len(groups), len(queries)), dtype=np.int64)
        missing = np.broadcast_to(k, ranks.shape).copy()
        unfinished = np.arange(len(queries))
        start = 0
        while True:
            same = self._own_label(answer.ids.tensor.numpy(), queries[unfinished])
            places = kth(same, missing[:, unfinished])
            unranked = ranks[:, unfinished] == 0
            ranks[:, unfinished] = np.where(
                unranked & (places > 0), start + places, ranks[:, unfinished]
            )
            missing[:, unfinished] -= same.sum(-1)
            unfinished = np.flatnonzero((ranks == 0).any(0))
            if not len(unfinished):
                return ranks
            start = start + step
            step = 2 * step
            answer = self.peers.ask_one(
                SERVER, Rest(self._release(unfinished, UNFINISHED), start, start + step)
            )

    def _scan(self, groups: list[Group], queries: Whole, asked: Released) -> Released:
        """Scan until every query has k instances of its label seen in all lists;
        returns which is the last of these."""
        scanned = tuple(
            name for name in self.participants if any(name in group for group in groups)
        )
        page = first_page(len(self.labels), len(scanned), self.settings.k)
        unfinished = np.arange(len(queries))
        stops = np.full(len(queries), -1, dtype=np.int64)
        seen = np.zeros(len(queries), dtype=np.int64)
        labelled = np.zeros(len(queries), dtype=np.int64)
        answer = self.peers.ask_one(SERVER, Scan(scanned, asked, page))
        while True:
            ids = answer.ids.tensor.numpy()
            sizes = answer.counts.tensor.numpy().astype(np.int64)
            padded = np.full(
                (len(unfinished), int(sizes.max(initial=0)) + 1), -1, dtype=np.int64
            )
            padded[np.arange(padded.shape[1]) < sizes[:, None]] = ids
            same = self._own_label(padded, queries[unfinished])
            places = kth(
                same, self.neighbours[queries[unfinished]] - labelled[unfinished]
            )
            stops[unfinished] = np.where(places > 0, seen[unfinished] + places - 1, -1)
            labelled[unfinished] += same.sum(1)
            seen[unfinished] += sizes
            unfinished = unfinished[stops[unfinished] < 0]
            if not len(unfinished):
                return self._release(stops, STOPS)
            page = 2 * page
            answer = self.peers.ask_one(
                SERVER, More(self._release(unfinished, UNFINISHED), page)
            )

    def _own_label(
        self, ids: NDArray[np.int32] | Whole, queries: Whole
    ) -> NDArray[np.bool_]:
        """Which of the instances, [..., queries, length], have their query's label; -1
        is none."""
        same: NDArray[np.bool_] = (
            self.labels[ids] == self.labels[queries][:, None]
        ) & (ids >= 0)
        return same

    def _release(self, values: Whole, as_: str) -> Released:
        tensor: Tensor = torch.from_numpy(values.astype(np.int32))
        return self.outbox.release(tensor, as_)
