"""Private set intersection with a helper: a neutral organisation without data that compares keyed hashes.

Kamara, Mohassel, Raykova and Sadeghian, Financial Cryptography 2014. It takes a microsecond per id, for any number of
parties, where Diffie-Hellman takes some hundred for each pair:

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

**A helper that colludes with any one party has the key, and can test for every id it guesses whether another party
holds it**, and for all ids at once. Diffie-Hellman has no such weak point. So a helper is taken where the agreed file
names one and asks for it, never otherwise, and whoever is told of an alignment is told of the helper. As with
Diffie-Hellman, a party may bring ids that it made up: `allowance` bounds how often, and `smallest` how few, which the
helper sees to.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray

from colonnade.alignment.id_owner import ALIGN, IdCount
from colonnade.alignment.intersection import Alignment, Watch, check_columns, common_positions, has_twice, joined
from colonnade.alignment.keyed import FOUND, HASH, KEY, AgreeKeyed, EndKeyed, Found, HandOut, HowMany, KeyedIds
from colonnade.alignment.settings import AlignmentSettings
from colonnade.core.message import Done, Message, Request
from colonnade.core.party import Organisation, Party, serves
from colonnade.core.peers import Peers
from colonnade.errors import PartyError

CHUNK = 1 << 16
"""Hashes in a message: a megabyte."""
MANY = 100_000
"""Ids of the longest list above which "auto" takes the helper: Diffie-Hellman takes a minute there."""


class Sizes(Message):
    ids: dict[str, int]


class Begin(Request[Sizes]):
    """To the helper: an alignment among these, of whom the learners will be told."""

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
    """Compares lists of hashes whose key it does not have. It holds no data. `admitted` are the parties of the agreed
    file, `askers` those of them who drive an alignment, and `line` gives it those it is to ask."""

    def __init__(
        self,
        organisation: Organisation,
        line: Callable[[Sequence[str]], Peers],
        *,
        askers: Sequence[str],
        admitted: Sequence[str],
    ) -> None:
        super().__init__(organisation)
        self.line, self.admitted, self.serves_for = line, frozenset(admitted), frozenset(askers)
        self._at: dict[tuple[str, ...], Comparison] = {}

    @serves
    def begin(self, request: Begin, asker: str | None) -> Sizes:
        named = set(request.parties)
        fits = len(named) == len(request.parties) > 1 and named <= self.admitted and asker in named
        self.expect(fits, f"it compares ids of who asks and others of the agreed file; found {list(request.parties)}")
        self.expect(named.issuperset(request.learners), "who learns takes part")
        cards = self.line(request.parties).ask(HowMany(request.parties))
        sizes = {name: card.ids for name, card in cards.items()}
        self._at = {**self._at, request.parties: Comparison(request.reveal, request.learners, sizes)}
        return Sizes(sizes)

    @serves
    def gather(self, request: Gather, asker: str | None) -> Done:
        known = self._known(request.parties, asker)
        self.expect(request.owner in known.sizes, f"{request.owner!r} takes no part in it")
        held, size = known.held(request.owner), known.sizes[request.owner]
        in_turn = request.start == held and 0 < request.count <= size - held
        self.expect(in_turn, f"the list of '{request.owner}' is fetched in turn: it has {held} of {size}")
        shortest = min(size for name, size in known.sizes.items() if name != request.owner)
        asked = HandOut(request.parties, shortest, request.start, request.count)
        tensor = self.line([request.owner]).ask_one(request.owner, asked).hashes.tensor
        fits = tensor.dtype == torch.uint8 and tuple(tensor.shape) == (request.count, HASH)
        if not fits:
            raise PartyError(
                request.owner, asked.kind, None, f"it was asked for {request.count} hashes of {HASH} bytes"
            )
        known.parts.setdefault(request.owner, []).append(tensor.cpu().numpy())
        return Done()

    @serves
    def compare(self, request: Compare, asker: str | None) -> Compared:
        known = self._known(request.parties, asker)
        short = [name for name, size in known.sizes.items() if known.held(name) != size]
        self.expect(not short, f"the list of {short} is not there yet")
        lists = {name: np.concatenate(known.parts[name]) for name in request.parties}
        for name, hashes in lists.items():
            if has_twice(hashes):
                raise PartyError(name, HandOut.kind, None, "it handed out a hash more than once")
        positions = common_positions(lists)
        common = len(positions[request.parties[0]])
        for name in known.learners:
            told = None
            if known.reveal == "rows":
                told = self.outbox.release(torch.from_numpy(positions[name].astype(np.int32)), FOUND, ALIGN)
            self.line([name]).ask_one(name, Found(request.parties, common, told))
        self._at = {parties: other for parties, other in self._at.items() if parties != request.parties}
        return Compared(common)

    def _known(self, parties: tuple[str, ...], asker: str | None) -> Comparison:
        known = self._at.get(parties)
        self.expect(known is not None and asker in parties, "it was not told of such an alignment")
        assert known is not None
        return known


def takes_helper(settings: AlignmentSettings, sizes: Sequence[int]) -> bool:
    """Whether lists of these sizes are compared by the helper."""
    return settings.protocol == "helper" or (
        settings.protocol == "auto" and bool(settings.helper) and max(sizes) > MANY
    )


def sizes_of(mine: KeyedIds, names: Sequence[str], peers: Peers) -> dict[str, int]:
    """How many ids each has, which decides where protocol = "auto"."""
    request = HowMany(tuple(names))
    cards = {name: mine.answer(request) if name == mine.name else peers.ask_one(name, request) for name in names}
    return {name: card.ids for name, card in cards.items()}


def align_by_helper(
    mine: KeyedIds,
    names: Sequence[str],
    peers: Peers,
    *,
    reveal: str | None = None,
    watch: Watch | None = None,
    chunk: int = CHUNK,
) -> Alignment:
    """Find the common rows of the driver, who is the first of `names`, and the others. `peers` has them and the
    helper. Each learner's rows are then its `IdOwner.common_rows`; with `reveal` "count" nobody learns which they are,
    whatever the settings allow, and the first key alone is compared."""
    owner = mine.owner_among(names)
    tells = reveal or owner.settings.reveal
    keys = len(owner.keys) if tells == "rows" else 1
    return joined([_by_key(mine, names, peers, key, tells, watch, chunk) for key in range(keys)])


def _by_key(
    mine: KeyedIds, names: Sequence[str], peers: Peers, by: int, reveal: str, watch: Watch | None, chunk: int
) -> Alignment:
    parties, helper = tuple(names), mine.helper
    settings = mine.owner_among(parties).settings
    learners = settings.told(parties)
    others = [name for name in parties if name != mine.name]
    key = secrets.token_hex(KEY)
    request = AgreeKeyed(parties, settings.ids, reveal, learners, helper, key, by)
    cards: dict[str, IdCount] = {name: peers.ask_one(name, request) for name in others}
    cards = {name: mine.answer(request) if name == mine.name else cards[name] for name in parties}
    check_columns(cards, mine.name, request)
    sizes = {name: card.ids for name, card in cards.items()}
    said = peers.ask_one(helper, Begin(parties, reveal, learners)).ids
    if dict(said) != sizes:
        raise PartyError(helper, Begin.kind, None, f"it says that the lists have {said}, and their owners {sizes}")
    done, total = 0, sum(sizes.values())
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
    mine.answer(EndKeyed(parties))
    return Alignment(mine.name, sizes, common, settings.ids, reveal, learners, helper)
