"""A party's side of an alignment by a helper: hashes of its ids under a key that the
parties share.

`alignment.helper` has the protocol, and who learns what. The key comes from the driver
through the parties' own sealed line, is new for every alignment and forgotten at its
end; the helper never has it. A party hands its list, in a secret order, only to the
helper that its own settings name; the driver, who has the key, is never given a list.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from colonnade.alignment.id_owner import ALIGN, IdCount, IdOwner, shuffled
from colonnade.alignment.ids import Ids
from colonnade.core.chance import Source
from colonnade.core.message import Done, Message, Request
from colonnade.core.party import Organisation, Party, Refused, serves
from colonnade.core.receipt import DpEvent
from colonnade.core.release import Released, Rule

log = logging.getLogger("colonnade.party")
KEYED = "keyed_ids"
FOUND = "found_positions"
REVEALS = {
    KEYED: (
        "to the helper: how many ids the owner has, and which of them are equal to"
        " which of the others'; which ids they are takes the parties' key, so a helper"
        " that colludes with any party can test every id it guesses"
    ),
    FOUND: (
        "from the helper to each learner: which entries of its own shuffled list are"
        " common"
    ),
}
HASH = 16
KEY = 32
HIDDEN = DpEvent("blinded (keyed blake2b)")


class HowMany(Request[IdCount]):
    """Asks how many ids a party has, to be aligned among these parties."""

    parties: tuple[str, ...]


class AgreeKeyed(Request[IdCount]):
    """The driver's first request: who takes part, who will learn what, who compares,
    and under which key."""

    parties: tuple[str, ...]
    ids: str
    reveal: str
    learners: tuple[str, ...]
    helper: str
    secret: str  # the key of the hashes
    key: int = 0  # which key of the rows is compared, of several that are tried in turn


class Hashes(Message):
    hashes: Released


class HandOut(Request[Hashes]):
    """The helper asks a party for a part of its list. `shortest` is the length of the
    shortest of the others' lists."""

    parties: tuple[str, ...]
    shortest: int
    start: int
    count: int


class Found(Request[Done]):
    """The helper tells a learner how many ids are common and, unless only the count is
    revealed, where in its list."""

    parties: tuple[str, ...]
    common: int
    positions: Released | None


class EndKeyed(Request[Done]):
    """Forget the key and the order."""

    parties: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Hashing:
    """A mechanism of the outbox: digests of ids go in, hashes under the parties' key
    come out, and nothing else."""

    key: bytes = field(repr=False)

    def apply(self, tensor: Tensor, source: Source) -> tuple[Tensor, DpEvent]:  # noqa: ARG002
        return torch.from_numpy(hashes_of(tensor.numpy(), self.key)), HIDDEN


def hashes_of(digests: NDArray[np.uint8], key: bytes) -> NDArray[np.uint8]:
    """[n, 32] -> [n, 16]."""
    width = digests.shape[1]
    data = digests.tobytes()
    keyed = hashlib.blake2b(key=key, digest_size=HASH)
    joined = bytearray()
    for start in range(0, len(data), width):
        digest = keyed.copy()
        digest.update(data[start : start + width])
        joined += digest.digest()
    return np.frombuffer(joined, dtype=np.uint8).reshape(-1, HASH)


@dataclass
class Session:
    """One alignment that a party takes part in."""

    owner: IdOwner
    current: object  # `IdOwner.current` when it began
    ids: Ids  # as they were then
    asker: str | None
    order: NDArray[np.int64]
    key: bytes = field(repr=False)
    reveal: str
    handed: int = 0  # how much of its list the helper has
    learned: bool = False


class KeyedIds(Party):
    """Hands the helper one organisation's ids, hashed. `owners` has its ids, once for
    each group that it aligns with; the rows that a group has in common are in that
    owner's `common_rows`."""

    def __init__(
        self,
        organisation: Organisation,
        owners: Sequence[IdOwner],
        *,
        helper: str,
        askers: Collection[str],
    ) -> None:
        super().__init__(organisation)
        self.owners = owners
        self.helper = helper
        self.serves_for = frozenset(askers)
        by_helper = frozenset({helper})
        self.reserved = {
            HandOut: by_helper,
            Found: by_helper,
            HowMany: frozenset({helper, *askers}),
        }
        self._sessions: dict[frozenset[str], Session] = {}

    def owner_among(self, parties: Sequence[str]) -> IdOwner:
        """The ids that are aligned among these parties."""
        for owner in self.owners:
            if frozenset(owner.among) == frozenset(parties) and len(
                set(parties)
            ) == len(parties):
                return owner
        known = "; ".join(", ".join(map(repr, owner.among)) for owner in self.owners)
        raise Refused(
            f"it aligns among {known}, and was asked to among {list(parties)}"[:400]
        )

    @serves
    def how_many(self, request: HowMany) -> IdCount:
        owner = self.owner_among(request.parties)
        return IdCount(len(owner.ids), owner.ids.columns)

    @serves
    def agree(self, request: AgreeKeyed, asker: str | None) -> IdCount:
        owner = self.owner_among(request.parties)
        reason = (
            f"its settings say helper = {self.helper!r}, and it was asked to give its"
            f" list to {request.helper!r}"
        )
        self.expect(request.helper == self.helper, reason)
        self.expect(
            owner.settings.protocol != "ecdh",
            'its settings say protocol = "ecdh", without a helper',
        )
        owner.check_terms(
            request.parties, request.ids, request.reveal, request.learners, asker
        )
        fits = len(request.secret) == 2 * KEY and all(
            c in "0123456789abcdef" for c in request.secret
        )
        self.expect(
            fits, f"the parties' key has {KEY} bytes, written as hexadecimal digits"
        )
        owner.begin(request.key, asker)
        log.info(
            "%s: '%s' compares its ids with others', and learns %s",
            self.name,
            self.helper,
            REVEALS[KEYED],
        )
        order = shuffled(len(owner.ids))
        key = bytes.fromhex(request.secret)
        session = Session(
            owner, owner.current, owner.ids, asker, order, key, request.reveal
        )
        self._sessions = {**self._sessions, frozenset(request.parties): session}
        return IdCount(len(owner.ids), owner.ids.columns)

    @serves
    def hand_out(self, request: HandOut) -> Hashes:
        session = self._session(request.parties)
        owner = session.owner
        total = len(session.order)
        if owner.allowance is not None and session.asker is not None:
            least = owner.allowance.settings.smallest
            reason = (
                f"it compares lists of {least} ids or more, and the shortest has"
                f" {request.shortest}: fewer would "
            )
            self.expect(request.shortest >= least, reason + "tell about single ids")
        stop = request.start + request.count
        # twice, it could be compared with another list
        in_turn = request.start == session.handed < stop <= total
        reason = (
            f"its list of {total} is handed out once, in turn: {session.handed} were,"
            " and it was asked for "
        )
        self.expect(in_turn, f"{reason}{request.start} to {stop}")
        session.handed = stop
        chosen = session.order[request.start : stop]
        self.outbox.rules[KEYED] = Rule(Hashing(session.key))
        return Hashes(
            self.outbox.release(
                torch.from_numpy(session.ids.digests[chosen]), KEYED, ALIGN
            )
        )

    @serves
    def learn(self, request: Found) -> Done:
        session = self._session(request.parties)
        owner = session.owner
        total = len(session.order)
        self.expect(
            not session.learned, "it was told already; what is common is learned once"
        )
        learns = self.name in owner.settings.learners_among(request.parties)
        self.expect(learns, "its settings do not let it learn what is common")
        self.expect(
            0 <= request.common <= total,
            f"{request.common} ids cannot be common: it has {total}",
        )
        reveals_rows = session.reveal == "rows"
        agreed = "that rows are revealed" if reveals_rows else "that only a count is"
        as_agreed = (request.positions is not None) == reveals_rows
        self.expect(as_agreed, f"it was agreed {agreed}, and it was told otherwise")
        if request.positions is not None:
            places = owner.positions(request.positions, total)
            reason = f"it was told {request.common} common ids and {len(places)} places"
            self.expect(len(places) == request.common, reason)
            owner.learned(session.ids.rows[session.order[places]])
        else:
            owner.common = request.common
        session.learned = True
        return Done()

    @serves
    def end(self, request: EndKeyed) -> Done:
        among = frozenset(request.parties)
        self._sessions = {
            known: session
            for known, session in self._sessions.items()
            if known != among
        }
        self.outbox.rules.pop(KEYED, None)
        return Done()

    def _session(self, parties: Sequence[str]) -> Session:
        otherwise = "it has no key for this; an alignment starts with agree_keyed"
        session = self.needed(self._sessions.get(frozenset(parties)), otherwise)
        self.expect(
            session.current is session.owner.current,
            "another alignment has begun, and this one has ended",
        )
        return session
