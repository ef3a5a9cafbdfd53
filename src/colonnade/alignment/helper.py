"""Private set intersection with a helper: a neutral organisation without data that
compares keyed hashes.

Kamara, Mohassel, Raykova and Sadeghian, Financial Cryptography 2014. It takes a
microsecond per id, for any number of parties, where Diffie-Hellman takes some hundred
for each pair:

    1  the driver draws a key and tells it to the other parties, through the line that is sealed between them
    2  every party hands the helper { blake2b(key, id) }, 16 bytes each, shuffled; nobody else is given a list
    3  the helper finds what all hold, and tells each learner where in its own list that is, in an order that all share

Who learns what, when all follow the protocol and the helper colludes with nobody:

    the helper          how many ids each party has, and which blinded ids are equal, for every group of parties: so how
                        many any two of them share; not which people these are, since it has no key. A new key is drawn
                        each time, so it cannot follow an id from one alignment to the next
    a learner           its own common rows and their order; with reveal = "count" only how many there are
    the driver          how many ids each party has, and the count
    every other party   how many ids the shortest of the other lists has

**A helper that colludes with any one party has the key, and can test for every id it
guesses whether another party holds it**, and for all ids at once. Diffie-Hellman has no
such weak point. So a helper is taken where the agreed file names one and asks for it,
never otherwise, and whatever reports an alignment names its helper. As with
Diffie-Hellman, a party may bring ids that it made up: `allowance` bounds how often, and
`smallest` how few, which the helper sees to.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray

from colonnade.alignment.id_owner import ALIGN, IdCount
from colonnade.alignment.intersection import (
    Alignment,
    Watch,
    check_columns,
    common_positions,
    has_twice,
    joined,
)
from colonnade.alignment.keyed import (
    FOUND,
    HASH,
    KEY,
    AgreeKeyed,
    EndKeyed,
    Found,
    HandOut,
    HowMany,
    KeyedIds,
)
from colonnade.core.message import Done, Message, Request
from colonnade.core.party import Organisation, Party, serves
from colonnade.core.peers import Peers
from colonnade.errors import PartyError
from colonnade.settings.alignment import AlignmentSettings

CHUNK = 1 << 16
"""Hashes in a message: a megabyte."""
MANY = 100_000
"""The length of the longest list above which "auto" takes the helper: Diffie-Hellman
takes a minute there."""


class Sizes(Message):
    ids: dict[str, int]


class Begin(Request[Sizes]):
    """To the helper: begin an alignment among these parties; the learners will be told
    the outcome."""

    parties: tuple[str, ...]
    reveal: str
    learners: tuple[str, ...]


class Gather(Request[Done]):
    """To the helper: fetch a part of one party's list."""

    parties: tuple[str, ...]
    owner: str
    start: int
    count: int


class Compared(Message):
    common: int


class Compare(Request[Compared]):
    """To the helper: all lists are there. It tells the learners, and forgets the lists."""

    parties: tuple[str, ...]


@dataclass
class Comparison:
    """One alignment at the helper."""

    reveal: str
    learners: tuple[str, ...]
    sizes: dict[str, int]
    parts: dict[str, list[NDArray[np.uint8]]] = field(default_factory=dict)

    def held(self, owner: str) -> int:
        return sum(map(len, self.parts.get(owner, [])))


class Helper(Party):
    """Compares lists of hashes whose key it does not have. It holds no data. `admitted`
    are the parties of the agreed file, `askers` those of them who drive an alignment,
    and `line` gives it the parties of these names, to ask."""

    def __init__(
        self,
        organisation: Organisation,
        line: Callable[[Sequence[str]], Peers],
        *,
        askers: Sequence[str],
        admitted: Sequence[str],
    ) -> None:
        super().__init__(organisation)
        self.line = line
        self.admitted = frozenset(admitted)
        self.serves_for = frozenset(askers)
        self._comparisons: dict[tuple[str, ...], Comparison] = {}

    @serves
    def begin(self, request: Begin, asker: str | None) -> Sizes:
        parties = set(request.parties)
        fits = (
            len(parties) == len(request.parties) > 1
            and parties <= self.admitted
            and asker in parties
        )
        self.expect(
            fits,
            "it compares ids of who asks and others of the agreed file; found"
            f" {list(request.parties)}",
        )
        self.expect(parties.issuperset(request.learners), "who learns takes part")
        counts = self.line(request.parties).ask(HowMany(request.parties))
        sizes = {name: count.ids for name, count in counts.items()}
        comparison = Comparison(request.reveal, request.learners, sizes)
        self._comparisons = {**self._comparisons, request.parties: comparison}
        return Sizes(sizes)

    @serves
    def gather(self, request: Gather, asker: str | None) -> Done:
        comparison = self._comparison(request.parties, asker)
        self.expect(
            request.owner in comparison.sizes, f"{request.owner!r} takes no part in it"
        )
        held = comparison.held(request.owner)
        size = comparison.sizes[request.owner]
        in_turn = request.start == held and 0 < request.count <= size - held
        self.expect(
            in_turn,
            f"the list of '{request.owner}' is fetched in turn: it has {held} of"
            f" {size}",
        )
        shortest = min(
            size for name, size in comparison.sizes.items() if name != request.owner
        )
        hand_out = HandOut(request.parties, shortest, request.start, request.count)
        tensor = (
            self.line([request.owner]).ask_one(request.owner, hand_out).hashes.tensor
        )
        fits = tensor.dtype == torch.uint8 and tuple(tensor.shape) == (
            request.count,
            HASH,
        )
        if not fits:
            raise PartyError(
                request.owner,
                hand_out.kind,
                None,
                f"it was asked for {request.count} hashes of {HASH} bytes",
            )
        comparison.parts.setdefault(request.owner, []).append(tensor.cpu().numpy())
        return Done()

    @serves
    def compare(self, request: Compare, asker: str | None) -> Compared:
        comparison = self._comparison(request.parties, asker)
        incomplete = [
            name
            for name, size in comparison.sizes.items()
            if comparison.held(name) != size
        ]
        self.expect(not incomplete, f"the list of {incomplete} is not there yet")
        lists = {
            name: np.concatenate(comparison.parts[name]) for name in request.parties
        }
        for name, hashes in lists.items():
            if has_twice(hashes):
                raise PartyError(
                    name, HandOut.kind, None, "it handed out a hash more than once"
                )
        positions = common_positions(lists)
        common = len(positions[request.parties[0]])
        for name in comparison.learners:
            places = None
            if comparison.reveal == "rows":
                places = self.outbox.release(
                    torch.from_numpy(positions[name].astype(np.int32)), FOUND, ALIGN
                )
            self.line([name]).ask_one(name, Found(request.parties, common, places))
        self._comparisons = {
            names: other
            for names, other in self._comparisons.items()
            if names != request.parties
        }
        return Compared(common)

    def _comparison(self, parties: tuple[str, ...], asker: str | None) -> Comparison:
        comparison = self._comparisons.get(parties) if asker in parties else None
        return self.needed(comparison, "it was not told of such an alignment")


def takes_helper(settings: AlignmentSettings, sizes: Sequence[int]) -> bool:
    """Whether lists of these sizes are compared by the helper."""
    return settings.protocol == "helper" or (
        settings.protocol == "auto" and bool(settings.helper) and max(sizes) > MANY
    )


def sizes_of(driver: KeyedIds, names: Sequence[str], peers: Peers) -> dict[str, int]:
    """How many ids each party has, by which protocol = "auto" decides."""
    request = HowMany(tuple(names))
    counts = {
        name: (
            driver.answer(request)
            if name == driver.name
            else peers.ask_one(name, request)
        )
        for name in names
    }
    return {name: count.ids for name, count in counts.items()}


def align_by_helper(
    driver: KeyedIds,
    names: Sequence[str],
    peers: Peers,
    *,
    reveal: str | None = None,
    watch: Watch | None = None,
    chunk: int = CHUNK,
) -> Alignment:
    """Find the common rows of the driver, who is the first of `names`, and the others.
    `peers` has them and the helper. Each learner's rows are then its
    `IdOwner.common_rows`; with `reveal` "count" nobody learns which they are, whatever
    the settings allow, and the first key alone is compared."""
    owner = driver.owner_among(names)
    revealed = reveal or owner.settings.reveal
    keys = len(owner.keys) if revealed == "rows" else 1
    return joined(
        [
            _by_key(driver, names, peers, key, revealed, watch, chunk)
            for key in range(keys)
        ]
    )


def _by_key(
    driver: KeyedIds,
    names: Sequence[str],
    peers: Peers,
    key: int,
    reveal: str,
    watch: Watch | None,
    chunk: int,
) -> Alignment:
    """Compare the rows by one of their keys."""
    parties = tuple(names)
    helper = driver.helper
    settings = driver.owner_among(parties).settings
    learners = settings.learners_among(parties)
    others = [name for name in parties if name != driver.name]
    request = AgreeKeyed(
        parties, settings.ids, reveal, learners, helper, secrets.token_hex(KEY), key
    )
    replies: dict[str, IdCount] = {
        name: peers.ask_one(name, request) for name in others
    }
    counts = {
        name: driver.answer(request) if name == driver.name else replies[name]
        for name in parties
    }
    check_columns(counts, driver.name, request)
    sizes = {name: count.ids for name, count in counts.items()}
    helper_says = peers.ask_one(helper, Begin(parties, reveal, learners)).ids
    if dict(helper_says) != sizes:
        reason = f"it says that the lists have {helper_says}, and their owners {sizes}"
        raise PartyError(helper, Begin.kind, None, reason)
    done = 0
    total = sum(sizes.values())
    for name, size in sizes.items():
        for start in range(0, size, chunk):
            count = min(chunk, size - start)
            peers.ask_one(helper, Gather(parties, name, start, count))
            done += count
            if watch is not None:
                watch(done, total)
    common = peers.ask_one(helper, Compare(parties)).common
    for name in others:
        peers.ask_one(name, EndKeyed(parties))
    driver.answer(EndKeyed(parties))
    return Alignment(driver.name, sizes, common, settings.ids, reveal, learners, helper)
