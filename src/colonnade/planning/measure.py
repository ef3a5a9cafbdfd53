"""What one batch and one scoring cost, tried on a few batches in memory.

Bytes follow from shapes alone, so one batch of each size tells them all. A federation is built from the same settings
and holdings, with the training rows cut down to a few batches; nothing is written, and no budget is touched.
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
"""A training batch's name: whose it is where there are several label owners, its epoch, its number."""


class Traffic(Counter[tuple[str, str]]):
    """(party, "out" or "in") -> bytes. Traffic can be added up, and taken so many times."""

    def __mul__(self, times: int) -> Traffic:
        return Traffic({key: count * times for key, count in self.items()})

    def scaled(self, share: float) -> Traffic:
        """An estimate for so much more, or less."""
        return Traffic({key: round(count * share) for key, count in self.items()})

    def by_party(self, names: Iterable[str]) -> dict[str, dict[str, int]]:
        """As a summary has it."""
        return {name: {way: self[name, way] for way in ("out", "in")} for name in names}


def total(parts: Iterable[Traffic]) -> Traffic:
    found = Traffic()
    for part in parts:
        found.update(part)
    return found


def taken(ledgers: Mapping[str, Ledger]) -> dict[str | None, Traffic]:
    """What was written since this was last asked, by batch name; None: what was about no batch."""
    found: dict[str | None, Traffic] = {}
    for party, book in ledgers.items():
        for entry in book.entries:
            if entry.direction != "own":
                found.setdefault(entry.batch, Traffic())[party, entry.direction] += entry.bytes
        book.entries.clear()
    return found


def encrypted(ledgers: Mapping[str, Ledger]) -> bool:
    """Whether any of what was written since it was last taken is a ciphertext: their sizes vary a little."""
    hiding = SCHEMES.keys() - {"plain"}
    return any(entry.codec in hiding for book in ledgers.values() for entry in book.entries)


ROUNDS = 3
"""Of several label owners: in the first some things happen once, and a median needs two others."""
ENCRYPTED_VALUES = 1 << 17
"""Numbers that are encrypted to measure a scoring, where all of them would take long."""


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
        return {name: part for name, part in self.pieces.items() if not (name and TRAINING.fullmatch(name))}


@dataclass(frozen=True)
class Trained:
    """One batch of each label owner (under "" where there is one), and what goes with it."""

    batch: dict[str, Traffic]
    opening: Traffic  # once, before the first batch
    each_round: Traffic  # of several label owners: the weights
    seconds: list[float]  # per batch; the first, which is slower, only where it is alone
    exchanges: float  # per batch
    about_all_rows: bool  # the opening says something about every training row
    is_exact: bool


@dataclass
class Cost:
    """What training, all validations, or a scoring cost."""

    traffic: Traffic = field(default_factory=Traffic)
    seconds: float = 0.0
    exchanges: float = 0.0  # one after the other; label owners ask at the same time

    def add(self, traffic: Traffic, times: int = 1, seconds: float = 0.0, exchanges: float = 0.0) -> None:
        self.traffic.update(traffic * times)
        self.seconds += seconds * times
        self.exchanges += exchanges * times


@dataclass
class Scored(Cost):
    """One scoring of a split."""

    opening: Traffic = field(default_factory=Traffic)
    is_exact: bool = True


def build(settings: Settings, holdings: Holdings) -> Federation:
    """Build a federation as a run does, with accounts that count and never refuse."""
    federation = Federation(settings, holdings)
    for account in federation.accounts.values():
        account.budget = None
    return federation


def after_one_step(federation: Federation) -> Federation:
    """The same, trained for one step: where a prediction asks for more with every step."""
    trained = build(federation.settings, federation.holdings)
    for _ in islice(trained.train(), 1):
        pass
    return trained


def batches_of(federation: Federation) -> dict[str, Batches]:
    """Each label owner's, under the name that its batches begin with: "" where there is one."""
    return {batches.owner: batches for batches in federation.agreed.values()}


def shortened(holdings: Holdings, rows: Callable[[int], int]) -> Holdings:
    """With fewer training rows: `rows` of so many, at every label owner."""

    def cut(splits: dict[str, Tensor]) -> dict[str, Tensor]:
        return {name: part[: rows(len(part))] if name == "train" else part for name, part in splits.items()}

    return holdings.divided(cut)


def train(
    settings: Settings, holdings: Holdings, rows: Callable[[int], int], steps: int | None = None
) -> Trained | None:
    """An epoch, or so many steps of it, or rounds of several label owners, with so many training rows; None where
    nothing is trained."""
    federation = build(settings, shortened(holdings, rows))
    several = bool(holdings.server)
    batches = sum(one.per_epoch for one in batches_of(federation).values())
    batches *= local_epochs(settings)
    algorithm = federation.algorithm
    twice = algorithm.grows or not algorithm.in_batches  # the first tree makes keys and tables, the first round begins
    laps_made = max(batches, 2) if twice else batches
    laps = list(islice(laps_of(federation), steps or (ROUNDS if several else laps_made)))
    if not laps:
        return None
    per = batches if several else 1
    settled = laps[1:] or laps
    opening = total(laps[0].rest.values())
    each = total(laps[-1].rest.values()) if several and len(laps) > 1 else Traffic()
    opening.subtract(each)
    found = _first_batches(laps[-1:] if several else laps)
    if not (algorithm.in_batches or algorithm.grows) and len(laps) > 1:  # all rounds but the first are alike
        opening.update(total(found.values()))
        found = _first_batches(laps[1:])
        opening.subtract(total(found.values()))
    return Trained(
        found,
        opening,
        each,
        [lap.seconds / per for lap in settled],
        median(lap.exchanges for lap in settled) / per,
        any(name and CHUNK.fullmatch(name) for name in laps[0].rest),
        all(lap.is_exact for lap in laps),
    )


def laps_of(federation: Federation) -> Iterator[Lap]:
    """Training, step by step, as each one is done."""
    clock, before = time.perf_counter(), Peers.waited
    for _ in federation.train():
        if federation.device.type == "cuda":
            torch.cuda.synchronize()
        is_exact = not encrypted(federation.ledgers)
        seconds, waited = time.perf_counter() - clock, Peers.waited
        yield Lap(seconds, waited - before, taken(federation.ledgers), is_exact)
        clock, before = time.perf_counter(), waited


def _first_batches(laps: list[Lap]) -> dict[str, Traffic]:
    """Of each label owner the first batch of the first epoch in it; where parties take turns, over several laps."""
    found: dict[str, tuple[int, Traffic]] = {}
    for lap in laps:
        for name, part in lap.pieces.items():
            if name and (match := TRAINING.fullmatch(name)) and match[3] == "0":
                owner, epoch = match[1] or "", int(match[2])
                first, before = found.get(owner, (epoch, Traffic()))
                if epoch == first:
                    found[owner] = epoch, total([before, part])
    return {owner: part for owner, (_, part) in found.items()}


def score(federation: Federation, split: str) -> Scored:
    """Of a federation with all its rows; one chunk of each size tells the others, unless parties lack rows."""
    found = Scored()
    for owner, batches in batches_of(federation).items():
        if split not in batches.splits:
            continue
        alike: dict[int | str, list[Rows]] = {}
        for chunk in batches.chunks(split):
            alike.setdefault(chunk.name if federation.settings.rows_differ else chunk.size, []).append(chunk)
        for some in alike.values():
            ask = _asked if batches.numbers is not None else _chunk
            one = ask(federation, owner, some[0])
            found.add(one.traffic, len(some), one.seconds, one.exchanges)
            found.opening.update(one.opening)
            found.is_exact = found.is_exact and one.is_exact
    return found


def _chunk(federation: Federation, owner: str, rows: Rows) -> Scored:
    tried = _asked(federation, owner, _part(rows, 1))
    if tried.is_exact:
        return _asked(federation, owner, rows)
    known = len(batches_of(federation)[owner].splits.get("train", ()))  # a value for each, at most
    size = min(rows.size, max(1, ENCRYPTED_VALUES // max(known, 1)))
    more, share = _asked(federation, owner, _part(rows, size)), rows.size / size
    return Scored(more.traffic.scaled(share), more.seconds * share, more.exchanges, tried.opening, is_exact=False)


def _part(rows: Rows, size: int) -> Rows:
    """The first so many of a chunk's rows."""
    split, _, bounds = rows.name.rpartition("[")
    start = int(bounds.partition(":")[0])
    return Rows(f"{split}[{start}:{start + size}]", size)


def _asked(federation: Federation, owner: str, rows: Rows) -> Scored:
    taken(federation.ledgers)
    driver = federation.label_owners[federation.owner_named(owner or None)]
    start, before = time.perf_counter(), Peers.waited
    federation.algorithm.predict(driver, driver.peers, rows)
    if federation.device.type == "cuda":
        torch.cuda.synchronize()
    seconds, exchanges = time.perf_counter() - start, Peers.waited - before
    is_exact = not encrypted(federation.ledgers)
    pieces = taken(federation.ledgers)
    opening = pieces.pop(None, Traffic())  # keys, where training did not need them
    return Scored(total(pieces.values()), seconds, exchanges, opening, is_exact)
