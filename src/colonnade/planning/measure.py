"""What one batch and one scoring cost, measured on a few batches in memory.

Bytes follow from shapes alone, so one batch of each size is enough. A federation is
built from the same settings and holdings, with the training rows cut down to a few
batches; nothing is written, and no budget is touched.
"""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from statistics import median

import torch
from torch import Tensor

from colonnade.core import Batches, Ledger, Peers
from colonnade.core.batches import CHUNK, Rows
from colonnade.encryption import SCHEMES
from colonnade.federation import Federation, Settings
from colonnade.federation.organisation import local_epochs
from colonnade.rows.holdings import Holdings

TRAINING = re.compile(r"(?:(.+):)?train/(\d+)/(\d+)")
"""A training batch's name: whose it is where there are several label owners, its epoch,
its number."""


class Traffic(Counter[tuple[str, str]]):
    """(party, "out" or "in") -> bytes. Traffic can be added up and multiplied."""

    def __mul__(self, times: float) -> Traffic:
        return Traffic({key: round(count * times) for key, count in self.items()})

    def by_party(self, names: Iterable[str]) -> dict[str, dict[str, int]]:
        """Bytes by party and way, as in a run's summary."""
        return {name: {way: self[name, way] for way in ("out", "in")} for name in names}


def total(parts: Iterable[Traffic]) -> Traffic:
    traffic = Traffic()
    for part in parts:
        traffic.update(part)
    return traffic


def take_traffic(ledgers: Mapping[str, Ledger]) -> dict[str | None, Traffic]:
    """Empty the ledgers; gives their traffic by batch name, under None what was about
    no batch."""
    traffic: dict[str | None, Traffic] = {}
    for party, book in ledgers.items():
        for entry in book.entries:
            if entry.direction != "own":
                traffic.setdefault(entry.batch, Traffic())[party, entry.direction] += (
                    entry.bytes
                )
        book.entries.clear()
    return traffic


def encrypted(ledgers: Mapping[str, Ledger]) -> bool:
    """Whether the ledgers have a ciphertext since traffic was last taken: sizes of
    ciphertexts vary a little."""
    hiding = SCHEMES.keys() - {"plain"}
    return any(
        entry.codec in hiding for book in ledgers.values() for entry in book.entries
    )


ROUNDS = 3
"""Rounds to try with several label owners: in the first some things happen once, and a
median needs two others."""
ENCRYPTED_VALUES = 1 << 17
"""Numbers that are encrypted to measure a scoring, where all of them would take long.
"""


@dataclass(frozen=True)
class Lap:
    """One step of training: a batch, or a round of several label owners."""

    seconds: float
    exchanges: int  # how often somebody waits for answers, one after the other
    pieces: dict[str | None, Traffic]
    is_exact: bool = True

    @property
    def rest(self) -> dict[str | None, Traffic]:
        """What was about no batch."""
        return {
            name: part
            for name, part in self.pieces.items()
            if not (name and TRAINING.fullmatch(name))
        }


@dataclass(frozen=True)
class BatchCosts:
    """What one batch of each label owner costs (under "" where there is one), and what
    goes with it."""

    batch: dict[str, Traffic]
    opening: Traffic  # sent once, before the first batch
    each_round: Traffic  # of several label owners: the weights
    # per batch, without the slower first one where there are others
    seconds: list[float]
    exchanges: float  # per batch
    about_all_rows: bool  # the opening says something about every training row
    is_exact: bool


@dataclass
class Cost:
    """What training, all validations, or a scoring cost."""

    traffic: Traffic = field(default_factory=Traffic)
    seconds: float = 0.0
    exchanges: float = 0.0  # one after the other; label owners ask at the same time
    # of a scoring: what it sends once, where training did not
    opening: Traffic = field(default_factory=Traffic)
    is_exact: bool = True

    def add(
        self,
        traffic: Traffic,
        times: int = 1,
        seconds: float = 0.0,
        exchanges: float = 0.0,
    ) -> None:
        self.traffic.update(traffic * times)
        self.seconds += seconds * times
        self.exchanges += exchanges * times


def build(settings: Settings, holdings: Holdings) -> Federation:
    """Build a federation as a run does, with accounts that count and never refuse."""
    federation = Federation(settings, holdings)
    for account in federation.accounts.values():
        account.budget = None
    return federation


def batches_of(federation: Federation) -> dict[str, Batches]:
    """Each label owner's batches, under the name that they begin with: "" where there
    is one label owner."""
    return {batches.owner: batches for batches in federation.agreed.values()}


def shortened(holdings: Holdings, rows: Callable[[int], int]) -> Holdings:
    """The holdings with fewer training rows at every label owner: `rows` maps how many
    there are to how many stay."""

    def cut(splits: dict[str, Tensor]) -> dict[str, Tensor]:
        return {
            name: part[: rows(len(part))] if name == "train" else part
            for name, part in splits.items()
        }

    return holdings.divided(cut)


def train(
    settings: Settings,
    holdings: Holdings,
    rows: Callable[[int], int],
    steps: int | None = None,
) -> BatchCosts:
    """Train for an epoch, or `steps` of it, or a few rounds of several label owners,
    with the training rows that `rows` leaves. Where nothing is trained, no batch costs
    anything."""
    federation = build(settings, shortened(holdings, rows))
    several = bool(holdings.server)
    batches = sum(agreed.per_epoch for agreed in batches_of(federation).values())
    batches *= local_epochs(settings)
    algorithm = federation.algorithm
    # the first tree or round does things that happen once
    twice = algorithm.config.grows or not algorithm.config.in_batches
    laps_made = max(batches, 2) if twice else batches
    laps = list(
        islice(laps_of(federation), steps or (ROUNDS if several else laps_made))
    )
    if not laps:
        return BatchCosts(
            {}, Traffic(), Traffic(), [], 0.0, about_all_rows=False, is_exact=True
        )
    per = batches if several else 1
    settled = laps[1:] or laps
    opening = total(laps[0].rest.values())
    each_round = (
        total(laps[-1].rest.values()) if several and len(laps) > 1 else Traffic()
    )
    opening.subtract(each_round)
    first_batches = _first_batches(laps[-1:] if several else laps)
    # all rounds but the first are alike
    if not (algorithm.config.in_batches or algorithm.config.grows) and len(laps) > 1:
        opening.update(total(first_batches.values()))
        first_batches = _first_batches(laps[1:])
        opening.subtract(total(first_batches.values()))
    return BatchCosts(
        first_batches,
        opening,
        each_round,
        [lap.seconds / per for lap in settled],
        median(lap.exchanges for lap in settled) / per,
        any(name and CHUNK.fullmatch(name) for name in laps[0].rest),
        all(lap.is_exact for lap in laps),
    )


def laps_of(federation: Federation) -> Iterator[Lap]:
    """Train, and give each step's costs as it is done."""
    clock = time.perf_counter()
    before = Peers.waited
    for _ in federation.train():
        exchanges = Peers.waited - before
        # what waits for the next step's call belongs to this one
        federation.peers.settle()
        if federation.device.type == "cuda":
            torch.cuda.synchronize()
        is_exact = not encrypted(federation.ledgers)
        yield Lap(
            time.perf_counter() - clock,
            exchanges,
            take_traffic(federation.ledgers),
            is_exact,
        )
        clock = time.perf_counter()
        before = Peers.waited


def _first_batches(laps: list[Lap]) -> dict[str, Traffic]:
    """What the first batch of each label owner's first epoch sent; it may be spread
    over several of these laps."""
    by_owner: dict[str, tuple[int, Traffic]] = {}
    for lap in laps:
        for name, part in lap.pieces.items():
            if name and (match := TRAINING.fullmatch(name)) and match[3] == "0":
                owner = match[1] or ""
                epoch = int(match[2])
                first, before = by_owner.get(owner, (epoch, Traffic()))
                if epoch == first:
                    by_owner[owner] = epoch, total([before, part])
    return {owner: part for owner, (_, part) in by_owner.items()}


def score(federation: Federation, split: str) -> Cost:
    """What it costs to score a split. One chunk of each size is measured; where parties
    lack rows, every chunk."""
    scored = Cost()
    for owner, batches in batches_of(federation).items():
        if split not in batches.splits:
            continue
        groups: dict[int | str, list[Rows]] = {}
        for chunk in federation.chunks(split, owner or None):
            groups.setdefault(
                chunk.name if federation.settings.rows_differ else chunk.size, []
            ).append(chunk)
        for chunks in groups.values():
            ask = _score_rows if batches.numbers is not None else _score_chunk
            measured = ask(federation, owner, chunks[0])
            scored.add(
                measured.traffic, len(chunks), measured.seconds, measured.exchanges
            )
            scored.opening.update(measured.opening)
            scored.is_exact = scored.is_exact and measured.is_exact
    return scored


def _score_chunk(federation: Federation, owner: str, rows: Rows) -> Cost:
    tried = _score_rows(federation, owner, _first_rows(rows, 1))
    if tried.is_exact:
        return _score_rows(federation, owner, rows)
    # a value for each, at most
    training_rows = len(batches_of(federation)[owner].splits.get("train", ()))
    size = min(rows.size, max(1, ENCRYPTED_VALUES // max(training_rows, 1)))
    part = _score_rows(federation, owner, _first_rows(rows, size))
    share = rows.size / size
    return Cost(
        part.traffic * share,
        part.seconds * share,
        part.exchanges,
        tried.opening,
        is_exact=False,
    )


def _first_rows(rows: Rows, size: int) -> Rows:
    """The first `size` rows of a chunk."""
    split, _, bounds = rows.name.rpartition("[")
    start = int(bounds.partition(":")[0])
    return Rows(f"{split}[{start}:{start + size}]", size)


def _score_rows(federation: Federation, owner: str, rows: Rows) -> Cost:
    take_traffic(federation.ledgers)
    driver = federation.label_owners[federation.owner_named(owner or None)]
    start = time.perf_counter()
    before = Peers.waited
    federation.algorithm.predict(driver, driver.peers, rows)
    if federation.device.type == "cuda":
        torch.cuda.synchronize()
    seconds = time.perf_counter() - start
    exchanges = Peers.waited - before
    is_exact = not encrypted(federation.ledgers)
    pieces = take_traffic(federation.ledgers)
    opening = pieces.pop(None, Traffic())  # keys, where training did not need them
    return Cost(total(pieces.values()), seconds, exchanges, opening, is_exact)
