"""A party that aligns: it blinds its own ids, multiplies the points of others by its
secret, and forgets the secret.

Secret multipliers and shuffles come from the operating system, not from the party's
generator, whose seed others know. Both are new for every alignment, forgotten at its
end and never saved.

A driver may lie: it could hand out points of parties that it made up, ask for one id at
a time, or say that rows are common without comparing any. So a party takes part only
with parties that its own settings name, only with lists of distinct points that are not
too short, and only as often as its `Allowance` says, which is charged before it
answers. It learns its common rows once, after it compared every list, and never more
rows than the shortest list has.
"""

from __future__ import annotations

import secrets
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from colonnade.alignment import curve
from colonnade.alignment.allowance import Allowance
from colonnade.alignment.ids import Ids
from colonnade.core.chance import Source
from colonnade.core.message import Done, Message, Request
from colonnade.core.party import Organisation, Party, Refused, serves
from colonnade.core.receipt import DpEvent
from colonnade.core.release import Released, Rule
from colonnade.settings.alignment import AlignmentSettings

BLINDED = "blinded_ids"
RAISED = "raised_points"
POSITIONS = "positions"
NUMBERS = "batch_numbers"
ALIGN = "align"
"""The batch under which ledgers enter everything that an alignment releases; it has no
rows yet."""
REVEALS = {
    BLINDED: (
        "how many ids the owner has; which they are takes its secret (decisional"
        " Diffie-Hellman)"
    ),
    RAISED: "nothing more: another's points under one more secret, in a new order",
    NUMBERS: (
        "which of a partner's own rows are in a batch together, where rows are matched"
        " by several keys; partners who pool what they were told know which of their"
        " rows are one person's"
    ),
    POSITIONS: (
        "which of a shuffled list of blinded points are common: its owner learns which"
        " of its rows others have"
    ),
}
HIDDEN = DpEvent("blinded (secp256k1)")


class IdCount(Message):
    """How many distinct ids a party has, and how many columns make up an id."""

    ids: int
    columns: int


class Agree(Request[IdCount]):
    """The first request: who takes part in which order, and who will learn what. The
    receiver makes a new secret. To predict, the asker aligns with each party alone, and
    says how many ids it will compare."""

    parties: tuple[str, ...]
    ids: str
    reveal: str
    learners: tuple[str, ...]
    predict: int = 0  # how many ids; 0: to train
    # which key is compared: they are tried in turn, each over the rows still unmatched
    key: int = 0


class Points(Message):
    points: Released


class Blind(Request[Points]):
    """Some of the party's own ids, blinded, in its secret order."""

    start: int
    count: int


class Raise(Request[Done]):
    """Multiply these points of `owner`, which `giver` handed out; `total` points will
    come, in order."""

    owner: str
    giver: str
    start: int
    total: int
    points: Released


class Fetch(Request[Points]):
    """Some of the points that were raised, in a new secret order."""

    owner: str
    start: int
    count: int


class Positions(Message):
    positions: Released


class Trace(Request[Positions]):
    """Turn positions of common points in the list that this party handed out into those
    in the list it was given."""

    owner: str
    positions: Released


class Learn(Request[Done]):
    """The party's own common ids, as positions in its blinded list, in the agreed
    order."""

    positions: Released


class Tell(Request[Done]):
    """How many ids are common."""

    common: int


class End(Request[Done]):
    """Forget the secret and the shuffles."""


@dataclass(frozen=True, slots=True)
class Blinding:
    """A mechanism of the outbox: digests of ids go in, blinded points come out, and
    nothing else can leave."""

    secret: bytes = field(repr=False)

    def apply(self, tensor: Tensor, source: Source) -> tuple[Tensor, DpEvent]:  # noqa: ARG002
        return torch.from_numpy(curve.blind(tensor.numpy(), self.secret)), HIDDEN


@dataclass(frozen=True, slots=True)
class Raised:
    """A mechanism that changes nothing: the points came under their owner's blinding,
    and were multiplied then."""

    def apply(self, tensor: Tensor, source: Source) -> tuple[Tensor, DpEvent]:  # noqa: ARG002
        return tensor, HIDDEN


@dataclass
class Raising:
    """Another party's points on their way through this one."""

    total: int
    chunks: list[NDArray[np.uint8]] = field(default_factory=list)
    received: int = 0
    points: NDArray[np.uint8] | None = None
    order: NDArray[np.int64] | None = None
    traced: bool = False


class IdOwner(Party):
    """A party with ids. After `align`, a learner knows how many are common and, where
    agreed, which of its rows. `among` names all who take part; `allowance` is what it
    allows others in a day, between machines."""

    _parties: tuple[str, ...]
    _raising: dict[str, Raising]

    def __init__(
        self,
        organisation: Organisation,
        ids: Ids | Sequence[Ids],
        settings: AlignmentSettings,
        *,
        among: Collection[str],
        allowance: Allowance | None = None,
    ) -> None:
        super().__init__(organisation)
        self.settings = settings
        self.among = among
        self.allowance = allowance
        self.ids = ids

    @property
    def ids(self) -> Ids:
        """The ids of the key that is compared now. Setting others, when the table
        changes, forgets the matches so far: row numbers then mean other rows."""
        return self._ids

    @ids.setter
    def ids(self, ids: Ids | Sequence[Ids]) -> None:
        self.keys: tuple[Ids, ...] = (ids,) if isinstance(ids, Ids) else tuple(ids)
        self._ids = self.keys[0]
        self._reset()
        self._forget()

    @property
    def common_rows(self) -> NDArray[np.int64] | None:
        """This party's common rows in the agreed order: those that the first key
        matched come first."""
        return np.concatenate(self.rows_by_key) if self.rows_by_key else None

    def _reset(self, predicts: bool = False) -> None:
        self.common: int | None = None
        self.begun = 0  # how many keys were begun
        # for each key that was compared, the rows that it matched
        self.rows_by_key: list[NDArray[np.int64]] = []
        # whether the rows are to be predicted; else they are to train on, and nothing
        # else
        self.predicts = predicts

    @serves
    def agree(self, request: Agree, asker: str | None) -> IdCount:
        predicts = request.predict != 0
        self.expect(
            request.predict >= 0, f"it was asked to compare {request.predict} ids"
        )
        parties = sorted(
            {self.name, str(asker)} if predicts and asker in self.among else self.among
        )
        reason = f"it aligns with {', '.join(map(repr, parties))}, and was asked to with {list(request.parties)}"[
            :400
        ]
        self.expect(sorted(request.parties) == parties, reason)
        self.check_terms(
            request.parties, request.ids, request.reveal, request.learners, asker
        )
        may_give_points = predicts or self.settings.protocol != "helper"
        self.expect(
            may_give_points,
            'its settings say protocol = "helper", and it was asked for points',
        )
        self.begin(request.key, asker, request.predict)
        self._parties = request.parties
        self._announced = request.predict
        self._secret = curve.fresh_secret()
        self._reveal = request.reveal
        self._order = shuffled(len(self.ids))
        self._compared = True
        self._raising = {}
        self.outbox.rules |= {
            BLINDED: Rule(Blinding(self._secret)),
            RAISED: Rule(Raised()),
        }
        return IdCount(len(self.ids), self.ids.columns)

    def begin(self, key: int, asker: str | None, predict: int = 0) -> None:
        """Begin a new alignment and forget the one before; or, with a later key, go on
        with the rows still unmatched. To train, all keys together are charged as one
        alignment; to predict, each is charged."""
        if key:
            compared = len(self.rows_by_key)
            in_turn = key == compared == self.begun < len(
                self.keys
            ) and self.predicts == bool(predict)
            rule = f"its {len(self.keys)} keys are compared in turn, each once"
            self.expect(
                in_turn, f"{rule}: {self.begun} were begun, and {compared} compared"
            )
        if self.allowance is not None and asker is not None:
            if predict:
                self.allowance.compare(asker, predict)
            elif not key:
                self.allowance.align(asker)
        if not key:
            self._reset(bool(predict))
        self._forget()
        self.begun = key + 1
        fill = (asker is not None or not predict) and len(self.keys) > 1
        # the first key, unless no row here has it
        as_it_is = not key and len(self.keys[0]) > 0
        self._ids = (
            self.keys[key]
            if as_it_is
            else self.keys[key].left(self.rows_by_key, fill=fill)
        )

    def learned(self, rows: NDArray[np.int64]) -> None:
        """Keep the rows that the current key matched."""
        self.expect(
            bool((rows >= 0).all()),
            "an entry that only fills its list up cannot be common",
        )
        self.rows_by_key = [*self.rows_by_key, rows]
        self.common = (self.common or 0) + len(rows)

    def check_terms(
        self,
        parties: tuple[str, ...],
        ids: str,
        reveal: str,
        learners: tuple[str, ...],
        asker: str | None,
    ) -> None:
        """Refuse terms that differ from this party's settings or exceed its allowance;
        a count is less than rows."""
        allowed = (
            None
            if self.allowance is None or asker is None
            else self.allowance.settings.reveal
        )
        most = "count" if "count" in (allowed, self.settings.reveal) else "rows"
        for setting, own, asked in (
            ("ids", self.settings.ids, ids),
            ("reveal", most, most if reveal == "count" else reveal),
            ("learners", self.settings.learners_among(parties), learners),
        ):
            self.expect(
                asked == own,
                f"its settings say {setting} = {own!r}, and it was asked for {asked!r}",
            )

    @serves
    def blind(self, request: Blind) -> Points:
        self._expect_secret()
        chosen = self._order[self._part(request.start, request.count, len(self.ids))]
        return Points(
            self.outbox.release(
                torch.from_numpy(self.ids.digests[chosen]), BLINDED, ALIGN
            )
        )

    @serves
    def raise_(self, request: Raise, asker: str | None) -> Done:
        self._expect_secret()
        owner, raising = request.owner, self._raising.get(request.owner)
        self.expect(
            owner in self._parties and owner != self.name,
            f"it was given points of {owner!r}, no other party",
        )
        if request.start == 0 and raising is None:
            self._admit(owner, request.total, asker)
            raising = Raising(request.total)
        fits = raising is not None and (request.start, request.total) == (
            raising.received,
            raising.total,
        )
        self.expect(
            fits,
            f"the points of '{owner}' came out of turn, at {request.start} of"
            f" {request.total}",
        )
        assert raising is not None
        points = as_points(
            request.points, f"what '{request.giver}' handed out of '{owner}'"
        )
        received = raising.received + len(points)
        fits = len(points) > 0 and received <= raising.total
        self.expect(fits, f"'{owner}' has more points than it announced, or none")
        try:
            raised = curve.multiply(points, self._secret)
        except curve.NotAPoint as error:
            at = request.start + error.at
            raise Refused(
                f"point {at} of what '{request.giver}' handed out of '{owner}' is not"
                " on the curve secp256k1"
            ) from None
        if received == raising.total:
            whole = np.concatenate([*raising.chunks, raised])
            distinct = len(np.unique(whole, axis=0))
            self.expect(
                distinct == len(whole),
                f"of {len(whole)} points of '{owner}' only {distinct} differ",
            )
            raising.order = shuffled(raising.total)
            raising.points = whole[raising.order]
            raising.chunks = []
        else:
            raising.chunks.append(raised)
        # last: a refused call leaves no trace
        self._raising[owner], raising.received = raising, received
        return Done()

    @serves
    def fetch(self, request: Fetch) -> Points:
        raising = self._raising.get(request.owner)
        if raising is None or raising.points is None:
            raise Refused(
                f"it holds no raised points of '{request.owner}' any more, or not"
                " all yet"
            )
        part = raising.points[self._part(request.start, request.count, raising.total)]
        if request.start + request.count == raising.total:
            raising.points = None
        return Points(self.outbox.release(torch.from_numpy(part), RAISED, ALIGN))

    @serves
    def trace(self, request: Trace) -> Positions:
        self._expect_learner(request.owner)
        raising = self._raising.get(request.owner)
        if (
            raising is None
            or raising.order is None
            or raising.points is not None
            or raising.traced
        ):
            raise Refused(
                f"positions in the points of '{request.owner}' are traced once, after"
                " all were fetched"
            )
        before = raising.order[self.positions(request.positions, raising.total)]
        raising.traced = True
        return Positions(
            self.outbox.release(
                torch.from_numpy(before.astype(np.int32)), POSITIONS, ALIGN
            )
        )

    @serves
    def learn(self, request: Learn) -> Done:
        self._expect_learner(self.name)
        places = self._order[self.positions(request.positions, len(self.ids))]
        self._expect_possible(len(places))
        self.learned(self.ids.rows[places])
        return Done()

    @serves
    def tell(self, request: Tell) -> Done:
        self.expect(
            self._reveal == "count",
            "it agreed that rows are revealed, and it was told a count",
        )
        self._expect_possible(request.common)
        self.common = request.common
        return Done()

    @serves
    def end(self, request: End) -> Done:  # noqa: ARG002
        self._forget()
        return Done()

    def _admit(self, owner: str, total: int, asker: str | None) -> None:
        """Refuse another party's list before working on it if it is too short: it would
        tell about single ids."""
        if self._announced and owner == asker:
            reason = (
                f"'{owner}' announced {self._announced} ids to predict, and its list"
                f" has {total}"
            )
            self.expect(total == self._announced, reason)
        if self.allowance is None or asker is None or self._announced:
            return
        least = self.allowance.settings.smallest
        rule = f"it compares lists of {least} ids or more"
        self.expect(
            total >= least,
            f"{rule}, and '{owner}' has {total}: fewer would tell about single ids",
        )

    def _expect_possible(self, common: int) -> None:
        """Refuse so many common rows where the shortest list has fewer, until all lists
        were compared, as none is known to be common before, and a second time."""
        others = [name for name in self._parties if name != self.name]
        lists = [self._raising[name] for name in others if name in self._raising]
        lengths = [
            raising.total
            for raising in lists
            if raising.order is not None and raising.points is None
        ]
        self.expect(
            len(lengths) == len(others),
            "rows are common once all other lists went through it and were fetched",
        )
        most = min([len(self.ids), *lengths])
        self.expect(
            0 <= common <= most,
            f"{common} rows cannot be common: the shortest list compared has {most}",
        )
        self.expect(
            self._compared, "it was told its common rows already; they are learned once"
        )
        self._compared = False

    def _forget(self) -> None:
        self._parties = ()
        self._announced = 0
        self._secret = b""
        self._raising = {}
        self._reveal = ""
        self._order = np.empty(0, dtype=np.int64)
        self._compared = False  # whether it is to be told what is common
        # marks this alignment: what belongs to another one is refused
        self.current = object()
        self.outbox.rules.pop(BLINDED, None)

    def _expect_secret(self) -> None:
        self.expect(
            bool(self._secret),
            "it has no secret for this; an alignment starts with agree",
        )

    def _expect_learner(self, owner: str) -> None:
        allowed = (
            self._parties
            and self._reveal == "rows"
            and owner in self.settings.learners_among(self._parties)
        )
        self.expect(
            bool(allowed),
            f"its settings do not let '{owner}' learn which rows are common",
        )

    def _part(self, start: int, count: int, total: int) -> slice:
        self.expect(
            start >= 0 and count > 0 and start + count <= total,
            f"there is no part {start}+{count} of {total}",
        )
        return slice(start, start + count)

    def positions(self, released: Released, total: int) -> NDArray[np.int32]:
        """Read distinct places in a list of `total` entries; anything else is refused."""
        tensor = released.tensor
        self.expect(
            tensor.dtype == torch.int32 and tensor.dim() == 1,
            "positions must be a list of int32",
        )
        places: NDArray[np.int32] = tensor.cpu().numpy()
        inside = bool(((places >= 0) & (places < total)).all())
        distinct = len(np.unique(places)) == len(places)
        self.expect(
            inside and distinct, f"positions must be distinct and below {total}"
        )
        return places


def as_points(released: Released, whose: str) -> NDArray[np.uint8]:
    """The bytes of points; what cannot be points is refused."""
    tensor = released.tensor
    if (
        tensor.dtype != torch.uint8
        or tensor.dim() != 2
        or tensor.shape[1] != curve.POINT
    ):
        given = f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"
        raise Refused(
            f"{whose} must be points of {curve.POINT} bytes, uint8 [n, {curve.POINT}];"
            f" found {given}"
        )
    points: NDArray[np.uint8] = tensor.cpu().numpy()
    return points


def shuffled(count: int) -> NDArray[np.int64]:
    """A secret order: ranks of 64 random bits each, from the operating system."""
    return np.argsort(
        np.frombuffer(secrets.token_bytes(8 * count), dtype=np.uint64), kind="stable"
    )
